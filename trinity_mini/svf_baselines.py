"""REINFORCE on head and SVF: a gradient through the last layers of the SLM, and what it costs (lesson 09)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from .backbone import Backbone
from .baselines import Adam, Array, Progress, means
from .coordinator import Coordinator
from .curvature import chances
from .episode import Episode, Transcript, play, play_all, run, uniforms
from .gradient_baselines import advantages
from .pool import Pool
from .presets import Preset
from .tasks import FAMILIES, Question
from .training import Router, draw_questions, play_policy

REPEATS = 8  # episodes a question: they share the beginnings of their texts


class BatchedStates:
    """States of many texts as a differentiable function of the SVF deltas, in float32.

    groups: token ids of the texts of each group. In a group each distinct beginning is one token, which attends to its
    own beginnings; groups are padded to one length. `tokens`: distinct beginnings in all, what a pass computes.
    """

    def __init__(self, backbone: Backbone, groups: Sequence[Sequence[Sequence[int]]]) -> None:
        self.backbone, self.svf = backbone, backbone.svf()
        tries = [_trie(texts) for texts in groups]
        width = max(len(tokens) for tokens, _, _ in tries)
        ids = torch.zeros(len(tries), width, dtype=torch.long)
        mask = torch.eye(width, dtype=torch.bool).repeat(len(tries), 1, 1)
        for g, (tokens, parents, _) in enumerate(tries):
            ids[g, : len(tokens)] = torch.tensor(tokens)
            for i, parent in enumerate(parents):
                if parent >= 0:
                    mask[g, i] |= mask[g, parent]
        self.tokens = sum(len(tokens) for tokens, _, _ in tries)
        self.ends = torch.tensor([(g, e) for g, (_, _, ends) in enumerate(tries) for e in ends]).unbind(1)
        self.mask, model = mask[:, None], backbone.model
        self.rope = model.rope(mask.sum(2) - 1)
        with torch.no_grad():
            x = model.model.embed_tokens(ids)
            for layer in model.model.layers[: backbone.layer]:
                x = layer(x, self.rope, self.mask)
        self.below = x

    def features(self, delta: Tensor) -> Tensor:
        """(texts, d) for delta (n_svf,), group by group."""
        b = self.backbone
        start = f"model.layers.{b.layer}."
        values = self.svf.singular_values(delta)
        weights = {name.removeprefix(start): self.svf.product(name, s) for name, s in values.items()}
        x = functional_call(b.model.model.layers[b.layer], weights, (self.below, self.rope, self.mask))
        for layer in b.model.model.layers[b.layer + 1 :]:
            x = layer(x, self.rope, self.mask)
        return b.features(b.model.model.norm(x[self.ends]))


def _trie(texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Tokens of all distinct beginnings, the beginning before each (-1: none), and where each text ends."""
    nodes: dict[tuple[int, int], int] = {}
    tokens, parents, ends = [], [], []
    for text in texts:
        at = -1
        for token in text:
            if (at, token) not in nodes:
                nodes[at, token] = len(nodes)
                tokens.append(token)
                parents.append(at)
            at = nodes[at, token]
        ends.append(at)
    return tokens, parents, ends


def svf_gradient(
    backbone: Backbone, theta: Array, episodes: Sequence[Episode], weights: Array, n_agents: int, chunk: int = 64
) -> tuple[Array, int]:
    """(gradient (n,) of the mean of weights[b] * log p(choices of b), states it went back through).

    episodes: those of one question side by side, REPEATS of each. theta = [SVF deltas | linear head].
    """
    x = torch.from_numpy(np.array(theta)).float().requires_grad_()
    n_svf, states = backbone.svf().n, 0
    for start in range(0, len(episodes), chunk):
        part = range(start, min(start + chunk, len(episodes)))
        groups, choices = [], []
        for first in part[::REPEATS]:
            group = []
            for b in range(first, min(first + REPEATS, len(episodes))):
                e = episodes[b]
                for t, turn in enumerate(e.turns if weights[b] else ()):
                    text = backbone.render(Transcript(e.question.prompt, e.turns[:t]))
                    group.append(backbone.encode(text)[:-1])
                    choices.append((turn.decision.agent, int(turn.decision.role), weights[b]))
            if group:
                groups.append(group)
        if not groups:
            continue
        h = BatchedStates(backbone, groups).features(x[:n_svf])
        agent, role = chances(h, x[n_svf:], n_agents)
        a, r = (torch.tensor([c[k] for c in choices]) for k in (0, 1))
        w = torch.tensor([c[2] for c in choices], dtype=torch.float32)
        log_p = (agent.log().gather(1, a[:, None]) + role.log().gather(1, r[:, None]))[:, 0]
        (w @ log_p / len(episodes)).backward()
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
) -> Iterator[Progress]:
    """REINFORCE with Adam on head (lr) and SVF deltas (svf_lr), each reward against the others of its question."""
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
        gradient, through = svf_gradient(backbone, theta, episodes, weights, len(pool.names))
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
