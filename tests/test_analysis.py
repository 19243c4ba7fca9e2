"""An episode in words, and many as a data frame."""

import pytest

from trinity_mini.analysis import told, turns_frame
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
    assert list(turns_frame([], NAMES).columns) == ["family", "kind", "turn", "agent", "role", "reward"]
