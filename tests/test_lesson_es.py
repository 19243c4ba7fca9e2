"""The sep-CMA-ES that lesson 06 builds is the package's; what it borrows from pycma and the toy's score are right."""

import cma
import numpy as np
import pytest
from lesson import definitions

from trinity_mini import bench_es
from trinity_mini.sep_cma_es import SepCMAES

PARTS = (
    "recombination_weights", "effective", "step_size_constants", "adapt_sigma", "variance_rates", "adapt_variances",
    "start", "ask", "tell", "tell_round",
)  # fmt: skip


@pytest.fixture(scope="module")
def lesson():
    return definitions("06_sep_cma_es.ipynb", *PARTS, "ellipsoid", "rotated", "one_plus_one", "mean_only")


@pytest.mark.parametrize(("n", "lam"), [(1, 4), (3, 6), (12, 34), (40, 7), (500, 136), (8, 2)])
def test_the_lesson_walks_like_the_package(n, lam, lesson):
    s, es = lesson.start(np.full(n, 2.0), 0.7, lam, seed=5), SepCMAES(np.full(n, 2.0), 0.7, 5, popsize=lam)
    for _ in range(60):
        x, y = lesson.ask(s), es.ask()
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
        lesson.tell(s, x, bench_es.ellipsoid(x, 1e3) if n > 1 else x[:, 0] ** 2)
        es.tell(y, bench_es.ellipsoid(y, 1e3) if n > 1 else y[:, 0] ** 2)
    for name in ("mean", "sigma", "variances", "p_sigma", "p_c"):
        np.testing.assert_allclose(getattr(s, name), getattr(es, name), rtol=1e-8, atol=1e-12, err_msg=name)


def test_ties_are_settled_as_in_the_package(lesson):
    s, es = lesson.start(np.zeros(5), 1, 8, seed=0), SepCMAES(np.zeros(5), 1, 0, popsize=8)
    rng = np.random.default_rng(0)
    for _ in range(40):
        values = rng.integers(3, size=8) / 2
        lesson.tell(s, lesson.ask(s), values)
        es.tell(es.ask(), values)
    np.testing.assert_allclose(s.mean, es.mean, rtol=1e-10)
    assert s.sigma == pytest.approx(es.sigma, rel=1e-10)


@pytest.mark.parametrize("lam", [6, 34, 136])
def test_weights_are_pycmas(lam, lesson):
    theirs = cma.CMAEvolutionStrategy(np.zeros(7), 1, {"popsize": lam, "verbose": -9, "seed": 1}).sp.weights
    np.testing.assert_allclose(lesson.recombination_weights(lam), theirs[: theirs.mu], rtol=1e-12)
    assert lesson.effective(lesson.recombination_weights(lam)) == pytest.approx(theirs.mueff, rel=1e-12)


def test_the_hills_are_pycmas_and_one_is_turned(lesson):
    x = np.random.default_rng(0).standard_normal((5, 6))
    np.testing.assert_allclose(lesson.ellipsoid(x, 1e6), [cma.ff.elli(row) for row in x], rtol=1e-12)
    np.testing.assert_allclose(lesson.ellipsoid(x), bench_es.ellipsoid(x, 100), rtol=1e-12)
    np.testing.assert_allclose(lesson.rotated(x, 1.0), np.sum(x * x, axis=1), rtol=1e-12)  # a rotation keeps lengths
    assert not np.allclose(lesson.rotated(x), lesson.ellipsoid(x))


def test_the_one_plus_one_es_never_gets_worse(lesson):
    history = lesson.one_plus_one(lambda x: x @ x, np.ones(6), 1, 400, seed=1)
    assert len(history) == 400 and (np.diff(history) <= 0).all() and history[-1] < 1e-4


def test_the_true_score_of_the_toy_is_what_its_rewards_average_to():
    toy = definitions(
        "06_sep_cma_es.ipynb", "world", "KINDS", "TURNS", "CHOICES", "D", "states", "key",
        "policy", "true_score", "rewards", "meet",
    )  # fmt: skip
    theta = np.random.default_rng(3).normal(0, 2, toy.CHOICES * toy.D)
    thetas = np.stack([0 * theta, theta])
    drawn = toy.rewards(thetas, *toy.meet(np.random.default_rng(4), 2, 40_000, False, False)).mean(axis=1)
    exact = toy.true_score(thetas)
    assert exact[0] == pytest.approx(1 / 25)
    np.testing.assert_allclose(drawn, exact, atol=4 * np.sqrt(0.25 / 40_000))
