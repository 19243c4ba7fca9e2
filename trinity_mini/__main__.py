"""Commands: python -m trinity_mini make-pool | train | evaluate | ask | bench | student | grade."""

from __future__ import annotations

if __name__ == "__main__":  # Ctrl-C at any moment, the slow imports too: one line, exit code 130, no traceback
    import os
    import signal

    STOPPED = b"\nstopped: nothing is lost; give the same command again, and a training goes on where it was.\n"
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: (os.write(2, STOPPED), os._exit(130)))  # files change by rename only

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .files import DATA, ROOT, UserError, write_atomically

Row = dict[str, Any]


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


positive, seed = whole(1, 10**9), whole(0, 2**32 - 1)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m trinity_mini", description=__doc__)
    p.add_argument("--threads", type=whole(1, 256), default=1, help="torch threads (default 1: best on a busy machine)")
    commands = p.add_subparsers(dest="command", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], list[Row]], text: str) -> argparse.ArgumentParser:
        c = commands.add_parser(name, help=text, description=text)
        c.set_defaults(run=run)
        c.add_argument("--json", metavar="FILE", help="write rows of name, family, value, se, n, unit (- for stdout)")
        return c

    c = add("make-pool", make_pool, "Train the embedded agents and the coordinator's SLM; resumes where it stopped.")
    c.add_argument("--out", type=Path, default=DATA / "tiny_pool", help="agents' folder (default data/tiny_pool)")
    c.add_argument("--slm", type=Path, default=DATA / "coordinator", help="SLM's folder (default data/coordinator)")
    c.add_argument("--state", type=Path, default=ROOT / "runs" / "make-pool", help="where unfinished training is kept")
    c.add_argument("--agent", action="append", metavar="NAME", help="train this agent only (may be repeated)")
    c.add_argument("--steps", type=positive, help="updates of each model (default: as recorded in the cards)")
    c.add_argument("--seed", type=seed, default=1)

    c = add("train", train, "Train the coordinator, evaluate it and draw figures; resumes where it stopped.")
    c.add_argument("--preset", default="mini", help="see trinity_mini/presets.py (default mini)")
    c.add_argument("--seed", type=seed, default=1)
    c.add_argument("--out", type=Path, help="run folder (default runs/PRESET-SEED)")
    c.add_argument("--episodes", type=positive, help="budget in training episodes instead of the preset's generations")
    c.add_argument("--figures", type=Path, help="where figures are written (default: the run folder)")
    c.add_argument("--per-family", type=positive, default=200, help="test questions of each family (default 200)")
    c.add_argument("--no-evaluate", action="store_true", help="train only")

    c = add("evaluate", evaluate, "Measure trained coordinators and all baselines on held-out questions.")
    c.add_argument("checkpoints", nargs="*", type=Path, help="run folders or theta.safetensors files (default shipped)")
    c.add_argument("--preset", default="mini")
    c.add_argument("--family", action="append", metavar="NAME", help="only these families, also -hard ones")
    c.add_argument("--per-family", type=positive, default=200, help="test questions of each family (default 200)")
    c.add_argument("--seed", type=seed, default=11, help="of the questions and the draws")

    c = add("ask", ask, "Play one question aloud: who was chosen with what probability, and what was said.")
    c.add_argument("question", help="for example 'capital peru' or '(3*6-3)%%7'")
    c.add_argument("--checkpoint", type=Path, help="theta.safetensors (default the shipped one)")
    c.add_argument("--preset", default="mini")
    c.add_argument("--seed", type=seed, default=0, help="of the draws")

    c = add("bench", bench, "Print the ratios of this machine: svf, es or episodes.")
    c.add_argument("what", choices=["svf", "es", "episodes"])
    c.add_argument("--quick", action="store_true", help="a short form, for tests")

    c = add("student", student, "Write notebooks/student/ from the lessons: without solutions and hidden tests.")
    c.add_argument("--check", action="store_true", help="write nothing; exit code 2 if one is stale")

    c = add("grade", grade, "Grade handed-in notebooks; writes grades.csv and a report of each (see grade.py).")
    c.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="notebooks, or folders that hold them")
    c.add_argument("--out", type=Path, default=Path("grades"), metavar="FOLDER", help="default grades/")
    c.add_argument("--cell-time", type=positive, default=120, metavar="SECONDS", help="of one cell (default 120)")
    c.add_argument("--time", type=positive, default=900, metavar="SECONDS", help="of one notebook (default 900)")
    c.add_argument("--memory", type=whole(256, 10**7), default=4096, metavar="MIB", help="of a kernel (default 4096)")
    return p


def make_pool(args: argparse.Namespace) -> list[Row]:
    from .evaluation import load_chains
    from .make_pool import make
    from .pool import EmbeddedPool

    for folder in (args.out, args.slm, args.state):
        writable(folder / "x")
    table = make(args.out, args.slm, args.state, args.agent, args.steps, args.seed)
    if not args.agent:
        print("Last, the best fixed chains: some minutes.", flush=True)
        load_chains(EmbeddedPool(args.out))
    return [
        {"name": f"{r.agent} {r.role}", "family": r.family if r.kind == "all" else f"{r.family}/{r.kind}",
         "value": r.value, "se": r.se, "n": r.n, "unit": "share right"}
        for r in table.itertuples()
    ]


def _world(preset_name: str):
    """The embedded pool, a coordinator over it and the preset."""
    from .backbone import Backbone
    from .coordinator import Coordinator
    from .pool import EmbeddedPool
    from .presets import preset

    p = preset(preset_name)
    pool = EmbeddedPool()
    backbone = Backbone.embedded(DATA / "coordinator")
    return pool, Coordinator(backbone, len(pool.names), p.head, p.matrices, p.selection), p


def train(args: argparse.Namespace) -> list[Row]:
    from dataclasses import replace

    from .training import TrainingRun

    pool, coordinator, p = _world(args.preset)
    folder = args.out or ROOT / "runs" / f"{args.preset}-{args.seed}"
    figures = args.figures or folder
    if not args.no_evaluate:  # what would fail after the training fails before it
        if args.figures:
            writable(figures / "x")
        _asked(args.per_family, 11)
    training = TrainingRun(folder, coordinator, pool, p, args.seed)
    if args.episodes:
        per_generation = training.popsize * p.episodes_per_candidate
        training.preset = replace(p, generations=max(1, round(args.episodes / per_generation)))
        training.config["preset"] = training.preset.record()
    total = training.preset.generations
    print(
        f"{folder}: {coordinator.n} parameters, {training.popsize} candidates x {p.episodes_per_candidate} episodes "
        f"x {total} generations. Ctrl-C stops; the same command goes on."
    )
    for g in training:
        recent = [t["wall"] for t in training.timing[-10:]]
        left = sum(recent) / len(recent) * (total - g.generation)
        check = "" if g.validation is None else f"  validation {g.validation:.3f} ± {g.validation_se:.3f}"
        print(
            f"generation {g.generation:3d}/{total}  reward {g.reward:.3f}  sigma {g.sigma:.3f}  "
            f"episodes {g.episodes:6d}  lost {g.lost}  ETA {left / 60:4.1f} min{check}",
            flush=True,
        )
    rows = [
        {"name": "mean reward of the candidates", "family": f"generation {g.generation}", "value": g.reward,
         "se": None, "n": g.episodes, "unit": "reward"}
        for g in training.log
    ]
    wall, cpu, own = (sum(t[k] for t in training.timing) for k in ("wall", "cpu", "coordinator"))
    print(f"{wall / 60:.1f} minutes, {cpu:.0f} CPU-seconds, {own / cpu:.0%} of them the coordinator's own work")
    if args.no_evaluate:
        return rows
    table, episodes = _measure(pool, coordinator, training.preset, [folder / "theta.safetensors"], args.per_family, 11)
    from . import plots

    for path in plots.training_figures(figures, training.log, pool, episodes):
        print(f"wrote {path}")
    return rows + _rows(table)


def _asked(per_family: int, seed: int, families: Sequence[str] | None = None):
    """The held-out questions of a measurement."""
    from .tasks import FAMILIES, question_set

    known = list(dict.fromkeys(families or FAMILIES))
    if "know" in known:  # the smallest family first: it says at once that there are fewer
        question_set("test", per_family, seed, ["know"])
    return question_set("test", per_family, seed, known)


def _measure(pool, coordinator, p, checkpoints: Sequence[Path], per_family: int, seed: int, families=None):
    """Baselines and checkpoints on the same held-out questions; prints the table."""
    import numpy as np
    import pandas as pd

    from .evaluation import baselines, episode_records, summary, wide
    from .tasks import FAMILIES
    from .training import play_policy

    families = families or FAMILIES
    asked = _asked(per_family, seed, families)
    thetas = {path: coordinator.load(path, pool.identity) for path in checkpoints}
    folders = [path.resolve().parent.name for path in thetas]
    names = [f"trained: {f}" for f in folders] if len({*folders}) == len(folders) else [f"trained: {f}" for f in thetas]
    names = names if len(names) > 1 else ["trained coordinator"]
    frames = [baselines(pool, asked)]
    uniform = play_policy(coordinator, np.zeros(coordinator.n), asked, pool, p, seed)
    frames.append(episode_records("random coordinator", uniform))
    episodes: list = []
    for name, theta in zip(names, thetas.values(), strict=True):
        episodes = play_policy(coordinator, theta, asked, pool, p, seed)
        frames.append(episode_records(name, episodes))
    table = summary(pd.concat(frames, ignore_index=True))
    print(f"Accuracy ± standard error on {per_family} held-out questions a family, question seed {seed}:")
    print(wide(table))
    return table, episodes


def evaluate(args: argparse.Namespace) -> list[Row]:
    pool, coordinator, p = _world(args.preset)
    given = args.checkpoints or [DATA / "coordinator"]
    checkpoints = [path / "theta.safetensors" if path.is_dir() else path for path in given]
    table, _ = _measure(pool, coordinator, p, checkpoints, args.per_family, args.seed, args.family)
    return _rows(table)


def _rows(table) -> list[Row]:
    rows = [
        {"name": r.name, "family": r.family, "value": r.value, "se": r.se, "n": r.n, "unit": "accuracy"}
        for r in table.itertuples(index=False)
    ]
    for unit in ("turns", "calls"):
        rows += [
            {"name": r.name, "family": r.family, "value": getattr(r, unit), "se": None, "n": r.n, "unit": unit}
            for r in table.itertuples(index=False)
        ]
    return rows


def ask(args: argparse.Namespace) -> list[Row]:
    from .analysis import told
    from .tasks import recognise
    from .training import play_policy

    text = args.question.strip()
    if not text:
        raise UserError("the question is empty: give one in quotes, for example 'capital peru'.")
    if len(text) > 120:
        raise UserError(f"the question has {len(text)} characters: shorten it to 120, the models are tiny.")
    if not text.isprintable():
        raise UserError("the question holds a character that cannot be printed: type it on one line without it.")
    pool, coordinator, p = _world(args.preset)
    theta = coordinator.load(args.checkpoint or DATA / "coordinator" / "theta.safetensors", pool.identity)
    question = recognise(text)
    [episode] = play_policy(coordinator, theta, [question], pool, p, args.seed)
    print(told(episode, pool.names))
    return [{"name": "answer", "family": question.family, "value": episode.answer, "se": None, "n": 1, "unit": "text"}]


def bench(args: argparse.Namespace) -> list[Row]:
    from importlib import import_module

    module = import_module(f".bench_{args.what}", __package__)
    rows = getattr(module, f"bench_{args.what}")(quick=args.quick)
    print(as_lines(rows))
    return rows


def as_lines(rows: Sequence[Row]) -> str:
    """Measurements as text, a line each."""
    errors = ["" if r["se"] is None else f" ± {r['se']:.3g}" for r in rows]
    return "\n".join(
        f"{r['name']:60} {r['value']:>12.4g}{e} {r['unit']} (n = {r['n']})" for r, e in zip(rows, errors, strict=True)
    )


def student(args: argparse.Namespace) -> list[Row]:
    from .student import make

    return make(args.check)


def grade(args: argparse.Namespace) -> list[Row]:
    from .grade import Limits, grade_aloud

    writable(args.out / "grades.csv")
    graded = grade_aloud(args.paths, args.out, Limits(args.cell_time, args.time, args.memory))
    return [
        {"name": g.file, "family": r.grade_id, "value": r.points, "se": None, "n": r.most, "unit": "points"}
        for g in graded
        for r in g.rows
    ]


def writable(path: Path) -> None:
    """UserError if a file could not be written there; said before hours of work, and nothing is written for it."""
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: give a file in a folder that can be written.")


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
        if args.json and not to_stdout:
            writable(Path(args.json))
        import torch

        torch.set_num_threads(args.threads)
        with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
            rows = args.run(args)
        if args.json and not to_stdout:
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
