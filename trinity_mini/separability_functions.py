"""Functions whose coupling is known, and how often the measurement tells it right (lesson 08)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .curvature import frobenius
from .separability import COMMON, INDEPENDENT, NONE, Array, coupling, interval, resampling, sign_flips
from .study import Job, Row

DIMENSION, CUT = 20, 8
BLOCKS = {"p": np.arange(CUT), "q": np.arange(CUT, DIMENSION)}


def _with_coupling(a: Array, eps: float) -> Array:
    """The symmetric matrix a, its inter-block part scaled so that eps_pq = eps."""
    h = a.copy()
    f = frobenius(h, BLOCKS)
    factor = eps * np.sqrt(np.sqrt(f[0, 0] * f[1, 1]) / f[0, 1])
    h[:CUT, CUT:] *= factor
    h[CUT:, :CUT] *= factor
    return h


def _symmetric(rng: np.random.Generator) -> Array:
    a = rng.standard_normal((DIMENSION, DIMENSION))
    return a + a.T


def _rank_one(rng: np.random.Generator) -> Array:
    v = rng.standard_normal(DIMENSION)
    return np.outer(v, v)


def _rotated(rng: np.random.Generator) -> Array:
    q = np.linalg.qr(rng.standard_normal((DIMENSION, DIMENSION)))[0]
    return q * np.logspace(0, 2, DIMENSION) @ q.T


# name -> Hessian, standard deviation of a value's noise (None: an episode's, right or wrong), kind of noise
FUNCTIONS: dict[str, tuple[Callable[[np.random.Generator], Array], float | None, str]] = {
    "separable": (lambda rng: _with_coupling(_symmetric(rng), 0.0), 0.02, INDEPENDENT),
    "block, weak": (lambda rng: _with_coupling(_symmetric(rng), 0.1), 0.0, NONE),
    "block": (lambda rng: _with_coupling(_symmetric(rng), 0.3), 0.02, INDEPENDENT),
    "rank one": (lambda rng: _with_coupling(_rank_one(rng), 0.5), 0.0, NONE),
    "rank one, noisy": (lambda rng: _with_coupling(_rank_one(rng), 0.5), 0.02, INDEPENDENT),
    "rotated": (_rotated, 0.02, INDEPENDENT),
    "right or wrong": (lambda rng: _with_coupling(_symmetric(rng), 0.4), None, COMMON),
    "right or wrong, separable": (lambda rng: _with_coupling(_symmetric(rng), 0.0), None, COMMON),
}
EPISODES = 64  # of a right-or-wrong value


def _function(name: str, seed: int) -> tuple[Callable, float]:
    """(objective, eps_pq) of a test function whose Hessian has a Frobenius norm of 1; step h = 0.5."""
    make, sd, _ = FUNCTIONS[name]
    rng = np.random.default_rng([seed, 1])
    h = make(rng)
    h /= np.linalg.norm(h)
    f = frobenius(h, BLOCKS)
    slope = rng.standard_normal(DIMENSION) / 20

    def objective(x: Array, seeds: np.ndarray) -> Array:
        value = 0.5 + x @ slope + np.einsum("bi,ij,bj->b", x, h, x) / 2
        if sd is not None:
            return value + sd * rng.standard_normal(len(x)) if sd else value
        unique, index = np.unique(seeds[:, 1], return_inverse=True)
        u = np.stack([np.random.default_rng(s).random(EPISODES) for s in unique])[index]
        return (u < value[:, None]).mean(1)

    return objective, float(np.sqrt(f[0, 1] / np.sqrt(f[0, 0] * f[1, 1])))


def trial(name: str, directions: int, seed: int) -> dict[str, Any]:
    """One measurement of a test function: eps, estimate, interval, whether it covers, p of sign flips and t-test."""
    from scipy.stats import ttest_1samp

    objective, eps = _function(name, seed)
    c = coupling(objective, np.zeros(DIMENSION), BLOCKS, 0.5, directions, seed, FUNCTIONS[name][2])
    x = c.products()[:, [1, 0, 2]]
    low, high = interval(x, resampling(directions, 1000, seed))
    covered = low - 1e-12 <= eps <= high + 1e-12
    t = ttest_1samp(x[:, 0], 0, alternative="greater").pvalue if x[:, 0].any() else 1.0
    return {"true": eps, "low": low, "high": high, "covered": covered, "p": sign_flips(x[:, 0], seed, 999), "t": t}


def calibrate(job: Job) -> list[Row]:
    """Shares of many trials, each with its standard error."""
    found = [trial(job["function"], job["directions"], k) for k in range(job["trials"])]
    row: Row = {"true": float(np.mean([r["true"] for r in found]))}
    width = np.array([r["high"] - r["low"] for r in found])
    for name, hit in (
        ("coverage", [r["covered"] for r in found]),
        ("rejected", [r["p"] <= 0.05 for r in found]),
        ("rejected by t", [r["t"] <= 0.05 for r in found]),
        ("unbounded", ~np.isfinite(width)),
    ):
        share = float(np.mean(hit))
        row |= {name: share, f"{name} se": float(np.sqrt(share * (1 - share) / len(found)))}
    return [row | {"width": float(np.median(width[np.isfinite(width)]))}]
