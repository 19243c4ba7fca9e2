"""Grade handed-in notebooks (`python -m trinity_mini grade PATH...`): points by checker cell, a CSV, reports.

Each notebook runs in a fresh kernel with limits on time and memory. Its locked cells are the master's, hidden tests
included; before each of them the checkers are loaded from their files again, and functions that were overwritten in the
modules they rely on are put back and named in the report. Points are given only if a checker cell ran to its end.

What this does not do: it is no sandbox. The learner's code runs in the same process as its checker and with the
teacher's rights: a determined cheater can still fake a result (by the garbage collector, frames, or the kernel's own
objects), read the hidden tests, write files, start processes that outlive the kernel, or use the network. Grade what
strangers send in a container or under an account of its own, and read a notebook that looks too good. Memory is not
limited on Windows. A lesson's ordinary cells are the learner's to change, so checkers should not rely on them.
"""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .files import UserError, write_atomically
from .grade_plan import Plan, master_of, plan, read_cells, watched
from .grade_run import DIED, NOT_RUN, TIME, Limits, NotStarted, Outcome, Step, run
from .student import grade_id, grading, masters

COLUMNS = ("student file", "lesson", "grade_id", "points", "max", "message")


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


# ---- one notebook ------------------------------------------------------------------------------------


def grade_file(path: Path, name: str, lessons: Mapping[Path, Any], limits: Limits) -> Graded:
    """Grade one file against its lesson's master; what is wrong with the file is a message, never an exception.

    Raises: UserError if no kernel can be started.
    """
    graded = Graded(name)
    try:
        cells, broken = read_cells(path), ""
    except UserError as e:
        cells, broken = [], str(e)
    master_path = master_of(path.name, cells, lessons)
    if master_path is None:
        graded.rows = [Row("", 0, 0, broken or "belongs to no lesson: no cell or name of it is known")]
        return graded
    graded.lesson, master = master_path.stem, lessons[master_path]
    if not any(c["source"].strip() for c in cells):
        message = broken or "the notebook is empty"
        checkers = [c for c in master.cells if grading(c).get("grade")]
        graded.rows = [Row(grade_id(c), 0, grading(c)["points"], message) for c in checkers]
        return graded
    todo = plan(cells, master)
    outcomes = run(todo.steps, limits, watched(master))
    graded.rows, graded.notes = points(todo, outcomes, limits)
    return graded


def points(todo: Plan, outcomes: Sequence[Outcome], limits: Limits) -> tuple[list[Row], list[str]]:
    """A row for each checker cell, and the notes of the report."""
    rows, notes = [], [*todo.notes]
    cause = ""  # the first error since the last checker cell
    for step, outcome in zip(todo.steps, outcomes, strict=True):
        if step.points:
            message = said(step, outcome, limits)
            if message and cause and outcome.ename not in ("Wrong", NOT_RUN):
                message += f" (before it, {cause})"
            rows.append(Row(step.name, 0 if message else step.points, step.points, message))
            if outcome.overwritten:
                names = ", ".join(outcome.overwritten[:10])
                notes.append(f"Before {step.name} these were overwritten, and were restored: {names}. Read the cells.")
            cause = ""
        elif outcome.ename not in ("", "NotImplementedError", NOT_RUN):
            begins = next(line.strip() for line in step.source.splitlines() if line.strip())
            text = f"{step.name or f'the cell ({begins[:50]})'}: {said(step, outcome, limits)}"
            cause = cause or text
            notes.append(f"Stopped: {text}")
    return rows, notes


def said(step: Step, outcome: Outcome, limits: Limits) -> str:
    """An outcome in one line, empty for a step that ran to its end."""
    ename, text = outcome.ename, " ".join(outcome.evalue.split())
    if not ename:
        return ""
    if ename == "NotImplementedError":
        return "not done yet"
    if ename == TIME:
        return f"took longer than {text} s"
    if ename == DIED:
        return "the kernel stopped: exit, a crash, or too much memory"
    if ename == NOT_RUN:
        return f"not run: the {limits.notebook:g} s of the notebook were up, or the kernel stopped too often"
    message = text if ename == "Wrong" and text else f"{ename}: {text}" if text else ename
    if outcome.line in step.hidden:
        return f"the visible check passes, a hidden test does not: {message}"
    return message


# ---- many notebooks ----------------------------------------------------------------------------------


def found_files(paths: Sequence[Path]) -> list[Path]:
    """The notebooks under files and folders, sorted; a student's folder without one stands for itself.

    Raises: UserError for a path that does not exist, or a folder that holds nothing.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*.ipynb")) if not any(x.startswith(".") for x in _below(p, path))]
            folders = [p for p in sorted(path.iterdir()) if p.is_dir() and not p.name.startswith(".")]
            empty = [p for p in folders if not any(p in i.parents for i in inside)]
            if not inside and not empty:
                raise UserError(f"{path} holds no notebook: name a folder or files with what was handed in.")
            found += sorted([*inside, *empty])
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"{path} is no file or folder: check the path.")
    return [*{os.path.abspath(p): p for p in found}.values()]


def _below(path: Path, folder: Path) -> tuple[str, ...]:
    return path.relative_to(folder).parts


def names_of(files: Sequence[Path]) -> list[str]:
    """Short names that tell files apart: paths from the folder that all share.

    A single folder of notebooks named as they were handed out is a student's: its own name is then part of theirs.
    """
    whole = [Path(os.path.abspath(p)) for p in files]
    try:
        base = Path(os.path.commonpath([p.parent for p in whole]))
        if any(p.parent == base and re.match(r"\d\d_\w+\.ipynb$", p.name) for p in whole):
            base = base.parent
    except ValueError:  # on two drives
        return [p.as_posix() for p in whole]
    return [p.relative_to(base).as_posix() for p in whole]


def grade_files(paths: Sequence[Path], out: Path, limits: Limits, folder: Path | None = None) -> Iterator[Graded]:
    """Grade every notebook under paths, and keep grades.csv and a report of each in the folder out.

    After each notebook the CSV holds all so far, so that nothing is lost when this is stopped. Lines of other files,
    from earlier runs into the same folder, stay.
    folder: of the masters (default notebooks/).
    Raises: UserError for an unknown path or without masters, before anything is run; for a full disk at once.
    """
    files = found_files(paths)
    lessons = masters(folder) if folder else masters()
    if not lessons:
        raise UserError("there is no master notebook with graded cells: restore notebooks/ from the repository.")
    names = [_plain(name) for name in names_of(files)]
    kept, kept_totals = (_others(out / f"{table}.csv", names) for table in ("grades", "totals"))
    done: list[Graded] = []
    reports: set[str] = set()
    for path, name in zip(files, names_of(files), strict=True):
        graded = Graded(name, rows=[Row("", 0, 0, "no notebook in this folder")])
        if not path.is_dir():
            try:
                graded = _patiently(path, name, lessons, limits)
            except NotStarted as e:
                graded = Graded(name, rows=[Row("", 0, 0, f"not graded, grade this file again: {e}")])
            except UserError:
                raise
            except Exception as e:  # one notebook must not keep the others from being graded
                graded = Graded(name, rows=[Row("", 0, 0, f"the grader could not run it ({type(e).__name__}: {e})")])
        done.append(graded)
        write_atomically(out / "reports" / report_name(name, reports), report(graded).encode(errors="replace"))
        write_atomically(out / "grades.csv", as_csv(done, kept))
        write_atomically(out / "totals.csv", totals(done, kept_totals))
        yield graded


def _patiently(path: Path, name: str, lessons: Mapping[Path, Any], limits: Limits) -> Graded:
    try:
        return grade_file(path, name, lessons, limits)
    except NotStarted:  # a busy machine
        return grade_file(path, name, lessons, limits)


def grade_aloud(paths: Sequence[Path], out: Path, limits: Limits, folder: Path | None = None) -> list[Graded]:
    """`grade_files` with a line for each notebook; Ctrl-C keeps what is finished and ends with exit code 130."""
    _let_interrupts_through()
    total, done, start = len(found_files(paths)), [], time.monotonic()
    try:
        for graded in grade_files(paths, out, limits, folder):
            done.append(graded)
            lesson = graded.lesson or graded.rows[0].message
            seconds, start = time.monotonic() - start, time.monotonic()
            line = f"{len(done)}/{total}  {graded.file}  {lesson}  {graded.points} of {graded.most} points"
            print(f"{line}  {seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        where = f"{len(done)} of {total} are graded, in {out / 'grades.csv'}" if done else "nothing is graded yet"
        print(f"\nstopped: {where}.", file=sys.stderr)
        raise SystemExit(130) from None
    print(f"{out / 'grades.csv'} and {out / 'reports'} hold the grades of {total} files.")
    return done


def _let_interrupts_through() -> None:
    """Ctrl-C raises KeyboardInterrupt, so that the kernel is ended and the finished grades are told."""
    main = threading.current_thread() is threading.main_thread()
    if main and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


# ---- what is written ---------------------------------------------------------------------------------


def as_csv(done: Sequence[Graded], kept: Sequence[Sequence[str]] = ()) -> bytes:
    """One line for each checker cell of each file, UTF-8, after the lines kept of others."""
    return _table(COLUMNS, kept, [(graded.file, graded.lesson, *row) for graded in done for row in graded.rows])


def totals(done: Sequence[Graded], kept: Sequence[Sequence[str]] = ()) -> bytes:
    """One line for each file: its points and the most there are."""
    columns = ("student file", "lesson", "points", "max")
    return _table(columns, kept, [(g.file, g.lesson, g.points, g.most) for g in done])


def _table(columns: Sequence[str], kept: Sequence[Sequence[str]], rows: Sequence[Sequence[Any]]) -> bytes:
    """A CSV in which no cell can be taken for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *kept])
    writer.writerows([_plain(c) if isinstance(c, str) else c for c in row] for row in rows)
    return text.getvalue().encode(errors="replace")


def _others(path: Path, names: Sequence[str]) -> list[list[str]]:
    """The lines of a table that an earlier run wrote, but those of the files named."""
    if not path.exists():
        return []
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, csv.Error) as e:
        raise UserError(f"{path} cannot be read ({type(e).__name__}): move it away, or give another --out.") from None
    return [row for row in rows[1:] if row and row[0] not in names]


def _plain(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def report_name(name: str, taken: set[str]) -> str:
    """A file name for the report of a handed-in file, different for each."""
    stem = re.sub(r"[^\w.-]+", "_", name.removesuffix(".ipynb"), flags=re.UNICODE).strip("._") or "notebook"
    stem, n = stem[-80:], 1
    while (file := f"{stem}{'' if n == 1 else f'-{n}'}.md").casefold() in taken:
        n += 1
    taken.add(file.casefold())
    return file


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
