"""Where the answer stands in a reply: tags, boxes, "the answer is", the last formula, the one number (lesson 11).

A number counts as said only if the words beside it leave it alone: "less than 5", "not 5" and "5 squared" are not 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .math_text import NUMERALS, number, unit_name

LONGEST_REPLY = 8000  # characters of a reply, from its end, in which an answer is looked for


def ending(text: str) -> str:
    """The last `LONGEST_REPLY` characters, each run of white space as one space or line break.

    After this no pattern meets long runs of space, on which many take quadratic time or worse.
    """
    text = re.sub(r"\s{2,}|[^\S \n]", lambda m: "\n" if len((m[0] + ".").splitlines()) > 1 else " ", text)
    return text if len(text) <= LONGEST_REPLY else "\N{HORIZONTAL ELLIPSIS}" + text[-LONGEST_REPLY:]


def untagged(text: str) -> str:
    """What stands in the last <answer> ... </answer>, if there is one; either tag may be missing."""
    before = text.rpartition("</answer>")[0] or text.removesuffix("</answer>")
    return before.rpartition("<answer>")[2] if "answer>" in text else text


def boxed(text: str) -> list[tuple[int, int, str]]:
    r"""(start, end, content) of every outermost \boxed{...}; braces may nest, an unclosed one is none."""
    opened: list[tuple[int, int] | None] = []  # a box's start and that of its content; None for other braces
    closed = []
    for m in re.finditer(r"\\f?boxed\s*\{|\\fbox\s*\{|(?<!\\)[{}]", text):
        if m[0] != "}":
            opened.append(m.span() if len(m[0]) > 1 else None)
        elif opened and (box := opened.pop()):
            closed.append((*box, m.start()))
    found: list[tuple[int, int, str]] = []
    for start, inside, close in sorted(closed):
        if not found or start >= found[-1][1]:
            found.append((start, close + 1, text[inside:close]))
    return found


# ---- what the words beside an answer do to it ----

_FRACTIONS = (
    "half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|elevenths?|twelfths?|"
    "(?:thir|four|fif|six|seven|eigh|nine)teenths?|twentieths?|(?:hundred|thousand|million)ths?"
)
_DOUBTS = (
    r"n['’]t\b|\b(?:not|never|cannot|if|unless|whether|except|perhaps|maybe|possibly|unlikely|impossible|doubt\w*|"
    r"unsure|wrong|incorrect|false|otherwise|at (?:the )?(?:very )?(?:least|most)|congruent|modulo|mod)\b"
)
DOUBT = re.compile(
    rf"(?i){_DOUBTS}|\b(?:neither|nor|none|nobody|nothing|no|or|than|between|exceed\w*|hardly|rather|instead|"
    r"(?:might|may|could) (?:well )?be|(?:lower|upper) bound)\b"
)
_DOUBT_AFTER = re.compile(  # 5 or six, 5 cm or more, 5 less than x; but not: 5 red or blue balls
    rf"(?i){_DOUBTS}|^\W*(?:(?:\w+ )?or (?:so|more|less|fewer|higher|lower|greater|maybe|perhaps|\d)|or|\w+er than|"
    r"(?:\w+ )?(?:more|less|fewer) than)\b"
)
_ALTERED_BY = re.compile(
    r"(?i)\b(?:minus|negative|plus|times|over|under|above|below|beyond|within|almost|nearly|before|after|until|from|"
    r"by|base|twice|thrice|double|triple|(?<!add )(?<!adds )(?<!sum )(?<!sums )up to|close[rs]? to|past|since|"
    r"(?:root|square|cube|half|third|quarter|sine|cosine|tangent|log\w*|factorial|multiples?|powers?|factors?|"
    r"divisors?|reciprocal|inverse|opposite|negative|absolute value|most|least|minimum|maximum) of)\W*$"
)
ALTERED = re.compile(
    rf"(?i)\W*(?:plus|minus|squared|cubed|factorial|hundreds?|thousands?|m?illions?|billions?|trillions?|dozens?|"
    rf"{_FRACTIONS}|remainder|divided|multiplied|raised|to the|choose|pi|more than|and (?:an?|one|two|three|four|up|"
    rf"more|above|below|under)|times (?:the|as|that|its|his|her|larger|more|[a-z]\b)|is (?:too|far))\b"
)
_COPULA = re.compile(r"\b(?:is|are|equals?|be)\b:?")
_UNSURE = re.compile(
    r"(?i)(?:(?:\bnot|n['’]t|\bnever|\bhardly|\bcannot) (?:\w+ )?(?:think|believe|say|claim|mean|true|sure|certain|"
    r"clear|the case|agree|correct)\b|\bdoubt\w*|\b(?:false|wrong|untrue|incorrect|impossible|unlikely) that\b)"
    r"[^.,;:!?\n]*$|\b(?:whether|unless|if)(?: (?:the|my|our|your))?(?: (?:correct|right|final|best|true))? ?$"
    r"|\b(?:wrong|incorrect|other|another) $"
)
_WEAK = re.compile(  # the words before "is" that weaken what follows it
    r"(?i)^\W*(?:neither|none|no|nobody|nothing)\b|"
    r"\b(?:if|unless|whether|either|perhaps|maybe|possibly|wrong|incorrect)\b|"
    r"\bor (?:\w+ ){0,3}$|(?:\b(?:might|may|could|cannot|not|never|hardly|unlikely|impossible)|n['’]t)"
    r"(?: (?:well|even|ever|to|always|really|just|possibly))? ?$"
)


def unsure(before: str) -> bool:
    """Whether the words before a claim take it back: "I do not think that the answer is"."""
    return bool(_UNSURE.search(before[-100:]))


def stated(before: str, after: str) -> bool:
    """Whether the words on both sides of an answer leave it as it is: no doubt, no bound, no arithmetic.

    What stands before the last "is" belongs to the question: "the number of primes less than 10 is".
    """
    clause = re.split(r"[,;:] |[.!?] |(?i:\b(?:so|then|thus|hence|therefore)\b)", before)[-1]
    is_ = next(reversed(list(_COPULA.finditer(clause))), None)
    about, said = (clause[: is_.start()], clause[is_.end() :]) if is_ else ("", clause)
    beside = _ALTERED_BY.search(before[-40:]) or ALTERED.match(after)
    weak = _WEAK.search(about[-200:]) or unsure(about)
    return not (beside or weak or DOUBT.search(said) or _DOUBT_AFTER.search(after))


# ---- the answer ----

_ANSWER = re.compile(r"(?i)\banswers?(?:\s+(?:is|are|would be|must be|should be|will be)\b)?\s*[:=]?\s*(?=\S)")
_IS_THE_ANSWER = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore|then),? )?(.{1,100}?),? (?:is|are) (?:therefore |thus |then )?(?:the|our|my) "
    r"(?:final |correct |right )?answers?[.!]?"
)
_FORMULA = re.compile(
    r"\$\$?(?!\d[\d.,]*(?:\s|$))(.+?)\$|\\\(((?:(?!\\\().)+?)\\\)|(?<!\\)\\\[((?:(?!\\\[).)+?)\\\]"
)
_DISPLAY = re.compile(r"(?<!\\)\\\[(?:(?!\\[\[\]]).)*\\\]|\$\$[^$]*\$\$", re.DOTALL)
_NUMBERS = re.compile(r"(?<![\w.,^])-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w^])")
_LIST = re.compile(  # no words but "and" and "or"
    r"(?=.*\d)(?:[^A-Za-z<>≤≥≠?~\\]|\\(?:[dt]?frac|pi|sqrt|infty|pm|cup|left|right)(?![A-Za-z])|\b(?:and|or)\b)*"
)
_AMOUNT = re.compile(r"[-−]?\$?\d[\d.,]*((?: ?[^\s\d<>≤≥≠?~][^<>≤≥≠?~]*)?)")
_ASIDE = re.compile(r"(?i)\b(?:when|whenever|where|because|since|provided|given|assuming|while|as|though|although)\b")
_REMARK = re.compile(
    r"(?i) \((?:since|because|as|where|which|that is|i\.e\.|from|note|rounded|exactly|check|no units?|unitless|"
    r"dimensionless)\b[^()]*\)\.?$"
)


def final_answers(text: str, known: Callable[[str], object] = unit_name) -> list[str]:
    r"""Readings of what a text gives as its answer, a few: the last \boxed{}, all boxes that stand side by side; else
    what follows the last "answer is", else the last line, else the last formulas in it, what it says after "is", its
    one number.

    known: whether a text is a unit; such a one is kept with the number.
    """
    text = ending(untagged(text))
    if boxes := boxed(text):
        last = [boxes[-1]]
        for box in reversed(boxes[:-1]):
            if text[box[1] : last[0][0]].strip(" \n$,;") not in ("", "and", "or"):
                break
            last.insert(0, box)
        inner = [(boxed(content) or [(0, 0, content)])[-1][2] for _, _, content in last]
        return list(dict.fromkeys([inner[-1], ", ".join(inner)] if len(inner) == 1 else [", ".join(inner)]))
    text = _DISPLAY.sub(lambda m: m[0].replace("\n", " "), text)
    text = re.sub(r"(?<=[*$`])!+(?=\s|$)", "", text)  # **5**! is an exclamation, no factorial
    return _in_line(_undressed(_last_line(re.sub(r"\*\*|`", "", text).strip())), known)


def _last_line(text: str) -> str:
    """What follows the last "answer is" in its line, else the last line."""
    line = next((part for part in reversed(text.splitlines()) if part.strip()), "").strip()
    claims = list(_ANSWER.finditer(text))
    if not claims or unsure(text[: claims[-1].start()]):
        return line
    said = text[claims[-1].end() :].strip()
    if not said.strip(".!") and (m := _IS_THE_ANSWER.fullmatch(re.split(r"(?<=[.!?;:]) ", line)[-1])):
        return m[1]  # 5 is the answer.
    return said.splitlines()[0].strip()


def _undressed(line: str) -> str:
    """Without a heading's #, emphasis around it all, a remark in brackets at its end."""
    line = re.sub(r"^#+ ?", "", line)
    if m := re.fullmatch(r"([*_]{1,2})([^*_]+)\1[.!]?", line):
        line = m[2]
    line = _REMARK.sub("", line)
    line = re.sub(r"(?i),? (?:as (?:required|desired|claimed|wanted|expected)|I (?:think|believe))[.!]?$", "", line)
    if (m := re.fullmatch(r"(.*\d) \(([a-z]+(?:-[a-z]+)?)\)\.?", line)) and m[2] in NUMERALS:
        line = m[1] if number(m[1].rpartition(" ")[2]) == NUMERALS[m[2]] else line  # 5 (five)
    return re.sub(r"(?i)(^|\b(?:is|are|be|equals) )(?:minus|negative) (?=\$?\d)", r"\1-", line)


def _in_line(line: str, known: Callable[[str], object]) -> list[str]:
    found = list(_FORMULA.finditer(line))
    outside = _outside_formulas(line).strip(" .")
    if found and re.search(r"[A-Za-z]{3,}|\b(?:is|it|so|we)\b", outside) and not unit_name(outside):
        after = line[found[-1].end() :]
        m = re.match(r" (?:is|are|equals?|must be|will be) (?=.*\d|.{1,3}$)", after)
        if m:  # the value of $x$ is 5; but not: $5$ is the smallest
            before = line[: found[-1].end()]
            return _in_line(after[m.end() :], known) if stated(f"{before} is ", after[m.end() :]) else [line]
        first = len(found) - 1
        while first and re.fullmatch(
            r"\s*(?:[,;]?\s*(?:and|or)|[,;])\s*", line[found[first - 1].end() : found[first].start()]
        ):
            first -= 1  # a list of formulas is one answer
        if not stated(line[: found[first].start()], after):
            return [line]
        formulas = ["".join(filter(None, m.groups())) for m in found[first:]]
        return [", ".join(formulas) + (_unit_after(after, known) if len(formulas) == 1 else "")]
    answers = [line]
    is_ = next(reversed(list(_COPULA.finditer(line))), None)
    value = line[is_.end() :].strip() if is_ else ""
    amount = _AMOUNT.fullmatch(value)
    if is_ and (amount or _LIST.fullmatch(value)):
        before = line[: is_.end()]
        aside = re.search(r"\d", before) and _ASIDE.search(before)  # 5 when x is 3
        if aside or not stated(before, amount[1] if amount else ""):
            return [line]
        answers.append(value)
    numbers = list(_NUMBERS.finditer(line))
    prose = len(re.findall(r"[A-Za-z']{2,}", line)) > 1 and not re.search(r"[\\=<>^+*_;]", line)
    if prose and len(numbers) == 1 and stated(line[: numbers[0].start()], line[numbers[0].end() :]):
        answers.append(numbers[0][0] + _unit_after(line[numbers[0].end() :], known))
    return answers


def _unit_after(text: str, known: Callable[[str], object]) -> str:
    """The unit that a text begins with, of up to four words, with a space before it; "" if it is none we know."""
    if m := re.match(r" ?(?:%|percent\b)", text):
        return m[0]
    parts = re.split(r"[,;()!?]|\.(?:\s|$)", text, maxsplit=1)[0].split()[:4]
    if "in" in parts and len(parts) > 1:  # 5 in all, 5 cm in all
        parts = parts[: parts.index("in")]
    for n in range(len(parts), 0, -1):
        if known(" ".join(parts[:n])):
            return " " + " ".join(parts[:n])
    return ""


def _outside_formulas(line: str) -> str:
    """Without what stands between the first opening and the last closing sign of each kind: $ $, \\( \\), \\[ \\]."""
    kept, at, pairs = "", 0, [("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")]
    while True:
        spans = [(line.find(a, at), line.rfind(b), len(a)) for a, b in pairs]
        spans = [(start, end, n) for start, end, n in spans if 0 <= start and start + n <= end]
        if not spans:
            return kept + line[at:]
        start, end, n = min(spans)
        kept, at = kept + line[at:start], end + n
