"""notebooks/README.md says what the lessons hold: exercises, points, minutes, memory, sections, commands."""

import ast
import re
import shlex
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from trinity_mini.__main__ import parser

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
SYLLABUS = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
LESSONS = {p.name: nbformat.read(p, as_version=4) for p in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))}


def tables(text):
    """Each table as a list of rows, a row as a dictionary by the header's names."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        header, _, *rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.strip().splitlines()]
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found


TABLE, WEEKS, DAY = tables(SYLLABUS)
ROWS = {row["lesson"].partition("](")[2].rstrip(")"): row for row in TABLE if row["lesson"].startswith("[")}


def points(name):
    graded = [c.metadata.get("nbgrader", {}) for c in LESSONS[name].cells]
    return [g["points"] for g in graded if g.get("grade")]


def words(name):
    return "\n".join(c.source for c in LESSONS[name].cells if c.cell_type == "markdown")


def number(text):
    return int(re.sub(r"\D", "", text))


def test_every_lesson_is_listed_once_and_in_order():
    assert [*ROWS] == [*LESSONS]
    assert len(TABLE) == len(LESSONS) + 1 and TABLE[-1]["lesson"] == "all"
    for name, row in ROWS.items():
        assert row["lesson"].startswith(f"[{name[:2]} ")


@pytest.mark.parametrize("name", LESSONS)
def test_exercises_and_points_are_those_of_the_notebook(name):
    row, k = ROWS[name], len(points(name))
    assert (number(row["exercises"]), number(row["points"])) == (k, sum(points(name)))
    titles = re.findall(r"^### Exercise (\d+)\.(\d+): \S", words(name), re.MULTILINE)
    assert titles == [(str(int(name[:2])), str(i + 1)) for i in range(k)]
    told = [int(p) for p in re.findall(r"^[●○]{5}[,\s·]+\d+ minutes[,\s·]+(\d+) points?", words(name), re.MULTILINE)]
    assert told == points(name)


@pytest.mark.parametrize("column", ["minutes", "exercises", "points"])
def test_the_last_row_is_the_sum(column):
    assert number(TABLE[-1][column]) == sum(number(row[column]) for row in ROWS.values())


@pytest.mark.parametrize("name", LESSONS)
def test_minutes_and_memory_are_those_of_the_first_cell(name):
    first = LESSONS[name].cells[0].source
    minutes = [int(m) for m in re.findall(r"[Aa]bout (\d+) (?:minutes|more)", first)]
    assert sum(minutes) == number(ROWS[name]["minutes"])
    assert [m.replace(" ", "") for m in re.findall(r"[\d,]+ [GM]B", first)] == [ROWS[name]["memory"].replace(" ", "")]


def numbers_of(text):
    """What `1.1 to 1.4 and 2.1` names, as pairs."""
    found = []
    for a, b in re.findall(r"(?<![\d.])(\d+\.\d)(?: to (\d+\.\d))?", text):
        lesson, last = a.split(".")[0], (b or a).split(".")[1]
        found += [(int(lesson), k) for k in range(int(a.split(".")[1]), int(last) + 1)]
    return found


EVERY = {(int(name[:2]), i + 1) for name in LESSONS for i in range(len(points(name)))}


def test_the_weeks_hold_every_lesson_and_exercise_once():
    assert [n for week in WEEKS for n in re.findall(r"\d\d", week["lessons"])] == [name[:2] for name in LESSONS]
    for week in WEEKS:
        names = [name for name in LESSONS if name[:2] in re.findall(r"\d\d", week["lessons"])]
        assert number(week["points"]) == sum(sum(points(name)) for name in names)
    assert sorted(x for week in WEEKS for x in numbers_of(week["at home"])) == sorted(EVERY)


def test_the_one_day_names_sections_and_exercises_that_exist_and_fits_a_day():
    clock = [int(h) * 60 + int(m) for h, m in (row["from"].split(":") for row in DAY)]
    minutes = [int(row["minutes"]) for row in DAY]
    assert all(a + m <= b for a, m, b in zip(clock, minutes, clock[1:], strict=False)) and 330 <= sum(minutes) <= 420
    for row in DAY:
        name = next(n for n in LESSONS if n.startswith(row["what"][:2]))
        last = max(int(n) for n in re.findall(r"^## (\d+) ", words(name), re.MULTILINE))
        sections = re.search(r"sections? ([\d, and to]+)", row["what"])
        assert all(1 <= int(n) <= last for n in re.findall(r"\d+", sections[1] if sections else ""))
        assert {*numbers_of(row["exercises"])} <= {x for x in EVERY if x[0] == int(name[:2])}


def test_exercises_and_files_named_elsewhere_exist():
    text = re.sub(r"^\|.*$", "", SYLLABUS, flags=re.MULTILINE).replace("3.11 to 3.13", "")
    assert {*numbers_of(text)} <= EVERY
    for path in re.findall(r"\]\((?!\w+:|#)([^)\s]+)\)", SYLLABUS):
        assert (NOTEBOOKS / path).exists(), path
    for path in re.findall(r"`((?:trinity_mini|data)/[\w./]*)`", SYLLABUS):
        assert (NOTEBOOKS.parent / path).exists(), path


COMMANDS = re.findall(r"python -m trinity_mini ([^`\n]+)`", SYLLABUS)


def test_there_are_commands():
    assert {c.split()[0] for c in COMMANDS} == {"student", "grade"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command):
    parser().parse_args(shlex.split(command))


def test_options_named_alone_are_those_of_grade():
    help_text = next(a for a in parser()._actions if a.choices and "grade" in a.choices).choices["grade"].format_help()
    for option in re.findall(r"`(--[\w-]+)`", SYLLABUS):
        assert option in help_text


def test_the_hosted_cell_is_a_cell():
    [cell] = re.findall(r"^```python\n(.*?)^```", SYLLABUS, re.DOTALL | re.MULTILINE)
    ast.parse(TransformerManager().transform_cell(cell))
    assert "%pip install -q -e ./trinity" in cell


def test_a_wrong_syllabus_is_caught(monkeypatch):
    """The guards fail where they should."""
    name = next(n for n in LESSONS if points(n))
    monkeypatch.setitem(ROWS, name, ROWS[name] | {"points": str(sum(points(name)) + 1)})
    with pytest.raises(AssertionError):
        test_exercises_and_points_are_those_of_the_notebook(name)
    with pytest.raises(AssertionError):
        test_the_last_row_is_the_sum("points")
    monkeypatch.delitem(ROWS, name)
    with pytest.raises(AssertionError):
        test_every_lesson_is_listed_once_and_in_order()
