"""What a preset stands for: a pool, a coordinator over its small language model, and the questions (lesson 11)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .episode import Transcript, fixed, play, play_all, run
from .files import DATA, ROOT, UserError, write_atomically
from .pool import EmbeddedPool, Pool
from .presets import EMBEDDED, PRESETS, Preset, preset
from .roles import Role
from .task_sets import TaskSet, benchmark_sets, embedded_tasks

if TYPE_CHECKING:
    from .backbone import Backbone
    from .coordinator import Coordinator
    from .llm_agents import PoolFile

FEATURES = "features.json"  # in a run folder: centre and scale of the states of a backbone that is not the embedded one


@dataclass
class World:
    """Everything a run needs; `close` it, so that replies on their way are kept."""

    pool: Pool
    coordinator: Coordinator
    preset: Preset
    tasks: TaskSet

    def close(self) -> None:
        if hasattr(self.pool, "close"):
            self.pool.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def world(
    name: str,
    folder: Path,
    pool_file: Path | None = None,
    root: Path | None = None,
    trained_in: Path | None = None,
) -> World:
    """The world of a preset.

    folder: where replies that cost something are kept, and the centre of the states. pool_file: another pool than the
    preset's. root: a folder with the benchmarks' files, where there is no network. trained_in: the folder of a
    checkpoint to be played: the centre of the states is taken from there, and where there is none, as for a released
    vector, the states stay as they are.
    Raises: UserError for what is missing, with its remedy.
    """
    from .coordinator import Coordinator

    p = preset(name)
    if pool_file is not None:
        p = replace(p, pool=str(pool_file))
    file = None if p.pool == EMBEDDED else limited_pool_file(p.pool)  # first, for it is said at once what it lacks
    tasks = embedded_tasks(p) if p.tasks == EMBEDDED else benchmark_sets(p, root, lambda: pool)
    backbone = load_slm(p.slm)
    pool = open_pool(file, folder)  # last, for it writes a file
    try:
        if p.slm != EMBEDDED:
            set_features(backbone, tasks, pool, Path(trained_in or folder) / FEATURES, measure=trained_in is None)
        return World(pool, Coordinator(backbone, len(pool.names), p.head, p.matrices, p.selection), p, tasks)
    except BaseException:
        if hasattr(pool, "close"):
            pool.close()
        raise


def recorded(checkpoint: Path) -> tuple[str, Path | None]:
    """The preset and the pool file of the training that a checkpoint comes from, "mini" if it names none."""
    from .coordinator import read_checkpoint

    extra = read_checkpoint(checkpoint)[1]["extra"]
    known = extra.get("preset") if isinstance(extra, dict) else None
    name, pool = (known.get("name"), known.get("pool")) if isinstance(known, dict) else (None, None)
    if name not in PRESETS:
        return "mini", None
    if not pool or pool == PRESETS[name].pool:
        return name, None
    if not pool_path(pool).exists():
        raise UserError(f"{checkpoint} was trained over {pool}, which is not there: give its pool file with --pool.")
    return name, Path(pool)


def load_slm(name: str) -> Backbone:
    """A coordinator's language model: on the GPU in bf16 if there is one, else on the CPU in fp32."""
    import torch

    from .backbone import Backbone

    if name == EMBEDDED:
        return Backbone.embedded(DATA / "coordinator")
    if name == "smollm2":
        from .smollm import load_backbone

        return load_backbone()
    gpu = torch.cuda.is_available()
    return Backbone.from_hub(name, "cuda" if gpu else "cpu", torch.bfloat16 if gpu else torch.float32)


def pool_path(name: str | Path) -> Path:
    """A pool file by its path, from here or from the repository's root."""
    return Path(name) if Path(name).exists() else ROOT / name


def open_pool(file: PoolFile | None, folder: Path) -> Pool:
    """The embedded pool, or the LLMs of a pool file with their replies in `folder`."""
    if file is None:
        return EmbeddedPool()
    from .llm_pool import LLMPool

    return LLMPool(file, folder)


def limited_pool_file(name: str) -> PoolFile:
    """A pool file. Raises: UserError for one that may cost money and has no limit."""
    from .llm_agents import read_pool_file

    path = pool_path(name)
    file = read_pool_file(path)
    limits = file.budget.money, file.budget.tokens, file.budget.calls
    if all(limit is None for limit in limits) and any(a.price_in != 0 or a.price_out != 0 for a in file.agents):
        raise UserError(f"{path} may cost money and has no limit: add a table [budget] with money, tokens or calls.")
    return file


def set_features(backbone: Backbone, tasks: TaskSet, pool: Pool, path: Path, measure: bool) -> None:
    """Give the backbone the centre (d,) and scale kept at `path`, or measure and keep them."""
    if path.exists():
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            centre, scale = np.array(kept["centre"], dtype=np.float32), float(kept["scale"])
            if centre.shape != (backbone.d,) or not np.isfinite(centre).all() or not 0 < scale < np.inf:
                raise ValueError("another width")
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path} is damaged: delete it, it is then measured again.") from None
        backbone.centre, backbone.scale = centre, scale
    elif measure:
        backbone.measure([backbone.render(t) for t in typical(tasks, pool)])
        kept = {"centre": backbone.centre.tolist(), "scale": backbone.scale}
        write_atomically(path, (json.dumps(kept) + "\n").encode())


def typical(tasks: TaskSet, pool: Pool, n: int = 64, seed: int = 0) -> list[Transcript]:
    """Transcripts whose mean state says nothing: n training questions, and where the agents are the embedded ones,
    that is free, also what three random turns make of a quarter of them."""
    rng = np.random.default_rng(seed)
    asked = [family[int(rng.integers(len(family)))] for family in tasks.train for _ in range(-(-n // len(tasks.train)))]
    found = [Transcript(q.prompt) for q in asked]
    if isinstance(pool, EmbeddedPool):
        plays = [play(q, fixed(_random_chain(len(pool.names), rng)), pool) for q in asked[::4]]
        for e in run(play_all(plays)):
            found += [Transcript(e.question.prompt, e.turns[: i + 1]) for i in range(min(3, len(e.turns)))]
    return found


def _random_chain(n_agents: int, rng: np.random.Generator, turns: int = 5) -> Sequence[tuple[int, Role]]:
    chosen = rng.integers([n_agents, len(Role)], size=(turns, 2)).tolist()
    return [(agent, Role(role)) for agent, role in chosen]
