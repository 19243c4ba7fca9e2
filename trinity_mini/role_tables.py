"""Ablations as tables: paired to the full coordinator, and in the form of the paper's (lesson 10)."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from .claims import QUOTED, Recorded, mean_se, pair, quoted, verdict
from .tasks import FAMILIES

BENCHMARKS = ("LCB", "MATH500", "MMLU", "RLPR")  # the paper's, in the order of QUOTED


def against_full(recorded: Recorded) -> pd.DataFrame:
    """Every variant beside `full`, in the order of the study; with SVF and argmax of the same theta among them.

    Returns: columns variant, n (seeds), accuracy, se, pairs, difference and its difference_se to `full` over the seeds
    that both have, ahead (yes, no, open), paper (difference in points of the paper's means, NaN where it has none).
    """
    full = recorded.variant("full")
    found = {"full": full, "with SVF": recorded.with_svf, "full, judged by argmax": recorded.variant("full", "argmax")}
    for name in recorded.ablations["variant"].unique():
        found.setdefault(name, recorded.variant(name))
    rows = []
    for name, values in found.items():
        mean, se, n = mean_se(values)
        d = None if name == "full" else pair(values, full)
        quote = {"with SVF": quoted("full") - quoted("no SVF")}.get(name, np.nan)
        if name in QUOTED and name != "full":
            quote = quoted(name) - quoted("full")
        measured = (d["n"], d["difference"], d["se"], verdict(d)) if d else (0, np.nan, np.nan, "")
        rows.append((name, n, mean, se, *measured, quote))
    columns = ["variant", "n", "accuracy", "se", "pairs", "difference", "difference_se", "ahead", "paper"]
    return pd.DataFrame(rows, columns=columns)


def paper_form(recorded: Recorded) -> pd.DataFrame:
    """The rows that the paper's ablation tables have: accuracy by family here, by benchmark there (quoted, per cent).

    Our `full` is the head alone, so it stands in the row `no SVF`; the paper's full is our `with SVF`.

    Returns: columns row, n (seeds), one a family, all; one a benchmark, mean. NaN where one of the two has no number.
    """
    path = recorded.folder / "evaluation.json"
    e = pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))
    e = e[(e["unit"] == "accuracy") & e["name"].str.match(r"trained: mini-\d+$")]
    here = {"full": e.pivot_table(index="name", columns="family", values="value")}
    a = recorded.ablations[recorded.ablations["selection"] == "as trained"]
    for name, part in a.groupby("variant", sort=False):
        here["no SVF" if name == "full" else name] = part.rename(columns={"accuracy": "all"})
    columns = [*FAMILIES, "all"]
    rows = []
    for name in dict.fromkeys([*QUOTED, "no Verifier", *here]):
        mine, theirs = here.get(name), QUOTED.get(name)
        if mine is None or name in _ELSEWHERE:
            continue
        rows.append(
            {"row": name, "n": len(mine), **mine[columns].mean()}
            | dict(zip(BENCHMARKS, theirs or (np.nan,) * 4, strict=True))
            | {"mean": quoted(name) if theirs else np.nan}
        )
    table = pd.DataFrame(rows)
    return table[table["mean"].notna() | (table["row"] == "no Verifier")].reset_index(drop=True)


_ELSEWHERE = {"REINFORCE", "random search", "SFT"}  # methods, not parts of the coordinator: lesson 09
