"""The course's figures, drawn from data frames and logs; one style, safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from .files import UserError

COLOURS = {"Worker": "#0072B2", "Thinker": "#E69F00", "Verifier": "#009E73"}  # Okabe and Ito
HATCHES = {"Worker": "", "Thinker": "//", "Verifier": ".."}


def learning_curve(log: pd.DataFrame, lines: dict[str, float] | None = None) -> Figure:
    """Mean reward of a generation's candidates and validation of the distribution mean, against episodes.

    log: columns episodes, reward, validation, validation_se. lines: named accuracies drawn across.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    ax = figure.subplots()
    ax.plot(log["episodes"], log["reward"], color="#999999", lw=1, label="candidates, mean of a generation")
    checked = log.dropna(subset=["validation"])
    ax.errorbar(
        checked["episodes"], checked["validation"].astype(float), checked["validation_se"].astype(float),
        color="#0072B2", marker="o", ms=4, lw=1.5, capsize=2, label="distribution mean, validation questions (± s.e.)",
    )
    for (name, value), style in zip((lines or {}).items(), ("--", ":", "-."), strict=False):
        ax.axhline(value, color="black", lw=1, ls=style, label=name)
    ax.set(xlabel="training episodes", ylabel="accuracy", ylim=(0, 1.02))
    ax.legend(fontsize=8, loc="upper left", framealpha=0.9)
    ax.grid(alpha=0.3)
    return figure


def skill_map(table: pd.DataFrame) -> Figure:
    """Heat map of skills: agents down, question kinds across, one panel a role."""
    roles = {"thinker": "Thinker: exact plan", "worker": "Worker, no plan", "worker+plan": "Worker, right plan",
             "verifier": "Verifier: balanced accuracy"}
    table = table[(table["kind"] != "all") & ~table["family"].str.endswith("-hard")]
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2).ravel()
    image = None
    for ax, (role, title) in zip(axes, roles.items(), strict=True):
        grid = table[table["role"] == role].pivot_table(index="agent", columns="kind", values="value", sort=False)
        image = ax.imshow(grid.to_numpy(dtype=float), vmin=0, vmax=1, cmap="cividis", aspect="auto")
        ax.set_xticks(range(grid.shape[1]), grid.columns, rotation=35, ha="right", fontsize=8)
        ax.set_yticks(range(grid.shape[0]), grid.index, fontsize=9)
        for i, row in enumerate(grid.to_numpy(dtype=float)):
            for j, v in enumerate(row):
                if v == v:
                    colour = "black" if v > 0.5 else "white"
                    ax.text(j, i, f"{v:.2f}", ha="center", va="center", fontsize=7, color=colour)
        ax.set_title(title, fontsize=10)
    figure.colorbar(image, ax=list(axes), shrink=0.7, label="share right")
    return figure


def speakers(turns: pd.DataFrame, agents: Sequence[str]) -> Figure:
    """Who speaks as what at which turn: one panel a family, a bar an agent and turn, stacked by role.

    turns: columns family, turn, agent, role (`analysis.turns_frame`). Heights are shares of all episodes of the
    family, so later turns are lower where a Verifier has accepted.
    """
    families = list(dict.fromkeys(turns["family"]))
    figure = Figure(figsize=(3.1 * len(families), 3.6), layout="constrained")
    axes = figure.subplots(1, len(families), sharey=True, squeeze=False)[0]
    last, width = int(turns["turn"].max()), 0.85 / len(agents)
    places = [(a - (len(agents) - 1) / 2) * width for a in range(len(agents))]
    letters = [name[0] for name in agents]
    if len(set(letters)) < len(letters):
        letters = [str(a + 1) for a in range(len(agents))]
    for ax, family in zip(axes, families, strict=True):
        part = turns[turns["family"] == family]
        episodes = (part["turn"] == 1).sum()
        counts = part.groupby(["turn", "agent", "role"]).size() / max(episodes, 1)
        for place, agent in zip(places, agents, strict=True):
            for turn in range(1, last + 1):
                x, bottom = turn + place, 0.0
                for role, colour in COLOURS.items():
                    height = float(counts.get((turn, agent, role), 0.0))
                    if height:
                        style = {"color": colour, "hatch": HATCHES[role], "edgecolor": "white", "lw": 0}
                        ax.bar(x, height, width * 0.95, bottom=bottom, **style)
                        bottom += height
        ax.set(title=family, xlabel="turn", xticks=range(1, last + 1), ylim=(0, 1.05))
        ax.tick_params(axis="x", which="major", length=0, pad=13)
        ax.xaxis.remove_overlapping_locs = False  # the agent in the middle stands where the turn's number does
        ax.set_xticks([t + p for t in range(1, last + 1) for p in places], letters * last, minor=True)
        ax.tick_params(axis="x", which="minor", length=2, pad=1, labelsize=6)
    axes[0].set_ylabel("share of episodes")
    handles = [axes[0].bar(0, 0, color=c, hatch=HATCHES[r], edgecolor="white", label=r) for r, c in COLOURS.items()]
    order = ", ".join(f"{letter} = {name}" for letter, name in zip(letters, agents, strict=True))
    title = {"title": f"at each turn, from left: {order}", "title_fontsize": 8}
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, **title)
    for ax in axes:
        ax.set_xlim(0.5, last + 0.5)
    return figure


LOOP = {  # part: (column, row from above, title, what it holds)
    "question": (0, 0, "question", "(3*6-3)%7"),
    "transcript": (1, 0, "transcript", "the question and\nevery turn so far"),
    "slm": (2, 0, "small LM", "reads it,\nwrites nothing"),
    "state": (3, 0, "state h", "of the token at\nposition −2"),
    "head": (4, 0, "head W h", "L + 3 logits:\nagents, roles"),
    "choice": (4, 1, "(agent, role)", "two draws"),
    "reply": (3, 1, "reply", "of that agent\nin that role"),
    "verdict": (2, 1, "verdict", "has a Verifier\naccepted?"),
    "reward": (0, 1, "reward", "1 if the last\nanswer is right"),
}


def loop_picture(lit: str | None = None) -> Figure:
    """The recurring picture of the loop, from the question to the reward, with one part lit.

    lit: a key of `LOOP`, or None. A lit part is dark with white letters, so grey paper shows it too.
    Raises: ValueError for an unknown part.
    """
    if lit is not None and lit not in LOOP:
        raise ValueError(f"no part {lit!r}: choose one of {', '.join(LOOP)}.")
    figure = Figure(figsize=(9.6, 3.5))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.axis("off")
    ax.set(xlim=(-0.48, 4.62), ylim=(2.02, -0.52))
    half_width, half_height = 0.38, 0.32
    for part, (x, row, title, text) in LOOP.items():
        y, dark = 1.25 * row, part == lit
        ink, family = "white" if dark else "black", "monospace" if part == "question" else None
        box = FancyBboxPatch(
            (x - half_width, y - half_height), 2 * half_width, 2 * half_height, "round,pad=0,rounding_size=0.06"
        )
        box.set(facecolor="#0072B2" if dark else "#F4F4F4", edgecolor="black" if dark else "#777777")
        box.set_linewidth(2.5 if dark else 1)
        ax.add_patch(box)
        ax.text(x, y - 0.17, title, ha="center", va="center", fontsize=12, weight="bold", color=ink)
        ax.text(x, y + 0.1, text, ha="center", va="center", fontsize=10, color=ink, family=family, linespacing=1.1)

    def arrow(*points: tuple[float, float], colour: str = "black", style: str = "-") -> None:
        ax.plot(*zip(*points[:-1], strict=True), color=colour, ls=style, lw=1.6)
        look = {"arrowstyle": "-|>", "color": colour, "ls": style, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", points[-1], points[-2], arrowprops=look)

    for x in range(4):
        arrow((x + half_width, 0), (x + 1 - half_width, 0))
    arrow((4, half_height), (4, 1.25 - half_height))
    for x, end in ((4, 3), (3, 2), (2, 0)):
        arrow((x - half_width, 1.25), (end + half_width, 1.25))
    ax.text(1, 1.31, "yes, or no turn left", ha="center", va="top", fontsize=10)
    arrow((2, 1.25 - half_height), (2, 0.62), (1, 0.62), (1, half_height))
    ax.text(2.06, 0.63, "no: the reply joins the transcript, next turn", ha="left", va="center", fontsize=10)
    low, right, red = 1.85, 4.55, "#B34700"
    arrow((0, 1.25 + half_height), (0, low), (right, low), (right, 0), (4 + half_width, 0), colour=red, style="--")
    ax.text(
        2.2, low - 0.03, "training: evolution turns W, and a little of the small LM, from rewards alone",
        ha="center", va="bottom", fontsize=10, color=red,
    )
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, by rename."""
    import io

    from .files import write_atomically

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())
    return path


def training_figures(folder: Path, log: Sequence, pool, episodes: Sequence) -> list[Path]:
    """The three figures of a training run: learning curve, skills of the pool, who speaks as what."""
    from dataclasses import asdict

    from .analysis import turns_frame

    skills = pool.folder / "skills.csv"
    if not skills.exists():
        raise UserError(f"{skills} is missing: run `python -m trinity_mini make-pool`.")
    curve = learning_curve(pd.DataFrame([asdict(g) for g in log]))
    return [
        save(curve, folder / "learning_curve.png"),
        save(skill_map(pd.read_csv(skills)), folder / "skills.png"),
        save(speakers(turns_frame(episodes, pool.names), pool.names), folder / "speakers.png"),
    ]
