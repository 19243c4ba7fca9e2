"""The checkers of lesson 04: the lesson's solutions pass, and each typical mistake gets its own message."""

import pytest
import torch

from trinity_mini import checks_svf
from trinity_mini.checks import Wrong

CHECKS = {
    "svf_linear": checks_svf.check_svf_linear,
    "anchored": checks_svf.check_anchored,
    "layout": checks_svf.check_layout,
    "embedded": checks_svf.check_embedded,
    "speed_up": checks_svf.check_speed_up,
}


def linear(values):
    """svf_linear with another rule for the gains."""
    return lambda x, u, s, vt, delta: (x @ vt.T * values(s, delta)) @ u.T


def in_place(delta, s):
    delta += 1
    return delta * s.sum() / (s * delta).sum() - 1


def laid_out(size=lambda w: min(w.shape), tied=lambda a, b: a is b, keeps=True, first=False):
    """layout with a mistake."""

    def layout(weights):
        n, slices, inert, seen = 0, {}, set(), {}
        for name, w in weights.items():
            earlier = [k for k, v in seen.items() if tied(v, w)]
            if earlier:
                inert.add(earlier[0] if first else name)
            here = 0 if earlier and not keeps else size(w)
            slices[name] = (n, n + here)
            n, seen[name] = n + here, w
        return n, slices, inert

    return layout


def each_from_zero(weights):
    n, slices, inert = laid_out()(weights)
    return n, {name: (0, stop - start) for name, (start, stop) in slices.items()}, inert


def equal(a, b):
    return a.shape == b.shape and torch.equal(a, b)


MISTAKES = [
    ("svf_linear", linear(lambda s, d: s * (1 + d)), "last factor is missing"),
    ("svf_linear", linear(lambda s, d: (s + d) * s.sum() / (s + d).sum()), "delta is relative"),
    ("svf_linear", linear(lambda s, d: s * d), "must be W, not zero"),
    (
        "svf_linear",
        linear(lambda s, d: s * (1 + d) * (s.square().sum() / (s * (1 + d)).square().sum()) ** 0.5),
        "sums of squares",
    ),
    ("svf_linear", linear(lambda s, d: s * (1 + d) * (s * (1 + d)).sum() / s.sum()), "upside down"),
    ("svf_linear", lambda x, u, s, vt, d: (u * s) @ vt @ x, "stopped"),
    ("anchored", lambda d, s: (1 + d) * s.sum() / (s * (1 + d)).sum(), "subtract the 1"),
    ("anchored", lambda d, s: d - d.mean(), "ratios of the gains"),
    ("anchored", lambda d, s: d - (s * d).sum() / s.sum(), "tiny deltas only"),
    ("anchored", lambda d, s: d * s.sum() / (s * (1 + d)).sum(), r"scale 1 \+ delta"),
    ("anchored", in_place, "has changed the delta"),
    ("layout", laid_out(size=lambda w: max(w.shape)), r"min\(out, in\) singular values"),
    ("layout", laid_out(size=lambda w: w.shape[0]), "not one a row|singular values"),
    ("layout", laid_out(keeps=False), "keeps its place"),
    ("layout", laid_out(tied=equal), "compare with `is`"),
    ("layout", laid_out(tied=lambda a, b: False), "later one is inert"),
    ("layout", laid_out(first=True), "later one is inert"),
    ("layout", each_from_zero, "goes on where"),
    ("layout", lambda weights: 3, "three are wanted"),
    ("embedded", lambda ids, owner, u, vt, g: (u[ids] * g[0]) @ vt, "candidate 0"),
    ("embedded", lambda ids, owner, u, vt, g: u[ids] @ vt, "gains are missing"),
    (
        "embedded",
        lambda ids, owner, u, vt, g: (u[owner % len(u)] * g[ids % len(g)]) @ vt,
        "exchanged",
    ),
    ("embedded", lambda ids, owner, u, vt, g: (u[ids] * g) @ vt, "stopped"),
    ("speed_up", lambda n, a, p, c: ((0 if c else a) + p * (n - a)) / (p * n), "other way round"),
    ("speed_up", lambda n, a, p, c: p * n / (a + p * (n - a)), "with a cache"),
    ("speed_up", lambda n, a, p, c: n / (n - a), "without a cache"),
    ("speed_up", lambda n, a, p, c: 1.0, "not once for each"),
    ("speed_up", lambda n, a, p, c: p * n / ((0 if c else a) + 1 + p * (n - a - 1)), "adapted layer itself"),
]


@pytest.mark.parametrize("name, wrong, says", MISTAKES, ids=[f"{m[0]}: {m[2]}" for m in MISTAKES])
def test_a_mistake_gets_its_message(name, wrong, says):
    for _ in range(3):
        with pytest.raises(Wrong, match=says):
            CHECKS[name](wrong)
