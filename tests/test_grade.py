"""Grading: what a class may hand in, in real kernels that loop, die and are flooded."""

import csv
import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import ModuleType

import pytest
from classroom import lessons, master, write

from trinity_mini import __main__ as cli
from trinity_mini import grade
from trinity_mini.files import ROOT, UserError
from trinity_mini.grade import found_files, grade_files
from trinity_mini.grade_book import COLUMNS, Graded, Row, as_csv, names_of, report, report_name
from trinity_mini.grade_guard import Guard
from trinity_mini.grade_run import DIED, NOT_RUN, TIME, Kernel, Limits, NotStarted, Step, run
from trinity_mini.student import masters, student_notebook

GOOD = {
    "01-double": "def double(x):\n    return 2 * x",
    "01-total": "def total(values):\n    return helper(values)",
    "01-half": "def half(x):\n    return x / 2",
}
HELPER = "def helper(values):\n    return float(sum(values))"
FOREVER = "import time\ntime.sleep(1000)"  # answers an interrupt, costs no processor time
STUBBORN = "import time\nwhile True:\n    try:\n        time.sleep(1000)\n    except BaseException:\n        pass"
LIMITS = Limits(cell=8, notebook=150, megabytes=1500, grace=2)


class HandIn:
    """A student notebook with some cells filled in."""

    def __init__(self, **sources):
        self.notebook = json.loads(student_notebook(master()))
        self.fill(**{k.replace("_", "-"): v for k, v in sources.items()})

    @property
    def cells(self):
        return self.notebook["cells"]

    def at(self, name):
        return next(i for i, c in enumerate(self.cells) if c["id"] == name)

    def fill(self, **sources):
        for name, source in sources.items():
            self.cells[self.at(name)]["source"] = source
        return self

    def add(self, after, source, new_id="new"):
        cell = {"cell_type": "code", "id": new_id, "metadata": {}, "source": source, "outputs": []}
        self.cells.insert(self.at(after) + 1, cell | {"execution_count": None})
        return self

    def remove(self, *names):
        self.notebook["cells"] = [c for c in self.cells if c["id"] not in names]
        return self

    def copy(self, name, source, new_id="copied"):
        """As JupyterLab copies a cell: a new id, the same metadata."""
        i = self.at(name)
        self.cells.insert(i + 1, self.cells[i] | {"source": source, "id": new_id})
        return self


def good():
    return HandIn().fill(**GOOD).add("imports", HELPER)


CHEAT = """
import builtins
import trinity_mini.checks
same = called = passed = lambda *a, **k: 7
trinity_mini.checks.same = trinity_mini.checks.called = same
builtins.abs = builtins.sum = lambda *a: 0
np.allclose = lambda *a: True
sum = 3
"""
HANDED_IN = {
    "Zoë Müller/01_tiny.ipynb": good(),
    "slow and deadly.ipynb": good().add("imports", FOREVER, "s").add("s", "import os, signal\nos.kill(os.getpid(), 9)")
    .add("later", STUBBORN, "t").fill(**{"01-half": "def half(x):\n    import os\n    os._exit(0)"}),
    "cheat.ipynb": HandIn(imports="import numpy as np").add("01-double", CHEAT).fill(
        **{"01-double": "def double(x):\n    return 0", "01-double-test": "pass", "01-total": "total = len"}
    ),
    "muddle.ipynb": good().remove("01-total-test", "scale", "imports")
    .copy("01-half", "def half(x):\n    return x", "a").copy("01-double", "# YOUR CODE HERE", "b")
    .copy("01-double-test", "double(1)", "c"),
    "flood.ipynb": good().add("later", "while True:\n    print('x' * 10_000)").fill(
        **{"01-half": "def half(x):\n    print('é' * 5_000_000)\n    raise ValueError('=1+1 |`' * 100_000)"}
    ),
    "hidden.ipynb": HandIn(**{"01-double": "def double(x):\n    return 2 * x if x else 1"}).fill(
        **{"01-total": "def total(values) return 0", "01-half": "def half(x):\n    return bytearray(3 * 10**9)"}
    ),
    "emptied 01_tiny.ipynb": HandIn().remove(*[c.id for c in master().cells]),
    "01_tiny (copy).ipynb": '{"cells": [',
    "other.ipynb": '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    "a text.ipynb": "Dear teacher,",
}  # fmt: skip


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a course")
    lessons(folder / "notebooks")
    for name, handed in HANDED_IN.items():
        write(handed.notebook if isinstance(handed, HandIn) else handed, folder / "handed in" / name)
    (folder / "handed in" / "nobody").mkdir()
    write("{}", folder / "handed in" / "Zoë Müller" / ".ipynb_checkpoints" / "01_tiny-checkpoint.ipynb")
    return folder


@pytest.fixture(scope="module")
def graded(course):
    """All of them, graded once: name without .ipynb -> what it got."""
    done = grade_files([course / "handed in"], course / "out", LIMITS, course / "notebooks")
    return {g.file.removesuffix(".ipynb").removeprefix("handed in/"): g for g in done}


def rows(g):
    return {row.grade_id: (row.points, row.message) for row in g.rows}


def test_all_right_gets_all_points(graded):
    g = graded["Zoë Müller/01_tiny"]
    assert (g.lesson, g.points, g.most, g.notes) == ("01_tiny", 6, 6, [])
    assert [row.message for row in g.rows] == ["", "", ""]


def test_loops_and_deaths_cost_only_their_own_cells(graded):
    g = graded["slow and deadly"]
    got = rows(g)
    assert (got["01-double-test"], got["01-total-test"]) == ((2, ""), (3, ""))
    assert got["01-half-test"] == (0, "the kernel stopped: exit, a crash, or too much memory")
    said = "\n".join(g.notes)
    assert said.count("took longer than 8 s") == 2 and said.count("the kernel stopped") == 1


def test_overwritten_checkers_are_restored_and_told(graded):
    g = graded["cheat"]
    got = rows(g)
    assert got["01-double-test"][0] == 0
    assert got["01-double-test"][1].startswith("double(x) is 0, and ")
    assert got["01-total-test"][0] == 0 and got["01-total-test"][1].startswith("total(values) is 7, and ")
    assert got["01-half-test"] == (0, "not done yet")
    [note] = [n for n in g.notes if "Overwritten" in n]
    for name in ("builtins.abs", "builtins.sum", "numpy.allclose", "called", "trinity_mini.checks.same"):
        assert name in note
    assert "Locked cell 01-double-test was changed and is restored." in g.notes


def test_deleted_and_duplicated_cells(graded):
    g = graded["muddle"]
    got = rows(g)
    assert (got["01-double-test"], got["01-total-test"]) == ((2, ""), (3, ""))
    assert got["01-half-test"] == (0, "half(3) is 3, and 1.5 is wanted. Hint: divide.")  # the last one counts
    assert "Locked cell 01-total-test was missing and is restored." in g.notes
    assert "Locked cell 01-double-test was there 2 times and is run once." in g.notes
    assert [n for n in g.notes if n.startswith("Cell 01-half is there 2 times")]


def test_floods(graded):
    g = graded["flood"]
    got = rows(g)
    assert got["01-double-test"] == (2, "") and got["01-total-test"] == (3, "")
    points, message = got["01-half-test"]
    assert points == 0 and message.startswith("half(3) stopped in line 3 of its cell with ValueError: =1+1")
    assert len(message) < 600
    assert "Stopped: the cell (while True:): took longer than 8 s" in g.notes


def test_hidden_tests_syntax_errors_and_memory(graded):
    got = rows(graded["hidden"])
    assert got["01-double-test"] == (0, "the visible check passes, a hidden test does not: AssertionError")
    points, message = got["01-total-test"]
    assert points == 0 and message.startswith("NameError: name 'total' is not defined (before it, 01-total: SyntaxErr")
    assert got["01-half-test"][1].startswith("half(3) stopped in line 2 of its cell with MemoryError")


@pytest.mark.parametrize(
    ("name", "lesson", "message"),
    [
        ("emptied 01_tiny", "01_tiny", "the notebook is empty"),
        ("01_tiny (copy)", "01_tiny", "is no notebook (JSONDecodeError)"),
        ("other", "", "belongs to no lesson"),
        ("a text", "", "is no notebook (JSONDecodeError)"),
        ("nobody", "", "no notebook in this folder"),
    ],
)
def test_what_cannot_be_run_is_told(graded, name, lesson, message):
    g = graded[name]
    assert (g.lesson, g.points, g.most) == (lesson, 0, 6 if lesson else 0)
    assert all(row.message.startswith(message) for row in g.rows) and len(g.rows) == (3 if lesson else 1)


def test_the_csv_and_the_reports(graded, course):
    with open(course / "out" / "grades.csv", encoding="utf-8", newline="") as f:
        header, *lines = csv.reader(f)
    assert tuple(header) == COLUMNS
    assert len(lines) == 8 * 3 + 3 and [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert ["Zoë Müller/01_tiny.ipynb", "01_tiny", "01-total-test", "3", "3", ""] in lines
    assert not any(cell.startswith(("=", "+", "-", "@")) for line in lines for cell in line)
    reports = {p.name: p.read_text(encoding="utf-8") for p in (course / "out" / "reports").iterdir()}
    assert len(reports) == len(graded)
    assert "**6 of 6 points**" in reports["Zoë_Müller_01_tiny.md"]
    cheat = reports["cheat.md"]
    assert cheat.startswith("# cheat.ipynb\n\nLesson 01_tiny: **0 of 6 points**\n") and "Noticed:" in cheat
    assert "| 01-double-test | 0 of 2 | `double(x) is 0, and " in cheat


def test_no_kernel_is_left(graded):
    if sys.platform == "linux":
        assert not kernels()


def kernels():
    """Process ids of grading kernels that this process or its children have started and not ended."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as f:
                command = f.read().split(b"\0")
            with open(f"/proc/{entry}/environ", "rb") as f:
                mine = f"TRINITY_TEST={os.getpid()}".encode() in f.read().split(b"\0")
        except (OSError, ValueError):
            continue
        if mine and b"trinity_mini.grade_kernel" in command:
            found.append(int(entry))
    return found


@pytest.fixture(autouse=True, scope="module")
def marked():
    os.environ["TRINITY_TEST"] = str(os.getpid())
    yield
    del os.environ["TRINITY_TEST"]


def test_the_time_of_a_whole_notebook_and_a_text_that_cannot_be_sent():
    steps = [Step("x = 1"), Step("raise ValueError('\\udc80')"), Step(FOREVER), Step("assert x", "t", 1)]
    found = run(steps, replace(LIMITS, cell=60, notebook=4))
    assert [(o.done, o.ename) for o in found] == [(True, ""), (False, "ValueError"), (False, TIME), (False, NOT_RUN)]
    assert 0 < float(found[2].evalue) <= 4


@pytest.mark.parametrize(
    "trick",
    [
        "get_ipython().kernel.session.key = b'other'",
        "get_ipython().kernel.session.pack = lambda o: b'[1,2]'",
        "get_ipython().payload_manager.read_payload = lambda: [1]",
    ],
)
def test_a_kernel_that_sends_nonsense_costs_its_own_cells(trick):
    found = run([Step("x = 1"), Step(trick), Step("y = 2"), Step("assert y == 2", "t", 1)], replace(LIMITS, restarts=3))
    assert len(found) == 4 and found[0].done
    assert found[3].done or DIED in [o.ename for o in found]


def test_what_no_kernel_can_be_sent_does_not_stop_the_grading(tmp_path, course):
    handed = good().add("imports", "x = '\ud800'")
    write("", tmp_path / "in" / "a.ipynb")
    (tmp_path / "in" / "a.ipynb").write_text(json.dumps(handed.notebook), encoding="utf-8")
    write(good().notebook, tmp_path / "in" / "b.ipynb")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "in" / "c.ipynb")
    found = {g.file: g for g in grade_files([tmp_path / "in"], tmp_path / "out", LIMITS, course / "notebooks")}
    assert found["in/b.ipynb"].points == found["in/b.ipynb"].most == found["in/a.ipynb"].points
    if "in/c.ipynb" in found:
        assert found["in/c.ipynb"].rows[0].message.startswith("is no file")


def test_one_notebook_that_breaks_the_grader_does_not_stop_the_others(tmp_path, course, monkeypatch):
    for name in ("a.ipynb", "b.ipynb"):
        write(good().notebook, tmp_path / "in" / name)
    real = grade.grade_file

    def breaks(path, *args):
        if path.name == "a.ipynb":
            raise RuntimeError("no idea")
        return real(path, *args)

    monkeypatch.setattr(grade, "grade_file", breaks)
    a, b = grade_files([tmp_path / "in"], tmp_path / "out", LIMITS, course / "notebooks")
    assert a.rows[0].message == "the grader could not run it (RuntimeError: no idea)" and b.points == b.most


def test_a_kernel_that_stops_too_often():
    found = run([Step("x = 1"), *[Step("import os; os._exit(1)")] * 3, Step("x", "t", 1)], replace(LIMITS, restarts=1))
    assert [o.ename for o in found] == ["", DIED, DIED, NOT_RUN, NOT_RUN]


def test_a_kernel_that_cannot_be_started():
    with pytest.raises(UserError, match="no kernel can be started"):
        run([Step("1")], replace(LIMITS, start=0.01))


def test_a_kernel_has_no_keys_and_a_folder_of_its_own(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not for you")
    with Kernel(LIMITS) as kernel:
        code = "import os; raise ValueError([k for k in os.environ if 'KEY' in k], os.listdir())"
        assert kernel.ask(code, 30)["evalue"] == "([], [])"
        assert kernel.ask("input()", 30)["ename"] == "StdinNotImplementedError"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_keeps_what_is_finished(course, tmp_path):
    write(good().notebook, tmp_path / "class" / "a.ipynb")
    write(HandIn(**{"01-double": FOREVER}).notebook, tmp_path / "class" / "b.ipynb")
    code = (
        "import sys\nfrom pathlib import Path\nfrom trinity_mini.grade import Limits, grade_aloud\n"
        "a, b, c = map(Path, sys.argv[1:])\ngrade_aloud([a], b, Limits(cell=100, megabytes=1500), c)\n"
    )

    def default():
        signal.signal(signal.SIGINT, signal.default_int_handler)

    args = [sys.executable, "-c", code, tmp_path / "class", tmp_path / "out", course / "notebooks"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(args, cwd=ROOT, preexec_fn=default, **pipes) as p:
        try:
            assert p.stdout.readline().startswith("1/2  class/a.ipynb  01_tiny  6 of 6 points  ")
            time.sleep(1)
            p.send_signal(signal.SIGINT)
            said, where = p.stderr.read(), tmp_path / "out" / "grades.csv"
            assert (p.wait(60), said.strip()) == (130, f"stopped: 1 of 2 are graded, in {where}.")
        finally:
            p.kill()
    assert (tmp_path / "out" / "grades.csv").read_text(encoding="utf-8").count("a.ipynb") == 3
    end = time.monotonic() + 20
    while sys.platform == "linux" and kernels():
        assert time.monotonic() < end, "a kernel is left"
        time.sleep(0.2)


# ---- without a kernel --------------------------------------------------------------------------------


def test_unknown_paths_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    for args, says in [
        (["nowhere"], "error: nowhere is no file or folder: check the path.\n"),
        (["nothing"], "error: nothing holds no notebook: name a folder or files with what was handed in.\n"),
    ]:
        assert cli.main(["grade", *args]) == 2
        assert capsys.readouterr().err.startswith(says)
    write("", tmp_path / "file")
    assert cli.main(["grade", "nothing", "--out", "file"]) == 2
    assert "give a file in a folder that can be written" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "nothing"]


def test_the_command(course, tmp_path, monkeypatch, capsys):
    found = masters(course / "notebooks")
    monkeypatch.setattr("trinity_mini.grade.masters", lambda: found)
    monkeypatch.chdir(tmp_path)
    write(HANDED_IN["emptied 01_tiny.ipynb"].notebook, tmp_path / "bo ben" / "01_tiny.ipynb")
    assert cli.main(["grade", "bo ben", "--json", "rows.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1/1  bo ben/01_tiny.ipynb  01_tiny  0 of 6 points  0 s\n")
    assert "hold the grades of 1 files" in out
    kept = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    row = {"name": "bo ben/01_tiny.ipynb", "family": "01-double-test", "value": 0, "se": None, "n": 2, "unit": "points"}
    assert kept[0] == row and len(kept) == 3
    made = {p.relative_to(tmp_path / "grades").as_posix() for p in (tmp_path / "grades").rglob("*.*")}
    assert made == {"grades.csv", "totals.csv", ".files.sqlite", "reports/bo_ben_01_tiny.md"}


def test_without_masters_nothing_is_graded(tmp_path):
    write("{}", tmp_path / "a.ipynb")
    with pytest.raises(UserError, match="no master notebook"):
        next(grade_files([tmp_path], tmp_path / "out", LIMITS, tmp_path))


def test_files_are_found_once_and_told_apart(tmp_path):
    for name in ("ada/04.ipynb", "bo/04.ipynb", "bo/.ipynb_checkpoints/04.ipynb"):
        write("{}", tmp_path / name)
    write("x", tmp_path / "bo" / "notes.txt")
    (tmp_path / "cy").mkdir()
    found = found_files([tmp_path, tmp_path / "bo" / ".." / "bo" / "04.ipynb"])
    assert names_of(found) == ["ada/04.ipynb", "bo/04.ipynb", "cy"]
    assert names_of(found_files([tmp_path / "bo" / "notes.txt"])) == ["bo/notes.txt"]


def test_report_names_differ():
    taken = set()
    names = [report_name(n, taken) for n in ("a/b.ipynb", "a_b.ipynb", "A b.ipynb", "日本/é.ipynb", "../..", "x" * 300)]
    assert names == ["a_b.md", "a_b-2.md", "A_b-3.md", "日本_é.md", "notebook.md", "x" * 80 + ".md"]


def test_what_is_written_is_plain():
    g = Graded("=cmd\udc80.ipynb", "01_x", [Row("01-a", 0, 1, "a | `b`\x1b[0m\n=c")], ["`x`\u2028y"])
    text = as_csv([g]).decode()
    assert text.splitlines()[1].startswith("'=cmd") and "\x1b" not in text and len(text.splitlines()) == 2
    lines = report(g).splitlines()
    assert r"| 01-a | 0 of 1 | `a \| 'b' [0m =c` |" in lines and "- `'x' y`" in lines


def test_a_library_that_wraps_its_own_function_is_put_back_without_a_note(monkeypatch):
    """torch does so with torch.manual_seed when its compiler is imported."""
    library = ModuleType("some_library")
    library.f = before = lambda: 1
    monkeypatch.setitem(sys.modules, "some_library", library)
    guard = Guard(["some_library"])
    library.f = functools.wraps(before)(lambda: 2)
    assert guard.restored() == [] and library.f is before
    library.f = lambda: 3
    assert guard.restored() == ["some_library.f"] and library.f is before


def test_a_second_run_keeps_the_lines_of_other_files(course, tmp_path):
    for name in ("ann", "bob"):
        write(good().notebook, tmp_path / name / "01_tiny.ipynb")
    for paths in (["ann"], ["bob"], ["ann"]):
        list(grade_files([tmp_path / p for p in paths], tmp_path / "out", LIMITS, course / "notebooks"))
    text = (tmp_path / "out" / "totals.csv").read_text(encoding="utf-8")
    assert list(csv.reader(text.splitlines())) == [
        ["student file", "lesson", "points", "max"],
        ["bob/01_tiny.ipynb", "01_tiny", "6", "6"],
        ["ann/01_tiny.ipynb", "01_tiny", "6", "6"],
    ]
    lines = (tmp_path / "out" / "grades.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3 and sum(line.startswith("bob/") for line in lines) == 3
    assert {p.name for p in (tmp_path / "out" / "reports").iterdir()} == {"ann_01_tiny.md", "bob_01_tiny.md"}


def test_a_kernel_that_does_not_start_stops_nobody_else(course, tmp_path, monkeypatch):
    for name in ("a.ipynb", "b.ipynb"):
        write(good().notebook, tmp_path / name)
    real, starts = grade.grade_file, []

    def slow(path, *args):
        starts.append(path.name)
        if path.name == "a.ipynb" or len(starts) == 3:
            raise NotStarted("no kernel can be started (TimeUp): is the machine busy? Try again.")
        return real(path, *args)

    monkeypatch.setattr(grade, "grade_file", slow)
    a, b = grade_files([tmp_path], tmp_path / "out", LIMITS, course / "notebooks")
    assert starts == ["a.ipynb", "a.ipynb", "b.ipynb", "b.ipynb"] and b.points == b.most
    assert a.rows[0].message.startswith("not graded, grade this file again: no kernel can be started")
