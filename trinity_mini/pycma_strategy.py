"""pycma's sep-CMA-ES, set up so that a run is repeatable and touches nothing outside itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import cma


class Randn:
    """Standard normal numbers from a generator of its own; goes with its owner when pickled.

    pycma draws from numpy's global stream unless it is given such an object. A plain function
    would do for drawing, but its state would not be saved with the strategy.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> NDArray[np.float64]:
        """Array of the given shape, called as pycma calls numpy.random.randn."""
        return self.generator.standard_normal(shape)


def pycma_strategy(
    x0: ArrayLike,
    sigma0: float,
    seed: int,
    popsize: int | None = None,
    stds: ArrayLike | None = None,
) -> cma.CMAEvolutionStrategy:
    """pycma with a diagonal covariance matrix and random numbers of its own.

    Minimises, like `SepCMAES`, and takes the same arguments. ask, tell and result are pycma's.
    Tell the solutions in the order asked: from n = 300 on, pycma adapts sigma by comparing
    the first two. Values are not checked by pycma: it replaces NaN by the median without a word.
    A pickle resumes bit for bit, also between ask and tell.

    Args:
        x0: (n,) start of the mean.
        sigma0: start of the step size, in the units of x (times `stds`).
        seed: 0 or larger. 0 is a seed like any other, not "the time" as in pycma.
        popsize: candidates per generation, 4 + floor(3 ln n) unless given.
        stds: scalar or (n,) initial standard deviation of each coordinate relative to sigma0.

    Raises: ValueError if seed is None; whatever pycma raises for the other arguments.
    Source: pycma 4, options of CMAEvolutionStrategy.
    """
    if seed is None:
        raise ValueError("seed is None: give a whole number, so that the run can be repeated.")
    import cma  # here, not above: it takes a while and only training needs it

    options: dict[str, Any] = {
        "CMA_diagonal": True,  # the default is the full matrix: n^2 numbers
        "verbose": -9,  # no output, no log files
        "seed": np.nan,  # leave numpy's global stream alone
        "randn": Randn(seed),
        "signals_filename": "",  # read no commands from the working directory; None would warn
    }
    if popsize is not None:
        options["popsize"] = popsize
    if stds is not None:
        options["CMA_stds"] = np.array(stds, dtype=np.float64)  # a copy: pycma scales it in place
    return cma.CMAEvolutionStrategy(np.array(x0, dtype=np.float64), sigma0, options)
