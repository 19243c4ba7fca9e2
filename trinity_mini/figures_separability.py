"""Figures of lesson 08 from its recorded studies; `FIGURES` draws each of them from data/runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .separability_tables import PARTITIONS, exact, gains, matrix, means, measured, method_gains
from .study import frame

BLUE, ORANGE, GREEN, GREY, RED = "#0072B2", "#E69F00", "#009E73", "#888888", "#B34700"
COUPLING = "coupling ε (no unit)"
LEVELS = {  # noise level: line style, marker, colour
    "independent": ("-", "o", "#000000"),
    "same questions": ("--", "s", ORANGE),
    "common random numbers": ("-", "^", BLUE),
    "expected, questions independent": (":", "v", GREY),
    "expected, questions common": ("-.", "D", GREEN),
}


def calibration(table: pd.DataFrame) -> Figure:
    """Coverage of the interval and rejections of "no interaction" (study separability-calibration)."""
    figure = _figure(9.4, 3.9)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1))
    names = list(dict.fromkeys(table["function"]))
    for m, shift, marker, colour in ((100, -0.14, "o", BLUE), (200, 0.14, "s", ORANGE)):
        part = table[table["directions"] == m].set_index("function").loc[names]
        y = np.arange(len(names)) + shift
        style = {"fmt": marker, "color": colour, "capsize": 3, "ms": 5, "label": f"{m} directions"}
        left.errorbar(part["coverage"], y, xerr=part["coverage se"], **style)
        right.errorbar(part["rejected"], y, xerr=part["rejected se"], **style)
    left.axvline(0.95, color="black", ls="--", lw=1)
    left.axvline(0.9, color="black", ls=":", lw=1)
    right.axvline(0.05, color="black", ls="--", lw=1)
    true = table.groupby("function")["true"].first()
    left.set(
        yticks=range(len(names)), yticklabels=[f"{n}, ε = {true[n]:.2f}" for n in names], xlim=(0.8, 1.01),
        xlabel="share of trials whose interval holds the truth", title="coverage",
    )
    left.invert_yaxis()
    right.set(xlabel="share rejecting “no interaction” at 5 %", xlim=(-0.03, 1.05), title="sign flips")
    left.legend(fontsize=8, loc="lower left")
    return figure


def noise_levels(table: pd.DataFrame) -> Figure:
    """Standard deviation of a four-point difference by kind of luck shared, and the signal, for each step.

    table: study separability-noise. A measured 0 (no draw changed in any difference) has no place on the axis.
    """
    figure = _figure(9.6, 3.9)
    noise = table[table["kind"] == "noise"]
    axes = figure.subplots(1, noise["scale"].nunique(), sharey=True)
    for ax, (scale, part) in zip(np.atleast_1d(axes), noise.groupby("scale"), strict=True):
        for level, (style, marker, colour) in LEVELS.items():
            rows = part[(part["level"] == level) & (part["sd"] > 0)]
            look = {"ls": style, "marker": marker, "ms": 5, "color": colour, "capsize": 2}
            ax.errorbar(rows["h"], rows["sd"], rows["sd se"], label=level, **look)
        ax.axhline(part["signal"].iloc[0], color=RED, lw=3, alpha=0.6, label="signal: root mean square of D at h → 0")
        ax.set(xscale="log", yscale="log", xlabel="step h (norm of a head)", title=_at(scale))
    np.atleast_1d(axes)[0].set_ylabel("s.d. of D (reward / head norm²)")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=3)
    return figure


def step_sizes(table: pd.DataFrame) -> Figure:
    """What each step h reads without noise: F over the Hessian's, eps with its interval (separability-noise)."""
    figure = _figure(9, 3.3)
    left, right = figure.subplots(1, 2)
    for (scale, part), style, marker, colour in zip(
        table[table["kind"] == "step"].groupby("scale"), ("-", "--", ":"), "os^", (BLUE, ORANGE, "black"), strict=False
    ):
        look = {"ls": style, "marker": marker, "color": colour, "capsize": 3}
        left.errorbar(part["h"], part["F"] / part["F exact"], part["se"] / part["F exact"], label=_at(scale), **look)
        ends = np.abs(part[["low", "high"]].to_numpy(dtype=float).T - part["eps"].to_numpy(dtype=float))
        right.errorbar(part["h"] * (1 + 0.08 * "os^".index(marker)), part["eps"], ends, **look)
        right.axhline(part["exact"].iloc[0], color=colour, ls=style, lw=1, alpha=0.7)
    left.axhline(1, color="black", lw=1)
    left.set(xscale="log", yscale="log", xlabel="step h (norm of a head)", ylabel="F read / F of the Hessian (no unit)")
    right.set(xscale="log", xlabel="step h (norm of a head)", ylabel="ε read, 95 % interval (no unit)", ylim=(0, 2.1))
    right.set_title("thin lines: the Hessian's own ε", fontsize=9)
    left.legend(fontsize=8)
    return figure


def heat_map(ax: Axes, names: Sequence[str], values: np.ndarray, title: str) -> object:
    """One coupling matrix (K, K), each cell with its number; returns the image for a colour bar."""
    image = ax.imshow(np.minimum(values, 1.25), vmin=0, vmax=1.25, cmap="cividis")
    small = len(names) > 4
    for i, j in np.ndindex(values.shape):
        text = "–" if np.isnan(values[i, j]) else f"{values[i, j]:.1f}" if small else f"{values[i, j]:.2f}"
        colour = "black" if np.isnan(values[i, j]) or values[i, j] > 0.65 else "white"
        ax.text(j, i, text, ha="center", va="center", fontsize=8 if small else 9, color=colour)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.set_title(title, fontsize=9)
    return image


def coupling_map(table: pd.DataFrame, partition: str = "rows", generation: int = 60) -> Figure:
    """Coupling of a partition's blocks beside its random control, mean over seeds (separability-head)."""
    figure = _figure(8.6, 4)
    axes, image = figure.subplots(1, 2), None
    for ax, name in zip(axes, (partition, f"random, like {partition}"), strict=True):
        names, values = matrix(exact(table, name, generation))
        image = heat_map(ax, names, values, name)
    figure.colorbar(image, ax=list(axes), shrink=0.8, label=COUPLING, extend="max")
    figure.suptitle(f"generation {generation}, mean of {table['seed'].nunique()} seeds", fontsize=10)
    return figure


def coupling_maps(table: pd.DataFrame, generations: Sequence[int] = (0, 30, 60)) -> Figure:
    """Heat maps of three partitions at the start, midway and after training, mean over seeds (separability-head)."""
    figure = _figure(9.4, 8.6)
    axes, image = figure.subplots(len(PARTITIONS), len(generations)), None
    for line, partition in zip(axes, PARTITIONS, strict=True):
        for ax, generation in zip(line, generations, strict=True):
            image = heat_map(ax, *matrix(exact(table, partition, generation)), f"{partition}; generation {generation}")
    figure.colorbar(image, ax=axes[:, -1], shrink=0.6, label=COUPLING, extend="max")
    return figure


def over_training(table: pd.DataFrame) -> Figure:
    """Mean coupling between blocks over training and of random controls; seeds thin (separability-head)."""
    figure = _figure(9.4, 3.4)
    axes, found = figure.subplots(1, len(PARTITIONS), sharey=True), means(table)
    for ax, partition in zip(axes, PARTITIONS, strict=True):
        for name, colour, style, marker in (
            (f"random, like {partition}", ORANGE, "--", "s"), (partition, BLUE, "-", "o"),
        ):
            grid = found[found["partition"] == name].pivot(index="generation", columns="seed", values="eps")
            ax.plot(grid, color=colour, ls=style, lw=0.7, alpha=0.6)
            look = {"color": colour, "ls": style, "marker": marker, "lw": 2.5, "capsize": 4}
            ax.errorbar(grid.index, grid.mean(axis=1), grid.sem(axis=1), label=name, **look)
        ax.set(xlabel="generation", title=partition, ylim=(0, 1.3))
        ax.legend(fontsize=8, loc="lower left")
    axes[0].set_ylabel("mean ε between blocks (no unit)")
    return figure


def untaught(table: pd.DataFrame) -> Figure:
    """Mean coupling of trained heads and of random ones, as long and as sure; a mark a seed (separability-head)."""
    figure = _figure(8.2, 3.2)
    ax, rows = figure.subplots(), means(table)
    trained = rows[rows["generation"] == rows["generation"].max()].set_index(["partition", "seed"])["eps"]
    none = table[table["kind"] == "untaught"].groupby(["control", "partition", "seed"])["eps"].mean()
    at_zero = rows[rows["generation"] == 0].set_index(["partition", "seed"])["eps"]
    sets = {"at θ = 0": at_zero, "trained": trained} | {f"untaught, {c}": none[c] for c in ("as long", "as sure")}
    looks = zip(sets.items(), (-0.3, -0.1, 0.1, 0.3), "^osD", (GREY, BLUE, ORANGE, GREEN), strict=True)
    for (name, eps), shift, marker, colour in looks:
        for i, partition in enumerate(PARTITIONS):
            values = eps[partition]
            ax.plot(np.full(len(values), i + shift), values, marker, color=colour, mfc="none", alpha=0.8)
            look = {"fmt": marker, "color": colour, "capsize": 4, "label": name if i == 0 else None}
            ax.errorbar(i + shift + 0.06, values.mean(), values.sem(), ms=8, **look)
    ax.set(xticks=range(len(PARTITIONS)), xticklabels=PARTITIONS, ylim=(0, 1.3))
    ax.set_ylabel("mean ε between blocks (no unit)")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure


def definition_one(table: pd.DataFrame) -> Figure:
    """Definition 1 for -J: positive share of the diagonal; B1, B2, B3 at the best S (separability-head)."""
    figure = _figure(9.6, 3.6)
    first, second = figure.subplots(1, 2, width_ratios=(1, 2))
    rows = table[table["kind"] == "definition 1"]
    one = rows[rows["partition"] == PARTITIONS[0]]
    first.plot(one["generation"], one["positive"], "o", color=BLUE, ms=6, alpha=0.7)
    first.axhline(1, color="black", ls="--", lw=1)
    first.set(xlabel="generation", ylabel="share of the diagonal of −H above 0", ylim=(0, 1.05))
    names = list(dict.fromkeys(rows["partition"]))
    for form, shift, marker, colour in (("B1", -0.22, "o", BLUE), ("B2", 0, "s", ORANGE), ("B3_best", 0.22, "^", "k")):
        x = rows["partition"].map(names.index) + shift
        second.plot(x, rows[form], marker, color=colour, ms=4, alpha=0.6, label=form.replace("_best", ", best S"))
    second.axhline(1, color="black", ls="--", lw=1)
    labels = [n.replace("random, like ", "random, like\n") for n in names]
    second.set_xticks(range(len(names)), labels, fontsize=8, rotation=20)
    second.set(yscale="log", ylim=(0.5, None), ylabel="value (no unit); a claim needs < 1")
    figure.legend(fontsize=8, loc="outside upper right", ncols=3)
    return figure


def by_episodes(table: pd.DataFrame) -> Figure:
    """eps of agents and roles by episodes and exactly (separability-head); open dots with an arrow: no upper end.

    Dots at one exact value are set side by side.
    """
    figure = _figure(6.6, 4.2)
    ax, rows = figure.subplots(), measured(table).dropna(subset=["eps"])
    beside = 0.008 * (rows.groupby("exact").cumcount() - (rows.groupby("exact")["eps"].transform("size") - 1) / 2)
    for row in rows.assign(x=rows["exact"] + beside).itertuples():
        bounded = row.high == row.high
        ax.plot([row.x] * 2, [row.low, row.high if bounded else 2.9], color=GREY, lw=1)
        ax.plot(row.x, row.eps, "o", color=BLUE, mfc=BLUE if bounded else "white", ms=5)
        if not bounded:
            ax.plot(row.x, 2.9, "^", color=GREY, ms=4)
    ax.plot([0, 1.4], [0, 1.4], color="black", ls="--", lw=1)
    ax.set(xlabel="exact ε, from the Hessian (no unit)", ylim=(0, 3), xlim=(0, 1.4))
    ax.set_ylabel(f"ε from {int(rows['episodes'].iloc[0]):,} episodes, step h = {rows['h'].iloc[0]:g}")
    return figure


def svf_maps(table: pd.DataFrame) -> Figure:
    """Coupling of the SVF matrices and the head, mean over runs, for each length of theta (separability-svf)."""
    figure = _figure(9.4, 4.4)
    scales = [s for s in sorted(table["scale"].unique()) if s > 0]
    axes, image = np.atleast_1d(figure.subplots(1, len(scales))), None
    for ax, scale in zip(axes, scales, strict=True):
        part = table[table["scale"] == scale]
        image = heat_map(ax, *matrix(part), f"theta × {scale:g}, mean of {part['run'].nunique()} runs")
    figure.colorbar(image, ax=list(axes), shrink=0.8, label=COUPLING, extend="max")
    return figure


def diagonal(table: pd.DataFrame, methods: pd.DataFrame) -> Figure:
    """How far the diagonal spreads, and what adapting it is worth in two studies (paired, held-out questions).

    table: study separability-diagonal; methods: study methods.
    """
    figure = _figure(9.4, 3.6)
    left, right = figure.subplots(1, 2)
    ways = {"adapts": ("adapts to rewards", BLUE, "-", "o"), "random": ("ranked by lot", ORANGE, "--", "s"),
            "frozen": ("frozen", "black", ":", "^")}
    for way, (label, colour, style, marker) in ways.items():
        grid = table[table["way"] == way].pivot(index="generation", columns="seed", values="spread")
        look = {"color": colour, "ls": style, "marker": marker, "capsize": 3}
        left.errorbar(grid.index, grid.mean(axis=1), grid.sem(axis=1), label=label, **look)
    left.set(xlabel="generation", ylabel="spread: s.d. of log standard deviation", ylim=(-0.002, None))
    left.legend(fontsize=8)
    for name, found, look in (
        (f"separability-diagonal, {table['seed'].nunique()} seeds", gains(table), {"marker": "o", "color": BLUE}),
        (f"methods, {methods['seed'].nunique()} seeds", method_gains(methods),
         {"marker": "s", "color": RED, "ls": "--"}),
    ):
        right.errorbar(found["episodes"] / 1000, found["difference"], 2 * found["se"], label=name, capsize=4, **look)
    right.axhline(0, color="black", lw=1)
    right.set(xlabel="training episodes (thousands)", ylabel="adapts − frozen, held-out J (± 2 s.e.)")
    right.legend(fontsize=8, loc="upper left")
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)  # inches: long labels keep off the edge
    return figure


def _at(scale: float) -> str:
    return "at θ = 0" if scale == 0 else f"at {scale:g} × a trained head"


def _of(draw: Callable[..., Figure], *names: str) -> Callable[[], Figure]:
    return lambda: draw(*(frame(name) for name in names))


FIGURES: dict[str, Callable[[], Figure]] = {
    "separability_calibration": _of(calibration, "separability-calibration"),
    "separability_noise": _of(noise_levels, "separability-noise"),
    "separability_steps": _of(step_sizes, "separability-noise"),
    "separability_maps": _of(coupling_maps, "separability-head"),
    "separability_training": _of(over_training, "separability-head"),
    "separability_untaught": _of(untaught, "separability-head"),
    "separability_definition": _of(definition_one, "separability-head"),
    "separability_episodes": _of(by_episodes, "separability-head"),
    "separability_svf": _of(svf_maps, "separability-svf"),
    "separability_diagonal": _of(diagonal, "separability-diagonal", "methods"),
}
