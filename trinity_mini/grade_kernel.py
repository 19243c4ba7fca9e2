"""What runs inside the kernel of a handed-in notebook: limits before it starts, and the checker cells.

`python -m trinity_mini.grade_kernel MEGABYTES -f CONNECTION` is a Jupyter kernel with little memory. The grader
(grade_run.py) sends ordinary cells as they are, and checker cells as a call of `Guard.check`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

CHECKERS = "trinity_mini.checks"
RESULT = "_graded"  # the name under which a guard leaves what it found
MOST = 500  # characters of a message
SHOWN = "<checker cell>"
IPYTHON = {"_", "input", "display", "get_ipython"}  # the kernel sets them itself


def limit(megabytes: int) -> None:
    """Limit this process' memory and files: by setrlimit, on macOS (which ignores it) by a watch; not on Windows."""
    try:
        import resource
    except ImportError:
        return
    size = megabytes * 2**20
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 2**30}
    if sys.platform == "linux":
        limits["RLIMIT_DATA"] = size  # RLIMIT_AS would count what torch maps and never touches
    elif sys.platform != "darwin":
        limits["RLIMIT_AS"] = size
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not here, or a lower limit stands already
            resource.setrlimit(getattr(resource, name), (value, value))
    if sys.platform == "darwin":

        def watch() -> None:
            while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < size:
                time.sleep(0.5)
            os._exit(137)

        threading.Thread(target=watch, daemon=True).start()


class Guard:
    """Knows how modules were before any learner's code ran, and runs checker cells."""

    def __init__(self, names: Sequence[str]) -> None:
        """Import the modules that checkers rely on and note their functions and classes."""
        self.known: dict[str, dict[str, Any]] = {}
        self.dumps = json.dumps
        for name in ("builtins", *names):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(name)
                self.known[name] = {k: v for k, v in vars(module).items() if callable(v) and k not in IPYTHON}

    def check(self, space: dict[str, Any], source: str, imports: Sequence[str], nonce: str) -> None:
        """Run a checker cell with restored functions and freshly loaded checkers; space[RESULT] becomes a JSON text.

        space: the notebook's names. imports: statements that bind the names which the cell uses.
        The JSON holds nonce, ename and evalue (empty if the cell ran to its end), line, and overwritten (names).
        """
        space.pop(RESULT, None)
        code = compile(source, SHOWN, "exec")
        shadows = {n: space.pop(n) for n in _names(code) if n in space and n in self.known["builtins"]}
        overwritten = self.restored() + _reloaded() + _rebound(space, imports)
        found = {"nonce": nonce, "ename": "", "evalue": "", "line": 0, "overwritten": sorted({*overwritten})}
        try:
            exec(code, space)
        except BaseException as e:  # also SystemExit and the interrupt of the time limit
            found |= {"ename": type(e).__name__, "evalue": _text(e), "line": _line(e)}
        for name, value in shadows.items():  # a learner's function may need its own `sum`
            space.setdefault(name, value)
        space[RESULT] = self.dumps(found)

    def restored(self) -> list[str]:
        """Put back what was overwritten in the modules; returns the names.

        A wrapper of the same function is put back without a word: libraries do that to themselves on a late import.
        """
        names = []
        for module_name, before in self.known.items():
            module = sys.modules.get(module_name)
            if module_name.startswith(CHECKERS) or not isinstance(module, ModuleType):
                continue
            for name, value in before.items():
                if (now := vars(module).get(name)) is not value:
                    setattr(module, name, value)
                    if not callable(now) or inspect.unwrap(now) is not value:
                        names.append(f"{module_name}.{name}")
        return names


def _reloaded() -> list[str]:
    """Load every module of checkers from its file again; returns which of their functions were overwritten."""
    old = {name: module for name, module in sys.modules.items() if name.startswith(CHECKERS)}
    package = importlib.import_module("trinity_mini")
    for name in old:
        del sys.modules[name]
        vars(package).pop(name.rpartition(".")[2], None)
    names = []
    for name, module in old.items():
        try:
            fresh = vars(importlib.import_module(name))
        except ImportError:
            continue  # a module of the learner's that only has such a name
        names += [f"{name}.{k}" for k, v in fresh.items() if callable(v) and not _alike(getattr(module, k, None), v)]
    return names


def _rebound(space: dict[str, Any], imports: Sequence[str]) -> list[str]:
    names = []
    for statement in imports:
        fresh: dict[str, Any] = {}
        exec(statement, fresh)
        fresh.pop("__builtins__", None)
        names += [k for k, v in fresh.items() if k in space and not _alike(space[k], v)]
        space.update(fresh)
    return names


def _alike(old: Any, new: Any) -> bool:
    """Whether a function is what a fresh load gives; of other things only the type and the name are compared."""
    if hasattr(new, "__code__"):
        return getattr(old, "__code__", None) == new.__code__
    return old is new or type(old) is type(new) and getattr(old, "__name__", None) == getattr(new, "__name__", None)


def _names(code: Any) -> set[str]:
    inner = [_names(c) for c in code.co_consts if hasattr(c, "co_names")]
    return {*code.co_names}.union(*inner)


def _text(e: BaseException) -> str:
    try:
        return str(e)[:MOST]
    except BaseException:  # a learner's exception whose text fails
        return "(its text cannot be shown)"


def _line(e: BaseException) -> int:
    """The line of the checker cell where it stopped."""
    line, step = 0, e.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == SHOWN:
            line = step.tb_lineno
        step = step.tb_next
    return line


def main() -> None:
    limit(int(sys.argv.pop(1)))
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()


if __name__ == "__main__":
    main()
