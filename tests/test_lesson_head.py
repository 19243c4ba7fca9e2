"""Lesson 03's own definitions against the package, and its exercises' solutions against a look from outside."""

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini import head

BOOK = "03_the_head.ipynb"
D, L = 24, 5


@pytest.fixture(scope="module")
def lesson():
    return definitions(BOOK, "linear_head", "softmax", "draw", "low_rank", "sparse", "blocked")


def numbers(kind, rows=7, seed=0):
    """A head of the package, states and parameters."""
    g = torch.Generator().manual_seed(seed)
    made = head.make_head(kind, D, L)
    return made, torch.randn(rows, D, generator=g), torch.randn(made.n, generator=g)


def test_linear_head(lesson):
    made, h, w = numbers("linear")
    for ours, package in zip(lesson.linear_head(h, w, L), made(h, w), strict=True):
        torch.testing.assert_close(ours, package)


@pytest.mark.parametrize(
    "kind, call",
    [
        ("low-rank", lambda lesson, h, w: lesson.low_rank(h, w, L + 3, 20)),
        ("sparse", lambda lesson, h, w: lesson.sparse(h, w, L + 3)),
        ("block-diagonal-2", lambda lesson, h, w: lesson.blocked(h, w, L + 3, 2)),
        ("block-diagonal-n", lambda lesson, h, w: lesson.blocked(h, w, L + 3, L + 3)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_ablated_heads(lesson, kind, call, seed):
    made, h, w = numbers(kind, seed=seed)
    torch.testing.assert_close(call(lesson, h, w), torch.cat(made(h, w), dim=1))


@pytest.mark.parametrize("share", [-30.0, 30.0])
def test_sparse_head_at_its_limits(lesson, share):
    made, h, w = numbers("sparse")
    w[-1] = share
    torch.testing.assert_close(lesson.sparse(h, w, L + 3), torch.cat(made(h, w), dim=1))


def test_softmax(lesson):
    z = np.random.default_rng(0).normal(0, 300, (50, 6))
    np.testing.assert_allclose(lesson.softmax(z), head.softmax(z), atol=1e-12)


def test_draw(lesson):
    rng = np.random.default_rng(1)
    p, u = rng.dirichlet(np.ones(5), 2000), rng.random(2000)
    p[:5], u[:5] = [0.0, 0.25, 0.0, 0.75, 0.0], [0.0, 0.2499, 0.25, 0.999, 0.5]
    assert [lesson.draw(a, b) for a, b in zip(p, u, strict=True)] == head.sample(p, u).tolist()
    assert lesson.draw(np.full(10, 0.1), 1 - 2**-53) == 9


def test_the_smallest_head_of_the_paper_by_exercise_5():
    """1,024 features in ten blocks, which the lesson's own `blocked` cannot cut."""
    solution = definitions(BOOK, "block_diagonal")
    made = head.make_head("block-diagonal-n", 1024, 7)
    h, w = torch.randn(3, 1024), torch.randn(made.n)
    torch.testing.assert_close(solution.block_diagonal(h, w, 10, 10), torch.cat(made(h, w), dim=1))
