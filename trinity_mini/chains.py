"""Fixed chains of (agent, role): the strongest coordinators that never read the conversation (lesson 01).

They give the honest baselines (one agent alone, one chain a family) and the ceiling (one chain a question kind).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .pool import EmbeddedPool
from .roles import Role, accepts
from .tasks import Question, grade
from .templates import prompt_text, verdict_text

Chain = tuple[tuple[int, Role], ...]
State = tuple[str | None, str | None, bool]  # latest plan, latest answer, accepted


def search_chain(
    pool: EmbeddedPool, asked: Sequence[Question], agents: Iterable[int], max_turns: int = 5, keep: int = 120
) -> tuple[Chain, float]:
    """The fixed chain with the highest accuracy on the questions asked, by beam search with merged states.

    Chains that leave every question in the same state are one; chains without a Verifier are all followed, those
    with one while they are among the `keep` most accurate.

    Returns: the chain and its accuracy on these questions (optimistic: measure it again on others).
    """
    agents = list(agents)
    start: tuple[State, ...] = tuple((None, None, False) for _ in asked)
    beam: dict[tuple[State, ...], Chain] = {start: ()}
    best: tuple[float, Chain] = (-1.0, ())
    for _ in range(max_turns):
        grown: dict[tuple[State, ...], Chain] = {}
        scores = {s: _accuracy(asked, s) for s in beam}
        top = set(sorted(beam, key=lambda s: -scores[s])[:keep])
        for role in Role:
            parents = [s for s in beam if s in top or (role != Role.VERIFIER and not _has_verifier(beam[s]))]
            for agent in agents:
                _ask(pool, agent, role, asked, parents)
                for s in parents:
                    child = tuple(_step(pool, agent, role, q, x) for q, x in zip(asked, s, strict=True))
                    if child not in beam:
                        grown.setdefault(child, (*beam[s], (agent, role)))
        for s, chain in grown.items():
            best = max(best, (_accuracy(asked, s), chain), key=lambda b: b[0])
        beam = grown
    return best[1], best[0]


def play_chain(pool: EmbeddedPool, chain: Chain, asked: Sequence[Question]) -> np.ndarray:
    """Rewards (len(asked),) of a fixed chain, as `episode.play` would give them."""
    states: list[State] = [(None, None, False)] * len(asked)
    for agent, role in chain:
        _ask(pool, agent, role, asked, [tuple(states)])
        states = [_step(pool, agent, role, q, s) for q, s in zip(asked, states, strict=True)]
    return np.array([float(grade(q, s[1])) for q, s in zip(asked, states, strict=True)])


def _has_verifier(chain: Chain) -> bool:
    return any(role == Role.VERIFIER for _, role in chain)


def _accuracy(asked: Sequence[Question], states: Sequence[State]) -> float:
    return float(np.mean([grade(q, s[1]) for q, s in zip(asked, states, strict=True)]))


def _prompt(role: Role, q: Question, s: State) -> str | None:
    if s[2] or (role == Role.VERIFIER and s[1] is None):
        return None
    return prompt_text(role, q.prompt, s[0], s[1])


def _ask(pool: EmbeddedPool, agent: int, role: Role, asked: Sequence[Question], many: Sequence[tuple]) -> None:
    """Let the pool answer all that the next step needs, as one batch."""
    prompts = {_prompt(role, q, s) for states in many for q, s in zip(asked, states, strict=True)} - {None}
    pool.speak([(agent, p) for p in sorted(prompts)])


def _step(pool: EmbeddedPool, agent: int, role: Role, q: Question, s: State) -> State:
    prompt = _prompt(role, q, s)
    if prompt is None:
        return s
    said = pool.memory[agent, prompt]
    if role == Role.THINKER:
        return said, s[1], False
    if role == Role.WORKER:
        return s[0], said, False
    return s[0], s[1], accepts(verdict_text(said))
