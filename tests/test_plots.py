"""What is drawn is what was measured."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from trinity_mini.episode import Episode, Turn
from trinity_mini.files import UserError
from trinity_mini.plots import COLOURS, LOOP, learning_curve, loop_picture, save, skill_map, speakers, training_figures
from trinity_mini.pool import Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, KINDS, Question
from trinity_mini.training import Generation


def generations(n=6, every=2):
    return [
        Generation(i, 24 * i, 0.1 * i, 0.2, 0.5, 0, 3.0, *((0.1 * i, 0.02) if i % every == 0 else (None, None)))
        for i in range(1, n + 1)
    ]


def log(*args):
    from dataclasses import asdict

    return pd.DataFrame([asdict(g) for g in generations(*args)])


def test_learning_curve_shows_rewards_and_the_checked_means():
    figure = learning_curve(log(), {"ceiling": 0.9, "best agent": 0.3})
    [ax] = figure.axes
    line, checked, *across = ax.get_lines()
    assert line.get_xydata().tolist() == pytest.approx(np.array([[24 * i, 0.1 * i] for i in range(1, 7)]))
    assert [row[0] for row in checked.get_xydata().tolist()] == [48, 96, 144]
    levels = [ln.get_ydata()[0] for ln in ax.get_lines() if list(ln.get_xdata()) == [0, 1]]
    assert levels == [0.9, 0.3]
    assert {t.get_text() for t in ax.get_legend().get_texts()} >= {"ceiling", "best agent"}


def test_a_run_without_validation_is_drawn(tmp_path):
    save(learning_curve(log(3, 100)), tmp_path / "x.png")
    save(learning_curve(log(1, 1)), tmp_path / "y.png")


def skills():
    rng = np.random.default_rng(0)
    rows = [
        (agent, family, kind, role, rng.random(), 0.01, 10)
        for agent in ("ada", "bo")
        for family in (*FAMILIES, "math-hard")
        for kind in ("all", *KINDS[family.removesuffix("-hard")])
        for role in ("thinker", "worker", "worker+plan", "verifier")
        if (family, role) != ("know", "worker+plan")
    ]
    return pd.DataFrame(rows, columns=["agent", "family", "kind", "role", "value", "se", "n"])


def test_skill_map_is_a_panel_a_role_and_a_cell_a_kind():
    table = skills()
    table.loc[(table["role"] == "verifier") & (table["kind"] == "infix"), "value"] = np.nan
    figure = skill_map(table)
    panels = figure.axes[:4]
    for ax, role in zip(panels, ("thinker", "worker", "worker+plan", "verifier"), strict=True):
        kinds = [t.get_text() for t in ax.get_xticklabels()]
        agents = [t.get_text() for t in ax.get_yticklabels()]
        assert agents == ["ada", "bo"]
        image = ax.get_images()[0].get_array()
        part = table[(table["role"] == role) & (table["kind"] != "all") & ~table["family"].str.endswith("-hard")]
        assert len(kinds) == len(set(part["kind"][part["value"].notna()]))
        for i, agent in enumerate(agents):
            for j, kind in enumerate(kinds):
                [value] = part[(part["agent"] == agent) & (part["kind"] == kind)]["value"]
                assert image[i, j] == pytest.approx(value)
        assert len(ax.texts) == image.size  # every cell says its value


def turns(families=("math", "know")):
    rows = [
        (f, turn, agent, role)
        for f in families
        for turn, agent, role, many in [(1, "ada", "Thinker", 3), (1, "bo", "Worker", 1), (2, "bo", "Worker", 2)]
        for _ in range(many)
    ]
    return pd.DataFrame(rows, columns=["family", "turn", "agent", "role"])


def test_speakers_heights_are_shares_of_episodes():
    figure = speakers(turns(), ["ada", "bo"])
    assert [ax.get_title() for ax in figure.axes] == ["math", "know"]
    for ax in figure.axes:
        bars = sorted(
            (round(b.get_x() + b.get_width() / 2), to_hex(b.get_facecolor()).upper(), round(b.get_height(), 6))
            for b in ax.patches
            if b.get_height()
        )
        wanted = [(1, COLOURS["Thinker"], 0.75), (1, COLOURS["Worker"], 0.25), (2, COLOURS["Worker"], 0.5)]
        assert bars == sorted(wanted)


def test_colours_differ_also_in_grey():
    from matplotlib.colors import to_rgb

    grey = sorted(np.dot(to_rgb(c), (0.299, 0.587, 0.114)) for c in COLOURS.values())
    assert min(np.diff(grey)) > 0.05


@pytest.mark.parametrize("lit", [None, *LOOP])
def test_the_picture_of_the_loop_lights_one_part(lit):
    figure = loop_picture(lit)
    dark = [p for p in figure.axes[0].patches if to_hex(p.get_facecolor()).upper() == "#0072B2"]
    assert len(dark) == (lit is not None)
    assert {t.get_text() for t in figure.axes[0].texts} >= {title for _, _, title, _ in LOOP.values()}


def test_an_unknown_part_names_the_known():
    with pytest.raises(ValueError, match="choose one of question"):
        loop_picture("tail")


def test_a_figure_is_saved_as_the_same_png_each_time(tmp_path):
    path = save(learning_curve(log()), tmp_path / "new" / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG") and b"Software" not in path.read_bytes()
    assert save(learning_curve(log()), tmp_path / "b.png").read_bytes() == path.read_bytes()
    with pytest.raises(UserError, match="choose another folder"):
        save(learning_curve(log()), path / "c.png")


class Pool:
    names = ["ada", "bo"]

    def __init__(self, folder):
        self.folder = folder


def test_the_figures_of_a_training_run(tmp_path):
    skills().to_csv(tmp_path / "skills.csv", index=False)
    question = Question("math", "infix", "1", "1", "")
    episodes = [Episode(question, (Turn(0, Role.WORKER, Reply("1")),), "1", False, 1.0)]
    paths = training_figures(tmp_path / "figures", generations(), Pool(tmp_path), episodes)
    assert [p.name for p in paths] == ["learning_curve.png", "skills.png", "speakers.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)


def test_without_a_skill_table_the_remedy_is_named(tmp_path):
    with pytest.raises(UserError, match="skills.csv is missing: run `python -m trinity_mini make-pool`"):
        training_figures(tmp_path / "figures", generations(), Pool(tmp_path), [])
    assert not (tmp_path / "figures").exists()
