"""Which option does a reply name? For MMLU and GPQA (lesson 11).

The same sentence must name A as it names B, though "A" is an article too: what follows the letter tells them apart.
"""

from __future__ import annotations

import re

from .math_text import TEXT, WIDE
from .reply_text import boxed, ending, unsure, untagged

# A capital A is an option and no article before these words ("A because"), or before no word at all.
_AFTER_A = (
    r"because|since|as|which|that|is|was|and|or|with|by|for|from|in|on|at|to|but|while|whereas|although|though|where|"
    r"when|so|if|it|we|this|these|due to|given that|rather than|based on|according to|instead|"
    r"not (?:option )?[(\[]?[A-J]"
)
_NO_ARTICLE = rf"(?<!A(?= [a-z]))|(?<=A)(?= (?:{_AFTER_A})(?![\w-]))"
_NO_PRONOUN = r"(?<!I(?= [a-z]))|(?<=I)(?= (?:because|since|which|is|due to)\b)"
_CAPITAL = rf"([A-Z])(?![\w'])(?:{_NO_ARTICLE})(?:{_NO_PRONOUN})"
_SMALL = r"([a-j])(?:(?=[)\]])|(?=[.!]?\s?$)|(?=[.!]\s)(?!\. ?g))"  # (b), b) Paris, or at an end
_LETTER = rf"[\"'*_$({{\[]*(?:{_CAPITAL}|{_SMALL})"
_NOUN = r"(?i:(?:the\s)?(?:(?:correct|right|best|final)\s)?(?:option|choice|answer|letter)\s)?"

_LONE = re.compile(r"(?i:option |choice |answer |letter )?[\s\"'`*_$({\[<]*([A-Za-z])[\s\"'`*_$)}\].:,!>]*")
_HEAD = re.compile(r"\s*(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])\s*[).:](?=\s|$)|([a-j])[).] (?=\S))")
_ALONE_HEAD = re.compile(  # B - Paris; of a text of one line only
    r"(?:\(?|(?i:option|choice) \(?(?=[A-HJ]\)?:))([A-HJ])\)?(?: [-–—] |, |: )(?=\w{2})"
)
_CLAIM = re.compile(
    r"(?i:\b(?:answer|ans|choice|option|(?<=\bthe )letter|(?<=correct )letter)\b"
    r"(?:\s+(?:is|would be|must be|should be)\s*:?|[\"']?[ \t]*[:=]|[ \t]+[-–—](?=[ \t]))"
    r"[ \t]*(?:the\s+)?(?:(?:option|choice|letter)\s+)?)[ \t]*" + _LETTER,
    re.MULTILINE,
)
_START = r"(?:^|[.!:;]\s|\n)(?i:(?:so|thus|hence|therefore|then|finally|no|wait|actually|i think|i believe)\b,? )?"
_ENDS = r"[\"')\]}*_$]*(?=\s?(?:[.!;\n]|,\s(?i:because|since|as|for|i think|i believe)\b|$)|\s(?:because|since|as)\b)"
_VERDICT = re.compile(
    _START + _NOUN + r"[(\[]?([A-Z])[)\]]?\s(?i:is\s(?:clearly\s)?(?:the\s)?(?:only\s)?"
    r"(?:correct|right|best)(?:\s(?:answer|option|choice|one))?)" + _ENDS
)
_CHOICE = re.compile(
    _START + r"(?i:i(?:\swould|\swill|'d|'ll)?\s(?:choose|pick|select|go with)|it\s(?:is|must be)|it's)\s"
    + _NOUN + _LETTER + _ENDS
)  # fmt: skip
_SO = re.compile(r"(?:^|[.!:;]\s|\n)(?i:so|thus|hence|therefore)\b,? " + _NOUN + _LETTER + _ENDS)
_SUPPORT = re.compile(  # any other letter that is said to be right makes the reply unclear
    r"(?<!nor )(?<!neither )\b([A-Z])[)\]]?\s(?:is|are|may be|might be|could be)\s(?:also\s|both\s)?(?:correct|right)\b"
)
_REFUSED = re.compile(  # (A) is wrong; but (A) Wrong, right is an option of MMLU
    r"[)\]]?\.?\s?(?:(?:is|are)\s(?:[a-z]+\s)?(?:wrong|incorrect|false|not)\b|(?:wrong|incorrect)[.!]?$)"
)
_HEDGE = re.compile(
    r"(?i)\b(?:not|wrong|incorrect|however|but|or|and|nor|never|maybe|perhaps|too|also)\b|n['’]t\b|[=?]|\b[A-Z]\b"
)
_CLOSING = re.compile(r"[)\]}.*_'\"$]*")
_ANOTHER = re.compile(
    r"\s*(?:,\s*(?:or|and)\b|,|/|&|\bor\b|\band\b)\s*(?:option\s+)?[(\[]?([A-Z])[)\]]?"
    r"(?![\w'])(?<!I(?= [a-z]))(?!\s(?:is|are)\s(?:[a-z]+\s)?(?:wrong|incorrect|false|not)\b)"
)
_SIGNS = WIDE | dict.fromkeys(map(ord, "“”„«»"), '"') | dict.fromkeys(map(ord, "‘’"), "'")


def letters_in(text: str) -> set[str]:
    """The options that a text names as its answer, as capital letters; empty if it names none clearly.

    Read are, in this order: boxes; a text that is a lone letter; "the answer is B", "option: B"; "B is correct.",
    "I choose B.", "Therefore, B."; a line, the first or the last, that begins with "(B)", "B." or "B:".
    A capital that is a word ("A nice day") names nothing, nor does a claim that is taken back ("I doubt that ...").
    Only the last `reply_text.LONGEST_REPLY` characters are read.
    """
    return _letters(ending(untagged(text)), 5)


def _letters(text: str, boxes_within: int) -> set[str]:
    text = TEXT.sub(r"\1", text).translate(_SIGNS)
    if boxes := boxed(text):
        inner = [content for _, _, content in boxes if boxes_within]
        return {letter for content in inner for letter in _letters(content, boxes_within - 1)} or {"?"}
    text = re.sub(r"\*\*|__|`|\\[()]", "", text).strip()
    if m := _LONE.fullmatch(text):
        return {m[1].upper()}
    text = re.sub(r"(?<!\w)(['\"])([A-Za-z])\1(?!\w)", r"(\2)", text)
    named = _named(_CLAIM, text)
    if named:
        return named
    named = _named(_VERDICT, text) | _named(_CHOICE, text) | _named(_SO, text)
    if named:
        named |= set(_SUPPORT.findall(text))
    lines = [line for line in text.splitlines() if line.strip()]
    for line in dict.fromkeys(lines[:1] + lines[-1:]):
        if m := _HEAD.match(line):
            if not _REFUSED.match(line, m.end()):
                named |= {(m[1] or m[2] or m[3] or m[4]).upper()} | _others(line, m.end())
        elif m := _LONE.fullmatch(line):
            named.add(m[1].upper())
        elif not named and len(lines) == 1 and (m := _ALONE_HEAD.match(line)) and not _HEDGE.search(line, m.end()):
            named.add(m[1])
        else:
            named |= _listed(line)
    return named


def _named(pattern: re.Pattern[str], text: str) -> set[str]:
    """The letters that a pattern finds, and those that follow them, but not after words that take it back."""
    named = set()
    for m in pattern.finditer(text):
        before = text[max(0, m.start() - 100) : m.start()]
        if not unsure(before) and not re.search(r"(?i)\b(?:one|first|second|last) $", before):  # one option is A
            named |= {next(filter(None, m.groups())).upper()} | _others(text, m.end())
    return named


def _listed(line: str) -> set[str]:
    """The letters of a line that is nothing but a list of them: A, (C) or D."""
    first, *gaps = re.split(r"[A-Z]", line)
    if len(gaps) < 2 or re.search(r"\w", first + gaps.pop()):
        return set()
    words = [(gap, re.sub(r"\W", "", gap)) for gap in gaps]
    joined = all(word in ("or", "and") or (not word and re.search(r"[,/&]", gap)) for gap, word in words)
    return set(re.findall(r"[A-Z]", line)) if joined else set()


def _others(text: str, start: int) -> set[str]:
    """Letters that follow the one before `start`: B or C."""
    found, start = set(), _CLOSING.match(text, start).end()  # type: ignore[union-attr]
    while m := _ANOTHER.match(text, start):
        found.add(m[1])
        start = m.end()
    return found


def grade_option(gold: str, answer: str | None) -> bool | None:
    """Whether an answer names the gold option and no other; None if the gold option is no capital letter.

    Source: paper section 4.1 (MMLU).
    """
    if not isinstance(gold, str) or not re.fullmatch("[A-Z]", gold):
        return None
    return answer is not None and letters_in(answer) == {gold}
