"""Questions of the paper's benchmarks, from the hub or from a local folder, and their grader (lesson 11).

`load("math500", "train", n=240)` gives questions, `grader("math500")` a coroutine function that takes one and an answer
and gives 1, 0 or None: it cannot be told.
"""

from __future__ import annotations

import asyncio
import csv
import hashlib
import heapq
import json
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from .benchmark_tasks import BENCHMARKS, Benchmark, Item, Source, Ungradable, content_id, fits, in_test
from .files import ROOT, UserError, write_atomically
from .graders import grade_code, grade_math, grade_number, grade_option, judge
from .hub import need_hub
from .pool import Pool
from .sandbox import Kind

CACHE = ROOT / "runs" / "benchmarks"
FORMAT = 2  # of the cache: raise it when a row becomes another question than before

Grade = Callable[[Item, str | None], Awaitable[float | None]]


def load(
    name: str, split: str = "test", n: int | None = None, seed: int = 0, root: Path | None = None, cache: Path = CACHE
) -> list[Item]:
    """Questions of a benchmark, the same for the same arguments.

    n: a sample of so many, in an order of its own, so that a smaller sample is the beginning of a larger one; None:
    all, as they come. The seed decides the sample and the order of options. root: a local copy of the data set's
    repository; without it, the hub is asked once and the questions kept as one file in `cache`. LiveCodeBench's v1
    (train) has 1.2 GB of tests: they are read whole, and n of 400 questions kept. It warns if files hold fewer or more
    rows than the data set has, and of questions left out because two of their options are the same.
    Raises: UserError for an unknown name or split, too few questions, unreadable files, no network, terms to accept.
    """
    if name not in BENCHMARKS:
        raise UserError(f"unknown benchmark {name!r}: choose from {', '.join(BENCHMARKS)}.")
    benchmark = BENCHMARKS[name]
    if split not in benchmark.sources:
        raise UserError(f"{name} has no split {split!r}: choose from {', '.join(benchmark.sources)}.")
    if root is not None:
        return _chosen(_items(benchmark, split, seed, _local_rows(benchmark, split, Path(root))), n, seed, name)
    path = Path(cache) / f"{name}-{split}-{'all' if n is None else n}-{seed}.jsonl"
    header = {"format": FORMAT, "hub": benchmark.hub, "revision": benchmark.revision}
    if path.exists():
        return _from_cache(path, header, benchmark, n)
    items = _chosen(_items(benchmark, split, seed, _hub_rows(benchmark, split)), n, seed, name)
    lines = [json.dumps(row) for row in (header, *map(asdict, items))]
    write_atomically(path, "".join(line + "\n" for line in lines).encode())
    return items


def _from_cache(path: Path, header: Mapping[str, Any], benchmark: Benchmark, n: int | None) -> list[Item]:
    try:
        first, *rows = path.read_text(encoding="utf-8").splitlines()
        if json.loads(first) != header:
            raise ValueError
        items = [Item(**json.loads(row)) for row in rows]
        if not items or n not in (None, len(items)) or not all(fits(item, benchmark) for item in items):
            raise ValueError
        return items
    except (OSError, ValueError, TypeError, RecursionError, MemoryError):
        raise UserError(f"{path} is damaged or of another version: delete it, and it is fetched again.") from None


def _chosen(items: Iterator[Item], n: int | None, seed: int, name: str) -> list[Item]:
    if n is None:
        return list(items)
    if n < 1:
        raise UserError("n must be at least 1.")
    chosen = heapq.nsmallest(n, items, key=lambda item: hashlib.sha256(f"{seed}:{item.id}".encode()).digest())
    if len(chosen) < n:
        raise UserError(f"{name} has only {len(chosen)} such questions: ask for no more than that.")
    return chosen


# What a row of another form may raise; literal_eval and json on absurd depth, the last two.
_ODD_ROW = (KeyError, TypeError, ValueError, IndexError, AttributeError, SyntaxError, RecursionError, MemoryError)


def _items(benchmark: Benchmark, split: str, seed: int, rows: Iterator[Mapping[str, Any]]) -> Iterator[Item]:
    """The questions of the rows, each once."""
    seen: dict[str, str] = {}  # a digest of the question for each id
    read = ungradable = 0
    kept = False
    for read, row in enumerate(rows, 1):
        try:
            item = benchmark.item(row, seed)
            if item is None:
                continue
            if not fits(item, benchmark):
                raise TypeError
        except Ungradable:
            ungradable += 1
            continue
        except _ODD_ROW as e:
            what = f"column {e}" if isinstance(e, KeyError) and not benchmark.gated else type(e).__name__
            raise UserError(
                f"row {read} of {benchmark.hub} is not as it was ({what}): set an older `revision` in its record."
            ) from None
        known, digest = item.id in seen, content_id(item.prompt)
        if seen.setdefault(item.id, digest) != digest:
            raise UserError(
                f"row {read} of {benchmark.hub} has the id of an earlier row and another question: download it again."
            )
        if not known and (not benchmark.shared or in_test(item) == (split == "test")):
            kept = True
            yield item
    if not kept:
        raise UserError(f"{benchmark.hub} has no question for {split!r} in these files: download them again.")
    wanted = benchmark.sources[split].rows
    if wanted is not None and read != wanted:
        warnings.warn(f"{benchmark.hub} has {wanted} rows for {split!r}, but {read} were read: a part?", stacklevel=2)
    if ungradable:
        warnings.warn(
            f"{ungradable} of {read} rows of {benchmark.hub} are left out: options are equal or empty.", stacklevel=2
        )


# ---- rows -----------------------------------------------------------------------------------------------


def _jsonl_rows(path: str) -> Iterator[Mapping[str, Any]]:
    """The objects of a file, one a line, or one list of them. Raises: ValueError for anything else.

    Not by `datasets`: a line that is `null` makes pyarrow crash the interpreter.
    """
    with open(path, encoding="utf-8-sig") as f:
        lines = (line for line in f if not line.isspace())
        first = next(lines, None)
        if first is not None and first.lstrip().startswith("["):
            rows = iter(json.loads("".join((first, *lines))))
        else:
            rows = map(json.loads, chain(() if first is None else (first,), lines))
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError
            yield row


def _csv_rows(path: str) -> Iterator[Mapping[str, Any]]:
    """The rows as text: no "None", "NA" or number among the options becomes anything else."""
    with open(path, encoding="utf-8-sig", newline="") as f:
        yield from csv.DictReader(f, strict=True)


def _parquet_rows(files: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    from datasets import load_dataset

    yield from load_dataset("parquet", data_files={"rows": list(files)}, split="rows", streaming=True)


def _local_rows(benchmark: Benchmark, split: str, root: Path) -> Iterator[Mapping[str, Any]]:
    source = benchmark.sources[split]
    files = sorted(str(f) for f in root.glob(source.files))
    if files and not any(Path(f).stat().st_size for f in files):
        raise UserError(f"{source.files} in {root} is empty: download it again.")
    if not files:
        raise UserError(
            f"{root} holds no {source.files}: fill it by `hf download {benchmark.hub} --repo-type dataset "
            f"--local-dir {root}` where there is a network."
        )
    parts = max((int(m[1]) for f in files if (m := re.search(r"-of-(\d{1,5})\.parquet$", f))), default=0)
    if len(files) < parts:
        raise UserError(f"{root} holds {len(files)} of {parts} files {source.files}: download it again.")
    try:
        if files[0].endswith(".parquet"):
            yield from _parquet_rows(files)
        else:
            yield from chain.from_iterable(map(_csv_rows if files[0].endswith(".csv") else _jsonl_rows, files))
    except UserError:
        raise
    except Exception as e:  # whatever a damaged file makes pyarrow or json raise; its text may quote a row
        raise UserError(f"{source.files} in {root} cannot be read ({type(e).__name__}): download it again.") from None


def _hub_rows(benchmark: Benchmark, split: str) -> Iterator[Mapping[str, Any]]:
    source: Source = benchmark.sources[split]
    need_hub(benchmark.hub, _remedy(benchmark))
    from datasets import load_dataset

    as_text = {"na_filter": False} if source.files.endswith(".csv") else {}  # "None" is an option, too
    try:
        yield from load_dataset(
            benchmark.hub, source.config, split=source.split, streaming=True, revision=benchmark.revision, **as_text
        )
    except Exception as e:
        if benchmark.gated:
            raise UserError(
                f"{benchmark.hub} is gated: accept its terms on its page on the hub, and set HF_TOKEN to a token of "
                f"that account ({type(e).__name__})."
            ) from None
        raise UserError(f"{benchmark.hub} cannot be read ({type(e).__name__}): {_remedy(benchmark)}.") from None


def _remedy(benchmark: Benchmark) -> str:
    return (
        f"run `hf download {benchmark.hub} --repo-type dataset --local-dir FOLDER/{benchmark.name}` where there is "
        "a network and give --root FOLDER (in Python, root=FOLDER with the name)"
    )


# ---- grading --------------------------------------------------------------------------------------------

_THREADS = ThreadPoolExecutor(2, "grader")  # each waits for a process of math-verify or a sandbox


def grade_now(item: Item, answer: str | None, sandbox: str = "auto") -> bool | None:
    """The verdict of the item's grader; blocks. Not for MT-Bench, which needs a judge."""
    grading = BENCHMARKS[item.family].grading
    if grading == "code":
        return grade_code(item.kind, item.gold, answer, sandbox)
    return {"math": grade_math, "option": grade_option, "number": grade_number}[grading](item.gold, answer)


def grader(what: str | Sequence[Item], judged_by: Pool | None = None, agent: int = 0, sandbox: str = "auto") -> Grade:
    """The grading function for a benchmark, or for questions of several, as `episode.play` takes it.

    It gives 1 or 0, for MT-Bench a tenth of the judge's score, or None: it cannot be told, so leave the episode out.
    A grader that fails on an answer (which would be a fault in it) gives None too: one answer ends no paid run.
    Graders run beside the event loop, two at a time. judged_by, agent: who judges MT-Bench.
    sandbox: "auto", or "process", which can run BigCodeBench's libraries and is no security boundary.
    Raises: UserError for an unknown benchmark or sandbox, or MT-Bench without a judge.
    """
    names = {what} if isinstance(what, str) else {item.family for item in what}
    if unknown := names - set(BENCHMARKS):
        raise UserError(f"unknown benchmark {sorted(unknown)[0]!r}: choose from {', '.join(BENCHMARKS)}.")
    if sandbox not in get_args(Kind):
        raise UserError(f"unknown sandbox {sandbox!r}: choose from {', '.join(get_args(Kind))}.")
    if judged_by is None and any(BENCHMARKS[n].grading == "judge" for n in names):
        raise UserError("MT-Bench is graded by a model: name one by judged_by= a pool, and agent=.")

    async def grade(item: Item, answer: str | None) -> float | None:
        if BENCHMARKS[item.family].grading == "judge":
            if not answer:
                return 0.0
            assert judged_by is not None
            score = await judge(judged_by, item.prompt, answer, item.gold, agent)
            return None if score is None else score / 10
        loop = asyncio.get_running_loop()
        try:
            verdict = await loop.run_in_executor(_THREADS, grade_now, item, answer, sandbox)
        except UserError:
            raise
        except Exception:
            return None
        return None if verdict is None else float(verdict)

    return grade
