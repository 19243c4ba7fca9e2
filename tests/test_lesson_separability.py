"""What lesson 08 builds in plain cells gives the package's numbers; its toys are what the text says."""

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini.backbone import Backbone
from trinity_mini.curvature import definition1, frobenius
from trinity_mini.episode_tree import RIGHT, WRONG, EpisodeTree
from trinity_mini.pool import EmbeddedPool
from trinity_mini.separability import NONE, coupling, sign_flips
from trinity_mini.separability_studies import partitions
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.tree_objectives import Expected

NOTEBOOK = "08_separability.ipynb"
HALVES = {"first": np.arange(3), "second": np.arange(3, 9)}


@pytest.fixture(scope="module")
def lesson():
    names = ("hills", "mixed", "turned", "eps_of", "units", "CORNERS", "differences", "inside", "measure")
    return definitions(NOTEBOOK, *names)


@pytest.fixture(scope="module")
def symmetric():
    a = np.random.default_rng(0).standard_normal((9, 9))
    return a + a.T


def test_the_mixed_difference_is_the_mixed_derivative(lesson):
    x, y = 0.3, 0.4
    wanted = {"additive": 0, "turned valley": 2 - 1 / 4, "bent valley": -4 * np.cos(2 * y)}
    assert {*wanted} == {*lesson.hills}
    for name, f in lesson.hills.items():
        assert lesson.mixed(f, x, y, 1e-3) == pytest.approx(wanted[name], abs=1e-5)


def test_a_valley_stays_below_one_and_a_saddle_does_not(lesson):
    angles = np.linspace(1, 89, 89)
    assert max(lesson.eps_of(lesson.turned(a, (1, 10))) for a in angles) < 1
    assert max(lesson.eps_of(lesson.turned(a, (1, -3))) for a in angles) > 3
    assert np.allclose(np.linalg.eigvalsh(lesson.turned(20, (1, -3))), (-3, 1))


@pytest.mark.parametrize("m", [3, 200])
def test_the_lesson_measures_what_the_package_measures(lesson, symmetric, m):
    theta = np.random.default_rng(1).standard_normal(9)

    def f(x):
        return np.einsum("bi,ij,bj->b", x, symmetric, x) / 2 + np.sin(x).sum(axis=1) + np.cos(x[:, 0] * x[:, 5])

    ours = lesson.measure(f, theta, HALVES, 0.3, m, seed=7)
    package = coupling(lambda x, seeds: f(x), theta, HALVES, 0.3, m, 7, NONE)
    np.testing.assert_allclose(ours, package.products(), rtol=1e-8, atol=1e-9)


def test_the_mean_of_the_measurements_is_the_norm_of_the_block(lesson, symmetric):
    ours = lesson.measure(lambda x: np.einsum("bi,ij,bj->b", x, symmetric, x) / 2, np.zeros(9), HALVES, 0.5, 5000, 3)
    wanted = frobenius(symmetric, HALVES)[np.triu_indices(2)]
    assert (abs(ours.mean(axis=0) - wanted) < 4 * ours.std(axis=0) / 5000**0.5).all()


def test_the_exercises_agree_with_the_package(lesson, symmetric):
    done = definitions(NOTEBOOK, "three_forms", "block_norm2", "exact_p", "unbiased_square")
    dome = symmetric + 20 * np.eye(9)
    package = definition1(dome, HALVES)
    assert done.three_forms(dome, list(HALVES.values())) == pytest.approx([package[k] for k in ("B1", "B2", "B3")])
    rng = np.random.default_rng(2)
    a, b = lesson.units(rng, 50, 3), lesson.units(rng, 50, 6)

    def f(x):
        return np.einsum("bi,ij,bj->b", x, symmetric, x) / 2

    found = done.block_norm2(f, np.ones(9), *HALVES.values(), a, b, 0.1)
    wanted = 18 * np.mean(np.einsum("mi,ij,mj->m", a, symmetric[:3, 3:], b) ** 2)
    assert found == pytest.approx(wanted)
    x = rng.integers(-3, 6, 10) / 4
    assert abs(done.exact_p(x) - sign_flips(x, 0, 20_000)) < 0.015
    halves = rng.standard_normal((40, 2))
    assert done.unbiased_square(halves) == pytest.approx(np.mean(halves.prod(axis=1)))


def test_halves_have_independent_noise_and_the_right_mean():
    names = ("units", "CORNERS", "differences", "inside", "tosses", "halves", "blocks")
    toy = definitions(NOTEBOOK, *names)
    h = np.diag(np.zeros(10))
    h[:4, 4:] = h[4:, :4] = 0.1
    x = np.array([toy.halves(h, seed) for seed in range(60)])  # (60, 2, 200)
    product = 24 * x.prod(axis=1).mean(axis=1)
    assert abs(product.mean() - 24 * 0.01) < 4 * product.std() / 60**0.5
    assert 24 * (x[:, 0] ** 2).mean() > 24 * 0.01 + 10 * product.std() / 60**0.5  # the floor


def test_the_toy_softmax_is_blind_to_a_shift():
    toy = definitions(NOTEBOOK, "states", "toy")
    w = torch.from_numpy(np.random.default_rng(3).normal(0, 0.5, 12))
    shift = torch.tensor([0.3, -2.0, 1.1], dtype=torch.float64).repeat(4)
    assert float(toy.toy(w + shift)) == pytest.approx(float(toy.toy(w)))
    h = torch.autograd.functional.hessian(toy.toy, w).numpy()
    assert np.linalg.eigvalsh(h).min() > -1e-12 and (h.diagonal() > 0).all()


def test_the_sum_over_the_tree_is_the_package_s():
    pool, backbone = EmbeddedPool(), Backbone.embedded()
    asked = [q for family in FAMILIES for q in questions(family, "train", 1, 3)]
    tree = EpisodeTree(backbone, pool, asked, max_turns=2).grow_all()
    lesson = definitions(NOTEBOOK, "policy", "worth", "eps_between")
    lesson.update(tree=tree, asked=asked, RIGHT=RIGHT, WRONG=WRONG)
    heads = np.random.default_rng(4).normal(0, 4, (4, 8 * backbone.d))
    wanted = Expected(tree)(heads, np.zeros((4, 2), dtype=int))
    np.testing.assert_allclose([lesson.worth(w) for w in heads], wanted, rtol=1e-9)
    hess = np.random.default_rng(5).standard_normal((128, 128))
    cut = partitions(16)["agents, roles"]
    f = frobenius(hess + hess.T, cut)
    assert lesson.eps_between(hess + hess.T, cut) == pytest.approx((f[0, 1] / (f[0, 0] * f[1, 1]) ** 0.5) ** 0.5)


def test_stein_s_estimate_is_right_where_it_can_be_seen():
    lesson = definitions(NOTEBOOK, "stein")
    rng, found = np.random.default_rng(6), []
    h = np.array([[0, 0, 1.0], [0, 0, 2.0], [1.0, 2.0, 0]])
    for _ in range(200):
        z = rng.standard_normal((136, 3))
        f = np.einsum("bi,ij,bj->b", 0.5 * z, h, 0.5 * z) / 2
        found.append(lesson.stein(z, f, 0.5, np.array([0, 1]), np.array([2])))
    assert abs(np.mean(found) - 5) < 4 * np.std(found) / 200**0.5
