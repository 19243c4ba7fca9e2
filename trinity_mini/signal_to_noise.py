"""How much of an update is signal: the exact slope of J against what an update's episodes say of it (lesson 09)."""

from __future__ import annotations

import numpy as np
import torch

from .baselines import Array, Game, evaluate_candidates
from .curvature import chances
from .gradient_baselines import BASELINES, advantages, policy_gradient
from .sep_cma_es import SepCMAES
from .study import Row
from .tree_settings import worth

STEP = 4.0  # length of the trial step along an estimate; a trained theta is some 30 to 60 long


def exact_gradient(game: Game, theta: Array) -> tuple[float, Array]:
    """J and its gradient (n,) on a whole tree, without noise."""
    w = torch.from_numpy(np.array(theta, dtype=float)).requires_grad_()
    j = game.tree.expected_reward(lambda h: chances(h, w, game.tree.n_agents)).mean()
    j.backward()
    return float(j.detach()), w.grad.numpy()


def reinforce_estimates(game: Game, theta: Array, baseline: str, repeats: int, seed: int, batch: int = 512) -> Array:
    """Independent estimates (repeats, n) of the gradient, `batch` episodes each."""
    k = 8 if baseline == "question" else 1
    rng, out = np.random.default_rng([seed, 81]), np.empty((repeats, game.n))
    for i in range(repeats):
        asked = np.repeat(game.draw(batch // k, seed, 82, i), k)
        played = game.play(theta[None], np.zeros(batch, int), asked, rng.random((batch, game.turns, 2)))
        out[i] = policy_gradient(game, theta, played, advantages(played.rewards, baseline, k))
    return out


def evolution_estimates(
    game: Game, theta: Array, repeats: int, seed: int, sigma: float = 2.0, popsize: int = 136, m: int = 4
) -> Array:
    """Independent steps (repeats, n) of the mean of sep-CMA-ES's first generation from theta, in units of sigma."""
    out = np.empty((repeats, game.n))
    for i in range(repeats):
        es = SepCMAES(theta, sigma, 1000 * seed + i, popsize)
        thetas = es.ask()
        es.tell(thetas, -evaluate_candidates(game, thetas, m, seed, i, common=True))
        out[i] = (es.mean - theta) / sigma
    return out


def signals(game: Game, theta: Array, seed: int, repeats: int) -> list[Row]:
    """One row an estimator.

    snr: |mean|^2 / trace of the covariance, of one update (the noise left in the mean is taken out, so it may come out
    below 0); per_parameter, and its 90 % quantile: median of |exact slope| / s.d. of the estimate;
    cosine: mean, of an estimate with the exact slope; bias: |mean - exact|^2 over what noise alone would make it (about
    1 without bias; REINFORCE only); gain: mean change of J after a step of length 4 along an estimate, and its s.e.;
    best_gain: along the exact slope.
    """
    j, slope = exact_gradient(game, theta)
    estimates = {f"REINFORCE, baseline {b}": reinforce_estimates(game, theta, b, repeats, seed) for b in BASELINES}
    estimates["sep-CMA-ES"] = evolution_estimates(game, theta, repeats, seed)
    norm = float(np.linalg.norm(slope))
    rows = []
    for name, x in estimates.items():
        mean, variance = x.mean(0), x.var(0, ddof=1)
        total = variance.sum()
        lengths = np.linalg.norm(x, axis=1)
        cosines = x @ slope / np.maximum(lengths * norm, 1e-300)
        few = [i for i in range(min(repeats, 16)) if lengths[i] > 0]
        gains = np.array([worth(game.tree, theta + STEP * x[i] / lengths[i], 0) - j for i in few])
        seen = variance > 1e-9 * variance.max()  # the others' slopes were met in no episode
        ratio = np.abs(slope[seen]) / np.sqrt(variance[seen]) if seen.any() else np.zeros(1)
        gradient = name.startswith("REINFORCE")
        rows.append(
            {
                "estimator": name,
                "slope": norm,
                "snr": float((mean @ mean - total / repeats) / total) if total else None,
                "per_parameter": float(np.median(ratio)) if gradient and total else None,
                "per_parameter_90": float(np.quantile(ratio, 0.9)) if gradient and total else None,
                "cosine": float(cosines.mean()),
                "cosine_se": float(cosines.std(ddof=1) / len(x) ** 0.5),
                "bias": float(((mean - slope) ** 2).sum() / (total / repeats)) if gradient and total else None,
                "gain": float(gains.mean()) if len(few) else None,
                "gain_se": float(gains.std(ddof=1) / len(few) ** 0.5) if len(few) > 1 else None,
                "best_gain": worth(game.tree, theta + STEP * slope / max(norm, 1e-300), 0) - j,
            }
        )
    return rows
