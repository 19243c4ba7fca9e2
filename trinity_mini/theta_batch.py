"""The forward pass of many SVF candidates at once, each prefix computed once (for backbone).

A tree holds one node per token of every distinct prefix, with the keys and values that later tokens
attend to. Linear layers run over new nodes end to end, without padding; attention runs in small
padded batches whose mask follows from the positions: a key is seen if it is not after the query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .svf import SVF
from .tiny_lm import rotate

Text = tuple[int, ...]  # token ids, all of them needed
Path = np.ndarray  # the nodes of a text, first token first


class PrefixTree:
    """Prefixes met so far under a root (a candidate, a negative number), and their states.

    keys, values: per layer (nodes, G, c); x: (nodes, d), what the stretch hands on.
    """

    def __init__(self, n_layers: int, d: int, kv: tuple[int, int], like: Tensor) -> None:
        self.children: dict[tuple[int, int], int] = {}
        self.size = 0
        self.keys = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.values = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.x = like.new_empty(0, d)
        self.node_bytes = (2 * n_layers * kv[0] * kv[1] + d) * like.element_size()

    def insert(self, root: int, text: Text) -> tuple[Path, int]:
        """The nodes of a text, and how many of them were there before; `grow` must follow."""
        children, node, path, before = self.children, root, [], self.size
        for token in text:
            key = (node, token)
            node = children.get(key)
            if node is None:
                node = children[key] = self.size
                self.size += 1
            path.append(node)
        return np.array(path), len(path) - (self.size - before)

    def grow(self) -> None:
        """Make room for the states of all nodes."""

        def larger(t: Tensor) -> Tensor:
            new = t.new_empty(self.size * 3 // 2, *t.shape[1:])
            new[: len(t)] = t
            return new

        if self.size > len(self.x):
            self.keys, self.values = [larger(t) for t in self.keys], [larger(t) for t in self.values]
            self.x = larger(self.x)


@dataclass
class Bucket:
    """Queries of texts of similar length, padded to one shape (B, Q) against (B, T) keys."""

    queries: Tensor  # (B, Q) index of each query
    keys: Tensor  # (B, T) node of each key
    mask: Tensor  # (B, 1, Q, T) True where the key is seen
    real: Tensor  # (B, Q) False at padding


def buckets(paths: Sequence[Path], starts: Sequence[int], device: torch.device) -> list[Bucket]:
    """Who attends to whom; text i asks from position starts[i] on, the texts' queries in order."""
    lengths = np.array([len(path) for path in paths])
    starts = np.asarray(starts)
    sizes = lengths - starts
    firsts = np.cumsum(sizes) - sizes
    groups: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero(sizes).tolist():
        groups.setdefault((-(-sizes[i] // 8), -(-lengths[i] // 16)), []).append(i)
    made = []
    for rows in groups.values():
        keys = np.zeros((len(rows), lengths[rows].max()), dtype=np.int64)
        for line, i in zip(keys, rows, strict=True):
            line[: lengths[i]] = paths[i]
        steps = np.arange(sizes[rows].max())
        positions = starts[rows, None] + steps
        real = positions < lengths[rows, None]
        queries = np.where(real, firsts[rows, None] + steps, 0)
        mask = np.arange(keys.shape[1]) <= positions[:, None, :, None]
        arrays = queries, keys, mask, real
        made.append(Bucket(*(torch.from_numpy(a).to(device) for a in arrays)))
    return made


def attend(q: Tensor, k: Tensor, v: Tensor, groups: Sequence[Bucket]) -> Tensor:
    """Attention of queries (N, H, c) over the nodes' keys and values (nodes, G, c): (N, H * c)."""
    out = torch.empty_like(q)
    for b in groups:
        y = F.scaled_dot_product_attention(
            q[b.queries].transpose(1, 2),
            k[b.keys].transpose(1, 2),
            v[b.keys].transpose(1, 2),
            attn_mask=b.mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        out[b.queries[b.real]] = y.transpose(1, 2)[b.real]
    return out.flatten(1)


def plain(module: nn.Linear, x: Tensor, dealt: None, shared: None) -> Tensor:
    """W x with the module's own weights."""
    return module(x)


class Candidates:
    """W' of each candidate of a chunk: those that stay factored first, then the rebuilt ones.

    Factored, y = U (s * (V^T x)): cheap for few tokens. For many it pays to build W' once.

    names: id of a module -> its matrix; values: matrix -> (factored candidates, r) effective
    singular values; dense: of each rebuilt candidate, matrix -> W'.
    """

    def __init__(
        self, svf: SVF, names: dict[int, str], values: dict[str, Tensor], dense: list[dict]
    ) -> None:
        self.svf, self.names, self.values, self.dense = svf, names, values, dense

    def deal(self, counts: np.ndarray) -> tuple[Tensor, list[int]]:
        """Of tokens in the candidates' order, counts each: the candidate of each factored token,
        and the bounds of the rebuilt candidates' tokens."""
        factored = len(counts) - len(self.dense)
        owner = np.repeat(np.arange(factored), counts[:factored])
        device = next(iter(self.values.values())).device
        bounds = np.cumsum([len(owner), *counts[factored:]])
        return torch.from_numpy(owner).to(device), bounds.tolist()

    def linear(
        self, module: nn.Linear, x: Tensor, dealt: tuple, shared: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """W' x for tokens x (N, in).

        shared: distinct states (M, in) and the index of each factored token's among them: where
        candidates still read the same states, V^T x is computed once for all.
        """
        owner, bounds = dealt
        name, n = self.names[id(module)], len(owner)
        out = x.new_empty(len(x), module.out_features)
        if n:
            u, _, vt = self.svf.factors[name]
            y = x[:n].float() @ vt.T if shared is None else (shared[0].float() @ vt.T)[shared[1]]
            out[:n] = (y * self.values[name][owner]) @ u.T
        for weights, start, stop in zip(self.dense, bounds[:-1], bounds[1:], strict=True):
            torch.mm(x[start:stop], weights[name].T, out=out[start:stop])
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
    groups: list[Bucket]
    dealt: tuple | None = None  # see Candidates.deal
    shared: Tensor | None = None  # index of each factored token's state among the distinct ones


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
    x = x + linear(a.o_proj, attend(q, *kept, step.groups), step.dealt, None)
    h = layer.post_attention_layernorm(x)
    gate = getattr(mlp, "act_fn", F.silu)(linear(mlp.gate_proj, h, step.dealt, None))
    return x + linear(mlp.down_proj, gate * linear(mlp.up_proj, h, step.dealt, None), step.dealt, None)


class ThetaBatch:
    """States of the last token of each text under each row's own SVF candidate.

    decoder: `model.model` of a Llama, Qwen2, Qwen3 or TinyLM; adapted: matrix name -> module of
    the layer with index `layer`; rope: positions (N,) -> cosines and sines, (N, c) each.
    """

    def __init__(self, decoder, layer: int, adapted: dict, rope: Callable, budget: int) -> None:
        self.decoder, self.layer, self.adapted, self.rope = decoder, layer, adapted, rope
        self.budget, self.like = budget, decoder.embed_tokens.weight
        shapes = [(m.weight.shape, m is a) for m in adapted.values() for a in [None]]
        del shapes
        self.clear()
