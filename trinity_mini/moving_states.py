"""The SLM's states as a differentiable function of the SVF deltas (lessons 08 and 09)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from .backbone import Backbone


class MovingStates:
    """States of many texts for any SVF deltas, with gradients.

    groups: token ids of the texts of each group. In a group each distinct beginning is one token, which attends to its
    own beginnings; groups are padded to one length. Layers below the adapted one never see the deltas and run once.
    dtype: float32, or float64 where second derivatives are wanted. `tokens`: distinct beginnings in all, what a pass
    computes.

    Raises: ValueError if the backbone is no TinyLM.
    """

    def __init__(
        self, backbone: Backbone, groups: Sequence[Sequence[Sequence[int]]], dtype: torch.dtype = torch.float32
    ) -> None:
        if not backbone.tiny:
            raise ValueError("the embedded model is needed.")
        self.backbone, self.svf = backbone, copy.copy(backbone.svf())
        self.svf.factors = {name: tuple(x.to(dtype) for x in f) for name, f in self.svf.factors.items()}
        self.model = model = backbone.model if dtype == torch.float32 else copy.deepcopy(backbone.model).to(dtype)
        tries = [_trie(texts) for texts in groups]
        width = max(len(tokens) for tokens, _, _ in tries)
        ids = torch.zeros(len(tries), width, dtype=torch.long)
        mask = torch.eye(width, dtype=torch.bool).repeat(len(tries), 1, 1)
        for g, (tokens, parents, _) in enumerate(tries):
            ids[g, : len(tokens)] = torch.tensor(tokens)
            for i, parent in enumerate(parents):
                if parent >= 0:
                    mask[g, i] |= mask[g, parent]
        self.tokens = sum(len(tokens) for tokens, _, _ in tries)
        self.ends = torch.tensor([(g, e) for g, (_, _, ends) in enumerate(tries) for e in ends]).unbind(1)
        self.mask = mask[:, None]
        self.rope = tuple(x.to(dtype) for x in model.rope(mask.sum(2) - 1))
        with torch.no_grad():
            x = model.model.embed_tokens(ids)
            for layer in model.model.layers[: backbone.layer]:
                x = layer(x, self.rope, self.mask)
        self.below = x

    def features(self, delta: Tensor) -> Tensor:
        """(texts, d), centred and scaled, for delta (n_svf,), group by group."""
        at, layers = self.backbone.layer, self.model.model.layers
        values = self.svf.singular_values(delta)
        start = f"model.layers.{at}."
        weights = {name.removeprefix(start): self.svf.product(name, s) for name, s in values.items()}
        x = functional_call(layers[at], weights, (self.below, self.rope, self.mask))
        for layer in layers[at + 1 :]:
            x = layer(x, self.rope, self.mask)
        return self.backbone.features(self.model.model.norm(x[self.ends]))


def _trie(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Tokens of all distinct beginnings, the beginning before each (-1: none), and where each text ends."""
    nodes: dict[tuple[int, int], int] = {}
    tokens, parents, ends = [], [], []
    for text in texts:
        at = -1
        for token in text:
            if (at, token) not in nodes:
                nodes[at, token] = len(nodes)
                tokens.append(token)
                parents.append(at)
            at = nodes[at, token]
        ends.append(at)
    return tokens, parents, ends
