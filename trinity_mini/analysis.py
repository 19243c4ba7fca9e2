"""What episodes look like: one told aloud, many counted (lesson 10)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .episode import Episode
from .roles import Role, indented
from .tasks import Question

COLUMNS = ["episode", "family", "kind", "turn", "agent", "role", "reward"]


def told(episode: Episode, names: Sequence[str]) -> str:
    """An episode in words: at each turn the chosen agent and role with their probabilities, and what was said.

    Texts of others are `shown`: none can pose as a line of this report, or give orders to a terminal.
    """
    lines = [f"Question ({episode.question.family}): {shown(episode.question.prompt)}"]
    for i, turn in enumerate(episode.turns, 1):
        chosen = ""
        if turn.decision is not None and turn.decision.agent_p:
            d = turn.decision
            chosen = f" (agent p = {d.agent_p[d.agent]:.2f}, role p = {d.role_p[d.role]:.2f})"
        said = "(lost)" if turn.reply.lost else shown(turn.reply.text or "")
        lines.append(f"{i}. {names[turn.agent]} as {turn.role.label}{chosen}: {said}")
    if any(turn.reply.lost for turn in episode.turns):
        return "\n".join([*lines, "A call was lost, so the episode is not scored."])
    lines.append("The Verifier accepted." if episode.accepted else "Nobody accepted; the turns are used up.")
    answer = shown(episode.answer or "")
    if episode.answer is None:
        lines.append("No Worker spoke, so there is no answer.")
    elif episode.reward is None or not episode.question.answer:
        lines.append(f"Answer: {answer} (not a question of this world: nobody can grade it)")
    else:
        right = "right" if episode.reward else f"wrong, it is {shown(episode.question.answer)}"
        lines.append(f"Answer: {answer} ({right})")
    return "\n".join(lines)


def shown(text: str) -> str:
    """A text for a terminal: lines indented from the second on, what cannot be printed replaced, tabs kept."""
    text = text.replace("\r\n", "\n")
    kept = (
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )
    return indented("".join(kept))


def turns_frame(episodes: Sequence[Episode], names: Sequence[str]) -> pd.DataFrame:
    """One row a turn: number of the episode, family, kind, turn (from 1), agent, role, reward of the episode."""
    rows = [
        (k, e.question.family, e.question.kind, i, names[t.agent], Role(t.role).label, e.reward)
        for k, e in enumerate(episodes)
        for i, t in enumerate(e.turns, 1)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def walked_frame(
    asked: Sequence[Question], agents: NDArray, roles: NDArray, rewards: NDArray, names: Sequence[str]
) -> pd.DataFrame:
    """The same of episodes that were walks over an `EpisodeTree`: agents, roles (B, max_turns), -1 after the end."""
    rows = [
        (k, q.family, q.kind, i, names[a], Role(int(r)).label, reward)
        for k, (q, reward) in enumerate(zip(asked, rewards.tolist(), strict=True))
        for i, (a, r) in enumerate(zip(agents[k], roles[k], strict=True), 1)
        if a >= 0
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def transitions(turns: pd.DataFrame) -> pd.DataFrame:
    """How often which speaker follows which, each line summing to 1; a speaker is `agent Role`, `start` or `end`."""
    t = turns.sort_values(["episode", "turn"])
    speaker, episode = (t.agent + " " + t.role).to_numpy(), t.episode.to_numpy()
    first = np.append(True, episode[1:] != episode[:-1])[: len(t)]
    last = np.append(first[1:], True)[: len(t)]
    before = np.concatenate((np.where(first, "start", np.roll(speaker, 1)), speaker[last]))
    after = np.concatenate((speaker, np.full(last.sum(), "end")))
    return pd.crosstab(pd.Series(before, name="before"), pd.Series(after, name="after"), normalize="index")


def specialisation(turns: pd.DataFrame, resamples: int, seed: int) -> dict[str, float]:
    """Mutual information, in bits, between the family of a question and the agent and role of a turn.

    Returns: bits; low, high, the 95 % bootstrap interval over episodes, reflected, since a resample is biased upwards
    from the sample as the sample is from the truth; chance, the mean after the families were dealt anew among the
    episodes: what so many episodes give where nothing is specialised; most, the entropy of the family, which no mutual
    information exceeds.
    """
    rng = np.random.default_rng(seed)
    counts = pd.crosstab(turns.episode, [turns.agent, turns.role]).to_numpy(float)
    family = turns.groupby("episode").family.first().factorize()[0]
    own = np.eye(family.max() + 1)[family]
    n = len(counts)
    weights = rng.multinomial(n, np.full(n, 1 / n), size=resamples)
    boot = [_information((own * w[:, None]).T @ counts) for w in weights]
    chance = [_information(own[rng.permutation(n)].T @ counts) for _ in range(resamples)]
    joint = own.T @ counts
    high, low = np.maximum(2 * _information(joint) - np.quantile(boot, [0.025, 0.975]), 0)
    p = joint.sum(1) / joint.sum()
    return {
        "bits": _information(joint), "low": float(low), "high": float(high), "chance": float(np.mean(chance)),
        "most": float(-(p * np.log2(p)).sum()),
    }  # fmt: skip


def _information(joint: NDArray) -> float:
    """Mutual information in bits of a table of counts."""
    p = joint / joint.sum()
    independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    seen = p > 0
    return float((p[seen] * np.log2(p[seen] / independent[seen])).sum())
