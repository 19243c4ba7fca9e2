"""sep-CMA-ES: evolution strategy with a diagonal covariance matrix, from scratch.

The algorithm is CMA-ES with one line changed. The covariance matrix C of the search
distribution N(mean, sigma^2 C) is kept diagonal, so it costs n numbers instead of n^2; and
having n instead of n(n+1)/2 numbers to learn, it may learn them (n+2)/3 times faster.

Sources:
    Ros & Hansen 2008, "A Simple Modification in CMA-ES Achieving Linear Time and Space
    Complexity": the diagonal C and the factor (n+2)/3 on the learning rates of C.
    Hansen 2016, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772): everything else.
    Numbers in brackets are its equations. Its rates c_1, c_mu and c_c are later refinements of
    the 2008 ones; the offset 1/4 in c_mu is the one pycma uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def default_popsize(n: int) -> int:
    """Candidates per generation in n dimensions, 4 + floor(3 ln n): pycma's default, (48)."""
    return 4 + math.floor(3 * math.log(n))


def paper_popsize(n: int) -> int:
    """Candidates per generation as the Trinity paper writes it, ceil(4 + 3 ln n).

    32 at n = 10,240. One more than `default_popsize` for every n > 1.
    """
    return math.ceil(4 + 3 * math.log(n))


class Result(NamedTuple):
    """Where a search stands; names and order as in pycma's `result`.

    `xfavorite`, the mean, is the answer. Under noise `xbest` is merely the luckiest candidate.
    """

    xbest: Vector | None  # (n,) best candidate told so far; None before the first tell
    fbest: float  # its value; inf before the first tell
    evals_best: int  # evaluations when it was found
    evaluations: int
    iterations: int
    xfavorite: Vector  # (n,) mean of the search distribution
    stds: Vector  # (n,) its standard deviations, sigma * sqrt(variances)


class SepCMAES:
    """Minimise a function of n numbers by asking for candidates and telling their values.

    Only the order of the values matters. Used like pycma's CMAEvolutionStrategy::

        es = SepCMAES(x0, sigma0, seed=0)
        for _ in range(60):
            solutions = es.ask()
            es.tell(solutions, [f(x) for x in solutions])
        es.result.xfavorite

    Randomness comes from its own generator, so numpy's global state is neither read nor
    written. An instance can be pickled at any moment, also between ask and tell, and continues
    bit for bit.

    Args:
        x0: (n,) start of the mean.
        sigma0: start of the step size, in the units of x (times `stds`).
        seed: seed of the generator, 0 or larger. 0 is a seed like any other.
        popsize: candidates per generation, `default_popsize(n)` unless given.
        stds: scalar or (n,) initial standard deviation of each coordinate relative to sigma0.

    Raises: ValueError if x0 is empty or not a finite vector, if sigma0 or stds are not positive
        and finite, if popsize < 2 or if seed is None.
    """

    def __init__(
        self,
        x0: ArrayLike,
        sigma0: float,
        seed: int,
        popsize: int | None = None,
        stds: ArrayLike | None = None,
    ) -> None:
        mean = np.array(x0, dtype=np.float64)
        if mean.ndim != 1 or mean.size == 0 or not np.isfinite(mean).all():
            raise ValueError("x0 must be a vector of at least one finite number.")
        if not (sigma0 > 0 and math.isfinite(sigma0)):
            raise ValueError(f"sigma0 is {sigma0}: give a positive finite step size.")
        if seed is None:
            raise ValueError("seed is None: give a whole number, so that the run can be repeated.")
        n = mean.size
        lam = default_popsize(n) if popsize is None else int(popsize)
        if lam < 2 or (popsize is not None and lam != popsize):
            raise ValueError(f"popsize is {popsize}: give a whole number of at least 2.")
        scale = np.ones(n) if stds is None else np.array(stds, dtype=np.float64)
        if scale.shape not in [(), (n,)] or not ((scale > 0) & np.isfinite(scale)).all():
            raise ValueError(f"stds must be one or {n} positive finite numbers, like x0.")

        # Selection: the better half counts, the best most
        raw = math.log((lam + 1) / 2) - np.log(np.arange(1, lam // 2 + 1))  # (49)
        self.weights = raw / raw.sum()  # (53), w_i
        mu_eff = self.mu_eff = float(1 / np.sum(self.weights**2))  # (8)
        # Step size
        self.c_sigma = (mu_eff + 2) / (n + mu_eff + 3)  # (55)
        self.d_sigma = 1 + 2 * max(0.0, math.sqrt((mu_eff - 1) / (n + 1)) - 1) + self.c_sigma
        self.chi_n = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))  # E||N(0, I)||
        # Variances, with Ros & Hansen's factor for the diagonal
        faster = (n + 2) / 3
        self.c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)  # (56)
        self.c_1 = faster * 2 / ((n + 1.3) ** 2 + mu_eff)  # (57)
        self.c_mu = faster * 2 * (1 / 4 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff)
        self.c_mu = min(1 - self.c_1, self.c_mu)  # (58)

        self.n, self.popsize = n, lam
        self.mean: Vector = mean
        self.sigma = float(sigma0)
        self.variances: Vector = np.ones(n) * scale**2  # diagonal of C
        self.p_sigma: Vector = np.zeros(n)
        self.p_c: Vector = np.zeros(n)
        self.generation = 0
        self.evaluations = 0
        self._best: tuple[Vector | None, float, int] = (None, math.inf, 0)
        self._rng = np.random.default_rng(seed)

    def ask(self) -> NDArray[np.float64]:
        """Draw the candidates of one generation, each from N(mean, sigma^2 C).

        Returns: (popsize, n), a new array each time.
        """
        x = self._rng.standard_normal((self.popsize, self.n))  # (38), z
        x *= self.stds  # (39), in place: no second array of this size
        x += self.mean  # (40)
        return x

    def tell(self, solutions: Sequence[ArrayLike] | NDArray, values: ArrayLike) -> None:
        """Move the distribution towards the candidates with the smallest values.

        Equal values rank in the order told. A repaired candidate may be told in place of the one
        asked for: what is learnt from is what is told.

        Args:
            solutions: (popsize, n) the candidates, as an array or a list of vectors.
            values: (popsize,) what each one costs, finite.

        Raises: ValueError on another shape, on a value that is NaN, infinite or None, or on
            candidates that are not finite. The state is then as it was before the call.
        """
        f = self._checked(solutions, values)
        order = np.argsort(f, kind="stable")
        d = np.sqrt(self.variances)  # C^(1/2)
        scale = self.sigma * d
        step, spread = np.zeros(self.n), np.zeros(self.n)
        with np.errstate(all="ignore"):  # what goes wrong here is refused two lines below
            for w, i in zip(self.weights, order, strict=False):  # the mu best, best first
                z = (np.asarray(solutions[i], dtype=np.float64) - self.mean) / scale
                step += w * z  # (41), C^(-1/2) <y>_w
                spread += w * z * z
            p_sigma = (1 - self.c_sigma) * self.p_sigma + (
                math.sqrt(self.c_sigma * (2 - self.c_sigma) * self.mu_eff) * step
            )  # (43)
            length = math.sqrt(np.sum(p_sigma * p_sigma)) / self.chi_n  # 1 if steps are unrelated
        if not (math.isfinite(length) and np.isfinite(spread).all()):
            raise ValueError(
                "The best candidates are not finite in units of sigma * sqrt(variances): tell "
                "finite candidates, or start again from es.mean with a larger sigma0."
            )

        g = self.generation + 1
        # h_sigma stops p_c while p_sigma is long, so that C does not grow before sigma has
        correction = math.sqrt(1 - (1 - self.c_sigma) ** (2 * g))
        h_sigma = float(length / correction < 1.4 + 2 / (self.n + 1))
        self.p_c = (1 - self.c_c) * self.p_c + (
            h_sigma * math.sqrt(self.c_c * (2 - self.c_c) * self.mu_eff) * d * step
        )  # (45)
        lost = (1 - h_sigma) * self.c_c * (2 - self.c_c)
        self.variances = (
            (1 - self.c_1 * (1 - lost) - self.c_mu) * self.variances
            + self.c_1 * self.p_c**2  # rank one: where the mean has been going
            + self.c_mu * self.variances * spread  # rank mu: where the good candidates lie
        )  # (47), of which only the diagonal is kept
        self.mean = self.mean + scale * step  # (42), c_m = 1
        self.p_sigma = p_sigma
        self.sigma *= math.exp(min(1.0, self.c_sigma / self.d_sigma * (length - 1)))  # (44)

        best = int(order[0])
        if f[best] < self._best[1]:
            x = np.array(solutions[best], dtype=np.float64)
            self._best = (x, float(f[best]), self.evaluations + best + 1)
        self.generation = g
        self.evaluations += self.popsize

    def _checked(self, solutions: Sequence[ArrayLike] | NDArray, values: ArrayLike) -> Vector:
        """The values as a float array, or a ValueError that says what to do."""
        try:
            f = np.asarray(values, dtype=np.float64)  # None becomes NaN
            shapes = [np.shape(x) for x in solutions]  # of the rows: a list need not be stacked
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Tell {self.popsize} vectors of {self.n} numbers and one number for each: {error}."
            ) from error
        if f.shape != (self.popsize,):
            raise ValueError(
                f"values has shape {f.shape}: tell one value for each of the {self.popsize} candidates of ask()."
            )
        if shapes != [(self.n,)] * self.popsize:
            raise ValueError(
                f"solutions must be the {self.popsize} candidates of ask(), each with {self.n} "
                f"numbers: got {len(shapes)} of shapes {sorted(set(shapes))}."
            )
        if not np.isfinite(f).all():
            raise ValueError(
                f"Value {int(np.argmin(np.isfinite(f)))} is NaN, infinite or None: evaluate that "
                "candidate again, or give it a finite value worse than all others."
            )
        return f

    @property
    def stds(self) -> Vector:
        """(n,) standard deviations of the search distribution, sigma * sqrt(variances)."""
        return self.sigma * np.sqrt(self.variances)

    @property
    def xfavorite(self) -> Vector:
        """(n,) copy of the mean: the answer of a run."""
        return self.mean.copy()

    @property
    def result(self) -> Result:
        """Where the search stands, see `Result`."""
        return Result(*self._best, self.evaluations, self.generation, self.xfavorite, self.stds)
