"""When a run of paid calls is to be stopped: an agent at fault, too many lost calls (lesson 11)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

from .llm_agents import Agent
from .llm_outcomes import Outcome

ENOUGH, RECENT = 20, 500  # ended calls before the share of lost ones is judged, and the latest that are judged
IN_A_ROW = 5  # requests that an agent refuses, one after the other, before it is at fault and not the question
UNANSWERED = 3  # requests without a connection to an agent that has never answered


class Troubles:
    """What went wrong so far. answered: names of agents that have answered before; share: of calls that may be lost."""

    def __init__(self, answered: Iterable[str], share: float) -> None:
        self.answered, self.share = set(answered), share
        self.finished = self.lost = 0
        self.last = ""  # the last request that brought no text
        self._recent: deque[tuple[str, bool]] = deque(maxlen=RECENT)
        self._refused: Counter[str] = Counter()  # in a row

    def judged(self, agent: Agent, outcome: Outcome, attempt: int) -> Outcome:
        """The outcome of a request in the light of what the agent did before: is it at fault, or the question?"""
        if outcome.usable:
            self.answered.add(agent.name)
            self._refused[agent.name] = 0
            return outcome
        self.last = f"{agent.name!r}, {outcome.kind}: {outcome.error}"
        if outcome.fatal and outcome.status in (403, 404) and agent.name in self.answered:
            self._refused[agent.name] += 1
            return replace(outcome, fatal=self._refused[agent.name] >= IN_A_ROW)
        if outcome.unreachable and attempt + 1 >= UNANSWERED and agent.name not in self.answered:
            text = f"start its server, or check its api_base: there was no connection ({outcome.error})"
            return replace(outcome, fatal=True, error=text)
        return outcome

    def ended(self, key: str, lost: bool) -> str | None:
        """Count a call that ended; why the run must stop, if it must.

        The latest calls are judged: an outage late in a long run must not hide behind all that went well before.
        """
        self.finished, self.lost = self.finished + 1, self.lost + lost
        self._recent.append((key, lost))
        many, n = len(self.recent_lost()), len(self._recent)
        if not lost or n < ENOUGH or many <= self.share * n:
            return None
        return (
            f"{many} of the last {n} calls were lost, more than budget.lost_share = {self.share:g} (the last: "
            f"{self.last}): see to that server, then start the same command again to resume."
        )

    def recent_lost(self) -> list[str]:
        """Keys of the lost ones among the latest calls."""
        return [key for key, lost in list(self._recent) if lost]
