"""Training the coordinator: sep-CMA-ES on the mean terminal reward (paper section 3; lesson 07)."""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .coordinator import Coordinator
from .episode import Decide, Decision, Episode, Grade, Transcript, exact, play, play_all, run, uniforms
from .files import UserError, sweep, write_atomically
from .pool import Batcher, Pool, drawn
from .presets import Preset
from .roles import Role
from .task_sets import TaskSet, embedded_tasks
from .tasks import Question


@dataclass(frozen=True)
class Generation:
    """One line of a run's log. Rewards are means in [0, 1]."""

    generation: int
    episodes: int  # so far, validation not counted
    reward: float  # mean over the candidates
    best: float
    sigma: float
    lost: int
    turns: float
    validation: float | None = None
    validation_se: float | None = None


class Router:
    """Lets many episodes share a coordinator: the decisions of one tick are one batch."""

    def __init__(self, coordinator: Coordinator, thetas: np.ndarray) -> None:
        self.coordinator, self.thetas = coordinator, np.atleast_2d(thetas)
        self._batcher = Batcher(self._run)
        self.seconds = 0.0

    def decide(self, candidate: int, draws: np.ndarray) -> Decide:
        """The choice function of one episode of a candidate, with its uniform numbers (max_turns, 2)."""

        async def decide(transcript: Transcript, turn: int) -> Decision:
            return await self._batcher((candidate, transcript, draws[turn]))

        return decide

    def _run(self, asked: list[tuple[int, Transcript, np.ndarray]]) -> list[Decision]:
        start = time.process_time()
        rows = np.array([candidate for candidate, _, _ in asked])
        inputs = [self.coordinator.backbone.render(transcript) for _, transcript, _ in asked]
        draws = np.array([u for _, _, u in asked])
        agents, roles, agent_p, role_p = self.coordinator.decide(inputs, self.thetas[rows], draws)
        self.seconds += time.process_time() - start
        return [
            Decision(a, Role(r), tuple(p), tuple(q))
            for a, r, p, q in zip(*(x.tolist() for x in (agents, roles, agent_p, role_p)), strict=True)
        ]


def play_policy(
    coordinator: Coordinator,
    theta: np.ndarray,
    asked: Sequence[Question],
    pool: Pool,
    preset: Preset,
    seed: int,
    grade: Grade = exact,
) -> list[Episode]:
    """One episode a question with one theta; the same seed gives the same draws."""
    return _played(Router(coordinator, theta), asked, pool, preset, seed, grade)


def _played(
    router: Router, asked: Sequence[Question], pool: Pool, preset: Preset, seed: int, grade: Grade = exact
) -> list[Episode]:
    turns = preset.rules.max_turns
    plays = [
        play(q, router.decide(0, uniforms(turns, seed, i)), drawn(pool, seed, i), preset.rules, grade)
        for i, q in enumerate(asked)
    ]
    return run(play_all(plays))


def mean_reward(episodes: Sequence[Episode]) -> tuple[float, float, int]:
    """Mean reward, its standard error, and how many episodes were lost (left out, never scored 0)."""
    rewards = np.array([e.reward for e in episodes if e.reward is not None], dtype=float)
    lost = len(episodes) - len(rewards)
    if not len(rewards):
        return float("nan"), float("nan"), lost
    return float(rewards.mean()), float(rewards.std(ddof=1) / len(rewards) ** 0.5) if len(rewards) > 1 else 0.0, lost


def draw_questions(pools: Sequence[Sequence[Question]], m: int, *seed: int) -> list[Question]:
    """m training questions, the families in turn, with replacement."""
    rng = np.random.default_rng(seed)
    first = int(rng.integers(len(pools)))
    chosen = [pools[(first + i) % len(pools)] for i in range(m)]
    return [family[rng.integers(len(family))] for family in chosen]


def _differing(found: Any, wanted: Any, name: str = "") -> list[str]:
    """What differs between two JSON values, e.g. `preset sigma0 (0.5, not 0.4)`."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return [d for k in {**wanted, **found} for d in _differing(found.get(k), wanted.get(k), f"{name} {k}".strip())]
    return [] if found == wanted else [f"{name} ({found}, not {wanted})"]


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """A run's config without the path of its pool file: what is in it has an identity of its own."""
    known = isinstance(config, dict) and isinstance(config.get("preset"), dict)
    return {**config, "preset": {k: v for k, v in config["preset"].items() if k != "pool"}} if known else config


def check_folder(folder: Path) -> None:
    """Raises: UserError for a folder that holds something else than a run."""
    if not (folder / "config.json").exists() and not _empty(folder):
        raise UserError(f"{folder} exists and is not a run folder: choose another --out folder.")


def _empty(folder: Path) -> bool:
    """Whether there is nothing, or only what is written before a run's first line."""
    names = [f.name for f in folder.iterdir()] if folder.is_dir() else [] if not folder.exists() else ["a file"]
    return all(n.endswith(".tmp") or n.startswith("replies.sqlite") or n == "features.json" for n in names)


class _Unpickler(pickle.Unpickler):
    """Reads a checkpoint: plain values, pycma's objects, numpy's arrays and generators, `Randn`; refuses all else."""

    KNOWN = {
        "builtins": {"complex", "frozenset", "range", "set", "slice"},
        "collections": {"OrderedDict", "defaultdict", "deque"},
        "cma.evolution_strategy": {"_pass"},
        "cma.options_parameters": {"is_feasible"},
        "numpy": {"dtype", "ndarray"},
        "numpy._core.multiarray": {"_reconstruct", "scalar"},
        "numpy._core.numeric": {"_frombuffer"},
        "numpy.linalg": {"eigh"},
        "numpy.random._pcg64": {"PCG64"},
        "numpy.random._pickle": {"__bit_generator_ctor", "__generator_ctor"},
        "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
        "trinity_mini.pycma_strategy": {"Randn"},
    }

    def find_class(self, module: str, name: str) -> Any:
        known = name in self.KNOWN.get(module, ())
        if known or (module.startswith("cma.") and "." not in name):  # a dot would lead into what a module imports
            found = super().find_class(module, name)
            if known or (isinstance(found, type) and found.__module__.startswith("cma.")):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")


class TrainingRun:
    """A run folder: config.json, log.jsonl, timing.jsonl, checkpoint.pkl after every generation, theta.safetensors.

    Iterating trains; killed at any moment, it goes on from the last generation to the same log and theta. One process
    at a time. Resume only what you trust: a checkpoint can name nothing but what a strategy is made of, but among that
    are pycma's options, and pycma evaluates those that are texts.
    """

    def __init__(
        self,
        folder: Path,
        coordinator: Coordinator,
        pool: Pool,
        preset: Preset,
        seed: int,
        tasks: TaskSet | None = None,
    ) -> None:
        self.folder, self.coordinator, self.pool = Path(folder), coordinator, pool
        self.preset, self.seed = preset, seed
        self.router_seconds = 0.0  # CPU seconds spent in the coordinator's forwards
        tasks = tasks or embedded_tasks(preset)
        self.train, self.validation, self.grade = tasks.train, tasks.validation, tasks.grade
        self.log: list[Generation] = []
        self.timing: list[dict[str, float]] = []  # CPU seconds of each generation, and the coordinator's part
        self.config = {
            "preset": preset.record(),
            "seed": seed,
            "agents": list(pool.names),
            "coordinator": coordinator.identity(pool.identity),
        }

    @property
    def popsize(self) -> int:
        from .sep_cma_es import paper_popsize

        return self.preset.popsize or paper_popsize(self.coordinator.n)

    def _start(self):
        """The strategy to go on with: from the checkpoint if there is one, else fresh."""
        from .pycma_strategy import pycma_strategy

        config, checkpoint = self.folder / "config.json", self.folder / "checkpoint.pkl"
        wanted = json.loads(json.dumps(self.config))
        check_folder(self.folder)
        sweep(self.folder)
        if config.exists():
            try:
                found = json.loads(config.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                found = None
            if not isinstance(found, dict):
                raise UserError(f"{config} is damaged: choose another --out folder.")
            if differ := ", ".join(_differing(*map(_comparable, (found, wanted)))):
                raise UserError(
                    f"{self.folder} holds a run with another {differ}: choose another --out or the same settings."
                )
        else:
            write_atomically(config, (json.dumps(wanted, indent=1) + "\n").encode())
        if not checkpoint.exists() and (self.folder / "theta.safetensors").exists():
            raise UserError(f"{self.folder} is a recorded run without its checkpoint: choose another --out folder.")
        if checkpoint.exists():
            try:
                state = _Unpickler(io.BytesIO(checkpoint.read_bytes())).load()
                if differ := ", ".join(_differing(*map(_comparable, (state["config"], wanted)))):
                    raise ValueError(f"it is of a run with another {differ}")
                if not callable(state["strategy"].ask):
                    raise TypeError("no strategy")
                self.log = [Generation(**row) for row in state["log"]]
                self.timing = state["timing"]
                return state["strategy"]
            except Exception as e:
                complete = (self.folder / "theta.safetensors").exists()
                remedy = "choose another --out folder" if complete else "delete it to begin this run again"
                raise UserError(f"{checkpoint} is damaged ({type(e).__name__}: {e}): {remedy}.") from None
        self.log, self.timing = [], []
        stds = self.coordinator.stds(1.0, self.preset.svf_scale)
        return pycma_strategy(np.zeros(self.coordinator.n), self.preset.sigma0, self.seed, self.popsize, stds)

    def _save(self, strategy) -> None:
        rows = self._save_log()
        config = json.loads(json.dumps(self.config))
        state = {"config": config, "strategy": strategy, "log": rows, "timing": self.timing}
        write_atomically(self.folder / "checkpoint.pkl", pickle.dumps(state))

    def _save_log(self) -> list[dict[str, Any]]:
        rows = [asdict(g) for g in self.log]
        for name, lines in (("log", rows), ("timing", self.timing)):
            write_atomically(self.folder / f"{name}.jsonl", "".join(json.dumps(r) + "\n" for r in lines).encode())
        return rows

    def __iter__(self) -> Iterator[Generation]:
        """Train, one generation after the other; a run that is complete yields its last line only."""
        strategy = self._start()
        if len(self.log) >= self.preset.generations:
            self._save_log()
            self.save_theta(strategy.result.xfavorite)
            yield self.log[-1]
        while len(self.log) < self.preset.generations:
            start, wall = time.process_time(), time.monotonic()
            self.router_seconds = 0.0
            thetas = strategy.ask()
            strategy_seconds = time.process_time() - start
            fitness, episodes = self.evaluate(np.array(thetas), len(self.log))
            told = time.process_time()
            strategy.tell(thetas, [-f for f in fitness])
            strategy_seconds += time.process_time() - told
            mean, lost, m = strategy.result.xfavorite, sum(e.reward is None for e in episodes), len(episodes)
            done = len(self.log) + 1
            check = (None, None)
            every = self.preset.validate_every
            if self.validation and (done % every == 0 or done == self.preset.generations):
                check = self.validate(mean)
            self.log.append(
                Generation(
                    generation=done,
                    episodes=(self.log[-1].episodes if self.log else 0) + m,
                    reward=float(np.mean(fitness)),
                    best=float(np.max(fitness)),
                    sigma=float(strategy.sigma),
                    lost=lost,
                    turns=float(np.mean([len(e.turns) for e in episodes])),
                    validation=check[0],
                    validation_se=check[1],
                )
            )
            cpu, took = time.process_time() - start, time.monotonic() - wall
            self.timing.append({"wall": took, "cpu": cpu, "coordinator": self.router_seconds + strategy_seconds})
            self._save(strategy)
            if done == self.preset.generations:
                self.save_theta(mean)
            yield self.log[-1]

    def evaluate(self, thetas: np.ndarray, generation: int) -> tuple[np.ndarray, list[Episode]]:
        """Mean reward of each candidate over its episodes, and the episodes.

        What is lost is left out, never scored 0; a candidate of which all was lost gets the mean of the others, which
        neither favours nor punishes it. Raises: UserError if that were half of the candidates or more.
        """
        p, m, rules = self.preset, self.preset.episodes_per_candidate, self.preset.rules
        self.coordinator.backbone.clear_cache()  # so that a resumed run computes in the same batches
        router = Router(self.coordinator, thetas)
        plays = []
        for c in range(len(thetas)):
            asked = draw_questions(self.train, m, self.seed, generation, 0 if p.common_questions else c + 1, 1)
            for i, q in enumerate(asked):
                draws = uniforms(rules.max_turns, self.seed, generation, 0 if p.common_draws else c + 1, 2, i)
                pool = drawn(self.pool, self.seed, generation, 0 if p.common_draws else c + 1, i)
                plays.append(play(q, router.decide(c, draws), pool, rules, self.grade))
        episodes = run(play_all(plays))
        self.router_seconds += router.seconds
        scores = np.array([mean_reward(episodes[c * m : (c + 1) * m])[0] for c in range(len(thetas))])
        known = np.isfinite(scores)
        odd = any(e.reward is not None and not np.isfinite(e.reward) for e in episodes)
        if odd or known.mean() <= 0.5:
            if hasattr(self.pool, "forget_recent"):  # what is lost for good could never be scored
                self.pool.forget_recent()
            raise UserError(
                "all calls of a candidate were lost, or its rewards are no numbers: see to the pool, then start again "
                "to resume."
            )
        return np.where(known, scores, scores[known].mean()), episodes

    def validate(self, theta: np.ndarray) -> tuple[float, float] | tuple[None, None]:
        """Mean reward of one theta on the validation questions, and its standard error; None if all were lost."""
        router = Router(self.coordinator, theta)
        episodes = _played(router, self.validation, self.pool, self.preset, self.seed, self.grade)
        self.router_seconds += router.seconds
        mean, se, lost = mean_reward(episodes)
        return (mean, se) if lost < len(episodes) else (None, None)

    def save_theta(self, theta: np.ndarray) -> None:
        self.coordinator.save(self.folder / "theta.safetensors", theta, self.pool.identity, self.config)
