"""What episodes look like: one told aloud, many counted (lesson 10)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .episode import Episode
from .roles import Role


def told(episode: Episode, names: Sequence[str]) -> str:
    """An episode in words: at each turn the chosen agent and role with their probabilities, and what was said."""
    lines = [f"Question ({episode.question.family}): {episode.question.prompt}"]
    for i, turn in enumerate(episode.turns, 1):
        chosen = ""
        if turn.decision is not None and turn.decision.agent_p:
            d = turn.decision
            chosen = f" (agent p = {d.agent_p[d.agent]:.2f}, role p = {d.role_p[d.role]:.2f})"
        said = "(lost)" if turn.reply.lost else turn.reply.text
        lines.append(f"{i}. {names[turn.agent]} as {turn.role.label}{chosen}: {said}")
    if any(turn.reply.lost for turn in episode.turns):
        return "\n".join([*lines, "A call was lost, so the episode is not scored."])
    lines.append("The Verifier accepted." if episode.accepted else "Nobody accepted; the turns are used up.")
    if episode.answer is None:
        lines.append("No Worker spoke, so there is no answer.")
    elif episode.reward is None or not episode.question.answer:
        lines.append(f"Answer: {episode.answer} (not a question of this world: nobody can grade it)")
    else:
        right = "right" if episode.reward else f"wrong, it is {episode.question.answer}"
        lines.append(f"Answer: {episode.answer} ({right})")
    return "\n".join(lines)


def turns_frame(episodes: Sequence[Episode], names: Sequence[str]) -> pd.DataFrame:
    """One row a turn: family, kind, turn (from 1), agent, role, reward of the episode."""
    rows = [
        (e.question.family, e.question.kind, i, names[t.agent], Role(t.role).label, e.reward)
        for e in episodes
        for i, t in enumerate(e.turns, 1)
    ]
    return pd.DataFrame(rows, columns=["family", "kind", "turn", "agent", "role", "reward"])
