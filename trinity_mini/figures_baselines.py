"""Figures of lesson 09, evolution against gradients, from the recorded rows of `baseline_studies`.

Each function takes the frame of a study (`study.frame`) and returns a figure; FIGURES draws all of them from data/runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .baseline_tables import LEAST, contest, evolution_logs, expected_best, scores, settings, winners
from .study import frame
from .tasks import FAMILIES

BLUE, SKY, ORANGE, GREEN, RED, GREY = "#0072B2", "#56B4E9", "#E69F00", "#009E73", "#B34700", "#777777"
ROSE = "#CC79A7"
LOOKS: dict[str, tuple[str, str, str]] = {  # method -> colour, line, marker: gradients blue, evolution orange
    "REINFORCE, tuned for 3 K": (SKY, "--", "s"),
    "REINFORCE, tuned for 33 K": (BLUE, "-", "o"),
    "REINFORCE, lr .3, no entropy": (BLUE, ":", "v"),
    "REINFORCE, lr 1e-5": (BLUE, "-.", "x"),
    "sep-CMA-ES, tuned for 3 K": ("#C98A00", "--", "s"),
    "sep-CMA-ES, tuned for 33 K": (ORANGE, "-", "D"),
    "sep-CMA-ES": (ORANGE, ":", "d"),
    "OpenAI-ES, tuned for 3 K": (ROSE, "--", "s"),
    "OpenAI-ES, tuned for 33 K": (RED, "-", "^"),
    "random search, paper": (GREY, ":", "x"),
    "random search, tuned": (GREY, "--", "P"),
    "SFT, single step, paper": (GREEN, ":", "x"),
    "SFT, single step, tuned": (GREEN, "--", "<"),
    "SFT, random search": (GREEN, "-.", ">"),
    "SFT, ordered search": (GREEN, "-", "*"),
}
SHOWN = ("REINFORCE, tuned for 3 K", "REINFORCE, tuned for 33 K", "sep-CMA-ES, tuned for 33 K",
         "OpenAI-ES, tuned for 33 K", "SFT, ordered search", "random search, tuned")  # fmt: skip
MAIN = (*SHOWN, "OpenAI-ES, tuned for 3 K", "REINFORCE, lr .3, no entropy", "REINFORCE, lr 1e-5", "sep-CMA-ES",
        "SFT, single step, tuned")  # fmt: skip
UNITS = {
    "episodes": "episodes played",
    "seconds": "CPU seconds of the method itself",
    "states": "states read by the small LM",
    "calls": "calls of agents",
}
STUCK = [("REINFORCE, lr .3, no entropy", 4), ("sep-CMA-ES, tuned for 3 K", 9), ("REINFORCE, tuned for 33 K", 9)]
CONTESTS = [  # the headline comparisons
    ("REINFORCE, tuned for 33 K", "sep-CMA-ES, tuned for 33 K"),
    ("REINFORCE, tuned for 3 K", "sep-CMA-ES, tuned for 3 K"),
    ("REINFORCE, lr .3, no entropy", "sep-CMA-ES, tuned for 33 K"),
    ("REINFORCE, lr 1e-5", "sep-CMA-ES, tuned for 33 K"),
]


def _panels(n: int, height: float, down: int = 1) -> tuple[Figure, np.ndarray]:
    """A figure of the full width and its axes (down, n), which share the vertical scale of their row."""
    figure = Figure(figsize=(9.6, height), layout="constrained")
    return figure, figure.subplots(down, n, sharex="col", sharey="row", squeeze=False)


# ---- the sweep -------------------------------------------------------------------------------------------------------


def sweep_map(sweep: pd.DataFrame) -> Figure:
    """Every setting of REINFORCE: a panel a budget; learning rate and batch down, baseline and entropy across."""
    table = settings(sweep[sweep["method"] == "REINFORCE"])
    budgets = sorted(table["budget"].unique())
    figure, [axes] = _panels(len(budgets), 5.4)
    for ax, budget in zip(axes, budgets, strict=True):
        part = table[table["budget"] == budget]
        grid = part.pivot(index=["lr", "batch"], columns=["baseline", "entropy"], values="mean")
        grid = grid[sorted(grid, key=lambda c: (["none", "batch", "question"].index(c[0]), c[1]))]
        _heat(ax, grid.to_numpy())
        ax.set_yticks(range(len(grid)), [f"{lr:g}, {int(n)}" for lr, n in grid.index])
        ax.set_xticks(range(grid.shape[1]), [f"{e:g}".replace("0.", ".") for _, e in grid.columns])
        ax.set_xlabel("weight of the entropy (no unit)")
        for i, name in enumerate(dict.fromkeys(b for b, _ in grid.columns)):
            ax.text(3 * i + 1, -0.7, name, ha="center", va="bottom", fontsize=9)
        ax.set_title(f"{budget:,} episodes\nbaseline:", fontsize=10, pad=18)
    axes[0].set_ylabel("learning rate, batch (episodes)")
    return figure


def _heat(ax: Axes, grid: np.ndarray) -> None:
    ax.imshow(grid, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (i, j), v in np.ndenumerate(grid):
        if np.isfinite(v):
            text = f"{v:.2f}".replace("0.", ".", 1) if v < 0.995 else "1.0"
            ax.text(j, i, text, ha="center", va="center", fontsize=8, color="black" if v > 0.5 else "white")


def sweep_dots(sweep: pd.DataFrame) -> Figure:
    """Every setting of every method as a dot (mean over seeds), a panel a budget; the best one black."""
    table = settings(sweep)
    names = list(dict.fromkeys(sweep["method"]))[::-1]
    budgets = sorted(table["budget"].unique())
    figure, [axes] = _panels(len(budgets), 3.6)
    for ax, budget in zip(axes, budgets, strict=True):
        for y, name in enumerate(names):
            values = table[(table["method"] == name) & (table["budget"] == budget)]["mean"].sort_values()
            ax.plot(values, y + np.linspace(-0.3, 0.3, len(values)), "o", ms=4, mfc="none", color=GREY)
            ax.plot(values.iloc[-1:], [y + 0.3], "D", ms=5, color="black")
        ax.set(title=f"{budget:,} episodes", xlabel="J, validation (diamond: best)", xlim=(0, 1.04))
        counts = table[table["budget"] == budget]["method"].value_counts()
        ax.set_yticks(range(len(names)), [f"{n} ({counts[n]})" for n in names])
        ax.grid(axis="x", alpha=0.3)
    return figure


def tuning_effort(sweep: pd.DataFrame, names: Sequence[str] = ("REINFORCE", "sep-CMA-ES", "OpenAI-ES")) -> Figure:
    """What tuning buys: expected J of the best of k random settings, chosen on some seeds, measured on the others."""
    seeds = sorted(sweep["seed"].unique())
    half = (len(seeds) + 1) // 2
    chosen, measured = settings(sweep, seeds[:half]), settings(sweep, seeds[half:])
    budgets = sorted(sweep["budget"].unique())
    figure, [axes] = _panels(len(budgets), 3.1)
    looks = [(BLUE, "-", "o"), (ORANGE, "--", "s"), (RED, ":", "^")]
    for ax, budget in zip(axes, budgets, strict=True):
        for name, (colour, line, marker) in zip(names, looks, strict=False):
            a, b = (t[(t["method"] == name) & (t["budget"] == budget)]["mean"].to_numpy() for t in (chosen, measured))
            k = np.unique(np.geomspace(1, len(a), 12).round().astype(int))
            ax.plot(k, [expected_best(a, b, i) for i in k], line, marker=marker, ms=4, color=colour, label=name)
        ax.set(title=f"{budget:,} episodes", xlabel="settings tried (k)", xscale="log", ylim=(0, 1.03))
        ax.set_xticks([1, 3, 10, 30, 94], ["1", "3", "10", "30", "94"])
        ax.minorticks_off(), ax.grid(alpha=0.3)
    axes[0].set_ylabel("expected J, other seeds")
    axes[0].legend(fontsize=8)
    return figure


# ---- equal budgets ---------------------------------------------------------------------------------------------------


def curves(methods: pd.DataFrame, names: Sequence[str] = MAIN, x: str = "episodes", ax: Axes | None = None) -> Figure:
    """Held-out J (mean and s.e. over seeds) against episodes, or against seconds, states or calls (medians)."""
    table = scores(methods)
    figure = Figure(figsize=(8.6, 4.6), layout="constrained") if ax is None else ax.figure
    ax = figure.subplots() if ax is None else ax
    for name in names:
        colour, line, marker = LOOKS[name]
        g = table[table["method"] == name].groupby("budget")
        place = g["budget"].first() if x == "episodes" else g[x].median().clip(lower=0.005)  # seconds: in hundredths
        look = {"ls": line, "marker": marker, "ms": 5, "color": colour, "capsize": 2, "label": name}
        ax.errorbar(place, g["test"].mean(), g["test"].sem(), **look)
    what = "J" if table["exact"].all() else "share right"
    ax.set(xscale="log", ylim=(0, 1.04), xlabel=UNITS[x], ylabel=f"{what}, held-out questions (± s.e.)")
    if x == "episodes":
        ticks = sorted(table["budget"].unique())
        ax.set_xticks(ticks, [f"{t / 1000:.2g} K" for t in ticks]), ax.minorticks_off()
    ax.grid(alpha=0.3)
    if figure.axes == [ax]:
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def compute(methods: pd.DataFrame, names: Sequence[str] = SHOWN) -> Figure:
    """The same scores against what the coordinator pays: states read, and CPU seconds without playing."""
    figure, [axes] = _panels(2, 4.1)
    for ax, x in zip(axes, ("states", "seconds"), strict=True):
        curves(methods, names, x, ax)
    axes[1].set_ylabel("")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def contests(methods: pd.DataFrame, pairs: Sequence[tuple[str, str]] = tuple(CONTESTS)) -> Figure:
    """Paired differences by budget with two standard errors; filled where somebody wins."""
    figure, [axes] = _panels(len(pairs), 3.2)
    looks = {"a": (BLUE, "^", BLUE), "b": (ORANGE, "v", ORANGE), "nobody": (GREY, "o", "white")}
    for ax, (a, b) in zip(axes, pairs, strict=True):
        table = contest(methods, a, b)
        for i, row in enumerate(table.itertuples()):
            colour, marker, face = looks[row.winner]
            ax.errorbar(i, row.difference, 2 * row.se, fmt=marker, color=colour, mfc=face, capsize=3)
        ax.axhline(0, color="black", lw=1)
        ax.set_xticks(range(len(table)), [f"{b / 1000:.2g}" for b in table.index], fontsize=8)
        ax.set_title(f"{a}\nminus {b}", fontsize=8)
        ax.set_xlabel("thousand episodes"), ax.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("difference of J (± 2 s.e.)")
    return figure


def seeds(methods: pd.DataFrame, budget: int = 32_640, names: Sequence[str] = tuple(LOOKS)) -> Figure:
    """Every seed of every method at one budget, and the mean."""
    table = scores(methods)
    table = table[table["budget"] == budget]
    names = [n for n in names if (table["method"] == n).any()]
    figure = Figure(figsize=(8.4, 0.9 + 0.27 * len(names)), layout="constrained")
    ax = figure.subplots()
    for y, name in enumerate(reversed(names)):
        values = table[table["method"] == name]["test"].sort_values()
        ax.plot(values, y + np.linspace(-0.25, 0.25, len(values)), "o", ms=4, mfc="none", color=GREY)
        ax.errorbar(values.mean(), y, xerr=values.sem(), marker=LOOKS[name][2], color=LOOKS[name][0], capsize=3)
    ax.set_yticks(range(len(names)), list(reversed(names)))
    what = f"J, held-out questions, after {budget:,} episodes (a ring a seed, filled: mean ± se)"
    ax.set(xlim=(-0.02, 1.04), xlabel=what)
    ax.grid(axis="x", alpha=0.3)
    return figure


# ---- where runs end, what an update knows, who wins where ------------------------------------------------------------


def endings(methods: pd.DataFrame, runs: Sequence[tuple[str, int]]) -> Figure:
    """What final policies play: role sequences by family, width their share, dark where they are right."""
    rows = methods[methods["family"].notna()]
    figure, axes = _panels(1, 1.75 * len(runs), len(runs))
    for ax, (name, seed) in zip(axes[:, 0], runs, strict=True):
        mine = rows[(rows["method"] == name) & (rows["seed"] == seed)]
        for y, family in enumerate(FAMILIES):
            left = 0.0
            for r in mine[mine["family"] == family].itertuples():
                ax.barh(y, r.share, 0.8, left=left, color=str(1 - 0.75 * r.reward), edgecolor="black", lw=0.8)
                if r.share > 0.07:
                    text = f"{r.roles}\n{r.agents}" if r.share > 0.18 else r.roles
                    look = {"ha": "center", "va": "center", "color": "white" if r.reward > 0.6 else "black"}
                    ax.text(left + r.share / 2, y, text, fontsize=8, linespacing=0.9, **look)
                left += r.share
        ax.set_yticks(range(len(FAMILIES)), FAMILIES)
        ax.set(xlim=(0, 1), ylim=(3.5, -0.5))
        ax.set_title(f"{name}, seed {seed}", fontsize=9, loc="left")
    shades = "white: wrong, grey: sometimes right, dark: right"
    axes[-1, 0].set_xlabel(f"share of episodes (the four commonest sequences; {shades})")
    return figure


def signal(snr: pd.DataFrame) -> Figure:
    """Signal over noise of one update, and what a step along it gains, at points along the way of runs."""
    looks = {"REINFORCE, baseline none": (SKY, "x", ":"), "REINFORCE, baseline batch": (BLUE, "s", "--"),
             "REINFORCE, baseline question": (BLUE, "o", "-"), "sep-CMA-ES": (ORANGE, "D", "-")}  # fmt: skip
    paths = list(dict.fromkeys(snr["path"]))
    figure, axes = _panels(len(paths), 5.2, 2)
    for column, path in zip(axes.T, paths, strict=True):
        for (name, seed), x in snr[snr["path"] == path].groupby(["estimator", "seed"], sort=False):
            colour, marker, line = looks[name]
            look = {"marker": marker, "ls": line, "ms": 5, "color": colour, "lw": 1}
            look["label"] = name if seed == snr["seed"].min() else None
            column[0].plot(x["J"], x["snr"].clip(lower=3e-4), **look)
            column[1].plot(x["J"], x["gain"], **look)
        column[0].set_yscale("log")
        column[0].set_title(f"along {path}", fontsize=9)
        column[1].set(xlabel="J at the point", xlim=(0, 1.04))
        for ax in column:
            ax.grid(alpha=0.3)
    axes[0, 0].set_ylabel("signal / noise of one\nupdate (no unit)")
    axes[1, 0].set_ylabel("gain of J by a step\nof length 4")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def winner_map(record: pd.DataFrame) -> Figure:
    """Who wins: worlds down (the rarest reward on top), budgets across, untuned and tuned; grey where nobody wins."""
    table = winners(record)
    worlds = table[["uniform", "world", "turns"]].drop_duplicates()
    columns = [(t, b) for t in ("common", "tuned") for b in sorted(table["budget"].unique())]
    figure = Figure(figsize=(9.6, 1.3 + 0.5 * len(worlds)), layout="constrained")
    ax = figure.subplots()
    for y, world in enumerate(worlds.itertuples()):
        same = (table[["uniform", "world", "turns"]] == [world.uniform, world.world, world.turns]).all(axis=1)
        for x, (tuning, budget) in enumerate(columns):
            r = table[same & (table["tuning"] == tuning) & (table["budget"] == budget)].iloc[0]
            colour, hatch = {"a": ("#9CC9E8", ""), "b": (ORANGE, "//"), "nobody": ("#DDDDDD", "")}[r.winner]
            ax.barh(y, 0.96, 0.92, left=x - 0.48, color=colour, hatch=hatch, edgecolor="white")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if hatch else None  # hatching hides numbers
            ax.text(x, y, _cell(r), ha="center", va="center", fontsize=8, bbox=box)
    short = worlds["world"].str.replace("+".join(FAMILIES), "all four")
    rows = [f"{w}, {t} turns: {u:.2g}" for w, t, u in zip(short, worlds["turns"], worlds["uniform"], strict=True)]
    ax.set_yticks(range(len(worlds)), rows, fontsize=8)
    ax.set_xticks(range(len(columns)), [f"{b / 1000:.2g} K\n{t}" for t, b in columns])
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(worlds) - 0.5, -0.5), xlabel="episodes, tuning")
    ax.set_ylabel("world: uniform policy's J"), ax.axvline(len(columns) / 2 - 0.5, color="black", lw=1)
    return figure


def _cell(r: pd.Series) -> str:
    if r.winner == "nobody" and max(r.gradient, r.evolution) < LEAST:
        return "both near 0"
    if r.winner == "nobody" and min(r.gradient, r.evolution) > 1 - LEAST:
        return "both near 1"
    return f"{r.difference:+.2f}\n" + (f"{abs(r.difference) / r.se:.1f} s.e." if r.se > 0.0005 else "all seeds alike")


# ---- with SVF, and five turns ----------------------------------------------------------------------------------------


def with_svf(svf: pd.DataFrame, logs: pd.DataFrame) -> Figure:
    """Head and SVF, five turns: every run of REINFORCE through the small LM (seeds to 100), and of sep-CMA-ES."""
    svf = svf[svf["seed"] <= 100]
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    ax = figure.subplots()
    drawn = (logs, ORANGE, "D-", "sep-CMA-ES (validation)"), (svf, BLUE, "o-", "REINFORCE (test)")
    for table, colour, look, name in drawn:
        for i, (_, x) in enumerate(table.groupby("seed")):
            label = None if i else f"{name}, a line a seed"
            ax.plot(x["episodes"], x["test"], look, ms=4, lw=1, color=colour, label=label)
    ax.set(xscale="log", xlabel="training episodes", ylabel="share of right answers", ylim=(0, 1.04))
    ax.set_xticks([1500, 3000, 6000, 12000, 32640], ["1.5 K", "3 K", "6 K", "12 K", "33 K"])
    ax.minorticks_off(), ax.legend(fontsize=8, loc="lower right"), ax.grid(alpha=0.3)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "baselines_sweep_map": lambda: sweep_map(frame("reinforce_sweep")),
    "baselines_sweep_dots": lambda: sweep_dots(frame("reinforce_sweep")),
    "baselines_tuning_effort": lambda: tuning_effort(frame("reinforce_sweep")),
    "baselines_curves": lambda: curves(frame("methods")),
    "baselines_compute": lambda: compute(frame("methods")),
    "baselines_contests": lambda: contests(frame("methods")),
    "baselines_seeds": lambda: seeds(frame("methods")),
    "baselines_endings": lambda: endings(frame("methods"), STUCK),
    "baselines_signal": lambda: signal(frame("gradient_snr")),
    "baselines_winner_map": lambda: winner_map(frame("winner_map")),
    "baselines_with_svf": lambda: with_svf(frame("svf_methods"), evolution_logs()),
    "baselines_five_turns": lambda: curves(frame("methods_five_turns"), ("REINFORCE, tuned for 33 K", "sep-CMA-ES")),
}
