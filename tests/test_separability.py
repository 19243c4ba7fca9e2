"""Couplings against functions whose Hessian is known (by hand, sympy or autograd), and against the tree's own J."""

import json

import numpy as np
import pytest
import scipy.stats
import sympy
import torch

from trinity_mini.backbone import Backbone
from trinity_mini.baselines import Game, evolve, freeze, sep_cma_es
from trinity_mini.coordinator import read_checkpoint
from trinity_mini.curvature import (
    block_products,
    definition1,
    frobenius,
    head_reward,
    hessian,
    leading_states,
    products,
    question_reward,
)
from trinity_mini.episode_tree import EpisodeTree
from trinity_mini.files import DATA
from trinity_mini.moving_states import MovingStates
from trinity_mini.pool import EmbeddedPool
from trinity_mini.pycma_strategy import pycma_strategy
from trinity_mini.separability import (
    COMMON,
    DRAWS,
    INDEPENDENT,
    NONE,
    coupling,
    detectable,
    resampling,
    sign_flips,
    summary,
)
from trinity_mini.separability_controls import doubt, partitions, untaught
from trinity_mini.separability_functions import FUNCTIONS, trial
from trinity_mini.separability_studies import STUDIES
from trinity_mini.study import MODULES
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.tree_objectives import Expected, Sampled

HALVES = {"first": np.arange(4), "second": np.arange(4, 10)}


@pytest.fixture(scope="module")
def world():
    return Backbone.embedded(), EmbeddedPool()


@pytest.fixture(scope="module")
def tree(world):
    return EpisodeTree(*world, [q for f in FAMILIES for q in questions(f, "train", 1, 0)], max_turns=2).grow_all()


@pytest.fixture(scope="module")
def theta():
    return read_checkpoint(DATA / "runs" / "mini-1" / "theta.safetensors")[0]


def quadratic(h):
    return lambda x, seeds: np.einsum("bi,ij,bj->b", x, h, x) / 2


def test_without_noise_a_quadratic_gives_its_own_blocks():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((10, 10))
    h = a + a.T
    c = coupling(quadratic(h), rng.standard_normal(10), HALVES, 0.5, 1500, 1, NONE)
    wanted = frobenius(h, HALVES)
    rows = summary(c, 2)
    assert [(r["block"], r["other"]) for r in rows] == [("first", "first"), ("first", "second"), ("second", "second")]
    for row, f in zip(rows, wanted[np.triu_indices(2)], strict=True):
        assert abs(row["F"] - f) < 4 * row["se"] and row["se"] < 0.08 * f
        assert row["p"] < 0.001 and row["detectable"] == 0
    eps = np.sqrt(wanted[0, 1] / np.sqrt(wanted[0, 0] * wanted[1, 1]))
    assert rows[1]["low"] < eps < rows[1]["high"] and rows[1]["high"] - rows[1]["low"] < 0.2 * eps
    assert c.evaluations == 4 * 1500 * 3


def test_a_separable_function_has_no_coupling_but_rounding():
    rng = np.random.default_rng(3)

    def value(x, seeds):
        return np.sin(x[:, :4]).prod(1) + np.exp(x[:, 4:].sum(1))

    c = coupling(value, rng.random(10), HALVES, 0.1, 50, 4, NONE)
    first, both, second = summary(c, 5)
    assert both["F"] == both["eps"] == both["high"] == 0 and both["p"] == 1
    assert first["p"] < 0.001 and second["p"] < 0.001


def test_a_function_that_sympy_differentiates():
    x = sympy.symbols("x:4")
    f = sympy.exp(x[0] * x[2] / 3) + sympy.sin(x[1]) * x[3] + x[0] ** 2 * x[1] + sympy.cos(x[2] + x[3])
    at = np.array([0.3, -0.2, 0.5, 0.1])
    h = np.array(sympy.hessian(f, x).subs(dict(zip(x, at, strict=True))).evalf(), dtype=float)
    value = sympy.lambdify(x, f)
    blocks = {"first": np.array([0, 1]), "second": np.array([2, 3])}
    rows = summary(coupling(lambda p, s: value(*p.T), at, blocks, 0.01, 1000, 6, NONE), 7)
    for row, wanted in zip(rows, frobenius(h, blocks)[np.triu_indices(2)], strict=True):
        assert abs(row["F"] - wanted) < 4 * row["se"]


def test_a_rotated_block_is_a_basis():
    rng = np.random.default_rng(8)
    q = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    h = q @ np.diag(np.arange(1.0, 11)) @ q.T  # separable in the columns of q, coupled in the coordinates
    rows = summary(coupling(quadratic(h), np.zeros(10), {"u": q[:, :4], "v": q[:, 4:]}, 0.5, 200, 9, NONE), 10)
    assert rows[1]["F"] < 1e-20 * rows[0]["F"]
    assert abs(rows[0]["F"] - (np.arange(1, 5) ** 2).sum()) < 4 * rows[0]["se"]
    rows = summary(coupling(quadratic(h), np.zeros(10), HALVES, 0.5, 200, 9, NONE), 10)
    assert rows[1]["eps"] > 0.1 and rows[1]["low"] > 0


@pytest.mark.parametrize("noise", [COMMON, DRAWS, INDEPENDENT])
def test_who_shares_its_luck_with_whom(noise):
    met = []

    def objective(x, seeds):
        met.append(seeds.reshape(-1, 3, 2, 4, 2))  # directions, pairs, halves, points, (questions, draws)
        return np.zeros(len(x))

    coupling(objective, np.zeros(10), HALVES, 0.1, 5, 0, noise)
    (seeds,) = met
    distinct = {k: len(np.unique(seeds[..., k])) for k in (0, 1)}
    assert distinct == {0: 120 if noise == INDEPENDENT else 30, 1: 30 if noise == COMMON else 120}
    assert len(np.unique(seeds[..., 0, 0])) == 30  # halves, pairs and directions never share


def test_what_is_refused():
    with pytest.raises(ValueError, match="positive"):
        coupling(quadratic(np.eye(10)), np.zeros(10), HALVES, 0.0, 5, 0)
    with pytest.raises(ValueError, match="'u' must be"):
        coupling(quadratic(np.eye(10)), np.zeros(10), {"u": np.ones((10, 2))}, 0.1, 5, 0)


def test_noise_alone_is_not_taken_for_coupling_nor_for_a_scale():
    rng = np.random.default_rng(1)
    rows = summary(coupling(lambda x, s: rng.standard_normal(len(x)), np.zeros(10), HALVES, 0.1, 100, 2), 3)
    assert min(r["p"] for r in rows) > 0.05 and all(r["eps"] is None and r["detectable"] is None for r in rows)


def test_the_null_test_rejects_one_in_twenty():
    p = [sign_flips(np.random.default_rng(k).standard_t(5, (2, 60)).prod(0), k, 400) for k in range(1000)]
    assert 0.03 <= np.mean(np.array(p) <= 0.05) <= 0.07
    assert scipy.stats.kstest(p, "uniform").pvalue > 0.01


def test_the_smallest_coupling_that_is_seen_is_seen_four_times_in_five():
    rng, m, n = np.random.default_rng(4), 200, 1000
    noise = rng.standard_normal((n, 2, m))
    size = np.sqrt(np.mean([detectable(*x) for x in noise]))
    signal = size * rng.standard_normal((n, 1, m))
    seen = [sign_flips(x.prod(0), k, 400) <= 0.05 for k, x in enumerate(noise + signal)]
    assert 0.74 <= np.mean(seen) <= 0.86


@pytest.mark.parametrize("name", FUNCTIONS)
def test_intervals_hold_the_known_coupling(name):
    found = [trial(name, directions=100, seed=k) for k in range(1000, 1040)]
    assert np.mean([r["covered"] for r in found]) >= 0.85  # the study has hundreds of trials


def test_resampling_is_a_bootstrap():
    w = resampling(20, 5000, 0)
    assert np.allclose(w.sum(1), 1) and abs(w.var(0).mean() * 20 - (1 - 1 / 20) / 20) < 0.002


def softmax_toy(w):
    """A policy of 5 logits read off 3 states, two decisions in a row: known to be blind to a shift of all rows."""
    x = torch.tensor([[1.0, 0.5, -0.3], [0.2, -1.0, 0.8], [0.4, 0.1, 1.5]], dtype=torch.float64)
    p = (x @ w.view(5, 3).T).softmax(1)
    return -(p[0, 0] * p[1, 2] + p[0, 1] * p[2, 3]).log() - 0.2 * p.log().sum()


def test_rows_of_a_softmax_cannot_be_separable():
    rows = {str(i): np.arange(3 * i, 3 * i + 3) for i in range(5)}
    rng = np.random.default_rng(0)
    for _ in range(5):
        w = torch.from_numpy(rng.normal(0, 0.3, 15))
        h = torch.autograd.functional.hessian(softmax_toy, w).numpy()
        ours = hessian(softmax_toy, w.numpy(), np.eye(15))
        assert np.allclose(h, ours, atol=1e-10)
        assert np.allclose(h.reshape(5, 3, 5, 3).sum(0), 0, atol=1e-10)  # what is added to all rows is not seen
        b = definition1(h, rows)
        assert b["positive"] == 1
        assert b["B1"] >= 1 - 1e-9 and b["B3"] >= 1 - 1e-9 and b["B3_best"] >= 1 - 1e-9 and b["B2"] >= 1 / 4 - 1e-9


def test_definition_1_where_it_holds_and_its_best_scaling():
    rng = np.random.default_rng(5)
    a = rng.standard_normal((10, 10)) / 10
    h = np.diag(rng.uniform(1, 100, 10)) + a + a.T
    b = definition1(h, HALVES)
    off = h.copy()
    for index in HALVES.values():
        off[np.ix_(index, index)] = 0
    assert b["B3"] == pytest.approx(max(abs(off).sum(1) / h.diagonal()))
    worst = np.linalg.norm(off / np.sqrt(np.outer(h.diagonal(), h.diagonal())), 2)
    assert b["B1"] == pytest.approx(worst) and b["B1"] <= b["B3_best"] <= min(b["B3"], b["B3_jacobi"]) + 1e-12
    scalings = np.exp(rng.normal(0, 1, (2000, 10)))
    rows = [(s[None] * abs(off)).sum(1) / (s * h.diagonal()) for s in scalings]
    assert min(map(max, rows)) >= b["B3_best"]
    scaled = definition1(h * np.sqrt(np.outer(scalings[0], scalings[0])), HALVES)  # S H S: B1 and B2 stay
    assert scaled["B1"] == pytest.approx(b["B1"]) and scaled["B2"] == pytest.approx(b["B2"])


def test_the_gauge_on_the_tree(tree):
    w = np.random.default_rng(6).normal(0, 4, 8 * 128)
    basis, share = leading_states(tree.features[: tree.size], 3, 8)
    assert 0.3 < share < 1 and np.allclose(basis.T @ basis, np.eye(24), atol=1e-10)
    h = hessian(head_reward(tree), w, basis)
    value = {g: h.reshape(8, 3, 8, 3)[part].sum(0) for g, part in (("agents", slice(5)), ("roles", slice(5, 8)))}
    assert max(abs(v).max() for v in value.values()) < 1e-10 * abs(h).max() + 1e-14
    b = definition1(-h, partitions(3)["rows"])
    assert b["B3"] >= 1 - 1e-6 and b["B3_best"] >= 1 - 1e-6 and b["B2"] >= 1 / 4 - 1e-6


def test_products_are_the_hessian_and_the_black_box_agrees(tree):
    w = np.random.default_rng(7).normal(0, 6, 8 * 128)
    basis, _ = leading_states(tree.features[: tree.size], 4, 8)
    reward = head_reward(tree)
    small = torch.from_numpy(basis)
    at = torch.from_numpy(w)
    wanted = torch.autograd.functional.hessian(lambda z: reward(at + small @ z), torch.zeros(32, dtype=torch.float64))
    h = hessian(reward, w, basis)
    assert np.allclose(h, wanted.numpy(), atol=1e-12 + 1e-8 * abs(h).max())
    blocks = {name: basis[:, index] for name, index in partitions(4)["agents, roles"].items()}
    exact = frobenius(h, partitions(4)["agents, roles"])
    x = block_products([reward], w, blocks, 60, 8)
    assert (abs(x.mean(0) - exact) < 4 * x.std(0) / 60**0.5).all()
    rows = summary(coupling(Expected(tree), w, blocks, 0.3, 100, 9, NONE), 10)
    for row, f in zip(rows, exact[np.triu_indices(2)], strict=True):
        assert abs(row["F"] - f) < 4 * row["se"]


def test_sampled_and_expected_values_agree(tree):
    w = np.random.default_rng(11).normal(0, 6, (3, 8 * 128))
    seeds = np.array([[1, 2], [1, 3], [4, 2]])
    exact = Expected(tree)(w, seeds)
    for i in range(3):
        assert exact[i] == pytest.approx(float(head_reward(tree)(torch.from_numpy(w[i]))), abs=1e-12)
    sampled = Sampled(tree, 4000)(w, seeds)
    assert (abs(sampled - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1e-9).all()
    few = Sampled(tree, 6)
    assert np.ptp(few(w[[0, 0]], seeds[[0, 0]])) == 0
    same = Expected(tree, 5)(w[[0, 0, 0]], seeds)
    assert same[0] == same[1] and len(np.unique(same)) == 2  # the draws' seed does not matter, the questions' does


def test_states_move_with_the_deltas_as_the_backbone_says(world, theta):
    backbone, pool = world
    one = EpisodeTree(backbone, pool, questions("math", "train", 1, 0), max_turns=2).grow_all()
    texts = [backbone.render(t) for t in one.transcripts]
    moving = MovingStates(backbone, [[backbone.encode(t)[:-1] for t in texts]], torch.float64)
    reward = question_reward(backbone, one)
    n = moving.svf.n
    delta = 3 * theta[:n]
    wanted = backbone.features(backbone.hidden(texts, delta.astype(np.float32)))
    found = moving.features(torch.from_numpy(delta))
    assert abs(found - wanted).max() < 1e-4 and abs(found - one.features[: one.size]).max() > 1e-3
    at = np.concatenate((delta, 0.5 * theta[n:]))
    v = np.random.default_rng(12).standard_normal((1, len(at)))
    v /= np.linalg.norm(v)
    h = products([reward], at, v)

    def slope(x):
        x = torch.from_numpy(x).requires_grad_()
        return torch.autograd.grad(reward(x), x)[0].numpy()

    difference = (slope(at + 1e-4 * v[0]) - slope(at - 1e-4 * v[0])) / 2e-4
    assert np.linalg.norm(difference - h[0]) < 1e-5 * np.linalg.norm(h)
    with pytest.raises(ValueError, match="one question"):
        question_reward(backbone, EpisodeTree(backbone, pool, questions("math", "train", 2, 0), max_turns=2))


def test_freezing_keeps_the_diagonal(world):
    pools = [questions(f, "train", 1, 0) for f in FAMILIES]
    tree = EpisodeTree(*world, [q for p in pools for q in p], max_turns=2)
    last, spread = {}, {}
    for frozen in (False, True):
        game = Game(tree)
        strategy = pycma_strategy(np.zeros(game.n), 2.0, 1, 40)
        if frozen:
            freeze(strategy)
        *_, step = evolve(game, strategy, 8 * 160, 4, 1)
        last[frozen], spread[frozen] = step.theta, float(np.std(np.log(strategy.result.stds)))
        *_, again = sep_cma_es(Game(tree), 8 * 160, 1, 40, 4, frozen=frozen)
        assert np.array_equal(step.theta, again.theta)
    assert spread[False] > 0.001 and spread[True] < 1e-12 and not np.array_equal(last[False], last[True])
    tree.grow_all()
    values = Expected(tree)(np.stack((last[False], 0 * last[False])), np.zeros((2, 2), dtype=int))
    assert values[0] > values[1] + 0.1


def test_doubt_is_the_entropy_over_the_turns_played(tree):
    w = 25 * np.random.default_rng(13).normal(0, 0.2, 8 * 128)
    draws = np.random.default_rng(14).random((20_000, 2, 2))
    game = Game(tree)
    played = game.play(w[None], np.zeros(20_000, int), np.arange(20_000) % len(tree.asked), draws)
    visited = played.nodes[played.nodes >= 0]
    z = tree.features[visited].double().numpy() @ w.reshape(8, -1).T / 128**0.5
    entropy = sum(scipy.stats.entropy(np.exp(part), axis=1) for part in (z[:, :5], z[:, 5:]))
    assert doubt(tree, w) == pytest.approx(entropy.mean(), abs=5 * entropy.std() / len(entropy) ** 0.5)
    assert doubt(tree, 0 * w) == pytest.approx(np.log(15))


def test_untaught_heads_are_as_long_or_as_sure(tree):
    w = 5 * np.random.default_rng(15).normal(size=8 * 128)
    rows = untaught(tree, w, leading_states(tree.features[: tree.size], 16, 8)[0], 2, 1)
    assert {r["control"] for r in rows} == {"as long", "as sure"} and len(rows) == 2 * 2 * 3
    for r in rows:
        value, wanted = (r["norm"], np.linalg.norm(w)) if r["control"] == "as long" else (r["doubt"], doubt(tree, w))
        assert value == pytest.approx(wanted, rel=0.01) and 0 <= r["eps"] < 3


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_gives_rows_that_json_can_hold(name):
    s = STUDIES[name]
    assert MODULES[name] == "separability_studies"
    rows = s.run(s.quick[-1])
    assert rows and json.loads(json.dumps(rows, allow_nan=False)) == rows
    if name == "separability-head":
        pairs = {(r["partition"], r["block"], r["other"]) for r in rows if r["kind"] == "coupling"}
        assert ("rows", "agent 0", "verifier") in pairs and ("agents, roles", "agents", "roles") in pairs
    if name == "separability-svf":
        assert len(rows) == 36 and {r["block"] for r in rows} >= {"q", "gate", "head"}


def test_a_value_that_is_not_finite_is_no_measurement():
    blocks = {"p": np.arange(2), "q": np.arange(2, 4)}

    def broken(x, seeds, value=np.nan):
        out = (x**2).sum(1)
        out[3] = value
        return out

    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="J is not finite at 1 of"):
            coupling(lambda x, s, v=value: broken(x, s, v), np.zeros(4), blocks, 0.5, 20, 1, NONE)
    fine = lambda x, seeds: (x**2).sum(1)  # noqa: E731
    for theta, h, parts, noise in (
        (np.full(4, np.nan), 0.5, blocks, NONE), (np.zeros(4), np.inf, blocks, NONE), (np.zeros(4), 0.5, {}, NONE),
        (np.zeros(4), 0.5, blocks, "commom"), (np.zeros(4), 0.5, {"p": np.array([0, 0])}, NONE),
        (np.zeros(4), 0.5, {"p": np.array([], int)}, NONE), (np.zeros(4), 0.5, {"p": np.ones(4, bool)}, NONE),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            coupling(fine, theta, parts, h, 20, 1, noise)


def test_one_large_value_does_not_hide_the_others():
    def cliff(x, seeds):
        out = 3 * x[:, 0] * x[:, 2]
        out[:4] = 1e20
        return out

    blocks = {"p": np.array([0]), "q": np.array([2])}
    found = coupling(cliff, np.zeros(4), blocks, 0.5, 20, 1, NONE)
    assert np.count_nonzero(found.first[:, found.pairs.index((0, 1))]) >= 19
