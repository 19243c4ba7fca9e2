"""sep-CMA-ES against pycma, scipy and the symmetries that the algorithm must have."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import special_ortho_group

from trinity_mini import bench_es as bench
from trinity_mini.bench_es import ellipsoid, evaluations_to_target
from trinity_mini.pycma_strategy import Randn, pycma_strategy
from trinity_mini.sep_cma_es import SepCMAES, default_popsize, paper_popsize

cma = pytest.importorskip("cma")

STATE = ("mean", "sigma", "variances", "p_sigma", "p_c", "generation", "evaluations")


def sphere(x):
    return np.sum(x * x, axis=-1)


def advance(es, objective, generations):
    for _ in range(generations):
        x = es.ask()
        es.tell(x, objective(np.asarray(x)))
    return es


def assert_same(a, b):
    for name in STATE:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.result.xbest, b.result.xbest)
    assert a.result[1:5] == b.result[1:5]


# ---------------------------------------------------------------- against other people's code


@pytest.mark.parametrize("n", [5, 10, 100, 1_000, 19_456])
def test_parameters_are_those_of_pycma(n):
    ours, theirs = SepCMAES(np.zeros(n), 1, 0), pycma_strategy(np.zeros(n), 1, 0)
    assert default_popsize(n) == ours.popsize == theirs.popsize
    mu = theirs.sp.weights.mu
    np.testing.assert_allclose(ours.weights, theirs.sp.weights[:mu], rtol=1e-12)
    assert ours.mu_eff == pytest.approx(theirs.sp.weights.mueff, rel=1e-12)
    # CSA by name: from n = 300 on pycma itself adapts sigma in another way
    csa = cma.sigma_adaptation.CMAAdaptSigmaCSA()
    csa.initialize(theirs)
    assert ours.c_sigma == pytest.approx(csa.cs, rel=1e-12)
    assert ours.d_sigma == pytest.approx(csa.damps, rel=1e-12)
    assert ours.chi_n == pytest.approx(theirs.const.chiN, rel=1e-12)
    # pycma's rates for the full matrix, times Ros & Hansen's factor
    assert ours.c_c == pytest.approx(theirs.sp.cc, rel=1e-12)
    assert ours.c_1 == pytest.approx(theirs.sp.c1 * (n + 2) / 3, rel=1e-12)
    assert ours.c_mu == pytest.approx(theirs.sp.cmu * (n + 2) / 3, rel=1e-12)


def test_needs_as_many_evaluations_as_pycma():
    def objective(x):
        return ellipsoid(x, 1e4)

    x0 = np.full(10, 3.0)
    medians = [
        np.median([evaluations_to_target(make(x0, 1, seed), objective) for seed in range(9)])
        for make in (SepCMAES, pycma_strategy)
    ]
    assert medians[0] == pytest.approx(medians[1], rel=0.2)


def test_finds_the_minimum_that_scipy_finds():
    target = np.linspace(-2, 2, 8)

    def objective(x):
        return ellipsoid(x - target, 100) + np.sum(np.exp(x), axis=-1)

    reference = minimize(objective, np.zeros(8), method="BFGS", options={"gtol": 1e-9})
    es = advance(SepCMAES(np.zeros(8), 1, seed=0), objective, 300)
    np.testing.assert_allclose(es.xfavorite, reference.x, atol=1e-5)
    assert objective(es.xfavorite) == pytest.approx(reference.fun, abs=1e-9)


def test_learns_the_scales_of_the_ellipsoid():
    n = 20
    es = advance(SepCMAES(np.full(n, 3.0), 1, seed=0), lambda x: ellipsoid(x, 1e4), 500)
    scaled = es.variances * 1e4 ** np.linspace(0, 1, n)  # the inverse Hessian makes this constant
    assert scaled.max() / scaled.min() < 10
    assert es.variances.max() / es.variances.min() > 1e3


# ------------------------------------------------------------------------ known behaviour


def test_sphere_convergence_rate():
    """Log-linear, at about half the rate that the best step size would give.

    With w_i and E z_(i), the expected order statistics of the normal distribution, the best rate
    for n to infinity is d ln|x| / dt = -mu_eff (sum w_i E z_(i))^2 / 2n (Arnold 2006). CSA has a
    step size below the best one; pycma measured in the same way gives 0.47.
    """
    n, found = 40, []
    for seed in range(5):
        es = advance(SepCMAES(np.ones(n), 0.3, seed), sphere, 100)
        early = np.linalg.norm(es.mean)
        advance(es, sphere, 200)
        found.append(math.log(early / np.linalg.norm(es.mean)) / 200)
    lam, mu = es.popsize, len(es.weights)
    draws = np.sort(np.random.default_rng(0).standard_normal((20_000, lam)), axis=1)
    best = es.mu_eff * (es.weights @ draws.mean(axis=0)[:mu]) ** 2 / (2 * n)
    assert 0.4 < np.median(found) / best < 0.6


def test_is_slow_on_a_rotated_ellipsoid():
    """The price of the diagonal (Ros & Hansen 2008): variables that interact are not learnt."""
    n = 10
    rotation = special_ortho_group.rvs(n, random_state=1)
    x0 = np.full(n, 3.0)  # the same start in both: rotation.T @ x0 is x0 seen from there
    straight = advance(SepCMAES(x0, 1, 0), ellipsoid, 600)
    rotated = advance(SepCMAES(rotation.T @ x0, 1, 0), lambda x: ellipsoid(x @ rotation.T), 600)
    assert straight.result.fbest < 1e-12
    assert rotated.result.fbest > 1e-2


def test_only_ranks_matter():
    """exp(f / 4) - 7 on values is the same search, bit for bit."""
    a, b = (SepCMAES(np.full(6, 2.0), 1, seed=3) for _ in range(2))
    advance(a, sphere, 30)
    advance(b, lambda x: np.exp(sphere(x) / 4) - 7, 30)
    assert np.array_equal(a.mean, b.mean) and a.sigma == b.sigma
    assert np.array_equal(a.variances, b.variances)


def test_translation_and_scale():
    shift = np.arange(6.0)
    plain = advance(SepCMAES(np.ones(6), 1, seed=3), lambda x: ellipsoid(x, 100), 30)
    moved = advance(SepCMAES(1 + shift, 1, seed=3), lambda x: ellipsoid(x - shift, 100), 30)
    large = advance(SepCMAES(np.full(6, 8.0), 8, seed=3), lambda x: ellipsoid(x / 8, 100), 30)
    np.testing.assert_allclose(moved.mean - shift, plain.mean, rtol=1e-6, atol=1e-9)
    assert moved.sigma == pytest.approx(plain.sigma, rel=1e-9)
    np.testing.assert_allclose(large.mean, 8 * plain.mean, rtol=1e-9)


def test_stds_are_a_change_of_coordinates():
    stds = np.array([0.01, 1, 1, 30])
    plain = advance(SepCMAES(np.ones(4), 0.5, seed=1), sphere, 25)
    scaled = advance(SepCMAES(stds, 0.5, seed=1, stds=stds), lambda x: sphere(x / stds), 25)
    np.testing.assert_allclose(scaled.mean, stds * plain.mean, rtol=1e-8)
    np.testing.assert_allclose(scaled.stds, stds * plain.stds, rtol=1e-8)
    np.testing.assert_allclose(
        SepCMAES(np.ones(4), 0.5, 0, stds=stds).stds,
        pycma_strategy(np.ones(4), 0.5, 0, stds=stds).result.stds,
    )


def test_candidates_have_the_promised_distribution():
    es = SepCMAES([1.0, -2.0], 0.5, seed=0, popsize=20_000, stds=[1, 4])
    x = es.ask()
    assert x.shape == (20_000, 2)
    np.testing.assert_allclose(x.mean(axis=0), [1, -2], atol=0.06)  # 4 s.e. of the wider one
    np.testing.assert_allclose(x.std(axis=0), [0.5, 2], rtol=0.03)


def test_popsizes():
    assert paper_popsize(10_240) == 32
    assert default_popsize(10_240) == 31
    assert default_popsize(19_456) == 33
    assert default_popsize(1) == 4
    es = advance(SepCMAES([5.0], 1, seed=0, popsize=2), sphere, 400)
    assert abs(es.mean[0]) < 1e-3
    huge = SepCMAES(np.ones(3), 1, seed=0, popsize=3_000)  # the rates would exceed 1
    assert huge.c_1 + huge.c_mu <= 1
    advance(huge, sphere, 5)
    assert (huge.variances > 0).all()


# --------------------------------------------------------------- repeatable, and by itself


def test_same_seed_same_search_and_zero_is_a_seed():
    for seed in (0, 1):
        assert_same(*(advance(SepCMAES(np.ones(9), 1, seed), sphere, 12) for _ in range(2)))
    first, second = (SepCMAES(np.ones(9), 1, seed).ask() for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_resumes_bit_for_bit_also_between_ask_and_tell():
    def objective(x):
        return ellipsoid(x, 1e3)

    straight = advance(SepCMAES(np.ones(50), 1, seed=0), objective, 20)
    es = advance(SepCMAES(np.ones(50), 1, seed=0), objective, 7)
    es = pickle.loads(pickle.dumps(es))
    x = es.ask()
    es = pickle.loads(pickle.dumps(es))
    es.tell(x, objective(x))
    assert_same(advance(es, objective, 12), straight)


@pytest.mark.parametrize("n", [10, 400])  # below and above 300, where pycma changes its method
def test_pycma_resumes_bit_for_bit_also_between_ask_and_tell(n):
    straight = advance(pycma_strategy(np.ones(n), 1, seed=0), sphere, 12)
    es = advance(pycma_strategy(np.ones(n), 1, seed=0), sphere, 5)
    es = pickle.loads(pickle.dumps(es))
    x = es.ask()
    es, x = pickle.loads(pickle.dumps((es, x)))
    es.tell(x, sphere(np.asarray(x)))
    advance(es, sphere, 6)
    assert np.array_equal(es.mean, straight.mean) and es.sigma == straight.sigma
    assert np.array_equal(es.result.stds, straight.result.stds)


def test_pycma_seed_zero_is_a_seed_and_its_files_stay_away(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, again, other = (advance(pycma_strategy(np.ones(5), 1, seed), sphere, 5).mean for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="seed is None"):
        pycma_strategy(np.ones(5), 1, None)


@pytest.mark.filterwarnings("error")
def test_pycma_arguments_reach_it_and_come_to_no_harm():
    x0, stds = np.ones(5), np.linspace(1, 2, 5)
    es = advance(pycma_strategy(x0, 0.5, 0, popsize=7, stds=stds), sphere, 4)
    assert es.popsize == 7 and es.opts["CMA_diagonal"] is True
    assert np.array_equal(x0, np.ones(5)) and np.array_equal(stds, np.linspace(1, 2, 5))


@pytest.mark.parametrize("make", [SepCMAES, pycma_strategy])
@pytest.mark.parametrize("n", [10, 400])
def test_global_random_state_is_untouched(make, n):
    before = pickle.dumps(np.random.get_state())
    es = advance(make(np.ones(n), 1, 0), sphere, 3)
    assert pickle.dumps(np.random.get_state()) == before
    # and not read either
    np.random.seed(12345)
    assert np.array_equal(advance(make(np.ones(n), 1, 0), sphere, 3).mean, es.mean)
    np.random.set_state(pickle.loads(before))


def test_randn_has_the_shape_pycma_wants_and_pickles():
    draw = Randn(0)
    assert draw(3, 4).shape == (3, 4) and draw(2).shape == (2,)
    assert np.array_equal(pickle.loads(pickle.dumps(draw))(5), draw(5))


def test_importing_does_not_import_pycma():
    code = (
        "import sys, trinity_mini.pycma_strategy, trinity_mini.sep_cma_es, trinity_mini.bench_es;"
        "sys.exit('cma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ----------------------------------------------------------------------- what is handed over


def test_what_was_handed_out_stays_as_it_was():
    x0 = np.ones(4)
    es = SepCMAES(x0, 1, seed=0)
    x, mean, variances = es.ask(), es.mean, es.variances
    kept = [a.copy() for a in (x, mean, variances)]
    es.tell(x, sphere(x))
    assert es.ask() is not x
    for a, b in zip((x, mean, variances), kept, strict=True):
        assert np.array_equal(a, b)
    es.xfavorite[:] = 99
    assert es.mean.max() < 99 and np.array_equal(x0, np.ones(4))


def test_lists_and_arrays_are_told_alike():
    a, b = (SepCMAES(np.ones(4), 1, seed=0) for _ in range(2))
    x, y = a.ask(), b.ask()
    a.tell(x, sphere(x))
    b.tell([list(row) for row in y], [float(v) for v in sphere(y)])
    assert_same(a, b)


def test_order_told_does_not_matter_without_ties():
    a, b = (SepCMAES(np.ones(4), 1, seed=0) for _ in range(2))
    x, y = a.ask(), b.ask()[::-1]
    a.tell(x, sphere(x))
    b.tell(y, sphere(y))
    assert np.array_equal(a.mean, b.mean) and a.sigma == b.sigma


def test_result():
    es = SepCMAES(np.ones(4), 1, seed=0)
    assert es.result.xbest is None and es.result.fbest == math.inf
    seen = []
    for _ in range(5):
        x = es.ask()
        seen.extend(sphere(x))
        es.tell(x, sphere(x))
    result = es.result
    assert result.fbest == min(seen) == sphere(result.xbest)
    assert result.evals_best == int(np.argmin(seen)) + 1
    assert result.evaluations == es.evaluations == len(seen) and result.iterations == 5
    assert np.array_equal(result.xfavorite, es.mean)
    assert np.array_equal(result.stds, es.sigma * np.sqrt(es.variances))
    theirs = pycma_strategy(np.ones(4), 1, 0).result
    assert all(hasattr(theirs, name) for name in result._fields)


# --------------------------------------------------------------------------- ties and refusals


def test_flat_fitness_is_a_random_walk_at_steady_sigma():
    logs = []
    for seed in range(20):
        es = advance(SepCMAES(np.zeros(10), 1, seed), lambda x: np.zeros(len(x)), 100)
        assert np.isfinite(es.mean).all() and (es.variances > 0).all()
        logs.append(math.log(es.sigma))
    assert abs(np.mean(logs)) < 0.5  # s.e. about .1; selection would make it 10 and more


def test_ties_rank_in_the_order_told():
    es = SepCMAES(np.zeros(3), 1, seed=0, popsize=6)
    x = es.ask()
    es.tell(x, np.ones(6))
    np.testing.assert_allclose(es.mean, es.weights @ x[:3], rtol=1e-12)


@pytest.mark.parametrize(
    ("solutions", "values", "message"),
    [
        (None, [1, 2, math.nan, 4, 5, 6], "Value 2 is NaN"),
        (None, [1, math.inf, 3, 4, 5, 6], "Value 1 is NaN, infinite"),
        (None, [1, -math.inf, 3, 4, 5, 6], "Value 1 is NaN, infinite"),
        (None, [1, 2, 3, 4, 5, None], "Value 5 is NaN, infinite or None"),
        (None, None, "one value for each of the 6"),
        (None, [1, 2, 3, 4, 5], "one value for each of the 6"),
        (None, np.ones((6, 1)), "one value for each of the 6"),
        (None, ["a"] * 6, "one number for each"),
        (np.zeros((5, 3)), range(6), "6 candidates of ask"),
        (np.zeros((6, 4)), range(6), "6 candidates of ask"),
        ([[0, 0, 0]] * 5 + [[0, 0]], range(6), "6 candidates of ask"),
        (3, range(6), "6 vectors of 3 numbers"),
        (np.full((6, 3), math.nan), range(6), "not finite"),
        (np.full((6, 3), math.inf), range(6), "not finite"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_tells_are_refused_and_change_nothing(solutions, values, message):
    es = advance(SepCMAES(np.zeros(3), 1, seed=0, popsize=6), sphere, 4)
    x = es.ask()
    before = pickle.dumps(es)
    with pytest.raises(ValueError, match=message):
        es.tell(x if solutions is None else solutions, values)
    assert pickle.dumps(es) == before
    es.tell(x, sphere(x))  # and the generation can still be told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x0": []}, "x0"),
        ({"x0": 3.0}, "x0"),
        ({"x0": [[1.0, 2.0]]}, "x0"),
        ({"x0": [1.0, math.nan]}, "x0"),
        ({"sigma0": 0}, "sigma0"),
        ({"sigma0": -1}, "sigma0"),
        ({"sigma0": math.nan}, "sigma0"),
        ({"sigma0": math.inf}, "sigma0"),
        ({"popsize": 1}, "popsize"),
        ({"popsize": 0}, "popsize"),
        ({"popsize": 5.5}, "popsize"),
        ({"stds": [1, 2]}, "stds"),
        ({"stds": [1, 0, 1]}, "stds"),
        ({"stds": [1, math.nan, 1]}, "stds"),
        ({"seed": None}, "seed"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SepCMAES(**({"x0": np.zeros(3), "sigma0": 1, "seed": 0} | arguments))


def test_bench_rows():
    """In small: bench_es itself takes longer than a test should."""
    rows = bench._evaluations(3, dimension=5) + bench._times(4)
    assert all(list(row) == ["name", "family", "value", "se", "n", "unit"] for row in rows)
    assert all(math.isfinite(row["value"]) and row["value"] > 0 and row["se"] >= 0 for row in rows)
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    ours, pycma, ratio = rows[:3]
    assert ratio["value"] == pytest.approx(ours["value"] / pycma["value"])
    assert (ratio["unit"], ratio["n"]) == ("ratio", 3)
    (speed,) = [row for row in rows if row["name"].startswith("ours / pycma: ask and tell")]
    assert speed["value"] < 1  # measured .3


def test_evaluations_to_target():
    es = SepCMAES(np.ones(3), 1, seed=0)
    spent = evaluations_to_target(es, sphere, target=1e-3)
    assert spent == es.evaluations and es.result.fbest < 1e-3
    with pytest.raises(RuntimeError, match="within 20"):
        evaluations_to_target(SepCMAES(np.ones(3), 1, seed=0), sphere, limit=20)


def test_ellipsoid_is_that_of_pycma():
    x = np.random.default_rng(0).standard_normal((5, 10))
    np.testing.assert_allclose(ellipsoid(x), [cma.ff.elli(row) for row in x], rtol=1e-12)
