"""The recorded runs of a folder, and tests by seed on what they hold (lesson 10)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from .files import DATA, UserError
from .paired import beyond, paired
from .study import frame

RUNS = DATA / "runs"
LEVEL = 0.05  # of each test


def verdict(d: Mapping | None, level: float = LEVEL) -> str:
    """Of `paired`'s result: is the first ahead ("yes"), behind ("no"), or neither beyond chance ("open")?"""
    if d is None or not beyond(d["difference"], d["se"], d["n"]) or d["p"] > level:
        return "open"
    return "yes" if d["difference"] > 0 else "no"


def pair(a: pd.Series, b: pd.Series) -> dict | None:
    """`paired` of two series over the seeds (index) that both have; None for fewer than two."""
    a, b = a.dropna(), b.dropna()
    both = a.index.intersection(b.index)
    return paired(a[both], b[both]) if len(both) > 1 else None


def said(d: Mapping | None) -> str:
    """A paired difference in words."""
    return "not recorded" if d is None else f"{d['difference']:+.3f} ± {d['se']:.3f} (n = {d['n']})"


def mean_se(values: Iterable[float]) -> tuple[float, float, int]:
    """Mean, its standard error (NaN for a single value), n."""
    x = np.asarray(list(values), dtype=float)
    return float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan"), len(x)


class Recorded:
    """The recorded files of a folder, each read when first asked for; and the tests that were made on them.

    level: of each test; tests: their p values, in the order in which they were judged.
    """

    def __init__(self, folder: Path = RUNS, level: float = LEVEL) -> None:
        self.folder, self.level = Path(folder), level
        self.tests: list[float] = []
        self._frames: dict[str, pd.DataFrame] = {}

    def frame(self, name: str) -> pd.DataFrame:
        """The rows of a study. Raises: UserError if they are missing or damaged."""
        if name not in self._frames:
            self._frames[name] = frame(name, self.folder)
        return self._frames[name]

    def judge(self, d: Mapping | None) -> str:
        """`verdict` at this level; the test is counted."""
        if d is not None:
            self.tests.append(d["p"])
        return verdict(d, self.level)

    def all_of(self, each: Iterable[Mapping | None]) -> str:
        """yes if all are ahead, in part if some, no if none and one is behind, else open."""
        results = {self.judge(d) for d in each}
        return results.pop() if len(results) == 1 else "in part" if "yes" in results else "no"

    def evaluated(self, name: str) -> pd.DataFrame:
        """Accuracies over all families of a file that `evaluate --json` wrote, by name: columns value, se, n."""
        path = self.folder / f"{name}.json"
        try:
            rows = pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise UserError(f"{path} cannot be read ({e}): write it with the command `evaluate --json`.") from None
        return rows[(rows["unit"] == "accuracy") & (rows["family"] == "all")].set_index("name")

    @cached_property
    def ablations(self) -> pd.DataFrame:
        return self.frame("ablations")

    @cached_property
    def evaluation(self) -> pd.DataFrame:
        """`evaluated` on the four families of the training."""
        return self.evaluated("evaluation")

    @cached_property
    def with_svf(self) -> pd.Series:
        """Accuracy of the recorded trainings with SVF, by seed."""
        mine = self.evaluation["value"].filter(regex=r"^trained: mini-\d+$")
        return mine.set_axis(mine.index.str.extract(r"(\d+)$", expand=False).astype(int))

    @cached_property
    def methods(self) -> pd.DataFrame:
        """Held-out J: a line a seed and method, a column a budget."""
        rows = self.frame("methods").dropna(subset=["budget"])
        return rows.pivot_table(index=["method", "seed"], columns="budget", values="test")

    def variant(self, name: str, selection: str = "as trained") -> pd.Series:
        """Accuracy of a variant by seed; empty if it was not recorded."""
        rows = self.ablations
        rows = rows[(rows["variant"] == name) & (rows["selection"] == selection)]
        return rows.set_index("seed")["accuracy"].sort_index()

    def against_full(self, names: Iterable[str]) -> dict[str, dict | None]:
        """`full` minus each variant, by its name."""
        return {name: pair(self.variant("full"), self.variant(name)) for name in names}
