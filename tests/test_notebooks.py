"""Guards for every stored notebook: what nbval does not see (course-style); shown to fail on doctored ones."""

import base64
import copy
import io
import json
import re
from pathlib import Path

import nbformat
import numpy as np
import PIL.Image
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))  # student/ is generated, without outputs
MAX_BYTES = 1_500_000
WIDEST = 104  # characters of code that JupyterLab shows without scrolling at 1280 pixels, the file browser open
CHECK = re.compile(r"^\s*#\s*NBVAL_CHECK_OUTPUT", re.MULTILINE)
HOME = re.compile(  # written so that this file does not find itself
    r"(?<![\w.])/(?:home|Users)/[A-Za-z0-9_.-]+/|(?<![\w.])/roo[t]/|\b[A-Za-z]:\\{1,2}Users\\{1,2}\w"
)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def is_checked(cell) -> bool:
    return "nbval-check-output" in cell["metadata"].get("tags", []) or bool(CHECK.search(cell["source"]))


def output_text(cell) -> str:
    """What a code cell has printed, as plain text."""
    return "\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell["outputs"])


def is_cut(png: str) -> bool:
    """Whether something dark touches the edge of a picture (base64): a label that did not fit."""
    grey = np.asarray(PIL.Image.open(io.BytesIO(base64.b64decode(png))).convert("L"))
    return min(edge.min() for edge in (grey[0], grey[-1], grey[:, 0], grey[:, -1])) < 200


def problems(path: Path) -> list[str]:
    """What is wrong with a stored notebook, one line each."""
    text = path.read_text(encoding="utf-8")
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(json.loads(text))
    except Exception as e:
        return [f"is no valid notebook ({type(e).__name__})"]
    found = []
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel is not python3")
    code = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    counts = [c.execution_count for c in code]
    if counts != list(range(1, len(code) + 1)):
        found.append(f"was not run from top to bottom: execution counts {counts}")
    if any(o.output_type == "error" for c in code for o in c.outputs):
        found.append("an error is stored")
    if any(o.get("name") == "stderr" for c in code for o in c.outputs):
        found.append("a warning is stored (stderr)")
    for c in code:
        if wide := [line for line in c.source.splitlines() if len(line) > WIDEST]:
            found.append(f"cell {c.execution_count} has a line of {len(wide[0])} characters: {wide[0].strip()[:40]}")
        if any(is_cut(o.data["image/png"]) for o in c.outputs if "image/png" in o.get("data", {})):
            found.append(f"the figure of cell {c.execution_count} is cut at its edge")
    checked = [c for c in code if is_checked(c)]
    if not checked:
        found.append("no cell is tagged nbval-check-output")
    for c in checked:
        if not output_text(c).strip():
            found.append(f"checked cell {c.execution_count} has no stored output: nbval would pass it")
    if home := HOME.search(text):
        found.append(f"holds a home path {home.group()}")
    if str(ROOT).count("/") > 1 and re.search(re.escape(str(ROOT)) + r"(?![\w-])", text):
        found.append("holds the path of this checkout")
    if len(text.encode()) >= MAX_BYTES:
        found.append(f"has {len(text.encode()):,} bytes, {MAX_BYTES:,} is the limit")
    for link in LINK.findall("\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")):
        if not (path.parent / link).exists():
            found.append(f"links to {link}, which is not there")
    return found


def test_there_is_a_notebook():
    assert [p.name for p in NOTEBOOKS][:1] == ["00_start_here.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook(path):
    assert problems(path) == []


# --- the first lesson ---------------------------------------------------------------------


def start_here():
    return nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)


def test_start_here_quotes_checked_numbers_only():
    """Each decimal and percentage of the prose stands in an output that nbval compares."""
    notebook = start_here()
    outputs = "\n".join(output_text(c) for c in notebook.cells if c.cell_type == "code" and is_checked(c))
    printed = set(re.findall(r"\d+\.\d+", outputs))
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    quoted = re.findall(r"\d*\.\d+|\d+ ?%(?=[\s.,;)])", prose.replace("2512.04695", ""))
    assert quoted, "the prose quotes no number: has the pattern gone wrong?"
    assert [number for number in quoted if number not in printed] == []


def test_start_here_reads_well():
    cells = start_here().cells
    assert 25 <= len(cells) <= 45
    for cell in cells:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if cell.cell_type == "code":
            assert len(lines) <= 10, cell.source
    folds = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    assert folds.count("<details>") == folds.count("</details>") >= 3 + 3  # three answers, three hints
    images = [o for c in cells if c.cell_type == "code" for o in c.outputs if "image/png" in o.get("data", {})]
    assert len(images) >= 5
    assert all(o.metadata.get("image/png", {}).get("alt") for o in images if o.output_type == "display_data")


# --- the guards fail where they should ----------------------------------------------------


def good() -> dict:
    """A small notebook without a problem, as JSON."""
    stream = {"output_type": "stream", "name": "stdout", "text": "0.50\n"}
    code = {"cell_type": "code", "metadata": {}, "execution_count": 1, "id": "a", "source": "x = 1", "outputs": []}
    checked = code | {"execution_count": 2, "id": "b", "source": "print('0.50')", "outputs": [stream]}
    checked["metadata"] = {"tags": ["nbval-check-output"]}
    words = {"cell_type": "markdown", "metadata": {}, "id": "c", "source": "See [itself](lesson.ipynb) and [x](#y)."}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": [code, checked, words], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def written(notebook: dict, folder: Path) -> Path:
    path = folder / "lesson.ipynb"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def test_a_good_notebook_has_no_problem(tmp_path):
    assert problems(written(good(), tmp_path)) == []


def test_a_figure_with_white_edges_is_no_problem(tmp_path):
    notebook = good()
    notebook["cells"][0]["outputs"] = [picture(255)]
    notebook["cells"][0]["source"] = "x" * WIDEST
    assert problems(written(notebook, tmp_path)) == []


def test_a_comment_marks_a_cell_too(tmp_path):
    notebook = good()
    notebook["cells"][1]["metadata"] = {}
    notebook["cells"][1]["source"] = "# NBVAL_CHECK_OUTPUT\nprint('0.50')"
    assert problems(written(notebook, tmp_path)) == []


def doctor(place: list, value):
    """A function that writes a value into the notebook at a place (keys and indices)."""

    def change(notebook: dict) -> None:
        at = notebook
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value

    return change


def picture(grey: int) -> dict:
    """A stored output: a picture all of one grey."""
    buffer = io.BytesIO()
    PIL.Image.new("L", (4, 3), grey).save(buffer, format="png")
    png = base64.b64encode(buffer.getvalue()).decode()
    return {"output_type": "display_data", "metadata": {}, "data": {"image/png": png}}


ERROR = {"output_type": "error", "ename": "E", "evalue": "", "traceback": []}
WARNING = {"output_type": "stream", "name": "stderr", "text": "careful"}
EMPTY = {"output_type": "stream", "name": "stdout", "text": "\n"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (doctor(["metadata", "kernelspec", "name"], "my-env"), "python3"),
        (doctor(["metadata"], {}), "python3"),
        (doctor(["cells", 0, "execution_count"], 7), "top to bottom"),
        (doctor(["cells", 0, "execution_count"], None), "top to bottom"),
        (doctor(["cells", 0, "outputs"], [ERROR]), "error"),
        (doctor(["cells", 0, "outputs"], [WARNING]), "stderr"),
        (doctor(["cells", 1, "outputs"], []), "no stored output"),
        (doctor(["cells", 1, "outputs"], [EMPTY]), "no stored output"),
        (doctor(["cells", 1, "metadata"], {}), "tagged"),
        (doctor(["cells", 0, "source"], "x" * (WIDEST + 1)), "105 characters"),
        (doctor(["cells", 0, "outputs"], [picture(0)]), "cut at its edge"),
        (doctor(["cells", 0, "source"], "open('/ho" + "me/ada/x')"), "home path"),
        (doctor(["cells", 1, "outputs", 0, "text"], "C:" + "\\Users\\ada"), "home path"),
        (doctor(["cells", 1, "outputs", 0, "text"], "x" * MAX_BYTES), "limit"),
        (doctor(["cells", 2, "source"], "see [it](99_nowhere.ipynb)"), "99_nowhere"),
        (doctor(["cells", 2, "cell_type"], "poem"), "no valid notebook"),
        (doctor(["cells", 0], {"cell_type": "code"}), "no valid notebook"),
    ],
)
def test_a_doctored_notebook_is_caught(change, says, tmp_path):
    notebook = copy.deepcopy(good())
    change(notebook)
    found = problems(written(notebook, tmp_path))
    assert len(found) == 1
    assert says in found[0]


def test_a_truncated_notebook_is_caught(tmp_path):
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps(good())[:-20], encoding="utf-8")
    assert problems(path) == ["is no valid notebook (NotJSONError)"]


def test_the_checkout_path_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", Path("/some/where/course"))
    notebook = good()
    notebook["cells"][1]["outputs"][0]["text"] = "wrote /some/where/course/figures/x.png"
    assert problems(written(notebook, tmp_path)) == ["holds the path of this checkout"]
