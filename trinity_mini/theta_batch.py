"""The forward pass of many SVF candidates at once (for backbone).

Candidates differ in the singular values of one layer only. The layers below run once for all, new
tokens end to end without padding; from there each row goes on with its own candidate's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .files import UserError
from .prefix_tree import Path, PrefixTree, Text, buckets
from .svf import SVF
from .theta_layer import Candidates, Step, plain, run_layer

EMBEDDINGS = "model.embed_tokens.weight"
CHUNK = 16_384  # tokens computed at a time; on a GPU four times as many
LONGEST = 8_192  # tokens of a text that the default budget has room for


def default_budget(device: torch.device, text: int) -> int:
    """Bytes for states: half of what is free on a GPU; elsewhere 1 GiB, or enough for a text that takes `text`."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return max(2**30, text * 3 // 2)


class ThetaBatch:
    """States of the last token of each text, each row under its own SVF candidate.

    decoder: `model.model` of a Llama, Qwen2, Qwen3 or TinyLM. adapted: matrix name -> module, of
    the layer with index `layer`. rope: positions (N,) -> cosines and sines, (N, c) each.
    budget: bytes that cached states and rebuilt weights take at most. The cache starts afresh when
    half of it is spent; the other half is for what is being computed. None: see default_budget.

    Where memory runs out all the same, the cache is dropped and half as many tokens are computed
    at a time from then on.
    """

    def __init__(self, decoder: nn.Module, layer: int, adapted: dict, rope: Callable, budget: int | None) -> None:
        self.decoder, self.layer, self.adapted, self.rope = decoder, layer, adapted, rope
        self.like = decoder.embed_tokens.weight
        build = extra = self.dense_bytes = 0
        for module in adapted.values():
            out, width = module.weight.shape
            rank = min(out, width)
            build += out * width * rank
            shared = module in list(adapted.values())[:3]  # q, k and v share V^T x
            extra += rank * (out + (0 if shared else width)) - out * width
            self.dense_bytes += 4 * out * width
        # Multiplications to rebuild W', over those that a token then saves.
        self.break_even = build / extra if extra > 0 else float("inf")
        n, a = len(decoder.layers), decoder.layers[0].self_attn
        kv = a.k_proj.out_features // a.head_dim, a.head_dim
        self.heads = a.q_proj.out_features // a.head_dim

        def tree(layers: int) -> PrefixTree:
            return PrefixTree(layers, self.like.shape[1], kv, self.like)

        # Candidates that move the embeddings share nothing, not even the lowest layer.
        self.trees = self.lower, self.tail, self.whole = tree(layer), tree(n - layer), tree(n)
        if budget is None:
            budget = default_budget(self.like.device, LONGEST * (self.lower.node_bytes + self.tail.node_bytes))
        self.budget, self.chunk = budget, CHUNK * 4 if self.like.is_cuda else CHUNK
        self.clear()

    def clear(self) -> None:
        """Forget all states and rebuilt weights."""
        for tree in self.trees:
            tree.clear()
        self.roots: dict[bytes, int] = {}
        self.tokens: dict[bytes, int] = {}
        self.dense: dict[bytes, dict[str, Tensor]] = {}

    def spent(self) -> int:
        """Bytes of cached states and rebuilt weights."""
        return sum(t.size * t.node_bytes for t in self.trees) + len(self.dense) * self.dense_bytes

    def held(self) -> int:
        """Bytes of memory taken for them: `spent`, and room for more."""
        return sum(t.room * t.node_bytes for t in self.trees) + len(self.dense) * self.dense_bytes

    def states(self, texts: Sequence[Text], svf: SVF | None = None, deltas: np.ndarray | None = None) -> Tensor:
        """(B, d) float32 for B texts and deltas (B, n) float32; the plain weights without.

        Raises: ValueError as `SVF.singular_values`; UserError if a text needs more than the budget
        or the memory there is.
        """
        keys: dict[bytes, int] = {b"": 0}  # the plain weights
        owner, values = np.zeros(len(texts), dtype=int), {}
        if svf is not None:
            firsts = [np.zeros(svf.n, dtype=np.float32)]
            for i, (row, moved) in enumerate(zip(deltas, deltas.any(axis=1).tolist(), strict=True)):
                key = row.tobytes() if moved else b""
                if key not in keys:
                    firsts.append(row)
                owner[i] = keys.setdefault(key, len(keys))
            values = self._values(svf, firsts)
        out = torch.empty(len(texts), self.like.shape[1], device=self.like.device)
        left = np.arange(len(texts))
        while True:
            try:
                for rows in self._passes(left, out, texts, svf, list(keys), owner, values):
                    left = np.setdiff1d(left, rows)
                return out
            except BaseException as e:  # Ctrl-C, too: nodes without their states must not be found later
                self.clear()
                if not _out_of_memory(e):
                    raise
            self._halve()  # outside of the except clause, which holds on to the tensors of the failed pass

    def _values(self, svf: SVF, deltas: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """Singular values of the candidates; where memory runs out, once more without the cache.

        Raises: UserError if that does not help.
        """
        for cached in (self.held(), 0):
            try:
                return svf.singular_values(torch.from_numpy(np.stack(deltas)).to(self.like.device))
            except Exception as e:
                if not _out_of_memory(e):
                    raise
            self.clear()
            self._give_back()
            if not cached:
                break
        raise UserError(
            f"the memory does not suffice for the singular values of {len(deltas):,} candidates: take a smaller "
            "population, give the backbone a smaller budget, or use a larger device."
        )

    def _give_back(self) -> None:
        self._trim()
        if self.like.is_cuda:
            torch.cuda.empty_cache()

    def _passes(self, left, out, texts, svf, keys, owner, values) -> Iterator[np.ndarray]:
        """Compute the rows that are left, a chunk at a time: the rows of each, once they stand in `out`."""
        self.running = None
        dense = self._rebuilt([texts[i] for i in left], svf, keys, owner[left], values)
        # Rows in the order of their candidates, those with rebuilt weights last.
        order = left[np.lexsort((owner[left], np.isin(owner[left], list(dense))))]
        # So many tokens that their states take a quarter of the budget, whichever trees they go to.
        limit = min(self.chunk, self.budget // 4 // sum(t.node_bytes for t in self.trees))
        for rows in _chunks(order, texts, limit):
            if self.spent() > self.budget // 2:
                self.clear()
            tokens = sum(len(texts[i]) for i in rows)
            self.running = len(rows), tokens, self.spent()
            self._make_room(tokens, svf is not None and EMBEDDINGS in svf.slices, len(dense) - 1)
            out[rows] = self._chunk(rows, texts, svf, keys, owner, values, dense)
            yield rows

    def _make_room(self, tokens: int, embeds: bool, rebuilt: int) -> None:
        """Room in the trees for as many new nodes, within the budget."""
        trees = (self.whole,) if embeds else (self.lower, self.tail)

        def needed() -> int:
            states = sum(max(t.room, t.size + tokens * (t in trees)) * t.node_bytes for t in self.trees)
            return states + max(len(self.dense), rebuilt) * self.dense_bytes

        if needed() > self.budget:
            self._trim()
        if needed() > self.budget:
            self.clear()
            self._trim()
        if needed() > self.budget:
            raise UserError(
                f"the states of {tokens:,} tokens take {needed() / 2**20:,.0f} MiB and the budget is "
                f"{self.budget / 2**20:,.0f}: give the backbone a larger budget, or let agents say less (max_tokens)."
            )
        spare = self.budget * 3 // 4 - needed()  # a quarter is left to rebuilt weights
        for tree in trees:
            spare -= tree.reserve(tokens, spare)

    def _trim(self) -> None:
        for tree in self.trees:
            tree.trim()

    def _halve(self) -> None:
        """After memory ran out: give back what was cached, and take half as many tokens at a time from now on.

        Raises: UserError if it was one row, and nothing was cached.
        """
        self._give_back()
        if self.running is None:  # while weights were rebuilt
            self.break_even = float("inf")
            return
        rows, tokens, cached = self.running
        if rows == 1 and not cached:
            raise UserError(
                "the memory does not suffice for one text: let agents say less (max_tokens), give the backbone "
                "a smaller budget, or use a larger device."
            )
        self.chunk = tokens // 2
        if cached > self.budget // 4:
            self.budget //= 2

    def _rebuilt(self, texts, svf, keys, owner, values) -> dict[int, dict[str, Tensor]]:
        """W' of the candidates whose tokens, computed so far or about to be, repay it: index -> matrices."""
        read = np.bincount(owner, weights=[len(t) for t in texts], minlength=len(keys))
        dense = {0: {name: m.weight for name, m in self.adapted.items()}}
        if svf is not None and EMBEDDINGS in svf.slices:
            return dense
        for c, key in enumerate(keys[1:], start=1):
            room = (len(self.dense) + 1) * self.dense_bytes <= self.budget // 4
            # Texts that grow hold most of what was computed before: the larger number is close to the sum.
            enough = max(self.tokens.get(key, 0), read[c]) >= self.break_even
            if key not in self.dense and room and enough:
                self.dense[key] = {name: svf.product(name, values[name][c]) for name in self.adapted}
            if key in self.dense:
                dense[c] = self.dense[key]
        return dense

    def _chunk(self, rows, texts, svf, keys, owner, values, dense) -> Tensor:
        """(rows, d): the rows' new tokens through the layers below, then each under its own W'."""
        device = self.like.device
        present = list(dict.fromkeys(owner[rows].tolist()))
        factored = [c for c in present if c not in dense]
        chosen = torch.tensor(factored, dtype=torch.long).to(device)
        candidates = Candidates(
            svf,
            {id(m): name for name, m in self.adapted.items()},
            {name: v.index_select(0, chosen) for name, v in values.items()},
            [dense[c] for c in present if c in dense],
        )
        n_rows = np.array([np.count_nonzero(owner[rows] == c) for c in present])
        embeds = svf is not None and EMBEDDINGS in svf.slices
        tree, first = (self.whole, 0) if embeds else (self.tail, self.layer)

        under = None if embeds else self._lower(dict.fromkeys(texts[i] for i in rows))
        roots = [self.roots.setdefault(keys[c], -1 - len(self.roots)) for c in owner[rows]]
        start = tree.size
        if embeds:
            paths, olds = tree.insert(roots, [texts[i] for i in rows])
        else:
            paths, olds = tree.insert_over(roots, [under[texts[i]] for i in rows], self.lower.size)
        new = slice(start, tree.size)
        counts = np.array([len(p) - old for p, old in zip(paths, olds, strict=True)])
        by_candidate = np.add.reduceat(counts, np.cumsum(n_rows) - n_rows)
        for c, n in zip(present, by_candidate.tolist(), strict=True):
            self.tokens[keys[c]] = self.tokens.get(keys[c], 0) + n
        step = self._step(paths, olds, candidates.deal(by_candidate, device))
        if embeds:
            ids = self._joined([texts[i] for i in rows], olds)
            x = candidates.embed(self.decoder.embed_tokens, EMBEDDINGS, ids, step.dealt)
        else:
            source = self._joined([under[texts[i]] for i in rows], olds)
            distinct, index = source[: len(step.dealt[0])].unique(return_inverse=True)
            x, step.shared = self.lower.x[source], (self.lower.x[distinct], index)
        for i in range(first, len(self.decoder.layers)):
            linear = candidates.linear if i == self.layer else plain
            read = None
            if i == len(self.decoder.layers) - 1:
                tree.x[new] = x
                last = [len(p) - 1 for p in paths]
                ends = self._step(paths, last, candidates.deal(n_rows, device))
                read = tree.x[self._joined(paths, last)], ends
            kept = tree.keys[i - first], tree.values[i - first]
            x = run_layer(self.decoder.layers[i], kept, new, x, step, linear, read)
            step.shared = None  # from here on each candidate's states are its own
        return self.decoder.norm(x.float())

    def _lower(self, texts) -> dict[Text, Path]:
        """Nodes of the texts in the tree of the layers below, whose states all candidates share."""
        tree, start = self.lower, self.lower.size
        paths, olds = tree.insert([-1] * len(texts), texts)
        if tree.size > start:
            step, new = self._step(paths, olds), slice(start, tree.size)
            x = self.decoder.embed_tokens(self._joined(texts, olds))
            for i in range(self.layer):
                kept = tree.keys[i], tree.values[i]
                x = run_layer(self.decoder.layers[i], kept, new, x, step)
            tree.x[new] = x
        return dict(zip(texts, paths, strict=True))

    def _joined(self, sequences: Iterable[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """(N,) each sequence from its start on, end to end."""
        parts = [np.asarray(q[start:], int) for q, start in zip(sequences, starts, strict=True)]
        return torch.from_numpy(np.concatenate(parts)).to(self.like.device)

    def _step(self, paths: list[Path], starts: list[int], dealt=None) -> Step:
        """The pass over each text's positions from starts[i] on."""
        cos, sin = self.rope(self._joined([range(len(p)) for p in paths], starts))
        return Step((cos[:, None], sin[:, None]), buckets(paths, starts, self.like, self.heads), dealt)


def _chunks(order: np.ndarray, texts: Sequence[Text], limit: int) -> Iterator[np.ndarray]:
    """Runs of rows of at most `limit` tokens, or of one row."""
    start = total = 0
    for i, row in enumerate(order):
        total += len(texts[row])
        if total > limit and i > start:
            yield order[start:i]
            start, total = i, len(texts[row])
    if len(order):
        yield order[start:]


def _out_of_memory(e: BaseException) -> bool:
    """Whether it says that memory ran out; torch has a class for that, but not everywhere."""
    said = str(e).lower()
    known = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(e, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(e, RuntimeError) and any(text in said for text in known)
    )
