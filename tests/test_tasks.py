"""The questions of the embedded world against small solvers written here, and their invariants."""

import csv
import re
from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

from trinity_mini import tasks
from trinity_mini.files import DATA, UserError
from trinity_mini.tasks import (
    FAMILIES,
    HARD_FAMILIES,
    KINDS,
    SPLITS,
    TOPICS,
    Question,
    _facts,
    draw,
    facts,
    grade,
    question_set,
    questions,
    recognise,
)

GENERATED = [(f, k) for f in ("math", "code", "reason", *HARD_FAMILIES) for k in KINDS[f.removesuffix("-hard")]]


def drawn(family, kind, n=300):
    rng = np.random.default_rng(7)
    return [draw(family, kind, rng) for _ in range(n)]


# ---------------------------------------------------------------- solvers that know nothing of tasks.py


def solve_infix(prompt):
    value, modulus = re.fullmatch(r"(\(.+\)|\d+)%(\d)", prompt).groups()
    return "{}r{}".format(*divmod(eval(value), int(modulus)))


def solve_postfix(prompt):
    stack = []
    for c in prompt:
        if c.isdigit():
            stack.append(int(c))
            continue
        b, a = stack.pop(), stack.pop()
        stack.append({"+": a + b, "-": a - b, "*": a * b, "%": divmod(a, b)}[c])
    [(quotient, remainder)] = stack
    return f"{quotient}r{remainder}"


def solve_program(prompt):
    program, _, text = prompt.partition("num:")
    values = deque(ord(c) - ord("a") for c in text)
    for op in re.findall("...", program):
        match op:
            case "rev":
                values.reverse()
            case "rot":
                values.append(values.popleft())
            case "swp":
                values[0], values[1] = values[1], values[0]
            case "inc" | "dec" | "hop":
                values = deque((v + {"inc": 1, "dec": 7, "hop": 2}[op]) % 8 for v in values)
    return "".join(str(v + 1) for v in values)


def solve_links(prompt):
    """All entities reached from the start, in the order reached (breadth first)."""
    links, start = prompt[1:].split("?")
    edges = [pair if prompt[0] == ">" else pair[::-1] for pair in links.split(",")]
    reached, queue = [start], deque([start])
    while queue:
        here = queue.popleft()
        for a, b in edges:
            if a == here and b not in reached:
                reached.append(b)
                queue.append(b)
    return "".join(reached)


# ---------------------------------------------------------------- answers and plans


@pytest.mark.parametrize("family, kind", GENERATED)
def test_answers_and_plans_agree_with_the_solvers(family, kind):
    for q in drawn(family, kind):
        assert (q.family, q.kind) == (family, kind)
        states = q.plan.split(",")
        match family.removesuffix("-hard"):
            case "math":
                solve = solve_infix if kind == "infix" else solve_postfix
                assert solve(q.prompt) == q.answer
                assert {solve_infix(s) for s in states} == {q.answer}
                assert re.fullmatch(r"[1-9]\d*%\d", states[-1])
            case "code":
                assert {solve_program(s) for s in [q.prompt, *states]} == {q.answer}
                assert re.fullmatch("num:[a-h]{4}", states[-1]) and states[-1] not in q.prompt
            case "reason":
                assert solve_links(q.prompt) == q.plan
                assert "".join(sorted(q.plan)) == q.answer


@pytest.mark.parametrize("family, kind", GENERATED)
def test_hard_families_need_one_step_more(family, kind):
    hard = family.endswith("-hard")
    steps = {
        "math": lambda q: sum(c in "+-*" for c in q.prompt),
        "code": lambda q: len(q.prompt.partition("num:")[0]) // 3,
        "reason": lambda q: len(q.plan) - 1,
    }[family.removesuffix("-hard")]
    assert {steps(q) for q in drawn(family, kind, 50)} == {(3 if "reason" in family else 2) + hard}


@pytest.mark.parametrize("family, kind", GENERATED)
def test_answers_are_not_to_be_guessed(family, kind):
    counts = Counter(q.answer for q in drawn(family, kind, 600))
    assert len(counts) > 80
    assert counts.most_common(1)[0][1] < 600 * 0.06


@pytest.mark.parametrize("family", FAMILIES + HARD_FAMILIES)
def test_the_agents_can_read_and_write_every_text(family):
    from trinity_mini.pool import MAX_REPLY
    from trinity_mini.templates import check, plain
    from trinity_mini.tiny_lm import TOKENIZER

    for q in questions(family, "test", 150, 0):
        for text in (q.prompt, q.plan, q.answer):
            assert plain(text) == text
            assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
        for reply in (q.plan, q.answer, check(q.answer, q.answer)):
            assert len(TOKENIZER.encode(reply)) < MAX_REPLY


# ---------------------------------------------------------------- sets of questions


@pytest.mark.parametrize("family", FAMILIES + HARD_FAMILIES)
def test_splits_are_disjoint_by_content_distinct_and_repeatable(family, global_streams_untouched):
    n = 60
    sets = {split: questions(family, split, n, seed=3) for split in SPLITS}
    for split, qs in sets.items():
        assert len({q.prompt for q in qs}) == len({q.id for q in qs}) == n
        assert {q.split for q in qs} == {split} and {q.family for q in qs} == {family}
        assert qs == questions(family, split, n, seed=3)
        assert qs != questions(family, split, n, seed=4)
    prompts = [q.prompt for qs in sets.values() for q in qs]
    assert len(set(prompts)) == len(prompts)


def test_kinds_come_in_turn():
    assert [q.kind for q in questions("code", "train", 5, 0)] == ["order", "shift", "order", "shift", "order"]
    assert {q.kind for q in questions("know", "train", 60, 0)} == set(TOPICS)


def test_a_smaller_set_is_the_beginning_of_a_larger_one():
    assert questions("reason", "test", 20, 5) == questions("reason", "test", 40, 5)[:20]


def test_splits_have_their_shares():
    shares = Counter(q.split for topic in TOPICS for q in facts(topic))
    shares.update(q.split for q in drawn("code", "order", 2000))
    total = sum(shares.values())
    for split, slots in SPLITS.items():
        assert shares[split] / total == pytest.approx(len(slots) / 20, abs=0.04)


def test_question_set_goes_family_by_family():
    got = question_set("validation", 3, 1)
    assert [q.family for q in got] == [f for f in FAMILIES for _ in range(3)]
    assert got[:3] == questions("math", "validation", 3, 1)
    assert question_set("test", 2, 1, HARD_FAMILIES)[0].family == "math-hard"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("maths", "test", 1, 0), "unknown family 'maths': choose from math, code"),
        (("know-hard", "test", 1, 0), "unknown family"),
        (("math", "tests", 1, 0), "unknown split 'tests': choose from train, validation, test"),
        (("know", "test", 10_000, 0), r"the test split of know holds \d+ questions"),
    ],
)
def test_what_cannot_be_had_is_said(arguments, message):
    with pytest.raises(UserError, match=message):
        questions(*arguments)


def test_a_generated_family_that_runs_dry_is_an_error_not_a_loop(monkeypatch):
    few = [q for q in drawn("math", "infix", 20) if q.split == "train"][:3]
    monkeypatch.setattr(tasks, "draw", lambda family, kind, rng: few[rng.integers(3)])
    assert len(questions("math", "train", 3, 0)) == 3
    with pytest.raises(UserError, match="holds fewer than 4 questions: ask for 3"):
        questions("math", "train", 4, 0)


# ---------------------------------------------------------------- grading


@pytest.mark.parametrize(
    "answer, right",
    [
        ("2r1", True),
        (" 2r1\n", True),
        (None, False),
        ("", False),
        ("2 r1", False),
        ("2R1", False),
        ("2r", False),
        ("2r10", False),
        ("12r1", False),
        ("2r1.", False),
        ("2r1 2r1", False),
        ("the answer is 2r1", False),
        ("2\u200br1", False),
    ],
)
def test_grading_is_strict(answer, right):
    assert grade(Question("math", "infix", "(3*6-3)%7", "2r1", ""), answer) is right


def test_every_gold_answer_is_right_and_no_other():
    qs = question_set("test", 25, 0, FAMILIES + HARD_FAMILIES)
    for q in qs:
        assert grade(q, q.answer) and not grade(q, q.answer[:-1]) and not grade(q, q.answer + "0")


# ---------------------------------------------------------------- facts


def test_facts_csv_is_clean():
    with open(DATA / "tasks" / "facts.csv", encoding="utf-8", newline="") as f:
        rows = list(csv.DictReader(f))
    assert Counter(r["topic"] for r in rows) == {"calling": 170, "capital": 152, "currency": 166, "symbol": 118}
    assert max(Counter((r["topic"], r["key"]) for r in rows).values()) == 1
    for r in rows:
        for text in (r["key"], r["value"]):
            assert re.fullmatch("[a-z0-9]+( [a-z0-9]+)*", text) and len(text) <= 14, r
    assert [(r["topic"], r["key"]) for r in rows] == sorted((r["topic"], r["key"]) for r in rows)


def test_elements_have_distinct_symbols():
    assert len({q.answer for q in facts("symbol")}) == 118


def test_reading_facts_leaves_the_global_streams_alone(global_streams_untouched):
    facts.cache_clear()
    assert sum(len(facts(topic)) for topic in TOPICS) == 606
    questions("know", "train", 10, 0)


# ---------------------------------------------------------------- typed by a person


@pytest.mark.parametrize("family", FAMILIES + HARD_FAMILIES)
def test_recognises_its_own_questions(family):
    for q in questions(family, "test", 60, 2):
        assert recognise(q.prompt) == replace(q, family=family.removesuffix("-hard"))


@pytest.mark.parametrize(
    "prompt",
    ["", "hello", "capital atlantis", "(2*2-9)%3", "(2*3)%4", "revincnum:abcd", "revnum:abcz", ">ab?a", "what is 2*3?"],
)
def test_what_is_not_of_this_world_is_unknown_and_never_right(prompt):
    q = recognise(prompt)
    assert (q.family, q.prompt, q.answer) == ("unknown", prompt, "")
    assert not grade(q, "2r1") and not grade(q, None)


DAMAGED = ["", "topic,key\na,b\n", "topic,key,value\ncapital,peru,lima\n", b"\xff\xfe\x99", None]


@pytest.mark.parametrize("damage", DAMAGED)
def test_other_facts_are_refused(tmp_path, damage):
    path = tmp_path / "facts.csv"
    if damage is not None:
        path.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    with pytest.raises(UserError, match="facts.csv .* restore it from the repository"):
        _facts(path)


def test_line_ends_of_other_systems_do_not_matter(tmp_path):
    text = (DATA / "tasks" / "facts.csv").read_text(encoding="utf-8")
    path = tmp_path / "facts.csv"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert len(_facts(path)) == 606
