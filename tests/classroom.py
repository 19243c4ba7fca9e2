"""A very small lesson with graded exercises, and what a class might hand in for it."""

import contextlib
import json
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import trinity_mini
from trinity_mini.grade_guard import CHECKERS

WORDS = """# 01 A tiny lesson

See [start](00_start_here.ipynb), [itself](01_tiny.ipynb#two), [a file](<../data/x y.csv>), ![a picture](images/a.png),
[far](https://a.org/b), [here](#two), <img src="images/b.png">, `a[i](x)` and

```
b[j](y)
```

[note]: notes.md
"""
IMPORTS = "import numpy as np\n\nfrom trinity_mini.checks import called, passed, same"
DOUBLE = '''def double(x: float) -> float:
    """Twice x."""
    ### BEGIN SOLUTION
    y = x + x

    return y
    ### END SOLUTION'''
DOUBLE_TEST = """for x in np.random.default_rng().normal(size=5):
    same(called(double, float(x), what=f"double({x:.2f})"), 2 * x, "double(x)", "add x to itself.")
passed("double", 5)
### BEGIN HIDDEN TESTS
assert double(0) == 0
assert abs(double(-4) + 8) < 1e-9
### END HIDDEN TESTS"""
TOTAL = '''def total(values: list[float]) -> float:
    """The sum of the values."""
    ### BEGIN SOLUTION
    return float(np.sum(values))
    ### END SOLUTION


print("defined")'''
TOTAL_TEST = """values = np.random.default_rng().normal(size=7).tolist()
same(called(total, values, what="total(values)"), sum(values), "total(values)", "np.sum adds up.")
### BEGIN HIDDEN TESTS
assert total([]) == 0 and np.allclose(total([1, 2]), 3)
### END HIDDEN TESTS"""
HALF = '''def half(x: float) -> float:
    """Half of x."""
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION'''
HALF_TEST = 'same(called(half, 3, what="half(3)"), 1.5, "half(3)", "divide.")'


def solution(name: str, source: str):
    g = {"grade": False, "grade_id": name, "locked": False, "schema_version": 3, "solution": True, "task": False}
    return new_code_cell(source, id=name, metadata={"nbgrader": g | {"cell_type": "code"}})


def checker(name: str, source: str, points: int):
    g = {"grade": True, "grade_id": name, "locked": True, "schema_version": 3, "solution": False, "task": False}
    return new_code_cell(source, id=name, metadata={"nbgrader": g | {"cell_type": "code", "points": points}})


def master():
    """The lesson as its author keeps it: executed, with solutions."""
    scale = new_code_cell("scale = 3\nprint(scale)", id="scale", metadata={"tags": ["nbval-check-output", "short"]})
    cells = [
        new_markdown_cell(WORDS, id="words"),
        new_code_cell(IMPORTS, id="imports"),
        scale,
        solution("01-double", DOUBLE),
        checker("01-double-test", DOUBLE_TEST, 2),
        new_code_cell("print(scale * 2)", id="later", metadata={"execution": {"iopub.status.idle": "now"}}),
        solution("01-total", TOTAL),
        checker("01-total-test", TOTAL_TEST, 3),
        solution("01-half", HALF),
        checker("01-half-test", HALF_TEST, 1),
    ]
    for i, cell in enumerate([c for c in cells if c.cell_type == "code"], 1):
        cell.execution_count = i
        cell.outputs = [nbformat.v4.new_output("stream", text="3\n")]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    language = {"name": "python", "version": "3.11.7", "file_extension": ".py", "mimetype": "text/x-python"}
    state = {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2, "version_minor": 0}}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": language, "widgets": state})


def write(notebook, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = notebook if isinstance(notebook, str) else json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    return path


def lessons(folder: Path) -> Path:
    """A folder with the lesson and a notebook without exercises."""
    write(master(), folder / "01_tiny.ipynb")
    write(new_notebook(cells=[new_markdown_cell("# 00", id="a")]), folder / "00_start_here.ipynb")
    return folder


@contextlib.contextmanager
def own_checkers():
    """Afterwards the modules of checkers are those that were loaded before, not those that a guard has loaded."""
    before = {k: v for k, v in sys.modules.items() if k.startswith(CHECKERS)}
    try:
        yield
    finally:
        for name in [k for k in sys.modules if k.startswith(CHECKERS)]:
            del sys.modules[name]
        for name in [k for k in vars(trinity_mini) if k.startswith("checks")]:
            delattr(trinity_mini, name)
        for name, module in before.items():
            sys.modules[name] = module
            setattr(trinity_mini, name.rpartition(".")[2], module)
