"""The vector that the paper's authors released, as a theta of ours.

The released run (Qwen3-0.6B, L = 7) is one vector of 19,456 numbers: the singular-value deltas of nine
matrices, 1,024 each, then the head's 10 rows of 1,024, agents first, then worker, thinker, verifier.

What is assumed, since the vector does not say it:
- The matrices come as in the model's state_dict: embeddings, q, k, v, o, gate, up and down of layer 26, LM head
  (so do two independent public readers of the file). Ours put the embeddings after the layer.
- Where the LM head is tied to the embeddings, the released code writes both blocks into one tensor, one after the
  other: the LM head's stays. So ours takes the LM head's block for the embeddings; the other is inert.
- The deltas of a matrix go from its largest singular value to its smallest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .coordinator import Coordinator
from .files import UserError
from .theta_batch import EMBEDDINGS

LM_HEAD = "lm_head.weight"


def load_released(path: Path, coordinator: Coordinator) -> np.ndarray:
    """The theta (n,) float64 of `coordinator` that decides as a released vector does.

    path: .npy, .npz, .pt, .safetensors or .json (a list) with one vector. Nothing in it is executed.
    coordinator: of the released matrices and the linear head, on a backbone whose states are not centred.
    `coordinator.save` makes a checkpoint of it.

    Raises: UserError if the file cannot be read, does not fit, or the coordinator is of another kind.
    """
    if coordinator.kind != "linear" or coordinator.matrices != "released":
        raise UserError('a released vector needs Coordinator(..., head="linear", matrices="released"): build that one.')
    if coordinator.backbone.centre.any():
        raise UserError(
            "the released head reads states as they are and this backbone centres them: "
            "build the backbone afresh, without `measure`."
        )
    return from_released(read_vector(Path(path)), coordinator, str(path))


def from_released(vector: np.ndarray, coordinator: Coordinator, name: str = "the vector") -> np.ndarray:
    """As `load_released`, for a vector (n,) in the released layout."""
    vector = np.asarray(vector, dtype=np.float64)
    if vector.shape != (coordinator.n,):
        raise UserError(
            f"{name} has shape {vector.shape} and this coordinator {coordinator.n:,} parameters: use the backbone and "
            "the number of agents that it was made with (Qwen3-0.6B and 7)."
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(vector.astype(np.float32)).all()  # as the models compute
    if not finite:
        raise UserError(f"{name} holds a value that is not finite: fetch the file again.")
    deltas, head = coordinator.split(vector)
    slices = coordinator.backbone.svf("released").slices
    blocks = dict(zip(_released_order(slices), _cut(deltas, slices), strict=True))
    if LM_HEAD in coordinator.backbone.svf("released").inert:
        blocks[EMBEDDINGS], blocks[LM_HEAD] = blocks[LM_HEAD], blocks[EMBEDDINGS]
    # Ours divides states by `scale` and the square root of their length before it reads them.
    head = head * (math.sqrt(coordinator.backbone.d) * coordinator.backbone.scale)
    return np.concatenate([*(blocks[n] for n in slices), head])


def _released_order(names: Iterable[str]) -> list[str]:
    """Our matrices in the order of the released vector: embeddings first, the rest as ours."""
    return sorted(names, key=lambda name: name != EMBEDDINGS)


def _cut(deltas: np.ndarray, slices: dict[str, slice]) -> list[np.ndarray]:
    """The vector's blocks, one a matrix in the released order."""
    sizes = [slices[name].stop - slices[name].start for name in _released_order(slices)]
    return np.split(deltas, np.cumsum(sizes)[:-1])


def read_vector(path: Path) -> np.ndarray:
    """The one vector in a file, whatever its format."""
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix in (".npy", ".npz"):
            found = np.load(path, allow_pickle=False)
        elif path.suffix == ".safetensors":
            from safetensors.torch import load

            found = load(path.read_bytes())
        elif path.suffix in (".pt", ".pth"):
            import torch

            found = torch.load(path, map_location="cpu", weights_only=True)
        else:
            raise UserError(f"{path} has no known ending: give an .npy, .npz, .pt, .safetensors or .json file.")
        if hasattr(found, "keys"):
            [found] = (found[key] for key in found.keys())
        if hasattr(found, "detach"):
            found = found.detach().double().numpy()  # numpy knows no bfloat16
        found = np.asarray(found)
        if found.dtype.kind not in "fiu":
            raise TypeError(f"its values are of type {found.dtype}")
        return found.astype(np.float64)
    except OSError as e:
        raise UserError(f"cannot read {path} ({e.strerror or e}): check the path, or fetch the file.") from None
    except UserError:
        raise
    except Exception as e:
        raise UserError(
            f"{path} is damaged or holds something else than one vector ({type(e).__name__}): fetch the file again."
        ) from None
