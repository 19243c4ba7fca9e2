"""How conversations are written down for the tiny models: their chat templates, in plain text.

A tiny agent's window holds the question, the latest plan and the latest answer: a Thinker reads the question,
a Worker the question and the plan, a Verifier all three.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .roles import Role, accepts

if TYPE_CHECKING:
    from .episode import Transcript

TAGS = {Role.THINKER: "T", Role.WORKER: "W", Role.VERIFIER: "V"}
_RESERVED = re.compile(r"ACCEPT|REVISE|<[a-z]+>|[TWVAR.#]")


def plain(text: str) -> str:
    """A reply without the characters that have a meaning in the template, so that no text can pose as a turn."""
    while (left := _RESERVED.sub("", text)) != text:  # what is left may have closed up to a reserved word
        text = left
    return text


def prompt_text(role: Role, question: str, plan: str | None = None, answer: str | None = None) -> str:
    """What a tiny agent reads before it speaks, e.g. `(3*6-3)%7T(18-3)%7,15%7.W`."""
    text = plain(question)
    if role != Role.THINKER and plan is not None:
        text += f"T{plain(plan)}."
    if role == Role.VERIFIER:
        text += f"W{plain(answer or '')}."
    return text + TAGS[role]


def check(candidate: str, own: str) -> str:
    """A Verifier's working: candidate and own answer side by side, marks, verdict, e.g. `22+rr+13-R`."""
    n = max(len(candidate), len(own))
    pairs = list(zip(candidate.ljust(n, "_"), own.ljust(n, "_"), strict=True))
    return "".join(f"{c}{o}{'+' if c == o else '-'}" for c, o in pairs) + ("A" if candidate == own else "R")


def verdict_text(working: str) -> str:
    """The reply a tiny Verifier gives: the verdict first, as its role asks, then its working.

    Anything but a working that ends in A or R is no verdict: it is passed on `plain`, so that it reads as unclear.
    """
    if working.endswith("A"):
        return f"ACCEPT {working[:-1]}".rstrip()
    if working.endswith("R"):
        return f"REVISE {working[:-1]}".rstrip()
    return plain(working)


END, GENERATE = "#", ">"


def router_text(transcript: Transcript) -> str:
    """What the embedded SLM reads: the question, every turn, `#` (end of the conversation), `>` (generation prompt).

    So the penultimate token is `#`, whose state sums the conversation up; `>` stands where a reply would begin.
    """
    text = plain(transcript.question)
    for turn in transcript.turns:
        said = turn.reply.text or ""
        verdict = ""
        if turn.role == Role.VERIFIER:
            verdict = "ACCEPT" if accepts(said) else "REVISE"
        text += f"{TAGS[turn.role]}{verdict}{plain(said).strip()}."
    return text + END + GENERATE
