"""J on a tree of conversations in the forms that lesson 08 compares."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .baselines import Game
from .curvature import chances
from .episode_tree import EpisodeTree
from .separability import Array


class Sampled:
    """J as training sees it: the mean reward of a few episodes, each on a question drawn from the tree's.

    An `Objective`: equal seeds meet the same questions and uniform numbers.
    """

    def __init__(self, tree: EpisodeTree, episodes: int) -> None:
        self.game, self.episodes = Game(tree), episodes

    def __call__(self, thetas: Array, seeds: NDArray) -> Array:
        """(B,) for thetas (B, n) and seeds (B, 2)."""
        asked = chosen(seeds[:, 0], len(self.game.tree.asked), self.episodes)
        shape = self.episodes, self.game.turns, 2
        unique, index = np.unique(seeds[:, 1], return_inverse=True)
        draws = np.stack([np.random.default_rng([2, s]).random(shape) for s in unique])[index]
        owner = np.repeat(np.arange(len(thetas)), self.episodes)
        played = self.game.play(np.asarray(thetas), owner, asked.ravel(), draws.reshape(-1, *shape[1:]))
        return played.rewards.reshape(len(thetas), -1).mean(1)


class Expected:
    """The same, Rao-Blackwellised: each question's reward is replaced by its expectation over the policy's draws.

    Needs a whole tree. questions: drawn for each value, as `Sampled` does; None takes all of the tree's: no noise.
    """

    def __init__(self, tree: EpisodeTree, questions: int | None = None) -> None:
        self.tree, self.questions = tree, questions

    def each(self, thetas: Array) -> Array:
        """(B, questions of the tree)."""
        found: dict[bytes, Array] = {}  # the two halves of a difference have their points in common
        n = self.tree.n_agents
        for theta in np.asarray(thetas, dtype=float):
            if (key := theta.tobytes()) not in found:
                w = torch.from_numpy(theta.copy())
                with torch.no_grad():
                    found[key] = self.tree.expected_reward(lambda h, w=w: chances(h, w, n)).numpy()
        return np.stack([found[theta.tobytes()] for theta in np.asarray(thetas, dtype=float)])

    def __call__(self, thetas: Array, seeds: NDArray) -> Array:
        """(B,) for thetas (B, n) and seeds (B, 2), of which the first counts."""
        values = self.each(thetas)
        if self.questions is None:
            return values.mean(1)
        return np.take_along_axis(values, chosen(seeds[:, 0], values.shape[1], self.questions), axis=1).mean(1)


def chosen(seeds: NDArray, n: int, m: int) -> NDArray[np.int64]:
    """(B, m) indices of questions, of n, drawn with replacement by each row's seed."""
    unique, index = np.unique(seeds, return_inverse=True)
    return np.stack([np.random.default_rng([1, s]).integers(n, size=m) for s in unique])[index]


