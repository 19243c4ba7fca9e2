"""The checkers of lesson 05: right answers pass, typical wrong ones get a message that fits."""

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest

from trinity_mini import checks_loop
from trinity_mini.checks import Wrong
from trinity_mini.episode import RELEASED, fixed, play, run
from trinity_mini.pool import Reply
from trinity_mini.roles import Role, accepts, answer_in, suggested_role
from trinity_mini.tasks import Question

T, W, V = Role.THINKER, Role.WORKER, Role.VERIFIER


def parts(text, flags=re.DOTALL | re.IGNORECASE, pattern=r"<answer>(.*?)</answer>"):
    return re.findall(pattern, text, flags)


def lines_of(text, pattern=r"^\s*next:\s*(worker|verifier)\b", flags=re.IGNORECASE | re.MULTILINE):
    return re.findall(pattern, text, flags) or [None]


def lower(text):
    return text and text.lower()


async def in_turn(pool, chat):
    return [(await pool.reply(a, chat)).text for a in range(len(pool.names))]


async def whole_replies(pool, chat):
    return await asyncio.gather(*(pool.reply(a, chat) for a in range(len(pool.names))))


async def as_they_come(pool, chat):
    return [(await r).text for r in asyncio.as_completed([pool.reply(a, chat) for a in range(len(pool.names))])]


async def from_one(pool, chat):
    replies = await asyncio.gather(*(pool.reply(a % len(pool.names), chat) for a in range(1, len(pool.names) + 2)))
    return [r.text for r in replies]


async def other_chat(pool, chat):
    return [r.text for r in await asyncio.gather(*(pool.reply(a, []) for a in range(len(pool.names))))]


def once(text):
    return re.sub(r"ACCEPT|REVISE|[.#]", "", text)


def until_clean(text, pattern):
    while (left := re.sub(pattern, "", text)) != text:
        text = left
    return text


def settle(drawn, lines, gold, early=True, sticky=False, follow=True, first=False, counted=False, empty=None):
    answer, suggested, spoken = None, None, 0
    for role, line in zip(drawn, lines, strict=True):
        role = role if suggested is None else suggested
        if role == V and answer is None and early:
            return spoken + counted, empty, 0.0
        spoken += 1
        suggested = suggested if sticky else None
        if role == T and follow:
            suggested = suggested_role(line) if suggested_role(line) is not None else suggested
        if role == W and not (first and answer is not None):
            answer = answer_in(line)
        if role == V and answer is not None and accepts(line):
            break
    return spoken, answer, float(answer == gold)


WRONG = {
    "answer_of": [
        (lambda text: text.strip(), "between the tags is the answer"),
        (lambda text: (parts(text) or [text])[0].strip(), "LAST"),
        (lambda text: (parts(text) or [text])[-1], "white space"),
        (lambda text: (parts(text, re.DOTALL) or [text])[-1].strip(), "capital letters"),
        (lambda text: (parts(text, re.IGNORECASE) or [text])[-1].strip(), "several lines"),
        (lambda text: (parts(text) or [""])[-1].strip(), "whole reply is the answer"),
        (lambda text: text[text.lower().rfind("<answer>") + 8 :].split("</")[0].strip(), "whole reply|never closed"),
        (lambda text: (parts(text, pattern=r"<answer>(.*)</answer>") or [text])[-1].strip(), "nearest one"),
        (lambda text: parts(text)[-1].strip(), "IndexError"),
        (lambda text: None, "return"),
    ],
    "suggestion": [
        (lambda text: next((r for r in ("worker", "verifier") if r in text.lower()), None), "Hint"),
        (lambda text: lower(lines_of(text, r"next:\s*(worker|verifier)\b")[-1]), "START"),
        (lambda text: lower(lines_of(text, r"^\s*next:\s*(worker|verifier)")[-1]), "whole word"),
        (lambda text: lower(lines_of(text)[0]), "LAST"),
        (lambda text: lines_of(text)[-1], "small letters"),
        (lambda text: lower(lines_of(text, flags=re.MULTILINE)[-1]), "capital letters"),
        (lambda text: lower(lines_of(text, r"^\s*next:\s*(worker|verifier|thinker)\b")[-1]), "only worker and"),
        (lambda text: lower(lines_of(text, flags=re.IGNORECASE)[-1]), "LAST|is None, and"),
    ],
    "ask_all": [
        (in_turn, "asked 1 of .* waits for ever"),
        (whole_replies, "reply.text"),
        (as_they_come, "arrival"),
        (from_one, "asked the agents"),
        (other_chat, "another conversation"),
        (lambda pool, chat: [pool.reply(a, chat).close() for a in range(len(pool.names))], "no coroutine"),
    ],
    "harmless": [
        (once, "one pass"),
        (lambda text: until_clean(text, r"ACCEPT|REVISE"), "marks"),
        (lambda text: until_clean(text, r"(?i)accept|revise|[.#]"), "capital words only"),
        (lambda text: until_clean(text, r"ACCEPT|[.#]"), "still holds 'REVISE'|one pass"),
        (lambda text: until_clean(text, r"ACCEPT|REVISE|[.# ]"), "nothing else away"),
        (lambda text: text, "still holds"),
    ],
    "referee": [
        (lambda d, s, g: settle(d, s, g, early=False), "before any answer ends"),
        (lambda d, s, g: settle(d, s, g, counted=True), "do not count"),
        (lambda d, s, g: settle(d, s, g, follow=False), "replaces the role"),
        (lambda d, s, g: settle(d, s, g, sticky=True), "NEXT turn only"),
        (lambda d, s, g: settle(d, s, g, first=True), "LAST Worker"),
        (lambda d, s, g: settle(d, s, g)[1:], "length 2"),
        (lambda d, s, g: settle(d, s, g, empty=""), "wanted"),
        (lambda d, s, g: (len(d), None, 0.0), "Hint"),
        (lambda d, s, g: settle(d, s, g)[:2] + (None,), "reward"),
    ],
}


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
def test_a_wrong_answer_gets_its_message(name, wrong, says, monkeypatch):
    monkeypatch.setattr(checks_loop, "PATIENCE", 0.2)
    for _ in range(3):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_loop, f"check_{name}")(wrong)


def test_each_exercise_has_three_different_messages():
    for cases in WRONG.values():
        assert len({says for _, says in cases}) >= 3


class Script:
    def __init__(self, lines):
        self.lines = list(lines)

    async def reply(self, agent, messages):
        return Reply(self.lines.pop(0))


def test_the_referees_oracle_is_the_package():
    """The checker's oracle works on what a line was made to say, the package on the text itself."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        drawn, kinds = checks_loop._random_script(rng)
        lines = [checks_loop._line(rng, kind) for kind in kinds]
        gold, texts = lines[0][2], [text for text, _, _ in lines]
        question, rules = Question("math", "infix", "1", gold, ""), replace(RELEASED, max_turns=len(drawn))
        e = run(play(question, fixed([(0, r) for r in drawn]), Script(texts), rules))
        assert checks_loop._settled(drawn, lines, gold) == (len(e.turns), e.answer, e.reward)
