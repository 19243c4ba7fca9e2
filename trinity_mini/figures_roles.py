"""Figures of what is recorded on roles: the film, the curves, the seeds, ablations, transfer (lesson 10)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from numpy.typing import NDArray
from scipy.stats import t as student

from .claims import RUNS, Recorded, mean_se
from .plots import COLOURS
from .role_tables import against_full
from .study import frame
from .tasks import FAMILIES, HARD_FAMILIES

ORDER = ["Thinker", "Worker", "Verifier"]  # as an episode usually goes
INDEX = {"Worker": 0, "Thinker": 1, "Verifier": 2}  # of `Role`
FRAMES = (0, 6, 15, 30, 60)
STYLES = {"yes": ("o", "#0072B2"), "no": ("s", "#B34700"), "open": ("D", "#999999"), "": ("D", "#999999")}


@functools.cache
def agents(folder: Path = RUNS) -> tuple[str, ...]:
    """Names of the pool's agents, from a recorded run."""
    return tuple(json.loads((Path(folder) / "mini-1" / "config.json").read_text(encoding="utf-8"))["agents"])


def generations(emergence: pd.DataFrame) -> pd.DataFrame:
    """The rows of `emergence` that look at a generation."""
    return emergence[emergence["what"] == "generation"].astype({"generation": int})


def counts_at(emergence: pd.DataFrame, generation: int, seed: int) -> NDArray:
    """Turns (family, turn, agent, role) of 800 held-out episodes. Raises: ValueError if they were not recorded."""
    rows = generations(emergence)
    rows = rows[(rows["generation"] == generation) & (rows["seed"] == seed)]
    if len(rows) != 1:
        raise ValueError(f"generation {generation} of seed {seed} was not recorded.")
    return np.array(rows["counts"].iloc[0])


# ---- the film --------------------------------------------------------------------------------------------------------


def film(emergence: pd.DataFrame, seed: int = 2, frames: Sequence[int] = FRAMES) -> Figure:
    """Who speaks as what at which turn: a line of pictures a family, a column a generation; dark is often."""
    figure = Figure(figsize=(9.6, 9.0 if len(frames) > 1 else 3.4), layout="constrained")
    shape = (len(FAMILIES), len(frames)) if len(frames) > 1 else (1, len(FAMILIES))
    axes = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    if len(frames) == 1:
        axes = axes.T
    names = agents()
    for column, generation in enumerate(frames):
        counts = counts_at(emergence, generation, seed)
        for row, family in enumerate(FAMILIES):
            ax = axes[row, column]
            image = _share(ax, counts[row])
            title = family if len(frames) == 1 else f"generation {generation}" if row == 0 else ""
            ax.set_title(title, fontsize=10)
            if column == 0 and len(frames) > 1:
                ax.set_ylabel(family, fontsize=11, weight="bold")
    for ax in axes[:, 0] if len(frames) > 1 else axes[:1, 0]:
        ticks = range(len(names) * 3)
        ax.set_yticks(ticks, [f"{n} {r[0]}" for r in ORDER for n in names], fontsize=7)
    for ax in axes[-1] if len(frames) > 1 else axes[:, 0]:
        ax.set_xlabel("turn", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.5 if len(frames) > 1 else 1.0, label="share of the family's episodes")
    figure.suptitle(f"seed {seed}; T Thinker, W Worker, V Verifier", fontsize=10)
    return figure


def _share(ax: Axes, counts: NDArray):
    """One picture: counts (turn, agent, role) as shares of the episodes, speakers down, turns across."""
    episodes = max(counts[0].sum(), 1)
    picture = np.concatenate([counts[:, :, INDEX[r]] for r in ORDER], axis=1).T / episodes
    image = ax.imshow(picture, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for k in (1, 2):
        ax.axhline(k * counts.shape[1] - 0.5, color="#B34700", lw=1, ls="--")
    ax.set_xticks(range(len(counts)), range(1, len(counts) + 1), fontsize=8)
    return image


# ---- curves over training --------------------------------------------------------------------------------------------


def emergence_curves(emergence: pd.DataFrame) -> Figure:
    """Specialisation, accuracy and length of episodes over training: all seeds thin, their mean ± s.e. thick."""
    rows = generations(emergence)
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    panels = {"mi_bits": "bits: family and (agent, role)", "accuracy": "accuracy", "turns": "turns an episode"}
    for ax, (column, label) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        table = rows.pivot_table(index="generation", columns="seed", values=column)
        ax.plot(table.index, table, color="#BBBBBB", lw=0.8)
        se = table.std(axis=1, ddof=1) / table.count(axis=1) ** 0.5
        ax.errorbar(table.index, table.mean(axis=1), se, color="#0072B2", marker="o", ms=3, lw=1.8, capsize=2)
        ax.set(xlabel="generation", ylabel=label)
        ax.grid(alpha=0.3)
        if column == "mi_bits":
            chance = rows.groupby("generation")["mi_chance"].mean()
            ax.plot(chance.index, chance, color="#B34700", ls="--", lw=1.5)
            ax.annotate("chance", (30, chance.iloc[-1]), (30, 0.04), color="#B34700", fontsize=9, ha="center")
            ax.set_ylim(0, None)
    figure.suptitle(f"{rows['seed'].nunique()} seeds; thick: mean ± s.e.", fontsize=10)
    return figure


# ---- do the seeds agree? ---------------------------------------------------------------------------------------------


def seed_map(emergence: pd.DataFrame) -> Figure:
    """Who has a role in which family, seed by seed: agents with a fifth of its turns; grey is the role's own share."""
    rows, names = generations(emergence), agents()
    last = rows[rows["generation"] == rows["generation"].max()].sort_values("seed")
    figure = Figure(figsize=(9.6, 0.9 + 0.36 * len(last)), layout="constrained")
    for ax, role in zip(figure.subplots(1, 3, sharey=True), ORDER, strict=True):
        turns = np.array([np.array(c).sum(axis=1) for c in last["counts"]])  # (seed, family, agent, role)
        mine = turns[..., INDEX[role]]
        share = mine.sum(-1) / turns.sum((-1, -2))
        ax.imshow(share, cmap="Greys", vmin=0, vmax=1.2, aspect="auto")
        for (i, j), s in np.ndenumerate(share):
            many = mine[i, j] / max(mine[i, j].sum(), 1)
            who = "+".join(names[a] for a in np.argsort(-many, kind="stable") if many[a] >= 0.2)
            ax.text(
                j,
                i,
                who.replace("+", "\n", 1) if s > 0.01 else "-",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if s > 0.65 else "black",
                linespacing=0.9,
            )
        ax.set(title=role, xticks=range(len(FAMILIES)), xticklabels=FAMILIES)
        ax.set_yticks(
            range(len(last)), [f"seed {s}: {a:.2f}" for s, a in zip(last["seed"], last["accuracy"], strict=True)]
        )
    return figure


# ---- who follows whom ------------------------------------------------------------------------------------------------


def transition_graph(graphs: dict[str, pd.DataFrame], least: float = 0.03) -> Figure:
    """Speakers as nodes, transitions as arrows as thick as they are frequent; one picture a title.

    graphs: counts, lines `before` (or start), columns `after` (or end), a speaker being `agent Role`.
    least: arrows of a smaller share of the episodes are left out.
    """
    figure = Figure(figsize=(9.6, 5.0), layout="constrained")
    for ax, (title, counts) in zip(figure.subplots(1, len(graphs), squeeze=False)[0], graphs.items(), strict=True):
        episodes = counts["end"].sum()
        names = sorted({s.split()[0] for s in counts.columns if s != "end"})
        place = {f"{n} {r}": (1 + c, len(names) - 1 - k) for c, r in enumerate(ORDER) for k, n in enumerate(names)}
        place |= {"start": (0.15, (len(names) - 1) / 2), "end": (3.85, (len(names) - 1) / 2)}
        for before, line in counts.iterrows():
            for after, count in line[line >= least * episodes].items():
                _arrow(ax, place[before], place[after], count / episodes)
        spoken = counts.drop(columns="end").sum()
        for speaker, (x, y) in place.items():
            _node(ax, x, y, speaker, spoken.get(speaker, 0) / episodes)
        ax.set(xlim=(-0.15, 4.15), ylim=(-0.6, len(names) - 0.2), title=title)
        ax.axis("off")
    return figure


def _node(ax: Axes, x: float, y: float, speaker: str, share: float) -> None:
    name, _, role = speaker.partition(" ")
    if not role:
        ax.text(x, y, name, ha="center", va="center", fontsize=9, bbox={"boxstyle": "round", "fc": "white"}, zorder=4)
        return
    seen = share >= 0.005
    look = {"fc": "white" if seen else "#F4F4F4", "ec": COLOURS[role], "lw": 2.2 if seen else 0.8}
    text = f"{name} {role[0]}" + (f"\n{share:.2f}" if seen else "")
    ax.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=8,
        color="black" if seen else "#999999",
        bbox={"boxstyle": "circle,pad=0.25", **look},
        zorder=3,
    )


def _arrow(ax: Axes, a: tuple[float, float], b: tuple[float, float], share: float) -> None:
    look = {"lw": 0.5 + 7 * share, "color": "black", "alpha": 0.6, "zorder": 2, "mutation_scale": 8 + 8 * share}
    if a == b:
        x, y = a
        arc = FancyArrowPatch(
            (x - 0.16, y + 0.26), (x + 0.16, y + 0.26), connectionstyle="arc3,rad=-1.3", **look, arrowstyle="-|>"
        )
    else:
        style = "arc3,rad=-0.18" if b[0] < a[0] or a[0] == b[0] else "arc3,rad=-0.08"
        arc = FancyArrowPatch(a, b, connectionstyle=style, arrowstyle="-|>", shrinkA=17, shrinkB=17, **look)
    ax.add_patch(arc)


# ---- ablations -------------------------------------------------------------------------------------------------------


def ablation_dots(table: pd.DataFrame) -> Figure:
    """Paired difference of each variant to `full` with its 95 % interval, the paper's beside it (of `against_full`)."""
    table = table[table["variant"] != "full"].reset_index(drop=True)
    figure = Figure(figsize=(9.6, 0.9 + 0.24 * len(table)), layout="constrained")
    ax = figure.subplots()
    half = student.ppf(0.975, np.maximum(table["pairs"] - 1, 1)) * table["difference_se"]
    for ahead, part in table.groupby("ahead"):
        marker, colour = STYLES[ahead]
        label = {"yes": "better", "no": "worse", "open": "not told apart"}.get(ahead)
        look = {"fmt": marker, "color": colour, "ms": 5, "capsize": 3}
        ax.errorbar(part["difference"], part.index, xerr=half[part.index], label=label, **look)
    quote = table.dropna(subset=["paper"])
    ax.plot(quote["paper"] / 100, quote.index + 0.28, "^", mfc="white", mec="black", ms=6, label="paper (quoted)")
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(table.index, table["variant"], fontsize=8)
    ax.set(xlabel="accuracy minus that of full, same seeds (95 % interval)", ylim=(len(table) - 0.4, -0.6))
    ax.grid(alpha=0.3, axis="x")
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    return figure


def head_steps(heads: pd.DataFrame) -> Figure:
    """Accuracy of each head by sigma0 (of the study `heads`): the tuning seeds as marks, their mean as a line."""
    rows = heads[heads["split"] == "validation"]
    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    ax = figure.subplots()
    looks = zip(("o-", "s--", "D-.", "^:", "v-"), ("#0072B2", "#E69F00", "#009E73", "#B34700", "#777777"), strict=True)
    for (name, part), (look, colour) in zip(rows.groupby("variant", sort=False), looks, strict=False):
        mean = part.groupby("sigma0")["accuracy"].mean()
        ax.plot(part["sigma0"], part["accuracy"], look[0], ms=4, mfc="none", mew=0.7, color=colour)
        ax.plot(mean.index, mean, look, ms=6, color=colour, label=name.removeprefix("head: "))
    ax.set_xscale("log", base=2)
    ticks = sorted(rows["sigma0"].unique())
    ax.set_xticks(ticks, [f"{s:g}" for s in ticks])
    ax.set(xlabel="first step size σ0 (in units of the head's numbers)", ylabel="accuracy, validation", ylim=(0, 1.04))
    ax.grid(alpha=0.3)
    figure.legend(fontsize=9, loc="outside right center", title="head")
    return figure


# ---- transfer --------------------------------------------------------------------------------------------------------


def transfer_bars(emergence: pd.DataFrame) -> Figure:
    """Accuracy without further training, mean ± s.e. over seeds: harder families, and a pool that was changed."""
    rows = emergence[emergence["what"] == "transfer"]
    to = {name: mean_se(part["accuracy"]) for name, part in rows.groupby("to", sort=False)}
    last = generations(emergence)
    last = last[last["generation"] == last["generation"].max()]
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    kinds = {
        "its own family": [mean_se(last[f.removesuffix("-hard")]) for f in HARD_FAMILIES],
        "harder, trained": [to[f] for f in HARD_FAMILIES],
        "harder, untrained": [to[f"{f}, uniform policy"] for f in HARD_FAMILIES],
    }
    looks = [{"color": "#DDDDDD"}, {"color": "#0072B2"}, {"color": "white", "hatch": "//"}]
    for k, ((label, values), look) in enumerate(zip(kinds.items(), looks, strict=True)):
        x, y, e = np.arange(len(values)) + 0.27 * (k - 1), *np.array([v[:2] for v in values]).T
        left.bar(x, y, 0.25, yerr=e, capsize=2, edgecolor="black", label=label, **look)
    left.set(xticks=range(len(HARD_FAMILIES)), xticklabels=HARD_FAMILIES, ylim=(0, 1.3), ylabel="accuracy (± s.e.)")
    left.legend(fontsize=8, loc="upper center", ncols=2)
    pools = {"as trained": mean_se(last["accuracy"])} | {k: v for k, v in to.items() if k.split()[0] not in _HARD}
    for i, (name, (mean, se, _)) in enumerate(pools.items()):
        look = {"color": "#DDDDDD" if i == 0 else "#E69F00" if "without" in name else "#CC79A7"}
        right.barh(
            i,
            mean,
            xerr=se,
            capsize=2,
            edgecolor="black",
            hatch="" if i == 0 else "//" if "without" in name else "..",
            **look,
        )
    right.set_yticks(range(len(pools)), list(pools), fontsize=8)
    right.set(xlim=(0, 1.05), ylim=(len(pools) - 0.5, -0.5), xlabel="accuracy (± s.e.)")
    return figure


_HARD = {*HARD_FAMILIES, *(f"{f}," for f in HARD_FAMILIES)}


def _emergence() -> pd.DataFrame:
    return frame("emergence")


FIGURES: dict[str, Callable[[], Figure]] = {
    "roles_film": lambda: film(_emergence()),
    "roles_curves": lambda: emergence_curves(_emergence()),
    "roles_seeds": lambda: seed_map(_emergence()),
    "roles_ablations": lambda: ablation_dots(against_full(Recorded())),
    "roles_heads": lambda: head_steps(frame("heads")),
    "roles_transfer": lambda: transfer_bars(_emergence()),
}
