"""States of prefixes, each computed once, and the attention that reads them (for theta_batch).

Attention is causal, so the states of a prefix serve every text that begins with it. A tree holds one
node per token of every distinct prefix, with the keys and values that later tokens attend to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Text = tuple[int, ...]  # token ids, all of them needed
Path = np.ndarray  # the nodes of a text, first token first
_NONE = np.empty(0, dtype=np.int64)


class PrefixTree:
    """Prefixes met so far under a root (a candidate, a negative number), and their states.

    keys, values: per layer (nodes, G, c); x: (nodes, d), what the stretch hands on.
    """

    def __init__(self, n_layers: int, d: int, kv: tuple[int, int], like: Tensor) -> None:
        self.children: dict[int, int] = {}
        self.over: dict[int, np.ndarray] = {}
        self.size = 0
        self.keys = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.values = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.x = like.new_empty(0, d)
        self.node_bytes = (2 * n_layers * kv[0] * kv[1] + d) * like.element_size()

    def insert(self, roots: Sequence[int], texts: Iterable[Text]) -> tuple[list[Path], list[int]]:
        """The nodes of each text, and how many of them were there before it."""
        children, paths, olds = self.children, [], []
        for node, text in zip(roots, texts, strict=True):
            path, before = [], self.size
            for token in text:
                key = node << 32 | token  # one number: a million tuples would keep the garbage collector busy
                node = children.get(key)
                if node is None:
                    node = children[key] = self.size
                    self.size += 1
                path.append(node)
            paths.append(np.array(path))
            olds.append(len(path) - (self.size - before))
        self._make_room()
        return paths, olds

    def insert_over(self, roots: Sequence[int], under: Iterable[Path], size: int) -> tuple[list[Path], list[int]]:
        """As `insert`, for texts given by their nodes in another tree of that size: a node there names a prefix."""
        paths, olds = [], []
        for root, nodes in zip(roots, under, strict=True):
            over = self.over.get(root, _NONE)
            if len(over) < size:
                over = self.over[root] = np.pad(over, (0, size * 3 // 2 - len(over)), constant_values=-1)
            path = over[nodes]
            old = np.count_nonzero(path >= 0)  # what is new comes last
            if old < len(path):
                path[old:] = np.arange(self.size, self.size + len(path) - old)
                over[nodes[old:]] = path[old:]
                self.size += len(path) - old
            paths.append(path)
            olds.append(old)
        self._make_room()
        return paths, olds

    def clear(self) -> None:
        """Forget all prefixes; their room is kept for the next."""
        self.children.clear()
        self.over.clear()
        self.size = 0

    def _make_room(self) -> None:
        if self.size > len(self.x):
            self.keys = [self._larger(t) for t in self.keys]
            self.values = [self._larger(t) for t in self.values]
            self.x = self._larger(self.x)

    def _larger(self, t: Tensor) -> Tensor:
        new = t.new_empty(self.size * 3 // 2, *t.shape[1:])
        new[: len(t)] = t
        return new


@dataclass
class Bucket:
    """Queries of texts of similar length, padded to one shape (B, Q) against (B, T) keys."""

    shape: tuple[int, int, int]  # B, Q, T
    queries: Tensor  # (B * Q,) index of each query, 0 at padding
    keys: Tensor  # (B * T,) node of each key, 0 at padding
    mask: Tensor  # (B, 1, Q, T) 0 where the key is seen, else -inf


def buckets(paths: Sequence[Path], starts: Sequence[int], like: Tensor) -> tuple[list[Bucket], Tensor]:
    """Who attends to whom; text i asks from position starts[i] on.

    Returns the buckets, and where each query, in the texts' order, is found in their results.
    """
    lengths, starts = np.array([len(path) for path in paths]), np.asarray(starts)
    sizes = lengths - starts
    firsts = np.cumsum(sizes) - sizes
    groups: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero(sizes).tolist():
        groups.setdefault((-(-sizes[i] // 8), -(-lengths[i] // 32)), []).append(i)
    made, found, offset = [], np.empty(sizes.sum(), dtype=np.int64), 0
    for rows in groups.values():
        shape = len(rows), sizes[rows].max(), lengths[rows].max()
        keys = np.zeros((shape[0], shape[2]), dtype=np.int64)
        for line, i in zip(keys, rows, strict=True):
            line[: lengths[i]] = paths[i]
        steps = np.arange(shape[1])
        positions = starts[rows, None] + steps
        real = positions < lengths[rows, None]
        queries = np.where(real, firsts[rows, None] + steps, 0)
        found[queries[real]] = offset + np.flatnonzero(real)
        offset += real.size
        unseen = torch.from_numpy(np.arange(shape[2]) > positions[:, None, :, None])
        mask = torch.zeros(unseen.shape, dtype=like.dtype).masked_fill_(unseen, -torch.inf)
        index = [torch.from_numpy(t.ravel()).to(like.device) for t in (queries, keys)]
        made.append(Bucket(shape, *index, mask.to(like.device)))
    return made, torch.from_numpy(found).to(like.device)


def attend(q: Tensor, k: Tensor, v: Tensor, groups: tuple[list[Bucket], Tensor]) -> Tensor:
    """Attention of queries (N, H, c) over the nodes' keys and values (nodes, G, c): (N, H * c)."""
    parts = [q.new_empty(0, q.shape[1] * q.shape[2])]
    for bucket in groups[0]:
        rows, asked, seen = bucket.shape
        y = F.scaled_dot_product_attention(
            _heads(q, bucket.queries, rows, asked),
            _heads(k, bucket.keys, rows, seen),
            _heads(v, bucket.keys, rows, seen),
            attn_mask=bucket.mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(y.transpose(1, 2).reshape(rows * asked, -1))
    return torch.cat(parts).index_select(0, groups[1])


def _heads(t: Tensor, index: Tensor, rows: int, length: int) -> Tensor:
    """(rows, heads, length, c) of the chosen nodes; two-dimensional gathers are much faster."""
    chosen = t.flatten(1).index_select(0, index)
    return chosen.view(rows, length, *t.shape[1:]).transpose(1, 2)
