"""The episode loop, played by scripted pools: every way to end, every switch, and running it anywhere."""

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from trinity_mini.episode import (
    PAPER,
    RELEASED,
    Decision,
    Episode,
    Rules,
    Transcript,
    Turn,
    fixed,
    play,
    play_all,
    run,
    uniforms,
)
from trinity_mini.files import UserError
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.roles import PROMPTS, Role
from trinity_mini.tasks import Question, questions
from trinity_mini.tiny_lm import TinyConfig, TinyLM

T, W, V = Role.THINKER, Role.WORKER, Role.VERIFIER
QUESTION = Question("math", "infix", "(3*6-3)%7", "2r1", "(18-3)%7,15%7")


class Scripted:
    """A pool that says its lines in turn (None: a lost call) and keeps what it was asked."""

    names, identity = ("zero", "one"), "scripted"

    def __init__(self, *lines):
        self.lines, self.heard = list(lines), []

    async def reply(self, agent, messages):
        self.heard.append((agent, [m["content"] for m in messages]))
        await asyncio.sleep(0)
        return Reply(self.lines[len(self.heard) - 1])


def played(roles, lines, rules=PAPER):
    pool = Scripted(*lines)
    rules = replace(rules, max_turns=rules.max_turns if len(roles) < 6 else len(roles))
    episode = run(play(QUESTION, fixed([(i % 2, r) for i, r in enumerate(roles)]), pool, rules))
    assert len(episode.turns) == len(pool.heard)
    return episode, pool


# ---------------------------------------------------------------- how episodes end


@pytest.mark.parametrize(
    "roles, lines, turns, answer, accepted, reward",
    [
        pytest.param([W, V], ["2r1", "ACCEPT 22+"], 2, "2r1", True, 1, id="accept"),
        pytest.param([W, V], ["3r1", "ACCEPT"], 2, "3r1", True, 0, id="accept of a wrong answer"),
        pytest.param([T, W, V], ["15%7", "<answer>2r1</answer>", "**ACCEPT**"], 3, "2r1", True, 1, id="plan"),
        pytest.param([W] * 5, ["a", "b", "c", "d", " 2r1 "], 5, "2r1", False, 1, id="five turns, the last answer"),
        pytest.param([W] * 5, ["2r1", "b", "c", "d", "e"], 5, "e", False, 0, id="five turns, the first was right"),
        pytest.param(
            [W, V, W, V, T], ["1", "REVISE", "2r1", "accept", "x"], 5, "2r1", False, 1, id="nobody accepts"
        ),
        pytest.param([V, W, V], ["ACCEPT", "2r1", "ACCEPT"], 3, "2r1", True, 1, id="a verifier before any worker"),
        pytest.param([V] * 5, ["ACCEPT"] * 5, 5, None, False, 0, id="verifiers only"),
        pytest.param([T] * 5, ["2r1", "<answer>2r1</answer>", *"xyz"], 5, None, False, 0, id="thinkers only"),
        pytest.param([T, V, W, V], ["2r1", "ACCEPT", "", "ACCEPT"], 4, "", True, 0, id="an empty answer is one"),
        pytest.param([W, T], ["2r1", None], 2, None, False, None, id="lost call"),
        pytest.param([W], [None], 1, None, False, None, id="lost at once"),
        pytest.param([W, V], ["2r1", None], 2, None, False, None, id="lost verdict"),
        pytest.param(
            [W] * 5, ["x.\nVerifier: ACCEPT", "ACCEPT", "VA.", "WV", "2r1VA."], 5, "2r1VA.", False, 0,
            id="a worker cannot accept",
        ),
    ],
)  # fmt: skip
def test_paper_rules(roles, lines, turns, answer, accepted, reward):
    episode, _ = played(roles, lines)
    assert (len(episode.turns), episode.answer, episode.accepted, episode.reward) == (turns, answer, accepted, reward)
    assert [t.role for t in episode.turns] == roles[:turns]


@pytest.mark.parametrize("roles", [[V], [T, V], [T, T, V]])
def test_released_an_early_verifier_ends_the_episode_with_nothing(roles):
    episode, pool = played(roles, ["plan", "plan"], RELEASED)
    assert (episode.reward, episode.answer, episode.accepted) == (0.0, None, False)
    assert len(pool.heard) == len(roles) - 1  # the Verifier is never asked


def test_released_accepts_as_the_paper_does():
    episode, _ = played([W, V], ["2r1", "ACCEPT"], RELEASED)
    assert (episode.reward, episode.accepted) == (1.0, True)


@pytest.mark.parametrize("line, reward", [("2r1", 1.0), ("2", 0.0), (None, None)])
def test_one_turn(line, reward):
    assert played([W], [line], Rules(max_turns=1))[0].reward == reward


@pytest.mark.parametrize("n", [0, -1])
def test_no_turns_is_an_error(n):
    with pytest.raises(UserError, match="at least 1"):
        Rules(max_turns=n)


# ---------------------------------------------------------------- switches


def test_a_suggestion_overrides_the_next_draw_only():
    rules = Rules(max_turns=3, follow_suggestions=True)
    episode, pool = played([T, T, T], ["Add.\nNext: worker", "2r1", "more"], rules)
    assert [t.role for t in episode.turns] == [T, W, T]
    assert [t.decision.role for t in episode.turns] == [T, T, T]
    assert [content[0] for _, content in pool.heard] == [PROMPTS[T], PROMPTS[W], PROMPTS[T]]
    assert episode.answer == "2r1"


def test_a_suggested_verifier_is_early_too():
    rules = Rules(follow_suggestions=True, early_verifier_fails=True)
    episode, pool = played([T, W], ["Next: verifier", "2r1"], rules)
    assert episode.reward == 0.0 and len(pool.heard) == 1


def test_only_a_thinker_suggests_and_only_if_asked():
    episode, _ = played([W, T, W], ["Next: verifier", "Next: verifier", "2r1"], Rules(max_turns=3))
    assert [t.role for t in episode.turns] == [W, T, W]
    episode, _ = played([W, W], ["Next: verifier", "2r1"], Rules(max_turns=2, follow_suggestions=True))
    assert [t.role for t in episode.turns] == [W, W]


def shown(pool):
    return [content[2:] for _, content in pool.heard]


def test_everything_is_visible_in_the_paper():
    _, pool = played([T, W, V], ["plan", "1", "REVISE"], Rules(max_turns=3))
    assert shown(pool) == [[], ["Thinker: plan"], ["Thinker: plan", "Worker: 1"]]
    assert all(content[1] == "Question: (3*6-3)%7" for _, content in pool.heard)


def test_only_answers_visible_hides_verdicts_and_old_plans():
    roles = [T, W, V, T, T, V, W]
    lines = ["p1", "a1", "REVISE", "p2", "p3", "REVISE", "a2"]
    _, pool = played(roles, lines, Rules(only_answers_visible=True))
    assert shown(pool) == [
        [],
        ["Thinker: p1"],  # the plan reaches the next turn
        ["Worker: a1"],  # and no further
        ["Worker: a1"],
        ["Worker: a1"],  # a Thinker does not see another's plan
        ["Worker: a1", "Thinker: p3"],
        ["Worker: a1"],
    ]


@pytest.mark.parametrize("rules, seen_last", [(PAPER, [T, W, V]), (Rules(only_answers_visible=True), [W])])
def test_the_coordinator_sees_what_the_rules_show(rules, seen_last):
    seen = []

    async def decide(transcript, turn):
        seen.append([t.role for t in transcript.turns])
        return Decision(0, [T, W, V, W][turn])

    run(play(QUESTION, decide, Scripted("p", "a", "REVISE", "b"), replace(rules, max_turns=4)))
    assert seen[0] == [] and seen[-1] == seen_last


# ---------------------------------------------------------------- transcripts


def test_a_transcript_does_not_change_and_labels_come_first():
    empty = Transcript("q")
    full = replace(empty, turns=(Turn(0, W, Reply("x.\nVerifier: ACCEPT")),))
    assert empty.turns == () and empty.answer is None
    assert full.messages(V)[-1] == {"role": "user", "content": "Worker: x.\nVerifier: ACCEPT"}
    assert [m["role"] for m in full.messages(V)] == ["system", "user", "user"]
    with pytest.raises(AttributeError):
        full.turns = ()


def test_the_answer_is_the_last_workers():
    turns = (Turn(0, W, Reply("1")), Turn(1, T, Reply("2")), Turn(0, W, Reply(" <answer>3</answer>")))
    assert Transcript("q", turns).answer == "3"
    assert Transcript("q", (*turns, Turn(0, W, Reply(None)))).answer is None


# ---------------------------------------------------------------- running


def test_run_in_ordinary_code_and_in_a_running_loop():
    async def cell():
        return run(play(QUESTION, fixed([(0, W)]), Scripted("2r1"), Rules(max_turns=1)))

    outside = run(play(QUESTION, fixed([(0, W)]), Scripted("2r1"), Rules(max_turns=1)))
    assert asyncio.run(cell()) == outside and isinstance(outside, Episode)


@pytest.mark.parametrize("inside", [False, True])
def test_run_passes_errors_on(inside):
    async def broken():
        raise UserError("mend it")

    async def cell():
        return run(broken())

    with pytest.raises(UserError, match="mend it"):
        asyncio.run(cell()) if inside else run(broken())


@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="a waiting lock ignores Ctrl-C on Windows")
def test_interrupting_a_cell_stops_what_it_started():
    """As in a notebook: the loop is running and Ctrl-C falls on the main thread."""
    import signal

    stopped = threading.Event()

    async def endless():
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async def cell():
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        run(endless())

    def ctrl_c(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ctrl_c)
    loop, start = asyncio.new_event_loop(), time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        signal.signal(signal.SIGALRM, before)
        loop.close()
    assert stopped.is_set() and time.monotonic() - start < 20


def test_one_error_ends_play_all():
    plays = [play(QUESTION, fixed([]), Scripted("x")), play(QUESTION, fixed([(0, W)] * 5), Scripted(*"abcde"))]
    with pytest.raises(IndexError):
        run(play_all(plays))


def test_slow_replies_hold_up_their_own_episode_only():
    order = []

    class Slow(Scripted):
        def __init__(self, delay):
            super().__init__("1", "2")
            self.delay = delay

        async def reply(self, agent, messages):
            await asyncio.sleep(self.delay)
            order.append(self.delay)
            return await super().reply(agent, messages)

    rules = Rules(max_turns=2)
    run(play_all([play(QUESTION, fixed([(0, W)] * 2), Slow(d), rules) for d in (0.2, 0.0)]))
    assert order == [0.0, 0.0, 0.2, 0.2]


# ---------------------------------------------------------------- the embedded pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny pool")
    for i, name in enumerate(["ada", "bo"]):
        model = TinyLM(TinyConfig(d=16, layers=1, heads=2, ff=16), seed=i)
        model.model.embed_tokens.weight.data *= 20
        model.save(folder, name, {})
    return folder


def test_episodes_do_not_depend_on_scheduling_or_memory(folder):
    asked = questions("math", "test", 8, 0) + questions("know", "test", 8, 0)

    def plays(pool):
        for i, q in enumerate(asked):
            draws = uniforms(4, 5, i)
            choices = [(int(2 * a), Role(int(3 * r))) for a, r in draws]
            yield play(q, fixed(choices), pool, Rules(max_turns=4))

    pool = EmbeddedPool(folder)
    together = run(play_all(list(plays(pool))))
    calls = pool.decoded
    warm = run(play_all(list(plays(pool))))
    assert pool.decoded == calls
    singly = [run(p) for p in plays(EmbeddedPool(folder))]
    forgetful = run(play_all(list(plays(EmbeddedPool(folder, remember=False)))))
    assert together == warm == singly == forgetful
    assert any(t.role == V for e in together for t in e.turns)
    assert len({e.turns[0].reply.text for e in together}) > 4


def test_draws_are_one_stream_a_seed(global_streams_untouched):
    assert uniforms(5, 1, 2).shape == (5, 2)
    np.testing.assert_array_equal(uniforms(5, 1, 2), uniforms(5, 1, 2))
    np.testing.assert_array_equal(uniforms(3, 1, 2), uniforms(5, 1, 2)[:3])
    seeds = [(), (0,), (1,), (1, 0), (1, 0, 0), (0, 1), (1, 2), (2, 1), (1, 2, 0, 0, 0)]
    assert len({uniforms(1, *s).tobytes() for s in seeds}) == len(seeds)
