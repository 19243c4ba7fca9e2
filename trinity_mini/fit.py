"""The training loop of the tiny models (agents and SLM): Muon and AdamW, resumable, with a progress bar."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .files import UserError, write_atomically
from .tiny_lm import Muon, TinyLM


def fit(
    model: TinyLM,
    loss: Callable[[TinyLM], Tensor],
    stream_state: tuple[Callable[[], dict], Callable[[dict], None]],
    steps: int,
    state_file: Path,
    label: str,
    decay: float = 0.5,
    save_every: float = 60.0,
) -> float:
    """Train in place for `steps` updates: learning rates constant, then linear to 0 over the last `decay` part.

    loss: draws the next batch and returns its loss. stream_state: get and set the state of its random stream.
    The state (weights, optimisers, stream) is written to `state_file` every `save_every` seconds and at the end;
    a later call goes on from there and ends with the same weights.
    Raises: UserError if the state file is damaged or was written under another label or number of steps.

    Returns: CPU seconds spent, all calls together.
    """
    from tqdm.auto import tqdm

    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimisers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=0.003, betas=(0.9, 0.98), weight_decay=0.0)]
    rates = [0.02, 0.003]
    step, spent = 0, 0.0
    identity = [label, steps]
    if state_file.exists():
        try:
            state = torch.load(io.BytesIO(state_file.read_bytes()), weights_only=True)
            if state.get("identity", identity) != identity:
                raise UserError(
                    f"{state_file} is of another run {state['identity']}, not {identity}: delete it to begin again."
                )
            model.load_state_dict(state["model"])
            for o, s in zip(optimisers, state["optimisers"], strict=True):
                o.load_state_dict(s)
            stream_state[1](state["stream"])
            step, spent = state["step"], state["spent"]
        except UserError:
            raise
        except Exception as e:
            raise UserError(f"{state_file} is damaged ({type(e).__name__}): delete it to begin again.") from None

    def save() -> None:
        buffer = io.BytesIO()
        torch.save(
            {
                "identity": identity,
                "model": model.state_dict(),
                "optimisers": [o.state_dict() for o in optimisers],
                "stream": stream_state[0](),
                "step": step,
                "spent": spent + time.process_time() - start,
            },
            buffer,
        )
        write_atomically(state_file, buffer.getvalue())

    model.train().requires_grad_(True)
    start, saved = time.process_time(), time.monotonic()
    bar = tqdm(total=steps, initial=step, desc=label, unit="step", mininterval=5)
    smooth = None
    while step < steps:
        for o, rate in zip(optimisers, rates, strict=True):
            for group in o.param_groups:
                group["lr"] = rate * min(1.0, (steps - step) / (decay * steps)) * min(1.0, (step + 1) / 20)
            o.zero_grad(set_to_none=True)
        value = loss(model)
        if not torch.isfinite(value):
            raise UserError(f"training of {label} diverged at step {step}: choose another seed.")
        value.backward()
        for o in optimisers:
            o.step()
        step += 1
        smooth = value.item() if smooth is None else 0.98 * smooth + 0.02 * value.item()
        bar.update()
        bar.set_postfix(loss=f"{smooth:.3f}", refresh=False)
        if time.monotonic() - saved > save_every:
            save()
            saved = time.monotonic()
    save()
    bar.close()
    model.eval().requires_grad_(False)
    return spent + time.process_time() - start
