"""The guard in the kernel of a handed-in notebook: what stands between a learner's code and its checkers.

It is in their process. It knows how modules were before any learner's code ran, puts back what was overwritten, loads
the checkers afresh, and calls a checker cell done only if its last statement was reached.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import unwrap
from pathlib import Path
from sys import gettrace, settrace  # our own: a learner may bind sys.settrace to something else
from types import FunctionType, ModuleType
from typing import Any

CHECKERS = "trinity_mini.checks"
MOST = 500  # characters of a message
SHOWN = "<checker cell>"
IPYTHON = {"_", "input", "display", "get_ipython"}  # the kernel sets them itself
MISSING = object()


class Tampered(Exception):
    """What a checker cell relies on was changed while it ran."""


class Guard:
    """Knows how modules were before any learner's code ran, and runs checker cells."""

    def __init__(self, names: Sequence[str]) -> None:
        """Import the modules that checkers rely on; note the functions and classes of them and their submodules."""
        self.modules = sys.modules  # a learner may bind sys.modules to something else
        self.python = vars(builtins)
        self.builtins = {k: v for k, v in self.python.items() if callable(v) and k not in IPYTHON}
        self.sources = {
            f"trinity_mini.{path.stem}": (path, path.read_text(encoding="utf-8"))
            for path in sorted(Path(__file__).parent.glob("checks*.py"))
        }
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
        self.watched = {n: m for n, m in [*sys.modules.items()] if _watched(n, names) and isinstance(m, ModuleType)}
        self.known: list[tuple[str, Any, dict[str, Any]]] = []  # a name, what has it, and how its attributes were
        self.codes: list[tuple[str, FunctionType, Any]] = []  # functions whose code may be exchanged in place
        roots = {name.partition(".")[0] for name in self.watched}
        seen: set[int] = set()
        for name, module in self.watched.items():
            self._note(name, module, seen)
            if name not in names and not name.startswith("trinity_mini"):
                continue  # libraries change classes of their own, deep inside, while they work
            for key, value in [*vars(module).items()]:
                if isinstance(value, type) and str(value.__module__).partition(".")[0] in roots:
                    self._note(f"{name}.{key}", value, seen)
        self.tracer = gettrace()  # none but in tests that measure their coverage
        self.traced = False

    def _note(self, name: str, owner: Any, seen: set[int]) -> None:
        if id(owner) in seen:
            return
        seen.add(id(owner))
        before = {k: v for k, v in vars(owner).items() if _counts(v, owner)}
        self.known.append((name, owner, before))
        for key, value in before.items():
            value = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
            if isinstance(value, FunctionType) and id(value) not in seen:
                seen.add(id(value))
                self.codes.append((f"{name}.{key}", value, value.__code__))

    def hear(self, event: str, _: object) -> None:
        """As an audit hook: notes whoever traces a checker cell, since a trace function can jump over its lines."""
        if event == "sys.settrace" or event == "sys.monitoring.register_callback":
            self.traced = True

    def check(self, space: dict[str, Any], source: str, imports: Sequence[str]) -> dict[str, Any]:
        """Run a checker cell with restored functions and freshly loaded checkers.

        space: the notebook's names. imports: statements that bind the names which the cell uses.
        Returns: done (True only if the cell ran to its end, on what it was given), ename, evalue and line of what
        stopped it, overwritten (names of what had to be put back).
        """
        found: dict[str, Any] = {"done": False, "ename": "", "evalue": "", "line": 0, "overwritten": []}
        overwritten = self._python_restored()  # first, for all below relies on it
        shadows: dict[str, Any] = {}
        try:
            overwritten += self.restored()
            if space.get("__builtins__", builtins) not in (builtins, self.python):
                overwritten.append("__builtins__")
            space["__builtins__"] = builtins
            code = compile(source, SHOWN, "exec", dont_inherit=True, optimize=0)  # its asserts stay, whatever -O says
            shadows = {n: space.pop(n) for n in _names(code) if n in space and n in self.builtins}
            overwritten += self._reloaded() + _rebound(space, imports)
            fresh = self._fresh(space, imports)
            if gettrace() is not self.tracer:
                settrace(self.tracer)
            self.traced = False
            exec(code, space)
            if during := self._python_restored() + self.restored() + _changed(fresh):
                overwritten += during
                raise Tampered(f"overwritten while the cell ran: {', '.join(sorted({*during})[:10])}")
            if self.traced or gettrace() is not self.tracer:
                raise Tampered("a trace function was set while the cell ran")
            found["done"] = True
        except BaseException as e:  # also SystemExit and the interrupt of the time limit
            found |= {"done": False, "ename": named(e), "evalue": text(e), "line": _line(e)}
        for name, value in shadows.items():  # a learner's function may need its own `sum`
            space.setdefault(name, value)
        return found | {"overwritten": sorted({*overwritten})}

    def _python_restored(self) -> list[str]:
        """Put back Python's own functions, without calling any of them; returns the names of those overwritten."""
        names = []
        for name in self.builtins:
            if name not in self.python or self.python[name] is not self.builtins[name]:
                self.python[name] = self.builtins[name]
                names.append("builtins." + name)
        return names

    def restored(self) -> list[str]:
        """Put back what was overwritten in the modules and their classes; returns the names.

        A wrapper of the same function is put back without a word: libraries do that to themselves on a late import.
        """
        names = []
        for name, module in self.watched.items():
            if self.modules.get(name) is not module:
                names += [name] if name in self.modules else []  # one that was removed would only be loaded again
                self.modules[name] = module
        for label, owner, before in self.known:
            now = vars(owner)
            for name, value in before.items():
                if (found := now.get(name, MISSING)) is not value:
                    _put(owner, name, value)
                    names += [] if _wraps(found, value) else [f"{label}.{name}"]
        for name, function, code in self.codes:
            if function.__code__ is not code:
                function.__code__ = code
                names.append(name)
        return names

    def _reloaded(self) -> list[str]:
        """Load every module of checkers again, as its file was; returns which of their functions were overwritten."""
        package = importlib.import_module("trinity_mini")
        held = {name: self.modules.get(name, vars(package).get(name.rpartition(".")[2])) for name in self.sources}
        old = {name: module for name, module in held.items() if module is not None}
        for name in old:
            self.modules.pop(name, None)
        names = []
        for name, module in old.items():  # the first is `checks`, which the others import
            path, source = self.sources[name]
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            fresh = self.modules[name] = importlib.util.module_from_spec(spec)
            exec(compile(source, str(path), "exec", dont_inherit=True, optimize=0), vars(fresh))
            setattr(package, name.rpartition(".")[2], fresh)
            names += [
                f"{name}.{k}" for k, v in vars(fresh).items() if callable(v) and not _alike(getattr(module, k, None), v)
            ]
        return names

    def _fresh(self, space: dict[str, Any], imports: Sequence[str]) -> list[tuple[str, dict[str, Any], str, Any, Any]]:
        """What the cell is given: a name, the dictionary that has it and its key, the value, the code of a function."""
        given = [("", space, k, space[k]) for statement in imports for k in _bound(statement)]
        for name in self.sources:
            if module := self.modules.get(name):
                given += [(f"{name}.", vars(module), k, v) for k, v in vars(module).items() if callable(v)]
        return [(prefix + k, where, k, v, getattr(v, "__code__", None)) for prefix, where, k, v in given]


def _watched(name: str, names: Iterable[str]) -> bool:
    """Whether a module is one of those named, or a public one of the same package; of Python's own only the named."""
    root = name.partition(".")[0]
    if name.startswith(CHECKERS) or name in names:
        return name in names and not name.startswith(CHECKERS)
    return (
        not any(part.startswith("_") for part in name.split("."))
        and root not in sys.stdlib_module_names
        and any(root == n.partition(".")[0] for n in names)
    )


def _counts(value: Any, owner: Any) -> bool:
    """Whether an attribute can change a result: functions, classes, modules, of a class also its properties."""
    if isinstance(owner, type):
        return callable(value) or isinstance(value, staticmethod | classmethod | property)
    return callable(value) or isinstance(value, ModuleType)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        with suppress(TypeError):  # a class of C, which nobody can have changed
            type.__setattr__(owner, name, value)
    else:
        vars(owner)[name] = value


def _wraps(found: Any, value: Any) -> bool:
    try:
        return callable(found) and unwrap(found) is value
    except Exception:  # a wrapper of itself, or one that raises
        return False


def _bound(statement: str) -> dict[str, Any]:
    """The names that an import binds."""
    fresh: dict[str, Any] = {}
    exec(statement, fresh)
    fresh.pop("__builtins__", None)
    return fresh


def _rebound(space: dict[str, Any], imports: Sequence[str]) -> list[str]:
    names = []
    for statement in imports:
        fresh = _bound(statement)
        names += [k for k, v in fresh.items() if k in space and not _alike(space[k], v)]
        space.update(fresh)
    return names


def _changed(fresh: Sequence[tuple[str, dict[str, Any], str, Any, Any]]) -> list[str]:
    return [
        label
        for label, where, key, value, code in fresh
        if where.get(key, MISSING) is not value or getattr(value, "__code__", None) is not code
    ]


def _alike(old: Any, new: Any) -> bool:
    """Whether a function is what a fresh load gives; of other things only the type and the name are compared."""
    if hasattr(new, "__code__"):
        return getattr(old, "__code__", None) == new.__code__
    return old is new or type(old) is type(new) and getattr(old, "__name__", None) == getattr(new, "__name__", None)


def _names(code: Any) -> set[str]:
    inner = [_names(c) for c in code.co_consts if hasattr(c, "co_names")]
    return {*code.co_names}.union(*inner)


# ---- exceptions, which may be a learner's --------------------------------------------------------------


def named(e: BaseException) -> str:
    """The name of an exception's class, never empty; asked of Python, since a class may lie about it."""
    name: str = type.__dict__["__name__"].__get__(type(e))
    return str.__getitem__(name, slice(MOST)).strip() or "Error"


def text(e: BaseException) -> str:
    """The beginning of an exception's text."""
    try:
        return str.__getitem__(str(e), slice(MOST))
    except BaseException:  # its text fails, or is too large
        return "(its text cannot be shown)"


def _line(e: BaseException) -> int:
    """The line of the checker cell where it stopped."""
    line, step = 0, BaseException.__dict__["__traceback__"].__get__(e)
    while step is not None:
        if step.tb_frame.f_code.co_filename == SHOWN:
            line = step.tb_lineno
        step = step.tb_next
    return line


def short(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of a kernel's reply only what the grader reads, cut: a text may be as large as the kernel's memory."""
    kept = {k: str(found[k])[:MOST] for k in ("status", "ename", "evalue") if k in found}
    payload = [p for p in found.get("payload", ())[:99] if isinstance(p, dict)]
    return kept | {"payload": [{"source": str(p.get("source"))[:MOST]} for p in payload]}
