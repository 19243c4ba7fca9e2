"""Does a program that a model wrote pass the tests? For LiveCodeBench, BigCodeBench and HumanEval (lesson 11)."""

from __future__ import annotations

import base64
import io
import json
import math
import pickle
import re
import secrets
import sys
import time
import zlib
from decimal import Decimal, InvalidOperation
from typing import Any

from . import sandbox

LONGEST_TESTS = 1 << 29  # bytes of one question's unpacked private tests
TOTAL = 300.0  # seconds for one answer; after that it is left ungraded
# LiveCodeBench gives a test 6 seconds of CPython; the sandboxes are three to seven times slower.
SECONDS = {"process": 6.0}
SLOW = 30.0
# Judges of programming contests have these at hand, and solutions rely on it.
PRELUDE = """\
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, cmp_to_key, lru_cache, reduce
from heapq import heapify, heappop, heappush, heappushpop, heapreplace, nlargest, nsmallest
from itertools import accumulate, chain, combinations, count, cycle, groupby, islice, pairwise, permutations, product
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
from typing import *
"""
# Runs the code as a module that is not the main one, with an empty standard input, then calls it line by line. The code
# prints where it likes; results come on lines of their own, behind a mark that no program knows beforehand.
_CALLER = """
import json, sys, time
lines, out, show, dumps, loads = sys.stdin.read().split("\\n")[:-1], sys.stdout, print, json.dumps, json.loads
clock = time.monotonic
module = sys.modules["solution"] = type(sys)("solution")
exec(compile(CODE, "solution.py", "exec", dont_inherit=True), module.__dict__)
for line in lines:
    began = clock()
    made = module.{call}(*loads(line))
    made = dumps([clock() - began, made])
    sys.stdout.flush()
    show("\\n{mark}" + made, file=out, flush=True)
"""
_UNITTEST = """
import io as _io, unittest as _unittest
_suite = _unittest.defaultTestLoader.loadTestsFromTestCase(TestCases)
_number = _suite.countTestCases()
_outcome = _unittest.TextTestRunner(stream=_io.StringIO()).run(_suite)
assert _outcome.testsRun == _number > 0 and _outcome.wasSuccessful(), "tests failed"
assert not _outcome.skipped and not _outcome.expectedFailures, "tests were skipped"
"""


_FENCE = re.compile(r"[ \t]*(```+|~~~+)[ \t]*(\w*)")


def code_in(text: str) -> str:
    """The program of a reply: its last fenced block (the last one marked as Python, if any is), else all of it."""
    blocks, fence, language, start, at = [], "", "", 0, 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        at += len(line)
        if fence and line.lstrip(" \t").startswith(fence):
            blocks.append((language, start, at - len(line)))
            fence = ""
        elif not fence and line.endswith("\n") and (m := _FENCE.match(line)):
            fence, language, start = m[1], m[2].lower(), at
    if fence:
        blocks.append((language, start, len(text)))
    marked = [block for block in blocks if block[0] in ("python", "python3", "py")]
    return text[slice(*(marked or blocks)[-1][1:])] if blocks else text


def well_formed(kind: str, gold: object) -> bool:
    """Whether `grade_code` can use this gold answer; the tests in it are not unpacked for that."""
    types: dict[str, type] | None = {
        "stdin": {"public": str, "private": str},
        "functional": {"public": str, "private": str, "function": str},
        "unittest": {"test": str, "libs": list},
        "asserts": {"test": str, "functions": list},
    }.get(kind)
    if types is None or not isinstance(gold, dict) or not all(isinstance(gold.get(k), t) for k, t in types.items()):
        return False
    names = [gold["function"]] if kind == "functional" else gold.get("functions", ())
    return all(isinstance(x, str) for x in gold.get("libs", ())) and all(
        isinstance(name, str) and name.isidentifier() for name in names
    )


def grade_code(kind: str, gold: dict[str, Any], answer: str | None, sandbox_kind: str = "auto") -> bool | None:
    """Whether the program in an answer passes all tests.

    kind and gold: "stdin" {public, private}; "functional" {public, private, function}, both as LiveCodeBench writes
    them; "unittest" {test, libs} as BigCodeBench; "asserts" {test, functions}.
    A test that takes longer than its time (SLOW, or SECONDS) is failed, and so is a unittest that is skipped.
    None: the sandbox cannot run what it needs, or all of it took more than `TOTAL` seconds though no test took too
    long, or the tests are damaged or of another form.
    Source: paper section 4.1 (all public and private tests); tests of a program's output are compared out here, so the
    expected output never enters the sandbox.
    """
    if not well_formed(kind, gold):
        return None
    if answer is None:
        return False
    code = code_in(answer)
    if kind == "unittest":
        missing = [lib for lib in gold["libs"] if lib.split(".")[0] not in sys.stdlib_module_names]
        if missing and sandbox_kind != "process":
            return None
        limits = sandbox.Limits(seconds=SECONDS.get(sandbox_kind, SLOW) * 4)
        return _verdict(sandbox.run(code, gold["test"] + _UNITTEST, kind=sandbox_kind, limits=limits))
    if kind == "asserts":
        limits = sandbox.Limits(seconds=SECONDS.get(sandbox_kind, SLOW))
        return _verdict(sandbox.run(code, gold["test"], gold["functions"], sandbox_kind, limits))
    try:
        tests = cases(gold["public"]) + cases(gold["private"])
        if kind == "functional":
            calls = [[json.loads(line) for line in test["input"].split("\n") if line.strip()] for test in tests]
            wanted = [json.loads(test["output"]) for test in tests]
            stdin = "".join(json.dumps(arguments) + "\n" for arguments in calls)
    except (ValueError, RecursionError):
        return None
    if kind == "functional":
        return _functional(code, gold["function"], stdin, wanted, sandbox_kind)
    return _stdin(code, tests, sandbox_kind)


def _verdict(result: sandbox.Result) -> bool | None:
    return None if result.why.startswith("unsupported") else result.ok


def _run(code: str, stdin: str, kind: str, seconds: float, output: int, caller: str = "") -> sandbox.Result:
    """Run a program; once more with the contest's imports if a name is missing."""
    limits = sandbox.Limits(seconds=seconds, output=max(64_000, 2 * output))
    result = sandbox.run_program(code, stdin, kind, limits, caller=caller)
    if result.why.startswith("failed: NameError") and "from __future__" not in code:
        result = sandbox.run_program(PRELUDE + code, stdin, kind, limits, caller=caller)
    return result


def _stdin(code: str, tests: list[dict[str, str]], kind: str) -> bool | None:
    end = time.monotonic() + TOTAL
    for test in tests:
        left = end - time.monotonic()
        if left <= 0:
            return None
        seconds = min(SECONDS.get(kind, SLOW), left)
        result = _run(code, test["input"], kind, seconds, len(test["output"]))
        right = result.ok and same_output(test["output"], result.stdout)
        if kind == "auto" and (result.kind == "wasi" or not right):
            kind = "wasi"  # what one test needs, the others need too; and monty's way with numbers is no verdict
            if result.kind == "monty" and result.why != "timed out":
                result = _run(code, test["input"], kind, seconds, len(test["output"]))
                right = result.ok and same_output(test["output"], result.stdout)
        if result.why.startswith("unsupported") or (result.why == "timed out" and seconds == left):
            return None
        if not right:
            return False
    return True if tests else None


def _functional(code: str, function: str, stdin: str, wanted: list[Any], kind: str) -> bool | None:
    """All calls in one run, as lines of JSON; what the function prints itself is passed over.

    A run has the time of one test. If it ends before the calls do, the next one goes on from there, so that a call that
    fills a run of its own is too slow. So is one that did not end after others and is quick when it comes first.
    """
    if not wanted:
        return None
    method = re.search(r"^class\s+Solution\b", code, re.MULTILINE)
    calls, begin, seconds = stdin.split("\n")[:-1], 0, SECONDS.get(kind, SLOW)
    end, waited = time.monotonic() + TOTAL, 0.0
    while True:
        mark = secrets.token_hex(16)
        caller = _CALLER.format(mark=mark, call=f"Solution().{function}" if method else function)
        here = wanted[begin:]
        left = min(seconds, end - time.monotonic())
        if left <= 0:
            return None
        output = (100 + len(mark)) * len(here) + len(json.dumps(here))
        result = _run(code, "".join(call + "\n" for call in calls[begin:]), kind, left, output, caller)
        if result.why.startswith("unsupported"):
            return None
        try:
            lines = [json.loads(s.removeprefix(mark)) for s in result.stdout.split("\n") if s.startswith(mark)]
            if not all(type(line) is list and len(line) == 2 and type(line[0]) is float for line in lines):
                return False  # the program found the mark and wrote a line itself
            times, given = [line[0] for line in lines], [line[1] for line in lines]
            if len(given) > len(here) or not all(map(same_value, here, given)):
                return False
        except (ValueError, RecursionError, OverflowError):  # no JSON, too deep, a whole number beyond all floats
            return False
        if result.why != "timed out":
            return result.ok and len(given) == len(here)
        if not given:
            return False if left == seconds else None
        if waited > seconds / 2 and times[0] < waited / 4:
            return False
        waited = left - sum(times)
        begin += len(given)
        if begin == len(wanted):
            return False  # it had answered all and did not end


def same_value(wanted: Any, given: Any) -> bool:
    """Equal JSON values as Python's `==` has it, so that 1 is true; floats to nine digits."""
    if isinstance(wanted, list) and isinstance(given, list):
        return len(wanted) == len(given) and all(map(same_value, wanted, given))
    if isinstance(wanted, (int, float)) and isinstance(given, (int, float)):
        return wanted == given or (float in map(type, (wanted, given)) and math.isclose(wanted, given, rel_tol=1e-9))
    return type(wanted) is type(given) and wanted == given


def same_output(wanted: str, given: str) -> bool:
    """Equal line by line but for space around lines; a line of numbers is compared by value (1.0 is 1)."""
    lines = [[line.strip() for line in text.strip().split("\n")] for text in (wanted, given)]
    return len(lines[0]) == len(lines[1]) and all(w == g or _decimals(w, g) for w, g in zip(*lines, strict=True))


_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")


def _decimals(wanted: str, given: str) -> bool:
    """Whether two lines hold the same numbers, in plain writing: Decimal itself reads 1_0 and digits of all scripts."""
    if not all(_NUMBER.fullmatch(token) for line in (wanted, given) for token in line.split()):
        return False
    try:
        numbers = [[Decimal(token) for token in line.split()] for line in (wanted, given)]
        return numbers[0] == numbers[1]
    except InvalidOperation:  # an exponent beyond all bounds
        return False


# ---- LiveCodeBench's packing --------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Plain values only: text, numbers, lists, dicts. Anything that would have to be imported is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("only plain values are allowed")


def cases(packed: str) -> list[dict[str, str]]:
    """Tests as LiveCodeBench writes them: JSON, or base64 of zlib of a pickle of JSON.

    Raises: ValueError if they are damaged, too large, or hold more than plain values.
    """
    try:
        tests = json.loads(packed) if packed.lstrip()[:1] in ("[", "") else _unpacked(packed)
    except Exception as e:  # a damaged pickle may raise nearly anything
        raise ValueError(f"these tests cannot be read ({type(e).__name__})") from None
    if not isinstance(tests, list) or not all(
        isinstance(t, dict) and isinstance(t.get("input"), str) and isinstance(t.get("output"), str) for t in tests
    ):
        raise ValueError("these tests are no list of inputs and outputs")
    return tests


def _unpacked(packed: str) -> Any:
    unzip = zlib.decompressobj()
    raw = unzip.decompress(base64.b64decode(packed, validate=True), LONGEST_TESTS)
    if not unzip.eof:
        raise ValueError("too large or cut off")
    value = _PlainUnpickler(io.BytesIO(raw)).load()
    return json.loads(value) if isinstance(value, (str, bytes)) else value
