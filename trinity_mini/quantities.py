"""Numbers with units, as the short truths of RLPR are: read and compared (lesson 11).

Two quantities are the same if they agree as far as the coarser of the two is written, and within half a percent: 3.14
for 3.14159, 0.333 for 1/3, 1.5e3 for 1502; not 3.1 for 3.14159, nor 43 for 42.8. A fraction is exact. Known units are
converted (500 cm for 5 m) and must fit; a missing or unknown one is not held against anybody. A percentage may be
given with or without its sign, or as its value. Million and the like belong to the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .math_text import TEXT, clean, number
from .reply_text import ALTERED, DOUBT

LONGEST = 400  # characters of a number with its unit
RELATIVE = Fraction(1, 200)  # the widest relative difference that counts as rounding

_DERIVED = """
m=1 m; s=1 s; g=1/1000 kg; A=1 A; K=1 K; mol=1 mol; cd=1 cd; N=1 kg m s-2; J=1 kg m2 s-2; W=1 kg m2 s-3;
Pa=1 kg m-1 s-2; V=1 kg m2 s-3 A-1; C=1 A s; F=1 A2 s4 kg-1 m-2; Ω=1 kg m2 s-3 A-2; T=1 kg s-2 A-1; H=1 kg m2 s-2 A-2;
Wb=1 kg m2 s-2 A-1; Hz=1 s-1; L=1/1000 m3; eV=1.602176634e-19 kg m2 s-2; bar=100000 kg m-1 s-2;
cal=4.184 kg m2 s-2; M=1000 mol m-3; rad=1 rad; B=1 byte; b=1/8 byte; bit=1/8 byte;
Wh=3600 kg m2 s-2;
"""
_FIXED = """
min=60 s; h=3600 s; day=86400 s; week=604800 s; year=31557600 s; month=2629800 s; in=0.0254 m; ft=0.3048 m; yd=0.9144 m;
mi=1609.344 m; G=1/10000 kg s-2 A-1; acre=4046.856 m2;
lb=0.45359237 kg; oz=0.028349523125 kg; t=1000 kg; atm=101325 kg m-1 s-2; mmHg=133.322 kg m-1 s-2; mph=0.44704 m s-1;
°=0.017453292519943295 rad; °C=1 °C; °F=1 °F; dollar=1 dollar; Å=1e-10 m; hp=745.7 kg m2 s-3;
psi=6894.757 kg m-1 s-2
"""
_PREFIXES = {"k": 3, "M": 6, "G": 9, "T": 12, "c": -2, "d": -1, "m": -3, "μ": -6, "µ": -6, "u": -6, "n": -9, "p": -12}
_WORDS = {
    "meter": "m", "metre": "m", "second": "s", "sec": "s", "gram": "g", "ampere": "A", "amp": "A", "kelvin": "K",
    "mole": "mol", "newton": "N", "joule": "J", "watt": "W", "pascal": "Pa", "volt": "V", "coulomb": "C", "farad": "F",
    "ohm": "Ω", "tesla": "T", "henry": "H", "hertz": "Hz", "liter": "L", "litre": "L", "l": "L", "electronvolt": "eV",
    "calorie": "cal", "radian": "rad", "byte": "B", "minute": "min", "hour": "h", "hr": "h", "yr": "year",
    "inch": "in", "inche": "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "pound": "lb", "lbs": "lb",
    "ounce": "oz", "tonne": "t", "degree": "°", "degrees": "°", "deg": "°", "dollars": "dollar", "usd": "dollar",
    "days": "day", "gauss": "G", "mo": "month", "mos": "month",
    "angstrom": "Å", "horsepower": "hp", "celsius": "°C", "fahrenheit": "°F",
}  # fmt: skip
_SPELT_PREFIXES = {"kilo": "k", "mega": "M", "giga": "G", "centi": "c", "milli": "m", "micro": "μ", "nano": "n"}

Unit = tuple[Fraction, tuple[tuple[str, int], ...]]  # factor to base units, powers of base units


def _table(text: str) -> dict[str, Unit]:
    out = {}
    for entry in filter(None, (e.strip() for e in text.replace("\n", " ").split(";"))):
        name, definition = entry.split("=")
        factor, *bases = definition.split()
        powers = [re.fullmatch(r"(\D+?)(-?\d+)?", b) for b in bases]
        out[name] = Fraction(factor), tuple(sorted((p[1], int(p[2] or 1)) for p in powers if p))
    return out


_PREFIXABLE = _table(_DERIVED)
_SYMBOLS = _PREFIXABLE | _table(_FIXED)


def _symbol(text: str) -> Unit | None:
    if text in _SYMBOLS:
        return _SYMBOLS[text]
    if text[:1] in _PREFIXES and text[1:] in _PREFIXABLE:
        factor, powers = _PREFIXABLE[text[1:]]
        return factor * Fraction(10) ** _PREFIXES[text[0]], powers
    word = text.lower()
    for name in (word, word.removesuffix("s")):
        if name in _WORDS or name in ("day", "week", "month", "year", "dollar", "bit", "acre"):
            return _SYMBOLS[_WORDS.get(name, name)]
        for prefix, short in _SPELT_PREFIXES.items():
            base = _WORDS.get(name.removeprefix(prefix), "") if name.startswith(prefix) else ""
            if base:
                return _symbol(short + base)
    return None


def unit(text: str) -> Unit | None:
    r"""A unit as written (km/h, m s^{-1}, kilometers per hour, \text{kg m}^2), None if some part of it is unknown."""
    if len(text) > LONGEST:
        return None
    text = re.sub(r"\\times|\\cdot|[*·⋅]", " ", TEXT.sub(r"\1", text))
    text = text.replace("²", "^2").replace("³", "^3")
    text = re.sub(r"\\Omega", "Ω", re.sub(r"\\mu\s*", "μ", text))
    text = re.sub(r"degrees\s*([CF])(?:elsius|ahrenheit)?\b|°\s*([CF])\b", lambda m: "°" + (m[1] or m[2]), text)
    text = re.sub(r"\b(square|sq\.?|cubic|cu\.?) (\w+)", lambda m: f"{m[2]}^{2 if m[1][0] == 's' else 3}", text)
    text = re.sub(r"\bper\b", "/", text).strip(" .(){}")
    factor, powers, sign = Fraction(1), {}, 1
    for token in re.findall(r"/|[^\s/()]+", text):
        if token == "/":
            sign = -1
            continue
        m = re.fullmatch(r"([^\d^{}-]+)(?:\^?\{?([+-]?\d)\}?)?|([^\d^{}-]+)", token)
        known = _symbol(m[1] or m[3]) if m else None
        if m is None or known is None:
            return None
        power = sign * int(m[2] or 1)
        factor *= known[0] ** power
        for base, n in known[1]:
            powers[base] = powers.get(base, 0) + n * power
    return (factor, tuple(sorted((b, n) for b, n in powers.items() if n))) if text else None


@dataclass(frozen=True)
class Quantity:
    """value and place (what one step of the last written digit is worth; 0 for an exact fraction), before the unit."""

    value: Fraction
    place: Fraction
    unit: str = ""
    percent: bool = False


_NUMBER = re.compile(
    r"([+-]?)\s*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)"
    r"(?:[eE]([+-]?\d{1,3})(?!\w)|\s*(?:\\times|[xX*])\s*10\s*\^?\s*[{(]?\s*([+-]?\d{1,3})\s*[})]?)?"
)
_POWER = re.compile(r"([+-]?)\s*10\s*\^\s*[{(]?\s*([+-]?\d{1,3})\s*[})]?")
_FRACTION = re.compile(r"[+-]?\s*(?:\d+\s*)?\\frac\s*\{[^{}]*\}\s*\{[^{}]*\}|[+-]?\s*(?:\d+ )?\d+ ?/ ?\d+")
_GREEK = r"\\(?:[Dd]elta|Omega|Phi|Psi|Sigma|alpha|beta|gamma|epsilon|eta|theta|lambda|mu|nu|rho|sigma|tau|phi|omega)\b"
_NAME = (  # V, E_k, \Delta E, ΔG, f(3), P(X>1); not log(x)
    rf"(?!(?:ln|log|exp|sqrt|sin|cos|tan)\b)(?:{_GREEK} ?)?(?:[A-Za-zΑ-ω]\w*(?:_\{{\w+\}})?(?: ?\([^()=]{{1,40}}\))?)?"
)
_BEFORE = re.compile(
    rf"(?:{_NAME} ?(?:=|\\approx\b|≈)|\\approx\b|\\sim\b|≈|(?:about|approximately|approx|roughly|ca)\b\.?|US(?=\d))\s*"
)
_LARGE = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def quantity(text: str) -> Quantity | None:
    """A number with or without a unit; None if the text is anything else, or longer than `LONGEST`."""
    if len(text) > LONGEST:
        return None
    text = clean(text).replace("⁻", "-").strip()
    while m := _BEFORE.match(text):
        text = text[m.end() :]
    if m := _FRACTION.match(text):
        value, place = number(re.sub(r"^([+-])\s+", r"\1", m[0])), Fraction(0)
    elif m := _POWER.match(text):
        value = Fraction(-1 if m[1] == "-" else 1) * Fraction(10) ** int(m[2])
        place = abs(value)
    elif m := _NUMBER.match(text):
        digits, scale = m[2].replace(",", ""), Fraction(10) ** int(m[3] or m[4] or 0)
        value = Fraction(digits.rstrip(".")) * scale * (-1 if m[1] == "-" else 1)
        place = scale / 10 ** len(digits.partition(".")[2])
    else:
        return None
    rest = text[m.end() :].strip()
    if large := re.match(rf"(?:\\text\{{\s*)?({'|'.join(_LARGE)})\b\s*\}}?", rest):
        scale = Fraction(10) ** _LARGE[large[1]]
        value, place, rest = value and value * scale, place * scale, rest[large.end() :].strip()
    percent = bool(re.match(r"%|percent\b|\\text\{\s*percent\s*\}", rest))
    rest = re.sub(r"^(?:%|percent|\\text\{\s*percent\s*\})\s*", "", rest)
    words = TEXT.sub(r"\1", rest)
    if unit(rest) is None and (ALTERED.match(words) or DOUBT.search(words)):  # 5 squared, 5 or more
        return None
    if value is None or unit(rest) is None and re.search(r"[\d=<>+*\\^,;:]|\b(?:or|and|to)\b|^[-/a-z]$", words):
        return None  # 5x, 5 or 6, 2\pi, 5 + 3, 3:2
    return Quantity(value, place, rest, percent)


def same_quantity(gold: Quantity, answer: Quantity) -> bool:
    """Whether two quantities are the same (see the top of this file)."""
    scales = [Fraction(1)]
    wanted, given = unit(gold.unit), unit(answer.unit)
    if wanted and given:
        if wanted[1] != given[1]:
            return False
        scales = [given[0] / wanted[0]]
    elif gold.percent != answer.percent:
        scales += [Fraction(100) if gold.percent else Fraction(1, 100)]
    return any(_close(gold, answer.value * s, answer.place * s) for s in scales)


def _close(gold: Quantity, value: Fraction, place: Fraction) -> bool:
    difference = abs(gold.value - value)
    return difference <= max(gold.place, place) / 2 and difference <= abs(gold.value) * RELATIVE
