"""From a handed-in notebook to the cells that are run: the learner's, in the master's order, and the master's checkers.

A learner's cell is known by its grade_id, its id, or (an ordinary cell) its text. Cells the learner has added come
after the cell that they stand behind. Locked cells are the master's; ordinary cells that are missing are, too.
"""

from __future__ import annotations

import ast
import contextlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import ROOT, UserError
from .grade_guard import CHECKERS
from .grade_run import Step
from .student import defined, grade_id, grading, hidden_lines, student_source, without_hidden

LARGEST = 100_000_000  # bytes of a handed-in notebook

LEFT_ALONE = {"__future__", "asyncio", "sys", "typing"}  # the kernel and notebooks themselves change functions of them

Cell = Mapping[str, Any]


@dataclass
class Plan:
    """What to run, and what was noticed on the way: notes are sentences for the report."""

    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a handed-in notebook, each with type, id, source (one text) and metadata, whatever else is broken.

    Raises: UserError if it is no notebook.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError("is no file: hand in a notebook")
        if path.stat().st_size > LARGEST:
            raise UserError(f"larger than {LARGEST // 10**6} MB: clear its outputs")
        cells = json.loads(path.read_text(encoding="utf-8-sig"))["cells"]
        return [
            {
                "cell_type": str(c.get("cell_type")),
                "id": str(c.get("id", "")),
                "source": _sendable(c["source"] if isinstance(c["source"], str) else "".join(c["source"])),
                "metadata": c["metadata"] if isinstance(c.get("metadata"), dict) else {},
            }
            for c in cells
        ]
    except OSError as e:
        raise UserError(f"cannot be read ({e.strerror or e})") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise UserError(f"is no notebook ({type(e).__name__}): save it in JupyterLab and hand it in again") from None


def _sendable(source: str) -> str:
    """A text that a kernel can be sent: half a surrogate pair becomes `?`. Line ends are those of Linux."""
    return source.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def master_of(name: str, cells: Sequence[Cell], masters: Mapping[Path, Any]) -> Path | None:
    """The master that shares most grade_ids with these cells, else most cell ids, else whose name is in the file's."""
    for key in (grade_id, lambda cell: cell.get("id", "")):
        mine = {key(cell) for cell in cells} - {""}
        shared = {path: len(mine & {key(cell) for cell in master.cells}) for path, master in masters.items()}
        if best := max(shared.values(), default=0):
            return next(path for path, n in shared.items() if n == best)
    return next((path for path in masters if path.stem.casefold() in name.casefold()), None)


def plan(cells: Sequence[Cell], master: Any) -> Plan:
    """What to run of a learner's cells."""
    made = Plan()
    mine, added = _placed(cells, master.cells)
    earlier: list[str] = []  # the master's code so far
    for i, cell in enumerate(master.cells):
        if cell.cell_type == "code":
            if grading(cell).get("locked") or grading(cell).get("grade"):
                made.steps.append(_checker(cell, earlier))
                made.notes += _restored(cell, mine[i])
            elif grading(cell):
                made.steps += _solutions(cell, mine[i], made.notes)
            else:
                made.steps += [Step(c["source"]) for c in mine[i] or [cell] if c["cell_type"] == "code"]
            earlier.append(cell.source)
        made.steps += [Step(c["source"]) for c in added[i] if c["cell_type"] == "code"]
    made.steps[:0] = [Step(c["source"]) for c in added[-1] if c["cell_type"] == "code"]
    made.steps = [step for step in made.steps if step.source.strip()]
    return made


def _placed(cells: Sequence[Cell], master: Sequence[Cell]) -> tuple[dict[int, list[Cell]], dict[int, list[Cell]]]:
    """The learner's cells by the master's cell that they are, and those added by the one they follow (-1: none)."""
    by_grade = {grade_id(c): i for i, c in enumerate(master) if grade_id(c)}
    by_id = {c["id"]: i for i, c in enumerate(master)}
    by_text = {student_source(c): i for i, c in enumerate(master) if not grading(c).get("solution")}
    by_name = {name: i for i, c in enumerate(master) if grading(c).get("solution") for name in defined(c["source"])}
    mine: dict[int, list[Cell]] = defaultdict(list)
    added: dict[int, list[Cell]] = defaultdict(list)
    lost = []  # cells without grade_id and id: a solution among them is known by what it defines
    last = -1
    for cell in cells:
        i = by_grade.get(grade_id(cell), by_id.get(cell["id"], by_text.get(cell["source"])))
        if i is None:
            added[last].append(cell)
            lost.append((last, cell))
        else:
            mine[i].append(cell)
            last = i
    for anchor, cell in lost:
        places = {by_name[name] for name in defined(cell["source"]) if name in by_name and not mine[by_name[name]]}
        if len(places) == 1 and cell["cell_type"] == "code":
            added[anchor].remove(cell)
            mine[places.pop()].append(cell)
    return mine, added


def _solutions(cell: Cell, mine: Sequence[Cell], notes: list[str]) -> Iterator[Step]:
    """The learner's versions of a solution cell, in order; copies of the empty stub do not undo another."""
    name = grade_id(cell)
    versions = [c["source"] for c in mine if c["cell_type"] == "code"]
    if len(versions) < len(mine):
        notes.append(f"Cell {name} is not a code cell any more, so it was not run.")
    if not versions and len(versions) == len(mine):
        notes.append(f"Cell {name} is missing.")
    if len(versions) > 1:
        notes.append(f"Cell {name} is there {len(versions)} times: all that are not the empty stub were run, in order.")
        stub = student_source(cell).strip()
        versions = [v for v in versions if v.strip() != stub] or versions[:1]
    return (Step(v, name) for v in versions)


def _restored(cell: Cell, mine: Sequence[Cell]) -> list[str]:
    """What had to be mended of a locked cell."""
    name = grade_id(cell)
    if not mine:
        return [f"Locked cell {name} was missing and is restored."]
    several = [f"Locked cell {name} was there {len(mine)} times and is run once."] if len(mine) > 1 else []
    known = {_trimmed(text) for text in (student_source(cell), without_hidden(cell["source"]), cell["source"])}
    changed = any(_trimmed(c["source"]) not in known or c["cell_type"] != "code" for c in mine)
    return several + ([f"Locked cell {name} was changed and is restored."] if changed else [])


def _trimmed(source: str) -> str:
    """A text without what editors change unasked: blanks at the ends of lines, empty lines around it."""
    return "\n".join(line.rstrip() for line in source.splitlines()).strip()


def _checker(cell: Cell, earlier: Sequence[str]) -> Step:
    g, source = grading(cell), cell["source"]
    if not g.get("grade"):
        return Step(source)
    return Step(source, grade_id(cell), g["points"], tuple(imports(source, earlier)), tuple(hidden_lines(source)))


# ---- what a checker cell relies on -------------------------------------------------------------------


def imports(source: str, earlier: Sequence[str]) -> list[str]:
    """Statements that bind the names which a cell uses, as far as an import bound them last in the code before it."""
    bound: dict[str, str] = {}  # name -> the import that binds it, empty for any other statement
    for text in earlier:
        for node in _outer(text):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    single = ast.Import([alias])
                    if isinstance(node, ast.ImportFrom):
                        single = ast.ImportFrom(node.module, [alias], node.level)
                    bound[alias.asname or alias.name.partition(".")[0]] = ast.unparse(single)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound[node.id] = ""
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bound[node.name] = ""
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    return [statement for name, statement in bound.items() if statement and name in used]


def _outer(text: str) -> Iterator[ast.AST]:
    """The nodes of a cell that run in the notebook itself: not those inside functions and classes."""
    try:
        open_nodes: list[ast.AST] = [ast.parse(text)]
    except SyntaxError:  # a magic
        return
    while open_nodes:
        node = open_nodes.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            open_nodes[:0] = ast.iter_child_nodes(node)


def watched(master: Any) -> list[str]:
    """The modules that the checkers and the checker cells of a master import or name, and so rely on.

    Some of the names are of functions in them, not of modules.
    """
    found: dict[str, None] = {}
    earlier: list[str] = []
    todo: list[str] = []
    for cell in master.cells:
        if cell.cell_type == "code":
            todo += [m for m in _imported(cell.source) if m.startswith(CHECKERS)]
            if grading(cell).get("grade"):
                needs = _imported("\n".join([*imports(cell.source, earlier), cell.source]))
                found |= dict.fromkeys(needs)
            earlier.append(cell.source)
    done: set[str] = set()
    while todo:
        name = todo.pop(0)
        path = ROOT / "trinity_mini" / f"{name.rpartition('.')[2]}.py"
        if name in done or not path.is_file():
            continue
        done.add(name)
        needs = _imported(path.read_text(encoding="utf-8"))
        todo += [m for m in needs if m.startswith(CHECKERS)]
        found |= dict.fromkeys(needs)
    return [n for n in found if not n.startswith(CHECKERS) and n.partition(".")[0] not in LEFT_ALONE]


def _imported(text: str) -> list[str]:
    """What a text imports, and what it names of that: of `import numpy as np` and `np.random.normal`, numpy.random."""
    names: list[str] = []
    bound: dict[str, str] = {}
    for node in _outer(text):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            bound |= {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                      for a in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, ["trinity_mini" if node.level else "", node.module]))
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
            bound |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    with contextlib.suppress(SyntaxError):  # a magic
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute):
                first, *rest = ast.unparse(node.value).split(".")
                if rest and first in bound and all(map(str.isidentifier, rest)):
                    names.append(".".join([bound[first], *rest]))
    return names
