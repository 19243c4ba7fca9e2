"""The checkers of lesson 04, singular-value fine-tuning. Each draws fresh random inputs and compares with numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def _matrix(rng: np.random.Generator, out: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """U (out, r), S (r,), Vt (r, width) of a random matrix, as float32 tensors."""
    u, s, vt = np.linalg.svd(rng.normal(size=(out, width)), full_matrices=False)
    return torch.from_numpy(u).float(), torch.from_numpy(s).float(), torch.from_numpy(vt).float()


def _changed(u: Tensor, values: np.ndarray, vt: Tensor) -> np.ndarray:
    """U diag(values) Vt in float64."""
    return u.double().numpy() @ np.diag(values) @ vt.double().numpy()


def check_svf_linear(fn: Callable) -> None:
    """Exercise 4.1: svf_linear(x (N, in), u, s, vt, delta (r,)) -> (N, out), against the whole matrix W'."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        out, width = (int(k) for k in rng.integers(3, 12, 2))
        u, s, vt = _matrix(rng, out, width)
        delta = torch.from_numpy(rng.normal(0, 0.3, len(s))).float()
        x = torch.from_numpy(rng.normal(size=(13, width))).float()  # 13 is no width: a swap of axes is met
        gains, sums, xs = s.double().numpy(), s.double().sum().numpy(), x.double().numpy()
        d = delta.double().numpy()
        moved = gains * (1 + d)

        def product(values, u=u, vt=vt, xs=xs):
            return torch.from_numpy(xs @ _changed(u, values, vt).T)

        wanted = product(moved * sums / moved.sum()).float()
        found = called(fn, x.clone(), u, s, vt, delta.clone(), what="svf_linear")
        mistakes = {
            "the last factor is missing: sum(S) / sum(S (1 + delta)) keeps the sum of the gains.": product(moved),
            "delta is relative: a gain becomes S (1 + delta), not S + delta.": product(
                (gains + d) * sums / (gains + d).sum()
            ),
            "1 + delta: with delta = 0 the matrix must be W, not zero.": product(gains * d),
            "the last factor uses plain sums of the gains, not sums of squares.": product(
                moved * np.sqrt((gains**2).sum() / (moved**2).sum())
            ),
            "the last factor is upside down: the old sum over the new one.": product(moved * moved.sum() / sums),
        }
        hint = recognised(found, mistakes, "three steps: V^T x, times the new gains, then U; rows of x are inputs.")
        same(found, wanted, "svf_linear(x, ...)", hint, tol=1e-4)
    passed("svf_linear", ROUNDS)


def _far_from_neutral(rng: np.random.Generator, r: int) -> tuple[Tensor, Tensor]:
    """Gains (r,) and delta (r,) whose mean, weighted mean and 0 lie apart: else two mistakes give the same."""
    while True:
        s = np.sort(rng.uniform(0.1, 3, r))[::-1].copy()
        delta = rng.uniform(-0.3, 0.9, r)  # the sum of the gains stays far from 0
        means = 0.0, delta.mean(), s @ delta / s.sum()
        if np.diff(np.sort(means)).min() > 0.01:
            return torch.from_numpy(s).float(), torch.from_numpy(delta).float()


def check_anchored(fn: Callable) -> None:
    """Exercise 4.2: anchored(delta (r,), s (r,)) -> (r,), against the two properties that define it."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        s, delta = _far_from_neutral(rng, int(rng.integers(3, 12)))
        given = delta.clone()
        found = called(fn, given, s, what="anchored")
        if not torch.equal(given, delta):
            raise Wrong("anchored(delta, s) has changed the delta it was given. Hint: compute a new tensor.")
        w, d = s.double(), delta.double()
        factor = w.sum() / (w * (1 + d)).sum()
        wanted = ((1 + d) * factor - 1).float()
        mistakes = {
            "the gains s (1 + delta') are right, but delta' itself is asked for: subtract the 1.": (1 + d) * factor,
            "subtracting the mean changes the ratios of the gains: the neutral direction is a common FACTOR.": d
            - d.mean(),
            "subtracting the weighted mean is right for tiny deltas only: the neutral direction is a common FACTOR.": d
            - (w * d).sum() / w.sum(),
            "scale 1 + delta, not delta: with delta = 0 nothing must change.": d * factor,
        }
        hint = recognised(found, mistakes, "multiply all 1 + delta by the one number that makes sum(s delta') zero.")
        same(found, wanted, "anchored(delta, s)", hint, tol=1e-4)
    passed("anchored", ROUNDS)


def check_layout(fn: Callable) -> None:
    """Exercise 4.3: layout(weights) -> (n, {name: (start, stop)}, set of inert names), against numpy's SVD."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        weights = {f"matrix {k}": torch.from_numpy(rng.normal(size=rng.integers(2, 9, 2))) for k in range(4)}
        names = list(weights)
        tied = i % 2 == 0
        weights["head"] = weights[names[1]] if tied else weights[names[1]].clone()  # equal, and not the same
        n, slices = 0, {}
        for name, w in weights.items():
            rank = len(np.linalg.svd(w.numpy(), compute_uv=False))
            slices[name] = (n, n + rank)
            n += rank
        found = called(fn, weights, what="layout")
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Wrong("layout gives one thing, and three are wanted. Hint: return n, slices, inert.")
        shapes = [tuple(w.shape) for w in weights.values()]
        mistakes = {
            "a matrix has min(out, in) singular values.": sum(max(shape) for shape in shapes),
            "a matrix has min(out, in) singular values, not one a row.": sum(shape[0] for shape in shapes),
            "a tied matrix keeps its place in delta, though nothing comes of it.": n - min(shapes[-1]) if tied else -1,
        }
        said = f"for shapes {shapes}" + (", the last one tied" if tied else "")
        same(found[0], n, f"n {said}", recognised(found[0], mistakes, "the sum of min(out, in)."))
        same(found[1], slices, "slices", "each matrix goes on where the one before it stopped.")
        equal = "two matrices with equal numbers are not tied: compare with `is`, or by id." if not tied else ""
        late = "the first of two tied matrices acts, the later one is inert."
        same(set(found[2]), {"head"} if tied else set(), "inert", equal or late)
    passed("layout", ROUNDS)


def check_embedded(fn: Callable) -> None:
    """Exercise 4.4: embedded(ids (N,), owner (N,), u, vt, gains (B, r)) -> (N, d), against whole matrices."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        vocabulary, d, b = int(rng.integers(6, 12)), int(rng.integers(3, 6)), int(rng.integers(2, 5))
        u, s, vt = _matrix(rng, vocabulary, d)
        gains = s * torch.from_numpy(rng.uniform(0.5, 1.5, (b, len(s)))).float()
        ids, owner = torch.from_numpy(rng.integers(vocabulary, size=9)), torch.from_numpy(rng.integers(b, size=9))
        every = np.stack([_changed(u, row.double().numpy(), vt) for row in gains])
        wanted = torch.from_numpy(every[owner.numpy(), ids.numpy()]).float()
        found = called(fn, ids.clone(), owner.clone(), u, vt, gains, what="embedded")
        mistakes = {
            "every token got candidate 0's gains: take those of its own candidate, gains[owner].": torch.from_numpy(
                every[0, ids.numpy()]
            ),
            "ids and owner are exchanged.": torch.from_numpy(every[ids.numpy() % b, owner.numpy() % vocabulary]),
            "the gains are missing: between U and V^T each token is scaled.": u[ids] @ vt,
        }
        hint = recognised(found, mistakes, "row i of U diag(g) V^T is (row i of U, times g) V^T.")
        same(found, wanted, "embedded(ids, owner, ...)", hint, tol=1e-4)
    passed("embedded", ROUNDS)


def check_speed_up(fn: Callable) -> None:
    """Exercise 4.5: speed_up(layers, adapted, candidates, cached) -> a ratio, against a list of all layer passes."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        layers, candidates, cached = int(rng.integers(3, 30)), int(rng.integers(2, 40)), i % 2 == 1
        adapted = int(rng.integers(1, layers))
        candidates += candidates == adapted + 1  # there two of the mistakes give the same number
        plain = [(k, c) for k in range(layers) for c in range(candidates)]
        shared = {(k, c if k >= adapted else None) for k, c in plain}
        if cached:
            shared = {(k, c) for k, c in shared if c is not None}
        found = called(fn, layers, adapted, candidates, cached, what="speed_up")
        below, above = (0 if cached else adapted), candidates * (layers - adapted)
        mistakes = {
            "that is the other way round: the plain number of passes over the shared one.": len(shared) / len(plain),
            "the adapted layer itself runs once for each candidate, as all above it.": len(plain)
            / (below + 1 + above - candidates),
            "the layers below run once for all candidates, not once for each.": 1.0,
            "with a cache the layers below cost nothing any more.": len(plain) / (adapted + above),
            "without a cache the layers below still run, once.": len(plain) / above,
        }
        otherwise = "count passes through one layer: those below once, the others for each candidate."
        hint = recognised(found, mistakes, otherwise)
        same(found, len(plain) / len(shared), f"speed_up({layers}, {adapted}, {candidates}, {cached})", hint)
    passed("speed_up", ROUNDS)
