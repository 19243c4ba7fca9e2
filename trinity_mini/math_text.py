"""Mathematical answers as text: where an answer stands in a reply, one notation for it, numbers, units (lesson 11)."""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST_REPLY = 8000  # characters of a reply, from its end, in which an answer is looked for


def ending(text: str) -> str:
    """The last `LONGEST_REPLY` characters, each run of white space as one space or line break.

    After this no pattern meets long runs of space, on which many take quadratic time or worse.
    """
    text = re.sub(r"\s{2,}|[^\S \n]", lambda m: "\n" if len((m[0] + ".").splitlines()) > 1 else " ", text)
    return text if len(text) <= LONGEST_REPLY else "\N{HORIZONTAL ELLIPSIS}" + text[-LONGEST_REPLY:]


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


def final_answers(text: str) -> list[str]:
    r"""Readings of what a text gives as its answer, at most two: the last \boxed{}, all boxes that stand side by side;
    else what follows the last "answer is", else the last line, else the last formula in it."""
    text = ending(text)
    if boxes := boxed(text):
        last = [boxes[-1]]
        for box in reversed(boxes[:-1]):
            if text[box[1] : last[0][0]].strip(" \n$,;") not in ("", "and", "or"):
                break
            last.insert(0, box)
        inner = [(boxed(content) or [(0, 0, content)])[-1][2] for _, _, content in last]
        return list(dict.fromkeys([inner[-1], ", ".join(inner)] if len(inner) == 1 else [", ".join(inner)]))
    text = re.sub(r"\*\*|`", "", text).strip()
    said = re.split(r"(?i)\banswer(?:\s+is)?\s*[:=]?\s*(?=\S)", text)
    line = next((part for part in reversed(said[-1].splitlines()) if part.strip()), "").strip()
    if len(said) > 1:
        line = said[-1].strip().splitlines()[0].strip()
    formulas = re.findall(
        r"\$\$?(?!\d[\d.,]*(?:\s|$))(.+?)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]", line
    )
    outside = _outside_formulas(line)
    if formulas and re.search(r"[A-Za-z]{3,}|\b(?:is|it|so|we)\b", outside) and not _unit(outside.strip(" .")):
        return ["".join(formulas[-1])]
    numbers = re.findall(r"(?<![\w.,^])-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![\w^])", line)
    prose = len(re.findall(r"[A-Za-z']{2,}", line)) > 1 and not re.search(r"[\\=<>^+*_;]|n['o]t\b", line)
    if prose and len(numbers) == 1:
        return [line, numbers[0]]  # there are 5 apples; but not: it is not 5
    return [line]


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


# ---- one notation ----

_REPLACED = (
    (r"\\[dtc]frac(?![a-z])", r"\\frac"),
    (r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|limits)(?![A-Za-z])", ""),
    (r"\{,\}|,\s*\\!", ","),
    (r"(?<!\\)\\[!,;: ]|\\q?quad(?![a-z])|~", " "),
    (r"\\%", "%"),
    (r"\\\$|\$", ""),
    (r"(\\(?:sin|cos|tan|cot|sec|csc)[\s({]*)(\d+)\s*(?:\^\s*\{?\s*\\circ\s*\}?|°)", r"\1\\frac{\2\\pi}{180}"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°", " degrees"),
    (r"\\(?:leq|leqslant)(?![a-z])|≤", r"\\le "),
    (r"\\(?:geq|geqslant)(?![a-z])|≥", r"\\ge "),
    (r"[\u2212\u2013]", "-"),
    (r"×|\\cdot(?![a-z])", r"\\times "),
    (r"π", r"\\pi "),
    (r"∞", r"\\infty "),
    (r"∪", r"\\cup "),
    (r"√\s*(\d+|[a-z])", r"\\sqrt{\1}"),
    (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
    (r"\\lbrace|\\rbrace", lambda m: r"\{" if "l" in m[0] else r"\}"),
    (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
    (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
    (r"\\frac\s*\{([^{}]*)\}\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\\(|\\\)|\\\[(?!\d*(?:pt|em))|\\\]", ""),
)
TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")


def clean(text: str) -> str:
    r"""One notation for what LaTeX writes in several; \text{} stays, so that words can be told from variables."""
    text = TEXT.sub(lambda m: rf"\text{{{m[1]}}}", text)
    for old, new in _REPLACED:
        text = re.sub(old, new, text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<!\.)\.$", "", text).strip() if not text.endswith(r"\.") else text


def plain(text: str) -> str:
    """Without \text{} and spaces around operators; what two equal spellings have in common."""
    return re.sub(r"\s+", "", TEXT.sub(r"\1", text))


def words(text: str) -> str:
    return re.sub(r"[^\w:/.+-]+", " ", TEXT.sub(r"\1", text).lower()).replace(".", "").strip()


def number(text: str) -> Fraction | None:
    """The exact value of an integer, decimal, fraction or mixed number, in LaTeX or not; None if it is none of them."""
    text = text.strip()
    if m := re.fullmatch(r"\{([^{}]*)\}", text):
        text = m[1].strip()
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip() if not text.startswith(("--", "+-", "-+")) else text
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    if re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text) and len(text) < 200:
        return sign * Fraction(text)
    if m := re.fullmatch(r"(\d{0,50})\.(\d{0,50})\\overline\{(\d{1,50})\}", text):
        shift, cycle = 10 ** len(m[2]), 10 ** len(m[3]) - 1
        return sign * (Fraction(int((m[1] + m[2]) or "0"), shift) + Fraction(int(m[3]), shift * cycle))
    part = r"(?:(\d{1,50})\s+|(\d{1,50}))?"
    if m := re.fullmatch(part + r"\\frac\s*\{\s*(-?[\d.]{1,50})\s*\}\s*\{\s*(-?[\d.]{1,50})\s*\}", text):
        whole, above, below = m[1] or m[2] or "0", number(m[3]), number(m[4])
    elif m := re.fullmatch(r"(?:(\d{1,50}) )?\(?(-?[\d.]{1,50})\)? ?/ ?\(?([\d.]{1,50})\)?", text):
        whole, above, below = m[1] or "0", number(m[2]), number(m[3])
    else:
        return None
    return sign * (int(whole) + above / below) if above is not None and below else None


# ---- units ----

_UNITS = {
    "length": "mm millimeter cm centimeter m meter km kilometer in inch ft foot feet yd yard mi mile unit",
    "mass": "mg milligram g gram kg kilogram lb pound oz ounce ton",
    "time": "s sec second min minute h hr hour day week month year",
    "money": "dollar cent euro",
    "angle": "degree deg radian rad",
    "volume": "l liter ml milliliter gallon quart cup",
    "speed": "mph kph",
    "count": "people student way point coin ball apple car book page game number integer solution pair",
}
_SAME = {
    "millimeter": "mm", "centimeter": "cm", "meter": "m", "kilometer": "km", "inch": "in", "inche": "in", "foot": "ft",
    "feet": "ft", "yard": "yd", "mile": "mi", "milligram": "mg", "gram": "g", "kilogram": "kg", "pound": "lb",
    "ounce": "oz", "second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "deg": "degree",
    "radian": "rad", "liter": "l", "milliliter": "ml", "metre": "m", "centimetre": "cm", "kilometre": "km",
    "litre": "l", "miles per hour": "mph",
}  # fmt: skip
_KNOWN = {word for words in _UNITS.values() for word in words.split()} | set(_SAME)


def _unit(text: str) -> str:
    """The one name of a unit as written (plural, spelt out, squared), "" if it is no unit that we know."""
    text = TEXT.sub(r"\1", text).lower().strip(" .{}")
    if len(text) > 100:
        return ""
    power = ""
    if m := re.fullmatch(r"(?:(sq(?:uare)?|cu(?:bic)?)\.? )?(.+?)\.?(?: (squared|cubed)|\^\{?([23])\}?)?", text):
        power = {"s": "2", "c": "3"}.get((m[1] or m[3] or "")[:1], m[4] or "")
        text = m[2]
    for name in (text, text.removesuffix("s"), text.removesuffix("es")):
        if name in _KNOWN:
            return _SAME.get(name, name) + power
    parts = re.split(r"\s*/\s*| per ", text)
    if len(parts) == 2 and all(map(_unit, parts)):
        return "/".join(map(_unit, parts)) + power
    return ""


def without_unit(text: str) -> tuple[str, str]:
    r"""(the rest, the unit): 5\text{ cm} -> 5, cm; a \text{} after a number is a unit even if unknown ("?")."""
    m = re.fullmatch(r"(.*[\d}\])!])\s*(\\text\{([^{}]*)\}\s*(\^\s*\{?[23]\}?)?)", text) or re.fullmatch(
        r"(.*[\d}\])!])\s*(([A-Za-z][A-Za-z./ ]*)(\^\s*\{?[23]\}?)?)", text
    )
    if not m or re.search(r"\\[A-Za-z]+$", m[1]):
        return text, ""
    unit = _unit(m[3] + (m[4] or ""))
    spelt = m[2].startswith("\\text")
    if not unit and not (spelt and re.match(r"\s*[A-Za-z]", m[3]) and m[3].strip() not in ("or", "and", "i")):
        return text, ""
    if not spelt and len(m[3].strip()) == 1 and not text[len(m[1])].isspace():
        return text, ""  # 5m is a product
    return m[1].strip(), unit or "?"
