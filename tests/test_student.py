"""Student notebooks: what is taken out, what is kept, and that the shipped ones are what their masters give."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from classroom import DOUBLE_TEST, checker, lessons, master, solution, write

from trinity_mini import __main__ as cli
from trinity_mini.files import ROOT, UserError
from trinity_mini.grade import grade_file
from trinity_mini.grade_run import Limits
from trinity_mini.student import (
    NOTEBOOKS,
    check,
    generate,
    grading,
    make,
    masters,
    problems,
    stale,
    stub,
    student_notebook,
)

INSERTED = re.compile(r"\n *# YOUR CODE HERE\n *raise NotImplementedError(?=\n|\Z)")
REGION = re.compile(r"\n *### BEGIN SOLUTION\n.*?### END SOLUTION(?=\n|\Z)", re.DOTALL)
HIDDEN = re.compile(r"\n### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS", re.DOTALL)
MASTERS = {path.name: notebook for path, notebook in masters().items()}


@pytest.fixture
def folder(tmp_path):
    return lessons(tmp_path / "my course" / "notebooks")


def student_of(folder, name="01_tiny.ipynb"):
    return nbformat.read(folder / "student" / name, as_version=4)


# ---- a small lesson ----------------------------------------------------------------------------------


def test_the_student_version_of_a_lesson(folder):
    assert [path.name for path in generate(folder)] == ["01_tiny.ipynb"]
    assert [p.name for p in (folder / "student").iterdir()] == ["01_tiny.ipynb"]
    made, whole = student_of(folder), master()
    nbformat.validate(made)
    assert [c.id for c in made.cells] == [c.id for c in whole.cells]
    assert [grading(c) for c in made.cells] == [grading(c) for c in whole.cells]
    assert all(not c.outputs and c.execution_count is None for c in made.cells if c.cell_type == "code")
    source = {c.id: c.source for c in made.cells}
    assert source["01-double"] == (
        'def double(x: float) -> float:\n    """Twice x."""\n    # YOUR CODE HERE\n    raise NotImplementedError'
    )
    assert source["01-total"].endswith('    # YOUR CODE HERE\n    raise NotImplementedError\n\n\nprint("defined")')
    assert source["01-double-test"] == DOUBLE_TEST[: DOUBLE_TEST.index("\n### BEGIN")]
    assert source["scale"] == "scale = 3\nprint(scale)"
    text = json.dumps(made)
    assert "SOLUTION" not in text and "HIDDEN" not in text and "x + x" not in text


def test_metadata_that_stays_and_goes(folder):
    generate(folder)
    made = student_of(folder)
    assert made.metadata == {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    }
    kept = {c.id: {k: v for k, v in c.metadata.items() if k != "nbgrader"} for c in made.cells}
    assert kept["scale"] == {"tags": ["short"]} and kept["later"] == {}
    assert kept["01-double"] == {"deletable": False}
    assert kept["01-double-test"] == {"deletable": False, "editable": False}


def test_links_lead_to_the_same_place(folder):
    generate(folder)
    words = student_of(folder).cells[0].source
    for link in (
        "[start](../00_start_here.ipynb)", "[itself](01_tiny.ipynb#two)", "[a file](<../../data/x y.csv>)",
        "![a picture](../images/a.png)", "[far](https://a.org/b)", "[here](#two)", '<img src="../images/b.png">',
        "`a[i](x)`", "\nb[j](y)\n", "\n[note]: ../notes.md\n",
    ):  # fmt: skip
        assert link in words, link


def test_the_result_is_the_same_byte_for_byte(folder):
    generate(folder)
    path = folder / "student" / "01_tiny.ipynb"
    first = path.read_bytes()
    assert first.endswith(b"}\n") and b"\r" not in first
    again = nbformat.read(folder / "01_tiny.ipynb", as_version=4)
    for cell in again.cells:  # another run of the master, on another machine
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], 77
    again.metadata.language_info.version = "3.12.1"
    nbformat.write(again, folder / "01_tiny.ipynb")
    assert generate(folder) == [] and path.read_bytes() == first
    assert generate(folder) == [] and stale(folder) == []


def test_stale_ones_are_named(folder, capsys):
    with pytest.raises(UserError, match=r"01_tiny\.ipynb: run `python -m trinity_mini student`\.$"):
        check(folder)
    assert not (folder / "student").exists()
    [row] = make(False, folder)
    assert (row["name"], row["value"], row["n"], row["unit"]) == ("01_tiny.ipynb", 6, 3, "points")
    assert "wrote " in capsys.readouterr().out
    check(folder)
    path = folder / "student" / "01_tiny.ipynb"
    path.write_bytes(path.read_bytes().replace(b"Twice x", b"Double x"))
    write("{}", folder / "student" / "02_gone.ipynb")
    write("{}", folder / "student" / "mine.ipynb")
    assert [p.name for p in stale(folder)] == ["01_tiny.ipynb", "02_gone.ipynb"]
    with pytest.raises(UserError, match=r"01_tiny\.ipynb, 02_gone\.ipynb"):
        make(True, folder)


def test_the_command(folder, monkeypatch, capsys):
    monkeypatch.setattr("trinity_mini.student.make", lambda check_only: make(check_only, folder))
    assert cli.main(["student", "--check"]) == 2
    assert capsys.readouterr().err.endswith("01_tiny.ipynb: run `python -m trinity_mini student`.\n")
    assert cli.main(["student", "--json", str(folder / "rows.json")]) == 0
    assert json.loads((folder / "rows.json").read_text(encoding="utf-8"))[0]["name"] == "01_tiny.ipynb"
    assert cli.main(["student", "--check"]) == 0


def test_one_without_a_lesson_is_removed(folder):
    generate(folder)
    (folder / "student" / "01_tiny.ipynb").rename(folder / "student" / "02_gone.ipynb")
    generate(folder)
    assert [p.name for p in (folder / "student").iterdir()] == ["01_tiny.ipynb"]


@pytest.mark.parametrize("name", ["01_tiny.ipynb", "02_gone.ipynb"])
def test_work_of_a_learner_is_not_overwritten(folder, name):
    generate(folder)
    made = student_of(folder)
    made.cells[1].execution_count = 3
    made.cells[3].source = "def double(x): return 2 * x"
    nbformat.write(made, folder / "student" / name)
    before = (folder / "student" / name).read_bytes()
    with pytest.raises(UserError, match=rf"{name} holds cells that were run: move it elsewhere"):
        generate(folder)
    assert (folder / "student" / name).read_bytes() == before


def doctored(change):
    notebook = master()
    change({c.id: c for c in notebook.cells})
    return notebook


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["01-double-test"].metadata.nbgrader.update(points=0), "must be locked and have points"),
        (lambda c: c["01-double-test"].metadata.nbgrader.pop("points"), "must be locked and have points"),
        (lambda c: c["01-double-test"].metadata.nbgrader.update(points=1.5), "a whole number above 0"),
        (lambda c: c["01-double-test"].metadata.nbgrader.update(locked=False), "must be locked"),
        (lambda c: c["01-double-test"].metadata.nbgrader.update(grade_id="01-total"), "also in 01_x.ipynb"),
        (lambda c: c["01-double-test"].metadata.nbgrader.pop("grade_id"), "the grade_id is missing"),
        (lambda c: c["01-double-test"].metadata.nbgrader.update(solution=True), "belongs in each solution cell"),
        (lambda c: c["01-double"].update(source="def double(x): ..."), "a solution region belongs in"),
        (lambda c: c["scale"].update(source="### BEGIN SOLUTION\n1\n### END SOLUTION"), "a solution region belongs"),
        (lambda c: c["scale"].update(source="### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS"), "belong in graded"),
        (lambda c: c["01-half"].update(source=c["01-half"].source[:-20]), "BEGIN SOLUTION in line 3 has no partner"),
        (lambda c: c["01-half"].update(source="### END SOLUTION\n1"), "END SOLUTION in line 1 has no partner"),
        (lambda c: c["01-half"].update(source="### BEGIN SOLUTION\n" * 2 + "### END SOLUTION"), "line 2 has no"),
        (lambda c: c["01-total-test"].update(source="### BEGIN HIDDEN TESTS\n1"), "TESTS in line 1 has no partner"),
    ],
)
def test_a_master_that_is_not_in_order(change, says, tmp_path):
    path = tmp_path / "01_x.ipynb"
    found = problems({path: doctored(change)})
    assert len(found) >= 1 and says in found[0]
    write(doctored(change), path)
    with pytest.raises(UserError, match="correct the master"):
        masters(tmp_path)


def test_a_grade_id_of_two_lessons(tmp_path):
    write(master(), tmp_path / "01_x.ipynb")
    write(master(), tmp_path / "02_y.ipynb")
    with pytest.raises(UserError, match=r"02_y.ipynb, cell 01-double: .* also in 01_x.ipynb \(and 5 more\)"):
        masters(tmp_path)


def test_a_master_that_cannot_be_read(tmp_path):
    write("{", tmp_path / "01_x.ipynb")
    with pytest.raises(UserError, match="cannot read .*01_x.ipynb"):
        masters(tmp_path)
    notebook = master()
    notebook.cells[1].id = notebook.cells[2].id
    write(notebook, tmp_path / "01_x.ipynb")
    with pytest.raises(UserError, match="two with the same"):
        masters(tmp_path)


def test_several_regions_of_a_cell_and_their_indents():
    source = "class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION\n\n    def f(self):\n"
    source += "        ### BEGIN SOLUTION\n        return 1\n        ### END SOLUTION"
    assert stub(source) == (
        "class A:\n    # YOUR CODE HERE\n    raise NotImplementedError\n\n    def f(self):\n"
        "        # YOUR CODE HERE\n        raise NotImplementedError"
    )


# ---- the shipped lessons -----------------------------------------------------------------------------


def blanks(notebook: dict, given: dict) -> list[str]:
    """Cells of a student notebook that are not the master's with blanks; by other means than the generator's."""
    wrong = []
    for old, new in zip(notebook["cells"], given["cells"], strict=True):
        a, b = ("".join(c["source"]) for c in (old, new))
        g = old["metadata"].get("nbgrader", {})
        if g.get("solution"):
            a, b = REGION.subn("", "\n" + a), INSERTED.subn("", "\n" + b)
        elif g.get("grade"):
            a = HIDDEN.sub("", a).rstrip()
        elif old["cell_type"] == "markdown":
            a, b = (re.sub(r"(\]\(<?|=\"|\]: )(\.\./)+", r"\1", text) for text in (a, b))
        if a != b or (old["id"], g) != (new["id"], new["metadata"].get("nbgrader", {})):
            wrong.append(new["id"])
    return wrong


def test_blanks_sees_a_changed_cell():
    given = json.loads(student_notebook(master()))
    assert blanks(master(), given) == []
    for i in (0, 2, 3, 4):
        changed = json.loads(json.dumps(given))
        changed["cells"][i]["source"] = ["# more\n", *changed["cells"][i]["source"]]
        assert blanks(master(), changed) == [given["cells"][i]["id"]]


def test_no_student_notebook_is_stale():
    assert [path.name for path in stale()] == [], "run: python -m trinity_mini student"


@pytest.mark.parametrize("name", MASTERS)
def test_a_stub_is_its_solution_with_blanks(name):
    given = json.loads(student_notebook(MASTERS[name], [*MASTERS]))
    assert blanks(MASTERS[name], given) == []


@pytest.mark.parametrize("name", MASTERS)
def test_each_exercise_is_a_stub_and_a_checker(name):
    kinds = [(g["grade_id"], bool(g.get("grade"))) for c in MASTERS[name].cells if (g := grading(c))]
    assert len({g for g, _ in kinds}) == len(kinds) >= 2
    checked = [g.removesuffix("-test") for g, graded in kinds if graded]
    assert checked == [g for g, graded in kinds if not graded]
    assert all(g.startswith(f"{name[:2]}-") for g in checked)


@pytest.mark.parametrize("name", MASTERS)
def test_a_student_notebook_runs_with_nothing_but_gaps(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(student_notebook(MASTERS[name], [*MASTERS]))
    graded = grade_file(path, name, {NOTEBOOKS / name: MASTERS[name]}, Limits(cell=300, notebook=1200))
    assert graded.notes == [] and {row.message for row in graded.rows} == {"not done yet"}


# ---- nbgrader itself ---------------------------------------------------------------------------------


@pytest.mark.skipif(not importlib.util.find_spec("nbgrader"), reason="the extra classroom is not installed")
def test_nbgrader_takes_the_masters(tmp_path):
    """It validates them, and its stubs are ours but for the brackets of NotImplementedError()."""
    found = {"01_tiny.ipynb": master()} | MASTERS

    def nbgrader(*args):
        places = {  # it calls alembic by its bare name
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        }
        env = os.environ | places
        done = subprocess.run([sys.executable, "-m", "nbgrader", *args], cwd=tmp_path, env=env, capture_output=True,
                              encoding="utf-8", timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    (tmp_path / "nbgrader_config.py").write_text("c = get_config()\nc.CourseDirectory.course_id = 'trinity'\n")
    for name, notebook in found.items():
        write(notebook, tmp_path / "source" / name[:2] / name)
        nbgrader("generate_assignment", name[:2], "--create", "--force")
        theirs = nbformat.read(tmp_path / "release" / name[:2] / name, as_version=4)
        ours = json.loads(student_notebook(notebook))
        for a, b in zip(theirs.cells, ours["cells"], strict=True):
            if b["cell_type"] == "code":
                assert a.source.replace("NotImplementedError()", "NotImplementedError").rstrip() == "".join(b["source"])
            assert (a.id, a.metadata.get("nbgrader", {}).get("grade_id")) == (b["id"], grading(b).get("grade_id"))
    said = nbgrader("validate", str(write(master(), tmp_path / "own" / "01_tiny.ipynb")))
    assert "Success" in said


def test_the_metadata_is_of_nbgraders_third_schema():
    """What nbgrader asks of a cell, for those without it; the keys are those of its schema 3."""
    needed = {"schema_version", "grade", "solution", "locked", "grade_id", "task"}
    for notebook in [master(), *MASTERS.values()]:
        for cell in notebook.cells:
            g = grading(cell)
            assert not g or needed <= set(g) and g["schema_version"] == 3 and g["task"] is False
            assert not g or re.fullmatch(r"[\w-]+", g["grade_id"])


def test_the_helpers_make_what_nbformat_takes():
    for cell in (solution("x", "1"), checker("x-test", "1", 1)):
        nbformat.validate(nbformat.v4.new_notebook(cells=[cell]))


@pytest.mark.parametrize("check_only", [True, False])
def test_without_lessons_nothing_is_removed(tmp_path, check_only):
    (tmp_path / "student").mkdir()
    kept = tmp_path / "student" / "01_mine.ipynb"
    kept.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="holds no lesson .* nothing was changed"):
        make(check_only, tmp_path)
    assert kept.exists()
