"""Tables of lesson 09 from the recorded rows of `baseline_studies`: who wins, by how much, and what tuning bought."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
import pandas as pd

from .files import DATA
from .paired import paired

LEAST = 0.01  # a smaller difference names no winner, however small its standard error
OPTIONS = ["lr", "baseline", "entropy", "batch", "sigma0", "popsize", "m", "sigma", "pairs", "scale", "confirm",
           "epochs", "search"]  # fmt: skip


def scores(methods: pd.DataFrame) -> pd.DataFrame:
    """The rows of `methods` that hold a score: a row a method, seed and budget."""
    return methods[methods["budget"].notna()].astype({"budget": int})


def verdict(a: Sequence[float], b: Sequence[float]) -> dict:
    """`paired`, with winner a, b or nobody, which it is for a difference below LEAST, too."""
    found = paired(a, b)
    return found | {"winner": found["winner"] if found["winner"] and abs(found["difference"]) >= LEAST else "nobody"}


def contest(methods: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """Paired test of method a against b at each budget: difference, se, n, winner, effect, by budget."""
    wide = scores(methods).pivot(index=["budget", "seed"], columns="method", values="test")[[a, b]].dropna()
    rows = [{"budget": budget} | verdict(x[a], x[b]) for budget, x in wide.groupby(level="budget")]
    return pd.DataFrame(rows).set_index("budget")


def settings(sweep: pd.DataFrame, seeds: Sequence[int] | None = None, value: str = "validation") -> pd.DataFrame:
    """Mean over seeds of each setting, method and budget of the sweep; columns OPTIONS, `mean` and `se`."""
    part = sweep if seeds is None else sweep[sweep["seed"].isin(seeds)]
    grouped = part.groupby(["method", *OPTIONS, "budget"], dropna=False)[value]
    return grouped.agg(mean="mean", se="sem").reset_index()


def expected_best(tuning: Sequence[float], fresh: Sequence[float], k: int) -> float:
    """Expected fresh score of the setting with the best tuning score among k drawn at random, none twice."""
    order = np.argsort(tuning)  # the i-th from below is the best of k if the others are among the i below it
    n = len(order)
    chance = np.array([comb(i, k - 1) for i in range(n)]) / comb(n, k)
    return float(chance @ np.asarray(fresh)[order])


def winners(record: pd.DataFrame) -> pd.DataFrame:
    """REINFORCE against sep-CMA-ES for each world, tuning and budget, rarest reward first; see `verdict`."""
    rows = []
    keys = ["uniform", "world", "turns", "tuning", "budget"]
    for key, x in record.groupby(keys):
        wide = x.pivot(index="seed", columns="method", values="J")
        found = verdict(wide["REINFORCE"], wide["sep-CMA-ES"])
        means = {"gradient": wide["REINFORCE"].mean(), "evolution": wide["sep-CMA-ES"].mean()}
        rows.append(dict(zip(keys, key, strict=True)) | found | means)
    return pd.DataFrame(rows, columns=[*keys, *found, *means] if rows else [*keys, "winner", "n"])


def evolution_logs() -> pd.DataFrame:
    """Validation of the five recorded training runs (sep-CMA-ES, head and SVF): seed, episodes, test."""
    logs = [pd.read_json(DATA / "runs" / f"mini-{s}" / "log.jsonl", lines=True).assign(seed=s) for s in range(1, 6)]
    return pd.concat(logs).dropna(subset=["validation"]).rename(columns={"validation": "test"})
