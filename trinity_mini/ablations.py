"""The coordinator with a part taken out or changed (lesson 10; the paper's ablations, and those it leaves out).

Every variant is a head on states that do not move (no SVF) over an `EpisodeTree`, so that a whole training is a walk
over numbers. What SVF adds is measured by whole training runs instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .backbone import Backbone
from .baselines import Array, Game, Played
from .episode_tree import EpisodeTree
from .head import Head, make_head
from .roles import Role

CLOSED = -1e30  # as good as minus infinity, which `Coordinator.logits` refuses
SHARP = 1e6  # an argmax is the softmax of endlessly large logits; ties are drawn


@dataclass(frozen=True)
class Variant:
    """What differs from the full coordinator.

    agents, roles: those that may be chosen, None for all; reads: "penultimate", "last" or "mean" of the tokens'
    states; entropy: fitness added per nat of the entropy of the agents used in an episode; turns_cost: fitness taken
    per turn (paper-facts: the released run has both, the paper neither); sigma0: first step size of the training.
    """

    name: str
    agents: tuple[int, ...] | None = None
    roles: tuple[Role, ...] | None = None
    head: str = "linear"
    argmax: bool = False
    reads: str = "penultimate"
    max_turns: int = 5
    entropy: float = 0.0
    turns_cost: float = 0.0
    sigma0: float = 2.0


# First step size of each head: best mean validation accuracy of the study `heads`, since a logit answers to the length
# of theta in another way in each. All other variants have the preset's.
SIGMA0 = {"linear": 8.0, "low-rank": 1.0, "sparse": 2.0, "block-diagonal-2": 4.0, "block-diagonal-n": 8.0}

VARIANTS = [
    Variant("full"),
    Variant("no Thinker", roles=(Role.WORKER, Role.VERIFIER)),
    Variant("no Verifier", roles=(Role.WORKER, Role.THINKER)),
    Variant("no roles: Workers only", roles=(Role.WORKER,)),
    *(Variant(f"one agent, all roles: {a}", agents=(a,)) for a in range(5)),
    *(Variant(f"without agent {a}", agents=tuple(b for b in range(5) if b != a)) for a in range(5)),
    *(Variant(f"head: {kind}", head=kind, sigma0=sigma0) for kind, sigma0 in SIGMA0.items()),
    Variant("head: block-diagonal-n, argmax", head="block-diagonal-n", argmax=True),
    Variant("argmax", argmax=True),
    Variant("reads the last token", reads="last"),
    Variant("reads the mean of all tokens", reads="mean"),
    *(Variant(f"at most {k} turns", max_turns=k) for k in (2, 3, 4, 6)),
    Variant("entropy bonus .15", entropy=0.15),
    Variant("turn cost .02", turns_cost=0.02),
    Variant("both bonuses", entropy=0.15, turns_cost=0.02),
]


class RestrictedHead(Head):
    """A head that gives what may not be chosen no probability, and with argmax all of it to the largest logit.

    Raises: ValueError if the variant leaves no agent or no role, or names one that is not there.
    """

    def __init__(self, head: Head, variant: Variant) -> None:
        super().__init__(head.d, head.n_agents)
        self.inner, self.n = head, head.n
        allowed = torch.zeros(self.n_out)
        agents = range(head.n_agents) if variant.agents is None else variant.agents
        roles = Role if variant.roles is None else variant.roles
        if not (agents and roles and {*agents} <= {*range(head.n_agents)} and {*roles} <= {*Role}):
            raise ValueError(f"the variant {variant.name!r} must allow agents 0 to {head.n_agents - 1} and roles.")
        allowed[[*agents, *(head.n_agents + int(r) for r in roles)]] = 1
        self.open = allowed == 1
        self.times = SHARP if variant.argmax else 1.0

    def logits(self, h: Tensor, w: Tensor, noise: Tensor | None) -> Tensor:
        return torch.where(self.open, self.inner.logits(h, w, noise) * self.times, CLOSED)


class VariantGame(Game):
    """The episodes of a variant; `play` adds its bonuses to the rewards, `walk` does not."""

    def __init__(self, tree: EpisodeTree, variant: Variant) -> None:
        super().__init__(tree)
        self.variant = variant
        self.head = RestrictedHead(make_head(variant.head, tree.backbone.d, tree.n_agents), variant)
        self.n = self.head.n

    def play(self, thetas: Array, owner: np.ndarray, asked: np.ndarray, draws: Array) -> Played:
        played = super().play(thetas, owner, asked, draws)
        v = self.variant
        return replace(
            played,
            rewards=played.rewards
            + v.entropy * agent_entropy(played.agents, self.tree.n_agents)
            - v.turns_cost * (played.agents >= 0).sum(1),
        )


def agent_entropy(agents: np.ndarray, n_agents: int) -> Array:
    """Entropy in nats of the agents used in each episode, agents (B, max_turns), -1 after the end: (B,)."""
    counts = np.stack([(agents == a).sum(1) for a in range(n_agents)], axis=1).astype(float)
    p = counts / counts.sum(1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(1)


class LastToken(Backbone):
    """Reads the last token, the generation prompt, instead of the penultimate: one more token moves the place."""

    def encode(self, prompt: str) -> list[int]:
        return [*super().encode(prompt), 0]


class MeanToken(Backbone):
    """Reads the mean of all tokens' states but the generation prompt's."""

    @torch.no_grad()
    def hidden(self, inputs: Sequence[str], deltas=None, matrices: str = "paper") -> Tensor:
        rows = [self.encode(p)[:-1] for p in inputs]
        out = torch.empty(len(rows), self.d)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for start in range(0, len(rows), 64):
            part = order[start : start + 64]
            longest = len(rows[part[-1]])
            ids = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in part])
            real = torch.arange(longest) < torch.tensor([len(rows[i]) for i in part])[:, None]
            causal = torch.ones(longest, longest, dtype=torch.bool).tril()[None, None]
            x = self.model.model.norm(self.model(ids, causal, torch.arange(longest).expand_as(ids)))
            out[part] = (x * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        return out


READERS = {"penultimate": Backbone, "last": LastToken, "mean": MeanToken}
