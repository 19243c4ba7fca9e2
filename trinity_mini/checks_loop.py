"""The checkers of lesson 05, the loop. Texts are put together from known parts, so the right answer is known first."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .checks import Wrong, called, passed, same
from .episode import run
from .pool import Reply
from .roles import Role

ROUNDS = 20
PATIENCE = 2.0  # seconds that check_ask_all waits for calls that never begin
T, W, V = Role.THINKER, Role.WORKER, Role.VERIFIER


def _hint(found: Any, mistakes: Mapping[str, Any], otherwise: str) -> str:
    """The hint of a known mistake that gives just what was found, or another one."""
    return next((hint for hint, wrong in mistakes.items() if type(wrong) is type(found) and wrong == found), otherwise)


def _word(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("bcdghklmn0123456789"), size=int(rng.integers(2, 6))))


# ---- 5.1 -----------------------------------------------------------------------------------------------


def check_answer_of(fn: Callable) -> None:
    """Exercise 5.1: answer_of(text) -> the answer, known before the text is written around it."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        kind, capitals, lines = i % 5, i // 5 in (2, 3), i // 5 in (1, 3)
        first, last = _word(rng), f"{_word(rng)}\n{_word(rng)}" if lines else _word(rng)
        opening, closing = ("<ANSWER>", "</Answer>") if capitals else ("<answer>", "</answer>")
        end = "\n" if lines else " "
        pair = f"{opening} {last}{end}{closing}"
        if kind == 0:
            text, wanted = f"  {first}\n", first
        elif kind == 1:
            text, wanted = f"so {pair} it is", last
        elif kind == 2:
            last = _word(rng)
            text, wanted = f"<answer>{first}</answer> no, wait: <answer> {last}</answer>.", last
        elif kind == 3:
            text, wanted = f"{first} <answer>{last}", f"{first} <answer>{last}"
        else:
            text, wanted = f"{first}{opening}{closing}", ""
        found = called(fn, text, what=f"answer_of({text!r})")
        whole = text.strip() if wanted != text.strip() else None
        mistakes = {
            "the tags do not belong to the answer.": pair if kind == 1 else None,
            "several tagged parts: the LAST one counts, a model may correct itself.": first if kind == 2 else None,
            "take off white space at both ends, with strip().": {0: text, 1: f" {last}{end}", 2: f" {last}"}.get(kind),
            "the first opening and the last closing tag do not belong together: .*? stops at the nearest one.": (
                f"{first}</answer> no, wait: <answer> {last}" if kind == 2 else None
            ),
            "a tag may be in capital letters: re.IGNORECASE.": whole if capitals and not lines else None,
            "an answer may go over several lines: re.DOTALL.": whole if lines and not capitals else None,
            "a part between the tags is the answer, even an empty one.": whole,
            "without a complete pair of tags the whole reply is the answer.": "" if kind in (0, 3) else None,
            "a tag that is never closed is no tag: the whole reply counts.": last if kind == 3 else None,
        }
        hint = _hint(found, mistakes, "the last part between the tags, else the whole reply, stripped.")
        same(found, wanted, f"answer_of({text!r})", hint)
    passed("answer_of", ROUNDS)


# ---- 5.2 -----------------------------------------------------------------------------------------------


def check_suggestion(fn: Callable) -> None:
    """Exercise 5.2: suggestion(text) -> role or None, known before the text is written around it."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        role, other = [str(r) for r in rng.permutation(["worker", "verifier"])]
        said = f"next:{' ' * int(rng.integers(3))}{role}"
        said = [said.upper(), said.title(), said, said.capitalize()][i // 6]
        start = f"{_word(rng)}\n" if rng.random() < 0.5 else ""
        kind = i % 6
        text, wanted, hint = [
            (f"{start}{' ' * int(rng.integers(3))}{said}.", role, "small or capital letters, spaces or none: all do."),
            (f"{start}Next: {other}\n{_word(rng)}\nNext: {role}\n", role, "the LAST such line counts."),
            (f"What comes {said}", None, "it counts only at the START of a line, so not inside a sentence."),
            (f"{start}Next: {role}s", None, "the role must be a whole word, and this one goes on."),
            (f"{start}Next: thinker", None, "only worker and verifier can be suggested."),
            (f"The {role} should check that.", None, "a role that is merely mentioned is no suggestion."),
        ][kind]
        found = called(fn, text, what=f"suggestion({text!r})")
        if isinstance(found, str) and found != wanted and found.lower() == wanted:
            hint = "give the role in small letters."
        if wanted is not None and found is None:
            raise Wrong(f"suggestion({text!r}) is None, and {wanted!r} is wanted. Hint: {hint}")
        same(found, wanted, f"suggestion({text!r})", hint)
    passed("suggestion", ROUNDS)


# ---- 5.3 -----------------------------------------------------------------------------------------------


class _Meeting:
    """A pool whose agents answer only when all have been asked, the last one first."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.names, self.texts = [f"agent{i}" for i in range(len(texts))], texts
        self.asked: list[tuple[int, Any]] = []
        self.all_here = asyncio.Event()

    async def reply(self, agent: int, chat: Any) -> Reply:
        self.asked.append((agent, chat))
        if len(self.asked) >= len(self.names):
            self.all_here.set()
        await self.all_here.wait()
        await asyncio.sleep(0.001 * (len(self.names) - agent))
        return Reply(self.texts[agent])


def check_ask_all(fn: Callable) -> None:
    """Exercise 5.3: ask_all(pool, chat) -> texts, with a pool that answers nobody before everybody has asked."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        texts = [_word(rng) + str(i) for i in range(int(rng.integers(2, 7)))]
        chat = [{"role": "user", "content": _word(rng)}]
        pool = _Meeting(texts)

        async def asking(pool: _Meeting = pool, chat: list = chat) -> Any:
            waiting = fn(pool, chat)
            if not asyncio.iscoroutine(waiting) and not isinstance(waiting, asyncio.Future):
                raise Wrong("ask_all gives no coroutine. Hint: begin with `async def`, and await what you ask.")
            return await asyncio.wait_for(waiting, PATIENCE)

        try:
            found = called(lambda asking=asking: run(asking()), what="ask_all")
        except Wrong as error:
            if isinstance(error.__cause__, TimeoutError):
                raise Wrong(
                    f"ask_all has asked {len(pool.asked)} of {len(texts)} agents and waits for ever: each answers only "
                    "when all have been asked. Hint: make all coroutines first, then await them together."
                ) from error
            raise
        if isinstance(found, list) and any(isinstance(x, Reply) for x in found):
            raise Wrong("ask_all gives replies, and their texts are wanted. Hint: reply.text for each.")
        if any(content is not chat and content != chat for _, content in pool.asked):
            raise Wrong("ask_all has put another conversation to an agent. Hint: pass chat on as it is.")
        if sorted(agent for agent, _ in pool.asked) != list(range(len(texts))):
            asked = sorted(agent for agent, _ in pool.asked)
            raise Wrong(f"ask_all has asked the agents {asked} of {len(texts)}. Hint: each index once, from 0 on.")
        mistakes = {"the order is that of the replies' arrival: gather keeps the order of asking.": texts[::-1]}
        same(found, texts, "ask_all(pool, chat)", _hint(found, mistakes, "in the order of pool.names."))
    passed("ask_all", ROUNDS)


# ---- 5.4 -----------------------------------------------------------------------------------------------


def _reduced(text: str) -> str:
    """The right answer in another way: letter by letter onto a stack, whose top may be a word to take off."""
    stack = ""
    for letter in text:
        stack += "" if letter in ".#" else letter
        for word in ("ACCEPT", "REVISE"):
            stack = stack.removesuffix(word)
    return stack


def check_harmless(fn: Callable) -> None:
    """Exercise 5.4: harmless(text) -> text, against a stack of letters."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        word = str(rng.choice(["ACCEPT", "REVISE"]))
        text, k = _word(rng) + word, int(rng.integers(1, 6))
        if i % 4 == 1:
            text = f"{word[:k]}{rng.choice(['ACCEPT', 'REVISE', '.', '#'])}{word[k:]}{_word(rng)}"
        elif i % 4 == 2:
            text = f"{_word(rng)} accept {word}. Revise #{_word(rng)}"
        elif i % 4 == 3:
            for _ in range(12):
                text = f"{word[:k]}{text}{word[k:]}"
        wanted = _reduced(text)
        found = called(fn, text, what=f"harmless({text!r})")
        once = re.sub(r"ACCEPT|REVISE|[.#]", "", text)
        in_turn = functools.reduce(lambda left, each: left.replace(each, ""), ("ACCEPT", "REVISE", ".", "#"), text)
        mistakes = {
            "one pass is not enough: what is left may close up to a new word.": once,
            "one word after the other is not enough: what is left may close up to a new word.": in_turn,
            "capital words only: accept and Revise stay.": _reduced(text.replace("accept", "").replace("Revise", "")),
            "the marks . and # have to go too.": text.replace("ACCEPT", "").replace("REVISE", ""),
            "take nothing else away, neither spaces nor other letters.": wanted.replace(" ", ""),
        }
        left = [w for w in ("ACCEPT", "REVISE", ".", "#") if isinstance(found, str) and w in found]
        more = f"it still holds {left[0]!r}." if left else "all else stays as it was."
        same(found, wanted, f"harmless({text!r})", _hint(found, mistakes, more))
    passed("harmless", ROUNDS)


# ---- 5.5 -----------------------------------------------------------------------------------------------


def _settled(
    drawn: Sequence[Role], lines: Sequence[tuple[str, str, str]], gold: str,
    early: bool = True, follow: bool = True, sticky: bool = False, first: bool = False, count_early: bool = False,
) -> tuple[int, str | None, float]:  # fmt: skip
    """The right answer, or that of a known mistake; lines come with what they say and suggest: (text, kind, answer)."""
    plan: list[Role] = list(drawn)
    answers: list[str] = []
    for turn, (_, kind, answer) in enumerate(lines):
        if plan[turn] == V and not answers and early:
            return turn + count_early, None, 0.0
        if plan[turn] == T and follow and kind in ("worker", "verifier"):
            after = slice(turn + 1, None if sticky else turn + 2)
            plan[after] = [Role[kind.upper()]] * len(plan[after])
        if plan[turn] == W:
            answers.append(answer)
        if plan[turn] == V and kind == "accept" and answers:
            return turn + 1, _last(answers, first), float(_last(answers, first) == gold)
    return len(drawn), _last(answers, first), float(_last(answers, first) == gold)


def _last(answers: list[str], first: bool) -> str | None:
    return None if not answers else answers[0] if first else answers[-1]


def check_referee(fn: Callable) -> None:
    """Exercise 5.5: referee(drawn, lines, gold) -> (turns, answer, reward), against a plan that is rewritten."""
    rng = np.random.default_rng()
    scripts = [  # each is settled differently by one mistake; random ones follow
        ([V, W, V], ["plain", "plain", "accept"]),
        ([T, V, W], ["plain", "accept", "plain"]),
        ([T, T, W, W], ["worker", "plain", "plain", "plain"]),
        ([W, T, W, W], ["plain", "verifier", "accept", "plain"]),
        ([T, W, V, T, V], ["worker", "plain", "revise", "plain", "accept"]),
        ([W, W, V], ["plain", "plain", "accept"]),
        ([W, V, V, W], ["plain", "unclear", "revise", "plain"]),
    ]
    for i in range(2 * ROUNDS):
        drawn, kinds = scripts[i] if i < len(scripts) else _random_script(rng)
        lines = [_line(rng, kind) for kind in kinds]
        answers = [answer for _, _, answer in lines]
        gold = str(rng.choice(answers))
        wanted = _settled(drawn, lines, gold)
        texts = [text for text, _, _ in lines]
        roles = ", ".join(r.label for r in drawn)
        what = f"referee([{roles}], {texts}, {gold!r})"
        found = called(fn, list(drawn), list(texts), gold, what=what)
        rules = {
            "a Verifier before any answer ends the episode at once, with reward 0.": {"early": False},
            "an early Verifier does not speak: do not count its turn.": {"count_early": True},
            "a Thinker's suggestion, a Role or None, replaces the role drawn for the next turn: ask `is not None`, for "
            "Role.WORKER is 0.": {"follow": False},
            "a suggestion holds for the NEXT turn only: forget it after that.": {"sticky": True},
            "the answer is the LAST Worker's.": {"first": True},
        }
        plain = tuple(found) if isinstance(found, list | tuple) else found
        settled = {hint: _settled(drawn, lines, gold, **rule) for hint, rule in rules.items()}
        mistakes = {hint: wrong for hint, wrong in settled.items() if wrong != wanted}
        if isinstance(plain, tuple) and len(plain) == 3 and plain[1] is None and wanted[1] is not None:
            raise Wrong(f"{what}[1] is None, and {wanted[1]!r} is wanted. Hint: the answer is the last Worker's.")
        hint = _hint(plain, mistakes, "go turn by turn: who speaks, what is answered, does it end here?")
        if isinstance(plain, tuple) and len(plain) == 3 and not isinstance(plain[2], int | float | np.number):
            raise Wrong(f"{what}[2] is {plain[2]!r}, and a reward of 1.0 or 0.0 is wanted.")
        same(found if plain is found else list(plain), wanted, what, hint)
    passed("referee", 2 * ROUNDS)


def _random_script(rng: np.random.Generator) -> tuple[list[Role], list[str]]:
    n = int(rng.integers(1, 7))
    kinds = rng.choice(["plain", "accept", "revise", "unclear", "worker", "verifier"], size=n)
    return [Role(int(r)) for r in rng.choice(3, size=n, p=(0.4, 0.35, 0.25))], [str(k) for k in kinds]


def _line(rng: np.random.Generator, kind: str) -> tuple[str, str, str]:
    """(text, kind, the answer that it gives as a Worker's)."""
    word = _word(rng)
    if kind == "plain":
        return (word, kind, word) if rng.random() < 0.5 else (f"so <answer>{word}</answer>", kind, word)
    text = {
        "accept": f"ACCEPT {word}",
        "revise": f"REVISE {word}",
        "unclear": f"I would ACCEPT {word}",
        "worker": f"{word}\nNext: worker",
        "verifier": f"{word}\nNext: verifier",
    }[kind]
    return text, kind, text
