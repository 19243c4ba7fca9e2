"""The checkers of lesson 06, evolution. Each draws fresh random inputs; the oracles are plain sums and np.cov."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def check_recombine(fn: Callable) -> None:
    """Exercise 6.1: recombine(solutions (lam, n), values (lam,), weights (mu,)) -> (n,), against a sum in a loop."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        lam, n = int(rng.integers(20, 40)), int(rng.integers(2, 7))
        x, values = rng.normal(size=(lam, n)), rng.normal(size=lam)
        if i % 2:
            values = rng.integers(3, size=lam) / 2  # ties
        w = np.sort(rng.dirichlet(np.ones(lam // 2)))[::-1].copy()

        def average(order: list[int], x: np.ndarray = x, w: np.ndarray = w) -> np.ndarray:
            return sum(a * x[j] for a, j in zip(w, order, strict=False))

        wanted = average(sorted(range(lam), key=lambda j: (values[j], j)))
        best = sorted(range(lam), key=lambda j: (values[j], j))[: len(w)]
        found = called(fn, x.copy(), values.copy(), w.copy(), what="recombine")
        mistakes = {
            "these are the LARGEST values: costs are minimised.": average(
                sorted(range(lam), key=lambda j: (-values[j], j))
            ),
            "the children were not sorted: weights go by rank, not by the order told.": average(list(range(lam))),
            "the right children, equally weighted: the best one counts most.": x[best].mean(axis=0),
            "equal values must rank in the order told: np.argsort(values, kind='stable').": average(
                sorted(range(lam), key=lambda j: (values[j], -j))
            ),
            "equal values must rank in the order told, always: np.argsort(values, kind='stable').": average(
                np.argsort(values).tolist()
            ),
            "the weights run the wrong way: weights[0] belongs to the best child.": average(best[::-1]),
        }
        hint = recognised(found, mistakes, "sort by value, keep the first len(weights).")
        same(found, wanted, "recombine(...)", hint)
    passed("recombine", ROUNDS)


def check_rank_mu(fn: Callable) -> None:
    """Exercise 6.2: rank_mu(c, mean, sigma, best, weights, c_mu) -> (n, n), against np.cov and the way of the mean."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, mu = int(rng.integers(2, 7)), int(rng.integers(3, 9))
        a = rng.normal(size=(n, n))
        c, mean, sigma, c_mu = a @ a.T + np.eye(n), rng.normal(size=n), rng.uniform(0.1, 3), rng.uniform(0.1, 0.9)
        best, w = mean + sigma * rng.normal(0.5, 1, (mu, n)), np.sort(rng.dirichlet(np.ones(mu)))[::-1].copy()
        spread, way = np.atleast_2d(np.cov(best.T, aweights=w, ddof=0)), w @ best - mean
        term = (spread + np.outer(way, way)) / sigma**2  # the sum of w_i y_i y_i^T
        wanted = (1 - c_mu) * c + c_mu * term
        given = c.copy()
        found = called(fn, given, mean.copy(), float(sigma), best.copy(), w.copy(), float(c_mu), what="rank_mu")
        if not np.array_equal(given, c):
            raise Wrong("rank_mu has changed the matrix it was given. Hint: return a new one, without += or *=.")
        y = (best - mean) / sigma
        mistakes = {
            "y is (x - mean) / sigma: sigma is missing.": (1 - c_mu) * c + c_mu * sigma**2 * term,
            "C is in units of sigma squared: divide each y by sigma once, so the product by its square.": (1 - c_mu) * c
            + c_mu * sigma * term,
            "take y from the OLD mean: from the new one, C forgets the way that the mean went.": (1 - c_mu) * c
            + c_mu * spread / sigma**2,
            "each child's weight counts once in its product; here it counts twice.": (1 - c_mu) * c
            + c_mu * (w[:, None] * y).T @ (w[:, None] * y),
            "the children are weighted: the best counts most.": (1 - c_mu) * c + c_mu * y.T @ y / mu,
            "the old matrix fades: multiply it by 1 - c_mu.": c + c_mu * term,
            "this is the diagonal alone; here the whole matrix is wanted.": np.diag(np.diag(wanted)),
        }
        hint = recognised(found, mistakes, "the sum of w_i times the outer product of y_i.")
        same(found, wanted, "rank_mu(...)", hint)
    passed("rank_mu", ROUNDS)


def check_generations_until(fn: Callable) -> None:
    """Exercise 6.3: generations_until(share, rate) -> whole number, against a loop that lets the old part fade."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        share, rate = float(rng.uniform(0.7, 0.99)), float(rng.uniform(0.001, 0.02))
        if i >= ROUNDS // 2:  # where one generation makes the difference
            share, rate = float(rng.uniform(0.05, 0.99)), float(rng.uniform(0.02, 0.5))
        if i == ROUNDS - 1:
            share = 0.0
        old, wanted = 1.0, 0
        while 1 - old < share:
            old, wanted = old * (1 - rate), wanted + 1
        found = called(fn, share, rate, what="generations_until")
        text = f"generations_until({share:.4f}, {rate:.4f})"
        if isinstance(found, float | np.floating):
            if not float(found).is_integer():
                raise Wrong(f"{text} is {found:.4g}, not a whole number. Hint: round up, with np.ceil.")
            found = int(found)
        turned = math.ceil(math.log(share) / math.log(1 - rate)) if share else -1
        straight = math.ceil(share / rate)
        mistakes = {
            "one too few: at that time a little less than the share is new, so round up.": wanted - 1,
            "one too many: it is enough to reach the share.": wanted + 1,
            "at the end 1 - share is old; here it is `share`.": turned,
            "each generation replaces a share of what is LEFT: the old part shrinks by a factor.": straight,
        }
        same(found, wanted, text, recognised(found, mistakes, "solve (1 - rate)**g <= 1 - share for the smallest g."))
    passed("generations_until", ROUNDS)


def check_best_looks(fn: Callable) -> None:
    """Exercise 6.4: best_looks(p, lam, m) -> float, against the chances of each count, added up one by one."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        p, lam, m = float(rng.uniform(0.1, 0.6)), int(rng.integers(3, 40)), int(rng.integers(8, 20))
        if i == ROUNDS - 1:
            m = 1
        pmf = [math.comb(m, k) * p**k * (1 - p) ** (m - k) for k in range(m + 1)]
        below = np.concatenate([[0.0], np.cumsum(pmf)])
        wanted = float(sum(k / m * (below[k + 1] ** lam - below[k] ** lam) for k in range(m + 1)))
        worst = float(sum(k / m * ((1 - below[k]) ** lam - (1 - below[k + 1]) ** lam) for k in range(m + 1)))
        found = called(fn, p, lam, m, what="best_looks")
        text = f"best_looks({p:.3f}, {lam}, {m})"
        mistakes = {
            "fitness is a share: divide the successes by m.": wanted * m,
            "this is the expected fitness of the WORST: the best has at most k successes if ALL have.": worst,
            "this is what each candidate truly is worth; the best of many shows more.": p,
            "one term too many or too few: P(max > k) is added up for k = 0, ..., m - 1.": wanted
            - (1 - below[1] ** lam) / m,
            "a sum of P(max <= k) counts failures: the expected maximum is the sum of 1 - F(k)**lam.": 1 - wanted,
        }
        hint = recognised(found, mistakes, "P(max <= k) is F(k)**lam; F is the distribution function of one.")
        again = [called(fn, p, lam, m, what="best_looks") for _ in range(3)]
        if isinstance(found, float) and any(not np.array_equal(a, found, equal_nan=True) for a in again):
            raise Wrong(f"{text} differs from call to call. Hint: compute the chances, do not simulate.")
        same(found, wanted, text, hint, tol=1e-7)
    passed("best_looks", ROUNDS)


def check_fitness_of(fn: Callable) -> None:
    """Exercise 6.5: fitness_of(lists of rewards or None) -> a number a candidate, against np.nanmean."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        lam, m = int(rng.integers(3, 8)), int(rng.integers(3, 7))
        table = rng.choice([0.0, 1.0, np.nan], size=(lam, m))
        table[:, 0] = rng.integers(2, size=lam)  # one scored episode at least
        table[0, :2], table[1], table[2, :2] = [1, np.nan], 0, [0, np.nan]  # what common mistakes get wrong
        table = rng.permuted(table, axis=1)
        episodes = [[None if np.isnan(r) else float(r) for r in row] for row in table]
        wanted = [float(v) for v in np.nanmean(table, axis=1)]
        found = _called_with_none(fn, episodes)
        if isinstance(found, np.ndarray):
            found = found.tolist()
        mistakes = {
            "a lost episode is left out, not scored 0.": np.nansum(table, axis=1) / m,
            "a lost episode is left out: it is not a success either.": np.nan_to_num(table, nan=1.0).mean(axis=1),
            "a reward of 0 is a scored episode: ask `r is not None`, not `if r`.": np.where(
                np.nansum(table, axis=1) > 0, 1.0, 0.0
            ),
        }
        plain = isinstance(found, list) and all(isinstance(v, float | int) for v in found)
        hint = "the mean of the rewards that are not None."
        same(found, wanted, "fitness_of(...)", recognised(np.array(found), mistakes, hint) if plain else hint)
    for i in rng.permutation(5).tolist():
        episodes = [[1.0, None], [0.0, 0.0], [None, 0.0], [1.0, 1.0], [None, 1.0]]
        episodes[i] = [None, None]
        try:
            refused = called(fn, episodes, what="fitness_of")
        except Wrong as error:
            if not isinstance(error.__cause__, ValueError):
                raise Wrong(
                    f"fitness_of, asked about a candidate whose episodes were all lost: {error}. "
                    "Hint: look for that case first, and raise a ValueError that names the candidate."
                ) from error
            if str(i) not in str(error.__cause__):
                raise Wrong(
                    f"fitness_of refuses, but its message does not contain the index {i}: {error.__cause__}. "
                    "Hint: enumerate the candidates."
                ) from error
        else:
            raise Wrong(
                f"fitness_of gave {refused} although all episodes of candidate {i} were lost. "
                "Hint: raise a ValueError; neither NaN nor 0 may reach the optimiser."
            )
    passed("fitness_of", ROUNDS)


def _called_with_none(fn: Callable, episodes: list[list[float | None]]) -> Any:
    """As `called`, with a hint where None was added up or a zero reward taken for a lost one."""
    try:
        return called(fn, [list(row) for row in episodes], what="fitness_of")
    except Wrong as error:
        if isinstance(error.__cause__, TypeError):
            raise Wrong(f"{error}. Hint: None cannot be added up; leave it out first.") from error
        if isinstance(error.__cause__, ValueError | ZeroDivisionError):
            raise Wrong(
                f"{error}; but each candidate has a scored episode here. "
                "Hint: a reward of 0 is a scored episode: ask `r is not None`, not `if r`."
            ) from error
        raise
