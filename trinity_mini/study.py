"""Long measurements as studies: many independent jobs, each resumed where it was stopped (lessons 08 to 10).

A study is a list of jobs (plain JSON values, a seed among them) and a function that turns one into rows. A job's rows
are kept under a hash of what it was, so the same command goes on after kill -9, on local processes or on a
dask.distributed cluster, to the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from .files import DATA, UserError, write_atomically

Job = dict[str, Any]
Row = dict[str, Any]
PATIENCE = 10  # seconds to wait for a scheduler
WINDOWS_MOST = 61  # processes that a pool can wait for on Windows (concurrent.futures)


@dataclass(frozen=True)
class Study:
    """name: also the name of its file in data/runs. jobs, quick: the full list, and the one for a smoke test.

    run(job) -> rows, each a flat dict of JSON values.
    """

    name: str
    what: str
    jobs: Sequence[Job]
    quick: Sequence[Job]
    run: Callable[[Job], list[Row]]


# name -> the module whose STUDIES holds it; imported when first asked for.
MODULES: dict[str, str] = {
    "separability-calibration": "separability_studies",
    "separability-noise": "separability_studies",
    "separability-head": "separability_studies",
    "separability-svf": "separability_studies",
    "separability-diagonal": "separability_studies",
    "reinforce_sweep": "baseline_studies",
    "methods": "baseline_studies",
    "methods_five_turns": "baseline_studies",
    "gradient_snr": "baseline_studies",
    "winner_map": "baseline_studies",
    "svf_methods": "baseline_studies",
    "ablations": "ablation_studies",
    "heads": "ablation_studies",
    "emergence": "ablation_studies",
}


def study(name: str) -> Study:
    """A study by name. Raises: UserError for an unknown one."""
    if name not in MODULES:
        raise UserError(f"unknown study {name!r}: choose from {', '.join(MODULES)} or all.")
    return import_module(f".{MODULES[name]}", __package__).STUDIES[name]


def job_key(name: str, job: Job) -> str:
    """What a job's rows are kept under: 16 hexadecimal digits of its study and values."""
    return hashlib.sha256(json.dumps([name, job], sort_keys=True).encode()).hexdigest()[:16]


def run_job(name: str, run: Callable[[Job], list[Row]], job: Job, folder: str) -> None:
    """Run one job, here or in another process, and keep its rows in folder/KEY.json."""
    import torch

    torch.set_num_threads(1)  # a process has one core
    start, cpu = time.monotonic(), time.process_time()
    rows = run(job)
    took = {"wall": round(time.monotonic() - start, 2), "cpu": round(time.process_time() - cpu, 2)}
    record = {"job": job, "rows": rows, "seconds": took, "machine": machine(), "commit": commit()}
    write_atomically(Path(folder) / f"{job_key(name, job)}.json", json.dumps(record, allow_nan=False).encode())


def run_study(
    s: Study, folder: Path, quick: bool = False, processes: int = 1, cluster: str | None = None
) -> Iterator[tuple[int, int]]:
    """Run the jobs that have no rows yet; yields (done, all) after each.

    processes: how many on this machine (Windows: at most 61); cluster: address of a dask.distributed scheduler instead.
    Raises: UserError if a job failed; the others' rows are kept.
    """
    jobs = s.quick if quick else s.jobs
    folder = folder.resolve()  # workers elsewhere have another working directory
    folder.mkdir(parents=True, exist_ok=True)
    left = [job for job in jobs if _kept(folder, s.name, job) is None]
    done = len(jobs) - len(left)
    yield done, len(jobs)
    if not left:
        return
    with _executor(processes, cluster) as (submit, completed):
        futures = (submit(run_job, s.name, s.run, job, str(folder)) for job in left)
        for future in completed(futures):
            try:
                future.result()
            except UserError:
                raise
            except Exception as e:
                raise UserError(
                    f"a job of the study {s.name} failed ({type(e).__name__}: {e}): mend it and start again."
                ) from e
            done += 1
            yield done, len(jobs)


def collect(s: Study, folder: Path, out: Path, quick: bool = False) -> Path:
    """Write all rows as out/NAME.jsonl: a line that says how they were made, then a line a row, in the jobs' order."""
    head: dict[str, Any] = {"study": s.name, "what": s.what, "cpu": 0.0, "machine": [], "commit": []}
    rows: list[Row] = []
    for job in s.quick if quick else s.jobs:
        record = _kept(folder, s.name, job)
        if record is None:
            raise UserError(f"{folder} lacks rows of {s.name}: the workers must write into this same folder.")
        head["cpu"] = round(head["cpu"] + record["seconds"]["cpu"], 2)
        for name in ("machine", "commit"):
            head[name] = sorted({*head[name], record[name]})
        rows += [{**record["job"], **row} for row in record["rows"]]
    path = out / f"{s.name}.jsonl"
    write_atomically(path, jsonl(head, rows))
    return path


def jsonl(head: Row, rows: Sequence[Row]) -> bytes:
    """A study's file: a line that says how the rows were made, how many they are and their hash, then a line a row."""
    lines = [json.dumps(row, allow_nan=False) for row in rows]
    return ("\n".join([json.dumps(head | {"rows": len(lines), "sha256": _digest(lines)}), *lines]) + "\n").encode()


def frame(name: str, folder: Path = DATA / "runs"):
    """The recorded rows of a study as a data frame. Raises: UserError if they are missing or damaged."""
    import pandas as pd

    path = Path(folder) / f"{name}.jsonl"
    try:
        first, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
        head = json.loads(first)
        if not (isinstance(head, dict) and head.get("study") == name and head.get("sha256") == _digest(lines)):
            raise ValueError("its rows are not those that were written")
        return pd.DataFrame([json.loads(line) for line in lines])
    except (OSError, ValueError, RecursionError) as e:
        raise UserError(f"{path} cannot be read ({e}): run `python -m trinity_mini study {name}`.") from None


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def machine() -> str:
    """This machine in a few words."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """The checkout's commit, with a + if files differ from it; `unknown` outside one."""
    here = Path(__file__).resolve().parent
    try:
        git = ["git", "-C", str(here)]
        found = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _kept(folder: Path, name: str, job: Job) -> dict[str, Any] | None:
    """The record of a finished job; None if there is none, or none that `run_job` wrote for this very job."""
    try:
        record = json.loads((folder / f"{job_key(name, job)}.json").read_text(encoding="utf-8"))
        json.dumps(record, allow_nan=False)
        fits = record["job"] == json.loads(json.dumps(job)) and all(isinstance(r, dict) for r in record["rows"])
        texts = isinstance(record["machine"], str) and isinstance(record["commit"], str)
        return record if fits and texts and float(record["seconds"]["cpu"]) >= 0 else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _end_with_parent() -> None:
    """A worker whose parent was killed would go on for hours, beside the workers of the next start."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _executor(processes: int, cluster: str | None) -> Iterator[tuple[Callable[..., Future], Callable]]:
    """(submit, as_completed) of this process, of local processes or of a dask cluster; what is left is cancelled."""
    if cluster is None and processes == 1:
        yield _now, iter
    elif cluster is None:
        if sys.platform == "win32":
            processes = min(processes, WINDOWS_MOST)
        pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_end_with_parent)
        try:
            yield pool.submit, lambda futures: as_completed(list(futures))
        finally:
            pool.shutdown(cancel_futures=True)
    else:
        try:
            from distributed import Client
            from distributed import as_completed as completed
        except ImportError:
            raise UserError("dask.distributed is not installed: pip install -e .[cluster]") from None
        try:
            client = Client(cluster, timeout=PATIENCE)
        except (OSError, ValueError) as e:
            raise UserError(f"no dask scheduler at {cluster} ({e}): start one with `dask scheduler`.") from None
        with client:
            yield partial(client.submit, pure=False), lambda futures: completed(list(futures))


def _now(function: Callable, *args: Any) -> Future:
    """Run it at once."""
    future: Future = Future()
    try:
        future.set_result(function(*args))
    except Exception as e:
        future.set_exception(e)
    return future
