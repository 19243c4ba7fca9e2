"""The questions of the embedded world, after the paper's four benchmarks, and strict grading (lesson 01).

| family | kind | question | plan | answer |
|---|---|---|---|---|
| math | infix, postfix | `(3*6-3)%7`, `36*3-7%` | `(18-3)%7,15%7` | `2r1`: quotient and remainder |
| code | order, shift | `revrotnum:abcd` | `rotnum:dcba,num:cbad` | `3214` |
| reason | forward, backward | `>tv,wz,zj,ut,jq?w` | `wzjq` | `jqwz`: the chain, sorted |
| know | four topics | `capital peru` | the topic | the fact |

A kind decides who can help: two kinds of one family share the last step but not the planning.
The `-hard` families need one step more and are for zero-shot transfer only.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import DATA, UserError

FAMILIES = ("math", "code", "reason", "know")
HARD_FAMILIES = ("math-hard", "code-hard", "reason-hard")
TOPICS = ("capital", "symbol", "currency", "calling")
KINDS = {
    "math": ("infix", "postfix"),
    "code": ("order", "shift"),
    "reason": ("forward", "backward"),
    "know": TOPICS,
}
SPLITS = {"train": range(0, 10), "validation": range(10, 12), "test": range(12, 20)}  # twentieths of hash space
LETTERS = "abcdefgh"
FACTS = "32adf4ec324abad0"  # of the rows of data/tasks/facts.csv: first digits of their SHA-256
ENTITIES = "bcdghjklmnpqrstvwxz"


@dataclass(frozen=True)
class Question:
    """One question. `answer` and `plan` are for grading and for training the agents, never shown to anybody."""

    family: str
    kind: str
    prompt: str
    answer: str
    plan: str

    @property
    def id(self) -> str:
        """Content hash of the prompt, 12 hex digits."""
        return hashlib.sha256(self.prompt.encode()).hexdigest()[:12]

    @property
    def split(self) -> str:
        """train, validation or test, by content: no prompt is ever in two of them."""
        slot = int(self.id, 16) % 20
        return next(name for name, slots in SPLITS.items() if slot in slots)


def grade(question: Question, answer: str | None) -> bool:
    """Whether an answer is right: equal to the gold answer but for space around it. None is wrong."""
    return answer is not None and answer.strip() == question.answer


def _math(kind: str, steps: int, rng: np.random.Generator) -> Question:
    a, b = map(int, rng.integers(2, 10, 2))
    m = int(rng.integers(3, 10))
    terms = [("+-"[rng.integers(2)], int(rng.integers(1, 10))) for _ in range(steps - 1)]
    return _math_question(kind, a, b, terms, m) or _math(kind, steps, rng)


def _math_question(kind: str, a: int, b: int, terms: Sequence[tuple[str, int]], m: int) -> Question | None:
    """a*b, then the terms, then quotient and remainder by m; None if a value on the way is below 1."""
    total, states = a * b, []
    for i in range(len(terms) + 1):
        rest = "".join(f"{sign}{c}" for sign, c in terms[i:])
        states.append(f"({total}{rest})%{m}" if rest else f"{total}%{m}")
        if rest:
            total += terms[i][1] if terms[i][0] == "+" else -terms[i][1]
        if total < 1:
            return None
    if kind == "infix":
        prompt = f"({a}*{b}" + "".join(f"{sign}{c}" for sign, c in terms) + f")%{m}"
    else:
        prompt = f"{a}{b}*" + "".join(f"{c}{sign}" for sign, c in terms) + f"{m}%"
    return Question("math", kind, prompt, f"{total // m}r{total % m}", ",".join(states))


OPERATORS = {
    "rev": lambda s: s[::-1],
    "rot": lambda s: s[1:] + s[0],
    "swp": lambda s: s[1] + s[0] + s[2:],
    "inc": lambda s: "".join(LETTERS[(LETTERS.index(c) + 1) % 8] for c in s),
    "dec": lambda s: "".join(LETTERS[(LETTERS.index(c) - 1) % 8] for c in s),
    "hop": lambda s: "".join(LETTERS[(LETTERS.index(c) + 2) % 8] for c in s),
}


def _code(kind: str, steps: int, rng: np.random.Generator) -> Question:
    names = ("rev", "rot", "swp") if kind == "order" else ("inc", "dec", "hop")
    program = [names[i] for i in rng.integers(3, size=steps)]
    start = "".join(LETTERS[i] for i in rng.integers(8, size=4))
    q = _code_question(kind, program, start)
    return _code(kind, steps, rng) if q.plan.endswith(f"num:{start}") else q  # nothing to plan


def _code_question(kind: str, program: Sequence[str], start: str) -> Question:
    text, states = start, []
    for i, name in enumerate(program):
        text = OPERATORS[name](text)
        states.append("".join(program[i + 1 :]) + f"num:{text}")
    answer = "".join(str(LETTERS.index(c) + 1) for c in text)
    return Question("code", kind, "".join(program) + f"num:{start}", answer, ",".join(states))


def _reason(kind: str, steps: int, rng: np.random.Generator) -> Question:
    letters = [ENTITIES[i] for i in rng.permutation(len(ENTITIES))]
    chain, others = letters[: steps + 1], letters[steps + 1 : steps + 5]
    pairs = [a + b for a, b in zip(chain, chain[1:], strict=False)] + [others[0] + others[1], others[2] + others[3]]
    return _reason_question(kind, [pairs[i] for i in rng.permutation(len(pairs))], chain)


def _reason_question(kind: str, pairs: Sequence[str], chain: Sequence[str]) -> Question:
    written = ",".join(pairs if kind == "forward" else [p[::-1] for p in pairs])
    prompt = (">" if kind == "forward" else "<") + f"{written}?{chain[0]}"
    return Question("reason", kind, prompt, "".join(sorted(chain)), "".join(chain))


@functools.cache
def facts(topic: str) -> tuple[Question, ...]:
    """All questions of one topic. Raises: UserError if the file of facts is not the one the agents learned."""
    rows = _facts(DATA / "tasks" / "facts.csv")
    return tuple(Question("know", topic, f"{topic} {key}", value, topic) for t, key, value in rows if t == topic)


def _facts(path: Path) -> list[tuple[str, str, str]]:
    """(topic, key, value) of each line of data/tasks/facts.csv."""
    try:
        with open(path, encoding="utf-8", newline="") as f:
            rows = [(r["topic"], r["key"], r["value"]) for r in csv.DictReader(f)]
    except (OSError, ValueError, KeyError) as e:
        raise UserError(f"{path} cannot be read ({type(e).__name__}): restore it from the repository.") from None
    if hashlib.sha256(repr(rows).encode()).hexdigest()[:16] != FACTS:
        raise UserError(f"{path} is not the file that the agents learned: restore it from the repository.")
    return rows


_GENERATORS = {"math": (_math, 2), "code": (_code, 2), "reason": (_reason, 3)}


def draw(family: str, kind: str, rng: np.random.Generator) -> Question:
    """One question of a kind, of any split; `family` may be a -hard one (one step more)."""
    if family == "know":
        pool = facts(kind)
        return pool[rng.integers(len(pool))]
    make, steps = _GENERATORS[family.removesuffix("-hard")]
    if not family.endswith("-hard"):
        return make(kind, steps, rng)
    q = make(kind, steps + 1, rng)
    return Question(family, q.kind, q.prompt, q.answer, q.plan)


def questions(family: str, split: str, n: int, seed: int) -> list[Question]:
    """n distinct questions of one family and split, the same for the same arguments; kinds in turn, facts mixed.

    Raises: UserError for an unknown family or split, or if the split holds fewer than n.
    """
    if family not in FAMILIES + HARD_FAMILIES:
        raise UserError(f"unknown family {family!r}: choose from {', '.join(FAMILIES + HARD_FAMILIES)}.")
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}: choose from {', '.join(SPLITS)}.")
    rng = np.random.default_rng([seed, *family.encode(), *split.encode()])
    kinds = KINDS[family.removesuffix("-hard")]
    if family == "know":
        pool = [q for kind in kinds for q in facts(kind) if q.split == split]
        if n > len(pool):
            raise UserError(f"the {split} split of know holds {len(pool)} questions: ask for no more than that.")
        return [pool[i] for i in rng.permutation(len(pool))[:n]]
    chosen: dict[str, Question] = {}
    misses = 0
    while len(chosen) < n:
        q = draw(family, kinds[len(chosen) % len(kinds)], rng)
        misses += 1
        if q.prompt not in chosen and q.split == split:
            chosen[q.prompt], misses = q, 0
        elif misses > 50_000:  # some six times what the last few questions of a small split take
            raise UserError(f"the {split} split of {family} holds fewer than {n} questions: ask for {len(chosen)}.")
    return list(chosen.values())


def question_set(split: str, per_family: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Question]:
    """`per_family` questions of each family, family by family."""
    return [q for family in families for q in questions(family, split, per_family, seed)]


def recognise(prompt: str) -> Question:
    """The question behind a prompt that somebody typed, with its answer worked out.

    A prompt that is not of this world gets the family "unknown" and an empty answer; the agents will still try.
    """
    for topic in TOPICS:
        for q in facts(topic):
            if q.prompt == prompt:
                return q
    found: Question | None = None
    if m := re.fullmatch(r"\((\d)\*(\d)((?:[+-]\d)+)\)%([3-9])", prompt):
        terms = [(t[0], int(t[1])) for t in re.findall(r"[+-]\d", m[3])]
        found = _math_question("infix", int(m[1]), int(m[2]), terms, int(m[4]))
    elif m := re.fullmatch(r"(\d)(\d)\*((?:\d[+-])+)([3-9])%", prompt):
        terms = [(t[1], int(t[0])) for t in re.findall(r"\d[+-]", m[3])]
        found = _math_question("postfix", int(m[1]), int(m[2]), terms, int(m[4]))
    elif m := re.fullmatch(r"((?:rev|rot|swp)+|(?:inc|dec|hop)+)num:([a-h]{4})", prompt):
        program = [m[1][i : i + 3] for i in range(0, len(m[1]), 3)]
        found = _code_question("order" if program[0] in ("rev", "rot", "swp") else "shift", program, m[2])
    elif m := re.fullmatch(r"([<>])([a-z]{2}(?:,[a-z]{2})+)\?([a-z])", prompt):
        pairs = [p if m[1] == ">" else p[::-1] for p in m[2].split(",")]
        links, chain = dict(pairs), m[3]
        while chain[-1] in links and links[chain[-1]] not in chain:
            chain += links[chain[-1]]
        found = _reason_question("forward" if m[1] == ">" else "backward", pairs, chain)
    return found or Question("unknown", "unknown", prompt, "", "")
