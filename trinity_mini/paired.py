"""Two methods over the same seeds: is one ahead? (lessons 08 to 10)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def beyond(difference: float, se: float, n: int) -> bool:
    """Whether a mean over n pairs is beyond chance: by two standard errors, and by a t-test at 5 %.

    With four pairs the t-test asks for 3.2 of them; two alone are passed by luck one time in seven.
    """
    from scipy.stats import t

    return bool(abs(difference) > max(2.0, t.ppf(0.975, n - 1)) * se)


def paired(a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """Mean of a - b over pairs (seeds): difference, its standard error se, n, p, effect, winner.

    p: of a two-sided paired t-test. effect: the difference over the standard deviation of the pairs' differences
    (Cohen's d_z). winner: "a" or "b" if the difference is `beyond` chance, else None.
    Raises: ValueError for fewer than two pairs, two different lengths, or a value that is not finite.
    """
    from scipy.stats import t

    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.ndim != 1 or a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"pairs are wanted, all finite: not shapes {a.shape} and {b.shape}.")
    d = a - b
    d[abs(d) <= 1e-12 * np.maximum(abs(a), abs(b))] = 0  # rounding is no difference
    if len(d) < 2:
        raise ValueError(f"{len(d)} pair(s) have no standard error.")
    mean, spread = float(d.mean()), float(d.std(ddof=1))
    se = spread / len(d) ** 0.5
    if spread == 0:
        p, effect = (1.0, 0.0) if mean == 0 else (0.0, float(np.copysign(np.inf, mean)))
    else:
        p, effect = float(2 * t.sf(abs(mean) / se, len(d) - 1)), mean / spread
    winner = ("a" if mean > 0 else "b") if beyond(mean, se, len(d)) else None
    return {"difference": mean, "se": se, "n": len(d), "p": p, "effect": effect, "winner": winner}
