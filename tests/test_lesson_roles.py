"""What lesson 10 builds in plain cells is the package's; its prose quotes what it printed; its exercises fit."""

import re

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from lesson import NOTEBOOKS, definitions
from scipy.stats import entropy as scipy_entropy
from test_notebooks import is_checked, output_text

from trinity_mini.ablations import RestrictedHead, Variant
from trinity_mini.analysis import COLUMNS, specialisation, transitions, turns_frame
from trinity_mini.episode import Decision, Episode, Turn
from trinity_mini.head import make_head, softmax
from trinity_mini.pool import Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import Question

NAME = "10_emergent_roles.ipynb"
NAMES = ["ada", "bo", "cy"]


@pytest.fixture(scope="module")
def lesson():
    return definitions(
        NAME, "rows_of", "follows", "entropy", "information", "bits", "bootstrap", "transition_matrix", "extra_bits",
        "chance_level", "closed_softmax", "paired_seeds",
    )  # fmt: skip


@pytest.fixture(scope="module")
def episodes():
    """Random conversations; family and kind weigh a little on who speaks."""
    rng, out = np.random.default_rng(0), []
    for i in range(60):
        family = ("math", "code", "know")[i % 3]
        question = Question(family, f"{family} {i % 2}", f"q{i}", "1", "")
        turns = []
        for _ in range(int(rng.integers(1, 6))):
            agent = int(rng.choice(3, p=np.roll([0.6, 0.3, 0.1], i % 3)))
            role = Role(int(rng.integers(3)))
            turns.append(Turn(agent, role, Reply("1"), Decision(agent, role)))
        out.append(Episode(question, tuple(turns), "1", False, float(rng.random() < 0.5)))
    return out


@pytest.fixture(scope="module")
def turns(episodes):
    return turns_frame(episodes, NAMES)


def test_rows_are_the_packages(lesson, episodes, turns):
    pd.testing.assert_frame_equal(pd.DataFrame(lesson.rows_of(episodes, NAMES), columns=COLUMNS), turns)


def test_transitions_are_the_packages(lesson, turns):
    counts, wanted = lesson.follows(turns), transitions(turns)
    pd.testing.assert_frame_equal(counts.div(counts.sum(axis=1), axis=0), wanted, check_names=False)
    spoken = (turns.agent + " " + turns.role).groupby(turns.episode).agg(list).tolist()
    speakers = [s for s in wanted.columns if s != "end"]
    matrix = lesson.transition_matrix(spoken, speakers)
    np.testing.assert_allclose(matrix, wanted.reindex([*speakers, "start"])[[*speakers, "end"]])


def test_information_is_the_packages_and_a_sum_of_entropies(lesson, turns):
    joint = pd.crosstab(turns.family, [turns.agent, turns.role]).to_numpy(float)
    assert lesson.information(joint) == pytest.approx(specialisation(turns, 5, 0)["bits"])
    p = joint / joint.sum()
    h = [scipy_entropy(x.ravel(), base=2) for x in (p.sum(1), p.sum(0), p)]
    assert lesson.information(joint) == pytest.approx(h[0] + h[1] - h[2])
    assert lesson.entropy(p.sum(1)) == pytest.approx(h[0])
    assert lesson.bits(turns.family, turns.agent + turns.role) == pytest.approx(lesson.information(joint))


def test_the_interval_is_the_packages(lesson, turns):
    found, wanted = lesson.bootstrap(turns, 100, 3), specialisation(turns, 100, 3)
    np.testing.assert_allclose(np.maximum(found, 0), [wanted["low"], wanted["high"]])


def test_the_chance_level_is_the_packages(lesson, turns):
    counts = pd.crosstab(turns.episode, [turns.agent, turns.role]).to_numpy()
    families = turns.groupby("episode").family.first().factorize()[0]
    found = lesson.chance_level(families, counts, 2000, np.random.default_rng(0))
    assert found == pytest.approx(specialisation(turns, 2000, 1)["chance"], rel=0.03)


def test_bits_of_the_kind_add_up(lesson, turns):
    speaker = (turns.agent + turns.role).to_numpy()
    more = lesson.extra_bits(turns.family.to_numpy(), turns.kind.to_numpy(), speaker)
    assert more == pytest.approx(lesson.bits(turns.kind, speaker) - lesson.bits(turns.family, speaker))


def test_a_closed_output_is_the_packages(lesson):
    rng = np.random.default_rng(0)
    head = RestrictedHead(make_head("linear", 8, 3), Variant("x", agents=(0, 2), roles=(Role.WORKER, Role.VERIFIER)))
    plain = make_head("linear", 8, 3)
    h, w = torch.from_numpy(rng.normal(size=(5, 8))).float(), torch.from_numpy(rng.normal(size=plain.n)).float()
    for closed, z, opened in zip(head(h, w), plain(h, w), ([True, False, True], [True, False, True]), strict=True):
        np.testing.assert_allclose(
            softmax(closed), lesson.closed_softmax(z.double().numpy(), np.array(opened)), atol=1e-6
        )


# ---- the stored notebook -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOKS / NAME, as_version=4)


def test_the_prose_quotes_checked_numbers_only(notebook):
    outputs = "\n".join(output_text(c) for c in notebook.cells if c.cell_type == "code" and is_checked(c))
    printed = set(re.findall(r"\d+\.\d+", outputs))
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    prose = re.sub(r"arXiv \d+\.\d+|[Ee]xercise \d+\.\d|<details>.*?</details>", "", prose, flags=re.DOTALL)
    assert [n for n in re.findall(r"\d+\.\d+", prose) if n not in printed] == []


def test_size_and_folds(notebook):
    assert 40 <= len(notebook.cells) <= 100
    for cell in notebook.cells:
        if cell.cell_type == "code" and "nbgrader" not in cell.metadata:
            assert sum(bool(line.strip()) for line in cell.source.splitlines()) <= 12, cell.source
    words = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert words.count("<details>") == words.count("</details>") == 5 + 3
    assert words.count("What do you expect") >= 5
    graded = [c.metadata["nbgrader"]["points"] for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert graded == [2, 3, 3, 2, 2]


def test_every_figure_has_words_for_those_who_cannot_see_it(notebook):
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.get("outputs", [])]
    pictures = [o for o in shown if "image/png" in o.get("data", {})]
    assert len(pictures) >= 12
    assert all(o.metadata.get("image/png", {}).get("alt") for o in pictures)


def test_sources_are_named(notebook):
    """Live, recorded or quoted: each section with figures says which."""
    words = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    sections = re.split(r"^## (?=\d+ )", words, flags=re.MULTILINE)[1:]
    assert len(sections) == 10
    for section in sections:
        assert re.search(r"\bLive\b|[Rr]ecorded|[Qq]uoted", section), section[:60]
