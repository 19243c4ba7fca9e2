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
from .math_text import NUMERALS, TEXT, clean, number, plain, without_unit, words
from .quantities import unit
from .reply_text import DOUBT, final_answers

LONGEST = 400  # characters of an answer; the longest gold answer of MATH-500 has some 140
MOST_DIGITS = 100_000  # of a power of whole numbers
BUDGET = 10.0  # seconds of CPU time for all of one answer's algebra
Equal = Callable[[str, str], bool | None]


def grade_math(gold: str, answer: str | None) -> bool | None:
    """Whether an answer (what stands between the tags, or a whole reply) says the same as the gold answer.

    Order counts in tuples and intervals, not in lists and sets; units may be left out, but not be wrong ones;
    10%, 10 and 0.1 are the same where the gold answer is a percentage. None: it cannot be told, because
    math-verify cannot read the gold answer or was too slow (`BUDGET` for all members of a list together). An answer
    that nests deeper than `DEEPEST` or is a number beyond all writing (9^{9^9}) is wrong unless it is spelt as the
    gold answer.
    Raises: UserError if math-verify is not installed.
    """
    if not isinstance(gold, str) or len(gold) > LONGEST or not clean(gold):
        return None
    if answer is None:
        return False
    algebra = _Algebra()
    verdicts = [
        same(clean(gold), clean(candidate), algebra)
        for candidate in final_answers(answer)
        if len(candidate) <= LONGEST and clean(candidate)
    ]
    return True if True in verdicts else None if None in verdicts else False


_POWER = re.compile(r"(\d+)[\s)}]*\^[\s({]*(\d+)(?!\d|\s*\^)")  # of a tower, the topmost one
DEEPEST = 12  # brackets within brackets


class _Algebra:
    """Asks math-verify until `BUDGET` is spent or one question took all of its time; then nothing can be told."""

    def __init__(self) -> None:
        self.left = BUDGET

    def __call__(self, gold: str, answer: str) -> bool | None:
        if not (_bounded(gold) and _bounded(answer)):
            return False if _bounded(gold) else None
        if self.left <= 0:
            return None
        verdict, spent = CHECKER.timed(gold, answer, self.left)
        self.left = self.left - spent if spent < CHECKER.seconds else 0.0
        return verdict


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
    if number(text) is not None or number(without_unit(text)[0]) is not None:
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
    return [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\(?:\[[^\]]*\])?", m[2]) if row.strip()]


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
    if other and other[0] != "{":
        if not inner and len(many) < 2 and len(more) == 2 and re.search(r"[<>]|\\[lg]e\b", gold):
            return equal(answer, gold)  # (3, \infty) for x > 3
        if inner or len(many) > 1:
            return False
    return _any_order(many, more, equal)


def _as_words(gold: str, answer: str) -> bool | None:
    r"""The verdict on a gold answer that is a word or an option letter (\text{E}); None if it is neither."""
    spelt = re.fullmatch(r"\s*(?:\\text\{[^{}]*\}\s*)+", gold)
    bare = TEXT.sub(r"\1", gold).strip()
    said = TEXT.sub(r"\1", answer).strip()
    if m := re.fullmatch(r"\(?([A-Z])\)?", bare):
        named = re.fullmatch(r"\W*([A-Z])\W*", said)
        if not named and not DOUBT.search(said):  # (C) 12
            named = re.fullmatch(r"\(?([A-Z])\)\s(?!.*(?:[A-Z]\)|\band\b)).*", said)
        return named is not None and named[1] == m[1]
    if re.search(r"\d", bare) and number(without_unit(gold)[0]) is not None:
        return None
    if spelt or re.fullmatch(r"[A-Z]?[a-z]{3,}(?:[ '-][A-Za-z]+)*|[A-Z][a-z]+(?: [A-Za-z]+)*", bare):
        return words(gold) == words(answer) or _says(words(gold), said)
    return None


_TURNS = r"\b(?:but|unless|if|or|sometimes|maybe|perhaps|except|however)\b"
_AGAINST = dict.fromkeys(("yes", "true"), rf"(?i)\b(?:no|not|false|never|wrong)\b|n['’]t\b|{_TURNS}")
_AGAINST |= dict.fromkeys(("no", "false"), rf"(?i)\b(?:yes|true|always)\b|{_TURNS}")


def _says(gold: str, answer: str) -> bool:
    """Whether a sentence says one thing, and that: "Yes, it is." for yes, "The function is odd." for odd."""
    if gold in _AGAINST and (m := re.match(rf"(?i){gold}[,.!;:](.*)", answer)):
        return not re.search(_AGAINST[gold], m[1])
    m = re.fullmatch(r"(.*)\b(?:is|are)\b(?: (?:an?|the)\b)?(.*)", answer)
    return m is not None and words(m[2]) == gold and not DOUBT.search(m[1])


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
    (gold, mine), (answer, other) = without_unit(gold), without_unit(answer)
    scale = Fraction(1)
    if mine and other and mine != other and "?" not in (mine, other):
        wanted, given = unit(mine), unit(other)
        if not (wanted and given and wanted[1] == given[1]):
            return False
        scale = given[0] / wanted[0]  # 50 mm for 5 cm
    if ":" in answer and ":" not in gold:  # math-verify would divide
        return False
    based = [re.fullmatch(r"(.*\w)_\{?(\d+)\}?", t) for t in (gold, answer)]
    if based[0]:
        return _in_base(*based[0].groups()) == _in_base(*(based[1].groups() if based[1] else (answer, based[0][2])))
    if based[1] and number(gold) is not None and based[1][2] != "10":
        return False
    percent, other_percent = gold.endswith("%"), answer.endswith("%")
    g, a = (number(t.removesuffix("%").strip()) for t in (gold, answer))
    if a is None and answer.lower() in NUMERALS:
        a = Fraction(NUMERALS[answer.lower()])
    if scale != 1 and g is not None and a is not None:
        return g == a * scale
    if scale != 1:
        return equal(gold, rf"\frac{{{scale.numerator}}}{{{scale.denominator}}} \times ({answer})")
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
    """The value; what has a digit too large for its base, or a prefix (0b11), stays text."""
    digits = plain(digits)
    if not 2 <= int(base[:3]) <= 36 or not re.fullmatch(r"[0-9A-Za-z]+", digits):
        return digits
    return int(digits, int(base)) if all(int(d, 36) < int(base) for d in digits) else digits


def _close(gold: Fraction, answer: Fraction, written: str) -> bool:
    """Equal; a decimal of six or more places may be rounded, but for no whole number, which nobody rounds so."""
    rounded = 1 not in (gold.denominator, answer.denominator) and bool(re.search(r"\.\d{6}", written))
    return gold == answer or (rounded and abs(gold - answer) < Fraction(1, 1_000_000))
