"""The folder with the grades: nobody's line is lost, whatever files are called, and whoever grades at the same time."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from classroom import write

from trinity_mini import grade_book
from trinity_mini.files import ROOT, UserError
from trinity_mini.grade_book import COLUMNS, TOTALS, Gradebook, Graded, Row, names_of


def graded(out: Path, *files: Path, points: int = 1) -> list[str]:
    """Put down a line for each file, as one run of the grader does; the names."""
    book = Gradebook(out, files)
    for name in book.names:
        book.add(Graded(name, "01_tiny", [Row("01-a", points, 2, "")]))
    return book.names


def lines(out: Path, table: str = "grades") -> list[list[str]]:
    with open(out / f"{table}.csv", encoding="utf-8", newline="") as f:
        return [*csv.reader(f)][1:]


def held(out: Path) -> dict[str, int]:
    """Points by name, the same in both tables; each name once."""
    found, sums = {line[0]: int(line[3]) for line in lines(out)}, {x[0]: int(x[2]) for x in lines(out, "totals")}
    assert found == sums and len(lines(out)) == len(lines(out, "totals")) == len(found)
    assert len([*(out / "reports").iterdir()]) == len(found)
    return found


# ---- names -------------------------------------------------------------------------------------------

FILES = ["01_tiny.ipynb", "01_tiny (1).ipynb", "lesson one.ipynb", "é.ipynb", "x", "week 1/01_tiny.ipynb", "a/b/c"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("whole", [True, False])
def test_one_student_after_the_other(tmp_path, file, whole):
    """Given by their files, or as folders, where some have subfolders."""
    out = tmp_path / "out"
    for points, who in enumerate(("alice", "bob", "alice", "class b/bob"), 1):
        folder = tmp_path / who
        files = [write("{}", folder / file)]
        if whole:
            files += [write("{}", folder / "sub" / "02.ipynb"), write("{}", folder / "other" / "02.ipynb")]
        graded(out, *files, points=points)
    found = held(out)
    assert len(found) == 3 * (3 if whole else 1) and sorted({*found.values()}) == [2, 3, 4]


def test_a_file_keeps_its_name_whichever_way_it_is_given(tmp_path, monkeypatch):
    a, b = (write("{}", tmp_path / "in" / who / "week 1" / "01.ipynb") for who in ("ann", "bob"))
    first = graded(tmp_path / "out", a, b)
    monkeypatch.chdir(b.parent)
    assert first == ["ann/week 1/01.ipynb", "bob/week 1/01.ipynb"]
    assert graded(tmp_path / "out", Path("01.ipynb"), points=2) == first[1:]
    assert graded(tmp_path / "out", b.parent / ".." / "week 1" / "01.ipynb", points=2) == first[1:]
    assert held(tmp_path / "out") == {first[0]: 1, first[1]: 2}


def test_a_file_that_was_moved_is_graded_under_its_name(tmp_path):
    a = write("{}", tmp_path / "old" / "ann" / "01.ipynb")
    graded(tmp_path / "out", a)
    (tmp_path / "old").rename(tmp_path / "new")
    assert graded(tmp_path / "out", tmp_path / "new" / "ann" / "01.ipynb", points=2) == ["ann/01.ipynb"]
    assert held(tmp_path / "out") == {"ann/01.ipynb": 2}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["ann/01_tiny.ipynb"], ["ann/01_tiny.ipynb"]),
        (["ann/01_tiny (1).ipynb"], ["ann/01_tiny (1).ipynb"]),
        (["ann/x"], ["ann/x"]),
        (["ann/a.ipynb", "ann/b.ipynb"], ["ann/a.ipynb", "ann/b.ipynb"]),
        (["in/a.ipynb", "in/bob/b.ipynb"], ["a.ipynb", "bob/b.ipynb"]),
        (["in/01_a.ipynb", "in/old/01_a.ipynb"], ["in/01_a.ipynb", "in/old/01_a.ipynb"]),
        (["in/ann/b.ipynb", "in/bob/b.ipynb"], ["ann/b.ipynb", "bob/b.ipynb"]),
    ],
)
def test_short_names(tmp_path, files, names):
    assert names_of([tmp_path / f for f in files]) == names


def test_names_that_look_alike_have_lines_and_reports_of_their_own(tmp_path):
    files = [tmp_path / "in" / name for name in ("a/b.ipynb", "a_b.ipynb", "A b.ipynb", "é.ipynb", "e\u0301.ipynb")]
    for file in files:
        write("{}", file)
    for _ in range(2):
        for file in files:
            graded(tmp_path / "out", file)
    assert len(held(tmp_path / "out")) == len({f.name for f in (tmp_path / "in").rglob("*.ipynb")})


def test_names_that_are_no_text(tmp_path):
    file = tmp_path / "in" / "\udc80.ipynb"
    try:
        write("{}", file)
    except (OSError, UnicodeError):
        pytest.skip("no such file names here")
    for _ in range(2):
        graded(tmp_path / "out", file)
    assert held(tmp_path / "out") == {"in/ .ipynb": 1}


def test_what_was_not_graded_again_before_a_stop_stays(tmp_path):
    files = [write("{}", tmp_path / "in" / name / "x.ipynb") for name in ("ann", "bob")]
    graded(tmp_path / "out", *files)
    book = Gradebook(tmp_path / "out", files)
    book.add(Graded(book.names[0], "01_tiny", [Row("01-a", 2, 2, "")]))
    assert held(tmp_path / "out") == {"ann/x.ipynb": 2, "bob/x.ipynb": 1}


# ---- two graders -------------------------------------------------------------------------------------

ANOTHER = """
import sys
from pathlib import Path
from trinity_mini.grade_book import Graded, Gradebook, Row

out, who = Path(sys.argv[1]), sys.argv[2]
book = Gradebook(out, [Path(f"{who}/{i}/01_tiny.ipynb") for i in range(12)])
for name in book.names:
    book.add(Graded(name, "01_tiny", [Row("01-a", 1, 2, "")]))
"""


def test_two_graders_at_once_lose_nothing(tmp_path):
    for who in ("a", "b"):
        for i in range(12):
            write("{}", tmp_path / who / str(i) / "01_tiny.ipynb")
    args = [sys.executable, "-c", ANOTHER, tmp_path / "out"]
    both = [subprocess.Popen([*args, tmp_path / who], cwd=ROOT) for who in ("a", "b")]
    assert [p.wait(100) for p in both] == [0, 0]
    assert len(held(tmp_path / "out")) == 24


def test_two_books_in_turns(tmp_path):
    files = [write("{}", tmp_path / "in" / f"{name}.ipynb") for name in "abcd"]
    one, two = Gradebook(tmp_path / "out", files[:3]), Gradebook(tmp_path / "out", files[2:])
    for i in range(3):
        one.add(Graded(one.names[i], "", [Row("", 1, 2, "")]))
        if i < 2:
            two.add(Graded(two.names[i], "", [Row("", 2, 2, "")]))
    assert held(tmp_path / "out") == {"in/a.ipynb": 1, "in/b.ipynb": 1, "in/c.ipynb": 1, "in/d.ipynb": 2}


def test_a_grader_that_never_ends_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(grade_book, "PATIENCE", 0.1)
    file = write("{}", tmp_path / "a.ipynb")
    book = Gradebook(tmp_path / "out", [file])
    with book._alone(), pytest.raises(UserError, match="wait for other graders"):
        Gradebook(tmp_path / "out", [file])
    Gradebook(tmp_path / "out", [file])


def test_a_damaged_database_is_told(tmp_path):
    write("x" * 5000, tmp_path / ".files.sqlite")
    with pytest.raises(UserError, match="remove it; the grades stay"):
        Gradebook(tmp_path, [tmp_path / "a.ipynb"])


# ---- tables that somebody else has saved ---------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("student file", "Student"),
        lambda text: text.partition("\n")[2],
        lambda text: text.replace("\n", ",remark\n"),
        lambda text: text + "a,b\n",
        lambda text: '"' + text,
        lambda text: "sep=,\n" + text,
        lambda text: text.encode("utf-16"),
        lambda text: text.encode() + b"\xff",
    ],
)
@pytest.mark.parametrize("table", ["grades", "totals"])
def test_a_table_that_is_not_the_graders_is_refused_and_kept(tmp_path, table, change):
    file = write("{}", tmp_path / "in" / "a.ipynb")
    graded(tmp_path / "out", file)
    path = tmp_path / "out" / f"{table}.csv"
    new = change(path.read_text(encoding="utf-8"))
    path.write_bytes(new if isinstance(new, bytes) else new.encode())
    before = path.read_bytes()
    with pytest.raises(UserError, match="move it away, or give another --out"):
        graded(tmp_path / "out", file)
    assert path.read_bytes() == before


def test_a_table_that_a_spreadsheet_saved_without_harm_is_taken(tmp_path):
    """With a mark of its encoding, other line ends, quotes, an empty line, and sorted otherwise."""
    a, b = (write("{}", tmp_path / "in" / f"{name}.ipynb") for name in "ab")
    graded(tmp_path / "out", a, b)
    for table, columns in (("grades", COLUMNS), ("totals", TOTALS)):
        rows = [[*columns], *reversed(lines(tmp_path / "out", table))]
        text = "".join(",".join(f'"{cell}"' for cell in row) + "\r\n" for row in rows)
        (tmp_path / "out" / f"{table}.csv").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\r\n")
    graded(tmp_path / "out", a, points=2)
    assert held(tmp_path / "out") == {"in/a.ipynb": 2, "in/b.ipynb": 1}


def test_an_empty_table_is_begun_anew(tmp_path):
    (tmp_path / "grades.csv").write_text("")
    graded(tmp_path, write("{}", tmp_path / "in" / "a.ipynb"))
    assert held(tmp_path) == {"in/a.ipynb": 1}
