"""States of prefixes, each computed once, and the attention that reads them (for theta_batch).

Attention is causal, so the states of a prefix serve every text that begins with it. A tree holds one
node per token of every distinct prefix, with the keys and values that later tokens attend to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Text = tuple[int, ...]  # token ids, all of them needed
Path = np.ndarray  # the nodes of a text, first token first
SCORES = 2**25  # attention scores (rows x heads x queries x keys) computed at a time: 128 MiB in float32
_NONE = np.empty(0, dtype=np.int64)


class PrefixTree:
    """Prefixes met so far under a root (a candidate, a negative number), and their states.

    keys, values: per layer (nodes, G, c); x: (nodes, d), what the stretch hands on.
    Before an insertion, `reserve` room for its nodes.
    """

    def __init__(self, n_layers: int, d: int, kv: tuple[int, int], like: Tensor) -> None:
        self.children: dict[int, int] = {}
        self.over: dict[int, np.ndarray] = {}
        self.size = 0
        self.keys = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.values = [like.new_empty(0, *kv) for _ in range(n_layers)]
        self.x = like.new_empty(0, d)
        self.node_bytes = (2 * n_layers * kv[0] * kv[1] + d) * like.element_size()

    @property
    def room(self) -> int:
        """Nodes there is memory for."""
        return len(self.x)

    def reserve(self, nodes: int, spare: int) -> int:
        """Make room for so many more nodes, and for half as many again within `spare` bytes: the bytes of these."""
        if self.size + nodes <= self.room:
            return 0
        wanted = self.size + nodes
        extra = max(min(wanted // 2, spare // self.node_bytes), 0)
        self._resize(wanted + extra)
        return extra * self.node_bytes

    def trim(self) -> None:
        """Give back the room that no node needs."""
        if self.size < self.room:
            self._resize(self.size)

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
        return paths, olds

    def clear(self) -> None:
        """Forget all prefixes; their room is kept for the next."""
        self.children.clear()
        self.over.clear()
        self.size = 0

    def _resize(self, room: int) -> None:
        for kept in (self.keys, self.values):  # one after the other: only one tensor is there twice
            for i in range(len(kept)):
                kept[i] = self._resized(kept[i], room)
        self.x = self._resized(self.x, room)

    def _resized(self, t: Tensor, room: int) -> Tensor:
        new = t.new_empty(room, *t.shape[1:])
        new[: self.size] = t[: self.size]
        return new


@dataclass
class Bucket:
    """Queries of texts of similar length, padded to one shape (B, Q) against (B, T) keys."""

    shape: tuple[int, int, int]  # B, Q, T
    queries: Tensor  # (B * Q,) index of each query, 0 at padding
    keys: Tensor  # (B * T,) node of each key, 0 at padding
    positions: Tensor  # (B, Q) of each query in its text
    kept: Tensor | None = None  # the mask, where it is small enough to serve all layers

    def mask(self, like: Tensor) -> Tensor:
        """(B, 1, Q, T) 0 where the key is seen, else -inf."""
        if self.kept is not None:
            return self.kept
        unseen = torch.arange(self.shape[2], device=like.device) > self.positions[:, None, :, None]
        return torch.zeros(unseen.shape, dtype=like.dtype, device=like.device).masked_fill_(unseen, -torch.inf)


def buckets(paths: Sequence[Path], starts: Sequence[int], like: Tensor, heads: int) -> tuple[list[Bucket], Tensor]:
    """Who attends to whom; text i asks from position starts[i] on. No bucket has more than SCORES scores.

    Returns the buckets, and where each query, in the texts' order, is found in their results.
    """
    lengths, starts = np.array([len(path) for path in paths]), np.asarray(starts)
    sizes = lengths - starts
    firsts = np.cumsum(sizes) - sizes
    groups: dict[tuple[int, int], list[int]] = {}
    for i in np.flatnonzero(sizes).tolist():
        groups.setdefault((-(-sizes[i] // 8), -(-lengths[i] // 32)), []).append(i)
    made, found, offset = [], np.empty(sizes.sum(), dtype=np.int64), 0
    for group in groups.values():
        for rows, first, stop in _pieces(group, sizes[group].max(), lengths[group].max(), heads):
            steps = np.arange(first, stop)
            positions = starts[rows, None] + steps
            real = positions < lengths[rows, None]
            seen = min(lengths[rows].max(), positions.max() + 1)  # later keys are seen by none of these queries
            keys = np.zeros((len(rows), seen), dtype=np.int64)
            for line, i in zip(keys, rows, strict=True):
                line[: lengths[i]] = paths[i][:seen]
            queries = np.where(real, firsts[rows, None] + steps, 0)
            found[queries[real]] = offset + np.flatnonzero(real)
            offset += real.size
            index = [torch.from_numpy(t).to(like.device) for t in (queries.ravel(), keys.ravel(), positions)]
            bucket = Bucket((len(rows), len(steps), seen), *index)
            if len(rows) == len(group) and stop - first == sizes[group].max():
                bucket.kept = bucket.mask(like)
            made.append(bucket)
    return made, torch.from_numpy(found).to(like.device)


def _pieces(group: list[int], asked: int, seen: int, heads: int) -> Iterator[tuple[list[int], int, int]]:
    """Rows of a group and a run of their queries, such that the scores stay within SCORES."""
    rows = max(1, SCORES // (heads * asked * seen))
    step = max(1, min(asked, SCORES // (heads * seen)))
    for i in range(0, len(group), rows):
        for first in range(0, asked, step):
            yield group[i : i + rows], first, min(first + step, asked)


def attend(q: Tensor, k: Tensor, v: Tensor, groups: tuple[list[Bucket], Tensor]) -> Tensor:
    """Attention of queries (N, H, c) over the nodes' keys and values (nodes, G, c): (N, H * c)."""
    parts = [q.new_empty(0, q.shape[1] * q.shape[2])]
    for bucket in groups[0]:
        rows, asked, seen = bucket.shape
        y = F.scaled_dot_product_attention(
            _heads(q, bucket.queries, rows, asked),
            _heads(k, bucket.keys, rows, seen),
            _heads(v, bucket.keys, rows, seen),
            attn_mask=bucket.mask(q),
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(y.transpose(1, 2).reshape(rows * asked, -1))
    return torch.cat(parts).index_select(0, groups[1])


def _heads(t: Tensor, index: Tensor, rows: int, length: int) -> Tensor:
    """(rows, heads, length, c) of the chosen nodes; two-dimensional gathers are much faster."""
    chosen = t.flatten(1).index_select(0, index)
    return chosen.view(rows, length, *t.shape[1:]).transpose(1, 2)
