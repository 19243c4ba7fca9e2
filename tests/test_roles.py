"""What counts as a verdict, an answer and a suggestion."""

import time

import pytest

from trinity_mini.roles import PROMPTS, Role, accepts, answer_in, suggested_role


def test_order_of_the_logits_is_the_released_one():
    assert [r.name for r in sorted(Role)] == ["WORKER", "THINKER", "VERIFIER"]
    assert [int(r) for r in sorted(Role)] == [0, 1, 2]
    assert Role.WORKER.label == "Worker"
    assert set(PROMPTS) == set(Role) and len(set(PROMPTS.values())) == 3


@pytest.mark.parametrize(
    "text, accepted",
    [
        ("ACCEPT", True),
        ("ACCEPT: it is right", True),
        ("ACCEPT.", True),
        ("  \n ACCEPT because", True),
        ("**ACCEPT** fine", True),
        ('"ACCEPT"', True),
        ("`ACCEPT`", True),
        ("[ACCEPT]", True),
        ("ACCEPT, although I would REVISE the style", True),
        ("_ACCEPT_", True),
        ("__ACCEPT__ fine", True),
        ("***ACCEPT*** fine", True),
        ("**_ACCEPT_**: fine", True),
        ("_ACCEPT: fine_", True),
        ("ACCEPT orders of magnitude", True),
        ("ACCEPT? No: REVISE", False),
        ("**ACCEPT**? No", False),
        ("_ACCEPT_? No", False),
        ("ACCEPT/REVISE: REVISE", False),
        ("[ACCEPT]/[REVISE]", False),
        ("ACCEPT|REVISE", False),
        ("ACCEPT or REVISE? REVISE, it is wrong", False),
        ("**ACCEPT** or **REVISE**", False),
        ("`ACCEPT`\n OR `REVISE`", False),
        ("_ACCEPT_ED", False),
        ("_ACCEPT_1", False),
        ("ACCEPT__", False),
        ("*ACCEPT_*", False),
        ("REVISE", False),
        ("**REVISE**: do not ACCEPT", False),
        ("REJECT", False),
        ("accept", False),
        ("Accept", False),
        ("ACCEPTED", False),
        ("ACCEPTABLE", False),
        ("ACCEPT_", False),
        ("I ACCEPT", False),
        ("Verdict: ACCEPT", False),
        ("not ACCEPT", False),
        ("The answer is right.\nACCEPT", False),
        ("UNACCEPT", False),
        ("", False),
        ("   ", False),
        ("**", False),
    ],
)
def test_a_verdict_must_begin_the_reply(text, accepted):
    assert accepts(text) is accepted


def test_every_mark_may_open_and_close_a_verdict_and_a_doubt_behind_it_revises():
    for opening, closing in zip("*_`\"'([", "*_`\"')]", strict=True):
        for n in (1, 2, 3):
            word = f"{opening * n}ACCEPT{closing * n}"
            assert accepts(word) and accepts(f" {word}: it is right") and accepts(f"{word}. Or not?")
            assert not any(accepts(word + doubt) for doubt in ("?", "/", "|", " or not", "\tor\n", " OR REVISE"))
            assert not accepts(word.replace("ACCEPT", "REVISE")) and not accepts(word.replace("ACCEPT", "REJECT"))


@pytest.mark.parametrize(
    "text, answer",
    [
        ("42", "42"),
        (" 42 \n", "42"),
        ("so <answer> 42 </answer> it is", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<ANSWER>a\nb</Answer>", "a\nb"),
        ("<answer></answer>", ""),
        ("<answer>42", "<answer>42"),
        ("", ""),
    ],
)
def test_the_last_tagged_answer_counts_else_the_whole_reply(text, answer):
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    "text, role",
    [
        ("Divide first.\nNext: worker", Role.WORKER),
        ("next: VERIFIER", Role.VERIFIER),
        ("  Next:worker.", Role.WORKER),
        ("Next: worker\nNext: verifier", Role.VERIFIER),
        ("Next: thinker", None),
        ("Next: workers", None),
        ("What comes next: worker", None),
        ("worker", None),
        ("", None),
    ],
)
def test_a_suggestion_is_a_line_of_its_own(text, role):
    assert suggested_role(text) == role


@pytest.mark.parametrize(
    "text, answer",
    [
        ("<answer>1<answer>2</answer>", "1<answer>2"),
        ("</answer><answer>1</answer></answer>", "1"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1</ANSWER> <Answer>2</answer> </answer>", "2"),
    ],
)
def test_odd_tags_are_read_from_the_left(text, answer):
    assert answer_in(text) == answer


@pytest.mark.parametrize("reader", [answer_in, accepts, suggested_role])
@pytest.mark.parametrize("start", ["", "ACCEPT", "_ACCEPT", "*ACCEPT_"])
@pytest.mark.parametrize("unit", ["<answer>", "</answer>", "\n", " ", "\n next:", "'\"*_`", "_", "*", " or"])
def test_a_long_reply_is_read_at_once(reader, unit, start):
    text = start + unit * (1_000_000 // len(unit)) + "x"
    began = time.process_time()
    reader(text)
    assert time.process_time() - began < 2
