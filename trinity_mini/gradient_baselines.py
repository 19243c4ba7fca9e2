"""REINFORCE and supervised fine-tuning of the head: the baselines that use gradients (lesson 09)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .baselines import Adam, Array, Game, Played, Progress, means
from .head import N_ROLES, softmax
from .roles import Role

BASELINES = ("none", "batch", "question")


def reinforce(
    game: Game,
    budget: int,
    seed: int,
    batch: int = 512,
    lr: float = 1e-5,
    baseline: str = "none",
    entropy: float = 0.0,
) -> Iterator[Progress]:
    """REINFORCE with Adam (paper section 3: batch 512, 60 updates, learning rate of this kind, the rest unpublished).

    baseline: what is taken from a reward: nothing; the batch's mean; or the mean of the other episodes of the same
    question, of which there are then 8. entropy: weight of the sum over turns of the choices' entropy (nats).
    """
    repeats = 8 if baseline == "question" else 1
    if batch < 1 or batch % repeats:
        raise ValueError(f"batch = {batch} must be a positive multiple of {repeats}.")
    rng = np.random.default_rng([seed, 41])
    theta, adam, update = np.zeros(game.n), Adam(game.n, lr), 0
    while game.episodes + batch <= budget:
        asked = np.repeat(game.draw(batch // repeats, seed, 42, update), repeats)
        played = game.play(theta[None], np.zeros(batch, int), asked, rng.random((batch, game.turns, 2)))
        weights = advantages(played.rewards, baseline, repeats)
        theta = theta + adam.step(policy_gradient(game, theta, played, weights, entropy))
        update += 1
        yield game.progress(means(played.rewards), theta)


def advantages(rewards: Array, baseline: str, repeats: int) -> Array:
    """What each episode's log-probability is weighted with, (B,); lost episodes weigh 0.

    Each episode is compared with the others only, so that none of the baselines adds a bias.
    """
    if baseline not in BASELINES:
        raise ValueError(f"unknown baseline {baseline!r}: choose from {', '.join(BASELINES)}.")
    seen = np.isfinite(rewards)
    r = np.where(seen, rewards, 0.0)
    if baseline == "none":
        return r
    shape = (1, -1) if baseline == "batch" else (-1, repeats)
    r, known = r.reshape(shape), seen.reshape(shape)
    others = known.sum(1, keepdims=True) - 1
    mean = (r.sum(1, keepdims=True) - r) / np.maximum(others, 1)
    return np.where(known & (others > 0), r - mean, 0.0).ravel()


def policy_gradient(game: Game, theta: Array, played: Played, weights: Array, entropy: float = 0.0) -> Array:
    """sum_b weights[b] * d log p(choices of b) / d theta, over the number of episodes, + entropy's gradient; (n,)."""
    there = played.nodes >= 0
    episode = np.broadcast_to(np.arange(len(weights))[:, None], there.shape)[there]
    chosen = (played.agents[there], played.roles[there])
    game.backward += len(episode)
    h, logits = read(game, theta, played.nodes[there])
    slopes = []
    for z, choice in zip(logits, chosen, strict=True):
        p = softmax(z)
        slope = -p * weights[episode, None]
        slope[np.arange(len(p)), choice] += weights[episode]
        if entropy:
            log_p = np.log(np.maximum(p, 1e-300))
            slope -= entropy * p * (log_p - (p * log_p).sum(1, keepdims=True))
        slopes.append(slope)
    return (np.concatenate(slopes, axis=1).T @ h).ravel() / len(weights)


def read(game: Game, theta: Array, nodes: NDArray) -> tuple[Array, tuple[Array, Array]]:
    """Scaled states (N, d) of nodes and a head's logits (N, L), (N, 3), in float64."""
    h = game.tree.features[nodes].double().numpy() / game.head.d**0.5
    z = h @ theta.reshape(-1, game.head.d).T
    return h, (z[:, : game.head.n_agents], z[:, game.head.n_agents :])


# ---- supervised fine-tuning ------------------------------------------------------------------------------------------


def sft_single_step(
    game: Game, budget: int, seed: int, lr: float = 1e-6, batch: int = 64, epochs: int = 30
) -> Iterator[Progress]:
    """SFT as in the paper: each question's label are the agents that answer it alone; agents' rows only.

    An episode is one call. The roles' rows stay 0: every role is as likely as the others. Where no agent is right
    alone there is no label. Our agents are deterministic, so the paper's three seeds are one here.
    Source: paper section 3 (Adam 1e-6, batch 64).
    """
    tree, agents = game.tree, game.tree.n_agents
    order = np.random.default_rng([seed, 51]).permutation(len(tree.asked))[: (budget - game.episodes) // agents]
    if not len(order):
        return
    right = single_step_rewards(game, order)
    target = np.zeros((len(order), agents + N_ROLES))
    target[:, :agents] = right / np.maximum(right.sum(1, keepdims=True), 1)
    yield from fit_labels(game, order, target, seed, lr, batch, epochs, right.mean())


def single_step_rewards(game: Game, questions: NDArray) -> Array:
    """Which agents answer each question alone, (Q, L) of 0 and 1: one call an episode, nothing read by the SLM."""
    from .pool import tiny_prompt
    from .tasks import grade

    tree, agents = game.tree, game.tree.n_agents
    prompts = [tiny_prompt(tree.transcripts[q].messages(Role.WORKER)) for q in questions]
    said = tree.pool.speak([(a, p) for p in prompts for a in range(agents)])
    game.episodes += len(said)
    game.calls += len(said)
    asked = [tree.asked[q] for q in questions for _ in range(agents)]
    return np.array([float(grade(q, s)) for q, s in zip(asked, said, strict=True)]).reshape(-1, agents)


def fit_labels(
    game: Game, nodes: NDArray, target: Array, seed: int, lr: float, batch: int, epochs: int, reward: float
) -> Iterator[Progress]:
    """Cross-entropy of the head's choices at nodes (N,) to target (N, L + 3); a half whose sum is 0 has no label.

    Yields once, at the end: no episodes are played.
    """
    game.states += len(np.unique(nodes))
    rng = np.random.default_rng([seed, 52])
    theta, adam, agents = np.zeros(game.n), Adam(game.n, lr), game.head.n_agents
    halves = (slice(0, agents), slice(agents, None))
    for _ in range(epochs if len(nodes) else 0):  # nothing found: theta stays 0
        for part in np.array_split(rng.permutation(len(nodes)), max(1, len(nodes) // batch)):
            h, logits = read(game, theta, nodes[part])
            t = [target[part, s] for s in halves]
            slopes = [y - softmax(z) * y.sum(1, keepdims=True) for z, y in zip(logits, t, strict=True)]
            theta = theta + adam.step((np.concatenate(slopes, axis=1).T @ h).ravel() / len(part))
            game.backward += len(part)
    yield game.progress(reward, theta)


def sft_sequences(
    game: Game,
    budget: int,
    seed: int,
    search: str = "ordered",
    lr: float = 0.03,
    batch: int = 64,
    epochs: int = 30,
    every: int = 500,
) -> Iterator[Progress]:
    """SFT on (agent, role) sequences found by search, question by question; the head is fitted anew every so often.

    search: see `found_sequences`. The label of each state of a sequence that was right is the choice made there.
    """
    nodes: list[int] = []
    chosen: list[tuple[int, int]] = []
    rewards: list[float] = []

    def fit() -> Iterator[Progress]:
        target = np.zeros((len(nodes), game.head.n_out))
        for k, (agent, role) in enumerate(chosen):
            target[k, [agent, game.head.n_agents + role]] = 1
        states = game.states
        yield from fit_labels(game, np.array(nodes, int), target, seed, lr, batch, epochs, float(np.mean(rewards)))
        game.states = states  # playing has read them already
        rewards.clear()

    fitted = game.episodes
    for rows, reward in found_sequences(game, budget, seed, search):
        rewards.append(reward)
        for node, agent, role in rows:
            nodes.append(node)
            chosen.append((agent, role))
        if game.episodes - fitted >= every:
            fitted = game.episodes
            yield from fit()
    if rewards:
        yield from fit()


def found_sequences(
    game: Game, budget: int, seed: int, search: str
) -> Iterator[tuple[list[tuple[int, int, int]], float]]:
    """(turns of the best sequence found, its reward) of one question after another; an attempt is an episode.

    ordered: each agent as a Worker, then each Thinker with each Worker, all followed by one Verifier to the end;
    of a sequence that was right, the other Verifiers are tried until one accepts. That the order is Thinker, Worker,
    Verifier is knowledge that no other method is given. random: uniform choices until one is right, 34 at most.
    """
    rng, tree, agents = np.random.default_rng([seed, 61]), game.tree, game.tree.n_agents
    for question in rng.permutation(len(tree.asked)):
        if game.episodes >= budget:
            return
        best: tuple[float, int, list] = (0.0, 0, [])
        if search == "random":
            for _ in range(34):
                if game.episodes >= budget or best[0]:
                    break
                plan = np.stack((rng.integers(agents, size=game.turns), rng.integers(N_ROLES, size=game.turns)), 1)
                best = max(best, follow(game, question, plan), key=lambda b: b[:2])
        else:
            best = _ordered(game, budget, question, rng)
        yield best[2] if best[0] else [], best[0]


def _ordered(game: Game, budget: int, question: int, rng: np.random.Generator) -> tuple[float, int, list]:
    agents, verifiers = game.tree.n_agents, rng.permutation(game.tree.n_agents)
    heads = [[(w, Role.WORKER)] for w in rng.permutation(agents)]
    pairs = [(t, w) for t in range(agents) for w in range(agents)]
    heads += [[(pairs[k][0], Role.THINKER), (pairs[k][1], Role.WORKER)] for k in rng.permutation(len(pairs))]
    best: tuple[float, int, list] = (0.0, 0, [])
    for head in heads:
        for v in verifiers:
            if game.episodes >= budget:
                return best
            plan = [*head, *[(v, Role.VERIFIER)] * (game.turns - len(head))]
            best = max(best, follow(game, question, np.array(plan)), key=lambda b: b[:2])
            if not best[0] or len(best[2]) == len(head) + 1:  # wrong, or accepted at once
                break
        if best[0]:
            break
    return best


def follow(game: Game, question: int, plan: NDArray) -> tuple[float, int, list[tuple[int, int, int]]]:
    """Play fixed choices (max_turns, 2): (reward, - number of turns, its (node, agent, role))."""

    def choose(states, rows, turn):
        return plan[turn, :1], plan[turn, 1:]

    rewards, nodes, agents, roles = game.tree.play(choose, np.array([question]))
    n = int((nodes >= 0).sum())
    game.episodes += 1
    game.calls += n
    game.states += n
    rows = list(zip(nodes[0, :n].tolist(), agents[0, :n].tolist(), roles[0, :n].tolist(), strict=True))
    return float(rewards[0]), -n, rows
