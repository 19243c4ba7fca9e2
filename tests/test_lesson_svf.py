"""Lesson 04's own definitions against the package."""

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini.prefix_tree import PrefixTree
from trinity_mini.svf import SVF

BOOK = "04_svf.ipynb"


@pytest.fixture(scope="module")
def lesson():
    return definitions(BOOK, "svd_by_hand", "gains", "batched_linear", "passes")


@pytest.fixture
def svf():
    g = torch.Generator().manual_seed(0)
    return SVF({"w": torch.randn(7, 12, generator=g), "v": torch.randn(9, 4, generator=g)})


def test_svd_by_hand(lesson):
    w = np.random.default_rng(0).normal(size=(6, 4))
    u, s, vt = lesson.svd_by_hand(w)
    np.testing.assert_allclose(s, SVF({"w": torch.from_numpy(w)}).factors["w"][1], rtol=1e-5)
    np.testing.assert_allclose(u @ np.diag(s) @ vt, w, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(4), atol=1e-9)


def test_gains(lesson, svf):
    delta = 0.4 * torch.randn(3, svf.n, generator=torch.Generator().manual_seed(1))
    wanted = svf.singular_values(delta)
    for name, part in svf.slices.items():
        torch.testing.assert_close(lesson.gains(svf.factors[name][1], delta[:, part]), wanted[name])


def test_a_batch_of_candidates(lesson, svf):
    g = torch.Generator().manual_seed(2)
    delta, x, owner = 0.4 * torch.randn(3, svf.n, generator=g), torch.randn(10, 12, generator=g), torch.arange(10) % 3
    u, s, vt = svf.factors["w"]
    y = lesson.batched_linear(x, owner, u, vt, lesson.gains(s, delta[:, svf.slices["w"]]))
    for row, candidate, found in zip(x, owner, y, strict=True):
        torch.testing.assert_close(found, svf.reconstruct("w", delta[candidate]) @ row, atol=1e-4, rtol=1e-4)


def test_exercise_1_is_the_package_too(svf):
    solution = definitions(BOOK, "svf_linear")
    g = torch.Generator().manual_seed(3)
    delta, x = 0.4 * torch.randn(svf.n, generator=g), torch.randn(5, 4, generator=g)
    y = solution.svf_linear(x, *svf.factors["v"], delta[svf.slices["v"]])
    torch.testing.assert_close(y, x @ svf.reconstruct("v", delta).T, atol=1e-4, rtol=1e-4)


def test_exercise_2_gives_the_same_matrix(svf):
    solution = definitions(BOOK, "anchored")
    delta = 0.3 * torch.randn(svf.n, generator=torch.Generator().manual_seed(4))
    other = delta.clone()
    for name, part in svf.slices.items():
        other[part] = solution.anchored(delta[part], svf.factors[name][1])
        u, s, vt = svf.factors[name]
        torch.testing.assert_close((u * s * (1 + other[part])) @ vt, svf.reconstruct(name, delta), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(other, delta)


def test_exercise_3_is_the_package_s_layout():
    solution = definitions(BOOK, "layout")
    tied = torch.randn(4, 6)
    weights = {"a": torch.randn(5, 3), "b": tied, "c": torch.randn(2, 8), "head": tied}
    svf = SVF(weights)
    n, slices, inert = solution.layout(weights)
    assert (n, inert) == (svf.n, svf.inert)
    assert slices == {name: (part.start, part.stop) for name, part in svf.slices.items()}


def test_distinct_prefixes_are_the_nodes_of_the_tree():
    space = definitions(BOOK, "turns", "read", "ids", "distinct")
    tree = PrefixTree(1, 4, (1, 4), torch.zeros(1))
    sizes = []
    for row in space.ids:
        tree.insert([-1], [tuple(row)])
        sizes.append(tree.size)
    assert sizes == space.distinct


def test_passes_are_those_of_exercise_5(lesson):
    solution = definitions(BOOK, "speed_up")
    for layers, adapted, candidates in ((6, 4, 34), (28, 26, 34), (5, 0, 3)):
        plain, together, cached = lesson.passes(layers, adapted, candidates)
        assert solution.speed_up(layers, adapted, candidates, False) == pytest.approx(plain / together)
        assert solution.speed_up(layers, adapted, candidates, True) == pytest.approx(plain / cached)
