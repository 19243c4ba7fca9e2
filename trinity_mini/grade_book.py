"""The folder with the grades: a CSV of all checkers, one of totals, a report of each file; two graders may share it.

A small database beside them, `.files.sqlite`, knows which file each name in the tables stands for, and is the lock.
"""

from __future__ import annotations

import csv
import io
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .files import UserError, write_atomically

COLUMNS = ("student file", "lesson", "grade_id", "points", "max", "message")
TOTALS = ("student file", "lesson", "points", "max")
PATIENCE = 60  # seconds to wait for another grader, which holds the lock for three files


class Row(NamedTuple):
    """What a checker cell gave; or, without a grade_id, why nothing could be graded."""

    grade_id: str
    points: int
    most: int
    message: str


@dataclass
class Graded:
    """What one handed-in file got, and notes for its report."""

    file: str
    lesson: str = ""
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(row.points for row in self.rows)

    @property
    def most(self) -> int:
        return sum(row.most for row in self.rows)


class Gradebook:
    """Adds grades to a folder. What others wrote there stays, unless it is of a file that is graded again."""

    def __init__(self, out: Path, files: Sequence[Path]) -> None:
        """Find a name for each file: the one it has there, else a short one that no other file has.

        Raises: UserError if a table there is none that a grader has written.
        """
        self.out = out
        self.done: list[Graded] = []
        with self._alone() as db:
            self._kept("grades", COLUMNS)
            self._kept("totals", TOTALS)
            self.names = [_named(db, p, name) for p, name in zip(files, names_of(files), strict=True)]

    def add(self, graded: Graded) -> None:
        """Put down one file's grades. Raises: UserError if that cannot be written, or if a table was damaged."""
        self.done.append(graded)
        with self._alone() as db:
            tables = [("grades", COLUMNS, as_csv), ("totals", TOTALS, totals)]
            written = {name: make(self.done, self._kept(name, columns)) for name, columns, make in tables}
            write_atomically(
                self.out / "reports" / _report_of(db, graded.file), report(graded).encode(errors="replace")
            )
            for name, content in written.items():
                write_atomically(self.out / f"{name}.csv", content)

    def _kept(self, name: str, columns: Sequence[str]) -> list[list[str]]:
        """The lines of a table but those of files that are done."""
        path, mine = self.out / f"{name}.csv", {_plain(g.file) for g in self.done}
        if not path.exists():
            return []
        try:
            text = path.read_text(encoding="utf-8-sig")
            rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        except (OSError, ValueError, csv.Error) as e:
            raise UserError(
                f"{path} cannot be read ({type(e).__name__}): move it away, or give another --out."
            ) from None
        if any(len(row) != len(columns) for row in rows) or rows and rows[0] != [*columns]:
            raise UserError(
                f"{path} is not as the grader wrote it (a spreadsheet may have saved it with other separators or "
                "columns): move it away, or give another --out."
            )
        return [row for row in rows[1:] if row[0] not in mine]

    @contextmanager
    def _alone(self) -> Iterator[sqlite3.Connection]:
        """The database, while no other process has it; the lock is given back however this process ends."""
        path = self.out / ".files.sqlite"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as db:
                db.execute("BEGIN EXCLUSIVE")
                db.execute("CREATE TABLE IF NOT EXISTS files (path BLOB PRIMARY KEY, name BLOB UNIQUE, report TEXT)")
                yield db
                db.execute("COMMIT")
        except sqlite3.OperationalError as e:
            raise UserError(f"cannot use {path} ({e}): wait for other graders, or give another --out.") from None
        except sqlite3.Error as e:
            raise UserError(f"{path} is damaged ({e}): remove it; the grades stay.") from None
        except OSError as e:
            raise UserError(f"cannot use {self.out} ({e.strerror or e}): give another --out.") from None


# ---- names -------------------------------------------------------------------------------------------


def names_of(files: Sequence[Path]) -> list[str]:
    """Short names that tell files apart: paths from the folder that all share.

    If they lie in one folder, or a notebook in it is named as it was handed out, it is a student's folder: its own name
    is then part of theirs.
    """
    whole = [Path(os.path.abspath(p)) for p in files]
    try:
        base = Path(os.path.commonpath([p.parent for p in whole]))
    except ValueError:  # on two drives
        return [p.as_posix() for p in whole]
    direct = [p for p in whole if p.parent == base and not p.is_dir()]  # a folder is a student without a notebook
    if len(direct) == len(whole) or any(re.match(r"\d\d_\w+\.ipynb$", p.name) for p in direct):
        base = base.parent
    return [p.relative_to(base).as_posix() for p in whole]


def _named(db: sqlite3.Connection, file: Path, name: str) -> str:
    """The name of a file in the tables, put down in the database: longer than wished if another file has that."""
    path = Path(os.path.abspath(file))
    key = _key(path)
    if known := db.execute("SELECT name FROM files WHERE path = ?", [key]).fetchone():
        return os.fsdecode(known[0])
    n = len(Path(name).parts)
    while taken := db.execute("SELECT path FROM files WHERE name = ?", [os.fsencode(name)]).fetchone():
        if os.path.exists(os.fsdecode(taken[0])):
            n += 1
            name = Path(*path.parts[-n:]).as_posix()
        else:  # it was moved, so this may be it
            db.execute("DELETE FROM files WHERE path = ?", taken)
    db.execute("INSERT INTO files VALUES (?, ?, NULL)", [key, os.fsencode(name)])
    return name


def _key(path: Path) -> bytes:
    return os.fsencode(os.path.normcase(path))


def _report_of(db: sqlite3.Connection, name: str) -> str:
    """The file name of a report, for each name another, the same in every run."""
    reports = {n: r for n, r in db.execute("SELECT name, report FROM files") if r}
    key = os.fsencode(name)
    if key not in reports:
        reports[key] = report_name(name, {r.casefold() for r in reports.values()})
        db.execute("UPDATE files SET report = ? WHERE name = ?", [reports[key], key])
    return reports[key]


def report_name(name: str, taken: set[str]) -> str:
    """A file name for the report of a handed-in file, different for each."""
    stem = re.sub(r"[^\w.-]+", "_", name.removesuffix(".ipynb"), flags=re.UNICODE).strip("._") or "notebook"
    stem, n = stem[-80:], 1
    while (file := f"{stem}{'' if n == 1 else f'-{n}'}.md").casefold() in taken:
        n += 1
    taken.add(file.casefold())
    return file


# ---- what is written ---------------------------------------------------------------------------------


def as_csv(done: Sequence[Graded], kept: Sequence[Sequence[str]] = ()) -> bytes:
    """One line for each checker cell of each file, UTF-8, after the lines kept of others."""
    return _table(COLUMNS, kept, [(graded.file, graded.lesson, *row) for graded in done for row in graded.rows])


def totals(done: Sequence[Graded], kept: Sequence[Sequence[str]] = ()) -> bytes:
    """One line for each file: its points and the most there are."""
    return _table(TOTALS, kept, [(g.file, g.lesson, g.points, g.most) for g in done])


def _table(columns: Sequence[str], kept: Sequence[Sequence[str]], rows: Sequence[Sequence[Any]]) -> bytes:
    """A CSV in which no cell can be taken for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *kept])
    writer.writerows([_plain(c) if isinstance(c, str) else c for c in row] for row in rows)
    return text.getvalue().encode(errors="replace")


def _plain(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def report(graded: Graded) -> str:
    """A short report of one file in Markdown."""
    total = f"Lesson {graded.lesson or 'unknown'}: **{graded.points} of {graded.most} points**"
    lines = [f"# {_plain(graded.file)}", "", total, "", "| exercise | points | remark |", "|---|---|---|"]
    for row in graded.rows:
        lines.append(f"| {row.grade_id or '-'} | {row.points} of {row.most} | {_quoted(row.message)} |")
    if graded.notes:
        lines += ["", "Noticed:", "", *(f"- {_quoted(note)}" for note in graded.notes)]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """A text that may hold anything, as code of Markdown."""
    return "`" + _plain(text).replace("`", "'").replace("|", "\\|") + "`" if text else ""
