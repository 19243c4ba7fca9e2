"""The tree of conversations against the loop itself: the same episodes, and J by adding them up."""

import itertools

import numpy as np
import pytest
import torch

from trinity_mini.backbone import Backbone
from trinity_mini.coordinator import Coordinator
from trinity_mini.episode import Rules, Transcript, fixed, play, play_all, run, uniforms
from trinity_mini.episode_tree import EpisodeTree
from trinity_mini.head import sample, softmax
from trinity_mini.pool import EmbeddedPool
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.training import Router

ASKED = [q for family in FAMILIES for q in questions(family, "test", 2, 0)]


@pytest.fixture(scope="module")
def world():
    return Backbone.embedded(), EmbeddedPool()


def policy(theta, dtype):
    w = theta.reshape(8, -1) / np.sqrt(theta.size // 8)

    def probabilities(h):
        z = h @ torch.as_tensor(w, dtype=dtype).T
        return z[:, :5].softmax(1), z[:, 5:].softmax(1)

    return probabilities


def test_episodes_are_those_of_the_loop(world):
    backbone, pool = world
    coordinator = Coordinator(backbone, 5, matrices="none")
    theta = np.random.default_rng(1).normal(0, 6, coordinator.n)
    draws = [uniforms(5, 7, i) for i in range(len(ASKED))]
    router = Router(coordinator, theta)
    wanted = run(play_all([play(q, router.decide(0, u), pool) for q, u in zip(ASKED, draws, strict=True)]))

    def choose(states, rows, turn):
        z = coordinator.head(states, torch.from_numpy(theta).float())
        u = np.array([draws[i][turn] for i in rows])
        return tuple(sample(softmax(logits), u[:, k]) for k, logits in enumerate(z))

    tree = EpisodeTree(backbone, pool, ASKED)
    for _ in range(2):  # the second time everything is known
        rewards, nodes, agents, roles = tree.play(choose, np.arange(len(ASKED)))
        assert rewards.tolist() == [e.reward for e in wanted]
        for i, e in enumerate(wanted):
            n = len(e.turns)
            assert agents[i, :n].tolist() == [t.agent for t in e.turns] and (agents[i, n:] == -1).all()
            assert roles[i, :n].tolist() == [t.role for t in e.turns] and (nodes[i, n:] == -1).all()
            assert tree.turn[nodes[i, :n]].tolist() == list(range(n))
    end = tree.transcripts[nodes[0, 1]]
    states = backbone.features(backbone.hidden([backbone.render(end)]))
    assert torch.allclose(tree.features[nodes[0, 1]], states[0], atol=1e-5)


def test_the_expected_reward_is_the_sum_over_all_sequences(world):
    backbone, pool = world
    asked = ASKED[-2:]
    tree = EpisodeTree(backbone, pool, asked, max_turns=2).grow_all()
    theta = np.random.default_rng(2).normal(0, 8, 8 * backbone.d)
    chances = policy(theta, torch.float32)
    wanted = np.zeros(len(asked))
    first = list(itertools.product(range(5), Role))
    chosen = list(itertools.product(range(len(asked)), first, first))
    plays = {(i, x, y): play(asked[i], fixed((x, y)), pool, Rules(2)) for i, x, y in chosen}
    for (i, x, y), e in zip(plays, run(play_all(list(plays.values()))), strict=True):
        # of an episode that ends early every continuation was played: the mean over them is the episode once
        states = [backbone.render(t) for t in _before(asked[i], e)]
        a, r = chances(backbone.features(backbone.hidden(states)))
        p = np.prod([float(a[t, c[0]] * r[t, c[1]]) for t, c in enumerate((x, y)[: len(e.turns)])])
        wanted[i] += e.reward * p / (15 if len(e.turns) == 1 else 1)
    found = tree.expected_reward(policy(theta, torch.float64))
    assert np.allclose(found.numpy(), wanted, atol=1e-5)
    assert found.min() >= 0 and 0 < found.max() <= 1


def _before(question, episode):
    return [Transcript(question.prompt, episode.turns[:t]) for t in range(len(episode.turns))]


def test_the_expected_reward_has_a_gradient(world):
    backbone, pool = world
    tree = EpisodeTree(backbone, pool, ASKED[::2], max_turns=3).grow_all()
    w = torch.from_numpy(np.random.default_rng(3).normal(0, 1, (8, backbone.d))).requires_grad_()

    def j(w):
        return tree.expected_reward(lambda h: ((h @ w.T)[:, :5].softmax(1), (h @ w.T)[:, 5:].softmax(1))).mean()

    j(w).backward()
    direction = torch.from_numpy(np.random.default_rng(4).normal(0, 1, w.shape))
    with torch.no_grad():
        slope = (j(w + 1e-5 * direction) - j(w - 1e-5 * direction)) / 2e-5
    assert float(slope) == pytest.approx(float((w.grad * direction).sum()), rel=1e-4)
    assert abs(float(slope)) > 1e-6


def test_sampled_rewards_agree_with_the_expected_one(world):
    backbone, pool = world
    tree = EpisodeTree(backbone, pool, ASKED, max_turns=3).grow_all()
    theta = np.random.default_rng(5).normal(0, 1, 8 * backbone.d)
    chances = policy(theta, torch.float32)
    rng = np.random.default_rng(6)

    def choose(states, rows, turn):
        u = rng.random((len(rows), 2))
        return tuple(sample(p.double().numpy(), u[:, k]) for k, p in enumerate(chances(states)))

    rewards, *_ = tree.play(choose, np.repeat(np.arange(len(ASKED)), 4000))
    found = rewards.reshape(len(ASKED), -1).mean(1)
    wanted = tree.expected_reward(policy(theta, torch.float64)).numpy()
    assert (abs(found - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 4000) + 1e-9).all()
    assert wanted.max() > 0.05


def test_a_tree_that_is_not_whole_has_no_expected_reward(world):
    backbone, pool = world
    tree = EpisodeTree(backbone, pool, ASKED[:1], max_turns=2)
    with pytest.raises(ValueError, match="grow_all"):
        tree.expected_reward(policy(np.zeros(8 * backbone.d), torch.float64))
