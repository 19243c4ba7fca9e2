"""Plain data as bytes, for what goes between two guest interpreters. Sent there as text; imports nothing of ours.

Plain data is None, numbers, text, bytes, lists, tuples, dicts and their views, sets, ranges, deques, decimals,
fractions, dates and times, and iterators, of which at most ITEMS items come through.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself takes a tenth of a guest's start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST = 16 << 20  # bytes of one frame
ITEMS = 100_000  # of an iterator that a function returned, and of objects that the tests hold
NOTED: list[str] = []  # what this guest could not do, whether or not somebody caught the exception


class Foreign(Exception):
    """What cannot be done between two interpreters; no verdict about the code."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        NOTED.append(text)


class Stand:
    """What stands for a value in the other interpreter, by the name that is known there."""

    __slots__ = ("_target",)
    _target: bytes


# A value is a letter, a count, a colon, then the content.

CONTAINERS = {list: b"L", tuple: b"T", set: b"E", frozenset: b"Z"}
MAKERS: dict[bytes, Any] = {v: k for k, v in CONTAINERS.items()}
MAKERS[b"G"] = iter
MAKERS[b"A"] = lambda items: range(*items)
MAKERS[b"D"] = lambda items: dict(zip(items[::2], items[1::2], strict=True))
MAKERS[b"W"] = lambda items: _narrow(*items)
ATOMS: dict[bytes, Any] = {
    b"N": lambda body: None,
    b"B": lambda body: body == b"1",
    b"I": lambda body: int(body, 16),  # hexadecimal: no limit on digits
    b"R": float,
    b"C": lambda body: complex(body.decode("ascii")),
    b"S": lambda body: body.decode("utf-8", "surrogatepass"),
    b"Y": lambda body: body,
}
# Values of the standard library that a function may return: what to send of them.
WIDE: dict[str, Callable[[Any], tuple]] = {
    "decimal.Decimal": lambda v: (str(v),),
    "fractions.Fraction": lambda v: (v.numerator, v.denominator),
    "datetime.timedelta": lambda v: (v.days, v.seconds, v.microseconds),
    "datetime.date": lambda v: (v.year, v.month, v.day),
    "datetime.datetime": lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.utcoffset()),
    "datetime.time": lambda v: (v.hour, v.minute, v.second, v.microsecond, v.utcoffset()),
    "collections.deque": lambda v: (list(v),),
    "builtins.dict_keys": lambda v: (list(v),),
    "builtins.dict_values": lambda v: (list(v),),
    "builtins.dict_items": lambda v: (list(v),),
}


def _narrow(name: str, *args: Any) -> Any:
    """A value of the standard library out of what WIDE says of it. Raises: KeyError for another name."""
    if name.startswith("builtins."):
        view = {"keys": dict.fromkeys, "values": lambda x: dict(enumerate(x)), "items": dict}[name[14:]](*args)
        return getattr(view, name[14:])()
    WIDE[name]
    where, _, kind = name.partition(".")
    made = __import__(where)
    if kind in ("datetime", "time") and args[-1] is not None:
        args = (*args[:-1], made.timezone(args[-1]))
    return getattr(made, kind)(*args)


def encode(value: Any, refer: Callable[[Any], bytes | None] = lambda value: None) -> bytes:
    """Plain data as bytes. A subclass of a plain type becomes that type, an iterator the list of its items.

    refer: gives anything else a name, by which the other side can speak of it, or None.
    Raises: Foreign for what has no name, RecursionError for a value inside itself.
    """
    parts: list[bytes] = []
    _encode(value, parts, refer)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes], refer: Callable[[Any], bytes | None]) -> None:
    if isinstance(value, Stand):
        _atom(b"O", value._target, parts)
    elif value is None:
        parts.append(b"N0:")
    elif value is True or value is False:
        parts.append(b"B1:1" if value else b"B1:0")
    elif isinstance(value, int):
        _atom(b"I", b"%x" % value, parts)
    elif isinstance(value, float):
        _atom(b"R", float.__repr__(value).encode("ascii"), parts)
    elif isinstance(value, complex):
        _atom(b"C", complex.__repr__(value).encode("ascii"), parts)
    elif isinstance(value, str):
        _atom(b"S", str.encode(value, "utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes | bytearray):
        _atom(b"Y", bytes(value), parts)
    elif isinstance(value, dict):
        _items(b"D", [x for pair in dict.items(value) for x in pair], parts, refer)
    elif isinstance(value, range):
        _items(b"A", [value.start, value.stop, value.step], parts, refer)
    elif hasattr(type(value), "__next__"):
        _items(b"G", [x for x, _ in zip(value, range(ITEMS), strict=False)], parts, refer)
    elif hasattr(type(value), "__index__"):  # numpy's integers
        _atom(b"I", b"%x" % int(value), parts)
    elif (name := f"{type(value).__module__}.{type(value).__name__}".replace(".odict_", ".dict_")) in WIDE:
        _items(b"W", [name, *WIDE[name](value)], parts, refer)
    else:
        for kind, letter in CONTAINERS.items():
            if isinstance(value, kind):
                _items(letter, list(kind.__iter__(value)), parts, refer)
                return
        reference = refer(value)
        if reference is None:
            name = type(value).__name__
            raise Foreign(f"a{'n' if name[0] in 'AEIOUaeiou' else ''} {name}, which is no plain data")
        _atom(b"O", reference, parts)


def _atom(letter: bytes, body: bytes, parts: list[bytes]) -> None:
    parts.append(b"%b%d:%b" % (letter, len(body), body))


def _items(letter: bytes, items: list, parts: list[bytes], refer: Callable[[Any], bytes | None]) -> None:
    parts.append(b"%b%d:" % (letter, len(items)))
    for item in items:
        _encode(item, parts, refer)


def decode(data: bytes, find: Callable[[bytes], Any] | None = None) -> Any:
    """What `encode` was given. Builds nothing but plain data, whatever the bytes, and what `find` gives for a name.

    Raises: ValueError, KeyError, TypeError or OverflowError for rubbish.
    """
    value, end = _decode(data, 0, find)
    if end != len(data):
        raise ValueError("bytes are left over")
    return value


def _decode(data: bytes, at: int, find: Callable[[bytes], Any] | None) -> tuple[Any, int]:
    colon = data.index(b":", at, at + 24)
    letter, count, at = data[at : at + 1], int(data[at + 1 : colon]), colon + 1
    if not 0 <= count <= len(data):
        raise ValueError("a count that cannot be")
    if letter in ATOMS:
        return ATOMS[letter](data[at : at + count]), at + count
    if letter == b"O" and find is not None:
        return find(data[at : at + count]), at + count
    items = []
    for _ in range(count):
        item, at = _decode(data, at, find)
        items.append(item)
    return MAKERS[letter](items), at
