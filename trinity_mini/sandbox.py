"""Run code that a language model wrote, without letting it near this machine (lesson 11).

Three kinds of sandbox; "auto" is the first two:

- "monty": pydantic-monty, an interpreter for a part of Python without any way to the host. Milliseconds.
- "wasi": CPython as WebAssembly under wasmtime, without folder, environment, network or processes. A third of a second.
- "process": a plain subprocess with limits. NO security boundary; only by explicit choice, and it warns.

Under "auto" a pass in monty counts, and a timeout there, since WASI is slower; whatever else monty says is asked again
in WASI, for monty lacks much of Python and does some of it otherwise (`round(2.675, 2)`, `pow(3, -1, 7)`, empty matches
of `re`). So a wrong "failed" does not stand; a pass that only monty's way of counting gives does.

**The verdict.** With `functions` named, the submission runs in one interpreter and the tests in another, which can call
those functions and get plain data back (sandbox_data.py). What is no plain data stays where it is, and the tests reach
its methods, attributes and items from afar. Under "monty" and "wasi" nothing the submission does in its own interpreter
can reach the tests: objects that equal everything, patched builtins or assertions, frames, exit tricks. (A "process"
can: it may write into the tests' own pipes.) What it can still do is what any program may: return values. So a pass
means that the values were right, as far as the tests ask. Arguments are passed by value: a test that looks whether its
argument was changed needs the other way. Tests that compare or compute with objects of the submission, hand it
functions, or build upon its classes are "unsupported" this way. So are coroutines, though without a word: they fail.

Without `functions`, code and tests share one interpreter, the tests run after the code, and a secret that is made only
then must come back. That withstands exits, shadowed and patched builtins, import and tracing hooks, and a patched
`unittest` or `doctest` (the tests get a copy that was loaded before). It does not withstand an `__eq__` that lies,
other modules that it patched (`contextlib`, say), an audit hook, which Python cannot remove, a thread, nor a submission
written against this very harness. Use it for tests that must reach inside (mocks), and read its passes with that in
mind. What keeps the code off this machine is the same in both: monty's or wasmtime's isolation.

"unsupported" is no verdict. A wrong program can bring it about by importing and using a module that is lacking
(sandbox_lacks.py), by an object of a class (its name has a capital) that the tests compare, or by a way to crash
CPython in C.

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
    single call that began in time, and "auto" as much for each of the two. Python under WASI is about seven times
    slower than outside, monty three times.
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
        if kind == "monty" or _final(result):
            return result
    from .sandbox_lacks import without_unused
    from .sandbox_process import run_tests as run_guests

    while True:
        result = run_guests(_launch(kind), _kinds(kind)[-1], code, tests, functions, limits)
        if code == (code := without_unused(code, result.why)):
            return result


def run_program(code: str, stdin: str, kind: Kind = "auto", limits: Limits = Limits(), *, caller: str = "") -> Result:
    """Run a whole program that reads `stdin`; `Result.stdout` is what it printed, for the caller to compare.

    caller: a program to run instead, which finds the code as text in `CODE`; monty does not support it.
    ok if it ended by itself with exit code 0. Raises: as `run`.
    """
    if _kinds(kind) == ("monty",) and caller:
        return Result(False, "monty", "unsupported: a caller", "", 0.0)
    if _kinds(kind)[0] == "monty" and not caller:
        from .sandbox_monty import run_whole

        result = run_whole(code, stdin, limits)
        if kind == "monty" or _final(result):
            return result
    from .sandbox_lacks import without_unused
    from .sandbox_process import run_whole as run_guest

    while True:
        result = run_guest(_launch(kind), _kinds(kind)[-1], code, stdin, limits, caller)
        if code == (code := without_unused(code, result.why)):
            return result


def _final(result: Result) -> bool:
    """Whether what monty says needs no second look."""
    return result.ok or result.why in ("timed out", "too much output")


def _kinds(kind: str) -> tuple[str, ...]:
    """The sandboxes to try, in order."""
    known = {"auto": ("monty", "wasi"), "monty": ("monty",), "wasi": ("wasi",), "process": ("process",)}
    if kind not in known:
        raise ValueError(f"kind must be one of {', '.join(known)}, not {kind!r}")
    return known[kind]


def _launch(kind: str):
    if kind == "process":
        from .sandbox_plain import launch_plain

        return launch_plain
    from .sandbox_wasi import compiled, launch

    compiled()  # before any clock runs
    return launch
