"""Worlds in which reward is rarer, made from the embedded one (lesson 09): fewer kinds, useless agents, strict ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .backbone import Backbone
from .baselines import Array, Game
from .curvature import chances
from .episode_tree import RIGHT, UNKNOWN, WRONG, EpisodeTree
from .pool import EmbeddedPool
from .roles import Role
from .tasks import Question, grade, questions


@dataclass(frozen=True)
class Setting:
    """families: whose questions are asked; useless: copies added of an agent that can do nothing in the first of them
    (see USELESS); strict: right only if a Verifier accepted before the last turn; kept: right only if every turn is a
    Worker's right answer, so that one decision must be kept to the end.
    """

    families: tuple[str, ...]
    turns: int
    useless: int = 0
    strict: bool = False
    per_family: int = 24
    kept: bool = False

    def __post_init__(self) -> None:
        if self.turns < 1 or self.per_family < 1 or self.useless < 0 or not self.families:
            raise ValueError("a setting needs a family, a turn and a question, and no negative number of agents.")
        if self.useless and self.families[0] not in USELESS:
            raise ValueError(f"no agent is useless in {self.families[0]}: choose from {', '.join(USELESS)}.")

    @property
    def name(self) -> str:
        more = (f" +{self.useless} agents" if self.useless else "") + (" accepted" if self.strict else "")
        more += " every turn" if self.kept else ""
        return "+".join(self.families) + more


USELESS = {"code": 1, "math": 4, "reason": 0}  # index of an agent of the embedded pool that neither plans nor answers


class Cast:
    """A pool in which some agents are there several times: agents[i] of the pool below speaks as agent i."""

    def __init__(self, pool: EmbeddedPool, agents: Sequence[int]) -> None:
        self.pool, self.agents = pool, list(agents)
        self.names = [f"{pool.names[a]} {i}" for i, a in enumerate(self.agents)]
        self.identity = f"{pool.identity} {self.agents}"

    def speak(self, requests: Sequence[tuple[int, str]]) -> list[str]:
        """As `EmbeddedPool.speak`."""
        return self.pool.speak([(self.agents[a], prompt) for a, prompt in requests])


class StrictTree(EpisodeTree):
    """Episodes that end because the turns are used up are wrong: only an accepted answer counts, and not at the end."""

    def grow(self, nodes: np.ndarray, agents: np.ndarray, roles: np.ndarray) -> None:
        super().grow(nodes, agents, roles)
        last = self.turn[nodes] == self.max_turns - 1
        here = nodes[last], agents[last], roles[last]
        self.child[here] = np.where(self.child[here] == RIGHT, WRONG, self.child[here])


class KeptTree(EpisodeTree):
    """Episodes are right only if every turn is a Worker's right answer: the first other turn ends them, wrong."""

    def grow(self, nodes: np.ndarray, agents: np.ndarray, roles: np.ndarray) -> None:
        self.child[nodes, agents, roles] = WRONG
        alive = np.array([self._right_so_far(n) for n in nodes], dtype=bool) & (roles == Role.WORKER)
        nodes, agents, roles = nodes[alive], agents[alive], roles[alive]
        self.child[nodes, agents, roles] = UNKNOWN
        super().grow(nodes, agents, roles)
        wrong = np.array([c >= 0 and not self._right_so_far(c) for c in self.child[nodes, agents, roles]], dtype=bool)
        self.child[nodes[wrong], agents[wrong], roles[wrong]] = WRONG

    def _right_so_far(self, node: int) -> bool:
        transcript = self.transcripts[node]
        return not transcript.turns or grade(self.asked[self.question[node]], transcript.answer)


def build(setting: Setting, backbone: Backbone, pool: EmbeddedPool, split: str = "train") -> EpisodeTree:
    """The tree of a setting: whole up to four turns or where few conversations go on, else grown as it is walked."""
    asked: list[Question] = [q for f in setting.families for q in questions(f, split, setting.per_family, 0)]
    agents = [*range(len(pool.names)), *[USELESS[setting.families[0]]] * setting.useless] if setting.useless else None
    kind = KeptTree if setting.kept else StrictTree if setting.strict else EpisodeTree
    tree = kind(backbone, pool if agents is None else Cast(pool, agents), asked, setting.turns)
    return tree.grow_all() if setting.turns <= 4 or setting.kept else tree


def whole(tree: EpisodeTree) -> bool:
    """Whether every turn was played."""
    return not (tree.child[: tree.size] == UNKNOWN).any()


def question_values(tree: EpisodeTree, theta: Array) -> Array:
    """J (questions,) of a head on a whole tree, without noise."""
    w = torch.from_numpy(np.asarray(theta, dtype=float))
    with torch.no_grad():
        return tree.expected_reward(lambda h: chances(h, w, tree.n_agents)).numpy()


def worth(tree: EpisodeTree, theta: Array, seed: int, repeats: int = 40) -> float:
    """J of a head: exact on a whole tree, else the mean of `repeats` episodes a question."""
    if whole(tree):
        return float(question_values(tree, theta).mean())
    asked = np.arange(len(tree.asked)).repeat(repeats)
    draws = np.random.default_rng([seed, 71]).random((len(asked), tree.max_turns, 2))
    return float(Game(tree).play(np.asarray(theta)[None], np.zeros(len(asked), int), asked, draws).rewards.mean())
