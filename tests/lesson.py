"""Definitions of a lesson, executed from its notebook without the rest of it."""

import ast
import json
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


class Namespace(dict):
    """What was defined, by attribute (`lesson.head`) or by key."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def definitions(notebook: str | Path, *names: str) -> Namespace:
    """The names as the lesson defines them, from its top-level imports and the statements that bind them.

    A definition finds other names of the lesson only if they are asked for too. All bindings of a name are executed,
    in the notebook's order, so the last one stands. notebook: a file name in notebooks/, or a path.
    Raises: KeyError for a name that no top-level def, class or assignment binds.
    """
    path = NOTEBOOKS / notebook
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    wanted, space = set(names), Namespace(__name__="__main__")
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%%"):
            continue
        source = TransformerManager().transform_cell(source)
        body = [s for s in ast.parse(source).body if isinstance(s, ast.Import | ast.ImportFrom) or wanted & {*bound(s)}]
        if body:
            file = f"<{path.name}, cell {number}>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(ast.Module(body, []), file, "exec"), space)
    if missing := sorted(wanted - space.keys()):
        raise KeyError(f"{path.name} does not define {', '.join(missing)}")
    return space


def bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a def, class or assignment binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
