"""What lesson 09 builds by hand is the package's and right by other oracles; what it concludes is in the files."""

import numpy as np
import pandas as pd
import pytest
import torch
from lesson import definitions

from trinity_mini import baseline_tables as tables
from trinity_mini.baselines import Adam, Game, held_out_rewards
from trinity_mini.figures_baselines import CONTESTS
from trinity_mini.gradient_baselines import advantages, policy_gradient, reinforce
from trinity_mini.signal_to_noise import exact_gradient, reinforce_estimates, signals
from trinity_mini.study import frame

NAMES = (
    "solves", "z0", "softmax", "score", "estimates", "tree", "game", "slopes_of", "play_some", "adam",
    "reinforce_by_hand", "by_argmax", "first_roles", "choice_slope", "leave_one_out", "updates_needed",
    "signal_to_noise", "expected_best",
)  # fmt: skip


@pytest.fixture(scope="module")
def lesson():
    return definitions("09_evolution_or_gradients.ipynb", *NAMES)


def test_the_score_is_the_slope_of_a_log_softmax(lesson):
    z = np.random.default_rng(0).normal(size=(6, 4))
    chosen = np.array([0, 1, 2, 3, 0, 0])
    x = torch.from_numpy(z).requires_grad_()
    x.log_softmax(1)[np.arange(6), chosen].sum().backward()
    np.testing.assert_allclose(lesson.score(z, chosen), x.grad.numpy(), atol=1e-12)
    p = lesson.softmax(lesson.z0)
    x = torch.tensor(lesson.z0, requires_grad=True)
    (x.softmax(0) @ torch.tensor(lesson.solves)).backward()
    np.testing.assert_allclose(p * (lesson.solves - p @ lesson.solves), x.grad.numpy(), atol=1e-12)  # as the prose says
    e = lesson.estimates(lesson.z0, 50_000, np.random.default_rng(1))
    z = (e.mean(0) - x.grad.numpy()) / (e.std(0) / 50_000**0.5)
    assert np.abs(z).max() < 4


def test_slopes_of_episodes_are_the_packages_and_sums_of_choices(lesson):
    rng = np.random.default_rng(2)
    theta, game = rng.normal(0, 1, lesson.game.n), lesson.game
    played = lesson.play_some(theta, 400, rng, repeats=8)
    assert (played.nodes == -1).any()  # some end early
    slopes, weights = lesson.slopes_of(theta, played), rng.normal(size=400)
    found = (weights[:, None] * slopes).mean(axis=0)
    np.testing.assert_allclose(found, policy_gradient(game, theta, played, weights), atol=1e-12)
    w = theta.reshape(8, -1)
    for b in range(5):
        total = 0.0
        for node, agent, role in zip(played.nodes[b], played.agents[b], played.roles[b], strict=True):
            if node >= 0:
                h = lesson.tree.features[node].double().numpy() / w.shape[1] ** 0.5
                total = total + lesson.choice_slope(w, h, agent, role)
        np.testing.assert_allclose(slopes[b], np.ravel(total), atol=1e-12)


def test_adam_is_torchs_and_the_packages(lesson):
    rng = np.random.default_rng(3)
    x = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    theirs, ours, state, theta = torch.optim.Adam([x], lr=0.03, maximize=True), Adam(7, 0.03), None, np.zeros(7)
    for _ in range(20):
        g = rng.normal(size=7) * 10.0 ** rng.integers(-4, 3)
        x.grad = torch.from_numpy(g)
        theirs.step()
        step, state = lesson.adam(g, 0.03, state)
        theta = theta + step
        np.testing.assert_allclose(step, ours.step(g), rtol=1e-12)
    np.testing.assert_allclose(theta, x.detach().numpy(), rtol=1e-7)


@pytest.mark.parametrize(("batch", "lr", "seed"), [(64, 0.1, 1), (128, 1e-3, 4)])
def test_reinforce_by_hand_is_the_packages(batch, lr, seed, lesson):
    last = list(reinforce(Game(lesson.tree), 5 * batch, seed, batch=batch, lr=lr, baseline="question"))[-1]
    np.testing.assert_allclose(lesson.reinforce_by_hand(5, batch, lr, seed), last.theta, atol=1e-9)


def test_leave_one_out_is_the_packages_baseline(lesson):
    rng = np.random.default_rng(4)
    rewards = rng.integers(2, size=(9, 8)).astype(float)
    rewards[rng.random((9, 8)) < 0.3] = np.nan
    rewards[0] = np.nan
    np.testing.assert_allclose(lesson.leave_one_out(rewards).ravel(), advantages(rewards.ravel(), "question", 8))


def test_updates_needed_is_what_adam_needs_on_a_constant_slope(lesson):
    h, w, state, lr, wanted = np.random.default_rng(5).normal(size=12), np.zeros((5, 12)), None, 0.004, 0
    slope = np.outer([1, -1, -1, -1, -1], h).ravel()
    while lesson.softmax(w @ h)[0] < 0.8:
        step, state = lesson.adam(slope, lr, state)
        w, wanted = w + step.reshape(5, 12), wanted + 1
    assert wanted > 5 and lesson.updates_needed(0.8, 5, lr, h) == wanted


def test_signal_to_noise_is_the_studys(lesson):
    theta = np.random.default_rng(6).normal(0, 2, lesson.game.n)
    row = signals(Game(lesson.tree), theta, seed=2, repeats=6)[1]
    assert row["estimator"] == "REINFORCE, baseline batch"
    estimates = reinforce_estimates(Game(lesson.tree), theta, "batch", 6, 2)
    assert lesson.signal_to_noise(estimates) == pytest.approx(row["snr"])


def test_the_best_of_k_is_that_of_the_figure(lesson):
    rng = np.random.default_rng(7)
    for n, k in ((6, 1), (6, 3), (94, 15), (94, 94)):
        a, b = rng.random(n), rng.random(n)
        assert lesson.expected_best(a, b, k) == pytest.approx(tables.expected_best(a, b, k))


def test_the_score_by_argmax_is_that_of_playing_it(lesson):
    theta = np.random.default_rng(8).normal(0, 3, lesson.game.n)
    assert lesson.by_argmax(theta) == held_out_rewards(lesson.tree, theta, 1, "argmax").mean()
    assert np.allclose(lesson.first_roles(0 * theta), 1 / 3) and lesson.first_roles(theta).shape == (4, 3)
    assert exact_gradient(lesson.game, 0 * theta)[0] == pytest.approx(0.09756, abs=1e-4)


# ---- what the lesson concludes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def methods():
    return frame("methods")


def test_who_wins_is_as_the_lesson_says(methods):
    long, short, greedy, untuned = (tables.contest(methods, a, b).winner for a, b in CONTESTS)
    assert set(long.loc[:24_000]) == {"a"} and set(long.loc[32_640:]) == {"nobody"}
    assert set(short) == {"a"} and set(untuned) == {"b"}
    assert set(greedy.loc[:6_000]) == {"a"} and set(greedy.loc[24_000:]) == {"b"}

    def against(*rivals):  # tuned for 3 K, for 33 K; or one for both
        short, long = (tables.contest(methods, f"sep-CMA-ES, tuned for {k} K", r).winner
                       for k, r in ((3, rivals[0]), (33, rivals[-1])))  # fmt: skip
        return pd.concat([short.loc[:6_000], long.loc[12_000:]])

    openai = against("OpenAI-ES, tuned for 3 K", "OpenAI-ES, tuned for 33 K")
    assert set(openai.loc[:6_000]) == {"nobody"} and set(openai.loc[12_000:]) == {"a"}
    assert set(against("random search, paper")) == {"a"}
    for rival, first in (("random search, tuned", "nobody"), ("SFT, single step, tuned", "b")):
        assert set(against(rival).loc[:1_500]) == {first} and set(against(rival).loc[3_000:]) == {"a"}
    ordered = against("SFT, ordered search")
    assert set(ordered.loc[:12_000]) == {"b"} and set(ordered.loc[32_640:]) == {"a"}
    played = tables.scores(methods).query("method == 'SFT, ordered search'").episodes
    assert played.max() < 3_000  # "used up its questions"


def test_the_map_turns_only_where_one_decision_must_be_kept():
    found = tables.winners(frame("winner_map"))
    kept = found.world.str.contains("every turn")
    assert "b" not in set(found.winner[~kept])
    assert (found[~kept & (found.uniform < 1e-3) & (found.budget > 3_000)].winner == "a").mean() > 0.6
    assert found.uniform.min() < 2e-5
    assert set(found[kept & (found.turns >= 5)].winner) == {"b"}
    three = found[kept & (found.turns == 3) & (found.tuning == "tuned")]
    assert "b" not in set(three.winner)


def test_untuned_reinforce_is_dice_by_sampling_and_not_by_argmax(methods):
    end = tables.scores(methods).query("budget == 40_000 and method == 'REINFORCE, lr 1e-5'")
    assert end.test.max() < 0.095 and end.argmax.mean() > 0.5


def test_the_greedy_run_ends_without_a_slope_and_evolutions_does_not():
    end = frame("gradient_snr").query("point == 'end'").groupby(["path", "seed"]).first()
    greedy, stuck = end.loc[("REINFORCE, lr .3, no entropy", 1)], end.loc[("sep-CMA-ES", 1)]
    assert greedy.J < 0.6 and stuck.J < 0.6 and stuck.slope > 50 * greedy.slope
