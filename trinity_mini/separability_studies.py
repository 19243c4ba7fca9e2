"""Recorded measurements of lesson 08: is the estimator right, what does noise cost, how separable is J."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from .backbone import Backbone
from .baselines import Game, evolve, freeze, sep_cma_es
from .coordinator import read_checkpoint
from .curvature import (
    block_products,
    definition1,
    frobenius,
    head_reward,
    hessian,
    leading_states,
    question_reward,
)
from .episode_tree import EpisodeTree
from .files import DATA
from .pool import EmbeddedPool
from .presets import preset
from .pycma_strategy import pycma_strategy
from .separability import COMMON, DRAWS, INDEPENDENT, NONE, Array, coupling, interval, resampling, summary
from .separability_controls import OUT, RANK, exact_rows, partitions, short, untaught
from .separability_functions import FUNCTIONS, calibrate
from .study import Job, Row, Study
from .tasks import FAMILIES, questions
from .tree_objectives import Expected, Sampled

TURNS = 3  # of the trees: all conversations of a question are about 120, and a trained head is right within three
GENERATIONS = (0, 10, 20, 30, 60)  # at which a head in training is measured
STEP, EPISODES = 10.0, 32  # step h and episodes a value of the measurements by episodes


@cache
def _world() -> tuple[Backbone, EmbeddedPool]:
    return Backbone.embedded(), EmbeddedPool()


@cache
def _tree(per_family: int, split: str) -> EpisodeTree:
    return EpisodeTree(*_world(), [q for p in _pools(per_family, split) for q in p], TURNS).grow_all()


def _pools(per_family: int, split: str = "train"):
    return [questions(f, split, per_family, 0) for f in FAMILIES]


# ---- noise levels and step size ------------------------------------------------------------------------------


def _trained(run: int) -> tuple[Array, int]:
    """Theta of a recorded run, and how many of its numbers are SVF deltas."""
    return read_checkpoint(DATA / "runs" / f"mini-{run}" / "theta.safetensors")[0], _world()[0].svf().n


def _noise(job: Job) -> list[Row]:
    """Standard deviation of D for fixed directions, by kind of noise; and what eps each step size reads."""
    tree = _tree(job["per_family"], "train")
    theta, n_svf = _trained(job["run"])
    w = job["scale"] * theta[n_svf:]
    basis, share = leading_states(tree.features[: tree.size], RANK, OUT)
    blocks = {name: basis[:, index] for name, index in partitions(RANK)["agents, roles"].items()}
    f = frobenius(hessian(head_reward(tree), w, basis), partitions(RANK)["agents, roles"])
    truth = f[0, 1] / len(blocks["agents"].T) / len(blocks["roles"].T)  # mean square of D
    rows: list[Row] = []
    for h in job["steps"]:
        for kind, c in (
            ("step", coupling(Expected(tree), w, blocks, h, job["directions"], 1, NONE)),
            ("step, by episodes", coupling(Sampled(tree, EPISODES), w, blocks, h, 5 * job["directions"], 2)),
        ):
            row = next(r for r in summary(c, 2) if r["block"] != r["other"])
            cost = c.evaluations * (EPISODES if "episodes" in kind else 0)
            about = {"exact": _eps(f), "F exact": f[0, 1], "share": share, "episodes": cost}
            rows.append({"kind": kind, "h": h, **about, **row})
        for level, objective, noise in (
            ("independent", Sampled(tree, EPISODES), INDEPENDENT),
            ("same questions", Sampled(tree, EPISODES), DRAWS),
            ("common random numbers", Sampled(tree, EPISODES), COMMON),
            ("expected, questions independent", Expected(tree, EPISODES), INDEPENDENT),
            ("expected, questions common", Expected(tree, EPISODES), COMMON),
        ):
            c = coupling(objective, w, blocks, h, job["noisy"], 3, noise)
            k = c.pairs.index((0, 1))
            square = (c.first[:, k] - c.second[:, k]) ** 2 / 2  # of each direction: the noise's variance, no signal
            rows.append({
                "kind": "noise", "level": level, "h": h, "sd": float(square.mean() ** 0.5),
                "sd se": float(square.std(ddof=1) / len(square) ** 0.5 / 2 / max(square.mean(), 1e-300) ** 0.5),
                "signal": float(truth**0.5), "points": 4,
            })
    return rows


def _eps(f: Array) -> float | None:
    """eps of two blocks; None without a scale."""
    scale = np.sqrt(f[0, 0] * f[1, 1])
    return float(np.sqrt(f[0, 1] / scale)) if scale > 0 else None


# ---- coupling over training ----------------------------------------------------------------------------------


def _head(job: Job) -> list[Row]:
    """A head trained on a tree, and its coupling on the way: exactly, and by episodes for agents against roles."""
    tree = _tree(job["per_family"], "train")
    game, p = Game(tree), preset("mini")
    kept = {0: np.zeros(game.n)}
    budget = job["generations"] * p.popsize * p.episodes_per_candidate
    steps = sep_cma_es(game, budget, job["seed"], p.popsize, p.episodes_per_candidate, p.sigma0)
    kept |= {generation: s.theta for generation, s in enumerate(steps, 1) if generation in GENERATIONS}
    basis, share = leading_states(tree.features[: tree.size], RANK, OUT)
    reward, rows = head_reward(tree), []
    for generation, w in kept.items():
        at = {"generation": generation, "J": short(float(reward(torch.from_numpy(w))))}
        rows.append({"kind": "theta", **at, "norm": float(np.linalg.norm(w)), "share": share})
        hess = hessian(reward, w, basis)
        for name, blocks in partitions(RANK).items():
            about = {"partition": name, "source": "exact", **at}
            rows += [{"kind": "coupling", **about, **row} for row in exact_rows(frobenius(hess, blocks), list(blocks))]
            rows.append({"kind": "definition 1", **about, **definition1(-hess, blocks)})
        cut = {name: basis[:, index] for name, index in partitions(RANK)["agents, roles"].items()}
        c = coupling(Sampled(tree, EPISODES), w, cut, STEP, job["directions"], job["seed"])
        about = {"partition": "agents, roles", "source": "episodes", "h": STEP, "episodes": c.evaluations * EPISODES}
        rows += [{"kind": "coupling", **about, **at, **row} for row in summary(c, job["seed"])]
    return rows + untaught(tree, w, basis, job["untaught"], job["seed"])


def _svf(job: Job) -> list[Row]:
    """A recorded run's theta times `scale`: the SVF matrices and the head, by Hessian-vector products.

    On trees of two turns: the states of all conversations must be computed with a graph for two derivatives.
    """
    backbone, pool = _world()
    theta, n_svf = _trained(job["run"])
    theta = job["scale"] * theta
    rewards = []
    for q in (q for p in _pools(job["per_family"]) for q in p):
        rewards.append(question_reward(backbone, EpisodeTree(backbone, pool, [q], max_turns=2).grow_all()))
    blocks = {name.split(".")[-2].removesuffix("_proj"): np.arange(s.start, s.stop)
              for name, s in backbone.svf().slices.items()}
    blocks["head"] = np.arange(n_svf, len(theta))
    with torch.no_grad():
        value = float(np.mean([float(r(torch.from_numpy(theta))) for r in rewards]))
    x = block_products(rewards, theta, blocks, job["directions"], job["run"])
    weights, names = resampling(len(x), 1000, job["run"]), list(blocks)
    rows = exact_rows(x.mean(0), names)
    for row in rows:
        p, q = names.index(row["block"]), names.index(row["other"])
        row["se"] = float(x[:, p, q].std(ddof=1) / len(x) ** 0.5)
        if p != q and row["eps"] is not None:
            low, high = interval(np.stack((x[:, p, q], x[:, p, p], x[:, q, q]), axis=1), weights)
            row |= {"low": low, "high": high if np.isfinite(high) else None}
    return [{"kind": "coupling", "partition": "SVF, head", "source": "products", "J": value, **row} for row in rows]


# ---- the diagonal --------------------------------------------------------------------------------------------


def _diagonal(job: Job) -> list[Row]:
    """One training: how far the diagonal's standard deviations have spread, and what the mean is worth.

    way: "adapts"; "frozen", the diagonal kept as it was; "random", candidates ranked by lot: the drift alone.
    """
    tree, held = (_tree(job["per_family"], split) for split in ("train", "test"))
    rows: list[Row] = []

    def after(generation: int, strategy) -> None:
        if generation % 10 == 0:
            logs = np.log(strategy.result.stds / strategy.sigma)
            mean = np.array(strategy.result.xfavorite)[None]
            values = [float(Expected(t)(mean, np.zeros((1, 2), dtype=int))[0]) for t in (tree, held)]
            rows.append({
                "generation": generation, "sigma": float(strategy.sigma), "scale": float(np.exp(logs.mean())),
                "spread": float(logs.std()), "most": float(np.exp(logs.max() - logs.min())),
                "train": values[0], "test": values[1],
            })

    game, p = Game(tree), preset("mini")
    strategy = pycma_strategy(np.zeros(game.n), p.sigma0, job["seed"], p.popsize)
    if job["way"] == "frozen":
        freeze(strategy)
    if job["way"] == "random":
        rng = np.random.default_rng([job["seed"], 5])
        for generation in range(job["generations"]):
            strategy.tell(strategy.ask(), rng.random(p.popsize).tolist())
            after(generation + 1, strategy)
    else:
        budget = job["generations"] * p.popsize * p.episodes_per_candidate
        steps = evolve(game, strategy, budget, p.episodes_per_candidate, job["seed"])
        after(0, strategy)
        for generation, _ in enumerate(steps, 1):
            after(generation, strategy)
    return rows


_SVF_POINTS = [(1, 0.0), *((run, 0.5) for run in (1, 3, 5)), *((run, 1.0) for run in (1, 3, 5))]

STUDIES = {
    s.name: s
    for s in (
        Study(
            "separability-calibration",
            "coverage of the 95 % interval of eps and size of the 5 % null test on functions of known coupling",
            [{"function": f, "directions": m, "trials": 1000 if "separable" in f and m == 100 else 100}
             for f in FUNCTIONS for m in (100, 200)],
            [{"function": f, "directions": 100, "trials": 5} for f in FUNCTIONS],
            calibrate,
        ),
        Study(
            "separability-noise",
            "standard deviation of a four-point difference by kind of noise, and eps by step size",
            [{"run": 1, "scale": s, "per_family": 2, "noisy": 40, "directions": 20,
              "steps": [1.0, 3.0, 10.0, 30.0]} for s in (0.0, 0.1, 1.0)],
            [{"run": 1, "scale": 0.1, "per_family": 1, "noisy": 3, "directions": 3, "steps": [3.0]}],
            _noise,
        ),
        Study(
            "separability-head",
            "coupling of the head's blocks over training, Definition 1 for -J, and heads that were not trained",
            [{"seed": s, "per_family": 8, "generations": 60, "directions": 150, "untaught": 8}
             for s in range(1, 11)],
            [{"seed": 1, "per_family": 1, "generations": 10, "directions": 4, "untaught": 1}],
            _head,
        ),
        Study(
            "separability-svf",
            "coupling of the SVF matrices and the head, by exact Hessian-vector products",
            [{"run": r, "scale": s, "per_family": 2, "directions": 10} for r, s in _SVF_POINTS],
            [{"run": 1, "scale": 1.0, "per_family": 1, "directions": 2}],
            _svf,
        ),
        Study(
            "separability-diagonal",
            "how far sep-CMA-ES' diagonal adapts in 60 generations, and training with the diagonal frozen",
            [{"seed": s, "way": w, "per_family": 8, "generations": 60}
             for s in range(1, 41) for w in ("adapts", "frozen", "random")],
            [{"seed": 1, "way": w, "per_family": 1, "generations": 10} for w in ("adapts", "frozen", "random")],
            _diagonal,
        ),
    )
}
