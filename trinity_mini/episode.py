"""The multi-turn loop: who speaks next, as what, until a Verifier accepts or the turns are used up (lesson 05)."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .files import UserError
from .pool import Message, Pool, Reply
from .roles import PROMPTS, Role, accepts, answer_in, suggested_role
from .tasks import Question
from .tasks import grade as is_right


@dataclass(frozen=True)
class Rules:
    """The protocol's switches; the defaults follow the paper, `RELEASED` the released run.

    One difference stays: the released run drops a plan that suggests no next role. Here it reaches the next turn,
    because the tiny agents plan and never suggest.
    """

    max_turns: int = 5
    early_verifier_fails: bool = False  # a Verifier before any answer ends the episode with reward 0
    follow_suggestions: bool = False  # a Thinker's suggested next role overrides the next draw
    only_answers_visible: bool = False  # the coordinator and later turns see Workers' replies only

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise UserError("max_turns must be at least 1.")


PAPER = Rules()
RELEASED = Rules(early_verifier_fails=True, follow_suggestions=True, only_answers_visible=True)


@dataclass(frozen=True)
class Decision:
    """What the coordinator chose for one turn, with the probabilities it chose from."""

    agent: int
    role: Role
    agent_p: tuple[float, ...] = ()
    role_p: tuple[float, ...] = ()


@dataclass(frozen=True)
class Turn:
    agent: int
    role: Role
    reply: Reply
    decision: Decision | None = None


@dataclass(frozen=True)
class Transcript:
    """A question and the turns so far; immutable."""

    question: str
    turns: tuple[Turn, ...] = ()

    def messages(self, role: Role) -> list[Message]:
        """The conversation as chat messages for one call in a role.

        Each turn is a message of its own that begins with the speaker's role, and only its first label counts:
        what a text claims about itself changes nothing.
        """
        shown = [{"role": "user", "content": f"{t.role.label}: {t.reply.text}"} for t in self.turns]
        return [
            {"role": "system", "content": PROMPTS[role]},
            {"role": "user", "content": f"Question: {self.question}"},
            *shown,
        ]

    @property
    def answer(self) -> str | None:
        """The last Worker's answer, None if no Worker has spoken."""
        spoken = [t.reply.text for t in self.turns if t.role == Role.WORKER]
        return answer_in(spoken[-1]) if spoken and spoken[-1] is not None else None


@dataclass(frozen=True)
class Episode:
    """One question played to its end. `reward` is None if a call was lost: such an episode is never scored."""

    question: Question
    turns: tuple[Turn, ...]
    answer: str | None
    accepted: bool
    reward: float | None


Decide = Callable[[Transcript, int], Awaitable[Decision]]
Grade = Callable[[Question, str | None], Awaitable[float | None]]


async def exact(question: Question, answer: str | None) -> float:
    """1 for the gold answer of the embedded world, else 0."""
    return float(is_right(question, answer))


async def play(question: Question, decide: Decide, pool: Pool, rules: Rules = PAPER, grade: Grade = exact) -> Episode:
    """One episode (paper section 2).

    decide(transcript, turn): the coordinator's choice. The episode ends at a Verifier's ACCEPT of an answer or
    after `rules.max_turns`; the answer is the last Worker's, and the reward what `grade` gives for it: 1 if it is
    right, else 0, and None if it could not be graded.
    """
    full, seen = Transcript(question.prompt), Transcript(question.prompt)
    suggested: Role | None = None
    plan: Turn | None = None  # under only_answers_visible, a suggestion reaches the next turn only
    accepted = False
    for turn in range(rules.max_turns):
        decision = await decide(seen, turn)
        role = suggested if suggested is not None else decision.role
        if role == Role.VERIFIER and full.answer is None and rules.early_verifier_fails:
            return Episode(question, full.turns, None, False, 0.0)
        visible = replace(seen, turns=seen.turns + ((plan,) if plan and role != Role.THINKER else ()))
        reply = await pool.reply(decision.agent, visible.messages(role))
        said = Turn(decision.agent, role, reply, decision)
        full = replace(full, turns=(*full.turns, said))
        if reply.lost:
            return Episode(question, full.turns, None, False, None)
        suggested = plan = None
        if role == Role.THINKER and rules.follow_suggestions:
            suggested = suggested_role(reply.text or "")
        if not rules.only_answers_visible or role == Role.WORKER:
            seen = replace(seen, turns=(*seen.turns, said))
        elif role == Role.THINKER:
            plan = said
        if role == Role.VERIFIER and full.answer is not None and accepts(reply.text or ""):
            accepted = True
            break
    return Episode(question, full.turns, full.answer, accepted, await grade(question, full.answer))


def fixed(choices: Sequence[tuple[int, Role]]) -> Decide:
    """A coordinator that ignores the conversation: turn t is played by choices[t]."""

    async def decide(transcript: Transcript, turn: int) -> Decision:
        agent, role = choices[turn]
        return Decision(agent, role)

    return decide


async def play_all(plays: Sequence[Coroutine[Any, Any, Episode]]) -> list[Episode]:
    """All episodes at once; turns that are ready in the same tick share their batches.

    The first error is raised when all have ended: replies that are on their way then have been paid for.
    """
    ended = await asyncio.gather(*plays, return_exceptions=True)
    for e in ended:
        if isinstance(e, BaseException):
            raise e
    return ended


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, from ordinary code and from a notebook cell whose event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task]] = []

    async def main() -> Any:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await coroutine

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, main())
        try:
            return result.result()
        except KeyboardInterrupt:  # the cell is interrupted, so its thread must be too
            for loop, task in running:
                loop.call_soon_threadsafe(task.cancel)
            raise


def uniforms(max_turns: int, *seed: int) -> np.ndarray:
    """The uniform numbers of one episode's draws, (max_turns, 2): agent, role. One stream per seed tuple."""
    return np.random.default_rng([len(seed), *seed]).random((max_turns, 2))  # numpy pads (1,) to (1, 0)
