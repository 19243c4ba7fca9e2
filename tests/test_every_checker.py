"""What holds for the checkers of all lessons; the messages of each lesson's wrong answers have files of their own."""

import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lesson import definitions

import trinity_mini
from trinity_mini.checks import Wrong

LESSONS = {
    "01_one_question_many_models": "pool",
    "02_hidden_states": "states",
    "03_the_head": "head",
    "04_svf": "svf",
    "05_the_loop": "loop",
    "06_sep_cma_es": "es",
    "07_training": "training",
    "08_separability": "separability",
    "09_evolution_or_gradients": "baselines",
    "10_emergent_roles": "roles",
    "11_real_models": "llm",
}
# What solutions take from their lesson.
HELPERS = {"03_the_head": ["softmax"], "09_evolution_or_gradients": ["softmax"]}


def checkers(lesson):
    module = importlib.import_module(f"trinity_mini.checks_{LESSONS[lesson]}")
    found = {name.removeprefix("check_"): f for name, f in vars(module).items() if name.startswith("check_")}
    assert 4 <= len(found) <= 5 and all(f.__module__ == module.__name__ for f in found.values())
    return found


@pytest.fixture(scope="module", params=LESSONS)
def exercises(request):
    """(name, its checker, the lesson's solution) of a lesson."""
    found = checkers(request.param)
    solutions = definitions(f"{request.param}.ipynb", *found, *HELPERS.get(request.param, ()))
    return [(name, check, solutions[name]) for name, check in found.items()]


def test_the_solutions_pass_and_touch_no_global_stream(exercises, capsys, global_streams_untouched):
    for name, check, solution in exercises:
        for _ in range(5):  # fresh inputs each time
            check(solution)
        assert re.fullmatch(rf"(\[OK\] {name} agrees on \d+ random inputs\n){{5}}", capsys.readouterr().out)


def test_what_is_not_done_yet_stays_so(exercises):
    def stub(*arguments):
        raise NotImplementedError

    async def later(*arguments):
        raise NotImplementedError

    for _, check, solution in exercises:
        for unfinished in (stub, later) if inspect.iscoroutinefunction(solution) else (stub,):
            with pytest.raises(NotImplementedError):
                check(unfinished)


ODD = [
    None, 3.5, float("nan"), float("inf"), True, 10**400, "x", b"x", (), (1, 2, 3), [[1], [2, 3]], {}, {1: None}, {2},
    object(), print, np.zeros(2), np.zeros((2, 2)), np.zeros(0), np.array("x"), np.array([None, 1]), np.float32(1),
    np.array(["nan", "1"]), torch.zeros(2), torch.zeros(0, 3), torch.zeros(2, requires_grad=True),
    pd.DataFrame({"a": [1]}), pd.Series([1.0]),
]  # fmt: skip


def test_whatever_is_returned_the_answer_is_a_sentence(exercises):
    for name, check, _ in exercises:
        for odd in ODD:
            with pytest.raises(Wrong) as caught:
                check(lambda *arguments, odd=odd: odd)
            assert 10 < len(str(caught.value)) < 700, (name, odd)


def test_no_checker_was_left_out():
    folder = Path(trinity_mini.__file__).parent
    assert {p.stem.removeprefix("checks_") for p in folder.glob("checks_*.py")} == set(LESSONS.values())
