"""What sep-CMA-ES costs: evaluations to a target, and milliseconds a generation."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pycma_strategy import pycma_strategy
from .sep_cma_es import SepCMAES, default_popsize

Row = dict[str, Any]
TARGET = 1e-8


def ellipsoid(x: NDArray, condition: float = 1e6) -> NDArray:
    """Separable ellipsoid, sum of condition^(i/(n-1)) x_i^2: minimum 0 at 0.

    Args:
        x: (..., n) points.

    Returns: (...) values.
    Source: Ros & Hansen 2008, f_elli.
    """
    return (x * x) @ condition ** np.linspace(0, 1, x.shape[-1])


def evaluations_to_target(
    strategy: Any,
    objective: Callable[[NDArray], NDArray],
    target: float = TARGET,
    limit: int = 1_000_000,
) -> int:
    """Evaluations until a candidate's value is below `target`, counted in whole generations.

    Args:
        strategy: anything with ask and tell that minimises.
        objective: (popsize, n) candidates to (popsize,) values.

    Raises: RuntimeError if the target is not met within `limit` evaluations.
    """
    spent = 0
    while spent < limit:
        solutions = strategy.ask()
        values = objective(np.asarray(solutions))
        strategy.tell(solutions, values.tolist())
        spent += len(values)
        if values.min() < target:
            return spent
    raise RuntimeError(f"No value below {target} within {limit} evaluations.")


def bench_es(quick: bool = False) -> list[Row]:
    """Compare our sep-CMA-ES with pycma's; for speed also with cmaes and evotorch, if installed.

    Two families of rows: evaluations to 1e-8 on the separable ellipsoid (condition 1e6, 100
    dimensions, both from 3 in every coordinate with sigma0 = 1), and milliseconds of one ask and
    tell at 19,456 dimensions, the libraries taking turns within one process. Ratios are ours to
    the other's: below 1, ours needs less. Times depend on the machine, their ratios hardly.

    Args:
        quick: a third of the work and less, for tests; the standard errors say what it is worth.

    Returns: rows with the keys name, family, value (a median, or the ratio of two), se (its
        bootstrap standard error), n (seeds or timed generations) and unit.
    """
    return _evaluations(3 if quick else 15) + _times(9 if quick else 61)


def _evaluations(seeds: int, dimension: int = 100) -> list[Row]:
    x0, sigma0 = np.full(dimension, 3.0), 1.0
    makers = {"ours": SepCMAES, "pycma": pycma_strategy}
    with warnings.catch_warnings():
        # pycma remarks on every rare long step of a coordinate, which it then cuts itself
        warnings.filterwarnings("ignore", message="elements of z2")
        counts = {
            name: np.array(
                [evaluations_to_target(make(x0, sigma0, seed), ellipsoid) for seed in range(seeds)],
                dtype=np.float64,
            )
            for name, make in makers.items()
        }
    task = f"to {TARGET:.0e}, separable ellipsoid, {dimension} dimensions"
    return _rows(counts, "es_evaluations", task, "evaluations", paired=False)


def _times(generations: int, dimension: int = 19_456) -> list[Row]:
    lam, x0, sigma0 = default_popsize(dimension), np.zeros(dimension), 0.03
    turns: dict[str, Callable[[], float]] = {
        "ours": _turn(SepCMAES(x0, sigma0, 0, lam)),
        "pycma": _turn(pycma_strategy(x0, sigma0, 0, lam)),
    }
    for name, others in (("cmaes", _cmaes_turn), ("evotorch", _evotorch_turn)):
        try:
            turns[name] = others(x0, sigma0, lam)
        except ImportError:
            pass
    for turn in turns.values():  # the first generation allocates
        turn()
    # A B C A B C ...: what else the machine does meets all of them alike
    rounds = [[turn() for turn in turns.values()] for _ in range(generations)]
    milliseconds = dict(zip(turns, 1e3 * np.array(rounds).T, strict=True))
    task = f"ask and tell, {dimension:,} dimensions, {lam} candidates"
    return _rows(milliseconds, "es_time", task, "ms", paired=True)


def _turn(strategy: Any) -> Callable[[], float]:
    """Seconds of one generation of a strategy like pycma's, without the objective."""

    def turn() -> float:
        start = time.perf_counter()
        solutions = strategy.ask()
        asked = time.perf_counter()
        values = ellipsoid(np.asarray(solutions)).tolist()
        told = time.perf_counter()
        strategy.tell(solutions, values)
        return time.perf_counter() - told + asked - start

    return turn


def _cmaes_turn(x0: NDArray, sigma0: float, lam: int) -> Callable[[], float]:
    """The same for the cmaes library, which asks for one candidate at a time."""
    from cmaes import SepCMA

    strategy = SepCMA(mean=x0.copy(), sigma=sigma0, seed=0, population_size=lam)

    def turn() -> float:
        start = time.perf_counter()
        solutions = [strategy.ask() for _ in range(lam)]
        asked = time.perf_counter()
        values = ellipsoid(np.asarray(solutions)).tolist()
        told = time.perf_counter()
        strategy.tell(list(zip(solutions, values, strict=True)))
        return time.perf_counter() - told + asked - start

    return turn


def _evotorch_turn(x0: NDArray, sigma0: float, lam: int) -> Callable[[], float]:
    """The same for evotorch, which has no ask and tell: the objective stops the clock."""
    import torch
    from evotorch import Problem
    from evotorch.algorithms import CMAES

    spent = 0.0

    def objective(x: torch.Tensor) -> torch.Tensor:
        nonlocal spent
        start = time.perf_counter()
        values = torch.from_numpy(ellipsoid(x.numpy()))
        spent += time.perf_counter() - start
        return values

    problem = Problem(
        "min",
        objective,
        vectorized=True,
        solution_length=len(x0),
        initial_bounds=(-1, 1),  # asked for, not used: the centre is given
        dtype=torch.float64,
        seed=0,
    )
    strategy = CMAES(problem, stdev_init=sigma0, popsize=lam, center_init=x0.tolist(), separable=True)

    def turn() -> float:
        nonlocal spent
        spent = 0.0
        start = time.perf_counter()
        strategy.step()
        return time.perf_counter() - start - spent

    return turn


def _rows(samples: dict[str, NDArray], family: str, task: str, unit: str, paired: bool) -> list[Row]:
    """Median of each sample, and of ours over each other; bootstrap standard errors.

    Args:
        samples: by library, (n,) each.
        paired: the i-th values were taken together, so they are drawn together.
    """
    rng = np.random.default_rng(0)
    n = len(samples["ours"])
    shared = rng.integers(n, size=(2_000, n))
    medians = {
        name: np.median(sample[shared if paired else rng.integers(n, size=shared.shape)], axis=1)
        for name, sample in samples.items()
    }  # (2000,) each: the medians of 2000 redrawn samples
    rows = [
        _row(f"{name}: {task}", family, np.median(sample), medians[name], n, unit) for name, sample in samples.items()
    ]
    ours = np.median(samples["ours"])
    return rows + [
        _row(
            f"ours / {name}: {task}",
            family,
            ours / np.median(sample),
            medians["ours"] / medians[name],
            n,
            "ratio",
        )
        for name, sample in samples.items()
        if name != "ours"
    ]


def _row(name: str, family: str, value: Any, redrawn: NDArray, n: int, unit: str) -> Row:
    se = float(np.std(redrawn, ddof=1))
    return {"name": name, "family": family, "value": float(value), "se": se, "n": n, "unit": unit}
