"""The environment check, the figures of an episode, and the stepper, driven without a browser."""

import functools
import importlib.metadata
import io
import re
import shutil
from dataclasses import replace

import ipywidgets
import numpy as np
import PIL.Image
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from trinity_mini import plots, widgets
from trinity_mini.episode import Decision, Episode, Turn
from trinity_mini.files import DATA, UserError
from trinity_mini.pool import Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import recognise

NAMES = ("ann", "ben")


def turn(agent, role, text):
    return Turn(agent, role, Reply(text), Decision(agent, role, (0.75, 0.25), (0.5, 0.3, 0.2)))


def scripted(prompt, seed=0):
    """An episode of three turns whose answer is the seed."""
    turns = (turn(0, Role.THINKER, "a plan"), turn(1, Role.WORKER, str(seed)), turn(0, Role.VERIFIER, "ACCEPT well"))
    return Episode(recognise(prompt), turns, str(seed), True, 0.0)


def said(player):
    """What the story says, without its tags."""
    return re.sub(r"<[^>]+>", " ", player.story.value)


# --- the environment ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("2.13.0", "==2.13.0", True),
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("5.0", ">=5,<6", True),
        ("6.0.0", ">=5,<6", False),
        ("4.99.9", ">=5,<6", False),
        ("3.14.0", ">=3.11,<3.14", False),
        ("3.9.18", ">=3.11,<3.14", False),
        ("3.13.7", ">=3.11,<3.14", True),
        ("0.13.2", ">=0.13.2,<1", True),
    ],
)
def test_satisfies(version, specifier, expected):
    assert widgets._satisfies(version, specifier) is expected


def lines_of(capsys):
    """The printed checks, a wrapped one on one line."""
    return capsys.readouterr().out.replace("\n       ", " ").splitlines()


def test_environment_is_well(capsys):
    assert widgets.check_environment() is True
    lines = lines_of(capsys)
    assert [line[:6] for line in lines[:-1]] == ["[OK]  "] * (len(lines) - 1)
    assert {line.split(":")[0][7:] for line in lines} >= {"Python", "packages", "agents", "trained coordinator"}


def test_a_missing_package_is_named_with_the_remedy(capsys, monkeypatch):
    real = importlib.metadata.version

    def version(name):
        if name == "cma":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert widgets.check_environment() is False
    (failed,) = [line for line in lines_of(capsys) if line.startswith("[FAIL]")]
    assert failed == '[FAIL] cma: is not installed: run `%pip install "cma>=4,<5"` in a cell.'


def test_a_wrong_version_is_named_with_the_remedy(capsys, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.26.4" if name == "numpy" else real(name))
    assert widgets.check_environment() is False
    (failed,) = [line for line in lines_of(capsys) if line.startswith("[FAIL]")]
    assert "numpy: 1.26.4 is outside >=2,<3" in failed and '%pip install "numpy>=2,<3"' in failed


def test_a_wrong_python_is_named(capsys, monkeypatch):
    monkeypatch.setattr(widgets.platform, "python_version", lambda: "3.9.1")
    assert widgets.check_environment() is False
    assert lines_of(capsys)[0].startswith("[FAIL] Python: 3.9.1 is outside >=3.11,<3.14")


def test_missing_and_damaged_files_are_named_with_the_remedy(capsys, tmp_path):
    assert widgets.check_environment(tmp_path) is False
    assert any("make-pool" in line for line in lines_of(capsys) if line.startswith("[FAIL]"))
    shutil.copytree(DATA / "tiny_pool", tmp_path / "tiny_pool")
    shutil.copytree(DATA / "coordinator", tmp_path / "coordinator")
    assert widgets.check_environment(tmp_path) is True
    theta = tmp_path / "coordinator" / "theta.safetensors"
    theta.write_bytes(theta.read_bytes()[:100])
    capsys.readouterr()
    assert widgets.check_environment(tmp_path) is False
    (failed,) = [line for line in lines_of(capsys) if line.startswith("[FAIL]")]
    assert "truncated" in failed and "restore it" in failed


# --- figures ------------------------------------------------------------------------------


@pytest.mark.parametrize("lit", [None, *plots.LOOP])
def test_loop_picture_lights_one_part(lit):
    figure = plots.loop_picture(lit)
    dark = [p for p in figure.axes[0].patches if p.get_facecolor()[:3] == (0.0, 114 / 255, 178 / 255)]
    assert len(dark) == (lit is not None)
    assert min(t.get_fontsize() for t in figure.axes[0].texts if t.get_text()) >= 10


def test_loop_picture_is_told_apart_in_grey():
    """Mean lightness of the lit box is far below that of the others, and the picture fits 1280 pixels."""
    figure = plots.loop_picture("head")
    pixels = image.imread(io.BytesIO(widgets.png(figure, dpi=100)))[..., :3].mean(-1)
    height, width = pixels.shape
    assert width <= 1280
    column = {part: (x + 0.48) / 5.1 for part, (x, *_) in plots.LOOP.items()}
    box = {part: pixels[int(0.1 * height), int(column[part] * width)] for part in ("question", "head")}
    assert box["head"] < 0.6 < 0.9 < box["question"]


def test_loop_picture_refuses_an_unknown_part():
    with pytest.raises(ValueError, match="choose one of question, transcript"):
        plots.loop_picture("tail")


def test_turns_figure_shows_probabilities_choice_and_text():
    figure = widgets.turns_figure(scripted("capital peru"), NAMES)
    assert len(figure.axes) == 9
    agents, roles, words = figure.axes[3:6]  # the second turn
    assert [bar.get_width() for bar in agents.patches] == [0.75, 0.25]
    assert [bar.get_linewidth() > 1 for bar in agents.patches] == [False, True]
    assert [t.get_text() for t in roles.get_yticklabels()] == ["Worker", "Thinker", "Verifier"]
    assert [bar.get_linewidth() > 1 for bar in roles.patches] == [True, False, False]
    assert [bar.get_facecolor()[:3] for bar in roles.patches] == [
        tuple(int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)) for c in (plots.COLOURS[r.label] for r in Role)
    ]
    assert words.texts[0].get_text() == "Turn 2: ben as Worker"
    assert words.texts[1].get_text() == "0"


def test_turns_figure_of_one_turn():
    figure = widgets.turns_figure(scripted("capital peru"), NAMES, only=2)
    assert figure.axes[2].texts[0].get_text() == "Turn 3: ann as Verifier"


def test_turns_figure_refuses_what_it_cannot_draw():
    e = scripted("capital peru")
    for wrong in (replace(e, turns=()), replace(e, turns=(Turn(0, Role.WORKER, Reply("x")),))):
        with pytest.raises(ValueError, match="only turns that a coordinator chose"):
            widgets.turns_figure(wrong, NAMES)
    with pytest.raises(ValueError, match="there must be one"):
        widgets.turns_figure(e, NAMES, only=9)


def test_show_displays_png_with_a_text(monkeypatch):
    shown = []
    monkeypatch.setattr(widgets, "display", shown.append)
    figure = Figure(figsize=(2, 1))
    widgets.show(figure, alt="nothing")
    data, metadata = shown[0]._repr_mimebundle_()
    assert shown[0].data.startswith(b"\x89PNG") and "image/png" in data
    assert (metadata["image/png"]["width"], metadata["image/png"]["alt"]) == (192, "nothing")
    assert widgets.png(figure) == widgets.png(figure)


def test_show_makes_a_wide_figure_readable(monkeypatch):
    shown = []
    monkeypatch.setattr(widgets, "display", shown.append)
    figure = Figure(figsize=(14, 3))
    small, large = figure.text(0, 0, "small", fontsize=5), figure.text(0, 1, "large", fontsize=12)
    widgets.show(figure, alt="")
    assert tuple(figure.get_size_inches()) == (9.6, 3)
    assert (small.get_fontsize(), large.get_fontsize()) == (8, 12)
    assert image.imread(io.BytesIO(shown[0].data)).shape[:2] == (450, 1440)


# --- the stepper --------------------------------------------------------------------------


def test_stepper_tells_an_episode_turn_by_turn():
    player = widgets.stepper(scripted, NAMES, ["capital peru", "symbol iron"], seed=7)
    assert "capital peru" in said(player) and "What do you expect?" in said(player)
    assert player.picture.layout.display == "none" and not player.next.disabled
    pictures = set()
    for i, words in enumerate(["ann  as  Thinker", "ben  as  Worker", "ann  as  Verifier"], 1):
        player.next.click()
        assert f"{i}.  {words}" in said(player) and said(player).count(" as ") == i
        assert player.picture.layout.display == "block"
        pictures.add(bytes(player.picture.value))
        assert ("The Verifier accepted." in said(player)) == (i == 3)
    assert len(pictures) == 3 and all(p.startswith(b"\x89PNG") for p in pictures)
    assert player.next.disabled and "Answer: 7 (wrong, it is lima)" in said(player)
    player.next.click()
    assert player.shown == 3


def test_new_question_goes_round_and_starts_afresh():
    player = widgets.stepper(scripted, NAMES, ["capital peru", "symbol iron"])
    player.next.click()
    for prompt in ("symbol iron", "capital peru"):
        player.new.click()
        assert player.choose.value == prompt and prompt in said(player)
        assert player.shown == 0 and player.picture.layout.display == "none" and not player.next.disabled
    only = widgets.stepper(scripted, NAMES, ["capital peru"])
    only.next.click()
    only.new.click()
    assert only.shown == 0


def test_a_typed_question_is_played_and_the_list_takes_over_again():
    player = widgets.stepper(scripted, NAMES, ["capital peru", "symbol iron"])
    player.own.value = "who are <b>you</b>?"
    assert player.episode.question.prompt == "who are <b>you</b>?"
    assert "<b>you" not in player.story.value and "&lt;b&gt;you" in player.story.value
    player.seed.value = 3
    assert player.episode.answer == "3" and player.episode.question.family == "unknown"
    player.choose.value = "symbol iron"
    assert player.own.value == "" and player.episode.question.prompt == "symbol iron"


@pytest.mark.parametrize("typed", ["   ", "x" * 121, "two\nlines"])
def test_a_question_that_cannot_be_asked_says_why(typed):
    player = widgets.stepper(scripted, NAMES, ["capital peru"])
    player.next.click()
    player.start(typed)
    assert "one line of 1 to 120 characters" in said(player)
    assert player.next.disabled and player.picture.layout.display == "none"
    player.next.click()
    player.own.value = "capital chile"
    assert not player.next.disabled and "capital chile" in said(player)


def test_an_error_that_the_user_can_mend_is_shown():
    def ask(prompt, seed):
        raise UserError("the pool is away: <wait>.")

    player = widgets.stepper(ask, NAMES, ["capital peru"])
    assert "the pool is away: &lt;wait&gt;." in player.story.value


def test_lost_and_empty_replies_are_named():
    def ask(prompt, seed):
        turns = (turn(0, Role.WORKER, ""), turn(1, Role.WORKER, None))
        return Episode(recognise(prompt), turns, None, False, None)

    player = widgets.stepper(ask, NAMES, ["capital peru"])
    player.next.click()
    assert "(an empty reply)" in said(player)
    player.next.click()
    assert "(the call was lost)" in said(player) and "not scored" in said(player)


def test_a_stepper_needs_a_question():
    with pytest.raises(ValueError, match="at least one question"):
        widgets.stepper(scripted, NAMES, [])


def test_the_stepper_is_displayed_as_its_widget(monkeypatch):
    shown = []
    monkeypatch.setattr(widgets, "display", shown.append)
    player = widgets.stepper(scripted, NAMES, ["capital peru"])
    player._ipython_display_()
    assert shown == [player.ui]


# --- with what is shipped -----------------------------------------------------------------


@functools.cache
def shipped():
    """The names of the shipped agents and a function that plays a question with the shipped coordinator."""
    from trinity_mini.backbone import Backbone
    from trinity_mini.coordinator import Coordinator
    from trinity_mini.pool import EmbeddedPool
    from trinity_mini.presets import preset
    from trinity_mini.training import play_policy

    mini, pool, backbone = preset("mini"), EmbeddedPool(), Backbone.embedded()
    coordinator = Coordinator(backbone, len(pool.names), mini.head, mini.matrices, mini.selection)
    theta = coordinator.load(DATA / "coordinator" / "theta.safetensors", pool.identity)
    return pool.names, lambda prompt, seed=0: play_policy(coordinator, theta, [recognise(prompt)], pool, mini, seed)[0]


@pytest.mark.parametrize("prompt", ["(3*6-3)%7", "36*3-7%", "incdecnum:abcd", ">tv,wz,zj,ut,jq?w", "capital peru"])
def test_the_shipped_coordinator_steps_through_a_question(prompt):
    names, ask = shipped()
    player = widgets.stepper(ask, names, [prompt, "symbol iron"])
    while not player.next.disabled:
        player.next.click()
    episode = ask(prompt)
    assert player.shown == len(episode.turns) >= 1
    for i, t in enumerate(episode.turns, 1):
        assert f"{i}.  {names[t.agent]}  as  {t.role.label}" in said(player)
        assert sum(t.decision.agent_p) == pytest.approx(1) == pytest.approx(sum(t.decision.role_p))
    assert f"Answer: {episode.answer}" in said(player)


def test_the_same_seed_tells_the_same_story():
    names, ask = shipped()
    stories = []
    for _ in range(2):
        player = widgets.stepper(ask, names, ["(3*6-3)%7"], seed=5)
        while not player.next.disabled:
            player.next.click()
        stories.append(player.story.value)
    assert stories[0] == stories[1]


def test_any_typed_question_gets_an_answer_or_a_reason():
    names, ask = shipped()
    player = widgets.stepper(ask, names, ["capital peru"])
    for typed in ("hello there", "TWVA.#>", "ÄÖ 😀", "(9*9+9)%0", "x" * 120):
        player.own.value = typed
        while not player.next.disabled:
            player.next.click()
        assert "nobody can grade it" in said(player) or "No Worker spoke" in said(player), typed


def test_live_draws_again_when_a_control_moves():
    drawn = []

    def draw(u, name):
        drawn.append((u, name))
        figure = Figure(figsize=(2, 1))
        figure.subplots().plot([0, u])
        return figure

    slider, choice = ipywidgets.FloatSlider(0.5, min=0, max=1), ipywidgets.Dropdown(options=["a", "b"])
    box = widgets.live(draw, u=slider, name=choice)
    assert box.children[:2] == (slider, choice) and drawn == [(0.5, "a")]
    picture = box.children[2]
    slider.value = 1.0
    choice.value = "b"
    assert drawn == [(0.5, "a"), (1.0, "a"), (1.0, "b")]
    assert bytes(picture.value) == widgets.png(draw(1.0, "b"), dpi=120) and picture.format == "png"
    assert (picture.layout.width, picture.layout.max_width) == ("192px", "100%")  # as `show`, and never stretched


def test_256_colours_are_enough_for_a_figure():
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots(1, 2)
    axes[0].imshow(np.linspace(0, 1, 400).reshape(20, 20), cmap="viridis")
    axes[1].plot([0, 1], [1, 0], color="#0072B2")
    full = io.BytesIO()
    figure.savefig(full, format="png", dpi=150)
    small = widgets.png(figure)
    wanted, found = (np.asarray(PIL.Image.open(b).convert("RGB"), float) for b in (full, io.BytesIO(small)))
    assert wanted.shape == found.shape and abs(wanted - found).mean() < 1.5
    assert len(small) < 0.7 * len(full.getvalue())
