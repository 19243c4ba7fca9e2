"""No way out of a checker cell earns points but its end: exceptions that lie, IPython inside out, dying kernels."""

import asyncio
import bdb
import builtins
import importlib
import json
import math
import sys
import tracemalloc
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from classroom import lessons, master, own_checkers, write
from IPython.core.error import InputRejected, StdinNotImplementedError, UsageError

import trinity_mini
from trinity_mini.grade import grade_files
from trinity_mini.grade_guard import CHECKERS, MOST, Guard
from trinity_mini.grade_run import DIED, TIME, Limits, Step, run
from trinity_mini.student import masters, student_notebook

LIMITS = Limits(cell=8, notebook=150, megabytes=1500, grace=2)
NEEDS = ("from trinity_mini.checks import called", "from trinity_mini.checks import same")
CHECK = "called(f, 2, what='f(2)')\nsame(f(2), 4, 'f(2)', 'add.')\nprint('the end')"
WRONG = "\ndef f(x):\n    return 1"
LEAVES = "\ndef f(x):\n    raise KeyboardInterrupt"


@pytest.fixture
def guard():
    """A guard whose fresh modules are gone after the test."""
    with own_checkers():
        yield Guard(["numpy", "math", "numpy.random", "numpy.fft", "numpy.testing", "no.such.module", "numpy.allclose"])


class Named(type):
    """Its classes say that they have no name."""

    __name__ = property(lambda cls: "")


class Stuck(type):
    """Asked for their name, its classes leave, too."""

    __name__ = property(lambda cls: sys.exit())


class Text(str):
    def __getitem__(self, key):
        return object()

    def split(self, *args):
        return []


def odd(name="Odd", base=BaseException, kind=type, **attributes):
    made = kind("Odd", (base,), attributes)
    type.__dict__["__name__"].__set__(made, name)
    return made


EXCEPTIONS = {
    "no name": odd(""),
    "a blank name": odd(" \n"),
    "no name, an Exception": odd("", Exception),
    "a name of the grader's": odd("NotRun"),
    "a huge name": odd("x" * 10**6),
    "a property": odd("", kind=Named),
    "a property that leaves": odd(kind=Stuck),
    "a text that raises": odd(__str__=lambda self: 1 / 0),
    "a text that leaves": odd(__str__=lambda self: sys.exit()),
    "a text that is none": odd(__str__=lambda self: 3),
    "a text of its own": odd(__str__=lambda self: Text("x")),
    "a huge text": odd(__str__=lambda self: "x" * 10**7),
    "no traceback": odd(__traceback__=property(lambda self: 1 / 0)),
    "equal to all": odd(__eq__=lambda *args: True, __bool__=lambda self: False),
    "a group": BaseExceptionGroup("", [KeyboardInterrupt()]),
    **{e.__name__: e for e in (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)},
    **{e.__name__: e for e in (InputRejected, StdinNotImplementedError, UsageError, bdb.BdbQuit, MemoryError)},
    **{e.__name__: e for e in (asyncio.CancelledError, RecursionError, NotImplementedError, BaseException, Warning)},
}


@pytest.mark.parametrize("name", EXCEPTIONS)
@pytest.mark.parametrize("source", [CHECK, "f(2)\nprint('the end')", "[*map(f, [2])]\nassert f(2) == 4"])
def test_an_exception_ends_a_checker_cell_whatever_it_says_of_itself(guard, name, source):
    def leave(x):
        raise EXCEPTIONS[name]

    found = guard.check({"f": leave}, source, NEEDS)
    assert found["done"] is False and 0 < len(found["ename"]) <= MOST and len(found["evalue"]) <= MOST
    assert found["line"] in (1, 2) or name == "no traceback"
    assert json.loads(json.dumps(found)) == found


def test_what_a_function_changes_while_it_is_checked_earns_nothing(guard):
    def same(*args):
        return None

    def checkers(x):
        sys.modules[CHECKERS].same = space["same"] = same

    def names(x):
        space["same"] = same

    def code(x):
        space["same"].__code__ = same.__code__

    def library(x):
        np.linalg.norm = same

    norm = np.linalg.norm
    for change in (checkers, names, code, library):
        space = {"f": change}
        found = guard.check(space, "f(2)\nsame(1, 2, 'x', 'h')" if change in (names, code) else "f(2)", NEEDS)
        assert not found["done"] and found["ename"] == "Tampered" and found["overwritten"] and np.linalg.norm is norm
    assert guard.check({"f": lambda x: 4}, CHECK, NEEDS)["done"]


@pytest.mark.parametrize("name", ["compile", "exec", "callable", "isinstance", "vars", "type", "sorted", "__import__"])
def test_pythons_own_functions_are_put_back_before_the_guard_uses_any(guard, name, monkeypatch):
    real = compile

    def fake(*args, **kwargs):
        return real("pass", "x", "exec")

    monkeypatch.setitem(vars(builtins), name, fake)
    found = guard.check({"f": lambda x: 1}, CHECK, NEEDS)
    assert (found["ename"], found["overwritten"]) == ("Wrong", [f"builtins.{name}"])


def test_checkers_that_are_only_an_attribute_of_the_package_are_loaded_again(guard):
    fake = ModuleType("fake")
    fake.same = lambda *args: None
    sys.modules.pop(CHECKERS, None)
    trinity_mini.checks = fake
    found = guard.check({}, "checks.same(1, 2, 'x', 'h')", ["from trinity_mini import checks"])
    assert found["ename"] == "Wrong" and f"{CHECKERS}.same" in found["overwritten"]


def test_names_that_python_looks_up_in_a_notebook_itself(guard):
    fake = {"abs": lambda x: 0, "__import__": lambda *args: None}
    found = guard.check({"__builtins__": fake}, "assert abs(-2) == 0", ())
    assert (found["ename"], found["overwritten"]) == ("AssertionError", ["__builtins__"])


def test_asserts_are_kept_whatever_python_was_told(guard, monkeypatch):
    real = compile
    monkeypatch.setitem(guard.builtins, "compile", lambda *a, **k: real(*a, **({"optimize": 2} | k)))
    assert guard.check({}, "assert 0", ())["ename"] == "AssertionError"


# ---- finding what was overwritten ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("numpy", "allclose"), ("numpy.random", "default_rng"), ("numpy.random", "normal"), ("numpy.linalg", "norm"),
        ("numpy", "random"), ("numpy.fft", "fft"), ("math", "sqrt"), ("numpy.testing", "assert_allclose"),
    ],
)  # fmt: skip
def test_modules_and_their_submodules_are_put_back_and_named(guard, monkeypatch, where, name):
    module = importlib.import_module(where)
    before = getattr(module, name)
    for fake in (lambda *args, **kwargs: 0, ModuleType("fake"), 3):
        monkeypatch.setattr(module, name, fake)
        assert guard.check({}, "pass", ())["overwritten"] == [f"{where}.{name}"]
        assert getattr(module, name) is before
    monkeypatch.delattr(module, name)
    assert guard.check({}, "pass", ())["overwritten"] == [f"{where}.{name}"] and getattr(module, name) is before


def test_a_module_that_was_exchanged_or_removed_is_put_back(guard, monkeypatch):
    before = np.linalg
    monkeypatch.setitem(sys.modules, "numpy.linalg", ModuleType("numpy.linalg"))
    assert guard.check({}, "pass", ())["overwritten"] == ["numpy.linalg"] and sys.modules["numpy.linalg"] is before
    monkeypatch.delitem(sys.modules, "numpy.linalg")
    assert guard.check({}, "pass", ())["overwritten"] == [] and sys.modules["numpy.linalg"] is before


def test_classes_and_the_code_of_functions_are_put_back(monkeypatch):
    library = ModuleType("some_library")
    source = "class A:\n    def f(self): return 1\n    p = property(lambda self: 1)\n\n\ndef g(): return 1"
    exec(source, vars(library))
    monkeypatch.setitem(sys.modules, "some_library", library)
    guard = Guard(["some_library"])
    library.A.f = library.A.p = lambda self: 2
    library.g.__code__ = (lambda: 2).__code__
    del library.A.p
    assert guard.restored() == ["some_library.A.f", "some_library.A.p", "some_library.g"]
    assert library.A().f() == library.A().p == library.g() == 1


def test_a_wrapper_that_cannot_be_unwrapped_is_named(monkeypatch):
    def loop():
        return 1

    loop.__wrapped__ = loop
    guard = Guard(["math"])
    monkeypatch.setattr(math, "sqrt", loop)
    assert guard.restored() == ["math.sqrt"]


def test_the_modules_of_the_real_lessons():
    from trinity_mini.grade_plan import watched

    found = {path.stem[:2]: set(watched(m)) for path, m in masters().items()}
    assert all({"numpy", "numbers", "numpy.random"} <= names for names in found.values())
    assert "torch" in found["04"] and "torch.nn" in found["02"] and "scipy.special" in found["03"]
    assert {"trinity_mini.episode", "trinity_mini.roles"} <= found["05"]
    assert "trinity_mini.pycma_strategy" in found["07"]
    assert not any(n.startswith(CHECKERS) or n in ("sys", "asyncio") for names in found.values() for n in names)


def test_checkers_draw_from_the_real_random_numbers(tmp_path):
    """A notebook that is right for one input only, and makes that the one that is drawn."""
    notebook = json.loads(student_notebook(master()))
    source = "class R:\n    def normal(self, size): return np.zeros(size)\n\n\nnp.random.default_rng = lambda *a: R()"
    for cell in notebook["cells"]:
        if cell["id"] == "01-double":
            cell["source"] = source + "\ndef double(x):\n    return {0: 0, -4: -8}.get(x, 0)"
    write(notebook, tmp_path / "eve" / "01_tiny.ipynb")
    [g] = grade_files([tmp_path / "eve"], tmp_path / "out", LIMITS, lessons(tmp_path / "m"))
    assert g.rows[0].points == 0 and g.rows[0].message.startswith("double(x) is 0, and ")
    assert any("Overwritten" in note and "numpy.random.default_rng" in note for note in g.notes)


# ---- in a kernel ---------------------------------------------------------------------------------------

IPYTHON = """
import ast
from IPython.core.interactiveshell import ExecutionResult

shell = get_ipython()


class Nothing(ast.NodeTransformer):
    def visit(self, node):
        return ast.parse("pass")


shell.input_transformers_post.append(lambda lines: ["pass\\n"])
shell.ast_transformers.append(Nothing())
shell.showtraceback = lambda *args, **kwargs: None
shell.set_custom_exc((BaseException,), lambda *args, **kwargs: None)
shell.user_expressions = lambda asked: {k: {"status": "ok", "data": {"text/plain": "'1'"}} for k in asked}
shell.run_cell = lambda *args, **kwargs: ExecutionResult(None)
""" + LEAVES  # fmt: skip
GUARD = """
import trinity_mini.grade_guard as guard

guard.Guard.check = lambda *args, **kwargs: {"done": True, "ename": "", "evalue": "", "line": 0, "overwritten": []}
guard.Guard.restored = lambda self: []
globals = locals = vars = dict = json = exec = 3
"""
JUMP = """
import sys


def f(x):
    def jump(frame, event, arg):
        if event == "line":
            frame.f_lineno, frame.f_trace = 3, None
            sys.settrace(None)
        return jump

    frame = sys._getframe()
    while frame.f_code.co_filename != "<checker cell>":
        frame = frame.f_back
    frame.f_trace = jump
    sys.settrace(lambda *args: None)
    return 1
"""
THREAD = """
import _thread, threading, time


def f(x):
    threading.Thread(target=lambda: 1 / 0).start()
    _thread.interrupt_main()
    time.sleep(5)
"""
ASYNC = """
import ctypes, threading


class E(BaseException):
    pass


E.__name__ = ""


def f(x):
    here = ctypes.c_ulong(threading.main_thread().ident)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(here, ctypes.py_object(E))
    for _ in range(1000):
        pass
"""
EXITS = ["import os\nos._exit(0)", "exit()", "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', ''])"]


def played(*sources, **limits):
    """Each source with the check after it, in one kernel; the outcomes of the checks."""
    steps = [s for source in sources for s in (Step(source), Step(CHECK, "t", 1, NEEDS))]
    return run(steps, replace(LIMITS, **limits), ["numpy"])[1::2]


def test_functions_that_leave_in_a_real_kernel_and_one_that_is_right():
    odd_name = "class E(BaseException): pass\n\n\nE.__name__ = ''\n\n\ndef f(x): raise E"
    right = "def f(x): return 2 * x"
    found = played(WRONG, odd_name, LEAVES, JUMP, THREAD, ASYNC, "from time import sleep as f", "f = 3", right)
    assert [o.done for o in found] == [False] * 8 + [True]
    assert [o.ename for o in found[:5]] == ["Wrong", "Error", "KeyboardInterrupt", "Tampered", "KeyboardInterrupt"]


def test_ipython_turned_inside_out_and_a_guard_of_ones_own():
    """`globals` and others of a learner's own cost nobody points."""
    found = played("def f(x): return 2 * x\n" + GUARD, IPYTHON)
    assert found[0].done and not found[0].overwritten
    [after] = found[1:]
    assert not after.done and after.ename == "KeyboardInterrupt"


@pytest.mark.parametrize("name", ["globals", "locals", "vars", "exec", "compile", "dict", "type", "__name__", "json"])
def test_a_learners_variable_with_a_name_of_the_grader_costs_nothing(guard, name):
    space = {"f": lambda x: 2 * x, name: 3}
    assert guard.check(space, CHECK, NEEDS)["done"] and space[name] == 3


def test_functions_that_end_the_kernel_get_nothing():
    ends = ["def f(x):\n    " + text.replace("\n", "\n    ") for text in EXITS]
    found = played(*ends, "def f(x): return 2 * x")
    assert [o.ename for o in found[:3]] == [DIED] * 3 and found[3].done


def test_huge_texts_and_names_do_not_reach_the_grader(few_bytes):
    """Neither the text of an exception, nor its name, nor a page that IPython would show."""
    big = [
        "raise ValueError('x' * 20_000_000)",
        "raise type('x' * 20_000_000, (BaseException,), {})",
        "get_ipython().payload_manager.write_payload({'source': 'page', 'data': 'x' * 20_000_000})",
        "def f(x): raise type('x' * 20_000_000, (BaseException,), {})('y' * 20_000_000)",
    ]
    found = run([*map(Step, big), Step("f(2)", "t", 1), Step("x = 1")], LIMITS)
    assert [o.done for o in found] == [False, False, True, True, False, True]
    assert all(len(o.ename) <= MOST and len(o.evalue) <= MOST for o in found)


@pytest.fixture
def few_bytes():
    """The grader itself needs little memory meanwhile."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000


def test_a_kernel_that_sends_too_much_is_not_listened_to(few_bytes):
    """By ways of its own, past what cuts the replies."""
    source = (
        "kernel = get_ipython().kernel\nreal = kernel.session.send\n"
        "def send(stream, kind, content=None, *args, **kwargs):\n"
        "    content = {**content, 'more': 'x' * 20_000_000} if kind == 'execute_reply' else content\n"
        "    return real(stream, kind, content, *args, **kwargs)\n"
        "kernel.session.send = send"
    )
    found = run([Step(source), Step("x = 1")], Limits(cell=2, megabytes=1500, grace=0.5))
    assert [o.ename for o in found] == [TIME, ""] and found[1].done  # in a kernel without the first


def test_an_ordinary_cell_whose_exception_has_no_text_costs_no_time():
    source = "class E(Exception):\n    def __str__(self): raise SystemExit\n\n\nraise E"
    found = run([Step(source), Step("x = 1")], LIMITS)
    assert found[1].done and not found[0].done and found[0].ename in ("SystemExit", "E")
