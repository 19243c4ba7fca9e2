"""The training loop that lesson 07 builds in plain cells is the package's; its prose quotes what it printed."""

import io
import re
import tokenize
from dataclasses import replace

import nbformat
import numpy as np
import pytest
from lesson import NOTEBOOKS, definitions
from test_notebooks import is_checked, output_text
from world import ScriptedPool, coordinator

from trinity_mini.analysis import told
from trinity_mini.episode import play, run
from trinity_mini.presets import preset
from trinity_mini.pycma_strategy import pycma_strategy
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.training import Router, TrainingRun, draw_questions, mean_reward, play_policy, uniforms

NAME = "07_training.ipynb"


@pytest.fixture
def lesson():
    """The lesson's loop over a small world of its own."""
    space = definitions(NAME, "chooser", "SEED", "M", "questions_of", "draws_of", "rewards_of")
    space.update(
        coordinator=coordinator(2), pool=ScriptedPool(), train=[questions(f, "train", 240, 0) for f in FAMILIES]
    )
    return space


def thetas_of(lesson, lam=6, size=3.0):
    rng = np.random.default_rng(0)
    return size * rng.standard_normal((lam, lesson.coordinator.n)) * lesson.coordinator.stds(1, 0.1)


@pytest.mark.parametrize("generation", [0, 1, 17])
def test_questions_and_draws(generation, lesson):
    assert lesson.questions_of(generation) == draw_questions(lesson.train, lesson.M, lesson.SEED, generation, 0, 1)
    for i in range(lesson.M):
        wanted = uniforms(5, lesson.SEED, generation, 0, 2, i)
        np.testing.assert_array_equal(lesson.draws_of(generation, i), wanted)


def test_the_chooser_decides_like_the_router(lesson):
    theta, draws = thetas_of(lesson, 1)[0], np.random.default_rng(1).random((5, 2))
    question = lesson.train[1][3]
    mine = run(play(question, lesson.chooser(theta, draws), lesson.pool))
    theirs = run(play(question, Router(lesson.coordinator, theta).decide(0, draws), lesson.pool))
    assert len(mine.turns) == len(theirs.turns) and mine.answer == theirs.answer
    for a, b in zip(mine.turns, theirs.turns, strict=True):
        assert (a.agent, a.role, a.reply.text) == (b.agent, b.role, b.reply.text)
        np.testing.assert_allclose([*a.decision.agent_p, *a.decision.role_p], [*b.decision.agent_p, *b.decision.role_p])
    assert told(mine, lesson.pool.names) == told(theirs, lesson.pool.names)


def test_the_loop_trains_like_the_package(lesson, tmp_path):
    small = replace(preset("mini"), popsize=6, generations=4, validate_every=9, validation_per_family=3)
    log = list(TrainingRun(tmp_path, lesson.coordinator, lesson.pool, small, lesson.SEED))
    n = lesson.coordinator.n
    es = pycma_strategy(np.zeros(n), small.sigma0, lesson.SEED, 6, lesson.coordinator.stds(1.0, small.svf_scale))
    for generation, g in enumerate(log):
        thetas = es.ask()
        fitness = np.array([lesson.rewards_of(theta, generation) for theta in thetas]).mean(axis=1)
        es.tell(thetas, list(-fitness))
        assert (fitness.mean(), fitness.max(), es.sigma) == (g.reward, g.best, g.sigma)
    assert len({g.reward for g in log}) > 1
    theta = lesson.coordinator.load(tmp_path / "theta.safetensors", lesson.pool.identity)
    np.testing.assert_array_equal(theta, es.result.xfavorite)


def test_the_bad_line_loses_its_share_and_always_the_same_calls():
    Losing = definitions(NAME, "LosingPool").LosingPool
    c, theta = coordinator(2), thetas_of_zero(2)
    asked = [q for f in FAMILIES for q in questions(f, "test", 60, 0)]
    whole = play_policy(c, theta, asked, Losing(ScriptedPool(), 0.0), preset("mini"), 3)
    assert mean_reward(whole) == mean_reward(play_policy(c, theta, asked, ScriptedPool(), preset("mini"), 3))
    lossy = [play_policy(c, theta, asked, Losing(ScriptedPool(), 0.1), preset("mini"), 3) for _ in range(2)]
    assert lossy[0] == lossy[1]
    calls = sum(len(e.turns) for e in lossy[0])
    lost = sum(e.reward is None for e in lossy[0])
    assert abs(lost / calls - 0.1) < 5 * (0.09 / calls) ** 0.5
    assert all(a == b for a, b in zip(lossy[0], whole, strict=True) if a.reward is not None)
    assert mean_reward(play_policy(c, theta, asked, Losing(ScriptedPool(), 1.0), preset("mini"), 3))[2] == len(asked)


def thetas_of_zero(n_agents):
    return np.zeros(coordinator(n_agents).n)


def test_the_solutions_agree_with_the_package():
    """The exercises' own oracles stand in checks_training; here, what they share with the package."""
    space = definitions(NAME, "mean_and_error")

    class Ended:
        def __init__(self, reward):
            self.reward = reward

    rewards = [1.0, None, 0.0, 1.0, 1.0, None]
    assert space.mean_and_error(rewards) == pytest.approx(mean_reward([Ended(r) for r in rewards]))


# ---- the text ---------------------------------------------------------------------------------------


def cells():
    return nbformat.read(NOTEBOOKS / NAME, as_version=4).cells


def test_the_prose_quotes_checked_numbers_only():
    printed = "\n".join(output_text(c) for c in cells() if c.cell_type == "code" and is_checked(c))
    numbers = set(re.findall(r"\d+\.\d+|\d+%", printed))
    prose = "\n".join(c.source for c in cells() if c.cell_type == "markdown").replace("2512.04695", "")
    prose = re.sub(r"Exercise \d\.\d|\bin 7\.1\b", "", prose)
    quoted = re.findall(r"\d+\.\d+|\d+ ?%", prose)
    assert quoted, "the prose quotes no number: has the pattern gone wrong?"
    assert [n for n in quoted if n.replace(" ", "") not in numbers] == []


def test_it_reads_well():
    found = cells()
    assert 40 <= len(found) <= 100
    for cell in found:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            tokens = tokenize.generate_tokens(io.StringIO(cell.source).readline)
            logical = sum(token.type == tokenize.NEWLINE for token in tokens)  # a wrapped line is one
            assert logical <= (25 if "nbgrader" in cell.metadata else 12), cell.source
            assert len(lines) <= (25 if "nbgrader" in cell.metadata else 18), cell.source
            assert "interact(" not in cell.source  # its Output widget now and then hangs nbconvert
    words = "\n".join(c.source for c in found if c.cell_type == "markdown")
    assert words.count("<details>") == words.count("</details>") == 5 + 3  # hints and answers
    assert words.count("**What do you expect") >= 8
    images = [o for c in found if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(images) >= 14
    assert all(o.metadata.get("image/png", {}).get("alt") for o in images if o.output_type == "display_data")
