"""J on a tree of conversations in the forms that lesson 08 compares, and training of a head on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .curvature import chances
from .episode import uniforms
from .episode_tree import EpisodeTree
from .head import sample
from .presets import Preset
from .separability import Array
from .training import draw_questions

ROWS = 8192  # states read at a time: each has its own head


def episodes(tree: EpisodeTree, thetas: Array, owner: NDArray, asked: NDArray, draws: Array) -> Array:
    """Rewards (B,) of episodes with the linear head thetas[owner] on questions asked (B,).

    thetas: (P, n); owner, asked: (B,) indices; draws: (B, max_turns, 2) uniform numbers.
    """
    w = torch.from_numpy(np.asarray(thetas, dtype=np.float32)).view(len(thetas), -1, tree.features.shape[1])
    scale = tree.features.shape[1] ** -0.5

    def choose(states, rows, turn):
        parts = []
        for start in range(0, len(rows), ROWS):
            part = rows[start : start + ROWS]
            z = torch.bmm(w[torch.from_numpy(owner[part])], states[start : start + ROWS, :, None])[:, :, 0] * scale
            p = [x.double().softmax(1).numpy() for x in (z[:, : tree.n_agents], z[:, tree.n_agents :])]
            parts.append([sample(x, draws[part, turn, k]) for k, x in enumerate(p)])
        return tuple(np.concatenate(x) for x in zip(*parts, strict=True))

    return tree.play(choose, asked)[0]


class Sampled:
    """J as training sees it: the mean reward of a few episodes, each on a question drawn from the tree's.

    An `Objective`: equal seeds meet the same questions and uniform numbers.
    """

    def __init__(self, tree: EpisodeTree, episodes: int) -> None:
        self.tree, self.episodes = tree, episodes

    def __call__(self, thetas: Array, seeds: NDArray) -> Array:
        """(B,) for thetas (B, n) and seeds (B, 2)."""
        asked = chosen(seeds[:, 0], len(self.tree.asked), self.episodes)
        shape = self.episodes, self.tree.max_turns, 2
        unique, index = np.unique(seeds[:, 1], return_inverse=True)
        draws = np.stack([np.random.default_rng([2, s]).random(shape) for s in unique])[index]
        owner = np.repeat(np.arange(len(thetas)), self.episodes)
        rewards = episodes(self.tree, thetas, owner, asked.ravel(), draws.reshape(-1, *shape[1:]))
        return rewards.reshape(len(thetas), -1).mean(1)


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


def train_head(
    tree: EpisodeTree,
    pools: Sequence[Sequence],
    preset: Preset,
    seed: int,
    adapt: bool = True,
    after: Callable[[int, object], None] = lambda generation, strategy: None,
) -> Array:
    """The preset's sep-CMA-ES on the head alone, episodes on a tree that grows as it needs; the final mean (n,).

    pools: training questions of each family, all among the tree's. adapt: False freezes the diagonal of the
    covariance matrix (the step size still adapts). after(generation, strategy) is called at 0 and after each.
    """
    from .pycma_strategy import pycma_strategy

    index = {q.prompt: i for i, q in enumerate(tree.asked)}
    n = (tree.n_agents + 3) * tree.features.shape[1]
    strategy = pycma_strategy(np.zeros(n), preset.sigma0, seed, preset.popsize)
    if not adapt:
        strategy.sp.c1_sep = strategy.sp.cmu_sep = 0.0
    after(0, strategy)
    m, turns = preset.episodes_per_candidate, tree.max_turns
    for generation in range(preset.generations):
        thetas = np.array(strategy.ask())
        asked = np.array([index[q.prompt] for q in draw_questions(pools, m, seed, generation, 0, 1)])
        draws = np.stack([uniforms(turns, seed, generation, 0, 2, i) for i in range(m)])
        owner = np.repeat(np.arange(len(thetas)), m)
        rewards = episodes(tree, thetas, owner, np.tile(asked, len(thetas)), np.tile(draws, (len(thetas), 1, 1)))
        strategy.tell(list(thetas), (-rewards.reshape(len(thetas), m).mean(1)).tolist())
        after(generation + 1, strategy)
    return strategy.result.xfavorite
