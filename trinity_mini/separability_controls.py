"""What lesson 08 compares a coupling with: random partitions, and heads that nobody has trained."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import brentq

from .curvature import chances, frobenius, head_reward, hessian
from .episode_tree import EpisodeTree
from .separability import Array
from .study import Row

RANK = 16  # leading directions of the states; they hold about 98 % of the mean square
OUT = 8


def partitions(rank: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Ways to cut the head's coordinates, output r and direction k at r * rank + k, into blocks.

    Each with a control of as many random blocks of the same sizes.
    """
    index = np.arange(OUT * rank).reshape(OUT, rank)
    names = [*(f"agent {a}" for a in range(OUT - 3)), "worker", "thinker", "verifier"]
    cut = {
        "agents, roles": {"agents": index[:-3].ravel(), "roles": index[-3:].ravel()},
        "states": {f"states {i + 1}": c.ravel() for i, c in enumerate(np.array_split(index, 4, axis=1))},
        "rows": {name: index[r] for r, name in enumerate(names)},
    }
    rng = np.random.default_rng(seed)
    for name, blocks in list(cut.items()):
        parts = np.split(rng.permutation(OUT * rank), np.cumsum([len(b) for b in blocks.values()])[:-1])
        cut[f"random, like {name}"] = {f"random {i + 1}": p for i, p in enumerate(parts)}
    return cut


def short(x: float) -> float:
    """Six digits: rows are many."""
    return float(f"{x:.6g}")


def exact_rows(f: Array, names: list[str]) -> list[Row]:
    """A row a pair of blocks, from squared norms without noise (K, K)."""
    scale = np.sqrt(np.outer(f.diagonal(), f.diagonal()))
    return [
        {
            "block": names[p], "other": names[q], "F": short(f[p, q]),
            "eps": short(np.sqrt(f[p, q] / scale[p, q])) if scale[p, q] > 0 else None,
        }
        for p in range(len(names))
        for q in range(p, len(names))
    ]


def doubt(tree: EpisodeTree, w: Array) -> float:
    """Mean entropy of a linear head's two choices (nats, ln L + ln 3 at most) over the turns that it plays."""
    agent, role = (p.numpy() for p in chances(tree.features[: tree.size].double(), torch.from_numpy(w), tree.n_agents))
    entropy = -sum((p * np.log(np.maximum(p, 1e-300))).sum(1) for p in (agent, role))
    p = (agent[:, :, None] * role[:, None, :]).reshape(tree.size, -1)
    child, reach = tree.child[: tree.size].reshape(tree.size, -1), np.zeros(tree.size)
    reach[tree.turn[: tree.size] == 0] = 1.0
    for t in range(tree.max_turns - 1):
        nodes = np.flatnonzero(tree.turn[: tree.size] == t)
        into, there = child[nodes], child[nodes] >= 0
        np.add.at(reach, into[there], (reach[nodes, None] * p[nodes])[there])
    return float(reach @ entropy / reach.sum())


def untaught(tree: EpisodeTree, w: Array, basis: Array, draws: int, seed: int) -> list[Row]:
    """Controls for a trained head w: random directions, made as long as w, and as sure as w (equal `doubt`)."""
    rng, wanted, rows = np.random.default_rng([seed, 7]), doubt(tree, w), []
    cuts = {name: blocks for name, blocks in partitions(RANK).items() if not name.startswith("random")}
    for draw in range(draws):
        v = rng.standard_normal(len(w))
        v /= np.linalg.norm(v)
        sure = np.exp(brentq(lambda x, v=v: doubt(tree, np.exp(x) * v) - wanted, -6.0, 12.0, xtol=1e-3))
        for control, norm in (("as long", np.linalg.norm(w)), ("as sure", sure)):
            hess = hessian(head_reward(tree), norm * v, basis)
            about = {"kind": "untaught", "control": control, "draw": draw, "norm": short(norm),
                     "doubt": short(doubt(tree, norm * v)), "trained doubt": short(wanted)}
            for name, blocks in cuts.items():
                found = exact_rows(frobenius(hess, blocks), list(blocks))
                eps = np.mean([r["eps"] for r in found if r["block"] != r["other"]])
                rows.append({**about, "partition": name, "eps": short(eps)})
    return rows
