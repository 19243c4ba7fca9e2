"""Which cells of a handed-in notebook are run, and how a checker cell is run; without a kernel."""

import builtins
import json
import math
from pathlib import Path

import numpy as np
import pytest
from classroom import DOUBLE_TEST, HALF_TEST, IMPORTS, master, own_checkers, write

from trinity_mini.files import UserError
from trinity_mini.grade import points
from trinity_mini.grade_guard import CHECKERS, Guard
from trinity_mini.grade_plan import imports, master_of, plan, read_cells, watched
from trinity_mini.grade_run import DIED, NOT_RUN, TIME, Limits, Outcome, Step, _checked
from trinity_mini.student import student_notebook

NAMES = ["imports", "scale", "01-double", "01-double-test", "later", "01-total", "01-total-test", "01-half"]


@pytest.fixture
def handed(tmp_path):
    """The student's notebook as cells, ready to be changed."""
    path = tmp_path / "x.ipynb"
    path.write_bytes(student_notebook(master()))
    return read_cells(path)


def by_id(cells):
    return {c["id"]: c for c in cells}


def texts(made):
    return [step.source for step in made.steps]


# ---- the order of the cells --------------------------------------------------------------------------


def test_an_unchanged_notebook_is_the_masters_with_stubs(handed):
    made = plan(handed, master())
    whole = {c.id: c.source for c in master().cells}
    assert made.notes == [] and len(made.steps) == 9
    assert [s.name for s in made.steps if s.points] == ["01-double-test", "01-total-test", "01-half-test"]
    assert [s.source == whole[n] for n, s in zip(NAMES, made.steps, strict=False)] == [
        True, True, False, True, True, False, True, False
    ]  # fmt: skip
    check = made.steps[3]
    assert check.source == DOUBLE_TEST and check.hidden == (4, 5, 6, 7) and check.points == 2
    assert set(check.imports) == {
        "import numpy as np", *(f"from trinity_mini.checks import {n}" for n in ("called", "passed", "same"))
    }  # fmt: skip


def test_cells_that_were_moved_go_back_and_added_ones_stay_behind_theirs(handed):
    mine = by_id(handed)
    mine["01-half"]["source"] = "half = 1"
    new = [{"cell_type": "code", "id": f"n{i}", "source": f"new = {i}", "metadata": {}} for i in range(3)]
    note = {"cell_type": "markdown", "id": "m", "source": "my note", "metadata": {}}
    order = [new[0], mine["01-half"], new[1], note, new[2], mine["01-half-test"]]
    order += [c for c in handed if c["id"] not in ("01-half", "01-half-test")]
    found = texts(plan(order, master()))
    assert found[0] == "new = 0" and found[1] == IMPORTS
    assert found[-4:] == ["half = 1", "new = 1", "new = 2", HALF_TEST]


def test_lost_metadata_and_ids(handed):
    """As some editors save: what a cell is, is known by its text or by what it defines."""
    for cell in handed:
        cell["metadata"], cell["id"] = {}, ""
    handed[3]["source"] = "import math\n\n\ndef double(x):\n    return 2 * x"
    made = plan(handed, master())
    found = texts(made)
    assert found[2] == handed[3]["source"] and found[3] == DOUBLE_TEST
    assert found.count("scale = 3\nprint(scale)") == 1 and found.count(IMPORTS) == 1
    assert sum("def total" in text for text in found) == 1
    assert [s.points for s in made.steps if s.points] == [2, 3, 1]


def test_a_lost_grade_id_is_known_by_the_cells_id(handed):
    by_id(handed)["01-half"].update(metadata={}, source="half = 2")
    made = plan(handed, master())
    assert texts(made)[-2:] == ["half = 2", HALF_TEST] and made.notes == []


def test_a_solution_that_became_text(handed):
    by_id(handed)["01-half"].update(cell_type="markdown")
    made = plan(handed, master())
    assert made.notes == ["Cell 01-half is not a code cell any more, so it was not run."]
    assert not any("def half" in text for text in texts(made))


def test_a_missing_solution_is_told(handed):
    made = plan([c for c in handed if c["id"] != "01-half"], master())
    assert made.notes == ["Cell 01-half is missing."]


def test_copies_of_a_stub_alone_are_run_once(handed):
    stub = by_id(handed)["01-half"]
    made = plan([*handed, stub | {"id": "y"}], master())
    assert sum("def half" in text for text in texts(made)) == 1


def test_a_locked_cell_without_points_is_the_masters(handed):
    whole = master()
    whole.cells[2].metadata["nbgrader"] = {"grade": False, "solution": False, "locked": True, "grade_id": "01-scale"}
    by_id(handed)["scale"].update(source="scale = 4")
    made = plan(handed, whole)
    assert "scale = 4" not in texts(made) and made.notes == ["Locked cell 01-scale was changed and is restored."]


@pytest.mark.parametrize("end", ["\r\n", "\r", "  \n", "\t \r\n"])
@pytest.mark.parametrize("whole", [True, False])
def test_line_ends_and_blanks_of_other_editors_accuse_nobody(tmp_path, end, whole):
    """With and without grade_ids and ids, as one text and as lines."""
    notebook = json.loads(student_notebook(master()))
    for cell in notebook["cells"]:
        text = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        text = text.replace("\n", end) + (end if whole else "")
        cell["source"] = text if whole else text.splitlines(keepends=True)
        if not whole and " " not in end and "\t" not in end:
            cell["metadata"], cell["id"] = {}, ""
    made = plan(read_cells(write(notebook, tmp_path / "x.ipynb")), master())
    assert made.notes == [] and not any("\r" in text for text in texts(made))
    assert len(made.steps) == 9 and sum("def double" in text for text in texts(made)) == 1


def test_a_locked_cell_that_is_really_changed_is_told(handed):
    by_id(handed)["01-half-test"]["source"] += "\r\npass"
    assert plan(handed, master()).notes == ["Locked cell 01-half-test was changed and is restored."]


# ---- reading -----------------------------------------------------------------------------------------


def test_what_can_still_be_read(tmp_path):
    cell = {"cell_type": "code", "source": ["a = 1\n", "b"], "metadata": None}
    path = write("\ufeff" + json.dumps({"cells": [cell]}), tmp_path / "é ü.ipynb")
    assert read_cells(path) == [{"cell_type": "code", "id": "", "source": "a = 1\nb", "metadata": {}}]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", '{"cells": 3}', '{"cells": [3]}', '{"cells": [{"source": 3}]}', "[" * 100_000, "\x00"]
)
def test_what_is_no_notebook(text, tmp_path):
    with pytest.raises(UserError, match="is no notebook"):
        read_cells(write(text, tmp_path / "x.ipynb"))


def test_other_bytes_and_no_file(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is no notebook"):
        read_cells(tmp_path / "x")
    with pytest.raises(UserError, match="cannot be read"):
        read_cells(tmp_path / "y")


def test_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr("trinity_mini.grade_plan.LARGEST", 3)
    with pytest.raises(UserError, match="larger than"):
        read_cells(write("{   }", tmp_path / "x"))


def test_the_lesson_of_a_notebook(handed):
    other = master()
    for cell in other.cells:
        cell.id = f"o-{cell.id}"
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader.grade_id = f"02{cell.metadata.nbgrader.grade_id}"
    both = {Path("02_other.ipynb"): other, Path("01_tiny.ipynb"): master()}
    assert master_of("x.ipynb", handed, both) == Path("01_tiny.ipynb")
    assert master_of("02_other.ipynb", handed, both) == Path("01_tiny.ipynb")
    assert master_of("x.ipynb", [{"id": "o-later", "metadata": {}}], both) == Path("02_other.ipynb")
    assert master_of("ada 02_Other (1).ipynb", [], both) == Path("02_other.ipynb")
    assert master_of("x.ipynb", [], both) is None and master_of("x", [], {}) is None


# ---- what a checker cell relies on -------------------------------------------------------------------


def test_imports_are_those_that_bound_a_name_last():
    earlier = [
        "import numpy as np, os.path\nfrom trinity_mini.checks_x import check_a as a, b",
        "%magic",
        "from math import sqrt, log\nif True:\n    from trinity_mini import checks_x",
        "def f():\n    import json\n\n\ndef log(x): ...",
        "for sqrt in []:\n    pass",
    ]
    source = "a(np, os.path, json)\nchecks_x.c(b)\nlog(sqrt)"
    assert imports(source, earlier) == [
        "import numpy as np", "import os.path", "from trinity_mini.checks_x import check_a as a",
        "from trinity_mini.checks_x import b", "from trinity_mini import checks_x",
    ]  # fmt: skip
    assert imports("x", earlier) == []


def test_modules_that_checkers_rely_on():
    found = watched(master())
    assert {"numpy", "numpy.random", "numbers", "traceback"} <= {*found}
    assert not any(n.startswith(CHECKERS) for n in found)


# ---- a checker cell ----------------------------------------------------------------------------------


@pytest.fixture
def guard(monkeypatch):
    """A guard whose fresh modules are gone after the test."""
    with own_checkers():
        yield Guard(["numpy", "math", "no.such.module"])


def checked(guard, space, source, *needs):
    found = guard.check(space, source, needs)
    assert found.pop("done") is (not found["ename"])
    return found


def test_a_checker_cell_that_runs_to_its_end(guard):
    space = {"x": 2}
    found = checked(guard, space, "y = x + 1\nassert y == 3")
    assert found == {"ename": "", "evalue": "", "line": 0, "overwritten": []} and space["y"] == 3


@pytest.mark.parametrize(
    ("source", "ename", "evalue"),
    [
        ("\nassert 0, 'é'", "AssertionError", "é"),
        ("\nraise SystemExit", "SystemExit", ""),
        ("\nraise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("\nf()", "ZeroDivisionError", "division by zero"),
        ("\nraise Odd", "Odd", "(its text cannot be shown)"),
        ("\nraise ValueError('x' * 10_000)", "ValueError", "x" * 500),
    ],
)
def test_a_checker_cell_that_stops(guard, source, ename, evalue):
    space = {}
    exec("def f():\n    1 / 0\n\n\nclass Odd(Exception):\n    def __str__(self):\n        raise ValueError", space)
    assert checked(guard, space, source) == {"ename": ename, "evalue": evalue, "line": 2, "overwritten": []}


def test_what_was_overwritten_is_put_back_and_told(guard, monkeypatch):
    from trinity_mini import checks

    for module, name in ((builtins, "abs"), (np, "allclose"), (math, "sqrt"), (checks, "same")):
        monkeypatch.setattr(module, name, lambda *args: 0)
    space = {"same": lambda *args: None, "np": np}
    needs = ["from trinity_mini.checks import same", "import numpy as np"]
    source = "import math\nassert abs(-1) == 1 and math.sqrt(4) == 2\nsame(1, 2, 'x', 'h')"
    found = checked(guard, space, source, *needs)
    assert found["overwritten"] == ["builtins.abs", "math.sqrt", "numpy.allclose", "same", "trinity_mini.checks.same"]
    assert (found["ename"], found["line"]) == ("Wrong", 3)
    assert checked(guard, space, "same(1, 1, 'x', 'h')", *needs)["overwritten"] == []


def test_names_of_python_that_a_notebook_uses_otherwise(guard):
    """`sum = 3` harms no checker, and the learner has it back afterwards."""
    space = {"sum": 3, "max": max}
    assert checked(guard, space, "assert sum([1, 2]) == 3 and max(1, 2) == 2")["ename"] == ""
    assert space["sum"] == 3


WHOLE = {"done": True, "ename": "", "evalue": "", "line": 0, "overwritten": []}


@pytest.mark.parametrize(
    "found",
    [None, 3, "", {}, {"ename": ""}, *({k: v for k, v in WHOLE.items() if k != gone} for gone in ("done", "line")),
     *(WHOLE | {"done": x} for x in (False, 0, 1, None, "", "True")), WHOLE | {"line": None}],
)  # fmt: skip
def test_a_result_that_is_not_the_guards_is_no_pass(found):
    for reply in ({"status": "ok", "found": found}, {"status": "ok"}, {"status": "error", "ename": "", "found": found}):
        outcome = _checked(reply)
        assert not outcome.done and outcome.ename == "Error"
    assert _checked({"status": "ok", "found": WHOLE}).done


# ---- points ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(True, ""), ""),
        (Outcome(False, ""), "Error"),
        (Outcome(False, "", "why"), "Error: why"),
        (Outcome(False, " "), " "),
        (Outcome(False, "NotImplementedError"), "not done yet (before it, the cell (a): NameError: b)"),
        (Outcome(False, "Wrong", "x\n is  2"), "x is 2"),
        (Outcome(False, "AssertionError", "", 4), "the visible check passes, a hidden test does not: AssertionError"),
        (Outcome(False, "ValueError", "bad", 1), "ValueError: bad"),
        (Outcome(False, TIME, "8"), "took longer than 8 s"),
        (Outcome(False, DIED), "the kernel stopped"),
        (Outcome(), "not run: the 900 s of the notebook were up"),
        (Outcome(False, NOT_RUN), "not run"),
    ],
)
def test_points_and_messages(outcome, message):
    steps = plan([], master())
    steps.steps, steps.notes = [Step("\n a\nb"), Step("check", "t", 3, (), (4,))], []
    rows, notes = points(steps, [Outcome(False, "NameError", "b"), outcome], Limits())
    [(name, got, most, text)] = rows
    assert (name, got, most) == ("t", 3 if outcome.done else 0, 3) and text.startswith(message)
    assert notes == ["Stopped: the cell (a): NameError: b"]
