"""An episode in words, and many as a data frame."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import entropy

from trinity_mini.analysis import shown, specialisation, told, transitions, turns_frame, walked_frame
from trinity_mini.episode import Decision, Episode, Turn
from trinity_mini.pool import Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import Question, recognise

QUESTION = Question("math", "infix", "(3*6-3)%7", "2r1", "")
NAMES = ["ada", "bo"]


def turn(agent, role, text, p=True):
    decision = Decision(agent, role, (0.25, 0.75), (0.5, 0.125, 0.375)) if p else Decision(agent, role)
    return Turn(agent, role, Reply(text), decision)


def test_an_accepted_right_answer():
    turns = (turn(1, Role.THINKER, "15%7"), turn(0, Role.WORKER, "2r1"), turn(1, Role.VERIFIER, "ACCEPT 22+"))
    assert told(Episode(QUESTION, turns, "2r1", True, 1.0), NAMES).splitlines() == [
        "Question (math): (3*6-3)%7",
        "1. bo as Thinker (agent p = 0.75, role p = 0.12): 15%7",
        "2. ada as Worker (agent p = 0.25, role p = 0.50): 2r1",
        "3. bo as Verifier (agent p = 0.75, role p = 0.38): ACCEPT 22+",
        "The Verifier accepted.",
        "Answer: 2r1 (right)",
    ]


@pytest.mark.parametrize(
    "episode, last",
    [
        (Episode(QUESTION, (turn(0, Role.WORKER, "3"),), "3", False, 0.0), "Answer: 3 (wrong, it is 2r1)"),
        (Episode(QUESTION, (turn(0, Role.THINKER, "3"),), None, False, 0.0), "No Worker spoke, so there is no answer."),
        (
            Episode(recognise("what is love?"), (turn(0, Role.WORKER, "3"),), "3", False, 0.0),
            "Answer: 3 (not a question of this world: nobody can grade it)",
        ),
        (
            Episode(QUESTION, (turn(0, Role.WORKER, "3"), turn(0, Role.VERIFIER, None)), None, False, None),
            "A call was lost, so the episode is not scored.",
        ),
    ],
)
def test_how_it_can_end(episode, last):
    lines = told(episode, NAMES).splitlines()
    assert lines[-1] == last and "None" not in "\n".join(lines)
    assert len(lines) == 1 + len(episode.turns) + (1 if episode.reward is None else 2)


ATTACKS = [
    "lima\n2. ada as Verifier: ACCEPT\nThe Verifier accepted.\x1b[2J\x1b]0;pwned\x07",
    *(f"li{end}ma" for end in ("\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")),
    *(f"li{c}ma" for c in ("\x00", "\x08", "\x7f", "\x9b31m", "\u202e", "\u2066", "\ufeff", "\ud800", "\U000e0001")),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=ascii)
@pytest.mark.parametrize("where", ["question", "reply", "answer", "gold"])
def test_no_text_forges_a_line_or_drives_the_terminal(attack, where):
    gold = attack if where == "gold" else "2r1"
    question = Question("math", "infix", attack if where == "question" else "1+1", gold, "")
    answer = attack if where == "answer" else "7"
    said = turn(0, Role.WORKER, attack if where == "reply" else "7", p=False)
    text = told(Episode(question, (said,), answer, False, 0.0), NAMES)
    starts = ("Question (math): ", "1. ada as Worker: ", "Nobody accepted", "Answer: ")
    lines = [line for line in text.splitlines() if not line.startswith("  ")]
    assert len(lines) == 4 and all(line.startswith(s) for line, s in zip(lines, starts, strict=True))
    assert text.replace("\n", "").isprintable()


def test_what_can_be_printed_is_told_as_it_is():
    for text in ("ñ 日本 👍 a\tb", "non\xa0breaking, \u3000wide", "", " padded "):
        assert shown(text) == text
    assert shown("def f():\n    return 1\r\n") == "def f():\n      return 1\n  "


def test_without_a_coordinator_there_are_no_probabilities():
    episode = Episode(QUESTION, (turn(0, Role.WORKER, "3", p=False), Turn(1, Role.WORKER, Reply("4"))), "4", False, 0.0)
    assert told(episode, NAMES).splitlines()[1:3] == ["1. ada as Worker: 3", "2. bo as Worker: 4"]


def test_turns_frame_is_a_row_a_turn():
    episodes = [
        Episode(QUESTION, (turn(1, Role.THINKER, "x"), turn(0, Role.WORKER, "2r1")), "2r1", False, 1.0),
        Episode(recognise("capital peru"), (turn(0, Role.WORKER, None),), None, False, None),
    ]
    frame = turns_frame(episodes, NAMES)
    assert frame[["family", "kind", "turn", "agent", "role"]].to_numpy().tolist() == [
        ["math", "infix", 1, "bo", "Thinker"],
        ["math", "infix", 2, "ada", "Worker"],
        ["know", "capital", 1, "ada", "Worker"],
    ]
    assert frame["reward"].isna().tolist() == [False, False, True]
    assert list(turns_frame([], NAMES).columns) == ["episode", "family", "kind", "turn", "agent", "role", "reward"]


def world_of(families, agents, roles):
    """A frame of episodes (family, agents, roles), rewards all 1."""
    asked = [Question(f, "k", f"{f} {i}", "1", "") for i, f in enumerate(families)]
    return walked_frame(asked, np.array(agents), np.array(roles), np.ones(len(asked)), NAMES)


def test_walks_and_episodes_give_the_same_frame():
    episodes = [
        Episode(QUESTION, (turn(1, Role.THINKER, "x"), turn(0, Role.WORKER, "2r1")), "2r1", False, 1.0),
        Episode(recognise("capital peru"), (turn(0, Role.WORKER, "3"),), "3", False, 0.0),
    ]
    agents, roles = np.array([[1, 0], [0, -1]]), np.array([[Role.THINKER, Role.WORKER], [Role.WORKER, -1]])
    found = walked_frame([e.question for e in episodes], agents, roles, np.array([1.0, 0.0]), NAMES)
    pd.testing.assert_frame_equal(found, turns_frame(episodes, NAMES))


def test_transitions_by_counting():
    frame = world_of("ab", [[0, 1, -1], [0, 0, 1]], [[0, 1, -1], [0, 0, 1]])
    w, t = Role(0).label, Role(1).label
    found = transitions(frame.sample(frac=1, random_state=1))
    wanted = {
        ("start", f"ada {w}"): 1.0, (f"ada {w}", f"ada {w}"): 1 / 3, (f"ada {w}", f"bo {t}"): 2 / 3,
        (f"bo {t}", "end"): 1.0,
    }  # fmt: skip
    assert {k: v for k, v in found.stack().items() if v} == pytest.approx(wanted)
    assert np.allclose(found.sum(axis=1), 1)


def test_specialisation_is_the_mutual_information_of_scipy():
    rng = np.random.default_rng(0)
    families = rng.choice(list("abcd"), 300)
    agents = np.where(rng.random(300) < 0.7, np.isin(families, ["a", "b"]), rng.integers(2, size=300))[:, None]
    roles = rng.integers(2, size=(300, 1))
    frame = world_of(families, agents, roles)
    joint = pd.crosstab(frame.family, frame.agent + frame.role).to_numpy()
    wanted = entropy(joint.sum(1), base=2) + entropy(joint.sum(0), base=2) - entropy(joint.ravel(), base=2)
    found = specialisation(frame, 200, 1)
    assert found["bits"] == pytest.approx(wanted) and found["most"] == pytest.approx(entropy(joint.sum(1), base=2))
    assert found["low"] < found["bits"] < found["high"] and found["chance"] < found["low"]
    assert found == specialisation(frame, 200, 1)


@pytest.mark.parametrize("seed", range(3))
def test_without_specialisation_only_chance_is_left(seed):
    rng = np.random.default_rng(seed)
    families = rng.choice(list("abcd"), 400)
    frame = world_of(families, rng.integers(2, size=(400, 3)), rng.integers(3, size=(400, 3)))
    found = specialisation(frame, 100, seed)
    assert found["bits"] == pytest.approx(found["chance"], abs=0.01) and found["chance"] > 0


def test_perfect_specialists_tell_the_family():
    families = list("ab") * 50
    frame = world_of(families, [[int(f == "b")] for f in families], [[0]] * 100)
    found = specialisation(frame, 50, 1)
    assert found["bits"] == pytest.approx(found["most"]) == pytest.approx(1.0)
