"""What the recorded runs say to each of the paper's claims: a sentence and a verdict, computed from data/runs alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from .baseline_tables import LEAST, winners
from .files import DATA
from .recorded import Recorded, mean_se, pair, said
from .tasks import HARD_FAMILIES

SKILLS = DATA / "tiny_pool" / "skills.csv"
SPLIT = "agents, roles"  # the partition of the head's outputs that the claims are about
RELEASED = 32_640  # episodes of the released run
KEPT = "every turn"  # in the name of a world that is right only if every turn is (tree_settings.KeptTree)
RARE = 0.01  # reward of the uniform policy below which lesson 09's worlds count as rare
AXES = ("family", "turn", "agent", "role")  # of `counts` in emergence.jsonl
Found = tuple[str, str]  # what was measured, in words; yes, no, in part or open
Measure = Callable[[Recorded], Found]


def separability(r: Recorded) -> Found:
    """The smallest of the three forms of Definition 1 must be below 1. Each Hessian is exact: no test, a count."""
    rows = r.frame("separability-head")
    rows = rows[(rows["kind"] == "definition 1") & (rows["partition"] == SPLIT)]
    least = rows[rows["generation"] == rows["generation"].max()][["B1", "B2", "B3_best"]].min(axis=1)
    low = int((least < 1).sum())
    text = "smallest of B1, B2, B3 {:.1f} ± {:.1f} (n = {})".format(*mean_se(least))
    holds = "no" if low == 0 else "yes" if low == len(least) else "in part"
    return f"{text}, least {least.min():.2f}; below 1 in {low} of {len(least)} trained heads", holds


def coupling(r: Recorded) -> Found:
    """ε between agents and roles against two controls: random blocks of one head, other heads with these blocks."""
    every = r.frame("separability-head")
    off = every[(every["kind"] == "coupling") & (every["source"] == "exact") & (every["block"] != every["other"])]
    off = off[off["generation"] == off["generation"].max()]
    own, chance = (off[off["partition"] == p].groupby("seed")["eps"].mean() for p in (SPLIT, f"random, like {SPLIT}"))
    sure = every[(every["control"] == "as sure") & (every["partition"] == SPLIT)].groupby("seed")["eps"].mean()
    each = {"random blocks": pair(chance, own), "untaught heads as sure": pair(sure, own)}
    text = "ε = {:.2f} ± {:.2f}; ".format(*mean_se(own)[:2])
    return text + "; ".join(f"{name} − it {said(d)}" for name, d in each.items()), r.all_of(each.values())


def diagonal(r: Recorded) -> Found:
    """Two studies with different seeds: they must agree."""
    rows = r.frame("separability-diagonal")
    last = rows[rows["generation"] == rows["generation"].max()].pivot_table(index="seed", columns="way", values="test")
    one = pair(last["adapts"], last["frozen"])
    two = pair(*(r.methods.loc[name, RELEASED] for name in ("sep-CMA-ES", "sep-CMA-ES, frozen diagonal")))
    first, second = r.judge(one), r.judge(two)
    text = f"adapting − frozen: {said(one)}, and in another study {said(two)}"
    return text, first if first == second else "open"


def _tuned(r: Recorded, name: str, budget: float) -> str:
    """The method's name with the settings tuned for 3 K or 33 K episodes, whichever is nearer in proportion."""
    known = r.methods.index.get_level_values("method")
    names = (f"{name}, tuned for {'3 K' if budget < 10_000 else '33 K'}", f"{name}, tuned", name)
    return next(n for n in names if n in known)


def _counted(results: Iterable[str]) -> Found:
    """(ahead, behind, neither in words; yes or no if all that decide say so, in part if they contradict)."""
    results = list(results)
    ahead, behind = results.count("yes"), results.count("no")
    holds = "in part" if ahead and behind else "yes" if ahead else "no" if behind else "open"
    return f"ahead in {ahead}, behind in {behind}, neither in {len(results) - ahead - behind}", holds


def over_budgets(rival: str, untuned: str, settings: str) -> Measure:
    """sep-CMA-ES against a tuned rival at each budget. The untuned one is told, not judged: a rival that nobody tuned
    shows nothing.

    settings: what the untuned rival's settings are. Lengths of states and steps are other ones here than in the paper
    (sigma0 is scaled for that), so its numbers are not its method.
    """

    def measure(r: Recorded) -> Found:
        ours, theirs = ({b: _tuned(r, name, b) for b in r.methods.columns} for name in ("sep-CMA-ES", rival))
        each = {b: pair(r.methods.loc[ours[b], b], r.methods.loc[theirs[b], b]) for b in r.methods.columns}
        each = {b: d for b, d in each.items() if d is not None}
        text, holds = _counted(map(r.judge, each.values()))
        text += f" of {len(each)} budgets; at {RELEASED:,} episodes {said(each.get(RELEASED))}"
        rows = r.frame("methods")
        used = rows[(rows["method"] == theirs[RELEASED]) & (rows["budget"] == RELEASED)]["episodes"]
        if used.max() < 0.9 * RELEASED:  # a learner in batches ends a little below its budget
            text += f", of which the rival used {used.min():,.0f} to {used.max():,.0f}"
        weak = pair(r.methods.loc[ours[RELEASED], RELEASED], r.methods.loc[untuned, RELEASED])
        return f"{text}; not judged, the rival untuned ({settings}): {said(weak)}", holds

    return measure


def rare_reward(r: Recorded, kept: bool) -> Found:
    """kept: in the worlds that are right only if one decision is kept to the end, or in the others."""
    rows = r.frame("winner_map")
    rows = rows[(rows["tuning"] == "tuned") & (rows["uniform"] < RARE) & (rows["world"].str.contains(KEPT) == kept)]
    cells = winners(rows)  # REINFORCE − sep-CMA-ES
    results = [
        "open" if abs(c["difference"]) < LEAST else {"yes": "no", "no": "yes"}.get(v, v)
        for c in cells.to_dict("records")
        for v in [r.judge(c)]
    ]
    text, holds = _counted(results)
    many = f"{len(cells)} worlds and budgets where dice earn less than {RARE}"
    seeds = int(cells["n"].min()) if len(cells) else 0
    return f"{text} of {many} ({seeds} seeds each)", holds


def mutual_information(counts: np.ndarray) -> float:
    """Mutual information of rows and columns of a table of counts, in bits; plug-in, so biased upwards."""
    p = counts / counts.sum()
    independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    seen = p > 0
    return float((p[seen] * np.log2(p[seen] / independent[seen])).sum())


def depends(*pairs: tuple[str, str]) -> Measure:
    """The bits between two of AXES must rise, for each pair, from the uniform policy to the last generation.

    The uniform policy's bits are the bias of so many turns. With the families dealt anew among the episodes the bits
    between family and (agent, role) are recorded (`mi_chance`); those of family and agent, or role, cannot be more.
    """

    def measure(r: Recorded) -> Found:
        rows = r.frame("emergence").query("what == 'generation'")
        last = rows[rows["generation"] == rows["generation"].max()].set_index("seed")
        first = rows[rows["generation"] == 0].set_index("seed")
        each, texts = [], []
        for names in pairs:
            start, end = (t["counts"].map(lambda c, n=names: _bits(c, *n)) for t in (first, last))
            each.append(pair(end, start))
            ends = f"first {start.mean():.3f}, least of the last {end.min():.3f}"
            texts.append(f"{' and '.join(names)} {said(each[-1])}, {ends}")
        most, chance = last["mi_most"].mean(), last["mi_chance"].mean()
        limits = f"families dealt anew give at most {chance:.3f}, knowing the family gives {most:.2f}"
        return f"bits, last generation − first: {'; '.join(texts)}; {limits}", r.all_of(each)

    return measure


def _bits(counts: list, a: str, b: str) -> float:
    table = np.asarray(counts, dtype=float)
    return mutual_information(table.sum(tuple(i for i, axis in enumerate(AXES) if axis not in (a, b))))


def without(name: str) -> Measure:
    """`full` must be ahead of the variant."""

    def measure(r: Recorded) -> Found:
        d = pair(r.variant("full"), r.variant(name))
        return f"full − {name}: {said(d)}", r.judge(d)

    return measure


def last_token(r: Recorded) -> Found:
    """Told, never judged: the model's training texts end before the last token (slm_training.corpus)."""
    d = pair(r.variant("full"), r.variant("reads the last token"))
    why = "no test of the claim: our small LM was never trained on the last token"
    return f"full − reads the last token: {said(d)}; {why}", "open"


def svf(r: Recorded) -> Found:
    d = pair(r.with_svf, r.variant("full"))
    return f"with − without {said(d)}", r.judge(d)


def heads(names: Iterable[str]) -> Measure:
    """The linear head, with a σ0 of its own as the others have, must be ahead of each of the variants."""

    def measure(r: Recorded) -> Found:
        each = {name: pair(r.variant("head: linear"), r.variant(name)) for name in names}
        text = "; − ".join(f"{name.partition(': ')[2]} {said(d)}" for name, d in each.items())
        return f"linear − {text}; each with the σ0 chosen on other seeds", r.all_of(each.values())

    return measure


def pool(r: Recorded) -> Found:
    """`full` must be ahead of each agent in all roles."""
    agents = pd.read_csv(SKILLS)["agent"].unique()
    text, holds = heads([f"one agent, all roles: {a}" for a in range(len(agents))])(r)
    return re.sub(r"− (\d) ", lambda m: f"− {agents[int(m[1])]} ", text), holds


def turns(r: Recorded) -> Found:
    """Each time the larger number of turns must be ahead; `full` has five."""
    five, other = r.variant("full"), {k: r.variant(f"at most {k} turns") for k in (2, 3, 4, 6)}
    each = {f"5 − {k}": pair(five, other[k]) for k in (2, 3, 4)} | {"6 − 5": pair(other[6], five)}
    return "turns " + "; ".join(f"{name}: {said(d)}" for name, d in each.items()), r.all_of(each.values())


def _over_static(trained: pd.Series, fixed: pd.Series) -> dict:
    """trained − static chain. The seeds share the questions: the chain's error over these counts beside theirs."""
    from scipy.stats import t

    mean, se, n = mean_se(trained)
    d, error = mean - fixed["value"], float(np.hypot(se, fixed["se"]))
    p = float(2 * t.sf(abs(d) / error, n - 1)) if error else float(d == 0)
    return {"difference": d, "se": error, "n": n, "p": p}


def static(r: Recorded) -> Found:
    """The static choice must be ahead of the trained coordinators."""
    d = _over_static(r.with_svf, r.evaluation.loc["static chain per family"])
    d["difference"] *= -1
    ceiling = r.evaluation["value"]["fixed chain per kind (ceiling)"]
    return f"static − trained {said(d)}; a chain per kind, told the kind, {ceiling:.3f}", r.judge(d)


def transfer(r: Recorded) -> Found:
    """Ahead of the chains chosen on the easy families; the paper's bar, each agent alone, is no bar here.

    The paper's tasks are new ones, ours are harder, of known kinds.
    """
    rows = r.frame("emergence").query("what == 'transfer'")
    rows = rows.pivot_table(index="seed", columns="to", values="accuracy")[list(HARD_FAMILIES)].mean(axis=1)
    others = r.evaluated("transfer")  # the same questions: `evaluate --family`, seed and number as in the study
    d, value = _over_static(rows, others.loc["static chain per family"]), others["value"]
    text = (
        f"three harder families {rows.mean():.3f}; − static chain per easy family {said(d)}; told the kind "
        f"{value['fixed chain per kind (ceiling)']:.3f}, best agent's single call "
        f"{value.filter(regex=', one call$').max():.3f}, dice {value['random coordinator']:.3f}"
    )
    return text, r.judge(d)
