"""How strongly two blocks of theta interact in J, measured from values of J alone (lesson 08).

With unit directions a in block p and b in block q, the four-point difference

    D = [J(+a +b) - J(+a -b) - J(-a +b) + J(-a -b)] / 4h^2  ->  a' H b,

H the Hessian of J. |D| is no measure: noise alone makes it large. But with two halves of the evidence, D1 and D2,
whose noise is independent, E[D1 D2] = (a' H b)^2. For a uniform on the unit sphere of an n_p-dimensional block
E[a a'] = I / n_p, so for independent a and b

    E[(a' H b)^2] = trace(E[a a'] H_pq E[b b'] H_pq') = ||H_pq||_F^2 / (n_p n_q),

and F_pq = mean of n_p n_q D1 D2 has no bias (of order h^2 only). Within a block, p = q, a and b are two independent
directions and the factor is n_p^2. The normalised coupling eps_pq = sqrt(F_pq / sqrt(F_pp F_qq)) is the
Frobenius-norm relative of B2 in Definition 1 (paper section 4); it is at most 1 where H or -H has no negative
eigenvalue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# thetas (B, n), seeds (B, 2) -> values (B,). A row draws its questions from its first seed, its episodes from its
# second: rows with equal seeds meet the same luck (common random numbers).
Objective = Callable[[Array, NDArray[np.int64]], Array]

COMMON = "common"  # the four points of a difference share questions and draws
DRAWS = "draws"  # they share the questions, each draws for itself
INDEPENDENT = "independent"  # they share nothing
NONE = "none"  # J has no noise: one half will do, D1 = D2
ROWS = 8192  # points evaluated at a time


@dataclass(frozen=True)
class Coupling:
    """Four-point differences of all pairs of blocks.

    pairs: (p, q) with p <= q; sizes: dimension of each block; first, second: (directions, pairs) the two halves'
    D1, D2; evaluations: of J, in all.
    """

    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    sizes: NDArray[np.int64]
    first: Array
    second: Array
    h: float
    evaluations: int

    def products(self) -> Array:
        """n_p n_q D1 D2, (directions, pairs): each an unbiased measurement of F_pq."""
        return self.first * self.second * self.factors

    @property
    def factors(self) -> Array:
        """n_p n_q of each pair."""
        return np.array([self.sizes[p] * self.sizes[q] for p, q in self.pairs], dtype=float)


def coupling(
    objective: Objective,
    theta: Array,
    blocks: Mapping[str, NDArray],
    h: float,
    directions: int,
    seed: int,
    noise: str = COMMON,
) -> Coupling:
    """Measure F_pq of all pairs of blocks at theta (n,) with steps h: 8 evaluations a direction and pair.

    blocks: name -> indices (k,) of coordinates, or an orthonormal basis (n, r) to keep the directions inside a
    subspace. noise: COMMON, DRAWS, INDEPENDENT or NONE (4
    evaluations), see above.
    Raises: ValueError if h or directions are not positive, theta or a value of J is not finite, a basis is not
    orthonormal, or a block is empty or holds a coordinate twice.
    """
    if not (0 < h < np.inf and directions > 0):
        raise ValueError(f"h = {h} and directions = {directions} must be positive.")
    if noise not in (COMMON, DRAWS, INDEPENDENT, NONE) or not blocks:
        raise ValueError(f"noise = {noise!r} must be a kind of noise, and there must be a block.")
    theta = np.asarray(theta, dtype=float)
    if not np.isfinite(theta).all():
        raise ValueError("theta holds a value that is not finite.")
    bases = [_checked(name, np.asarray(b), len(theta)) for name, b in blocks.items()]
    pairs = tuple(combinations_with_replacement(range(len(bases)), 2))
    halves = 1 if noise == NONE else 2
    rng = np.random.default_rng(seed)
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    found = np.empty((directions, len(pairs), 2))
    step = max(1, ROWS // (4 * halves * len(pairs)))
    for start in range(0, directions, step):
        m = min(step, directions - start)
        a, b = (np.stack([directions_of(u, len(theta), m, rng) for u in bases], axis=1) for _ in range(2))  # (m, K, n)
        i, j = (list(x) for x in zip(*pairs, strict=True))
        moves = h * (signs[:, :1] * a[:, i, None, :] + signs[:, 1:] * b[:, j, None, :])  # (m, pairs, 4, n)
        seeds = rng.integers(2**62, size=(m, len(pairs), halves, 4, 2))
        if noise in (COMMON, DRAWS):
            seeds[..., 0] = seeds[..., :1, 0]
        if noise == COMMON:
            seeds[..., 1] = seeds[..., :1, 1]
        points = np.broadcast_to((theta + moves)[:, :, None], (m, len(pairs), halves, 4, len(theta)))
        values = objective(points.reshape(-1, len(theta)), seeds.reshape(-1, 2)).reshape(m, len(pairs), halves, 4)
        if not np.isfinite(values).all():
            raise ValueError(f"J is not finite at {int((~np.isfinite(values)).sum())} of {values.size} points.")
        d = values @ (signs[:, 0] * signs[:, 1])
        rounding = 4 * np.finfo(float).eps * np.abs(values).max(-1)
        found[start : start + m] = np.where(np.abs(d) > rounding, d, 0) / (4 * h * h)  # one half serves as both
    evaluations = 4 * halves * directions * len(pairs)
    sizes = np.array([u.shape[-1] for u in bases])
    return Coupling(tuple(blocks), pairs, sizes, found[..., 0], found[..., 1], h, evaluations)


def summary(c: Coupling, seed: int, level: float = 0.95, resamples: int = 2000) -> list[dict[str, Any]]:
    """A row of JSON values for each pair of blocks.

    block, other; F and its standard error se; eps (0 where F < 0); low, high: see `interval`; p of "no interaction"
    (`sign_flips`); detectable: the smallest eps that this measurement would have seen (`detectable`).
    None where a block's own F is not above its noise: then there is no scale to compare with.
    """
    x = c.products()
    own = {p: k for k, (p, q) in enumerate(c.pairs) if p == q}
    weights = resampling(len(x), resamples, seed)
    rows = []
    for k, (p, q) in enumerate(c.pairs):
        triple = x[:, [k, own[p], own[q]]]
        mean = triple.mean(0)
        row: dict[str, Any] = {
            "block": c.names[p],
            "other": c.names[q],
            "F": float(mean[0]),
            "se": float(triple[:, 0].std(ddof=1) / np.sqrt(len(x))),
            "p": sign_flips(x[:, k], seed),
            **dict.fromkeys(("eps", "low", "high", "detectable")),
        }
        if min(sign_flips(x[:, own[b]], seed) for b in (p, q)) <= 1 - level and (mean[1:] > 0).all():
            low, high = (1.0, 1.0) if p == q else interval(triple, weights, level)
            scale = np.sqrt(mean[1] * mean[2])
            least = detectable(c.first[:, k], c.second[:, k]) * c.factors[k] / scale
            row |= {
                "eps": float(np.sqrt(max(mean[0], 0) / scale)),
                "low": low,
                "high": high if np.isfinite(high) else None,
                "detectable": float(np.sqrt(least)) if np.isfinite(least) else None,
            }
        rows.append(row)
    return rows


def resampling(n: int, resamples: int, seed: int) -> Array:
    """(resamples, n): how large a share of each bootstrap sample each of n observations is."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples) / n


def interval(triple: Array, weights: Array, level: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of eps from measurements (directions, 3) of F_pq, F_pp, F_qq, resampled together.

    The hull of two: the percentile interval, too narrow where products are skewed (a chi-square times a chi-square),
    and the bootstrap-t, which judges each resample by its own standard error and is too narrow where the scale
    F_pp F_qq is noisy. Together they hold their level in both cases (study `separability-calibration`). An upper end
    of infinity says that a block's own F may be zero. Source: Efron & Tibshirani 1993, chapters 12 and 13.
    """
    value, se = _ratio(np.full((1, len(triple)), 1 / len(triple)), triple)
    values, ses = _ratio(weights, triple)
    good = np.isfinite(values)
    tail = (1 - level) / 2
    if not np.isfinite(value[0]) or (~good).mean() > tail / 2:
        return 0.0, np.inf
    ends = np.quantile(values[good], [tail, 1 - tail])
    if se[0] > 0:
        t = (values[good] - value) / np.maximum(ses[good], 1e-9 * se)
        ends = np.append(ends, value - se * np.quantile(t, [1 - tail, tail]))
    low, high = np.sqrt(np.maximum((ends.min(), ends.max()), 0))
    return float(low), float(high)


def _ratio(weights: Array, triple: Array) -> tuple[Array, Array]:
    """eps^2 of each resample and its standard error by the delta method, (resamples,) each; NaN without a scale."""
    n = len(triple)
    mean = weights @ triple
    second = (weights @ (triple[:, :, None] * triple[:, None, :]).reshape(n, 9)).reshape(-1, 3, 3)
    cov = second - mean[:, :, None] * mean[:, None, :]
    scale = np.sqrt(np.where((mean[:, 1:] > 0).all(1), mean[:, 1] * mean[:, 2], np.nan))
    value = mean[:, 0] / scale
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.stack((1 / scale, -value / mean[:, 1] / 2, -value / mean[:, 2] / 2), axis=1)
    variance = np.einsum("bi,bij,bj->b", slope, cov, slope)
    return value, np.sqrt(np.maximum(variance, 0) / n)


def sign_flips(products: Array, seed: int, flips: int = 2000) -> float:
    """One-sided p of "F = 0" for products (directions,): how often random signs give as large a sum.

    Without interaction D1 and D2 are noise, symmetric about 0 and independent, so the signs of their products are fair
    coins whatever the sizes. (A t-test trusts a normal mean; products of noise have long tails.)
    """
    signs = np.random.default_rng(seed).integers(2, size=(flips, len(products))) * 2.0 - 1
    return float((1 + np.count_nonzero(signs @ products >= products.sum() * (1 - 1e-12))) / (flips + 1))


def detectable(first: Array, second: Array) -> float:
    """The mean of D1 D2 that a one-sided 5 % test would see with a power of 80 %, from the noise D1 - D2 alone.

    Noise of variance v a half and a signal of variance f = delta v, both normal over the directions, make D1 D2 a mean
    of f, a mean square of v^2 (1 + 2 delta + 3 delta^2) and f^2 less variance. The test needs
    f sqrt(directions) = 1.645 root mean square + 0.842 standard deviation. v comes from
    E[(D1 - D2)^4] = 12 v^2; 0 where J has no noise, infinity where no signal would do (17 directions or fewer).
    """
    delta = 0.0
    for _ in range(200):
        square = 1 + 2 * delta + 3 * delta**2
        delta = (1.645 * np.sqrt(square) + 0.842 * np.sqrt(square - delta**2)) / np.sqrt(len(first))
    noise = np.sqrt(np.mean((first - second) ** 4) / 12)
    return 0.0 if noise == 0 else float(noise * delta) if len(first) > 17 else np.inf


def _checked(name: str, block: NDArray, n: int) -> NDArray:
    if block.ndim == 1 and (not len(block) or block.dtype == bool or len({*block.tolist()}) < len(block)):
        raise ValueError(f"block {name!r} must hold indices, at least one, each once.")
    if block.ndim == 2 and not (len(block) == n and np.allclose(block.T @ block, np.eye(block.shape[1]), atol=1e-8)):
        raise ValueError(f"block {name!r} must be indices or an orthonormal basis with {n} rows.")
    return block


def directions_of(block: NDArray, n: int, m: int, rng: np.random.Generator) -> Array:
    """(m, n) uniform unit vectors of a block."""
    z = rng.standard_normal((m, block.shape[-1]))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    if block.ndim == 2:
        return z @ block.T
    out = np.zeros((m, n))
    out[:, block] = z
    return out
