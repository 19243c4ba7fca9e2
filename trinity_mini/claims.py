"""The paper's claims against the recorded runs: one table, computed from data/runs alone (lesson 10, README)."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from .baseline_tables import winners
from .files import DATA, UserError
from .paired import beyond, paired
from .study import frame
from .tasks import HARD_FAMILIES

RUNS, SKILLS = DATA / "runs", DATA / "tiny_pool" / "skills.csv"
# Quoted from the paper's tables: LCB, MATH500, MMLU, RLPR, in per cent.
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
}
QUOTED_AGENTS = {"Claude": 61.12, "Gemini": 62.99, "GPT-5": 65.95}  # one agent in all roles, mean of the four
SPLIT = "agents, roles"  # the partition of the head's outputs that the claims are about
RELEASED = 32_640  # episodes of the released run: where methods are judged
KEPT = "every turn"  # in the name of a world that is right only if every turn is (tree_settings.KeptTree)
RARE = 0.01  # reward of the uniform policy below which lesson 09's worlds count as rare
Found = tuple[str, str]  # what was measured, in words; yes, no, in part or open
Measure = Callable[["Recorded"], Found]


def quoted(name: str) -> float:
    """Mean of the paper's four benchmarks, in per cent. Raises: KeyError if the paper has no such row."""
    return round(float(np.mean(QUOTED[name])), 2)


def verdict(d: dict | None) -> str:
    """Of `paired`'s result: is the first ahead ("yes"), behind ("no"), or neither beyond chance ("open")?"""
    if d is None or not beyond(d["difference"], d["se"], d["n"]):
        return "open"
    return "yes" if d["difference"] > 0 else "no"


def pair(a: pd.Series, b: pd.Series) -> dict | None:
    """`paired` of two series over the seeds (index) that both have; None for fewer than two."""
    both = a.index.intersection(b.index)
    return paired(a[both], b[both]) if len(both) > 1 else None


def said(d: dict | None) -> str:
    """A paired difference in words."""
    return "not recorded" if d is None else f"{d['difference']:+.3f} ± {d['se']:.3f} (n = {d['n']})"


def mean_se(values: Iterable[float]) -> tuple[float, float, int]:
    """Mean, its standard error (NaN for a single value), n."""
    x = np.asarray(list(values), dtype=float)
    return float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else float("nan"), len(x)


class Recorded:
    """The recorded files of a folder, each read when first asked for."""

    def __init__(self, folder: Path = RUNS) -> None:
        self.folder = Path(folder)

    @cached_property
    def ablations(self) -> pd.DataFrame:
        return frame("ablations", self.folder)

    @cached_property
    def evaluation(self) -> pd.DataFrame:
        """Accuracies over all families by name: columns value, se, n."""
        path = self.folder / "evaluation.json"
        try:
            rows = pd.DataFrame(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise UserError(f"{path} cannot be read ({e}): write it with the command `evaluate --json`.") from None
        return rows[(rows["unit"] == "accuracy") & (rows["family"] == "all")].set_index("name")

    @cached_property
    def with_svf(self) -> pd.Series:
        """Accuracy of the recorded trainings with SVF, by seed."""
        mine = self.evaluation["value"].filter(regex=r"^trained: mini-\d+$")
        return mine.set_axis(mine.index.str.extract(r"(\d+)$", expand=False).astype(int))

    @cached_property
    def methods(self) -> pd.DataFrame:
        """Held-out J: a line a seed and method, a column a budget."""
        rows = frame("methods", self.folder).dropna(subset=["budget"])
        return rows.pivot_table(index=["method", "seed"], columns="budget", values="test")

    def variant(self, name: str, selection: str = "as trained") -> pd.Series:
        """Accuracy of a variant by seed; empty if it was not recorded."""
        rows = self.ablations
        rows = rows[(rows["variant"] == name) & (rows["selection"] == selection)]
        return rows.set_index("seed")["accuracy"].sort_index()


def separability(r: Recorded) -> Found:
    every = frame("separability-head", r.folder)
    rows = every[every["generation"] == every["generation"].max()]
    least = rows[(rows["kind"] == "definition 1") & (rows["partition"] == SPLIT)]
    least = least.set_index("seed")[["B1", "B2", "B3_best"]].min(axis=1)
    off = rows[(rows["kind"] == "coupling") & (rows["source"] == "exact") & (rows["block"] != rows["other"])]
    own, chance = (off[off["partition"] == p].set_index("seed")["eps"] for p in (SPLIT, f"random, like {SPLIT}"))
    sure = every[(every["control"] == "as sure") & (every["partition"] == SPLIT)]
    untaught = sure.groupby("seed")["eps"].mean()
    definition = verdict(pair(pd.Series(1.0, least.index), least))
    blocks = verdict(pair(chance, own))
    text = (
        "smallest of B1, B2, B3 {:.1f} ± {:.1f}; {} ε = {:.2f} ± {:.2f}, random blocks {:.2f} ± {:.2f}, "
        "untaught heads as sure {:.2f} ± {:.2f} (n = {})"
    ).format(*mean_se(least)[:2], SPLIT, *mean_se(own)[:2], *mean_se(chance)[:2], *mean_se(untaught))
    return text, "in part" if definition != "yes" and blocks == "yes" else definition


def diagonal(r: Recorded) -> Found:
    """Two studies with different seeds: they must agree."""
    rows = frame("separability-diagonal", r.folder)
    last = rows[rows["generation"] == rows["generation"].max()].pivot_table(index="seed", columns="way", values="test")
    one = pair(last["adapts"], last["frozen"])
    two = pair(*(r.methods.loc[name, RELEASED] for name in ("sep-CMA-ES", "sep-CMA-ES, frozen diagonal")))
    holds = verdict(one) if verdict(one) == verdict(two) else "open"
    return f"adapting − frozen: {said(one)}, and in another study {said(two)}", holds


def _tuned(r: Recorded, name: str, budget: float) -> pd.Series:
    """Of the settings tuned for 3 K and for 33 K episodes the one whose budget is nearer in proportion."""
    tuned = f"{name}, tuned for {'3 K' if budget < 10_000 else '33 K'}"
    return r.methods.loc[tuned if tuned in r.methods.index else name, budget]


def _counted(results: Iterable[str]) -> tuple[str, str]:
    """(ahead, behind, neither in words; the verdict: yes or no only if nothing speaks against it)."""
    results = list(results)
    ahead, behind = results.count("yes"), results.count("no")
    holds = "in part" if ahead and behind else "yes" if ahead else "no" if behind else "open"
    return f"ahead in {ahead}, behind in {behind}, neither in {len(results) - ahead - behind}", holds


def over_budgets(rival: str, weak: str) -> Measure:
    """sep-CMA-ES against a tuned rival at each budget, and against the paper's form of it, judged at RELEASED."""

    def measure(r: Recorded) -> Found:
        results = {b: pair(_tuned(r, "sep-CMA-ES", b), _tuned(r, rival, b)) for b in r.methods.columns}
        text, over_all = _counted(verdict(d) for d in results.values())
        against = pair(_tuned(r, "sep-CMA-ES", RELEASED), r.methods.loc[weak, RELEASED])
        holds = verdict(results[RELEASED])
        if holds == "yes" and over_all == "in part" or holds != "yes" and verdict(against) == "yes":
            holds = "in part"
        text += f" of {len(results)} budgets; at {RELEASED:,} episodes {said(results[RELEASED])}"
        return f"{text}, against {weak}: {said(against)}", holds

    return measure


def rare_reward(r: Recorded, kept: bool) -> Found:
    """kept: in the worlds that are right only if one decision is kept to the end, or in the others."""
    rows = frame("winner_map", r.folder)
    rows = rows[(rows["tuning"] == "tuned") & (rows["uniform"] < RARE) & (rows["world"].str.contains(KEPT) == kept)]
    cells = winners(rows)
    text, holds = _counted(cells["winner"].map({"b": "yes", "a": "no", "nobody": "open"}))
    many = f"{len(cells)} worlds and budgets where dice earn less than {RARE}"
    seeds = int(cells["n"].min()) if len(cells) else 0
    return f"{text} of {many} ({seeds} seeds each)", holds


def roles_emerge(r: Recorded) -> Found:
    rows = frame("emergence", r.folder).query("what == 'generation'")
    bits = rows.pivot_table(index="seed", columns="generation", values="mi_bits")
    d = pair(bits[bits.columns[-1]], bits[0])
    last = rows[rows["generation"] == bits.columns[-1]]
    text = f"bits between family and (agent, role): {said(d)} from first to last generation; at most "
    return f"{text}{last['mi_most'].mean():.2f}, chance {last['mi_chance'].mean():.3f}", verdict(d)


def without(name: str) -> Measure:
    """`full` must be ahead of the variant."""

    def measure(r: Recorded) -> Found:
        d = pair(r.variant("full"), r.variant(name))
        return f"full − {name}: {said(d)}", verdict(d)

    return measure


def svf(r: Recorded) -> Found:
    d = pair(r.with_svf, r.variant("full"))
    return f"with − without {said(d)}", verdict(d)


def _all_of(r: Recorded, names: Iterable[str]) -> Found:
    """`full` must be ahead of each of several variants."""
    each = {name: pair(r.variant("full"), r.variant(name)) for name in names}
    results = {*map(verdict, each.values())}
    holds = min(results) if len(results) == 1 else "in part" if "yes" in results else "no"
    return "full − " + "; − ".join(f"{name.partition(': ')[2]} {said(d)}" for name, d in each.items()), holds


def pool(r: Recorded) -> Found:
    agents = pd.read_csv(SKILLS)["agent"].unique()
    text, holds = _all_of(r, [f"one agent, all roles: {a}" for a in range(len(agents))])
    return re.sub(r"− (\d) ", lambda m: f"− {agents[int(m[1])]} ", text), holds


def static(r: Recorded) -> Found:
    """The static choice must be at least as good; its error over the questions counts beside that of the seeds."""
    mean, se, n = mean_se(r.with_svf)
    fixed = r.evaluation.loc["static chain per family"]
    d, error = fixed["value"] - mean, float(np.hypot(se, fixed["se"]))
    text = f"static − trained {d:+.3f} ± {error:.3f} (n = {n}); a chain per kind, told the kind, "
    holds = verdict({"difference": d, "se": error, "n": n})
    return text + f"{r.evaluation['value']['fixed chain per kind (ceiling)']:.3f}", holds


def transfer(r: Recorded) -> Found:
    """The paper's bar: better than each agent alone. Its tasks are new ones, ours are harder, of known kinds."""
    rows = frame("emergence", r.folder).query("what == 'transfer'")
    rows = rows.pivot_table(index="seed", columns="to", values="accuracy")[list(HARD_FAMILIES)].mean(axis=1)
    skills = pd.read_csv(SKILLS).query("role == 'worker' and kind == 'all'")
    alone = skills[skills["family"].isin(HARD_FAMILIES)].groupby("agent")["value"].mean().max()
    d = pair(rows, pd.Series(alone, rows.index))
    return f"three harder families {mean_se(rows)[0]:.3f}; − best agent's single call {said(d)}", verdict(d)


def turns(r: Recorded) -> Found:
    each = {k: pair(r.variant("full"), r.variant(f"at most {k} turns")) for k in (2, 3, 4, 6)}
    return "5 turns − " + "; − ".join(f"{k} {said(d)}" for k, d in each.items()), verdict(each[2])


@dataclass(frozen=True)
class Claim:
    """What is claimed, what the paper shows for it, how it is measured here, and in which files of data/runs."""

    claim: str
    paper: str
    measure: Measure
    source: str


def _against(name: str) -> str:
    return f"{quoted('full'):.2f} against {quoted(name):.2f}"


CLAIMS = [
    Claim("the reward is block-ε-separable", "assumed, never measured", separability, "separability-head"),
    Claim("adapting the diagonal pays", "in theory (Proposition 2)", diagonal, "separability-diagonal, methods"),
    Claim("sep-CMA-ES beats random search", _against("random search"),
          over_budgets("random search, tuned", "random search, paper"), "methods"),
    Claim("sep-CMA-ES beats REINFORCE", _against("REINFORCE"), over_budgets("REINFORCE", "REINFORCE, lr 1e-5"),
          "methods"),
    Claim("... where reward is rare", "an argument in words", lambda r: rare_reward(r, False), "winner_map"),
    Claim("... and one decision must be kept over turns", "-", lambda r: rare_reward(r, True), "winner_map"),
    Claim("sep-CMA-ES beats SFT", _against("SFT"), over_budgets("SFT, ordered search", "SFT, single step, paper"),
          "methods"),
    Claim("roles emerge", "no figure or number", roles_emerge, "emergence"),
    Claim("three roles beat none", _against("no roles: Workers only"), without("no roles: Workers only"), "ablations"),
    Claim("the Thinker is needed", _against("no Thinker"), without("no Thinker"), "ablations"),
    Claim("the Verifier is needed", "not tried", without("no Verifier"), "ablations"),
    Claim("SVF helps", _against("no SVF"), svf, "evaluation, ablations"),
    Claim("the penultimate token beats the last", _against("reads the last token"), without("reads the last token"),
          "ablations"),
    Claim("the linear head beats the other heads", "70.44 against at most "
          f"{max(quoted(n) for n in QUOTED if n.startswith('head')):.2f}",
          lambda r: _all_of(r, [n for n in QUOTED if n.startswith("head")]), "ablations"),
    Claim("more turns help (5 against 2)", "LCB .823 to .863 for 2 to 6", turns, "ablations"),
    Claim("a pool beats one agent in all its roles",
          f"{quoted('full'):.2f} against at most {max(QUOTED_AGENTS.values()):.2f}", pool, "ablations"),
    Claim("a static choice per task would do", "asked by reviewers, open", static, "evaluation"),
    Claim("it transfers to harder questions", "unseen tasks: 54.21, at most 52.34 alone", transfer, "emergence"),
]  # fmt: skip


def claims(folder: Path = RUNS) -> pd.DataFrame:
    """The table of claims, computed from the recorded files of a folder.

    holds: "yes" if the measured difference lies beyond two standard errors and a paired t-test at 5 %, "no" if it does
    the other way, else "open". Several rivals: "yes" only if it is ahead of all, "in part" if of some, "no" if of none
    and behind one. Methods are judged at the released run's budget: "in part" where a smaller budget says the opposite,
    or where the paper's form of the rival is beaten and the tuned one is not. Separability is "in part" where the
    definition fails while agents and roles are coupled less than random blocks.

    Returns: columns claim, paper (quoted), here (value ± standard error, n), holds, source (files of data/runs).
    Raises: UserError if a file is missing or damaged.
    """
    recorded, rows = Recorded(folder), []
    for c in CLAIMS:
        try:
            rows.append((c.claim, c.paper, *c.measure(recorded), c.source))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:
            text = f"{recorded.folder} lacks what the claim {c.claim!r} needs ({type(e).__name__}: {e})"
            raise UserError(f"{text}: run the studies {c.source} whole, without --quick.") from None
    return pd.DataFrame(rows, columns=["claim", "paper", "here", "holds", "source"])


def as_text(table: pd.DataFrame) -> str:
    """The table of `claims` as lines: verdict, claim and what the paper has; below it what was measured here."""
    lines = []
    for r in table.itertuples():
        lines.append(f"{r.holds.upper():8} {r.claim} (paper: {r.paper})")
        lines.append(textwrap.fill(r.here, 110, initial_indent=" " * 9, subsequent_indent=" " * 9))
    return "\n".join(lines)
