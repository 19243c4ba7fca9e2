"""The first sandbox: pydantic-monty, an interpreter for a part of Python that has no way to the host at all.

It starts in milliseconds and lacks much: generators, inheritance, most modules. What it lacks looks like an ordinary
error, and some of what it has gives other values than Python. An error that could be a lack is called unsupported, but
not every difference shows; so under "auto" no failure here stands before WASI has confirmed it (sandbox.py), and with
kind "monty" a failure is only as good as monty. A new worker process for every run.

What a function returns comes into this process as Python values, where nothing would limit them: a list of one long
text a thousand times over is small in monty and large here. So every value is measured inside, by a function that the
code cannot name, and only what is small comes out; the value of a program's last line never does. An error's message
comes out as it is: it may cost this process a few times what `memory_mb` allows there.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from .files import UserError
from .sandbox import Limits, Result
from .sandbox_guest import SILENT

LACK = (SyntaxError, NotImplementedError, ImportError, AttributeError, NameError, TypeError)
PLAIN = (type(None), bool, int, float, complex, str, bytes)
JUDGES = ("abs all any bool dict divmod enumerate float frozenset int isinstance len list map max min pow range repr "
          "reversed round set sorted str sum tuple type zip").split()  # fmt: skip
CALLS = 1_000_000
ROOM = 200_000  # values, or 40 times as many characters, that one call may return; shared parts count each time
MEASURE = """
def {name}(value, type=type, len=len, list=list, str=str, bytes=bytes, int=int, dict=dict,
           atoms=(type(None), bool, float, complex), many=(list, tuple, set, frozenset), most=1 << 100_000):
    todo, room = [value], {room}
    while todo:
        item = todo.pop()
        kind = type(item)
        room -= 1
        if kind is str or kind is bytes:
            room -= len(item) // 40
        elif kind is int:
            if item > most or item < -most:
                return 2, None
        elif kind in many or kind is dict:
            room -= len(item)
            if room < 0:
                return 2, None
            todo.extend(item)
            if kind is dict:
                todo.extend(item.values())
        elif kind not in atoms:
            return 1, None
        if room < 0:
            return 2, None
    return 0, value
"""
INPUT = """
def {name}(lines, print=print, len=len):
    at = [0]
    def input(prompt=""):
        print(prompt, end="")
        if at[0] == len(lines):
            raise NotImplementedError("EOFError")
        at[0] += 1
        return lines[at[0] - 1]
    return input
input = {name}(_lines)
_lines = None
"""
NOTHING = "\n\nNone\n"  # after a program, so that its last value stays where it is


class _Stop(BaseException):
    """The time of a run is over."""


class _Run:
    """One run: the interpreters' settings, what was printed, and the time that is left."""

    def __init__(self, limits: Limits) -> None:
        import pydantic_monty

        self.monty, self.limits = pydantic_monty, limits
        self.cap = 4 * limits.output + 1024
        self.printed = pydantic_monty.CollectString(self.cap)
        self.began = time.monotonic()
        self.late = self.lacks = False

    def session(self, pool: Any) -> Any:
        own = {"max_feed_duration_secs": self.limits.seconds, "max_memory": self.limits.memory_mb << 20}
        return pool.checkout(limits={**own, "max_suspensions": CALLS}, os_policy={"sleep": "zero"})

    def feed(self, session: Any, code: str, **given: Any) -> Any:
        if time.monotonic() - self.began > self.limits.seconds:
            self.late = True
            raise _Stop
        return session.feed_run(code, print_callback=self.printed, **given)

    def result(self, why: str) -> Result:
        printed = self.printed.output
        if self.late:
            why = "timed out"
        elif len(printed) > self.limits.output:
            why = "too much output"
        elif self.lacks and why.startswith("failed: "):
            why = "unsupported: " + why.removeprefix("failed: ")
        seconds = time.monotonic() - self.began
        return Result(why in ("passed", "finished"), "monty", why, printed[: self.limits.output], seconds)

    def ended(self, error: BaseException) -> Result:
        """The result of a run that an error ended."""
        if isinstance(error, _Stop):
            return self.result("timed out")
        if isinstance(error, self.monty.MontyCrashedError):
            late = getattr(error, "timed_out", False) or time.monotonic() - self.began > self.limits.seconds
            return self.result("timed out" if late else "unsupported: the interpreter died")
        inner = error.exception() if isinstance(error, self.monty.MontyError) else error
        # Cut first: a long message has very many words.
        text = f"{type(inner).__name__}: {' '.join(str(inner)[:2000].split())[:300]}".removesuffix(": ")
        if isinstance(inner, TimeoutError) and "time limit exceeded" in str(inner):
            return self.result("timed out")
        if isinstance(inner, MemoryError):
            return self.result("too much output" if f"> {self.cap} bytes" in str(inner) else "out of memory")
        self.lacks = self.lacks or lack(inner)
        return self.result(f"failed: {text}")


def lack(error: BaseException) -> bool:
    """Whether an error may mean that monty lacks something, rather than that the code is wrong."""
    if isinstance(error, LACK) or not isinstance(error, Exception):
        return True
    return re.search("not (yet )?support|not (yet )?implement|error in monty", str(error)[:2000]) is not None


def plain(value: Any) -> bool:
    """Whether a value is plain data through and through, of Python's own types exactly."""
    kind = type(value)
    if kind in PLAIN:
        return True
    if kind is dict:
        return all(plain(k) and plain(v) for k, v in value.items())
    return kind in (list, tuple, set, frozenset) and all(map(plain, value))


def run_tests(code: str, tests: str, functions: Sequence[str], limits: Limits) -> Result:
    """The code in one interpreter, the tests in another that reaches `functions` by plain data only.

    Without functions both run in one interpreter, after which common builtin functions are put back.
    """
    run = _start(limits)
    hidden = "_" + secrets.token_hex(16)  # a name that the code cannot guess, and monty lists no names
    try:
        with run.monty.Monty() as pool, run.session(pool) as solver:
            if not functions:
                run.feed(solver, f"{hidden} = ({', '.join(JUDGES)})" + NOTHING)
                run.feed(solver, code + NOTHING)
                run.feed(solver, f"{', '.join(JUDGES)} = {hidden}" + NOTHING)
                run.feed(solver, tests + NOTHING)
                return run.result("passed")
            run.feed(solver, MEASURE.format(name=hidden, room=ROOM) + NOTHING)
            run.feed(solver, code + NOTHING)
            with run.session(pool) as examiner:
                remote = {name: _remote(run, solver, name, hidden) for name in functions}
                run.feed(examiner, tests + NOTHING, external_lookup=remote)
                return run.result("passed")
    except (run.monty.MontyError, _Stop, RuntimeError, UnicodeError, ValueError, TypeError, RecursionError) as e:
        return run.ended(e)


def _remote(run: _Run, solver: Any, name: str, measure: str) -> Callable[..., Any]:
    """What the tests call instead of a function of the code."""

    def call(*args: Any, **named: Any) -> Any:
        try:
            if not plain((args, named)):
                run.lacks = True
                raise TypeError(f"the tests give {name} no plain data")
            given = {"_args": args, "_named": named}
            state, value = run.feed(solver, f"{measure}({name}(*_args, **_named))", inputs=given)
            if state or not plain(value):
                run.lacks = True  # the next sandbox knows subclasses, iterators and larger values
                raise TypeError(f"{name} returned {'too much' if state == 2 else 'no plain data'}")
            return value
        except run.monty.MontyCrashedError:
            run.lacks = True
            raise
        except run.monty.MontyError as e:
            inner = e.exception()
            run.lacks = run.lacks or lack(inner)
            run.late = run.late or (isinstance(inner, TimeoutError) and "time limit exceeded" in str(inner)[:2000])
            if isinstance(inner, SILENT) or not isinstance(inner, Exception):
                inner = RuntimeError(repr(inner))
            raise inner from None

    return call


def run_whole(code: str, stdin: str, limits: Limits) -> Result:
    """A whole program. It can read by `input()` only: monty has no `sys.stdin`."""
    run = _start(limits)
    lines = stdin.split("\n")  # and at nothing else, as Python does where contests are judged
    if not lines[-1]:
        lines.pop()
    hidden = "_" + secrets.token_hex(16)
    try:
        with run.monty.Monty() as pool, run.session(pool) as session:
            run.feed(session, INPUT.format(name=hidden) + NOTHING, inputs={"_lines": lines})
            run.feed(session, code + NOTHING)
            return run.result("finished")
    except (run.monty.MontyError, _Stop, RuntimeError, UnicodeError, ValueError, TypeError, RecursionError) as e:
        return run.ended(e)


def _start(limits: Limits) -> _Run:
    try:
        return _Run(limits)
    except ImportError:
        raise UserError("the sandbox is not installed: run `pip install -e .[llm]`.") from None
