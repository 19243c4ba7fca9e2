"""What a lesson shows with buttons, and the same without; nothing here needs a browser (lesson 00)."""

from __future__ import annotations

import html
import importlib.metadata
import io
import platform
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ipywidgets
import PIL.Image
from IPython.display import Image, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from .analysis import told
from .episode import Episode, Turn
from .files import DATA, ROOT, UserError
from .plots import COLOURS, HATCHES
from .roles import Role

Ask = Callable[[str, int], Episode]  # (prompt, seed) -> the episode played for it
LONGEST = 120  # characters of a typed question
PIXELS = 96  # of an inch, on the screen
WIDEST, SMALLEST = 9.6, 8.0  # inches and points: what is read without scrolling or a magnifier at 1280 pixels


def png(figure: Figure, dpi: int = 150) -> bytes:
    """A figure as PNG bytes, whatever backend is active; in 256 colours, a third of the size for the same picture."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    image = PIL.Image.open(drawn).convert("RGB")
    image.quantize(256, method=PIL.Image.Quantize.MAXCOVERAGE, dither=PIL.Image.Dither.NONE).save(
        buffer, format="png", optimize=True, dpi=(dpi, dpi)
    )
    return buffer.getvalue()


def live(draw: Callable[..., Figure], **controls: ipywidgets.ValueWidget) -> ipywidgets.VBox:
    """Controls above the figure that draw(name=value, ...) makes of their values, drawn again at each change."""
    picture = ipywidgets.Image(format="png", layout={"max_width": "100%"})

    def update(change: dict | None = None) -> None:
        figure = draw(**{name: control.value for name, control in controls.items()})
        picture.layout.width = f"{round(figure.get_figwidth() * PIXELS)}px"  # else it is stretched to the cell
        picture.value = png(figure, dpi=120)

    for control in controls.values():
        control.observe(update, "value")
    update()
    return ipywidgets.VBox([*controls.values(), picture])


def show(figure: Figure, alt: str) -> None:
    """Display a figure as an image that fits a notebook, with a text for those who cannot see it.

    The figure is narrowed to WIDEST inches, and text below SMALLEST points is enlarged.
    """
    width, height = figure.get_size_inches()
    figure.set_size_inches(min(width, WIDEST), height)
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), SMALLEST))
    display(Image(data=png(figure), width=round(figure.get_figwidth() * PIXELS), alt=alt))


# ---- the environment -------------------------------------------------------------------------------


def check_environment(data: Path = DATA) -> bool:
    """Print a line [OK] or [FAIL] for Python, the packages and the shipped files; a failure names its remedy.

    Returns: whether all is well.
    """
    well = True
    for name, result in _checks(Path(data)):
        failed = isinstance(result, UserError)
        well = well and not failed
        text = f"{'[FAIL]' if failed else '[OK]  '} {name}: {result}"
        print(textwrap.fill(text, 100, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False))
    print("All is well: go on." if well else "Mend what failed, restart the kernel, and run this cell again.")
    return well


def _checks(data: Path) -> Iterator[tuple[str, str | UserError]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["requires-python"]
    python = platform.python_version()
    good = _satisfies(python, wanted)
    yield "Python", python if good else UserError(f"{python} is outside {wanted}: make the environment with another.")
    found = []
    for requirement in project["dependencies"]:
        name, specifier = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        remedy = f'run `%pip install "{requirement}"` in a cell.'
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name, UserError(f"is not installed: {remedy}")
            continue
        found.append(f"{name} {version}")
        if not _satisfies(version, specifier):
            yield name, UserError(f"{version} is outside {specifier}: {remedy}")
    yield "packages", ", ".join(found)
    try:
        yield from _files(data)
    except UserError as e:
        yield "files", e
    except ImportError as e:
        yield "files", UserError(f"cannot be read without {e.name}: install it first.")


def _files(data: Path) -> Iterator[tuple[str, str]]:
    from .backbone import Backbone
    from .coordinator import Coordinator
    from .pool import EmbeddedPool
    from .presets import preset

    p = preset("mini")
    pool = EmbeddedPool(data / "tiny_pool")
    yield "agents", ", ".join(pool.names)
    backbone = Backbone.embedded(data / "coordinator")
    yield "coordinator's language model", f"{backbone.n_layers} layers, d = {backbone.d}"
    coordinator = Coordinator(backbone, len(pool.names), p.head, p.matrices, p.selection)
    theta = coordinator.load(data / "coordinator" / "theta.safetensors", pool.identity)
    yield "trained coordinator", f"{len(theta):,} numbers"


def _satisfies(version: str, specifier: str) -> bool:
    """Whether a version lies in a range of ==, >= and < such as `>=5,<6`; a local part (+cpu) does not count."""

    def number(text: str) -> tuple[int, ...]:
        parts = [int(digits) for digits in re.findall(r"\d+", text.partition("+")[0])]
        return tuple(parts + [0] * (4 - len(parts)))

    v = number(version)
    for part in specifier.split(","):
        operator, bound = re.fullmatch(r"\s*(==|>=|<)\s*(.+)", part).groups()
        b = number(bound)
        if not {"==": v == b, ">=": v >= b, "<": v < b}[operator]:
            return False
    return True


# ---- an episode as a figure ------------------------------------------------------------------------


def turns_figure(episode: Episode, names: Sequence[str], only: int | None = None) -> Figure:
    """An episode turn by turn: the probabilities of the agents and of the roles, who was chosen, what was said.

    only: draw this turn alone (from 0).
    Raises: ValueError if there is no such turn, or if a turn was not chosen by a coordinator.
    """
    turns = list(enumerate(episode.turns, 1))
    if only is not None:
        turns = turns[only : only + 1]
    if not turns or any(t.decision is None or not t.decision.agent_p for _, t in turns):
        raise ValueError("only turns that a coordinator chose can be drawn, and there must be one.")
    figure = Figure(figsize=(9.6, 0.5 + 1.35 * len(turns)), layout="constrained")
    grid = figure.subplots(len(turns), 3, squeeze=False, width_ratios=(1, 1, 1.25))
    for (i, turn), (agents, roles, said) in zip(turns, grid, strict=True):
        _bars(agents, names, turn.decision.agent_p, turn.agent, ["#666666"] * len(names), [""] * len(names))
        labels = [r.label for r in Role]
        _bars(roles, labels, turn.decision.role_p, turn.role, list(COLOURS.values()), list(HATCHES.values()))
        _said(said, i, turn, names)
    grid[0][0].set_title("who? (probabilities)", fontsize=11, loc="left")
    grid[0][1].set_title("as what?", fontsize=11, loc="left")
    grid[0][2].set_title("and says", fontsize=11, loc="left")
    return figure


def _bars(ax: Axes, labels: Sequence[str], p: Sequence[float], chosen: int, colours: list, hatches: list) -> None:
    for i, (value, colour, hatch) in enumerate(zip(p, colours, hatches, strict=True)):
        edge = ("black", 1.8) if i == chosen else ("white", 0)
        ax.barh(i, value, color=colour, hatch=hatch, edgecolor=edge[0], lw=edge[1], alpha=1 if i == chosen else 0.45)
        mark = " \N{BLACK LEFT-POINTING TRIANGLE}" if i == chosen else ""
        ax.text(value + 0.02, i, f"{value:.2f}{mark}", va="center", fontsize=10, weight="bold" if mark else "normal")
    ax.set_yticks(range(len(labels)), labels, fontsize=10)
    ax.get_yticklabels()[chosen].set_fontweight("bold")
    ax.set(xlim=(0, 1.32), ylim=(len(labels) - 0.5, -0.5), xticks=[])
    ax.spines[["top", "right", "bottom"]].set_visible(False)


def _said(ax: Axes, i: int, turn: Turn, names: Sequence[str]) -> None:
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    text = "\n".join(textwrap.wrap(_text(turn), 30, max_lines=4, placeholder=" …"))
    ax.text(0, 0.98, f"Turn {i}: {names[turn.agent]} as {turn.role.label}", fontsize=11, weight="bold", va="top")
    ax.text(0, 0.7, text, fontsize=11, family="monospace", va="top")


# ---- the same with buttons -------------------------------------------------------------------------


class Stepper:
    """Buttons that play episodes turn by turn; an episode is played when its question is chosen, then told slowly.

    choose, own, seed, next, new: the controls (`next.click()` works without a browser).
    picture, story: what they show. episode, shown: the episode and how many of its turns have been told.
    """

    def __init__(self, ask: Ask, names: Sequence[str], prompts: Sequence[str], seed: int = 0) -> None:
        if not prompts:
            raise ValueError("a stepper needs at least one question to begin with.")
        self.ask, self.names = ask, list(names)
        self.episode: Episode | None = None
        self.shown = 0
        wide = {"layout": {"width": "340px"}, "style": {"description_width": "80px"}}
        narrow = {"layout": {"width": "150px"}, "style": {"description_width": "40px"}}
        self.choose = ipywidgets.Dropdown(options=list(prompts), description="question", **wide)
        self.own = ipywidgets.Text(
            description="or your own", placeholder="type it, then Enter", continuous_update=False, **wide
        )
        self.seed = ipywidgets.BoundedIntText(seed, 0, 9999, description="seed", **narrow)
        self.next = ipywidgets.Button(description="Next turn", button_style="primary", icon="step-forward")
        self.new = ipywidgets.Button(description="New question", icon="random")
        self.picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="100%", display="none"))
        self.story = ipywidgets.HTML()
        self.ui = ipywidgets.VBox([
            ipywidgets.HBox([self.choose, self.new]),
            ipywidgets.HBox([self.own, self.seed]),
            self.next, self.picture, self.story,
        ])
        self.choose.observe(self._chosen, "value")
        self.own.observe(lambda change: change["new"] and self.start(change["new"]), "value")
        self.seed.observe(lambda change: self.start(self.own.value or self.choose.value), "value")
        self.next.on_click(lambda button: self.turn())
        self.new.on_click(lambda button: self.question())
        self.start(self.choose.value)

    def _ipython_display_(self) -> None:
        display(self.ui)

    def _chosen(self, change: dict) -> None:
        self.own.value = ""
        self.start(change["new"])

    def question(self) -> None:
        """Go to the next question of the list."""
        options = self.choose.options
        following = options[(options.index(self.choose.value) + 1) % len(options)]
        if following == self.choose.value:
            self._chosen({"new": following})
        else:
            self.choose.value = following  # its observer starts the episode

    def start(self, prompt: str) -> None:
        """Play the episode of a question, and show none of its turns yet."""
        self.episode, self.shown = None, 0
        try:
            if not prompt.strip() or len(prompt) > LONGEST or not prompt.isprintable():
                raise UserError(f"a question is one line of 1 to {LONGEST} characters: type another.")
            self.episode = self.ask(prompt.strip(), self.seed.value)
            problem = ""
        except (UserError, ValueError) as e:
            problem = str(e)
        self._draw(problem)

    def turn(self) -> None:
        """Show one more turn; nothing happens after the last."""
        if self.episode and self.shown < len(self.episode.turns):
            self.shown += 1
            self._draw()

    def _draw(self, problem: str = "") -> None:
        e = self.episode
        over = e is None or self.shown == len(e.turns)
        self.next.disabled = over
        self.picture.layout.display = "block" if self.shown else "none"
        if self.shown:
            self.picture.value = png(turns_figure(e, self.names, self.shown - 1), dpi=110)
        if e is None:
            lines = [html.escape(problem)]
        else:
            lines = [f"Question ({html.escape(e.question.family)}): <code>{html.escape(e.question.prompt)}</code>"]
            lines += [self._line(i, t) for i, t in enumerate(e.turns[: self.shown], 1)]
            if over:
                lines += [f"<b>{html.escape(line)}</b>" for line in _ending(e, self.names)]
            elif not self.shown:
                lines.append("<i>What do you expect? Who should speak first, and as what? Then press Next turn.</i>")
        self.story.value = "<div style='font-size:14px;line-height:1.6'>" + "<br>".join(lines) + "</div>"

    def _line(self, i: int, turn: Turn) -> str:
        name, label = html.escape(self.names[turn.agent]), turn.role.label
        role = f"<span style='border-bottom:3px solid {COLOURS[label]}'>{label}</span>"
        return f"{i}. <b>{name}</b> as {role}: <code>{html.escape(_text(turn))}</code>"


def _text(turn: Turn) -> str:
    return "(the call was lost)" if turn.reply.lost else turn.reply.text or "(an empty reply)"


def _ending(episode: Episode, names: Sequence[str]) -> list[str]:
    """The lines of `told` after the turns: how it ended, and the answer."""
    before = 1 + sum(1 + (t.reply.text or "").count("\n") for t in episode.turns)
    return told(episode, names).split("\n")[before:]


def stepper(ask: Ask, names: Sequence[str], prompts: Sequence[str], seed: int = 0) -> Stepper:
    """A widget that plays questions turn by turn, as the last line of a cell.

    ask: (prompt, seed) -> episode. names: of the agents. prompts: questions to choose from; others can be typed.
    Raises: ValueError if there are no prompts.
    """
    return Stepper(ask, names, prompts, seed)
