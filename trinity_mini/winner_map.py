"""Who wins where: REINFORCE against sep-CMA-ES over rarity of reward, horizon, budget and tuning (lesson 09)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .baselines import Game, Progress, at_budgets, sep_cma_es
from .episode_tree import EpisodeTree
from .gradient_baselines import reinforce
from .study import Job, Row
from .tasks import FAMILIES
from .tree_settings import Setting, whole, worth

RELEASED = 32_640  # episodes of the released run
Method = Callable[..., Iterator[Progress]]

MAP = [
    Setting(("code",), 4, useless=5, strict=True, per_family=12),
    Setting(("know",), 3, per_family=12),
    Setting(("code",), 2, useless=25, per_family=12),
    Setting(FAMILIES, 3, per_family=4),
    Setting(("code",), 4, strict=True, per_family=12),
    Setting(("code",), 2, per_family=12),
    Setting(("code",), 4, per_family=12),
    Setting(("code",), 3, useless=25, per_family=12),
    Setting(("code",), 4, useless=15, strict=True, per_family=12),
    Setting(("code",), 3, per_family=12),
    Setting(("code",), 6, useless=5, strict=True, per_family=12),
    Setting(FAMILIES, 4, per_family=4),
]
KEPT = [Setting(("know",), turns, per_family=12, kept=True) for turns in (3, 4, 5, 6)]  # one decision, every turn
BUDGETS = [3_000, 12_000, RELEASED]
RIVALS: dict[str, tuple[Method, dict[str, Any], list[dict[str, Any]]]] = {
    "REINFORCE": (
        reinforce,
        {"lr": 0.3, "baseline": "question", "entropy": 0.01, "batch": 512},
        [
            {"lr": lr, "baseline": "question", "entropy": e, "batch": 128}
            for lr in (0.1, 0.3)
            for e in (0.0, 0.01, 0.03)
        ],
    ),
    "sep-CMA-ES": (
        sep_cma_es,
        {"sigma0": 16.0},
        [{"sigma0": s, "popsize": p, "m": m} for s in (4.0, 8.0, 16.0) for p, m in ((34, 16), (136, 4))],
    ),
}


def compare(tree: EpisodeTree, setting: Setting, job: Job) -> list[Row]:
    """Both rivals on one tree: a row for each method, tuning, budget and seed, with the J it reached.

    tuning: "common", the same options everywhere; "tuned", those of the best mean J at this budget over the job's
    tuning seeds, which are others. uniform: J of the uniform policy.
    """
    budgets = job["budgets"]
    uniform = worth(tree, np.zeros(Game(tree).n), 0, 40 if whole(tree) else 4000)
    about = {"world": setting.name, "turns": setting.turns, "agents": tree.n_agents, "uniform": uniform}
    rows = []
    for name, (method, common, tried) in RIVALS.items():

        def run(options: dict, seed: int, method: Method = method) -> dict[int, float]:
            steps = at_budgets(method(Game(tree), budgets[-1], seed, **options), budgets)
            return {b: worth(tree, s.theta, seed) for b, s in steps.items()}

        tuning = {i: [run(o, 1000 + s) for s in range(job["tuning_seeds"])] for i, o in enumerate(tried)}
        seen: dict[tuple[str, int], dict[int, float]] = {}
        for b in budgets:
            best = max(tuning, key=lambda i: np.mean([r[b] for r in tuning[i]]))
            for kind, options in (("common", common), ("tuned", tried[best])):
                for seed in range(1, job["seeds"] + 1):
                    key = str(options), seed
                    if key not in seen:
                        seen[key] = run(options, seed)
                    rows.append(
                        about
                        | {"method": name, "tuning": kind, "budget": b, "seed": seed, "J": round(seen[key][b], 5)}
                        | {"options": ", ".join(f"{k} {v}" for k, v in options.items())}
                    )
    return rows
