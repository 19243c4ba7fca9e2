"""Mathematical answers as text: one notation for them, numbers, units (lesson 11)."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

# ---- one notation ----

_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
WIDE = {0xFF01 + i: 0x21 + i for i in range(94)} | {0xFE63: "-", 0x2044: "/"}  # fullwidth signs, ﹣, ⁄
_FUNCTIONS = "arcsin|arccos|arctan|sin|cos|tan|cot|log|ln|exp"  # a bare sec is a second
_REPLACED = (
    (r"[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]", lambda m: r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄"))),
    (r"\^?[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda m: f"^{{{m[0].lstrip('^').translate(_SUPER)}}}"),
    (r"(?<=\d)\s?\^?\s?\{?[º∘˚]\}?", "°"),
    (r"ℝ", r"\\mathbb{R}"),
    (r"\\varnothing(?![a-z])|∅", r"\\emptyset "),
    (r"∛\s*(\d+|[a-z])", r"\\sqrt[3]{\1}"),
    (r"(?<=[.\d])\\bar\s*\{(\d+)\}", r"\\overline{\1}"),
    (rf"(?<![\\A-Za-z])(?=(?:{_FUNCTIONS})\s?[({{^\d])", r"\\"),
    (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
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
    (r"[×·⋅]|\\cdot(?![a-z])", r"\\times "),
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
    (r"\\\(|\\\)|(?<!\\)\\\[(?!\d*(?:pt|em))|\\\]", ""),
)
TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")


_REALS = re.compile(r"(?:[a-z] ?\\in ?)?\\(?:mathbb ?(?:\{R\}|R)|R|Reals)(?![A-Za-z])")
_FRENCH = re.compile(r"([\[\]])([^\[\](),;]*[^\[\](),;\s][,;][^\[\](),;]+)([\[\]])")


def _interval(m: re.Match[str]) -> str:
    """]0,1[ as (0,1); what is written the usual way stays."""
    if (m[1], m[3]) == ("[", "]"):
        return m[0]
    return ("(" if m[1] == "]" else "[") + m[2] + (")" if m[3] == "[" else "]")


def clean(text: str) -> str:
    r"""One notation for what LaTeX writes in several; \text{} stays, so that words can be told from variables."""
    text = TEXT.sub(lambda m: rf"\text{{{m[1]}}}", text.translate(WIDE))
    for old, new in _REPLACED:
        text = re.sub(old, new, text)
    text = _FRENCH.sub(_interval, re.sub(r"\s+", " ", text).strip())
    text = re.sub(r"^([0-9A-Za-z]{1,60}) \(?(?:in )?base (\d{1,2})\)?(?=\.?$)", r"\1_{\2}", text)
    if _REALS.fullmatch(text):
        return r"(-\infty ,\infty )"
    return re.sub(r"(?<!\.)\.$", "", text).strip() if not text.endswith(r"\.") else text


def plain(text: str) -> str:
    """Without \text{} and spaces around operators; what two equal spellings have in common."""
    return re.sub(r"\s+", "", TEXT.sub(r"\1", text))


NUMERALS = {
    word: n
    for n, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}


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
    text = re.sub(r" ?(?:\\times|\*) ?10 ?\^ ?(?:\{ ?([+-]?\d{1,3}) ?\}|([+-]?\d{1,3}))$", r"e\1\2", text)
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


def unit_name(text: str) -> str:
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
    if len(parts) == 2 and all(map(unit_name, parts)):
        return "/".join(map(unit_name, parts)) + power
    return ""


def without_unit(text: str) -> tuple[str, str]:
    r"""(the rest, the unit): 5\text{ cm} -> 5, cm; a \text{} after a number is a unit even if unknown ("?")."""
    m = re.fullmatch(r"(.*[\d}\])!])\s*(\\text\{([^{}]*)\}\s*(\^\s*\{?[23]\}?)?)", text) or re.fullmatch(
        r"(.*[\d}\])!])\s*(([A-Za-z][A-Za-z./ ]*)(\^\s*\{?[23]\}?)?)", text
    )
    if not m or re.search(r"\\[A-Za-z]+$", m[1]):
        return text, ""
    unit = unit_name(m[3] + (m[4] or ""))
    spelt = m[2].startswith("\\text")
    if not unit and not (spelt and re.match(r"\s*[A-Za-z]", m[3]) and m[3].strip() not in ("or", "and", "i")):
        return text, ""
    if not spelt and len(m[3].strip()) == 1 and not text[len(m[1])].isspace():
        return text, ""  # 5m is a product
    return m[1].strip(), unit or "?"
