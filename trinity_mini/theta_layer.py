"""One decoder layer over the tokens of many SVF candidates at once (for theta_batch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prefix_tree import Bucket, attend
from .svf import SVF
from .tiny_lm import rotate


def plain(module: nn.Linear, x: Tensor, dealt: None, shared: None) -> Tensor:
    """W x with the module's own weights."""
    return module(x)


class Candidates:
    """W' of each candidate of a chunk: those that stay factored first, then the rebuilt ones.

    Factored, y = U (s * (V^T x)): cheap for few tokens. For many it pays to build W' once. Both in
    float32, whatever the model's type: rounding W' to bfloat16 would hide small deltas.

    names: id of a module -> its matrix; values: matrix -> (factored candidates, r) effective
    singular values; dense: of each rebuilt candidate, matrix -> W'.
    """

    def __init__(self, svf: SVF, names: dict[int, str], values: dict[str, Tensor], dense: list[dict]) -> None:
        self.svf, self.names, self.values, self.dense = svf, names, values, dense

    def deal(self, counts: np.ndarray, device: torch.device) -> tuple[Tensor, list[int]]:
        """Of tokens in the candidates' order, counts each: the candidate of each factored token,
        and the bounds of the rebuilt candidates' tokens."""
        factored = len(counts) - len(self.dense)
        owner = np.repeat(np.arange(factored), counts[:factored])
        bounds = np.cumsum([len(owner), *counts[factored:]])
        return torch.from_numpy(owner).to(device), bounds.tolist()

    def linear(self, module: nn.Linear, x: Tensor, dealt: tuple, shared: tuple[Tensor, Tensor] | None) -> Tensor:
        """W' x for tokens x (N, in).

        shared: distinct states (M, in) and the index of each factored token's among them: where
        candidates still read the same states, V^T x is computed once for all.
        """
        owner, bounds = dealt
        name, n = self.names[id(module)], len(owner)
        out = x.new_empty(len(x), module.out_features)
        if n:
            u, _, vt = self.svf.factors[name]
            y = (x[:n] if shared is None else shared[0]).float() @ vt.T
            y = y if shared is None else y.index_select(0, shared[1])
            out[:n] = y.mul_(self.values[name].index_select(0, owner)) @ u.T
        for weights, start, stop in zip(self.dense, bounds[:-1], bounds[1:], strict=True):
            w = weights[name]
            if w.dtype == x.dtype:
                torch.mm(x[start:stop], w.T, out=out[start:stop])
            else:
                out[start:stop] = x[start:stop].to(w) @ w.T
        return out if module.bias is None else out + module.bias

    def embed(self, embedding: nn.Embedding, name: str, ids: Tensor, dealt: tuple) -> Tensor:
        """Rows of each factored candidate's embeddings U diag(s) V^T; the rebuilt one's are E."""
        owner, n = dealt[0], len(dealt[0])
        u, _, vt = self.svf.factors[name]
        y = (u[ids[:n]] * self.values[name][owner]) @ vt
        return torch.cat((y.to(embedding.weight), embedding(ids[n:])))


@dataclass
class Step:
    """What a pass knows of its tokens beside their states."""

    rope: tuple[Tensor, Tensor]  # (N, 1, c) each
    groups: tuple[list[Bucket], Tensor]  # see buckets
    dealt: tuple | None = None  # see Candidates.deal
    shared: tuple[Tensor, Tensor] | None = None  # distinct states and their index, before the norm


def run_layer(
    layer: nn.Module,
    kept: tuple[Tensor, Tensor],
    new: slice,
    x: Tensor,
    step: Step,
    linear: Callable = plain,
    read: tuple[Tensor, Step] | None = None,
) -> Tensor:
    """One decoder layer over new nodes x (N, d); writes their keys and values to `kept`.

    read: (x, step) of the nodes that the model's last layer is read at, one a text: it needs the
    keys and values of all nodes, but queries, o_proj and MLP there only. Returns (N or texts, d).
    """
    a, mlp = layer.self_attn, layer.mlp

    def heads(module: nn.Linear, norm: str, h: Tensor, step: Step, shared) -> Tensor:
        y = linear(module, h, step.dealt, shared).unflatten(-1, (-1, a.head_dim))
        if hasattr(a, norm):
            y = getattr(a, norm)(y)
        return rotate(y, *step.rope) if module is not a.v_proj else y

    def normalised(x: Tensor, step: Step) -> tuple[Tensor, tuple | None]:
        h = layer.input_layernorm(x)
        if step.shared is None:
            return h, None
        distinct, index = step.shared
        return h, (layer.input_layernorm(distinct), index)

    h, shared = normalised(x, step)
    kept[0][new] = heads(a.k_proj, "k_norm", h, step, shared)
    kept[1][new] = heads(a.v_proj, "", h, step, shared)
    if read is not None:
        x, step = read
        h, shared = normalised(x, step)
    q = heads(a.q_proj, "q_norm", h, step, shared)
    x = linear(a.o_proj, attend(q, *kept, step.groups), step.dealt, None).add_(x)
    h = layer.post_attention_layernorm(x)
    gate = getattr(mlp, "act_fn", F.silu)(linear(mlp.gate_proj, h, step.dealt, None))
    gate.mul_(linear(mlp.up_proj, h, step.dealt, None))
    return linear(mlp.down_proj, gate, step.dealt, None).add_(x)
