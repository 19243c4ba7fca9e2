"""Run code that a language model wrote, without letting it near this machine (lesson 11).

Three kinds of sandbox, tried in this order under "auto":

- "monty": pydantic-monty, an interpreter for a part of Python without any way to the host. Milliseconds.
- "wasi": CPython as WebAssembly under wasmtime, without folder, environment, network or processes. A third of a second.
- "process": a plain subprocess with limits. NO security boundary; only by explicit choice, and it warns.

**The verdict.** With `functions` named, the submission runs in one interpreter and the tests in another, which can call
those functions and get plain data back (numbers, text, lists, tuples, dicts, sets, iterators; objects of a named class
stay where they are and are called by method). Nothing the submission does in its own interpreter can reach the tests:
objects that equal everything, patched builtins or assertions, frames, exit tricks. What it can still do is what any
program may: return values. So a pass means that the values were right, as far as the tests ask. Arguments are passed
by value: a test that looks whether its argument was changed needs the other way.

Without `functions`, code and tests share one interpreter, the tests run after the code, and a secret that is made only
then must come back. That withstands exits, shadowed and patched builtins and a patched unittest, not an `__eq__` that
lies nor a submission written against this very harness. Use it for tests that must reach inside (mocks), and read its
passes with that in mind. What keeps the code off this machine is the same in both: monty's or wasmtime's isolation.

Not excluded in either: weak tests; a helper that the tests take from the submission (name only what is asked for, and
give the tests their own helpers); a fault in monty, wasmtime or the operating system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["auto", "monty", "wasi", "process"]


@dataclass(frozen=True)
class Limits:
    """What a run may use: seconds, MiB of memory in each interpreter, characters printed.

    The time is wall-clock time, with the start of the sandbox for programs only; monty may take as much again for a
    single call that began in time. Python under WASI is about seven times slower than outside, monty three times.
    """

    seconds: float = 10.0
    memory_mb: int = 512
    output: int = 64_000


@dataclass(frozen=True)
class Result:
    """How a run ended.

    ok: the code, and the tests after it, ran to their end.
    kind: the sandbox that decided: "monty", "wasi" or "process".
    why: "passed" ("finished" for a program); "failed: AssertionError ..."; "timed out"; "out of memory"; "too much
        output"; or "unsupported: ...", which is no verdict about the code: the sandbox lacks what it needs.
    stdout: what was printed, cut at the limit. seconds: wall-clock time, counted as in Limits.
    """

    ok: bool
    kind: str
    why: str
    stdout: str
    seconds: float


def run(
    code: str, tests: str = "", functions: Sequence[str] = (), kind: Kind = "auto", limits: Limits = Limits()
) -> Result:
    """Run code, then tests that raise if it is wrong.

    functions: names of the code's functions or classes that the tests use; name them wherever you can (see above).
    Blocks; call it from a thread in an event loop.
    Raises: ValueError for an unknown kind or a name that is none, UserError if the sandbox is not installed.
    """
    if bad := [f for f in functions if not str.isidentifier(f)]:
        raise ValueError(f"functions must be plain names, not {bad[0]!r}")
    # A module's main part is not for tests, but monty would run it; and its objects cannot be called by method.
    beyond = "|".join(["if[ \t]+__name__", *(rf"class[ \t]+{f}" for f in functions)])
    if _kinds(kind)[0] == "monty" and not (kind == "auto" and re.search(rf"^(?:{beyond})\b", code, re.MULTILINE)):
        from .sandbox_monty import run_tests

        result = run_tests(code, tests, functions, limits)
        if kind == "monty" or not result.why.startswith("unsupported"):
            return result
    from .sandbox_process import run_tests as run_guests

    return run_guests(_launch(kind), _kinds(kind)[-1], code, tests, functions, limits)


def run_program(code: str, stdin: str, kind: Kind = "auto", limits: Limits = Limits()) -> Result:
    """Run a whole program that reads `stdin`; `Result.stdout` is what it printed, for the caller to compare.

    ok if it ended by itself with exit code 0. Raises: as `run`.
    """
    if _kinds(kind)[0] == "monty":
        from .sandbox_monty import run_whole

        result = run_whole(code, stdin, limits)
        if kind == "monty" or not result.why.startswith("unsupported"):
            return result
    from .sandbox_process import run_whole as run_guest

    return run_guest(_launch(kind), _kinds(kind)[-1], code, stdin, limits)


def _kinds(kind: str) -> tuple[str, ...]:
    """The sandboxes to try, in order."""
    known = {"auto": ("monty", "wasi"), "monty": ("monty",), "wasi": ("wasi",), "process": ("process",)}
    if kind not in known:
        raise ValueError(f"kind must be one of {', '.join(known)}, not {kind!r}")
    return known[kind]


def _launch(kind: str):
    if kind == "process":
        from .sandbox_process import launch_plain

        return launch_plain
    from .sandbox_wasi import compiled, launch

    compiled()  # before any clock runs
    return launch
