"""The baselines against oracles: autograd of the exact J, brute force, the training loop itself."""

import itertools

import numpy as np
import pytest
import torch
from world import answer_of

from trinity_mini.backbone import Backbone
from trinity_mini.baselines import (
    Adam,
    Game,
    Played,
    at_budgets,
    evaluate_candidates,
    held_out_rewards,
    means,
    mirrored_gradient,
    openai_es,
    random_search,
    sep_cma_es,
)
from trinity_mini.coordinator import Coordinator
from trinity_mini.episode import Rules, fixed, play, play_all, run
from trinity_mini.episode_tree import EpisodeTree
from trinity_mini.evaluation import records
from trinity_mini.gradient_baselines import (
    BASELINES,
    advantages,
    found_sequences,
    policy_gradient,
    reinforce,
    sft_sequences,
    sft_single_step,
    single_step_rewards,
)
from trinity_mini.pool import EmbeddedPool
from trinity_mini.presets import Preset
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.training import TrainingRun, play_policy

METHODS = {
    "random": random_search,
    "confirmed": lambda *a: random_search(*a, scale=16, confirm=4),
    "sep-cma-es": lambda *a: sep_cma_es(*a, popsize=6, m=4),
    "openai-es": lambda *a: openai_es(*a, pairs=3, m=4),
    "reinforce": lambda *a: reinforce(*a, batch=32, lr=0.1, baseline="question", entropy=0.01),
    "sft": lambda *a: sft_single_step(*a, lr=0.1, epochs=2),
    "sequences": lambda *a: sft_sequences(*a, epochs=2, every=50),
    "random sequences": lambda *a: sft_sequences(*a, search="random", epochs=2, every=50),
}


@pytest.fixture(scope="module")
def tree():
    asked = [q for f in FAMILIES for q in questions(f, "train", 2, 0)]
    return EpisodeTree(Backbone.embedded(), EmbeddedPool(), asked, max_turns=3).grow_all()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_keeps_its_budget_and_follows_from_its_seed(tree, name, request):
    if name != "sep-cma-es":  # pycma moves numpy's global stream at ties, and does not use what it draws
        request.getfixturevalue("global_streams_untouched")

    def steps(seed, budget=150):
        game = Game(tree)
        found = list(METHODS[name](game, budget, seed))
        assert game.episodes <= budget and found[-1].episodes <= budget
        return found

    first, again, other = steps(1), steps(1), steps(2)
    assert len(first) == len(again) > 0
    for x, y in zip(first, again, strict=True):
        assert (x.episodes, x.reward, x.states, x.calls, x.backward) == (
            y.episodes, y.reward, y.states, y.calls, y.backward)  # fmt: skip
        assert np.array_equal(x.theta, y.theta) and np.isfinite(x.theta).all()
    assert not np.array_equal(first[-1].theta, other[-1].theta)
    counts = [(s.episodes, s.states, s.calls, s.backward) for s in first]
    assert all((np.diff(c) >= 0).all() for c in zip(*counts, strict=True) if len(c) > 1)
    assert list(METHODS[name](Game(tree), 1, 1)) == [] or name in ("sft", "sequences", "random sequences")


def test_costs_are_those_of_the_episodes_played(tree):
    game = Game(tree)
    asked = np.arange(len(tree.asked)).repeat(3)
    played = game.play(np.zeros((1, game.n)), np.zeros(len(asked), int), asked, np.full((len(asked), 3, 2), 0.9))
    turns = np.count_nonzero(played.nodes >= 0)
    assert (game.episodes, game.states, game.calls, game.backward) == (len(asked), turns, turns, 0)
    policy_gradient(game, np.zeros(game.n), played, np.ones(len(asked)))
    assert game.backward == turns
    single_step_rewards(game, np.arange(4))
    assert (game.episodes, game.states, game.calls) == (len(asked) + 20, turns, turns + 20)


def test_a_generation_is_that_of_the_training_run(tree, tmp_path):
    backbone, pool = tree.backbone, tree.pool
    preset = Preset("t", popsize=5, episodes_per_candidate=4, generations=2, train_per_family=2,
                    matrices="none", rules=Rules(3), validation_per_family=0)  # fmt: skip
    coordinator = Coordinator(backbone, 5, matrices="none")
    for common in (True, False):
        preset = Preset(**{**preset.__dict__, "common_questions": common, "common_draws": common})
        training = TrainingRun(tmp_path / str(common), coordinator, pool, preset, 3)
        wanted = [g.reward for g in training]
        found = [s.reward for s in sep_cma_es(Game(tree), 40, 3, popsize=5, m=4, common=common)]
        assert found == pytest.approx(wanted)


def test_a_frozen_diagonal_stays(tree, monkeypatch):
    import trinity_mini.baselines as module

    made, make = [], module.pycma_strategy
    monkeypatch.setattr(module, "pycma_strategy", lambda *a: made.append(make(*a)) or made[-1])
    for frozen in (True, False):
        list(sep_cma_es(Game(tree), 400, 1, popsize=10, m=4, frozen=frozen))
        spread = np.ptp(np.broadcast_to(made[-1].sigma_vec.scaling, (2, 1024))[0])
        assert (spread == 0) == frozen


@pytest.mark.parametrize("baseline", BASELINES)
def test_the_policy_gradient_is_that_of_the_exact_reward(tree, baseline):
    """J restricted to random directions; z-scores of the estimate's mean against autograd."""
    rng = np.random.default_rng(5)
    theta = rng.normal(0, 3, Game(tree).n)
    w = torch.from_numpy(theta).requires_grad_()

    def policy(h):
        z = h @ w.view(8, -1).T / h.shape[1] ** 0.5
        return z[:, :5].softmax(1), z[:, 5:].softmax(1)

    tree.expected_reward(policy).mean().backward()
    directions = rng.normal(size=(12, len(theta)))
    game, found = Game(tree), []
    for _ in range(150):
        asked = np.arange(len(tree.asked)).repeat(8)
        played = game.play(theta[None], np.zeros(len(asked), int), asked, rng.random((len(asked), 3, 2)))
        weights = advantages(played.rewards, baseline, 8)
        found.append(directions @ policy_gradient(game, theta, played, weights))
    z = (np.mean(found, 0) - directions @ w.grad.numpy()) / (np.std(found, 0, ddof=1) / len(found) ** 0.5)
    assert np.abs(z).max() < 4 and np.abs(directions @ w.grad.numpy()).max() > 1e-3


def test_the_entropy_bonus_has_the_gradient_of_the_entropy(tree):
    game, rng = Game(tree), np.random.default_rng(6)
    theta = rng.normal(0, 3, game.n)
    asked = np.arange(len(tree.asked))
    played = game.play(theta[None], np.zeros(len(asked), int), asked, rng.random((len(asked), 3, 2)))
    found = policy_gradient(game, theta, played, np.zeros(len(asked)), entropy=0.5)
    w = torch.from_numpy(theta).requires_grad_()
    h = tree.features[played.nodes[played.nodes >= 0]].double() / game.head.d**0.5
    z = h @ w.view(8, -1).T
    entropy = sum(-(x.softmax(1) * x.log_softmax(1)).sum() for x in (z[:, :5], z[:, 5:]))
    (0.5 * entropy / len(asked)).backward()
    assert np.allclose(found, w.grad.numpy(), atol=1e-12)


def test_advantages_by_hand():
    r = np.array([1.0, 0, 0, 1, 1, np.nan, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0])
    assert advantages(r, "none", 1)[:6].tolist() == [1, 0, 0, 1, 1, 0]
    batch = advantages(r, "batch", 1)
    assert batch[0] == pytest.approx(1 - 9 / 14) and batch[1] == pytest.approx(-10 / 14) and batch[5] == 0
    question = advantages(r, "question", 8)
    assert question[0] == pytest.approx(1 - 2 / 6) and question[5] == 0 and question[15] == -1
    assert not advantages(np.ones(16), "question", 8).any()
    assert not advantages(np.full(8, np.nan), "question", 8).any()
    with pytest.raises(ValueError, match="choose from"):
        advantages(r, "mean", 1)


def test_what_is_not_finite_is_refused_and_what_was_lost_is_left_out(tree):
    game = Game(tree)
    with pytest.raises(ValueError, match="theta"):
        game.play(np.full((1, game.n), np.nan), np.zeros(1, int), np.zeros(1, int), np.zeros((1, 3, 2)))
    with pytest.raises(ValueError, match="gradient"):
        Adam(2, 0.1).step(np.array([0.0, np.inf]))
    with pytest.raises(ValueError, match="lost"):
        means(np.array([[1.0, np.nan], [np.nan, np.nan]]))
    assert means(np.array([[1.0, np.nan], [0, 1]])).tolist() == [1, 0.5]
    played = game.play(np.zeros((1, game.n)), np.zeros(8, int), np.arange(8), np.full((8, 3, 2), 0.1))
    rewards = played.rewards.copy()
    rewards[3] = np.nan
    weights = advantages(rewards, "batch", 1)
    kept = np.arange(8) != 3
    alone = Played(*(x[kept] for x in (played.rewards, played.nodes, played.agents, played.roles)))
    expected = policy_gradient(game, np.zeros(game.n), alone, advantages(alone.rewards, "batch", 1)) * 7 / 8
    assert np.allclose(policy_gradient(game, np.zeros(game.n), played, weights), expected)


def test_openai_es_climbs_a_quadratic():
    rng = np.random.default_rng(7)
    target, theta, adam = rng.normal(size=30), np.zeros(30), Adam(30, 0.1)
    for _ in range(200):
        e = rng.standard_normal((20, 30))
        x = np.concatenate((theta + 0.1 * e, theta - 0.1 * e))
        theta = theta + adam.step(mirrored_gradient(-((x - target) ** 2).sum(1), e, 0.1))
    assert np.linalg.norm(theta - target) < 0.1 * np.linalg.norm(target)


def test_ties_do_not_move_the_search():
    e = np.random.default_rng(8).standard_normal((4, 6))
    assert not mirrored_gradient(np.ones(8), e, 1.0).any()
    one = mirrored_gradient(np.array([1.0, 0, 0, 0, 0, 0, 0, 0]), e, 1.0)
    assert one @ e[0] > 0 and np.allclose(one / np.linalg.norm(one), e[0] / np.linalg.norm(e[0]))


def test_single_step_labels_are_those_of_asking_every_agent(tree):
    found = single_step_rewards(Game(tree), np.arange(len(tree.asked)))
    plays = [play(q, fixed([(a, Role.WORKER)]), tree.pool, Rules(1)) for q in tree.asked for a in range(5)]
    assert found.ravel().tolist() == [e.reward for e in run(play_all(plays))]
    assert found[-2:].sum() > 0


def test_the_ordered_search_finds_what_brute_force_finds(tree):
    game = Game(tree)
    pairs = list(itertools.product(range(5), range(5)))
    found = dict(zip(np.random.default_rng([4, 61]).permutation(len(tree.asked)).tolist(),
                     found_sequences(game, 10_000, 4, "ordered"), strict=True))  # fmt: skip
    for i, q in enumerate(tree.asked):
        plans = [[(w, Role.WORKER), (0, Role.VERIFIER), (0, Role.VERIFIER)] for w in range(5)]
        plans += [[(t, Role.THINKER), (w, Role.WORKER), (0, Role.VERIFIER)] for t, w in pairs]
        episodes = run(play_all([play(q, fixed(p), tree.pool, Rules(3)) for p in plans]))
        rows, reward = found[i]
        assert reward == max(e.reward for e in episodes)
        if reward:
            choices = [(a, Role(r)) for _, a, r in rows]
            again = run(play_all([play(q, fixed(choices), tree.pool, Rules(len(choices)))]))[0]
            assert again.reward == 1 and again.answer == answer_of(q.prompt)
            assert [n for n, *_ in rows][0] == i
    assert game.episodes <= len(tree.asked) * (5 + 25 + 4)


def test_held_out_rewards_are_those_of_evaluate(tree):
    coordinator = Coordinator(tree.backbone, 5, matrices="none")
    theta = np.random.default_rng(9).normal(0, 4, coordinator.n)
    episodes = play_policy(coordinator, theta, tree.asked, tree.pool, Preset("t", rules=Rules(3)), 11)
    assert held_out_rewards(tree, theta, 11).tolist() == [e.reward for e in episodes]
    greedy = Coordinator(tree.backbone, 5, matrices="none", selection="argmax")
    episodes = play_policy(greedy, theta, tree.asked, tree.pool, Preset("t", rules=Rules(3)), 11)
    assert held_out_rewards(tree, theta, 11, "argmax").tolist() == [e.reward for e in episodes]
    assert len(records("x", tree.asked, held_out_rewards(tree, theta, 11), 1, 1)) == len(tree.asked)


def test_budgets_hand_over_the_last_step_within_them(tree):
    steps = list(reinforce(Game(tree), 200, 1, batch=32))
    found = at_budgets(steps, [10, 64, 100, 200])
    assert {b: s.episodes for b, s in found.items()} == {64: 64, 100: 96, 200: 192}


def test_common_candidates_with_equal_heads_have_equal_luck(tree):
    theta = np.random.default_rng(10).normal(0, 2, Game(tree).n)
    same = evaluate_candidates(Game(tree), np.stack([theta] * 6), 12, 1, 0, common=True)
    assert np.ptp(same) == 0
    assert np.ptp(evaluate_candidates(Game(tree), np.stack([theta] * 6), 12, 1, 0, common=False)) > 0


# --- what must never reach an optimiser -----------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_a_theta_that_the_head_cannot_hold_is_not_played(tree, value):
    theta = np.zeros(Game(tree).n)
    theta[3] = value
    with pytest.raises(ValueError, match="not finite"), np.errstate(over="ignore"):
        Game(tree).play_plain(theta, 0)


def test_gradients_and_fitness_must_be_finite():
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [1e200, 1.0]):
        with pytest.raises(ValueError, match="finite"):
            Adam(2, 0.1).step(np.array(bad))
    for lr in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="learning rate"):
            Adam(2, lr)
    directions = np.eye(2)
    with pytest.raises(ValueError, match="finite"):
        mirrored_gradient(np.array([0.1, np.nan, 0.2, 0.3]), directions, 1.0)
    with pytest.raises(ValueError, match="sigma"):
        mirrored_gradient(np.zeros(4), directions, 0.0)


def test_a_batch_must_hold_whole_groups(tree):
    for batch, baseline in ((0, "none"), (12, "question")):
        with pytest.raises(ValueError, match="positive multiple"):
            next(reinforce(Game(tree), 1000, 1, batch=batch, baseline=baseline))
