"""What evaluating a population of SVF candidates costs: all at once, or one swapped in after the other."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .backbone import Backbone
from .tiny_lm import TOKENIZER

Row = dict[str, Any]


class _Letters:
    """The tiny tokenizer behind the few attributes of a transformers one that a backbone needs."""

    chat_template = None

    def __call__(self, text: str, **_) -> SimpleNamespace:
        return SimpleNamespace(input_ids=TOKENIZER.encode(text))


def random_qwen3(d: int, layers: int, seed: int = 0) -> Backbone:
    """A backbone around a randomly initialised Qwen3 with its proportions: feed-forward 3 d, keys and values half."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=d,
        intermediate_size=3 * d,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=d // 8,
        tie_word_embeddings=True,
        initializer_range=d**-0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    return Backbone(model, _Letters())


@torch.no_grad()
def swap_and_run(backbone: Backbone, ids: torch.Tensor, deltas: np.ndarray) -> torch.Tensor:
    """The plain way: for each delta write W' into the model and run all of it through transformers.

    ids: (texts, T). Returns: (candidates, texts, d), the state of position -2.
    """
    svf, states = backbone.svf(), []
    for delta in torch.from_numpy(deltas):
        with svf.applied(backbone.model, delta):
            out = backbone.model.base_model(input_ids=ids, use_cache=False)
            states.append(out.last_hidden_state[:, -2].clone())
    return torch.stack(states)


def operations(backbone: Backbone, candidates: int, texts: int, tokens: int) -> tuple[float, ...]:
    """Multiplications in linear layers: (swap and run, all at once, all at once cached below)."""
    layer = backbone.model.model.layers[0]
    attention = [getattr(layer.self_attn, f"{x}_proj").weight.shape for x in "qkvo"]
    mlp = [getattr(layer.mlp, f"{x}_proj").weight.shape for x in ("gate", "up", "down")]
    dense = sum(o * i for o, i in attention + mlp)
    keys_values = sum(o * i for o, i in attention[1:3])
    rebuild = sum(o * i * min(o, i) for o, i in attention + mlp)
    factored = sum(o * min(o, i) for o, i in attention + mlp)  # U
    factored += sum(i * min(o, i) for o, i in attention[3:] + mlp)  # V^T, but for q, k and v
    shared = sum(i * min(o, i) for o, i in attention[:3])
    read = texts * tokens
    swap = candidates * (read * backbone.n_layers * dense + rebuild)
    tail = min(read * factored, read * dense + rebuild) + read * keys_values + texts * (dense - keys_values)
    cached = read * shared + candidates * tail
    return swap, read * backbone.layer * dense + cached, cached


def bench_svf(quick: bool = False) -> list[Row]:
    """Time both ways on a random 28-layer Qwen3, layer 26 adapted, interleaved in one run.

    CPU seconds for 32 candidates on 4 texts of 80 tokens (quick: smaller), with the layers below computed anew and
    with their states in the cache; new deltas each time. The bound counts the multiplications of linear layers.

    Returns: rows of name, family, value, se, n, unit.
    """
    d, candidates, texts, repeats = (64, 8, 2, 1) if quick else (192, 32, 4, 3)
    backbone, tokens = random_qwen3(d, 28), 80
    svf = backbone.svf()
    rng = np.random.default_rng(0)
    prompts = ["".join(rng.choice(list("abcdefghij0123456789"), tokens)) for _ in range(texts)]
    ids = torch.tensor([backbone.encode(p) for p in prompts])

    def all_at_once(deltas: np.ndarray) -> torch.Tensor:
        states = backbone.hidden(prompts * candidates, np.repeat(deltas, texts, axis=0))
        return states.view(candidates, texts, -1)

    seconds: dict[str, list[float]] = {"swap and run": [], "all at once": [], "all at once, cached below": []}
    difference = 0.0
    for _ in range(repeats):
        backbone.clear_cache()
        states, deltas = {}, rng.normal(0, 0.1, (2, candidates, svf.n)).astype(np.float32)
        for name, run, moved in (
            ("all at once", all_at_once, deltas[0]),
            ("all at once, cached below", all_at_once, deltas[1]),
            ("swap and run", lambda x: swap_and_run(backbone, ids, x), deltas[0]),
        ):
            start = time.process_time()
            states[name] = run(moved)
            seconds[name].append(time.process_time() - start)
        difference = max(difference, float((states["all at once"] - states["swap and run"]).abs().max()))

    swap, *batched = operations(backbone, candidates, texts, tokens)
    family, rows = f"{candidates} candidates, {texts} texts, d {d}", []

    def add(name: str, values: list[float], unit: str) -> None:
        se = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        value = float(np.mean(values))
        rows.append({"name": name, "family": family, "value": value, "se": se, "n": len(values), "unit": unit})

    for name, values in seconds.items():
        add(name, values, "CPU s")
    for name, least in zip(list(seconds)[1:], batched, strict=True):
        ratios = [a / b for a, b in zip(seconds["swap and run"], seconds[name], strict=True)]
        add(f"speed-up, {name}", ratios, "x")
        add(f"bound by operation count, {name}", [swap / least], "x")
    add("largest difference", [difference], "state units")
    return rows
