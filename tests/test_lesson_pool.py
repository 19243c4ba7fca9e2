"""What lesson 01 defines gives the same as the package."""

import json

import numpy as np
import pytest
from lesson import definitions

from trinity_mini.chains import play_chain
from trinity_mini.evaluation import as_chain
from trinity_mini.pool import EmbeddedPool
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, KINDS, draw, grade, question_set
from trinity_mini.templates import prompt_text

LESSON = "01_one_question_many_models.ipynb"


@pytest.fixture(scope="module")
def pool():
    return EmbeddedPool()


def test_a_sum_worked_out_by_hand():
    lesson = definitions(LESSON, "work_out_infix")
    rng = np.random.default_rng(5)
    for family in ("math", "math-hard"):
        for q in (draw(family, "infix", rng) for _ in range(200)):
            assert lesson.work_out_infix(q.prompt) == (q.plan, q.answer)


def test_the_set_by_content():
    lesson = definitions(LESSON, "slot", "SETS")
    rng = np.random.default_rng(6)
    asked = [draw(f, k, rng) for f in FAMILIES for k in KINDS[f] for _ in range(50)]
    assert [lesson.SETS[lesson.slot(q.prompt)] for q in asked] == [q.split for q in asked]
    assert {lesson.slot(q.prompt) for q in asked} == {*range(20)}


def test_line_and_reply(pool):
    lesson = definitions(LESSON, "LETTER", "line", "next_logits", "say")
    for q in question_set("test", 1, seed=12):
        for role in Role:
            for plan in (None, q.plan):
                text = lesson.line(role, q.prompt, plan, q.answer)
                assert text == prompt_text(role, q.prompt, plan, q.answer)
                for agent, model in enumerate(pool.models):
                    assert [lesson.say(model, text)] == pool.speak([(agent, text)])


def test_graders():
    lesson = definitions(LESSON, "GRADERS")
    for q in question_set("test", 5, seed=13):
        for said in (q.answer, f" {q.answer} ", q.answer[:-1], q.answer + "x", "", q.prompt):
            assert lesson.GRADERS["equal"](q.answer, said) == grade(q, said)


def test_a_chain_played_by_hand(pool):
    lesson = definitions(LESSON, "play", "names", "pool")
    lesson["pool"] = pool  # one memory of replies
    recorded = json.loads((pool.folder / "chains.json").read_text(encoding="utf-8"))
    asked = question_set("test", 4, seed=14)
    chains = [as_chain(entry) for group in ("alone", "family", "kind") for entry in recorded[group].values()]
    rng = np.random.default_rng(7)
    chains += [tuple((int(a), Role(int(r))) for a, r in rng.integers((5, 3), size=(5, 2))) for _ in range(4)]
    for chain in chains:
        wanted = play_chain(pool, chain, asked).tolist()
        assert [float(grade(q, lesson.play(chain, q)[1])) for q in asked] == wanted
