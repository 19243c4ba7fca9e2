"""Grade handed-in notebooks (`python -m trinity_mini grade PATH...`): points by checker cell, a CSV, reports.

Each notebook runs in a fresh kernel with limits on time and memory. Its locked cells are the master's, hidden tests
included; before each of them the checkers are loaded again, as their files were, and functions that were overwritten in
the modules they rely on are put back and named in the report. Points are given only if a checker cell ran to its end,
and if nothing that it relies on was changed while it ran.

What this does not do: it is no sandbox. The learner's code runs in the same process as its checker and with the
teacher's rights: a determined cheater can still fake a result (by the garbage collector, frames, or the kernel's own
objects), read the hidden tests, write files, start processes that outlive the kernel, or use the network. Grade what
strangers send in a container or under an account of its own, and read a notebook that looks too good. Memory is not
limited on Windows. A lesson's ordinary cells are the learner's to change, so checkers should not rely on them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import UserError
from .grade_book import Gradebook, Graded, Row
from .grade_plan import Plan, master_of, plan, read_cells, watched
from .grade_run import DIED, NOT_RUN, TIME, Limits, NotStarted, Outcome, Step, run
from .student import grade_id, grading, masters

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
            rows.append(Row(step.name, step.points if outcome.done else 0, step.points, message))
            if outcome.overwritten:
                names = ", ".join(outcome.overwritten[:10])
                notes.append(f"Overwritten before {step.name} or in it, and restored: {names}. Read the cells.")
            cause = ""
        elif not outcome.done and outcome.ename not in ("NotImplementedError", NOT_RUN):
            begins = next(line.strip() for line in step.source.splitlines() if line.strip())
            text = f"{step.name or f'the cell ({begins[:50]})'}: {said(step, outcome, limits)}"
            cause = cause or text
            notes.append(f"Stopped: {text}")
    return rows, notes


def said(step: Step, outcome: Outcome, limits: Limits) -> str:
    """An outcome in one line, empty for a step that ran to its end."""
    ename, text = outcome.ename, " ".join(outcome.evalue.split())
    if outcome.done:
        return ""
    if ename == "NotImplementedError":
        return "not done yet"
    if ename == TIME:
        return f"took longer than {text} s"
    if ename == DIED:
        return "the kernel stopped: exit, a crash, or too much memory"
    if ename == NOT_RUN:
        return f"not run: the {limits.notebook:g} s of the notebook were up, or the kernel stopped too often"
    message = text if ename == "Wrong" and text else f"{ename or 'Error'}{': ' if text else ''}{text}"
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


def grade_files(paths: Sequence[Path], out: Path, limits: Limits, folder: Path | None = None) -> Iterator[Graded]:
    """Grade every notebook under paths, and keep grades.csv and a report of each in the folder out.

    After each notebook the CSV holds all so far, so that nothing is lost when this is stopped. Lines of other files,
    from runs into the same folder, earlier or at the same time, stay.
    folder: of the masters (default notebooks/).
    Raises: UserError for an unknown path or without masters, before anything is run; for a full disk at once.
    """
    files = found_files(paths)
    lessons = masters(folder) if folder else masters()
    if not lessons:
        raise UserError("there is no master notebook with graded cells: restore notebooks/ from the repository.")
    book = Gradebook(out, files)
    for path, name in zip(files, book.names, strict=True):
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
        book.add(graded)
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
