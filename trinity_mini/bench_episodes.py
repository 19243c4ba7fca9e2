"""How fast episodes are played, and how the time divides: agents' replies, coordinator, loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def bench_episodes(quick: bool = False) -> list[dict[str, Any]]:
    """Episodes a CPU-second of generations of a real training run: first cold, then with replies remembered.

    Returns: rows of name, family, value, se, n (episodes timed), unit.
    """
    import numpy as np

    from .training import TrainingRun
    from .worlds import world

    w = world("quick" if quick else "mini", Path("."))
    pool, coordinator, preset = w.pool, w.coordinator, w.preset
    run = TrainingRun(".", coordinator, pool, preset, seed=1)  # nothing is written by evaluate()
    rng = np.random.default_rng(0)
    thetas = rng.standard_normal((run.popsize, coordinator.n)) * preset.sigma0 * coordinator.stds(1, preset.svf_scale)
    rows = []
    for name in ("uncached", "cached"):
        run.router_seconds = 0.0
        asked, start = pool.asked, time.process_time()
        episodes = 0
        for generation in range(1 if quick else 3):
            episodes += len(run.evaluate(thetas, generation)[1])
        seconds = time.process_time() - start
        rows += [
            {"name": f"episodes, replies {name}", "value": episodes / seconds, "unit": "per CPU-second"},
            {"name": f"calls, replies {name}", "value": (pool.asked - asked) / episodes, "unit": "per episode"},
            {"name": f"coordinator's share, replies {name}", "value": run.router_seconds / seconds, "unit": "of time"},
        ]
        for r in rows[-3:]:
            r |= {"family": "episodes", "se": None, "n": episodes}
    return rows
