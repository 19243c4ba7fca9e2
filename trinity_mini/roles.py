"""Roles, their prompts, and strict reading of what they say (lesson 05).

The order worker, thinker, verifier is that of the head's last three logits (paper section 2; released run).
The prompts are our own wording; what each role is for follows the paper.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Role(IntEnum):
    """What an agent is asked to be for one turn; the value is the index of its logit."""

    WORKER = 0
    THINKER = 1
    VERIFIER = 2

    @property
    def label(self) -> str:
        return self.name.capitalize()


PROMPTS = {
    Role.WORKER: (
        "You are the Worker. Answer the question. Use the latest plan in the conversation if there is one. "
        "Put the final answer alone between <answer> and </answer>."
    ),
    Role.THINKER: (
        "You are the Thinker. Do not answer the question. Analyse it and write a short plan, or say what is wrong "
        "with the work so far, so that somebody else can answer. You may end with one line 'Next: worker' or "
        "'Next: verifier'."
    ),
    Role.VERIFIER: (
        "You are the Verifier. Check the latest answer in the conversation. Begin your reply with the one word "
        "ACCEPT if it is right, or REVISE if it is not, then give the reason."
    ),
}

# Patterns here take time in proportion to the text, whatever it is: none may scan the same spaces twice.
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_ACCEPT = re.compile(r"\s*[*_`\"'(\[]*((?<=_)ACCEPT_+|ACCEPT)(?!\w)")
_UNSURE = re.compile(r"[*_`\"')\]]*([/|?]|\s+or\s)", re.IGNORECASE)  # ACCEPT/REVISE: ..., ACCEPT or REVISE? ...
_NEXT = re.compile(r"^[^\S\n]*next:\s*(worker|verifier)\b", re.IGNORECASE | re.MULTILINE)
_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # all that str.splitlines takes for one


def indented(text: str) -> str:
    """A text whose lines are indented from the second on, so that no text can pose as another's turn."""
    return _LINE_END.sub("\n  ", text)


def answer_in(text: str) -> str:
    """The answer a Worker's reply gives: the last <answer> part, else the whole reply; stripped."""
    opened, inside = None, slice(None)
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end() if opened is None else opened
        elif opened is not None:
            opened, inside = None, slice(opened, tag.start())
    return text[inside].strip()


def accepts(text: str) -> bool:
    """Whether a Verifier's reply accepts. It must BEGIN with the verdict, which may stand in quotes or emphasis.

    Anything unclear is a revise, also an ACCEPT that is only one of two possibilities: followed by /, |, ? or " or ".
    """
    found = _ACCEPT.match(text)
    return found is not None and not _UNSURE.match(text, found.end())


def suggested_role(text: str) -> Role | None:
    """The next role a Thinker's reply suggests (released run), None where it suggests none."""
    found = _NEXT.findall(text)
    return Role[found[-1].upper()] if found else None
