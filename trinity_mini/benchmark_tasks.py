"""The paper's benchmarks: where each one lies on the hub, and how a row of it becomes a question (lesson 11).

Source: paper sections 4.1 (four sets to train and test on) and 4.3 (four for transfer). The wording around the
questions is ours.
"""

from __future__ import annotations

import hashlib
import json
import re
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .code_grader import well_formed
from .quantities import quantity

LONGEST_TRUTH = 30  # characters of an RLPR truth (released run)
LETTERS = "ABCDEFGHIJ"
LONGEST_PROMPT = 200_000  # characters


@dataclass(frozen=True)
class Item:
    """One question of a benchmark. `gold` is for the grader: text, or for programs what `grade_code` takes.

    family: the benchmark's name. kind: a subject, or for programs how they are tested.
    """

    family: str
    prompt: str
    gold: Any = field(hash=False, repr=False)
    id: str
    kind: str = ""


@dataclass(frozen=True)
class Source:
    """One split: its names on the hub, which files of the repository hold it, and how many rows they have."""

    split: str
    files: str  # a glob pattern, relative to the repository
    config: str | None = None
    rows: int | None = None  # None: we do not know


@dataclass(frozen=True)
class Benchmark:
    """A data set on the hub.

    item(row, seed): the row as a question, None if it is left out.
    grading: which grader of `graders` reads the answers: math, option, number, code or judge.
    shared: test and train come from the same rows; a quarter of them, by content, is test.
    gated: one has to accept the owner's terms, and its rows must never be shown in an error.
    """

    name: str
    hub: str
    sources: Mapping[str, Source]
    item: Callable[[Mapping[str, Any], int], Item | None]
    grading: str
    shared: bool = False
    gated: bool = False
    revision: str | None = None


class Ungradable(ValueError):
    """A row that no answer can be graded for: two of its options are the same, or one says nothing."""


def content_id(*parts: str) -> str:
    """12 hex digits of a question's content."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def in_test(item: Item) -> bool:
    """Whether a question of a set without a split of its own is for testing: a quarter is, the same always."""
    return int(content_id("split", item.prompt), 16) % 4 == 0


def fits(item: Item, benchmark: Benchmark) -> bool:
    """Whether a question can be asked and graded: its parts are text, its gold answer is what the grader takes."""
    texts = (item.prompt, item.id, item.kind)
    if item.family != benchmark.name or not all(isinstance(t, str) for t in texts) or not (item.prompt and item.id):
        return False
    if benchmark.grading == "code":
        graded = well_formed(item.kind, item.gold)
    elif benchmark.grading == "option":
        graded = isinstance(item.gold, str) and len(item.gold) == 1 and item.gold in LETTERS
    else:
        graded = isinstance(item.gold, str) and bool(item.gold.strip() or benchmark.grading == "judge")
    return graded and len(item.prompt) <= LONGEST_PROMPT


# ---- rows to questions ----------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Text, or a whole number as text. Raises: TypeError for anything else, which `str` would make a name of."""
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise TypeError
    return str(value)


def _asked(question: object) -> str:
    """The question. Raises: TypeError, ValueError if it is no text, or blank."""
    if not isinstance(question, str):
        raise TypeError
    if not question.strip():
        raise ValueError
    return question


def _math500(row: Mapping[str, Any], seed: int) -> Item:
    return Item("math500", _asked(row["problem"]), _text(row["answer"]), _text(row["unique_id"]), row["subject"])


def _aime25(row: Mapping[str, Any], seed: int) -> Item:
    prompt = f"{_asked(row['problem'])}\n\nThe answer is a whole number from 0 to 999."
    return Item("aime25", prompt, _text(row["answer"]), _text(row["id"]))


def shuffled(options: Sequence[str], right: int, seed: int, name: str) -> tuple[list[str], str]:
    """(the options in an order of their own for each seed and question, the letter of the right one).

    They stay as they are if one speaks of others ("both A and B", "all of the above").
    """
    order = np.arange(len(options))
    if not any(re.search(r"\b(above|below|both|neither|other)\b|\b[A-D]\b[^.]*\b(and|or)\b", o) for o in options):
        order = np.random.default_rng([seed, *name.encode()]).permutation(len(options))
    return [options[i] for i in order], LETTERS[int(np.argmax(order == right))]


def _choice(family: str, question: str, options: Sequence[str], right: int, seed: int, kind: str) -> Item:
    if not isinstance(options, list) or not 0 <= right < len(options) <= len(LETTERS):
        raise ValueError
    name = content_id(_asked(question), *options)
    if len({" ".join(o.split()) for o in options} | {""}) <= len(options):
        raise Ungradable
    shown, letter = shuffled(options, right, seed, name)
    lines = "\n".join(f"({LETTERS[i]}) {o}" for i, o in enumerate(shown))
    return Item(family, f"{question.strip()}\n\n{lines}\n\nAnswer with the letter of one option.", letter, name, kind)


def _mmlu(row: Mapping[str, Any], seed: int) -> Item:
    return _choice("mmlu", row["question"], row["choices"], int(_text(row["answer"])), seed, row["subject"])


def _gpqa(row: Mapping[str, Any], seed: int) -> Item:
    options = [_text(row[k]).strip() for k in ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))]
    return _choice("gpqa", row["Question"], options, 0, seed, row["High-level domain"])


def _rlpr(row: Mapping[str, Any], seed: int) -> Item | None:
    truth = str(row["reward_model"]["ground_truth"]).strip()
    if not 0 < len(truth) <= LONGEST_TRUTH or quantity(truth) is None:  # RLPR is graded by number
        return None
    question = [m["content"] for m in row["prompt"] if m["role"] == "user"][-1]
    if wrapped := re.search(r"\bUser:\s*(.*?)\s*\bAssistant:\s*(?:<think>)?\s*$", question, re.DOTALL):
        question = wrapped[1]
    prompt = f"{_asked(question).strip()}\n\nAnswer with a number, and its unit if it has one."
    return Item("rlpr", prompt, truth, content_id(question), str(row.get("ability") or ""))


_WHOLE = "Write a whole Python program that reads standard input and prints the answer, in one fenced code block."
_STARTER = "Complete this Python code. Give all of it in one fenced code block.\n```python\n{}\n```"


def _livecodebench(row: Mapping[str, Any], seed: int) -> Item:
    metadata = row["metadata"]
    function = (json.loads(metadata) if isinstance(metadata, str) else metadata or {}).get("func_name")
    gold = {"public": row["public_test_cases"], "private": row["private_test_cases"]}
    asked = _STARTER.format(row["starter_code"].rstrip()) if function else _WHOLE
    if function:
        gold["function"] = function
    prompt = f"{_asked(row['question_content']).strip()}\n\n{asked}"
    return Item("livecodebench", prompt, gold, _text(row["question_id"]), "functional" if function else "stdin")


def _bigcodebench(row: Mapping[str, Any], seed: int) -> Item:
    libs = row["libs"] if isinstance(row["libs"], list) else literal_eval(row["libs"])
    prompt = f"{_asked(row['instruct_prompt']).strip()}\n\nGive all of the code in one fenced code block."
    return Item("bigcodebench", prompt, {"test": row["test"], "libs": libs}, row["task_id"], "unittest")


def _mtbench(row: Mapping[str, Any], seed: int) -> Item:
    turns, reference = list(map(_asked, row["prompt"])), [r for r in row["reference"] or () if r]
    prompt = turns[0] if len(turns) == 1 else "\n\n".join(f"({i}) {t}" for i, t in enumerate(turns, 1))
    return Item("mtbench", prompt, "\n\n".join(reference), _text(row["prompt_id"]), row["category"])


_SETS = (
    Benchmark(
        "math500", "HuggingFaceH4/MATH-500", dict.fromkeys(("test", "train"), Source("test", "test.jsonl", rows=500)),
        _math500, "math", shared=True,
    ),
    Benchmark(
        "mmlu", "cais/mmlu",
        {
            "test": Source("test", "all/test-*.parquet", "all", 14042),
            "train": Source("validation", "all/validation-*.parquet", "all", 1531),
        },
        _mmlu, "option",
    ),
    Benchmark(
        "rlpr", "openbmb/RLPR-Train-Dataset",
        dict.fromkeys(("test", "train"), Source("train", "*train*.parquet")), _rlpr, "number", shared=True,
    ),
    Benchmark(
        "livecodebench", "lighteval/code_generation_lite",
        {"test": Source("test", "v6/test-*.parquet", "v6"), "train": Source("test", "v1/test-*.parquet", "v1")},
        _livecodebench, "code",
    ),
    Benchmark("aime25", "math-ai/aime25", {"test": Source("test", "test.jsonl", rows=30)}, _aime25, "math"),
    Benchmark(
        "bigcodebench", "bigcode/bigcodebench", {"test": Source("v0.1.4", "data/v0.1.4-*.parquet", rows=1140)},
        _bigcodebench, "code",
    ),
    Benchmark(
        "mtbench", "HuggingFaceH4/mt_bench_prompts", {"test": Source("train", "data/train-*.parquet", rows=80)},
        _mtbench, "judge",
    ),
    Benchmark(
        "gpqa", "Idavidrein/gpqa", {"test": Source("train", "gpqa_diamond.csv", "gpqa_diamond", 198)},
        _gpqa, "option", gated=True,
    ),
)  # fmt: skip
BENCHMARKS = {b.name: b for b in _SETS}
TRAINED_ON = ("math500", "mmlu", "rlpr", "livecodebench")
TRANSFER = ("aime25", "bigcodebench", "mtbench", "gpqa")
