"""What sep-CMA-ES is compared with: methods that search without gradients (lesson 09; see gradient_baselines.py).

All methods play on one `Game`: training questions, a linear head without SVF, reward 0 or 1 at the end. Each is a
generator that yields a `Progress` a step and never plays more episodes than its budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .episode import uniforms
from .episode_tree import EpisodeTree
from .head import LinearHead, select
from .pycma_strategy import pycma_strategy
from .training import draw_questions

if TYPE_CHECKING:
    from cma import CMAEvolutionStrategy

Array = NDArray[np.float64]
ROWS = 4096  # heads of different candidates gathered at a time


@dataclass(frozen=True)
class Progress:
    """Where a method stands. theta is what it would hand over now; reward the mean over its latest episodes.

    states: of the SLM read; calls: of agents; seconds: CPU time of the method itself, without playing;
    backward: states that a gradient went back through.
    """

    episodes: int
    reward: float
    states: int
    calls: int
    backward: int
    seconds: float
    theta: Array


@dataclass(frozen=True)
class Played:
    """Episodes: rewards (B,), NaN where one was lost; nodes, agents, roles (B, max_turns), -1 after the end."""

    rewards: Array
    nodes: NDArray
    agents: NDArray
    roles: NDArray


@dataclass
class Game:
    """Episodes on the questions of a tree, counted. n: length of theta, a linear head; groups: questions by family."""

    tree: EpisodeTree
    episodes: int = 0
    states: int = 0
    calls: int = 0
    backward: int = 0
    groups: list[NDArray] = field(init=False)

    def __post_init__(self) -> None:
        self.head = LinearHead(self.tree.backbone.d, self.tree.n_agents)
        self.n, self.turns = self.head.n, self.tree.max_turns
        family = np.array([q.family for q in self.tree.asked])
        self.groups = [np.flatnonzero(family == f) for f in dict.fromkeys(family.tolist())]
        self.began, self.playing = process_time(), 0.0

    def draw(self, m: int, *seed: int) -> NDArray:
        """m questions by index, the families in turn, as training draws them."""
        return np.array(draw_questions(self.groups, m, *seed))

    def play(self, thetas: Array, owner: NDArray, asked: NDArray, draws: Array) -> Played:
        """`walk`; a variant of the game may change the rewards that training sees."""
        return self.walk(thetas, owner, asked, draws)

    def play_plain(self, theta: Array, seed: int | None) -> Played:
        """One episode on each question of the tree, the draws those of `evaluate`, or by argmax (seed None)."""
        b = len(self.tree.asked)
        draws = None if seed is None else np.stack([uniforms(self.turns, seed, i) for i in range(b)])
        return self.walk(np.asarray(theta)[None], np.zeros(b, int), np.arange(b), draws)

    def walk(self, thetas: Array, owner: NDArray, asked: NDArray, draws: Array | None) -> Played:
        """Episode b on question asked[b] with head thetas[owner[b]] and uniform numbers draws[b] (max_turns, 2).

        thetas: (C, n); draws None: by argmax.
        Raises: ValueError if a theta is not finite: NaN would compare as false and go on.
        """
        start = process_time()
        w = torch.from_numpy(np.asarray(thetas)).float()
        if not w.isfinite().all():  # in float32, as the head has it
            raise ValueError("theta holds a value that is not finite.")

        def choose(states, rows, turn):
            parts = [slice(i, i + ROWS) for i in range(0, len(rows), ROWS)]
            logits = [self.head(states[p], w[owner[rows[p]]] if len(w) > 1 else w[0]) for p in parts]
            agent, role = (torch.cat(z) for z in zip(*logits, strict=True))
            return select(agent, role, None if draws is None else draws[rows, turn])

        played = Played(*self.tree.play(choose, asked))
        turns = int((played.nodes >= 0).sum())
        self.episodes += len(asked)
        self.states += turns
        self.calls += turns
        self.playing += process_time() - start
        return played

    def progress(self, reward: float, theta: Array) -> Progress:
        seconds = process_time() - self.began - self.playing
        return Progress(
            self.episodes, float(reward), self.states, self.calls, self.backward, seconds, np.array(theta, dtype=float)
        )


def means(rewards: Array) -> Array:
    """Mean over the last axis without the lost ones. Raises: ValueError where all were lost."""
    seen = np.isfinite(rewards)
    if not seen.any(-1).all():
        raise ValueError("all episodes of a candidate were lost: there is nothing to rank it by.")
    return np.where(seen, rewards, 0).sum(-1) / seen.sum(-1)


# ---- methods ---------------------------------------------------------------------------------------------------------


def random_search(
    game: Game, budget: int, seed: int, scale: float = 1.0, trials: int = 32, confirm: int = 1
) -> Iterator[Progress]:
    """theta ~ scale * U[-.5, .5]^n, `trials` episodes each, the best kept (paper section 3: scale 1, 32 trials).

    confirm > 1: whoever leads must have been tried `confirm` times before the next theta is drawn. The best of many
    means of 32 trials is mostly a lucky one.
    """
    rng = np.random.default_rng([seed, 21])
    candidates: list[tuple[float, int, Array]] = []  # mean, times tried, theta
    while game.episodes + trials <= budget:
        leader = max(range(len(candidates)), key=lambda i: candidates[i][0]) if candidates else None
        if leader is not None and candidates[leader][1] < confirm:
            before, times, theta = candidates.pop(leader)
        else:
            before, times, theta = 0.0, 0, scale * rng.uniform(-0.5, 0.5, game.n)
        asked = game.draw(trials, seed, 22, game.episodes)
        played = game.play(theta[None], np.zeros(trials, int), asked, rng.random((trials, game.turns, 2)))
        mean = float(means(played.rewards))
        candidates.append(((before * times + mean) / (times + 1), times + 1, theta))
        known = [c for c in candidates if c[1] >= confirm] or candidates
        candidates = sorted(candidates, key=lambda c: -c[0])[:64]  # the others will never lead again
        yield game.progress(mean, max(known, key=lambda c: c[0])[2])


def sep_cma_es(
    game: Game,
    budget: int,
    seed: int,
    popsize: int = 136,
    m: int = 4,
    sigma0: float = 2.0,
    common: bool = True,
    frozen: bool = False,
) -> Iterator[Progress]:
    """sep-CMA-ES exactly as `TrainingRun` runs it; the mean is handed over.

    common: all candidates of a generation meet the same questions and uniform numbers. frozen: the diagonal keeps
    its first values, only mean and step size adapt. A generation that the budget cuts is not played.
    """
    strategy = pycma_strategy(np.zeros(game.n), sigma0, seed, popsize)
    if frozen:
        freeze(strategy)
    yield from evolve(game, strategy, budget, m, seed, common)


def freeze(strategy: CMAEvolutionStrategy) -> None:
    """Keep pycma's diagonal as it is; the mean and the step size still adapt."""
    strategy.opts["CMA_rankone"] = strategy.opts["CMA_rankmu"] = 0
    strategy.sp.c1_sep = strategy.sp.cmu_sep = 0.0


def evolve(
    game: Game, strategy: CMAEvolutionStrategy, budget: int, m: int, seed: int, common: bool = True
) -> Iterator[Progress]:
    """Generations of m episodes a candidate by a strategy with ask and tell; theta is its mean."""
    generation = 0
    while game.episodes + strategy.popsize * m <= budget:
        thetas = strategy.ask()
        fitness = evaluate_candidates(game, np.array(thetas), m, seed, generation, common)
        strategy.tell(thetas, list(-fitness))
        generation += 1
        yield game.progress(fitness.mean(), strategy.result.xfavorite)


def evaluate_candidates(game: Game, thetas: Array, m: int, seed: int, generation: int, common: bool) -> Array:
    """Mean reward (C,) of thetas (C, n) over m episodes each, the draws those of `TrainingRun.evaluate`."""
    streams = [0] * len(thetas) if common else range(1, len(thetas) + 1)
    by_stream = {
        c: (
            game.draw(m, seed, generation, c, 1),
            np.stack([uniforms(game.turns, seed, generation, c, 2, i) for i in range(m)]),
        )
        for c in dict.fromkeys(streams)
    }
    asked, draws = (np.concatenate([by_stream[c][k] for c in streams]) for k in range(2))
    played = game.play(thetas, np.repeat(np.arange(len(thetas)), m), asked, draws)
    return means(played.rewards.reshape(len(thetas), m))


def openai_es(
    game: Game, budget: int, seed: int, pairs: int = 68, m: int = 4, sigma: float = 2.0, lr: float = 0.3
) -> Iterator[Progress]:
    """OpenAI-ES: mirrored normal directions, centred ranks, Adam; questions and draws shared by a generation.

    Source: Salimans et al. 2017, arXiv 1703.03864.
    """
    rng = np.random.default_rng([seed, 31])
    theta, adam, generation = np.zeros(game.n), Adam(game.n, lr), 0
    while game.episodes + 2 * pairs * m <= budget:
        directions = rng.standard_normal((pairs, game.n))
        thetas = np.concatenate((theta + sigma * directions, theta - sigma * directions))
        fitness = evaluate_candidates(game, thetas, m, seed, generation, common=True)
        theta = theta + adam.step(mirrored_gradient(fitness, directions, sigma))
        generation += 1
        yield game.progress(fitness.mean(), theta)


def mirrored_gradient(fitness: Array, directions: Array, sigma: float) -> Array:
    """Ascent direction (n,) from fitness (2P,) of theta + and - sigma * directions (P, n), by centred ranks.

    Equal values share a rank: ranks by position would make a preference out of a tie.
    """
    if not (np.isfinite(fitness).all() and sigma > 0):
        raise ValueError(f"all fitness values must be finite, and sigma = {sigma} positive.")
    values, index, counts = np.unique(fitness, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks = (last - (counts + 1) / 2)[index] / (len(fitness) - 1) - 0.5
    plus, minus = np.split(ranks, 2)
    return (plus - minus) @ directions / (len(fitness) * sigma)


class Adam:
    """Adam for ascent, in numpy (Kingma & Ba 2015)."""

    def __init__(self, n: int, lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        if not 0 < lr < np.inf:
            raise ValueError(f"the learning rate {lr} must be positive.")
        self.lr, self.beta1, self.beta2, self.eps, self.t = lr, beta1, beta2, eps, 0
        self.first, self.second = np.zeros(n), np.zeros(n)

    def step(self, gradient: Array) -> Array:
        """The change (n,) of the parameters for a gradient (n,). Raises: ValueError if its square is not finite."""
        with np.errstate(over="ignore"):
            if not np.isfinite(gradient**2).all():
                raise ValueError("the gradient holds a value that is not finite, or too large to be squared.")
        self.t += 1
        self.first += (1 - self.beta1) * (gradient - self.first)
        self.second += (1 - self.beta2) * (gradient**2 - self.second)
        first, second = self.first / (1 - self.beta1**self.t), self.second / (1 - self.beta2**self.t)
        return self.lr * first / (np.sqrt(second) + self.eps)


# ---- what a theta is worth -------------------------------------------------------------------------------------------


def held_out_rewards(tree: EpisodeTree, theta: Array, seed: int, selection: str = "sample") -> Array:
    """Rewards (questions,) of one episode a question, with the draws of `evaluate` or by argmax."""
    return Game(tree).play_plain(theta, seed if selection == "sample" else None).rewards


def at_budgets(steps: Iterable[Progress], budgets: Sequence[int]) -> dict[int, Progress]:
    """The last step within each budget; a budget smaller than the first step is left out."""
    found: dict[int, Progress] = {}
    for step in steps:
        for b in budgets:
            if step.episodes <= b:
                found[b] = step
    return {b: found[b] for b in budgets if b in found}
