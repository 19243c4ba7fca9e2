"""Is a mathematical answer the same as the gold answer? For MATH-500 and AIME (lesson 11).

What can be decided by reading is decided here: numbers, words, tuples, intervals, sets, lists, matrices, units. What
needs algebra goes to math-verify (`math_checker`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from .math_checker import CHECKER
from .math_text import TEXT, clean, final_answers, number, plain, without_unit, words

LONGEST = 400  # characters of an answer; the longest gold answer of MATH-500 has some 140
MOST_DIGITS = 100_000  # of a power of whole numbers
Equal = Callable[[str, str], bool | None]


def grade_math(gold: str, answer: str | None) -> bool | None:
    """Whether an answer (what stands between the tags, or a whole reply) says the same as the gold answer.

    Order counts in tuples and intervals, not in lists and sets; units may be left out, but not be wrong ones;
    10%, 10 and 0.1 are the same where the gold answer is a percentage. None: it cannot be told, because
    math-verify cannot read the gold answer or was too slow. An answer that nests deeper than `DEEPEST` or is a number
    beyond all writing (9^{9^9}) is wrong unless it is spelt as the gold answer.
    Raises: UserError if math-verify is not installed.
    """
    if not isinstance(gold, str) or len(gold) > LONGEST or not clean(gold):
        return None
    if answer is None:
        return False
    right: bool | None = False
    for candidate in final_answers(answer):
        if len(candidate) <= LONGEST:
            right = same(clean(gold), clean(candidate), _by_algebra)
        if right:
            return True
    return right


_POWER = re.compile(r"(\d+)[\s)}]*\^[\s({]*(\d+)(?!\d|\s*\^)")  # of a tower, the topmost one
DEEPEST = 12  # brackets within brackets


def _by_algebra(gold: str, answer: str) -> bool | None:
    if not (_bounded(gold) and _bounded(answer)):
        return False if _bounded(gold) else None
    return CHECKER.equal(gold, answer)


def _bounded(text: str) -> bool:
    """Whether algebra need not take for ever: braces are balanced and not deep, powers are no towers."""
    depth = braces = 0
    for sign in re.sub(r"\\.", "", text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        braces += (sign == "{") - (sign == "}")
        if depth > DEEPEST or braces < 0:
            return False
    if braces or re.search(r"\d{5}\s*!|![\s)}]*!", text):  # and no factorials of factorials
        return False
    while m := _POWER.search(text):
        digits = int(m[2]) * math.log10(max(int(m[1]), 1)) if len(m[2]) < 10 else math.inf
        if digits > MOST_DIGITS:
            return False
        # a number too long to write is no exponent either, so it need only be one that is refused there
        text = text[: m.start()] + (str(int(m[1]) ** int(m[2])) if digits < 50 else "9" * 50) + text[m.end() :]
    return True


_OPEN, _CLOSE = "([{", ")]}"
_NAME = r"(?:[A-Za-z](?:_\{?\w+\}?|'|\([a-z](?:, ?[a-z])*\))?|\([a-z](?:, ?[a-z])+\))"


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator (a pattern) that stands in no bracket."""
    parts, depth, start, i = [], 0, 0, 0
    pattern = re.compile(separator)
    while i < len(text):
        depth += (text[i] in _OPEN) - (text[i] in _CLOSE)
        if depth <= 0 and (m := pattern.match(text, i)):
            parts.append(text[start:i].strip())
            start = i = m.end()
        else:
            i += 1
    return [*parts, text[start:].strip()]


def _items(text: str) -> list[str]:
    r"""The members of a list: at commas, semicolons, "and", "or"; a \pm is two members; 1,234 is one number."""
    if number(text) is not None:
        return [text]
    parts = [p for p in _split(text, r",|;|\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b|\\lor\b|\\vee\b") if p]
    out: list[str] = []
    for part in parts:
        signs = ("+", "-") if part.count(r"\pm") == 1 or part.count("±") == 1 else ("",)
        out += [re.sub(r"\\pm|±", sign, part).lstrip("+ ") if sign else part for sign in signs]
    return out


def _enclosed(text: str) -> tuple[str, str, str] | None:
    r"""(opening, inside, closing) if one pair of brackets encloses it all: (1,2), [2,5), \{1,2\}."""
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
    if m := re.fullmatch(r"\\\{(.*)\\\}|\{([^{}]*)\}", text):
        if m[1] is None:
            return "{", m[2].strip(), "}"
        return ("{", m[1].strip(), "}") if r"\{" not in m[1] else None
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]":
        return None
    depth = 0
    for i, c in enumerate(text):
        depth += (c in _OPEN) - (c in _CLOSE)
        if depth == 0:
            return (text[0], text[1:-1].strip(), text[-1]) if i == len(text) - 1 else None
    return None


def _matrix(text: str) -> list[list[str]] | None:
    m = re.fullmatch(r"\\begin\{([pb]?matrix|array)\}(?:\{[clr| ]*\})?(.*)\\end\{\1\}", text.strip("()[] "), re.DOTALL)
    if not m:
        return None
    return [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\", m[2]) if row.strip()]


def _all(pairs: Sequence[tuple[str, str]], equal: Equal) -> bool | None:
    results = [same(g, a, equal) for g, a in pairs]
    return False if False in results else None if None in results else True


def _any_order(gold: Sequence[str], answer: Sequence[str], equal: Equal) -> bool | None:
    """Every member of one is a member of the other, as often."""
    if len(gold) != len(answer) or len(gold) > 20:
        return False
    left, unsure = list(answer), False
    for g in gold:
        verdicts: list[bool | None] = []
        for a in left:
            verdicts.append(same(g, a, equal))
            if verdicts[-1]:
                break
        if verdicts[-1]:
            left.pop(len(verdicts) - 1)
            continue
        if None not in verdicts:
            return False
        unsure = True
    return None if unsure else True


def same(gold: str, answer: str, equal: Equal) -> bool | None:
    """Whether two cleaned answers say the same; `equal` does the algebra on what is neither list nor plain number."""
    if plain(gold) == plain(answer):
        return True
    if not answer:
        return False
    verdict = _as_words(gold, answer)
    if verdict is not None:
        return verdict
    gold, answer = _rid_of_names(gold, answer)
    if "=" in gold and "=" not in answer:
        return False
    rows, others = _matrix(gold), _matrix(answer)
    if rows and others:
        if [len(r) for r in rows] != [len(r) for r in others]:
            return False
        return _all([(g, a) for r, o in zip(rows, others, strict=True) for g, a in zip(r, o, strict=True)], equal)
    if r"\cup" in gold and (len(parts := _split(answer, r"\\cup|\bor\b|\\text\{\s*or\s*\}|\\lor\b")) > 1):
        return _any_order(_split(gold, r"\\cup"), parts, equal)
    return _collections(gold, answer, equal)


def _collections(gold: str, answer: str, equal: Equal) -> bool | None:
    inner, other = _enclosed(gold), _enclosed(answer)
    many, more = _items(inner[1] if inner else gold), _items(other[1] if other else answer)
    if len(many) < 2 and len(more) < 2 and not (inner and inner[0] == "{"):
        if inner and other and inner[0] == other[0] == "(" and inner[2] == other[2] == ")":
            return same(inner[1], other[1], equal)
        return _single(gold, answer, equal)
    if inner and inner[0] != "{":
        if not other:  # x > 3 for (3, \infty) is algebra's to tell
            return equal(gold, answer) if re.search(r"[<>]|\\[lg]e\b", answer) and len(many) == 2 else False
        if (inner[0], inner[2]) != (other[0], other[2]) or len(many) != len(more):
            return False
        return _all(list(zip(many, more, strict=True)), equal)
    if other and other[0] != "{" and not (inner is None and len(many) < 2):
        return False
    return _any_order(many, more, equal)


def _as_words(gold: str, answer: str) -> bool | None:
    r"""The verdict on a gold answer that is a word or an option letter (\text{E}); None if it is neither."""
    spelt = re.fullmatch(r"\s*(?:\\text\{[^{}]*\}\s*)+", gold)
    bare = TEXT.sub(r"\1", gold).strip()
    if m := re.fullmatch(r"\(?([A-Z])\)?", bare):
        said = re.fullmatch(r"\W*([A-Z])\W*", TEXT.sub(r"\1", answer).strip())
        return said is not None and said[1] == m[1]
    if re.search(r"\d", bare) and number(without_unit(gold)[0]) is not None:
        return None
    if spelt or re.fullmatch(r"[A-Z]?[a-z]{3,}(?:[ '-][A-Za-z]+)*|[A-Z][a-z]+(?: [A-Za-z]+)*", bare):
        return words(gold) == words(answer)
    return None


def _rid_of_names(gold: str, answer: str) -> tuple[str, str]:
    r"""Without "x =" and "x \in" where only one of the two has it, or both have the same."""
    heads = [re.match(rf"({_NAME})\s*(?:=|\\in(?![a-z]))\s*(?=[^=]*$)", t) for t in (gold, answer)]
    names = [re.sub(r"\s", "", h[1]) if h else "" for h in heads]
    if heads[0] and (names[0] == names[1] or "=" not in answer):
        gold = gold[heads[0].end() :]
    if heads[1] and (names[0] == names[1] or not heads[0]) and "=" not in gold:
        answer = answer[heads[1].end() :]
    if "=" in answer and "=" not in gold and not re.search(r"[,;]|\b(?:or|and)\b", answer):
        *before, last = answer.split("=")
        if all(re.fullmatch(_NAME, b.strip()) or not re.search(r"(?<![\\A-Za-z])[A-Za-z]", b) for b in before):
            answer = last.strip()  # 2+3=5, x=6/2=3; but not x^2+y^2=1
    elif "=" not in gold:
        parts = re.split(rf"(?<![A-Za-z\\])(?:{_NAME})\s*=\s*", answer)
        answer = "".join(parts) if len(parts) > 2 and not parts[0].strip() else answer  # x=1 or x=2
    return gold, answer


def _single(gold: str, answer: str, equal: Equal) -> bool | None:
    """Numbers with units, percentages and bases by reading; the rest by algebra."""
    (gold, unit), (answer, other) = without_unit(gold), without_unit(answer)
    if unit and other and unit != other and "?" not in (unit, other):
        return False
    based = [re.fullmatch(r"(.*\w)_\{?(\d+)\}?", t) for t in (gold, answer)]
    if based[0]:
        return _in_base(*based[0].groups()) == _in_base(*(based[1].groups() if based[1] else (answer, based[0][2])))
    percent, other_percent = gold.endswith("%"), answer.endswith("%")
    g, a = (number(t.removesuffix("%").strip()) for t in (gold, answer))
    if g is not None and a is not None:
        scales = {(True, False): (1, Fraction(1, 100)), (False, True): (1, 100)}.get((percent, other_percent), (1,))
        return any(_close(g * s, a, gold + answer) for s in scales)
    if plain(gold) == plain(answer):
        return True
    if "=" in answer and "=" not in gold:  # math-verify would take the right-hand side
        return False
    return equal(_spelt_out(gold, g), _spelt_out(answer, a))


def _spelt_out(text: str, value: Fraction | None) -> str:
    """2.5e6 and 0.\\overline{3} as fractions, for algebra's sake; decimals stay, since they may be rounded."""
    if value is None or not re.search(r"e|overline", text, re.IGNORECASE):
        return text
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _in_base(digits: str, base: str) -> int | str:
    try:
        return int(plain(digits), int(base))
    except (ValueError, OverflowError):
        return digits


def _close(gold: Fraction, answer: Fraction, written: str) -> bool:
    """Equal; a decimal of six or more places may be rounded."""
    return gold == answer or (bool(re.search(r"\.\d{6}", written)) and abs(gold - answer) < Fraction(1, 1_000_000))
