"""Backbone, SVF and head behind one flat vector theta: what the evolution strategy turns.

theta = [SVF deltas | head, row-major]. At theta = 0 the backbone is as pretrained and every agent and
role is equally likely.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .backbone import MATRIX_SETS, Backbone, Prompt, digest
from .files import UserError, write_atomically
from .head import make_head, select, softmax

SELECTIONS = ("sample", "argmax")
FORMAT = "trinity_mini coordinator 1"


class Coordinator:
    """Chooses an agent and a role for each prompt.

    n_agents: L. matrices: "paper", "released" (see Backbone.svf) or "none" for the head alone.
    selection: "sample", "argmax", or None for what the paper uses with the head.
    n = n_svf + n_head: length of theta. Qwen3-0.6B, L = 7, linear: 7,168 or 9,216, + 10,240.

    Raises: UserError for an unknown head, matrix set or selection.
    """

    def __init__(
        self,
        backbone: Backbone,
        n_agents: int,
        head: str = "linear",
        matrices: str = "paper",
        selection: str | None = "sample",
    ) -> None:
        self.backbone, self.n_agents, self.kind, self.matrices = backbone, n_agents, head, matrices
        self.head = make_head(head, backbone.d, n_agents)
        self.selection = selection or self.head.selection
        if self.selection not in SELECTIONS:
            raise UserError(f"unknown selection {selection!r}: choose {' or '.join(SELECTIONS)}.")
        if matrices not in (*MATRIX_SETS, "none"):
            raise UserError(f"no matrix set {matrices!r}: choose {', '.join(MATRIX_SETS)} or none.")
        self.n_svf = 0 if matrices == "none" else backbone.svf(matrices).n
        self.n_head = self.head.n
        self.n = self.n_svf + self.n_head

    def split(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(SVF deltas (..., n_svf), head parameters (..., n_head)) of theta (..., n); views."""
        theta = np.asarray(theta)
        if theta.shape[-1:] != (self.n,):
            raise ValueError(f"theta has shape {theta.shape}: the last axis must be {self.n}.")
        return theta[..., : self.n_svf], theta[..., self.n_svf :]

    def stds(self, sigma_head: float = 1.0, sigma_svf: float = 0.1) -> np.ndarray:
        """(n,) initial standard deviations, relative to sigma0 (pycma's CMA_stds)."""
        return np.repeat([sigma_svf, sigma_head], [self.n_svf, self.n_head]).astype(float)

    def logits(
        self, inputs: Sequence[Prompt], thetas: np.ndarray, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(agent logits (B, L), role logits (B, 3)) for thetas (B, n), a row each, or (n,).

        Raises: ValueError that names the first row whose theta or logits are not finite, or the
        prompt that is too short.
        """
        deltas, w = self.split(thetas)
        _refuse(np.isfinite(w) & np.isfinite(deltas).all(-1, keepdims=True), "theta")
        h = self.backbone.hidden(inputs, deltas if self.n_svf else None, self.matrices)
        agent, role = self.head(self.backbone.features(h), torch.from_numpy(np.array(w)).float().to(h.device), noise)
        agent, role = agent.cpu(), role.cpu()
        _refuse(torch.cat((agent, role), dim=1).isfinite().numpy(), "the logits")
        return agent, role

    def probabilities(self, inputs: Sequence[Prompt], thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(agent (B, L), role (B, 3)) probabilities, float32. Raises: ValueError as `logits`."""
        agent, role = self.logits(inputs, thetas)
        return softmax(agent).astype(np.float32), softmax(role).astype(np.float32)

    def decide(
        self,
        inputs: Sequence[Prompt],
        thetas: np.ndarray,
        uniforms: np.ndarray,
        noise: Tensor | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(agents (B,), roles (B,), agent_p (B, L), role_p (B, 3)) for draws uniforms (B, 2).

        noise: (B, d) Gumbel numbers for a sparse head in training. Raises: ValueError as `logits`.
        """
        agent, role = self.logits(inputs, thetas, noise)
        agents, roles = select(agent, role, uniforms if self.selection == "sample" else None)
        return agents, roles, softmax(agent).astype(np.float32), softmax(role).astype(np.float32)

    def identity(self, pool_identity: str) -> dict:
        """All that a theta depends on: a checkpoint made under another one is refused."""
        return {
            "pool": pool_identity,
            "agents": self.n_agents,
            "head": self.kind,
            "matrices": self.matrices,
            "layer": self.backbone.layer if self.n_svf else None,
            "n": self.n,
            "backbone": self.backbone.weights_hash,
            "features": digest(self.backbone.centre.tobytes(), repr(self.backbone.scale)),
            "format": self.backbone.format,
        }

    def save(self, path: Path, theta: np.ndarray, pool_identity: str, extra: dict | None = None) -> None:
        """Write theta (n,) in float64 with what it belongs to; safetensors, by rename.

        extra: anything JSON can hold, for the reader. Raises: ValueError if theta is not finite.
        """
        from safetensors.numpy import save

        theta = np.ascontiguousarray(theta, dtype=np.float64)
        if theta.shape != (self.n,) or not np.isfinite(theta).all():
            raise ValueError(f"theta must be {self.n} finite numbers.")
        about = {"file": FORMAT, "identity": self.identity(pool_identity), "extra": extra or {}}
        write_atomically(path, save({"theta": theta}, metadata={"coordinator": json.dumps(about)}))

    def load(self, path: Path, pool_identity: str) -> np.ndarray:
        """The theta (n,) float64 of a checkpoint made for this coordinator and pool.

        Raises: UserError that names what differs, and the remedy.
        """
        theta, about = read_checkpoint(path)
        found, wanted = about["identity"], self.identity(pool_identity)
        for key, name, remedy in _DIFFERENCES:
            if found.get(key) != wanted[key]:
                raise UserError(
                    f"{path} was made for another {name} ({found.get(key)}, not {wanted[key]}): "
                    f"{remedy}, or train a new coordinator."
                )
        with np.errstate(over="ignore"):
            finite = np.isfinite(theta.astype(np.float32)).all()  # as the models compute
        if theta.shape != (self.n,) or not finite:
            raise UserError(f"{path} holds no {self.n} finite numbers: restore it or train again.")
        return theta


_DIFFERENCES = [
    ("pool", "pool", "use the pool it was trained with"),
    ("agents", "number of agents", "use the pool it was trained with"),
    ("head", "head", "build the coordinator with that head"),
    ("matrices", "matrix set", "build the coordinator with that set"),
    ("layer", "adapted layer", "build the backbone with that layer"),
    ("backbone", "backbone", "load the language model it was trained with, in the same dtype"),
    ("features", "centre or scale of the states", "load the backbone it was trained with"),
    ("format", "text format", "use the tokenizer and chat template it was trained with"),
    ("n", "number of parameters", "build the coordinator as it was trained"),
]


def read_checkpoint(path: Path) -> tuple[np.ndarray, dict]:
    """(theta, {"identity": ..., "extra": ...}) of a file that `Coordinator.save` wrote, unchecked.

    Raises: UserError if it is missing, truncated or another kind of file.
    """
    from safetensors.numpy import load

    try:
        content = Path(path).read_bytes()
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header["__metadata__"]["coordinator"])
        if about["file"] != FORMAT:
            raise ValueError(about["file"])
        return load(content)["theta"], {"identity": dict(about["identity"]), "extra": about["extra"]}
    except OSError as e:
        raise UserError(f"cannot read {path} ({e.strerror}): check the path, or train one.") from None
    except Exception as e:
        raise UserError(
            f"{path} is truncated or not a coordinator ({type(e).__name__}): restore it from the "
            "repository or train again."
        ) from None


def _refuse(finite: np.ndarray, what: str) -> None:
    """ValueError for the first row that is not finite: NaN would compare as false and go on."""
    good = np.atleast_2d(finite).all(-1)
    if not good.all():
        raise ValueError(f"{what} of row {int(good.argmin())} holds a value that is not finite.")
