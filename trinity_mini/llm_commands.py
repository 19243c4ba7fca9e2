"""Commands for pools of real LLMs: what they would cost, whether they answer, what they did cost (lesson 11)."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import ROOT, UserError

if TYPE_CHECKING:
    from .llm_agents import Agent

Row = dict[str, Any]


def estimate(args: argparse.Namespace) -> list[Row]:
    """Pilot episodes of the untrained coordinator, then what the whole training would cost, with an interval."""
    import numpy as np

    from . import llm_estimate
    from .commands import check_root
    from .training import TrainingRun, draw_questions, play_policy
    from .worlds import world

    check_root(args)
    folder = args.out or replies_folder("pilot", args)
    with world(args.preset, folder, args.pool, args.root) as w:
        names = w.pool.names
        planned = planned_episodes(TrainingRun(folder, w.coordinator, w.pool, w.preset, args.seed, w.tasks))
        asked = draw_questions(w.tasks.train, args.pilot, args.seed)
        pilot = play_policy(w.coordinator, np.zeros(w.coordinator.n), asked, w.pool, w.preset, args.seed, w.tasks.grade)
    if (lost := sum(e.reward is None for e in pilot)) > len(pilot) - llm_estimate.LEAST:
        raise UserError(
            f"{lost} of {len(pilot)} pilot episodes were lost: see `pool check`, or play more with --pilot."
        )
    table = llm_estimate.estimate(pilot, args.episodes or planned, names, max_turns=w.preset.rules.max_turns)
    print(f"preset {args.preset}, pool {w.preset.pool}")
    print(llm_estimate.as_text(table))
    if (folder / "replies.sqlite").exists():
        print(_time(folder / "replies.sqlite", table, w.pool.agents))
    questions = len(w.tasks.test(args.per_family, 11, None))
    turns = sum(len(e.turns) for e in pilot) / len(pilot)
    print(
        f"The evaluation after a training comes on top: about {questions * (len(names) + 2 * turns):,.0f} calls for "
        f"{questions} questions ({len(names)} single calls and two coordinators each); --per-family says how many "
        "questions, --no-evaluate leaves it out."
    )
    units = {"calls": "calls", "prompt_tokens": "tokens", "completion_tokens": "tokens", "cost": "money",
             "low": "money", "high": "money", "worst": "money"}  # fmt: skip
    return [
        {"name": name, "family": r["agent"], "value": r[name], "se": None, "n": len(pilot), "unit": unit}
        for r in table.to_dict("records")
        for name, unit in units.items()
    ]


def _time(path: Path, table: Any, agents: Sequence[Agent]) -> str:
    """How long the calls take at least, by the agent that takes longest."""
    from .ledger import ledger

    seconds = ledger(path).groupby("agent")["seconds"].max()  # the slowest role's median
    calls = table.set_index("agent")["calls"]
    hours = {a.name: calls[a.name] * seconds.get(a.name, 0.0) / a.concurrency / 3600 for a in agents}
    slowest = max(agents, key=lambda a: hours[a.name])
    return (
        f"Time for the calls: about {hours[slowest.name]:.2g} hours; longest for {slowest.name}, "
        f"{slowest.concurrency} at a time, {seconds.get(slowest.name, 0.0):.2g} s each."
    )


def replies_folder(command: str, args: argparse.Namespace) -> Path:
    """Where a command keeps replies unless told otherwise: a folder for each preset and pool file."""
    parts = [command, args.preset] + ([args.pool.stem] if args.pool else [])
    return ROOT / "runs" / "-".join(parts)


def planned_episodes(training: Any) -> int:
    """Episodes of a whole training run, those of its validations counted."""
    p = training.preset
    checks = -(-p.generations // p.validate_every) if training.validation else 0
    return training.popsize * p.episodes_per_candidate * p.generations + checks * len(training.validation)


def pool(args: argparse.Namespace) -> list[Row]:
    return {"check": _check, "ledger": _ledger, "forget-lost": _forget}[args.what](args.path)


def _check(path: Path) -> list[Row]:
    from .episode import run
    from .llm_agents import read_pool_file
    from .llm_pool import LLMPool

    with tempfile.TemporaryDirectory() as folder, LLMPool(read_pool_file(path), Path(folder)) as pool:
        rows = run(pool.check())
    for r in rows:
        said = r["model"] or "" if r["outcome"] == "answered" else r["error"] or ""
        print(f"{r['agent']:24} {r['outcome']:10} {r['seconds']:7.2f} s  {said}".rstrip())
    if bad := [r["agent"] for r in rows if r["outcome"] not in ("answered", "length")]:
        raise UserError(f"{', '.join(bad)} did not answer: see the lines above, then check model, address and key.")
    return [
        {"name": r["agent"], "family": r["outcome"], "value": r["seconds"], "se": None, "n": 1, "unit": "s"}
        for r in rows
    ]


def replies(path: Path) -> Path:
    """The file of replies of a run folder, or the file itself."""
    found = path / "replies.sqlite" if path.is_dir() else path
    if not found.exists():
        raise UserError(f"{found} does not exist: give the folder of a run over a pool file, such as runs/local-1.")
    return found


def _ledger(path: Path) -> list[Row]:
    from .ledger import as_text, ledger

    table = ledger(replies(path))
    print(as_text(table))
    units = {"calls": "calls", "requests": "requests", "lost": "calls", "prompt_tokens": "tokens",
             "completion_tokens": "tokens", "cost": "money", "at_most": "money"}  # fmt: skip
    return [
        {"name": name, "family": f"{r['agent']} {r['role']}".strip(), "value": r[name], "se": None, "n": r["calls"],
         "unit": unit}
        for r in table.to_dict("records")
        for name, unit in units.items()
    ]  # fmt: skip


def _forget(path: Path) -> list[Row]:
    from .llm_cache import ReplyCache

    cache = ReplyCache(replies(path))
    n = cache.forget_lost()
    print(f"lost calls forgotten: {n}. They are asked again where a run needs them; finished generations stay.")
    return [{"name": "forgotten", "family": "all", "value": n, "se": None, "n": 1, "unit": "calls"}]


def serve(args: argparse.Namespace) -> list[Row]:
    from .local_server import serve_command

    return serve_command(args)


def load_released(args: argparse.Namespace) -> list[Row]:
    from .commands import writable
    from .coordinator import Coordinator
    from .released import load_released as load
    from .released import read_vector
    from .worlds import load_slm

    writable(args.out)
    read_vector(args.file)  # before the model, which may have to come from the hub
    coordinator = Coordinator(load_slm(args.slm), args.agents, "linear", "released")
    theta = load(args.file, coordinator)
    coordinator.save(args.out, theta, "released", {"source": args.file.name})
    print(f"wrote {args.out}: {coordinator.n} parameters, {coordinator.n_svf} of them SVF deltas.")
    print(f"To play it: python -m trinity_mini evaluate {args.out} --transfer --preset paper")
    return [{"name": "parameters", "family": "all", "value": coordinator.n, "se": None, "n": 1, "unit": "numbers"}]
