"""REINFORCE on head and SVF: a gradient through the last layers of the SLM, and what it costs (lesson 09)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time

import numpy as np
import torch

from .backbone import Backbone
from .baselines import Adam, Array, Progress, means
from .coordinator import Coordinator
from .curvature import chances
from .episode import Episode, Transcript, play, play_all, run, uniforms
from .gradient_baselines import advantages
from .moving_states import MovingStates
from .pool import Pool
from .presets import Preset
from .tasks import FAMILIES, Question
from .training import Router, draw_questions, play_policy

REPEATS = 8  # episodes a question: they share the beginnings of their texts


def svf_gradient(
    backbone: Backbone,
    theta: Array,
    episodes: Sequence[Episode],
    weights: Array,
    n_agents: int,
    entropy: float = 0.0,
    chunk: int = 64,
) -> tuple[Array, int]:
    """(gradient (n,) of the mean of weights[b] * log p(choices of b), states it went back through).

    episodes: those of one question side by side, REPEATS of each. theta = [SVF deltas | linear head].
    entropy: weight of the sum over turns of the choices' entropy (nats), as in `policy_gradient`.
    """
    x = torch.from_numpy(np.array(theta)).float().requires_grad_()
    n_svf, states = backbone.svf().n, 0
    for start in range(0, len(episodes), chunk):
        part = range(start, min(start + chunk, len(episodes)))
        groups, choices = [], []
        for first in part[::REPEATS]:
            group = []
            for b in range(first, min(first + REPEATS, part.stop)):
                e = episodes[b]
                for t, turn in enumerate(e.turns if weights[b] or entropy else ()):
                    text = backbone.render(Transcript(e.question.prompt, e.turns[:t]))
                    group.append(backbone.encode(text)[:-1])
                    choices.append((turn.decision.agent, int(turn.decision.role), weights[b]))
            if group:
                groups.append(group)
        if not groups:
            continue
        h = MovingStates(backbone, groups).features(x[:n_svf])
        agent, role = chances(h, x[n_svf:], n_agents)
        a, r = (torch.tensor([c[k] for c in choices]) for k in (0, 1))
        w = torch.tensor([c[2] for c in choices], dtype=torch.float32)
        log_agent, log_role = (p.clamp_min(1e-30).log() for p in (agent, role))
        log_p = (log_agent.gather(1, a[:, None]) + log_role.gather(1, r[:, None]))[:, 0]
        spread = -(agent * log_agent).sum() - (role * log_role).sum()
        ((w @ log_p + entropy * spread) / len(episodes)).backward()
        states += len(choices)
    return (np.zeros(len(theta)) if x.grad is None else x.grad.double().numpy()), states


def reinforce_svf(
    backbone: Backbone,
    pool: Pool,
    train: Sequence[Question],
    budget: int,
    seed: int,
    lr: float = 0.1,
    svf_lr: float = 0.001,
    batch: int = 512,
    entropy: float = 0.0,
) -> Iterator[Progress]:
    """REINFORCE with Adam on head (lr) and SVF deltas (svf_lr), each reward against the others of its question."""
    if batch < 1 or batch % REPEATS:
        raise ValueError(f"batch = {batch} must be a positive multiple of {REPEATS}.")
    coordinator = Coordinator(backbone, len(pool.names))
    groups = [[q for q in train if q.family == f] for f in FAMILIES]
    rates = np.repeat([svf_lr, lr], [coordinator.n_svf, coordinator.n_head])
    theta, adam, turns = np.zeros(coordinator.n), Adam(coordinator.n, 1.0), Preset("").rules.max_turns
    played = states = backward = 0
    began, playing = process_time(), 0.0
    for update in range(budget // batch):
        start = process_time()
        backbone.clear_cache()
        router = Router(coordinator, theta)
        asked = [q for q in draw_questions(groups, batch // REPEATS, seed, 42, update) for _ in range(REPEATS)]
        draws = [uniforms(turns, seed, 43, update, i) for i in range(batch)]
        episodes = run(play_all([play(q, router.decide(0, u), pool) for q, u in zip(asked, draws, strict=True)]))
        playing += process_time() - start
        rewards = np.array([np.nan if e.reward is None else e.reward for e in episodes])
        weights = advantages(rewards, "question", REPEATS)
        gradient, through = svf_gradient(backbone, theta, episodes, weights, len(pool.names), entropy)
        theta = theta + rates * adam.step(gradient)
        played, backward = played + batch, backward + through
        states += sum(len(e.turns) for e in episodes)
        seconds = process_time() - began - playing
        yield Progress(played, float(means(rewards)), states, states, backward, seconds, theta.copy())


def svf_rewards(
    backbone: Backbone, pool: Pool, asked: Sequence[Question], theta: Array, seed: int
) -> Array:
    """Rewards (questions,) of one episode a question, with the draws of `evaluate`."""
    coordinator = Coordinator(backbone, len(pool.names))
    episodes = play_policy(coordinator, theta, asked, pool, Preset("mini"), seed)
    return np.array([np.nan if e.reward is None else e.reward for e in episodes])
