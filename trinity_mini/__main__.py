"""The course's commands; `python -m trinity_mini --help` lists them."""

from __future__ import annotations

if __name__ == "__main__":  # Ctrl-C at any moment, the slow imports too, or a scheduler's end: one line, no traceback
    import os
    import signal
    import sys

    STOPPED = b"\nstopped: what was finished is kept; give the same command again, and a training goes on from there.\n"

    ENDS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def stop(number: int, _: object) -> None:  # files change by rename only
        for end in ENDS:
            signal.signal(end, lambda *_: os._exit(128 + number))
        try:
            pools = sys.modules.get("trinity_mini.llm_pool")
            if out := getattr(pools, "stop_asking", int)():
                os.write(2, f"\nwaiting for {out} replies that are paid; Ctrl-C again to leave\n".encode())
                getattr(pools, "wait_for_paid", int)()
            os.write(2, STOPPED)
        finally:
            os._exit(128 + number)

    for end in ENDS:  # not where a shell or nohup lets it be ignored
        if signal.getsignal(end) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(end, stop)

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import commands, llm_commands
from .commands import Row, writable
from .files import DATA, ROOT, UserError, write_atomically


def whole(least: int, most: int) -> Callable[[str], int]:
    """An argparse type: a whole number from least to most."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a whole number from {least} to {most}")
        return value

    return number


positive, most, seed = whole(1, 10**9), whole(1, 10_000), whole(0, 2**32 - 1)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m trinity_mini", description=__doc__)
    p.add_argument("--threads", type=whole(1, 256), default=1, help="torch threads (default 1: best on a busy machine)")
    subparsers = p.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        c = subparsers.add_parser(name, help=text, description=text)
        does = name.replace("-", "_")
        c.set_defaults(run=getattr(commands, does, None) or getattr(llm_commands, does))
        c.add_argument("--json", metavar="FILE", help="write rows of name, family, value, se, n, unit (- for stdout)")
        return c

    def real(c: argparse.ArgumentParser) -> None:
        c.add_argument("--pool", type=Path, metavar="FILE", help="a pool file (see data/pools) instead of the preset's")
        c.add_argument("--root", type=Path, metavar="FOLDER", help="of benchmark files, where there is no network")

    c = add("make-pool", "Train the embedded agents and the coordinator's SLM; resumes where it stopped.")
    c.add_argument("--out", type=Path, default=DATA / "tiny_pool", help="agents' folder (default data/tiny_pool)")
    c.add_argument("--slm", type=Path, default=DATA / "coordinator", help="SLM's folder (default data/coordinator)")
    c.add_argument("--state", type=Path, default=ROOT / "runs" / "make-pool", help="where unfinished training is kept")
    c.add_argument("--agent", action="append", metavar="NAME", help="train this agent only (may be repeated)")
    c.add_argument("--steps", type=positive, help="updates of each model (default: see the cards)")
    c.add_argument("--seed", type=seed, default=1)

    c = add("train", "Train the coordinator, evaluate it and draw figures; resumes where it stopped.")
    c.add_argument("--preset", default="mini", help="see trinity_mini/presets.py (default mini)")
    c.add_argument("--seed", type=seed, default=1)
    c.add_argument("--out", type=Path, help="run folder (default runs/PRESET-SEED)")
    c.add_argument("--episodes", type=positive, help="budget in training episodes, rounded to generations")
    c.add_argument("--figures", type=Path, help="where figures are written (default: the run folder)")
    c.add_argument("--per-family", type=most, default=200, help="test questions of each family (default 200)")
    c.add_argument("--no-evaluate", action="store_true", help="train only")
    real(c)

    c = add("evaluate", "Measure trained coordinators and all baselines on held-out questions.")
    c.add_argument("checkpoints", nargs="*", type=Path, help="run folders or theta.safetensors files (default shipped)")
    c.add_argument("--preset", help="default: that of the first run, and its pool file")
    c.add_argument("--family", action="append", metavar="NAME", help="only these families, also -hard ones")
    c.add_argument("--per-family", type=most, default=200, help="test questions of each family (default 200)")
    c.add_argument("--seed", type=seed, default=11, help="of the questions and the draws")
    c.add_argument("--transfer", action="store_true", help="take a checkpoint of another pool with as many agents")
    c.add_argument("--out", type=Path, help="where replies are kept (default: the run's folder)")
    real(c)

    c = add("ask", "Play one question aloud: who was chosen with what probability, and what was said.")
    c.add_argument("question", help="for example 'capital peru' or '(3*6-3)%%7'")
    c.add_argument("--checkpoint", type=Path, help="a run folder or theta.safetensors (default the shipped one)")
    c.add_argument("--preset", help="default: that of the checkpoint's run, and its pool file")
    c.add_argument("--seed", type=seed, default=0, help="of the draws")
    c.add_argument("--pool", type=Path, metavar="FILE", help="a pool file (see data/pools) instead of the preset's")

    c = add("estimate", "Play a few pilot episodes, then say what a whole training would cost, with an interval.")
    c.add_argument("--preset", default="mini", help="of the planned training (default mini)")
    c.add_argument("--pilot", type=whole(5, 10_000), default=20, help="pilot episodes (default 20)")
    c.add_argument("--episodes", type=positive, help="of the planned run (default: the preset's, validation counted)")
    c.add_argument("--per-family", type=most, default=200, help="test questions of its evaluation (default 200)")
    c.add_argument("--seed", type=seed, default=1)
    c.add_argument("--out", type=Path, help="where the pilot's replies are kept (default runs/pilot-PRESET)")
    real(c)

    c = add("pool", "Does each agent of a pool file answer? What did a run cost? Ask lost calls again.")
    c.add_argument("what", choices=["check", "ledger", "forget-lost"])
    c.add_argument("path", type=Path, help="check: a pool file; else: a run folder")

    c = add("serve", "Serve a GGUF model over the OpenAI API on this machine, SmolLM2 if none is named.")
    c.add_argument("path", nargs="?", type=Path, metavar="FILE", help="a .gguf file")
    c.add_argument("--port", type=whole(1, 65535), default=8080)
    c.add_argument("--slots", type=whole(1, 64), default=2, help="replies at a time (default 2)")
    c.add_argument("--context", type=whole(128, 10**6), default=2048, help="tokens of a conversation (default 2048)")

    c = add("load-released", "Make a checkpoint of a parameter vector in the layout of the authors' released run.")
    c.add_argument("file", type=Path, help=".npy, .npz, .pt, .safetensors or .json with 19,456 numbers")
    c.add_argument("--slm", default="Qwen/Qwen3-0.6B", help="a name on the hub or a folder (default Qwen/Qwen3-0.6B)")
    c.add_argument("--agents", type=whole(1, 1000), default=7, help="agents of the pool (default 7)")
    c.add_argument("--out", type=Path, default=ROOT / "runs" / "released" / "theta.safetensors")

    c = add("bench", "Print the ratios of this machine: svf, es or episodes; or states per second and their bound.")
    c.add_argument("what", nargs="?", default="states", choices=["svf", "es", "episodes", "states"])
    c.add_argument("--model", help="states: embedded, random, qwen3-0.6b, or a chat model's name or folder")
    c.add_argument("--device", help="states: cpu or cuda")
    c.add_argument("--quick", action="store_true", help="a short form, for tests")

    c = add("student", "Write notebooks/student/ from the lessons: without solutions and hidden tests.")
    c.add_argument("--check", action="store_true", help="write nothing; exit code 2 if one is stale")

    c = add("grade", "Grade handed-in notebooks; writes grades.csv and a report of each (see grade.py).")
    c.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="notebooks, or folders that hold them")
    c.add_argument("--out", type=Path, default=Path("grades"), metavar="FOLDER", help="default grades/")
    c.add_argument("--cell-time", type=positive, default=120, metavar="SECONDS", help="of one cell (default 120)")
    c.add_argument("--time", type=positive, default=900, metavar="SECONDS", help="of one notebook (default 900)")
    c.add_argument("--memory", type=whole(256, 10**7), default=4096, metavar="MIB", help="of a kernel (default 4096)")

    c = add("study", "Run a study of lessons 08 to 10 (or `all`); resumes job by job (see study.py).")
    c.add_argument("name", help="a name of study.MODULES, or all")
    c.add_argument("--quick", action="store_true", help="a small form, for tests; not written into data/runs")
    c.add_argument("--processes", type=whole(1, 256), default=1, help="jobs at a time on this machine (default 1)")
    c.add_argument("--cluster", metavar="ADDRESS", help="of a dask.distributed scheduler, instead of processes here")
    c.add_argument("--state", type=Path, default=ROOT / "runs" / "studies", help="where rows of finished jobs are kept")
    c.add_argument("--out", type=Path, help="where the study's file is written (default data/runs)")

    c = add("claims", "Print the paper's claims beside what the recorded studies show.")
    c.add_argument("--runs", type=Path, default=DATA / "runs", help="folder of the studies' files (default data/runs)")

    c = add("figures", "Draw the figures of lessons 08 to 10 again, from data/runs.")
    c.add_argument("names", nargs="*", metavar="NAME", help="only these (default all)")
    c.add_argument("--out", type=Path, default=ROOT / "figures", help="where they are written (default figures/)")
    return p


def as_json(rows: Sequence[Row]) -> str:
    """Rows as strict JSON: what is no number becomes null."""

    def plain(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps([{k: plain(v) for k, v in r.items()} for r in rows], indent=1, allow_nan=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 0; 2 for what the user can mend; 141 if nobody reads the output (130: Ctrl-C)."""
    args = parser().parse_args(argv)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(args.threads))
    to_stdout = args.json == "-"
    try:
        if args.json is not None and not to_stdout:
            writable(Path(args.json))
        import torch

        torch.set_num_threads(args.threads)
        with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
            rows = args.run(args)
        if args.json is not None and not to_stdout:
            try:
                write_atomically(Path(args.json), as_json(rows).encode())
            except UserError:
                print(as_json(rows))  # a full disk: do not lose them
                raise
        print(as_json(rows) if to_stdout else "", end="", flush=True)
        return 0
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except OSError as e:  # of standard output: all else is a UserError
        with contextlib.suppress(OSError):  # what is still buffered has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(e, BrokenPipeError):
            return 141
        print(f"error: {e}: free some space or check the path, then give the same command again.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller
            stream.reconfigure(errors="replace")
    raise SystemExit(main())
