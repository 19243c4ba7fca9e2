"""What lesson 05 builds is the package's: renderings, parsing, the loop, and batches."""

import asyncio

import numpy as np
import pytest
from lesson import definitions
from world import ScriptedPool

from trinity_mini.episode import PAPER, Rules, Transcript, Turn, fixed, play, run, uniforms
from trinity_mini.pool import Batcher, Reply, tiny_prompt
from trinity_mini.roles import Role, accepts, answer_in, suggested_role
from trinity_mini.tasks import question_set
from trinity_mini.templates import router_text

T, W, V = Role.THINKER, Role.WORKER, Role.VERIFIER
TEXTS = [
    "2r1", "", " 7 ", "so <answer>x</answer> it is", "<ANSWER>a\nb</answer>", "<answer>3",
    "<answer>1</answer> or <answer>2</answer>", "ACCEPT", "ACCEPT 22+", "**ACCEPT**", " \n[ACCEPT]", "accept",
    "ACCEPTED", "ACCEPT_", "Verdict: ACCEPT", "REVISE", "REJECT", "REVISE, never ACCEPT", "Next: worker",
    "x\nnext:VERIFIER.", "Next: workers", "What next: worker", "7r7.VACCEPT 77+", "Worker: 9", "Question: 1+1",
    "_ACCEPT_", "__ACCEPT__ fine", "_ACCEPT_x", "ACCEPT or REVISE? REVISE, it is wrong", "ACCEPT/REVISE: REVISE",
    "ACCEPT? No: REVISE", "**ACCEPT** OR **REVISE**", "[ACCEPT]|[REVISE]", "_ACCEPT_?", "ACCEPT orders",
    "V#>", "ACCACCEPTEPT", ": : ", "T.W.V",
]  # fmt: skip


@pytest.fixture(scope="module")
def lesson():
    return definitions(
        "05_the_loop.ipynb", "messages", "one_line", "accepted", "for_router", "answer_of", "suggestion", "play_one",
        "dice", "chooser", "together", "flush", "gatherer",
    )  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_parsing(text, lesson):
    assert lesson.accepted(text) is accepts(text)
    assert lesson.answer_of(text) == answer_in(text)
    role = suggested_role(text)
    assert lesson.suggestion(text) == (None if role is None else role.label.lower())


def test_renderings(lesson):
    rng = np.random.default_rng(1)
    for _ in range(300):
        n = int(rng.integers(6))
        talk = [(int(rng.integers(5)), Role(int(rng.integers(3))), str(rng.choice(TEXTS))) for _ in range(n)]
        transcript = Transcript("capital peru", tuple(Turn(a, r, Reply(text)) for a, r, text in talk))
        for role in Role:
            chat = lesson.messages("capital peru", talk, role)
            assert chat == transcript.messages(role)
            assert lesson.one_line(chat) == tiny_prompt(chat)
        assert lesson.for_router("capital peru", talk) == router_text(transcript)


@pytest.mark.parametrize("budget", [1, 3, 5])
def test_the_loop(budget, lesson):
    endings = set()
    for i, q in enumerate(question_set("test", 20, seed=9)):
        choices = [(int(2 * a), Role(int(3 * r))) for a, r in uniforms(budget, 9, i)]
        talk, answer, reward = run(lesson.play_one(q, lesson.chooser(choices), ScriptedPool(), budget))
        e = run(play(q, fixed(choices), ScriptedPool(), Rules(budget)))
        assert talk == [(t.agent, t.role, t.reply.text) for t in e.turns]
        assert (answer, reward) == (e.answer, e.reward)
        endings.add((e.accepted, e.reward))
    assert len(endings) >= (2 if budget == 1 else 4)  # accepted or not, right or wrong


def test_the_lessons_loop_has_the_papers_budget(lesson):
    q = question_set("test", 1, seed=0)[0]
    talk, _, _ = run(lesson.play_one(q, lesson.chooser([(0, T)] * 9), ScriptedPool()))
    assert len(talk) == PAPER.max_turns == 5


def test_batches(lesson):
    """Who asks in one tick is answered in one batch, as by the package's Batcher."""

    async def ask_twice(ask, x):
        return await ask(x) + await ask(10 * x)

    def batches(make):
        seen = []

        def answer_all(items):
            seen.append(list(items))
            return [item + 1 for item in items]

        async def everybody():
            ask = make(answer_all)
            first = await asyncio.gather(*(ask_twice(ask, x) for x in range(5)))
            return [*first, await ask(100)]

        return run(everybody()), seen

    sizes = []
    ours, theirs = batches(lambda answer_all: lesson.gatherer(answer_all, sizes)), batches(Batcher)
    assert ours == theirs and ours[1] == [[0, 1, 2, 3, 4], [0, 10, 20, 30, 40], [100]]
    assert sizes == [5, 5, 1]


def test_the_dice_are_the_same_for_every_budget(lesson):
    assert lesson.dice(3, 6)[:2] == lesson.dice(3, 2) and lesson.dice(3) != lesson.dice(4)
    assert len({a for i in range(40) for a, _ in lesson.dice(i)}) == 5
