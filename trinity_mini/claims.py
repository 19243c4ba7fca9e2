"""The paper's claims against the recorded runs: one table, computed from data/runs alone (lesson 10, README)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from . import claim_measures as by
from .claim_measures import Found, Measure
from .files import UserError
from .recorded import LEVEL, RUNS, Recorded, mean_se, pair, said, verdict

__all__ = ["CLAIMS", "QUOTED", "RUNS", "Recorded", "as_text", "claims", "mean_se", "pair", "quoted", "said", "verdict"]

# Quoted from the paper's tables: LCB, MATH500, MMLU, RLPR, in per cent. The table of ablations and those of heads and
# learners round the same coordinator differently: "full" belongs to the first, "sep-CMA-ES" to the others.
QUOTED = {
    "full": (61.46, 88.00, 91.56, 40.72),
    "no SVF": (55.68, 85.85, 90.10, 39.77),
    "no Thinker": (57.80, 86.20, 92.75, 38.00),
    "no roles: Workers only": (58.28, 82.00, 91.64, 36.15),
    "reads the last token": (50.85, 87.00, 82.19, 38.60),
    "head: low-rank": (59.7, 77.0, 91.4, 34.4),
    "head: sparse": (40.0, 81.1, 91.7, 37.2),
    "head: block-diagonal-2": (33.6, 77.6, 89.7, 37.8),
    "head: block-diagonal-n, argmax": (55.1, 81.2, 80.2, 37.6),
    "REINFORCE": (25.3, 45.9, 50.0, 26.6),
    "random search": (37.4, 79.4, 89.7, 34.5),
    "SFT": (59.2, 78.6, 90.6, 36.0),
    "sep-CMA-ES": (61.5, 88.0, 91.6, 40.1),
}
QUOTED_AGENTS = {"Claude": 61.12, "Gemini": 62.99, "GPT-5": 65.95}  # one agent in all roles, mean of the four
HEADS = [name for name in QUOTED if name.startswith("head")]


def quoted(name: str) -> float:
    """Mean of the paper's four benchmarks, in per cent. Raises: KeyError if the paper has no such row."""
    return round(float(np.mean(QUOTED[name])), 2)


@dataclass(frozen=True)
class Claim:
    """What is claimed, what the paper shows for it, how it is measured here, and in which files of data/runs."""

    claim: str
    paper: str
    measure: Measure
    source: str


def _against(*names: str, ours: str = "full") -> str:
    best = max(map(quoted, names))
    return f"{quoted(ours):.2f} against {'at most ' if len(names) > 1 else ''}{best:.2f}"


CLAIMS = [
    Claim("the reward is block-ε-separable", "assumed, never measured", by.separability, "separability-head"),
    Claim("agents and roles are coupled less than random blocks and untaught heads as sure", "not measured",
          by.coupling, "separability-head"),
    Claim("adapting the diagonal pays", "in theory (Proposition 2)", by.diagonal, "separability-diagonal, methods"),
    Claim("sep-CMA-ES beats random search", _against("random search", ours="sep-CMA-ES"),
          by.over_budgets("random search", "random search, paper", "the paper's numbers in our units"), "methods"),
    Claim("sep-CMA-ES beats REINFORCE", _against("REINFORCE", ours="sep-CMA-ES"),
          by.over_budgets("REINFORCE", "REINFORCE, lr 1e-5", "lr 1e-5; the paper's is not published"), "methods"),
    Claim("... where reward is rare", "an argument in words", lambda r: by.rare_reward(r, False), "winner_map"),
    Claim("... and one decision must be kept over turns", "-", lambda r: by.rare_reward(r, True), "winner_map"),
    Claim("sep-CMA-ES beats SFT", _against("SFT", ours="sep-CMA-ES"),
          by.over_budgets("SFT, ordered search", "SFT, single step, paper", "the paper's numbers in our units"),
          "methods"),
    Claim("roles emerge: as what is spoken depends on turn and family", "no figure or number",
          by.depends(("turn", "role"), ("family", "role")), "emergence"),
    Claim("specialists emerge: who speaks depends on the family", "shares of agents by benchmark",
          by.depends(("family", "agent")), "emergence"),
    Claim("three roles beat none", _against("no roles: Workers only"), by.without("no roles: Workers only"),
          "ablations"),
    Claim("the Thinker is needed", _against("no Thinker"), by.without("no Thinker"), "ablations"),
    Claim("the Verifier is needed", "not tried", by.without("no Verifier"), "ablations"),
    Claim("SVF helps", _against("no SVF"), by.svf, "evaluation, ablations"),
    Claim("the penultimate token beats the last", _against("reads the last token"), by.last_token, "ablations"),
    Claim("the linear head beats the other heads", _against(*HEADS, ours="sep-CMA-ES"), by.heads(HEADS),
          "ablations, heads"),
    Claim("more turns help", "LCB at full power .823 to .863 for 2 to 6", by.turns, "ablations"),
    Claim("a pool beats one agent in all its roles",
          f"{quoted('full'):.2f} against at most {max(QUOTED_AGENTS.values()):.2f}", by.pool, "ablations"),
    Claim("a static choice per task would do", "asked by reviewers, open", by.static, "evaluation"),
    Claim("it transfers to harder questions", "unseen tasks: 54.21, at most 52.34 alone", by.transfer,
          "emergence, transfer"),
]  # fmt: skip


def holm(p: Sequence[float], level: float = LEVEL) -> float:
    """The largest p that Holm's step-down correction of all these tests still rejects; 0 if it rejects none."""
    cut = 0.0
    for k, x in enumerate(sorted(p)):
        if x > level / (len(p) - k):
            break
        cut = x
    return cut


def claims(folder: Path = RUNS) -> pd.DataFrame:
    """The table of claims, computed from the recorded files of a folder.

    holds: "yes" if the measured difference lies beyond two standard errors and a t-test at 5 %, paired by seed, "no" if
    it does the other way, else "open". Several rivals, numbers of turns or mutual informations: "yes" only if all are
    so, "in part" if some, "no" if none and one is the other way. Methods: against the tuned rival at each budget, "yes"
    or "no" if all budgets that decide say so, "in part" if they contradict each other; rare reward (dice earn less than
    0.01) counts worlds and budgets in the same way, a difference below 0.01 decides nothing. Definition 1 of
    separability: "yes" if the smallest of its three forms is below 1 in all trained heads, "no" if in none; its
    Hessians are exact. The diagonal: two studies must agree. The static chain, also in transfer: unpaired, its error
    over the questions added. A row that cannot test its claim is "open". No test is corrected for their number; `holm`
    is the verdict if all tests of the table are, by Holm's method.

    Returns: columns claim, paper (quoted), here (value ± standard error, n), holds, holm, tests (how many feed the
    row), source (files of data/runs). Raises: UserError if a file is missing or damaged.
    """
    recorded, rows = Recorded(folder), []
    for c in CLAIMS:
        before = len(recorded.tests)
        text, holds = _measured(c, recorded)
        rows.append([c.claim, c.paper, text, holds, "", len(recorded.tests) - before, c.source])
    recorded.level = holm(recorded.tests)
    for row, c in zip(rows, CLAIMS, strict=True):
        row[4] = _measured(c, recorded)[1]
    return pd.DataFrame(rows, columns=["claim", "paper", "here", "holds", "holm", "tests", "source"])


def _measured(c: Claim, recorded: Recorded) -> Found:
    try:
        return c.measure(recorded)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as e:
        text = f"{recorded.folder} lacks what the claim {c.claim!r} needs ({type(e).__name__}: {e})"
        raise UserError(f"{text}: run the studies {c.source} whole, without --quick.") from None


def as_text(table: pd.DataFrame) -> str:
    """The table of `claims` as lines: verdict, claim and what the paper has; below it what was measured here."""
    lines = []
    for r in table.itertuples():
        lines.append(f"{r.holds.upper():8} {r.claim} (paper: {r.paper})")
        lines.append(textwrap.fill(r.here, 110, initial_indent=" " * 9, subsequent_indent=" " * 9))
    changed = [f"{r.claim}: {r.holm.upper()}" for r in table.itertuples() if r.holm != r.holds]
    text = f"{table['tests'].sum()} tests feed this table, uncorrected. With Holm's correction of all of them "
    lines.append(textwrap.fill(text + ("; ".join(changed) or "every verdict stays") + ".", 119))
    return "\n".join(lines)
