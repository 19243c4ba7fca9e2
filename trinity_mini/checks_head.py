"""The checkers of lesson 03, the head. Each draws fresh random inputs and compares with scipy, numpy or torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import special, stats

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def check_policy_table(fn: Callable) -> None:
    """Exercise 3.1: policy_table(z (L + 3,), n_agents) -> (L, 3), against one softmax over all pairs."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(2, 9))
        z = rng.normal(0, 2, n + 3) + (1000 if i == ROUNDS - 1 else 0)
        wanted = special.softmax(np.add.outer(z[:n], z[n:]))
        found = called(fn, z.copy(), n, what="policy_table")
        numbers = isinstance(found, np.ndarray) and found.dtype.kind == "f"
        if i == ROUNDS - 1 and numbers and not np.isfinite(found).all():
            raise Wrong(
                "policy_table(z) is not finite for logits near 1000. "
                "Hint: exp overflows; a softmax stays the same if the largest logit is subtracted first."
            )
        whole = special.softmax(z)
        mistakes = {
            "agents and roles are two softmaxes, each over its own logits, not one over all L + 3.": np.outer(
                whole[:n], whole[n:]
            ),
            "the first L logits are the agents', the last three the roles'.": np.outer(
                special.softmax(z[3:]), special.softmax(z[:3])
            ),
            "the table is finished when it sums to 1: these are products of exp, divide by their sum.": np.outer(
                np.exp(z[:n] - z[:n].max()), np.exp(z[n:] - z[n:].max())
            ),
        }
        hint = recognised(found, mistakes, "p[agent, role] is the product of the two probabilities.")
        same(found, wanted, f"policy_table(z, {n})", hint)
    passed("policy_table", ROUNDS)


def check_gumbel_draw(fn: Callable) -> None:
    """Exercise 3.2: gumbel_draw(z (B, K), u (B, K)) -> (B,), against scipy's Gumbel distribution."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        b, k = int(rng.integers(100, 200)), int(rng.integers(3, 9))
        z, u = rng.normal(0, 1.5, (b, k)), rng.uniform(1e-6, 1 - 1e-6, (b, k))
        wanted = (z + stats.gumbel_r.ppf(u)).argmax(1)
        found = called(fn, z.copy(), u.copy(), what="gumbel_draw")
        mistakes = {
            "the sign: a Gumbel number is MINUS log(-log(u)), large when u is near 1.": (
                z + np.log(-np.log(u))
            ).argmax(1),
            "two logarithms: -log(u) alone is an exponential number.": (z - np.log(u)).argmax(1),
            "add the noise to the logits, not to the probabilities.": (
                special.softmax(z, 1) - np.log(-np.log(u))
            ).argmax(1),
            "no noise reached the logits: this is the plain argmax.": z.argmax(1),
            "uniform numbers are no Gumbel numbers yet: take -log(-log(u)).": (z + u).argmax(1),
        }
        hint = recognised(found, mistakes, "the largest z + noise of each row: argmax over the last axis.")
        same(found, wanted, "gumbel_draw(z, u)", hint)
    passed("gumbel_draw", ROUNDS)


def check_flips(fn: Callable) -> None:
    """Exercise 3.3: flips(p (K,), q (K,)) -> a probability, against the picks on every interval of u."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        k = int(rng.integers(3, 9))
        p, q = rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(k))
        if i == 0:
            q = p.copy()
        bounds = np.unique(np.concatenate([[0, 1], p.cumsum()[:-1], q.cumsum()[:-1]]))
        middles, lengths = (bounds[1:] + bounds[:-1]) / 2, np.diff(bounds)
        picks = [np.searchsorted(r.cumsum()[:-1], middles, side="right") for r in (p, q)]
        wanted = float(lengths[picks[0] != picks[1]].sum())
        found = called(fn, p.copy(), q.copy(), what="flips")
        mistakes = {
            "this is the chance for two independent numbers; here both draws see the same u.": 1 - p @ q,
            "this is the total variation distance, the least that any sharing reaches; inverting the distribution "
            "function keeps the order of the agents and flips more often.": np.abs(p - q).sum() / 2,
            "this is the chance that the two agree: flips are what is left of 1.": 1 - wanted,
        }
        hint = recognised(found, mistakes, "outcome k is drawn for u between two sums of p: how far do they overlap?")
        same(found, wanted, "flips(p, q)", hint)
    passed("flips", ROUNDS)


def check_centred(fn: Callable) -> None:
    """Exercise 3.4: centred(w (L + 3, d), n_agents) -> (L + 3, d), against a projection matrix."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, d = int(rng.integers(2, 9)), int(rng.integers(4, 20))
        w = torch.from_numpy(rng.normal(0.5, 1, (n + 3, d))).float()
        means = torch.block_diag(torch.full((n, n), 1 / n), torch.full((3, 3), 1 / 3))
        wanted = w - means @ w
        given = w.clone()
        found = called(fn, given, n, what="centred")
        if not torch.equal(given, w):
            raise Wrong("centred(w) has changed the w it was given. Hint: work on a copy, w.clone().")
        agents_only = torch.cat([w[:n] - w[:n].mean(0), w[n:]])
        mistakes = {
            "one mean for all rows mixes agents and roles: they are two softmaxes.": w - w.mean(0),
            "one number for the whole matrix is not enough: each feature has a mean of its own.": w - w.mean(),
            "the wrong axis: a row is one logit; take the mean over rows, feature by feature.": w - w.mean(1, True),
            "the roles have their neutral direction too.": agents_only,
        }
        hint = recognised(found, mistakes, "subtract from the agents' rows their mean row, and from the roles' theirs.")
        same(found, wanted, "centred(w)", hint)
    passed("centred", ROUNDS)


def check_block_diagonal(fn: Callable) -> None:
    """Exercise 3.5: block_diagonal(h (B, d), w (n,), n_out, blocks) -> (B, n_out), against a matrix with zeros."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        blocks = int(rng.integers(2, 5))
        n_out, d = int(rng.integers(blocks, 11)), int(rng.integers(2 * blocks, 25))
        rows = [len(x) for x in np.array_split(np.arange(n_out), blocks)]
        columns = [len(x) for x in np.array_split(np.arange(d), blocks)]
        sizes = [r * c for r, c in zip(rows, columns, strict=True)]
        w = torch.from_numpy(rng.normal(size=sum(sizes))).float()
        h = torch.from_numpy(rng.normal(size=(3, d))).float()
        parts = list(zip(w.split(sizes), rows, columns, strict=True))
        matrix = torch.block_diag(*(p.view(r, c) for p, r, c in parts))
        turned = torch.block_diag(*(p.view(c, r).T for p, r, c in parts))
        wanted = h @ matrix.T / d**0.5
        found = called(fn, h.clone(), w.clone(), n_out, blocks, what=f"block_diagonal with {blocks} blocks")
        mistakes = {
            "every head here divides by sqrt(d).": h @ matrix.T,
            "each block is stored row by row: view(rows, columns), without a transpose.": h @ turned.T / d**0.5,
            "divide by sqrt(d), the width of the whole state, in every block.": h @ matrix.T
            / torch.tensor([c**0.5 for r, c in zip(rows, columns, strict=True) for _ in range(r)]),
        }
        hint = recognised(
            found, mistakes, "np.array_split gives the first runs one element more where the lengths do not divide."
        )
        same(found, wanted, f"block_diagonal(h, w, {n_out}, {blocks})", hint)
    passed("block_diagonal", ROUNDS)
