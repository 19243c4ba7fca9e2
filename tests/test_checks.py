"""The core of the checkers: right answers pass, wrong ones get a message that says what, where, and a hint."""

import json

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini.checks import Wrong, called, passed, same

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.eye(3), np.eye(3)),
        (np.eye(3, dtype=np.float32) + 1e-6, np.eye(3)),
        (1000.001, 1000),
        (np.arange(3.0), np.arange(3)),
        (torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True), torch.ones(2, 3)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (torch.tensor(3), 3),
        (np.float32(0.1), 0.1),
        (np.array([True, False]), np.array([True, False])),
        (np.array([1, -INF, NAN]), np.array([1, -INF, NAN])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (2**62 + 1, 2**62 + 1),
        ("2r1", "2r1"),
        ([1, "a", (torch.ones(1),)], (1, "a", [torch.ones(1)])),
        ({"mu": 3.0, "name": "x"}, {"name": "x", "mu": 3}),
        (None, None),
        ({1, 2}, {2, 1}),
    ],
    ids=str,
)
def test_the_same(found, wanted):
    same(found, wanted, "it", "none")


@pytest.mark.parametrize(
    ("found", "wanted", "says"),
    [
        (None, 3.0, "it is None: is the `return` missing?"),
        (np.ones((3, 2)), np.ones((2, 3)), "it has shape (3, 2), and shape (2, 3) is wanted (the axes are swapped)."),
        (np.ones((3, 1)), np.ones(3), "it has shape (3, 1), and shape (3,) is wanted."),
        (torch.ones(1), 1.0, "it has shape (1,), and a single number is wanted."),
        (np.eye(2), np.ones((2, 2)), "it[0, 1] is 0, and 1 is wanted (2 of 4 values differ)."),
        (1.001, 1.0, "it is 1.001, and 1 is wanted."),
        (2**62 + 1, 2**62, "it is 4611686018427387905, and 4611686018427387904 is wanted."),
        (100_001, 100_000, "it is 100001, and 100000 is wanted."),
        (np.array([0, 255], np.uint8), np.array([0, 0], np.uint8), "it[1] is 255, and 0 is wanted (1 of 2 values"),
        (np.array([1.0, NAN]), np.ones(2), "it[1] is not finite: it is nan, and 1 is wanted"),
        (np.array([0, INF]), np.array([0, -INF]), "it[1] is not finite: it is inf, and -inf is wanted"),
        (0.0, -INF, "it is 0, and -inf is wanted."),
        (torch.eye(3), np.eye(3), "it is a torch tensor of shape (3, 3), and a numpy array of shape (3, 3) is wanted."),
        ([1.0, 2.0], np.ones(2), "it is a list ([1.0, 2.0]), and a numpy array of shape (2,) is wanted."),
        ("3", 3, "it is a str ('3'), and an int (3) is wanted."),
        (3, "3", "it is an int (3), and a str ('3') is wanted."),
        (1, True, "it holds int64 values, and bool ones are wanted."),
        (np.array([1, 0]), np.array([True, False]), "it holds int64 values, and bool ones are wanted."),
        (np.array(["a"]), np.ones(1), "it holds <U1 values, and float64 ones are wanted."),
        ((1, 2), (1, 2, 3), "it has length 2, and 3 is wanted."),
        ((1, [2, 4]), (1, [2, 3]), "it[1][1] is 4, and 3 is wanted."),
        (7, (1, 2), "it is an int (7), and a tuple ((1, 2)) is wanted."),
        ("2r1", "2r7", "it differs from character 2 on: found '2r1', wanted '2r7'."),
        ("2r", "2r7", "it differs from character 2 on"),
        ("a" * 500 + "b", "a" * 500 + "c", "it differs from character 500 on: found 'aaaaaaaaaaaaaaaaaaaab', wanted"),
        ({"mu": 1}, {"mu": 2}, "it['mu'] is 1, and 2 is wanted."),
        ({}, {"mu": 2}, "it lacks the key 'mu'."),
        ({"mu": 2, "nu": 1}, {"mu": 2}, "it has a key 'nu' that is not wanted."),
        ({1}, {1, 2}, "it is {1}, and {1, 2} is wanted."),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_differs_and_where(found, wanted, says):
    with pytest.raises(Wrong) as caught:
        same(found, wanted, "it", "look again.")
    assert str(caught.value).startswith(says) and str(caught.value).endswith(" Hint: look again.")
    assert len(str(caught.value)) < 250


def test_the_tolerance_is_relative_above_one():
    same(1e6 + 5, 1e6, "it", "none", tol=1e-5)
    same(1.4, 1.0, "it", "none", tol=0.3)
    with pytest.raises(Wrong):
        same(1e6 + 50, 1e6, "it", "none", tol=1e-5)


def test_called_gives_what_the_function_gives():
    assert called(lambda a, b: a + b, 1, 2, what="add(1, 2)") == 3


def test_called_lets_not_done_yet_through():
    def stub(x):
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        called(stub, 1, what="stub(1)")


def test_called_tells_how_a_function_stopped():
    def bad(x):
        y = x - x
        return x / y

    with pytest.raises(Wrong, match=r"^bad\(1\) stopped in line \d+ of its cell with ZeroDivisionError: ") as caught:
        called(bad, 1, what="bad(1)")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(Wrong, match=r"^bad\(\) stopped with TypeError: .*missing 1 required"):
        called(bad, what="bad()")
    with pytest.raises(Wrong, match="stopped with SystemExit"):
        called(exit, what="bad()")


def test_called_wants_a_function():
    with pytest.raises(Wrong, match=r"svf is a NoneType \(None\), not a function: run the cell"):
        called(None, 1, what="svf")


def test_called_is_not_in_the_way_of_an_interrupt():
    def stopped():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        called(stopped, what="it")


def test_passed_is_one_line(capsys):
    passed("svf_linear", 20)
    passed("head", 1)
    assert capsys.readouterr().out == "[OK] svf_linear agrees on 20 random inputs\n[OK] head agrees on 1 random input\n"


# ---- definitions from a notebook -------------------------------------------------------------------


@pytest.fixture
def lesson(tmp_path):
    def write(*sources):
        cells = [{"cell_type": "code", "source": s, "metadata": {}, "outputs": []} for s in sources]
        words = {"cell_type": "markdown", "source": "def f(): words", "metadata": {}}
        path = tmp_path / "a lesson.ipynb"
        path.write_text(json.dumps({"cells": [words, *cells]}), encoding="utf-8")
        return path

    return write


def test_definitions_runs_imports_and_what_binds_the_names(lesson):
    path = lesson(
        "import math\nfrom dataclasses import dataclass\nprint('not executed')",
        "%matplotlib inline\nK: int = 2\nskipped = 1 / 0",
        ["def area(r):\n", "    return math.pi * r**K\n"],
        "@dataclass\nclass Box:\n    a: 'int'\n    b: 'float' = 1.0\n\n\nlow, (high, *_) = 1, (2, 3)",
        "%%bash\nK = 9",
        "K += 1\narea(3) / 0",
    )
    found = definitions(path, "area", "K", "Box", "high")
    assert found.area(1) == found["math"].pi and found.K == 3 and found.Box(a=2).b == 1.0 and found.low == 1
    assert "skipped" not in found and not hasattr(found, "skipped")


def test_the_last_binding_stands_and_a_traceback_shows_the_line(lesson):
    import traceback

    path = lesson("def f():\n    return 1", "def f():\n    return 1 / 0  # here")
    try:
        definitions(path, "f").f()
    except ZeroDivisionError:
        assert "return 1 / 0  # here" in traceback.format_exc()


def test_a_name_that_is_not_there(lesson):
    with pytest.raises(KeyError, match="does not define g, h"):
        definitions(lesson("def f(): pass"), "f", "h", "g")


def test_the_first_lesson_can_be_read():
    assert callable(definitions("00_start_here.ipynb", "ask").ask)


class Anything(str):
    """A text that calls itself equal to all."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def test_a_text_that_calls_itself_equal_is_not():
    with pytest.raises(Wrong):
        same(Anything("x"), "y", "it", "")
    same(Anything("y"), "y", "it", "")
