"""The gradient through the SLM: states against the backbone's own, slopes against differences."""

import numpy as np
import pytest
import torch

from trinity_mini.backbone import Backbone
from trinity_mini.coordinator import Coordinator
from trinity_mini.episode import Rules, Transcript, fixed, play, run
from trinity_mini.gradient_baselines import advantages
from trinity_mini.moving_states import MovingStates
from trinity_mini.pool import EmbeddedPool
from trinity_mini.presets import Preset
from trinity_mini.roles import Role
from trinity_mini.signal_to_noise import signals
from trinity_mini.svf_baselines import REPEATS, reinforce_svf, svf_gradient
from trinity_mini.tasks import FAMILIES, questions
from trinity_mini.training import play_policy
from trinity_mini.tree_settings import Setting, build, whole, worth


@pytest.fixture(scope="module")
def world():
    return Backbone.embedded(), EmbeddedPool()


@pytest.fixture(scope="module")
def played(world):
    coordinator = Coordinator(world[0], 5)
    rng = np.random.default_rng(1)
    theta = np.concatenate((rng.normal(0, 0.02, coordinator.n_svf), rng.normal(0, 3, coordinator.n_head)))
    asked = [questions(f, "train", 1, 0)[0] for f in FAMILIES[2:] for _ in range(REPEATS)]
    return coordinator, theta, play_policy(coordinator, theta, asked, world[1], Preset("t"), 3)


def test_moving_states_are_those_of_the_backbone(world, played):
    backbone = world[0]
    coordinator, theta, episodes = played
    prompts = [
        [backbone.render(Transcript(e.question.prompt, e.turns[:t])) for e in episodes[i : i + 4] for t in range(3)]
        for i in (0, 8)
    ]
    delta = torch.from_numpy(theta[: coordinator.n_svf]).float()
    groups = [[backbone.encode(p)[:-1] for p in g] for g in prompts]
    found = MovingStates(backbone, groups)
    flat = [p for g in prompts for p in g]
    wanted = backbone.features(backbone.hidden(flat, delta))
    with torch.no_grad():
        assert torch.allclose(found.features(delta), wanted, atol=1e-4)
    assert found.tokens < sum(len(t) for g in groups for t in g)


@pytest.mark.parametrize("entropy", [0.0, 0.7])
def test_the_gradient_is_that_of_the_log_probabilities(world, played, entropy):
    backbone = world[0]
    coordinator, theta, episodes = played
    weights = np.random.default_rng(2).normal(size=len(episodes))
    weights[3] = 0
    gradient, states = svf_gradient(backbone, theta, episodes, weights, 5, entropy)
    assert states == sum(len(e.turns) for e, w in zip(episodes, weights, strict=True) if w or entropy)

    def objective(x):
        rows = [(e, t, w) for e, w in zip(episodes, weights, strict=True) for t in range(len(e.turns))]
        prompts = [backbone.render(Transcript(e.question.prompt, e.turns[:t])) for e, t, _ in rows]
        a, r = (z.double().log_softmax(1).numpy() for z in coordinator.logits(prompts, x))
        chosen = [e.turns[t].decision for e, t, _ in rows]
        total = sum(w * (a[i, d.agent] + r[i, d.role]) for i, (d, (_, _, w)) in enumerate(
            zip(chosen, rows, strict=True)))  # fmt: skip
        return (total - entropy * sum((np.exp(z) * z).sum() for z in (a, r))) / len(episodes)

    rng = np.random.default_rng(3)
    for part, h in ((slice(0, coordinator.n_svf), 1e-3), (slice(coordinator.n_svf, None), 1e-2)):
        direction = np.zeros(coordinator.n)
        direction[part] = rng.normal(size=len(direction[part]))
        slope = (objective(theta + h * direction) - objective(theta - h * direction)) / (2 * h)
        assert slope == pytest.approx(gradient @ direction, rel=0.03, abs=1e-3)


def test_reinforce_counts_the_states_it_goes_back_through(world):
    backbone, pool = world
    train = [q for f in FAMILIES for q in questions(f, "train", 2, 0)]
    steps = list(reinforce_svf(backbone, pool, train, 40, 1, batch=16))
    assert [s.episodes for s in steps] == [16, 32]
    assert all(s.backward <= s.states == s.calls for s in steps) and steps[-1].seconds >= 0
    again = list(reinforce_svf(backbone, pool, train, 40, 1, batch=16))
    assert np.array_equal(steps[-1].theta, again[-1].theta)


def test_a_strict_world_with_useless_agents(world):
    backbone, pool = world
    plain, more, strict = (
        build(Setting(("know",), 2, per_family=3, strict=s), backbone, pool) for s in (False, False, True)
    )
    assert whole(plain) and strict.n_agents == more.n_agents == 5
    crowd = build(Setting(("code",), 2, useless=2, per_family=2), backbone, pool)
    assert crowd.n_agents == 7 and crowd.size == build(Setting(("code",), 2, per_family=2), backbone, pool).size
    zero = np.zeros(8 * backbone.d)
    assert worth(strict, zero, 0) == 0  # nobody can accept before the last of two turns
    three = [build(Setting(("know",), 3, per_family=2, strict=s), backbone, pool) for s in (False, True)]
    assert 0 < worth(three[1], zero, 0) < worth(three[0], zero, 0)


def test_signals_of_a_small_tree(world):
    from trinity_mini.baselines import Game

    tree = build(Setting(("know",), 2, per_family=4), *world)
    rows = signals(Game(tree), np.zeros(Game(tree).n), 1, 24)
    by_name = {r["estimator"]: r for r in rows}
    for name, row in by_name.items():
        assert row["cosine"] > 3 * row["cosine_se"], name
        assert row["gain"] <= row["best_gain"] + 0.02
        if name.startswith("REINFORCE"):
            assert 0.6 < row["bias"] < 1.6
    assert by_name["REINFORCE, baseline batch"]["snr"] > by_name["REINFORCE, baseline none"]["snr"]
    assert not advantages(np.zeros(8), "question", REPEATS).any()


def test_a_kept_world_is_right_if_every_turn_is(world):
    """Against every sequence of 45 (agent, role) choices of two turns, played one by one."""
    backbone, pool = world
    tree = build(Setting(("know",), 2, per_family=3, kept=True), backbone, pool)
    assert whole(tree)
    choices = [(a, r) for a in range(5) for r in range(3)]
    right = {}
    for i, q in enumerate(tree.asked):
        for first in choices:
            for second in choices:
                plan = (first, second)

                def choose(states, rows, turn, plan=plan):
                    return tuple(np.full(len(rows), x) for x in plan[turn])

                rewards, nodes, *_ = tree.play(choose, np.array([i]))
                episode = run(play(q, fixed([(a, Role(r)) for a, r in plan]), pool, Rules(max_turns=2)))
                told = [t.reply.text.strip() == q.answer and t.role == Role.WORKER for t in episode.turns]
                right[i, plan] = all(told) and len(told) == 2
                assert rewards[0] == right[i, plan]
    assert 0 < sum(right.values()) < len(right) / 10
    assert worth(tree, np.zeros(8 * 128), 0) == pytest.approx(sum(right.values()) / len(right))


def test_the_gradient_does_not_hang_on_the_chunks(world, played):
    coordinator, theta, episodes = played
    weights = np.random.default_rng(5).normal(size=len(episodes))
    whole_, states = svf_gradient(world[0], theta, episodes, weights, 5)
    for chunk in (8, 12):
        part, through = svf_gradient(world[0], theta, episodes, weights, 5, chunk=chunk)
        assert through == states and np.allclose(part, whole_, atol=1e-4 * abs(whole_).max())


@pytest.mark.parametrize(
    "options",
    [{"turns": 0}, {"per_family": 0}, {"families": ()}, {"useless": -1}, {"families": ("know",), "useless": 2}],
)
def test_a_setting_that_is_no_world_is_refused(options):
    with pytest.raises(ValueError):
        Setting(**({"families": ("code",), "turns": 2} | options))
