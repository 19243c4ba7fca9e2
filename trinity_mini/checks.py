"""What every checker of an exercise is made of: compare, say what differs and where, and give a hint."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import numpy as np


class Wrong(AssertionError):
    """An answer is wrong: the message says what differs, where, and gives a hint."""


def same(found: Any, wanted: Any, what: str, hint: str, tol: float = 1e-5) -> None:
    """Compare what the learner's code gave with the right value, of whatever type that is.

    Arrays, tensors, numbers, strings, tuples or lists and dictionaries of such, and anything with ==.
    Numbers may differ by tol * (1 + |wanted|), whole ones not at all; nan and infinities are right only where they
    are wanted. A list does for a tuple, and any number for any other; an array is not a tensor.
    Raises: Wrong, which names the first index where the two differ.
    """
    tail = f" Hint: {hint}"
    if isinstance(found, str):
        found = str.__str__(found)  # of a subclass the text only: it may call itself equal to anything
    if found is None and wanted is not None:
        raise Wrong(f"{what} is None: is the `return` missing?{tail}")
    if isinstance(wanted, str) and isinstance(found, str):
        _same_text(found, wanted, what, tail)
    elif isinstance(wanted, list | tuple):
        _is_a(found, list | tuple, what, wanted, tail)
        if len(found) != len(wanted):
            raise Wrong(f"{what} has length {len(found)}, and {len(wanted)} is wanted.{tail}")
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"{what}[{i}]", hint, tol)
    elif isinstance(wanted, Mapping):
        _is_a(found, Mapping, what, wanted, tail)
        for key in wanted:
            if key not in found:
                raise Wrong(f"{what} lacks the key {key!r}.{tail}")
        if more := [key for key in found if key not in wanted]:
            raise Wrong(f"{what} has a key {more[0]!r} that is not wanted.{tail}")
        for key in wanted:
            same(found[key], wanted[key], f"{what}[{key!r}]", hint, tol)
    elif _is_numeric(wanted):
        _same_numbers(found, wanted, what, tail, tol)
    else:
        _is_a(found, type(wanted), what, wanted, tail)
        if type(wanted).__eq__(wanted, found) is not True:  # not the other way round: see above
            raise Wrong(f"{what} is {_short(found)}, and {_short(wanted)} is wanted.{tail}")


def called(fn: Callable, *args: Any, what: str) -> Any:
    """What the learner's function gives for these arguments.

    Raises: NotImplementedError as it comes (not done yet); Wrong for any other exception, with its text and line.
    """
    if not callable(fn):
        raise Wrong(f"{what} is {_article(fn)}, not a function: run the cell that defines it.")
    try:
        return fn(*args)
    except (NotImplementedError, Wrong):
        raise
    except (Exception, SystemExit) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__)[1:] if f.name == getattr(fn, "__name__", "")]
        where = f" in line {lines[0]} of its cell" if lines else ""
        raise Wrong(f"{what} stopped{where} with {type(e).__name__}: {_short(str(e), 300)}") from e


def passed(name: str, n: int) -> None:
    """Say in one line that a function agrees with the oracle on n random inputs."""
    print(f"[OK] {name} agrees on {n} random input{'' if n == 1 else 's'}")


def recognised(found: Any, mistakes: Mapping[str, Any], otherwise: str) -> str:
    """The hint of the known mistake that gives just what was found (mistakes: hint -> value), or another one.

    Of several, the nearest: on random inputs one mistake may give nearly what another gives.
    """
    fit = {
        hint: _far(found, wrong)
        for hint, wrong in mistakes.items()
        if _alike(found, wrong) or _alike(_bare(found), _bare(wrong))
    }
    return next((hint for hint, far in fit.items() if far <= min(fit.values()) + 1e-12), otherwise)


# ---- the parts ---------------------------------------------------------------------------------------


def _alike(found: Any, wanted: Any) -> bool:
    try:
        same(found, wanted, "it", "")
    except Wrong:
        return False
    return True


def _far(found: Any, wrong: Any) -> float:
    """The largest difference of two that are alike, 0 where it cannot be told."""
    a, b = _bare(found), _bare(wrong)
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and a.size):
        return 0.0
    finite = np.isfinite(a) & np.isfinite(b)
    return float(abs(a[finite] - b[finite]).max(initial=0.0))


def _bare(x: Any) -> Any:
    """Numbers as an array of floats, whatever held them; anything else as it is."""
    try:
        return _array(x).astype(float)
    except (TypeError, ValueError, OverflowError):
        return x


def _tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor has imported it already
    return torch is not None and isinstance(x, torch.Tensor)


def _is_numeric(x: Any) -> bool:
    return _tensor(x) or isinstance(x, np.ndarray | np.generic | Number)


def _array(x: Any) -> np.ndarray:
    if not _tensor(x):
        return np.asarray(x)
    x = x.detach().cpu()
    return (x.double() if x.is_floating_point() else x).numpy()


def _short(x: Any, most: int = 80) -> str:
    text = x if isinstance(x, str) and most > 80 else repr(x)
    return text if len(text) <= most else text[: most - 1] + "…"


def _article(x: Any) -> str:
    """The type of a value in words."""
    if _tensor(x):
        return f"a torch tensor of shape {tuple(x.shape)}"
    if isinstance(x, np.ndarray):
        return f"a numpy array of shape {x.shape}"
    name = type(x).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name} ({_short(x)})"


def _is_a(found: Any, kind: Any, what: str, wanted: Any, tail: str) -> None:
    if not isinstance(found, kind):
        raise Wrong(f"{what} is {_article(found)}, and {_article(wanted)} is wanted.{tail}")


def _same_text(found: str, wanted: str, what: str, tail: str) -> None:
    if found == wanted:
        return
    pairs = enumerate(zip(found, wanted, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(found), len(wanted)))
    if len(found) > 60 or len(wanted) > 60:
        start = max(0, first - 20)
        found, wanted = found[start : first + 30], wanted[start : first + 30]
    raise Wrong(f"{what} differs from character {first} on: found {found!r}, wanted {wanted!r}.{tail}")


def _same_numbers(found: Any, wanted: Any, what: str, tail: str, tol: float) -> None:
    plain = not _tensor(wanted) and not isinstance(wanted, np.ndarray)  # a number: a 0-d array or tensor does too
    right_type = _is_numeric(found) if plain else isinstance(found, type(wanted)) or _tensor(found) and _tensor(wanted)
    if not right_type:
        raise Wrong(f"{what} is {_article(found)}, and {_article(wanted)} is wanted.{tail}")
    a, b = _array(found), _array(wanted)
    if a.shape != b.shape:
        asked = "a single number" if plain else f"shape {b.shape}"
        turned = " (the axes are swapped)" if a.ndim > 1 and a.shape == b.shape[::-1] else ""
        raise Wrong(f"{what} has shape {a.shape}, and {asked} is wanted{turned}.{tail}")
    if (a.dtype.kind == "b") != (b.dtype.kind == "b") or a.dtype.kind not in "biufc":
        raise Wrong(f"{what} holds {a.dtype} values, and {b.dtype} ones are wanted.{tail}")
    if b.dtype.kind == "b" or a.dtype.kind in "iu" and b.dtype.kind in "iu":
        close = a == b
    else:
        a, b = (x.astype(float) if x.dtype.kind in "iu" else x for x in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):
            close = (a == b) | (np.abs(a - b) <= tol * (1 + np.abs(b))) & np.isfinite(b)
        close |= np.isnan(a) & np.isnan(b)
    if close.all():
        return
    index = tuple(int(i) for i in np.argwhere(~close)[0])
    place = "".join(["[", ", ".join(map(str, index)), "]"]) if index else ""
    finite = a.dtype.kind == "b" or bool(np.isfinite(a[index]))
    many = f" ({int((~close).sum())} of {close.size} values differ)" if index else ""
    verb = "is" if finite else "is not finite: it is"
    raise Wrong(f"{what}{place} {verb} {_number(a[index])}, and {_number(b[index])} is wanted{many}.{tail}")


def _number(x: Any) -> str:
    return f"{x:.6g}" if x.dtype.kind == "f" else str(x)
