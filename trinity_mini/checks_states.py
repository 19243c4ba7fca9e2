"""The checkers of lesson 02, hidden states. Each draws fresh random inputs and compares with torch or numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def _tensors(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(0.5, 1.5, shape)).float()


def _linear(rng: np.random.Generator, n_in: int, n_out: int) -> nn.Linear:
    made = nn.utils.skip_init(nn.Linear, n_in, n_out).requires_grad_(False)  # without torch's global stream
    made.weight.copy_(_tensors(rng, n_out, n_in))
    made.bias.copy_(_tensors(rng, n_out))
    return made


def check_rms_norm(fn: Callable) -> None:
    """Exercise 2.1: rms_norm(x (..., d), weight (d,), eps) -> (..., d), against torch's own."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        d = int(rng.integers(5, 12))
        shape = ((d,), (4, d), (2, 3, d))[i % 3]
        x, weight, eps = _tensors(rng, *shape), _tensors(rng, d), float(rng.uniform(0.1, 1))
        wanted = nn.functional.rms_norm(x, (d,), weight, eps)
        found = called(fn, x.clone(), weight.clone(), eps, what=f"rms_norm of x {shape}")
        square = x.square().mean(-1, keepdim=True)
        mistakes = {
            "the weight is missing: one factor for each feature.": nn.functional.rms_norm(x, (d,), None, eps),
            "eps is missing: without it a state of zeros becomes nan.": x / square.sqrt() * weight,
            "eps belongs under the root, added to the mean square.": x / (square.sqrt() + eps) * weight,
            "nothing is subtracted: this is a LayerNorm.": nn.functional.layer_norm(x, (d,), weight, None, eps),
            "the MEAN square, not the sum: divide by d under the root.": x / (square * d + eps).sqrt() * weight,
            "the root is missing: divide by the root of the mean square.": x / (square + eps) * weight,
            "each state has its own mean square: mean over the last axis, not over all.": x
            / (x.square().mean() + eps).sqrt()
            * weight,
        }
        hint = recognised(found, mistakes, "x / sqrt(mean(x^2 over the last axis) + eps) * weight.")
        same(found, wanted, f"rms_norm of x {shape}", hint)
    passed("rms_norm", ROUNDS)


def check_catch(fn: Callable) -> None:
    """Exercise 2.2: catch(module, run) -> its outputs, against the module called by hand."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        d, times = int(rng.integers(3, 7)), int(rng.integers(2, 5))
        module = _linear(rng, d, d)
        model = nn.Sequential(nn.Tanh(), module, nn.ReLU(inplace=True), _linear(rng, d, 2))
        xs = [_tensors(rng, 3, d) for _ in range(times)]
        wanted = [x.tanh() @ module.weight.T + module.bias for x in xs]
        results: list = []

        def run(model: nn.Module = model, xs: list = xs, results: list = results) -> None:
            results.extend(model(x) for x in xs)

        found = called(fn, module, run, what="catch(module, run)")
        if module._forward_hooks or module._forward_pre_hooks:
            raise Wrong("catch(module, run) leaves a hook on the module. Hint: a `with` block takes it off again.")
        if not results:
            raise Wrong("catch(module, run) has not called run. Hint: run(), while the hook is on.")
        if len(results) > times:
            raise Wrong("catch(module, run) has called run more than once. Hint: run() only once.")
        for x, y in zip(xs, results, strict=True):
            if not torch.allclose(y, model(x)):
                raise Wrong("catch has changed what the model gives. Hint: a hook must return None.")
        if isinstance(found, torch.Tensor):
            found = list(found)
        mistakes = {
            "the tensors have changed since: the next layer works in place, so keep a copy (clone).": [
                w.relu() for w in wanted
            ],
            "these are the module's INPUTS: a hook gets (module, inputs, output).": [x.tanh() for x in xs],
            "these are the outputs of the whole model, not of the module.": results,
            "only one call was kept: append each output to a list.": wanted[-1:],
        }
        hint = recognised(found, mistakes, "one tensor for each call of the module, in order.")
        same(found, wanted, "catch(module, run)", hint)
    stop = RuntimeError("the run has failed")

    def failing() -> None:
        raise stop

    try:
        fn(module, failing)
    except RuntimeError as e:
        if e is not stop:
            raise Wrong("catch(module, run) raises another error than its run does. Hint: let it pass.") from None
    else:
        raise Wrong("catch(module, run) hides an error of its run. Hint: let it pass on to the caller.")
    if module._forward_hooks or module._forward_pre_hooks:
        raise Wrong(
            "catch(module, run) leaves a hook on the module when run() raises. "
            "Hint: `with module.register_forward_hook(...):` takes it off in any case, so does try/finally."
        )
    passed("catch", ROUNDS)


def check_penultimate(fn: Callable) -> None:
    """Exercise 2.3: penultimate(states (B, T, d), mask (B, T)) -> (B, d), against a loop over the rows."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        b, d = int(rng.integers(4, 7)), int(rng.integers(2, 5))
        lengths = rng.permutation(np.r_[3, 8, rng.integers(2, 8, b - 2)])
        width = 9 + int(rng.integers(3))
        side = ("right", "left", "both")[i % 3]
        starts = {"right": 0 * lengths, "left": width - lengths, "both": rng.integers(width - lengths + 1)}[side]
        mask = torch.zeros(b, width, dtype=torch.long)
        for row, (start, n) in enumerate(zip(starts, lengths, strict=True)):
            mask[row, start : start + n] = 1
        states = _tensors(rng, b, width, d)
        wanted = torch.stack([s[m.bool()][-2] for s, m in zip(states, mask, strict=True)])
        what = f"penultimate with padding on {'both sides' if side == 'both' else f'the {side}'}"
        found = called(fn, states.clone(), mask.clone(), what=what)
        rows, count = torch.arange(b), mask.sum(-1)
        mistakes = {
            "this is position -2 of the padded row: where padding ends it, that is padding.": states[:, -2],
            "counting the real tokens finds the end only if the padding is on the right.": states[rows, count - 2],
            "this is the LAST real token: one further back.": torch.stack(
                [s[m.bool()][-1] for s, m in zip(states, mask, strict=True)]
            ),
            "one too far: this is the last but two.": torch.stack(
                [s[m.bool()][-3] if m.sum() > 2 else s[m.bool()][0] for s, m in zip(states, mask, strict=True)]
            ),
        }
        hint = recognised(found, mistakes, "where is the last 1 of each row of the mask? The state one before it.")
        same(found, wanted, what, hint)
    passed("penultimate", ROUNDS)


def check_pca(fn: Callable) -> None:
    """Exercise 2.4: pca(x (n, d), k) -> coordinates (n, k), shares (k,), against the eigenvectors of np.cov."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, d = int(rng.integers(20, 40)), int(rng.integers(5, 9))
        k = int(rng.integers(2, d - 1))
        x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(0, 5, d)
        values, vectors = np.linalg.eigh(np.cov(x.T))
        wanted, share = (x - x.mean(0)) @ vectors[:, ::-1][:, :k], values[::-1][:k] / values.sum()
        found = called(fn, x.copy(), k, what=f"pca(x, {k})")
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise Wrong(f"pca(x, {k}) must give two things. Hint: coordinates and shares of variance.")
        z, part = found
        if isinstance(z, np.ndarray) and z.shape == wanted.shape:
            z = z * np.where((z * wanted).sum(0) < 0, -1, 1)  # signs are free
            raw = np.linalg.svd(x, full_matrices=False)
            u, s, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
            mistakes = {
                "the mean was not taken away.": raw[0][:, :k] * raw[1][:k],
                "the mean goes before the SVD; the points themselves must be centred, too.": x @ vt[:k].T,
                "U alone has lost the widths: multiply by the singular values.": u[:, :k],
                "take the mean of each column, axis 0; this is that of each row.": (
                    lambda a: np.multiply(*np.linalg.svd(a, full_matrices=False)[:2])[:, :k]
                )(x - x.mean(1, keepdims=True)),
                "the widest directions come first: eigh sorts upwards.": (x - x.mean(0)) @ vectors[:, :k],
            }
            mistakes = {h: w * np.where((w * wanted).sum(0) < 0, -1, 1) for h, w in mistakes.items()}
        else:
            mistakes = {}
        hint = recognised(z, mistakes, "coordinates are U S, or (x - mean) V, first k columns.")
        same(z, wanted, f"coordinates of pca(x, {k})", hint)
        s = np.sqrt(values[::-1])
        mistakes = {
            "variances are the SQUARES of the singular values.": s[:k] / s.sum(),
            "share of the whole: divide by the sum over all components, not over the first k.": share / share.sum(),
            "these are variances; divide by their sum over all components.": values[::-1][:k],
            "these are S squared; divide by their sum over all components.": values[::-1][:k] * (n - 1),
            "the largest first.": (values / values.sum())[:k],
        }
        hint = recognised(part, mistakes, "S squared over the sum of all of them.")
        same(part, share, f"shares of pca(x, {k})", hint)
    passed("pca", ROUNDS)


def check_grouped_folds(fn: Callable) -> None:
    """Exercise 2.5: grouped_folds(groups (n,), k, rng) -> (n,) fold numbers, by what they must fulfil."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        k, many = int(rng.integers(3, 6)), int(rng.integers(13, 30))
        groups = rng.permutation(np.r_[np.arange(many), rng.integers(many, size=3 * many)])
        groups = np.array([f"q{g}" for g in groups])
        what, seed = f"grouped_folds of {many} groups in {k} folds", int(rng.integers(2**31))
        before = np.random.get_state()[1].copy()
        found = called(fn, groups.copy(), k, np.random.default_rng(seed), what=what)
        if not isinstance(found, np.ndarray) or found.shape != groups.shape:
            same(found, np.zeros(len(groups), dtype=int), what, "a numpy array with one fold number for each row.")
        if found.dtype.kind == "f" and np.array_equal(found, np.round(found)):
            found = found.astype(int)
        if found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= k:
            raise Wrong(f"{what}: fold numbers must be whole, from 0 to {k - 1}. Hint: np.arange(m) % k.")
        for g in np.unique(groups):
            if len(inside := np.unique(found[groups == g])) > 1:
                raise Wrong(
                    f"{what}: group {g!r} is in folds {inside[0]} and {inside[1]}. "
                    "Hint: draw a fold for each different name, then look it up for each row."
                )
        sizes = [len(np.unique(groups[found == f])) for f in range(k)]
        if max(sizes) - min(sizes) > 1:
            raise Wrong(
                f"{what}: the folds have {sizes} groups. Hint: permute 0, 1, …, k - 1, 0, 1, … over the names, "
                "rather than draw each group's fold by itself."
            )
        again = called(fn, groups.copy(), k, np.random.default_rng(seed), what=what)
        if not np.array_equal(found, again) or not np.array_equal(before, np.random.get_state()[1]):
            raise Wrong(f"{what}: the same rng gives other folds. Hint: draw from the rng that was given, only.")
        others = [called(fn, groups.copy(), k, np.random.default_rng(seed + j), what=what) for j in (1, 2, 3)]
        if all(np.array_equal(found, o) for o in others):
            raise Wrong(f"{what}: every rng gives the same folds. Hint: rng.permutation shuffles the groups.")
    passed("grouped_folds", ROUNDS)
