"""The checkers of lesson 08, separability. Each draws fresh random inputs; the oracles are loops and exact Hessians."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product

import numpy as np

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20
SIGNS = {m: list(product((1, -1), repeat=m)) for m in range(5, 10)}


def check_three_forms(fn: Callable) -> None:
    """Exercise 8.1: three_forms(h (n, n), blocks) -> (B1, B2, B3), against loops over the entries."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(5, 9)) if i else 8  # of two blocks the eigenvalues come in pairs, + and -
        order, cuts = rng.permutation(n), np.sort(rng.choice(np.arange(2, n - 1), 1 + (n > 6), replace=False))
        blocks = [part.copy() for part in np.split(order, cuts)]
        a = rng.normal(size=(n, n))
        h = a + a.T
        first, last = blocks[0][0], blocks[-1][-1]
        h[first, last] = h[last, first] = -6 - rng.random()  # the largest entry is negative
        h[blocks[0][0], blocks[0][1]] = h[blocks[0][1], blocks[0][0]] = 9 + rng.random()  # inside a block: allowed
        np.fill_diagonal(h, rng.uniform(0.5, 4, n))
        label = {int(k): p for p, block in enumerate(blocks) for k in block}
        off, all_off = np.zeros((n, n)), h - np.diag(h.diagonal())
        for r, c in product(range(n), repeat=2):
            if label[r] != label[c]:
                off[r, c] = h[r, c]
        d = h.diagonal()
        root = np.sqrt(np.outer(d, d))
        scaled = off / root
        ends = np.linalg.eigvalsh(scaled)[[0, -1]]
        if i == 0 and ends[1] > -ends[0]:  # at least once the largest eigenvalue in size is negative
            h, off, all_off, scaled = np.diag(d) - all_off, -off, -all_off, -scaled
        wanted = (float(np.linalg.norm(scaled, 2)), float(abs(scaled).max()), float((abs(off).sum(1) / d).max()))
        found = called(fn, h.copy(), [b.copy() for b in blocks], what="three_forms")
        if not isinstance(found, tuple | list) or len(found) != 3:
            same(found, wanted, "three_forms(...)", "return three numbers, B1, B2 and B3.")
        inside = "entries INSIDE a block are allowed: set them to 0, not only the diagonal."
        whole = "only entries between different blocks count: set those inside a block to 0, the diagonal too."
        mistakes = [
            {
                inside: np.linalg.norm(all_off / root, 2),
                whole: np.linalg.norm(h / root, 2),
                "this is the Frobenius norm; B1 is the spectral one, np.linalg.norm(..., 2).": np.linalg.norm(scaled),
                "scale from both sides, by the roots of H_ii and of H_jj.": np.linalg.norm(off / d[:, None], 2),
                "the entries must be divided by sqrt(H_ii H_jj).": np.linalg.norm(off, 2),
                "divide by the root of H_ii H_jj, not by the product.": np.linalg.norm(off / root**2, 2),
                "the norm takes the largest |eigenvalue|, of either sign.": np.linalg.eigvalsh(scaled).max(),
            },
            {
                inside: abs(all_off / root).max(),
                whole: abs(h / root).max(),
                "this is the largest signed entry: a negative one couples as much, take abs first.": scaled.max(),
                "divide by sqrt(H_ii H_jj), not by H_ii.": abs(off / d[:, None]).max(),
                "the entries must be divided by sqrt(H_ii H_jj).": abs(off).max(),
                "divide by the root of H_ii H_jj, not by the product.": abs(off / root**2).max(),
            },
            {
                inside: (abs(all_off).sum(1) / d).max(),
                whole: (abs(h).sum(1) / d).max(),
                "B3 divides each row sum by its own H_ii: no roots here.": abs(scaled).sum(1).max(),
                "add up absolute values: signed ones cancel.": (off.sum(1) / d).max(),
                "this is the mean over the rows; the worst row counts.": (abs(off).sum(1) / d).mean(),
                "divide each row's sum by its own H_ii.": abs(off).sum(1).max(),
                "divide each row by its own H_ii, not each column by its H_jj.": (abs(off) / d).sum(1).max(),
            },
        ]
        for k, name in enumerate(("B1", "B2", "B3")):
            hint = "start from H with all entries inside the blocks set to 0; blocks are indices, in any order."
            same(found[k], wanted[k], name, recognised(found[k], mistakes[k], hint))
    passed("three_forms", ROUNDS)


def check_block_norm2(fn: Callable) -> None:
    """Exercise 8.2: block_norm2(f, theta, p, q, a, b, h) -> float, against the exact Hessian of a cubic.

    For polynomials of the third degree a four-point difference is exact, whatever h.
    """
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n = int(rng.integers(5, 9))
        order = rng.permutation(n)
        n_p, n_q = int(rng.integers(2, n - 2)), 2
        p, q = order[:n_p], order[n_p : n_p + n_q]
        m, h = int(rng.integers(4, 9)), float(rng.uniform(0.3, 2))
        g = rng.normal(size=(n, n))
        sym, v, slope, theta = g + g.T, rng.normal(size=(3, n)), rng.normal(size=n), rng.normal(size=n)

        def f(x: np.ndarray, sym: np.ndarray = sym, v: np.ndarray = v, slope: np.ndarray = slope) -> np.ndarray:
            x = np.asarray(x, dtype=float)
            return x @ slope + np.sum((x @ sym) * x, axis=-1) / 2 + ((x @ v.T) ** 3).sum(-1) / 6

        units = [rng.normal(size=(m, k)) for k in (n_p, n_q)]
        a, b = (u / np.linalg.norm(u, axis=1, keepdims=True) for u in units)

        def mixed(at: np.ndarray, sym=sym, v=v, p=p, q=q, a=a, b=b) -> np.ndarray:
            hess = sym + (v.T * (v @ at)) @ v
            return np.einsum("mi,ij,mj->m", a, hess[np.ix_(p, q)], b)

        d = mixed(theta)
        wanted = float(n_p * n_q * np.mean(d**2))
        found = called(fn, f, theta.copy(), p.copy(), q.copy(), a.copy(), b.copy(), h, what="block_norm2")
        mistakes = {
            "the difference is divided by 4 h^2, not by h^2.": 16 * wanted,
            "the difference is divided by 4 h^2: h is squared.": wanted * h**2,
            "the factor n_p n_q is missing: a unit direction sees one n_p-th of a block.": wanted / n_p / n_q,
            "the factor is n_p n_q, not its root.": wanted / (n_p * n_q) ** 0.5,
            "square each difference, then take the mean: of both signs, the differences themselves cancel.": n_p
            * n_q
            * d.mean() ** 2,
            "this is the mean of |D|; the identity is about squares.": n_p * n_q * abs(d).mean(),
            "measure around theta, not around 0.": n_p * n_q * np.mean(mixed(0 * theta) ** 2),
            "this is a sum over the directions; take the mean.": wanted * m,
            "this is ||H_pq||; its square is wanted.": wanted**0.5,
        }
        hint = "D = [f(+a+b) - f(+a-b) - f(-a+b) + f(-a-b)] / 4 h^2, a on the coordinates p, b on q."
        same(found, wanted, "block_norm2(...)", recognised(found, mistakes, hint))
    passed("block_norm2", ROUNDS)


def check_unbiased_square(fn: Callable) -> None:
    """Exercise 8.3: unbiased_square(d (m, k)) -> float, against a loop over all pairs of halves."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        m, k = int(rng.integers(3, 7)), 2 if i % 4 == 3 else int(rng.integers(3, 7))
        d = rng.normal(rng.normal(size=(m, 1)), 1.5, (m, k))
        pairs = list(combinations(range(k), 2))
        wanted = float(sum(row[s] * row[t] for row in d for s, t in pairs) / len(pairs) / m)
        found = called(fn, d.copy(), what="unbiased_square")
        mistakes = {
            "the square of each value has its own noise in it: only products of DIFFERENT columns.": np.mean(d**2),
            "the square of a row's mean still holds each value times itself: leave these k products out.": np.mean(
                d.mean(1) ** 2
            ),
            "take the products row by row first; the rows are different directions.": d.mean() ** 2,
            "right for two columns, but here are more: use all pairs of different columns.": np.mean(d[:, 0] * d[:, 1]),
            "there are k (k - 1) ordered pairs, not k^2: the estimate is too small.": wanted * (k - 1) / k,
            "each pair is counted twice here, or divided by half their number.": 2 * wanted,
            "a mean over the rows is wanted, not a sum.": wanted * m,
        }
        hint = "the mean of d[r, s] * d[r, t] over all rows r and all pairs s < t."
        same(found, wanted, f"unbiased_square of {m} rows, {k} columns", recognised(found, mistakes, hint))
    passed("unbiased_square", ROUNDS)


def check_exact_p(fn: Callable) -> None:
    """Exercise 8.4: exact_p(products (m,)) -> float, against all 2^m choices of signs one by one.

    Multiples of 1/8: their sums are exact, so equal sums are equal.
    """
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        m = int(rng.integers(5, 10))
        x = rng.integers(-12, 25, m) / 8
        x[x == 0] = 0.25
        if i == 0:
            x = -abs(x)
        sums = np.array([sum(s * v for s, v in zip(signs, x.tolist(), strict=True)) for signs in SIGNS[m]])
        seen = float(x.sum())
        wanted = float(np.mean(sums >= seen))
        found = called(fn, x.copy(), what="exact_p")
        mistakes = {
            "a sum as large as the one seen counts too: >=.": np.mean(sums > seen),
            "one-sided: F cannot be negative, so only large sums speak for an interaction.": np.mean(
                abs(sums) >= abs(seen)
            ),
            "this counts the SMALL sums; a large sum speaks for an interaction.": np.mean(sums <= seen),
            "all choices are listed, the one seen among them: nothing is to be added.": (1 + np.sum(sums >= seen))
            / (1 + len(sums)),
            "this is a number of choices; divide by how many there are.": np.sum(sums >= seen),
            "the signs of ALL products are free, the first one's too.": np.mean(sums[: len(sums) // 2] >= seen),
            "compare with the sum of the products as they are, not of their sizes.": np.mean(sums >= abs(x).sum()),
        }
        text = f"exact_p of {m} products"
        same(found, wanted, text, "return one number.", tol=np.inf)  # of what type, before its value
        again = [called(fn, x.copy(), what="exact_p") for _ in range(4)]
        if any(not np.array_equal(a, found, equal_nan=True) for a in again):
            raise Wrong(f"{text} differs from call to call. Hint: list all 2^m choices of signs, draw none at random.")
        hint = "the share of the 2^m choices of signs whose sum is at least the sum of the products."
        same(found, wanted, text, recognised(found, mistakes, hint), tol=1e-9)
    passed("exact_p", ROUNDS)


def check_blind(fn: Callable) -> None:
    """Exercise 8.5: blind(n_agents, d) -> (2 d, (n_agents + 3) d), against the policy itself and a projection."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n_agents, d = int(rng.integers(4, 8)), int(rng.integers(2, 5))
        n = (n_agents + 3) * d
        agents, roles = np.zeros((n_agents + 3, 1)), np.zeros((n_agents + 3, 1))
        agents[:n_agents], roles[n_agents:] = n_agents**-0.5, 3**-0.5
        wanted = np.concatenate([np.kron(g, np.eye(d)).T for g in (agents, roles)])
        found = called(fn, n_agents, d, what="blind")
        if not isinstance(found, np.ndarray):
            same(found, wanted, "blind(...)", "return a numpy array.")
        text = f"blind({n_agents}, {d})"
        if found.shape == (d, n):
            raise Wrong(
                f"{text} has {d} rows, and {2 * d} are wanted. Hint: agents and roles are two softmaxes, each blind "
                "to a shift of its own logits."
            )
        if found.shape != wanted.shape:
            same(found, wanted, text, "d directions for the agents, d for the roles, each as long as theta.")
        gram = found @ found.T
        if np.isfinite(found).all() and not np.allclose(gram.diagonal(), 1):
            k = int(np.argmax(abs(gram.diagonal() - 1)))
            raise Wrong(
                f"row {k} of {text} has length {gram[k, k] ** 0.5:.4g}, not 1. Hint: v stands in n_agents rows of the "
                "head, or in 3: divide by the root of that."
            )
        w, h = rng.normal(size=n), rng.normal(size=(5, d))
        for k, row in enumerate(found):
            if not np.allclose(_policy(w + row, h, n_agents), _policy(w, h, n_agents), atol=1e-9):
                column = np.allclose(_policy_columns(w + row, h, n_agents), _policy_columns(w, h, n_agents), atol=1e-9)
                swapped = np.allclose(_policy(w + row, h, 3), _policy(w, h, 3), atol=1e-9)
                hint = (
                    "theta is the head row by row: coordinate k of row r is number r * d + k."
                    if column
                    else "the agents' rows come first, the three roles' rows last."
                    if swapped
                    else "add the same number to coordinate k of all rows of one softmax."
                )
                raise Wrong(f"{text}: the policy sees row {k}, its probabilities change. Hint: {hint}")
        if not np.allclose(gram, np.eye(2 * d), atol=1e-5):
            raise Wrong(
                f"the rows of {text} are not orthogonal. Hint: one coordinate k of the state for each row, and no "
                "direction twice."
            )
    passed("blind", ROUNDS)


def _policy(w: np.ndarray, h: np.ndarray, n_agents: int) -> np.ndarray:
    """Probabilities (N, L + 3) of a head w, row by row, for states h (N, d)."""
    return _softmaxes(h @ w.reshape(-1, h.shape[1]).T, n_agents)


def _policy_columns(w: np.ndarray, h: np.ndarray, n_agents: int) -> np.ndarray:
    """The same if w were the head column by column: what a common mistake is blind to."""
    return _softmaxes(h @ w.reshape(h.shape[1], -1), n_agents)


def _softmaxes(z: np.ndarray, n_agents: int) -> np.ndarray:
    parts = [np.exp(x - x.max(1, keepdims=True)) for x in (z[:, :n_agents], z[:, n_agents:])]
    return np.concatenate([x / x.sum(1, keepdims=True) for x in parts], axis=1)
