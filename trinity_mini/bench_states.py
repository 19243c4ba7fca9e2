"""How fast the coordinator's states come, how near that is to what the machine's matrix products allow, and in
how much memory: a population of SVF candidates reads transcripts that grow turn by turn.
"""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .backbone import Backbone
from .bench_svf import _Letters, random_qwen3
from .files import UserError

Row = dict[str, Any]
LETTERS = np.array(list("abcdefghij0123456789"))
MODELS = ("embedded", "random", "qwen3-0.6b")
QUARTER = {  # of the width, for tests
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def qwen3_config(**changes: Any) -> Any:
    """The shape of Qwen/Qwen3-0.6B as a transformers config, without the hub; `changes` replace numbers of it."""
    from transformers import Qwen3Config

    shape: dict[str, Any] = dict(
        vocab_size=151_936,
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
    )
    return Qwen3Config(**(shape | changes))


class Meter(TorchDispatchMode):
    """Counts, while it is on, what torch computes in linear layers and attention.

    flops: dtype -> floating point operations of their matrix products (a multiplication and an addition: 2);
    live, peak: bytes of tensors made meanwhile, now and at most.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[torch.dtype] = Counter()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            a, b = args[-2:]
            self.flops[a.dtype] += 2 * a.numel() * b.shape[-1]
        elif "dot_product" in name and "attention" in name:
            q, k = args[:2]  # (B, H, Q, c), (B, G, T, c): q k^T, and as much for the values
            self.flops[q.dtype] += 4 * q.numel() * k.shape[-2]
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                if id(storage) not in given | self._known:
                    self._known.add(id(storage))
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._forget, id(storage), storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def matmul_rate(dtype: torch.dtype, device: torch.device, size: int = 0) -> float:
    """Floating point operations a second of one product of two size x size matrices of that type."""
    size = size or (8192 if device.type == "cuda" else 1024)
    a = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _seconds(lambda: a @ a, device)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    """CPU seconds of this process; on a GPU seconds until it is done."""
    if device.type != "cuda":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _turns(backbone: Backbone, candidates: int, texts: int, tokens: int, turns: int, rng) -> Iterator[list[str]]:
    """What each candidate reads on each text, turn by turn: `tokens` letters more each time, one of eight replies."""

    def letters() -> str:
        return "".join(rng.choice(LETTERS, tokens))

    read = [letters() for _ in range(texts)] * candidates
    for _ in range(turns):
        yield read
        replies = [letters() for _ in range(8)]
        read = [text + replies[i] for text, i in zip(read, rng.integers(8, size=len(read)), strict=True)]


def _measured(label: str, backbone: Backbone, candidates: int, texts: int, tokens: int, repeats: int) -> list[Row]:
    svf, device, turns = backbone.svf(), backbone.model.model.embed_tokens.weight.device, 3
    rng = np.random.default_rng(0)
    rates: dict[torch.dtype, list[float]] = {}
    speed, share, rate = [], [], []

    def generation() -> Callable[[], None]:
        deltas = np.repeat(rng.normal(0, 0.02, (candidates, svf.n)).astype(np.float32), texts, axis=0)
        prompts = list(_turns(backbone, candidates, texts, tokens, turns, rng))
        backbone.clear_cache()
        return lambda: [backbone.hidden(read, deltas) for read in prompts]

    with Meter() as meter:  # the first pass counts; it also allocates
        generation()()
    for dtype in meter.flops:
        matmul_rate(dtype, device)  # the first product sets up the library
    for _ in range(repeats):
        for dtype in meter.flops:
            rates.setdefault(dtype, []).append(matmul_rate(dtype, device))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = _seconds(generation(), device)
        speed.append(candidates * texts * turns / seconds)
        # The operations differ a little from pass to pass: other replies. The least time is that of all products.
        least = sum(count / max(rates[dtype]) for dtype, count in meter.flops.items())
        share.append(least / seconds)
        rate.append(meter.flops.total() / seconds / 1e9)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else meter.peak

    unit = "s" if device.type == "cuda" else "CPU s"
    family = f"{label}: {candidates} candidates, {texts} texts, {tokens} tokens a turn, {turns} turns, {device}"
    rows = [
        _row(f"states, {label}", family, speed, f"1/{unit}"),
        _row(f"share of the bound by operation count, {label}", family, share, "share"),
        _row(f"matrix products of the forward, {label}", family, rate, f"GFLOP/{unit}"),
    ]
    for dtype, values in rates.items():
        name = f"matrix products of the machine, {str(dtype).removeprefix('torch.')}, {label}"
        rows.append(_row(name, family, [v / 1e9 for v in values], f"GFLOP/{unit}"))
    what = "memory at most, with the weights" if device.type == "cuda" else "memory at most, beside the weights"
    rows.append(_row(f"{what}, {label}", family, [peak / 2**20], "MiB"))
    rows.append(_row(f"memory of cached states, {label}", family, [backbone.held() / 2**20], "MiB"))
    return rows


def _row(name: str, family: str, values: list[float], unit: str) -> Row:
    se = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return {"name": name, "family": family, "value": float(np.mean(values)), "se": se, "n": len(values), "unit": unit}


def _random_qwen3_06b(device: torch.device, **changes: int) -> Backbone:
    """Random weights in the shape of Qwen3-0.6B, bfloat16 on a GPU."""
    from transformers import Qwen3ForCausalLM

    cuda = device.type == "cuda"
    config = qwen3_config(initializer_range=1 / 32, **changes)
    with torch.random.fork_rng(devices=[device] if cuda else []), device:
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    return Backbone(model.bfloat16() if cuda else model, _Letters())


def bench_states(quick: bool = False, model: str | None = None, device: str | None = None) -> list[Row]:
    """States a second of a whole population, three turns a generation, each generation with new deltas.

    The bound by operation count is the time that the forward's matrix products alone would take at the rate of one
    large product of the same type, measured in the same run. CPU seconds on a CPU (with one thread or more).

    model: embedded, random (a small random Qwen3), qwen3-0.6b (its shape, random weights), or the name or folder of a
    chat model; None: the first two, and on a GPU the third. device: cpu or cuda; None: cpu.

    Returns: rows of name, family, value, se, n, unit. Raises: UserError for a device that is not there.
    """
    place = _device(device)
    chosen = [model] if model else list(MODELS if place.type == "cuda" else MODELS[:2])
    repeats, rows = 1 if quick else 3, []
    for name in chosen:
        if name == "embedded":
            backbone, sizes = Backbone.embedded(), (34, 4, 20) if quick else (136, 4, 20)
        elif name == "random":
            backbone, sizes = random_qwen3(64 if quick else 192, 28), (8, 2, 20) if quick else (34, 4, 40)
        elif name == "qwen3-0.6b":
            backbone = _random_qwen3_06b(place, **(QUARTER if quick else {}))
            sizes = (4, 1, 20) if quick else (34, 16, 400)
        else:
            dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
            backbone, sizes = Backbone.from_hub(name, place, dtype), (8, 1, 20) if quick else (34, 16, 400)
        rows += _measured(name, backbone, *sizes, repeats)
        del backbone
    return rows


def _device(name: str | None) -> torch.device:
    try:
        place = torch.device(name or "cpu")
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as e:
        raise UserError(
            f"cannot use device {name} ({str(e).splitlines()[0]}): choose cpu, or install a torch build for your GPU."
        ) from None
    return place
