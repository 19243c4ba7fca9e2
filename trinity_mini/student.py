"""Student notebooks from masters: solutions and hidden tests out, stubs in (`python -m trinity_mini student`).

A master is a lesson whose cells carry nbgrader's metadata and markers, so that nbgrader can take it as it is, too.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from .files import ROOT, UserError, write_atomically

NOTEBOOKS = ROOT / "notebooks"
MASTER = "[0-9][0-9]_*.ipynb"
SOLUTION = ("### BEGIN SOLUTION", "### END SOLUTION")
HIDDEN = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")
STUB = ("# YOUR CODE HERE", "raise NotImplementedError")
KEPT = ("name", "display_name", "language", "file_extension", "mimetype")  # no version: it differs between machines
CODE_SPAN = re.compile(r"(^ *(```+|~~~+).*?^ *\2|(`+)(?!`).+?(?<!`)\3(?!`))", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""(\]\(<?|\b(?:src|href)=["']|^\[[^\]\n]+\]: +)(?!\w+:|[#/])([^)>\s#"'?]+)""", re.MULTILINE)


def grading(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """nbgrader's metadata of a cell: grade_id, grade, solution, locked, points; empty for an ordinary cell."""
    found = cell["metadata"].get("nbgrader")
    return found if isinstance(found, Mapping) else {}


def grade_id(cell: Mapping[str, Any]) -> str:
    return str(grading(cell).get("grade_id") or "")


def masters(folder: Path = NOTEBOOKS) -> dict[Path, Any]:
    """The masters of a folder, by path: notebooks NN_topic.ipynb that hold cells of nbgrader.

    Raises: UserError for one that cannot be read, or whose cells or markers are not in order.
    """
    found = {}
    for path in sorted(folder.glob(MASTER)):
        try:
            text = path.read_text(encoding="utf-8")
            ids = [c.get("id") for c in json.loads(text)["cells"]]
            unique = None not in ids and len({*ids}) == len(ids)  # else nbformat would draw new ones each time
            notebook = nbformat.reads(text, as_version=4) if unique else None
        except Exception as e:  # nbformat raises what it likes
            raise UserError(f"cannot read {path} ({type(e).__name__}): restore it from the repository.") from None
        if notebook is None:
            raise UserError(f"{path} has a cell without an id, or two with the same: save it once with JupyterLab.")
        if any(map(grading, notebook.cells)):
            found[path] = notebook
    if wrong := problems(found):
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise UserError(f"{wrong[0]}{more}: correct the master.")
    return found


def problems(found: Mapping[Path, Any]) -> list[str]:
    """What is not in order in masters, one line each; none of it could be graded."""
    wrong: list[str] = []
    seen: dict[str, str] = {}
    for path, notebook in found.items():
        for cell in notebook.cells:
            g, name = grading(cell), grade_id(cell)
            where = f"{path.name}, cell {name or cell.get('id')}"
            if cell.cell_type == "code" or g:
                lines = {line.strip() for line in cell.source.splitlines()}
                if bool(lines & {*SOLUTION}) != bool(g.get("solution")):
                    wrong.append(f"{where}: a solution region belongs in each solution cell, and nowhere else")
                if lines & {*HIDDEN} and not g.get("grade"):
                    wrong.append(f"{where}: hidden tests belong in graded cells")
                try:
                    stub(cell.source)
                    hidden_lines(cell.source)
                except ValueError as e:
                    wrong.append(f"{where}: {e}")
            if g:
                if not name or name in seen:
                    wrong.append(f"{where}: the grade_id is " + (f"also in {seen[name]}" if name else "missing"))
                seen[name] = path.name
                if cell.cell_type != "code" or g.get("grade") and g.get("solution"):
                    wrong.append(f"{where}: graded by hand, and only code cells with a checker are supported")
            if g.get("grade") and not (g.get("locked") and isinstance(g.get("points"), int) and g["points"] > 0):
                wrong.append(f"{where}: a graded cell must be locked and have points, a whole number above 0")
    return wrong


# ---- cells -------------------------------------------------------------------------------------------


def regions(source: str, markers: tuple[str, str]) -> Iterator[tuple[int, int]]:
    """First and last line (from 0, markers included) of each marked region.

    Raises: ValueError for markers that do not pair.
    """
    begin, start = markers[0], None
    for i, line in enumerate(source.splitlines()):
        if line.strip() not in markers:
            continue
        if (line.strip() == begin) != (start is None):
            raise ValueError(f"{line.strip()} in line {i + 1} has no partner")
        if start is None:
            start = i
        else:
            yield start, i
            start = None
    if start is not None:
        raise ValueError(f"{begin} in line {start + 1} has no partner")


def hidden_lines(source: str) -> list[int]:
    """The line numbers (from 1) of the hidden tests."""
    return [i + 1 for first, last in regions(source, HIDDEN) for i in range(first, last + 1)]


def stub(source: str) -> str:
    """A solution cell with each solution replaced by a comment and NotImplementedError, as nbgrader does it."""
    lines = source.splitlines()
    for first, last in reversed([*regions(source, SOLUTION)]):
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        lines[first : last + 1] = [indent + line for line in STUB]
    return "\n".join(lines)


def without_hidden(source: str) -> str:
    """A checker cell without its hidden tests."""
    hidden = {*hidden_lines(source)}
    return "\n".join(line for i, line in enumerate(source.splitlines(), 1) if i not in hidden).rstrip()


def student_source(cell: Mapping[str, Any]) -> str:
    """What the learner is given of a master's code cell."""
    g = grading(cell)
    if g.get("solution"):
        return stub(cell["source"])
    return without_hidden(cell["source"]) if g.get("grade") else cell["source"]


def defined(source: str) -> set[str]:
    """The functions and classes that a cell defines at its top level; none if it is not Python."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {s.name for s in body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def moved_links(text: str, siblings: Sequence[str]) -> str:
    """Markdown whose relative links still lead there from a folder further down; siblings move along."""

    def move(match: re.Match[str]) -> str:
        return match[1] + (match[2] if match[2].removeprefix("./") in siblings else f"../{match[2]}")

    parts, at = [], 0
    for code in CODE_SPAN.finditer(text):
        parts += [LINK.sub(move, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, LINK.sub(move, text[at:])])


# ---- notebooks ---------------------------------------------------------------------------------------


def student_notebook(master: Any, siblings: Sequence[str] = ()) -> bytes:
    """The student's version of a master as the bytes of a file, the same on every machine.

    siblings: names of the notebooks that lie beside it, for links between lessons.
    """
    cells = []
    for cell in master.cells:
        g = grading(cell)
        metadata: dict[str, Any] = {}
        if tags := [t for t in cell.metadata.get("tags", []) if t != "nbval-check-output"]:  # no outputs to check
            metadata["tags"] = tags
        if g:
            metadata |= {"nbgrader": dict(g), "deletable": False} | ({"editable": False} if g.get("locked") else {})
        new = {"cell_type": cell.cell_type, "id": cell.id, "metadata": metadata, "source": cell.source}
        if cell.cell_type == "code":
            new |= {"source": student_source(cell), "outputs": [], "execution_count": None}
        elif cell.cell_type == "markdown":
            new["source"] = moved_links(cell.source, siblings)
            if "attachments" in cell:
                new["attachments"] = cell.attachments
        cells.append(new)
    known = {"kernelspec", "language_info"}
    metadata = {k: {i: v[i] for i in KEPT if i in v} for k, v in master.metadata.items() if k in known}
    notebook = nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})
    return (nbformat.writes(notebook, version=4).rstrip("\n") + "\n").encode()


def student_files(folder: Path = NOTEBOOKS) -> dict[Path, bytes]:
    """Path and content of each student notebook."""
    found = masters(folder)
    siblings = [path.name for path in found]
    return {folder / "student" / path.name: student_notebook(master, siblings) for path, master in found.items()}


def stale(folder: Path = NOTEBOOKS) -> list[Path]:
    """Student notebooks that are missing, differ from what their master gives, or have no master any more."""
    wanted = student_files(folder)
    differ = [path for path, content in wanted.items() if not path.is_file() or path.read_bytes() != content]
    return sorted([*differ, *({*(folder / "student").glob(MASTER)} - {*wanted})])


def check(folder: Path = NOTEBOOKS) -> None:
    """Raises: UserError that names the stale student notebooks."""
    if old := stale(folder):
        names = ", ".join(path.name for path in old)
        raise UserError(f"stale in {folder / 'student'}: {names}: run `python -m trinity_mini student`.")


def generate(folder: Path = NOTEBOOKS) -> list[Path]:
    """Write the student notebooks, remove those without a master; returns what was changed.

    Raises: UserError, before anything is changed, if a file there holds somebody's work (cells that were run).
    """
    wanted, changed = student_files(folder), stale(folder)
    for path in changed:
        if path.is_file() and _was_run(path):
            raise UserError(f"{path} holds cells that were run: move it elsewhere, or it would be lost.")
    for path in changed:
        if path in wanted:
            write_atomically(path, wanted[path])
        else:
            path.unlink()
    return changed


def make(check_only: bool, folder: Path = NOTEBOOKS) -> list[dict[str, Any]]:
    """The command: write or only check; returns a row with the points and the number of exercises of each lesson.

    Raises: UserError as `check` and `generate` do.
    """
    if not masters(folder):
        raise UserError(f"{folder} holds no lesson to make student notebooks from: nothing was changed.")
    for path in [] if check_only else generate(folder):
        print(f"wrote {path}" if path.exists() else f"removed {path}: its lesson is gone")
    check(folder)
    rows = []
    for path, master in masters(folder).items():
        points = [grading(c)["points"] for c in master.cells if grading(c).get("grade")]
        row = {"name": path.name, "family": "student", "value": sum(points), "se": None, "n": len(points)}
        rows.append(row | {"unit": "points"})
    print(f"{len(rows)} student notebooks are what their lessons give")
    return rows


def _was_run(path: Path) -> bool:
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception:  # no notebook at all, so not ours
        return True
    return any(c.get("execution_count") or c.get("outputs") for c in cells)
