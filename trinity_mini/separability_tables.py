"""Tables of lesson 08 from the recorded rows of `separability_studies`."""

from __future__ import annotations

import numpy as np
import pandas as pd

PARTITIONS = ("agents, roles", "states", "rows")
METHODS = ("sep-CMA-ES", "sep-CMA-ES, frozen diagonal")


def matrix(rows: pd.DataFrame, value: str = "eps") -> tuple[list[str], np.ndarray]:
    """Names of the blocks and the symmetric matrix (K, K) of a value, the mean over seeds or runs; NaN where none."""
    names = list(dict.fromkeys(rows["block"]))
    grid = rows.groupby(["block", "other"], sort=False)[value].mean().unstack().reindex(index=names, columns=names)
    found = grid.to_numpy(dtype=float)
    return names, np.where(np.isnan(found), found.T, found)


def exact(table: pd.DataFrame, partition: str | None = None, generation: int | None = None) -> pd.DataFrame:
    """The rows of the exact couplings of study separability-head, of one partition, of one generation."""
    rows = table[(table["kind"] == "coupling") & (table["source"] == "exact")]
    rows = rows if partition is None else rows[rows["partition"] == partition]
    return rows if generation is None else rows[rows["generation"] == generation]


def means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean eps over the pairs of different blocks: columns partition, generation, seed, eps (exact).

    table: study separability-head.
    """
    rows = exact(table)
    between = rows[rows["block"] != rows["other"]]
    return between.groupby(["partition", "generation", "seed"], sort=False)["eps"].mean().reset_index()


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The measurements by episodes of study separability-head, a column `exact` beside them."""
    between = table[(table["kind"] == "coupling") & (table["block"] != table["other"])]
    rows = between[between["source"] == "episodes"]
    truth = exact(between, PARTITIONS[0]).set_index(["seed", "generation"])["eps"].rename("exact")
    return rows.join(truth, on=["seed", "generation"])


def gains(table: pd.DataFrame, value: str = "test", a: str = "adapts", b: str = "frozen") -> pd.DataFrame:
    """Paired difference a - b of a value at each generation of study separability-diagonal, 544 episodes each."""
    grid = table.pivot(index=["generation", "seed"], columns="way", values=value)
    found = _paired(grid[a] - grid[b], "generation")
    return found.assign(episodes=[544 * g for g in found["generation"]])


def method_gains(methods: pd.DataFrame) -> pd.DataFrame:
    """The same at each budget of study methods: sep-CMA-ES minus itself with a frozen diagonal."""
    rows = methods[methods["budget"].notna() & methods["method"].isin(METHODS)]
    grid = rows.pivot(index=["budget", "seed"], columns="method", values="test")
    return _paired(grid[METHODS[0]] - grid[METHODS[1]], "budget").rename(columns={"budget": "episodes"})


def _paired(difference: pd.Series, at: str) -> pd.DataFrame:
    groups = difference.groupby(at)
    return pd.DataFrame({"difference": groups.mean(), "se": groups.sem(), "n": groups.size()}).reset_index()
