"""What the commands of `__main__` do; each returns rows of name, family, value, se, n, unit."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import DATA, ROOT, UserError

if TYPE_CHECKING:
    from .worlds import World

Row = dict[str, Any]


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


def train(args: argparse.Namespace) -> list[Row]:
    from dataclasses import replace

    from .evaluation import load_chains
    from .pool import EmbeddedPool
    from .training import TrainingRun, check_folder
    from .worlds import world

    folder = args.out or ROOT / "runs" / f"{args.preset}-{args.seed}"
    figures = args.figures or folder
    check_folder(folder)
    check_root(args)
    with world(args.preset, folder, args.pool, args.root) as w:
        embedded = isinstance(w.pool, EmbeddedPool)
        if not args.no_evaluate:  # what would fail after the training fails before it
            if args.figures:
                writable(figures / "x")
            w.tasks.test(args.per_family, 11, None)
            if embedded:
                load_chains(w.pool)
        training = TrainingRun(folder, w.coordinator, w.pool, w.preset, args.seed, w.tasks)
        if args.episodes:
            per_generation = training.popsize * w.preset.episodes_per_candidate
            if not embedded and args.episodes < per_generation:  # they may cost something
                raise UserError(f"--episodes must be at least {per_generation}, one generation of this preset.")
            training.preset = replace(w.preset, generations=max(1, round(args.episodes / per_generation)))
            training.config["preset"] = training.preset.record()
        try:
            with contextlib.nullcontext() if embedded else telling(w.pool):
                rows = _train(training)
        finally:
            if not embedded:
                cost = f"python -m trinity_mini pool ledger {shlex.quote(str(folder))}"
                print(f"What was asked and what it cost: {cost}")
        if args.no_evaluate:
            return rows
        table, episodes = _measure(w, [folder / "theta.safetensors"], args.per_family, 11)
        if embedded:
            from . import plots

            for path in plots.training_figures(figures, training.log, w.pool, episodes):
                print(f"wrote {path}")
        return rows + _rows(table)


@contextlib.contextmanager
def telling(pool, every: float = 30.0) -> Iterator[None]:
    """Say every so many seconds how far slow calls are: a generation of them may take long."""
    done = threading.Event()

    def tell() -> None:
        while not done.wait(every):
            print(f"  ... {pool.progress}", flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _train(training) -> list[Row]:
    """Run a training to its end, a line a generation."""
    p, total = training.preset, training.preset.generations
    print(
        f"{training.folder}: {training.coordinator.n} parameters, {training.popsize} candidates x "
        f"{p.episodes_per_candidate} episodes x {total} generations. Ctrl-C stops; the same command goes on."
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
    wall, cpu, own = (sum(t[k] for t in training.timing) for k in ("wall", "cpu", "coordinator"))
    print(f"{wall / 60:.1f} minutes, {cpu:.0f} CPU-seconds, {own / cpu:.0%} of them the coordinator's own work")
    return [
        {"name": "mean reward of the candidates", "family": f"generation {g.generation}", "value": g.reward,
         "se": None, "n": g.episodes, "unit": "reward"}
        for g in training.log
    ]


def _measure(w: World, checkpoints: Sequence[Path], per_family: int, seed: int, families=None, transfer: bool = False):
    """Baselines and checkpoints on the same held-out questions; prints the table.

    transfer: take checkpoints of another pool with as many agents, too.
    """
    import numpy as np
    import pandas as pd

    from .coordinator import read_checkpoint
    from .evaluation import agents_alone, baselines, episode_records, summary, wide
    from .pool import EmbeddedPool
    from .training import play_policy

    asked = w.tasks.test(per_family, seed, families)
    thetas = {}
    for path in checkpoints:
        pool = read_checkpoint(path)[1]["identity"].get("pool") if transfer else w.pool.identity
        thetas[path] = w.coordinator.load(path, pool)
    folders = [path.resolve().parent.name for path in thetas]
    names = [f"trained: {f}" for f in folders] if len({*folders}) == len(folders) else [f"trained: {f}" for f in thetas]
    names = names if len(names) > 1 else ["trained coordinator"]
    known = isinstance(w.pool, EmbeddedPool)
    frames = [baselines(w.pool, asked) if known else agents_alone(w.pool, asked, seed, w.tasks.grade)]
    episodes: list = []
    for name, theta in zip(["random coordinator", *names], [np.zeros(w.coordinator.n), *thetas.values()], strict=True):
        episodes = play_policy(w.coordinator, theta, asked, w.pool, w.preset, seed, w.tasks.grade)
        frames.append(episode_records(name, episodes))
    table = summary(pd.concat(frames, ignore_index=True))
    print(f"Accuracy ± standard error on {per_family} held-out questions a family, question seed {seed}:")
    print(wide(table))
    return table, episodes


def evaluate(args: argparse.Namespace) -> list[Row]:
    from .llm_commands import replies_folder
    from .pool import EmbeddedPool
    from .worlds import recorded, world

    given = args.checkpoints or [DATA / "coordinator"]
    checkpoints = [theta_of(path) for path in given]
    if args.preset is None:
        args.preset, pool = recorded(checkpoints[0])
        args.pool = args.pool or pool
    check_root(args)
    own = checkpoints[0].parent  # a run over a pool file: its replies are paid for, and its budget goes on
    one = len(checkpoints) == 1 and (own / "replies.sqlite").exists()
    folder = args.out or (own if one else replies_folder("evaluate", args))
    with world(args.preset, folder, args.pool, args.root, trained_in=own) as w:
        embedded = isinstance(w.pool, EmbeddedPool)
        if not embedded:
            n = len(w.tasks.test(args.per_family, args.seed, args.family))
            print(f"{n} questions: {len(w.pool.names)} single calls, {1 + len(checkpoints)} coordinators; in {folder}")
        with contextlib.nullcontext() if embedded else telling(w.pool):
            table, _ = _measure(w, checkpoints, args.per_family, args.seed, args.family, args.transfer)
    return _rows(table)


def theta_of(path: Path) -> Path:
    """A checkpoint's file: itself, or that of a run folder."""
    return path / "theta.safetensors" if path.is_dir() else path


def check_root(args: argparse.Namespace) -> None:
    """UserError for a --root that is no folder, or that the preset would never look into."""
    from .presets import EMBEDDED, preset

    if args.root is not None and preset(args.preset).tasks == EMBEDDED:
        raise UserError(f"--root is of benchmark files, and the preset {args.preset} asks none: leave it out.")
    if args.root is not None and not args.root.is_dir():
        raise UserError(f"--root {args.root} is no folder: give the one that holds the benchmarks' files.")


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
    from .llm_commands import replies_folder
    from .pool import EmbeddedPool
    from .tasks import recognise
    from .training import play_policy
    from .worlds import recorded, world

    text = args.question.strip()
    if not text:
        raise UserError("the question is empty: give one in quotes, for example 'capital peru'.")
    if not text.isprintable():
        raise UserError("the question holds a character that cannot be printed: type it on one line without it.")
    checkpoint = theta_of(args.checkpoint or DATA / "coordinator")
    if args.preset is None:
        args.preset, pool = recorded(checkpoint)
        args.pool = args.pool or pool
    with world(args.preset, replies_folder("ask", args), args.pool, trained_in=checkpoint.parent) as w:
        if isinstance(w.pool, EmbeddedPool) and len(text) > 120:
            raise UserError(f"the question has {len(text)} characters: shorten it to 120, the models are tiny.")
        theta = w.coordinator.load(checkpoint, w.pool.identity)
        question = recognise(text)
        [episode] = play_policy(w.coordinator, theta, [question], w.pool, w.preset, args.seed)
    print(told(episode, w.pool.names))
    return [{"name": "answer", "family": question.family, "value": episode.answer, "se": None, "n": 1, "unit": "text"}]


def bench(args: argparse.Namespace) -> list[Row]:
    from importlib import import_module

    if args.what != "states" and (args.model or args.device):
        raise UserError(f"--model and --device are of `bench states`, not of `bench {args.what}`: leave them out.")
    module = import_module(f".bench_{args.what}", __package__)
    given = {"model": args.model, "device": args.device} if args.what == "states" else {}
    rows = getattr(module, f"bench_{args.what}")(quick=args.quick, **given)
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


def study(args: argparse.Namespace) -> list[Row]:
    from .study import MODULES, collect, run_study
    from .study import study as find

    names = list(MODULES) if args.name == "all" else [args.name]
    studies = [find(name) for name in names]
    out = args.out or (args.state / "quick" if args.quick else DATA / "runs")
    writable(out / "x")
    for s in studies:
        folder = args.state / s.name
        for done, n in run_study(s, folder, args.quick, args.processes, args.cluster):
            print(f"{s.name}: {done} of {n} jobs", flush=True)
        print(f"wrote {collect(s, folder, out, args.quick)}")
    return [{"name": s.name, "family": "all", "value": len(s.quick if args.quick else s.jobs), "se": None,
             "n": 1, "unit": "jobs"} for s in studies]  # fmt: skip


def figures(args: argparse.Namespace) -> list[Row]:
    from importlib import import_module

    from .plots import save

    writable(args.out / "x.png")
    known = {}
    for lesson in ("separability", "baselines", "roles"):
        known |= import_module(f".figures_{lesson}", __package__).FIGURES
    wanted = args.names or list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise UserError(f"unknown figure {unknown[0]!r}: choose from {', '.join(known)}.")
    for name in wanted:
        print(f"wrote {save(known[name](), args.out / f'{name}.png')}", flush=True)
    return [{"name": name, "family": "all", "value": 1, "se": None, "n": 1, "unit": "figure"} for name in wanted]


def claims(args: argparse.Namespace) -> list[Row]:
    from .claims import as_text
    from .claims import claims as table_of

    table = table_of(args.runs)
    print(as_text(table))
    return [
        {"name": r.claim, "family": r.source, "value": r.holds, "se": None, "n": 1, "unit": r.here}
        for r in table.itertuples()
    ]


def writable(path: Path) -> None:
    """UserError if a file could not be written there; said before hours of work, and nothing is written for it."""
    system = path.absolute().parts[:2] in (("/", "dev"), ("/", "proc"))
    if path.exists() and not path.is_dir() and (system or not path.is_file()) and os.access(path, os.W_OK):
        return  # a device, a pipe, /dev/stdout: it is written to as it is
    folder = path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {path}: give a file in a folder that can be written.")
