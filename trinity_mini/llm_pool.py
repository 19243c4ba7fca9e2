"""Real LLMs as a pool: cached, retried, within a budget (lesson 11).

All requests run in one event loop of the pool's own, in a thread. So connections outlive `episode.run`, which starts
a new loop each time, and a coordinator that computes for seconds in its loop holds up no reply and no deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import llm_calls, llm_prices
from .files import UserError
from .llm_agents import Agent, PoolFile
from .llm_cache import FolderLock, Locked, ReplyCache, digest, question
from .llm_outcomes import Outcome
from .llm_troubles import Troubles
from .pool import Message, Reply
from .roles import Role

TINY = "tiny/"  # the embedded agents' provider
LAG = 0.02  # share of a deadline that a busy machine may need to come round to it
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a retry: doubled each time, then drawn from half to all of it
LEAST = 0.1  # of the deadline must be left for a retry
_OPEN: set[LLMPool] = set()


class PoolStopped(UserError):
    """The pool asks no more: a limit is reached, or an agent cannot be used; it names the remedy."""


@dataclass
class Call:
    """A call under way, and how many wait for its reply."""

    agent: Agent
    role: Role | None
    messages: Sequence[Message]
    asked: str
    label: str  # the role's name in the ledger
    server: int  # the first of the agent's servers to ask; each attempt asks the next
    task: asyncio.Task | None = None
    waiters: int = 0
    out: bool = False  # a request of it is with the server


class LLMPool:
    """The agents of a pool file; requests and replies are kept in `folder`/replies.sqlite.

    The same conversation with the same agent is asked once, ever; `draw` gives fresh samples of it, but of an agent
    at temperature 0, and of the embedded ones, there is one reply to everything. A lost call is
    `Reply(text=None)`. Close it, or use `with`: outstanding replies are paid for, so they are waited for and kept.
    Replies of another address are asked anew, though the pool's identity is that of the models.
    Raises: UserError if the budget cannot be held because a price or max_tokens is unknown, if the environment sends
    an agent elsewhere, if the file is damaged, or if another pool is open over the same file: two would pay for
    everything twice.
    """

    def __init__(self, pool_file: PoolFile, folder: Path) -> None:
        self.agents, self.budget = pool_file.agents, pool_file.budget
        self.names = [a.name for a in self.agents]
        settings = [
            [a.name, a.model, _place(a), dict(a.parameters), _by_role(a), a.merge_turns] for a in self.agents
        ]  # neither the key nor the address: another account or server is the same model
        self.identity = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        for a in self.agents:
            _refuse_detour(a)
        limited = self.budget.money is not None
        self.prices = {a.name: llm_prices.prices(a) if limited else None for a in self.agents}
        for a in self.agents if limited or self.budget.tokens is not None else ():
            if limited and self.prices[a.name] is None:
                raise UserError(f"agent {a.name!r}: give price_in and price_out, else budget.money cannot be held.")
            if any(a.max_tokens(role) is None for role in (None, *Role)):
                raise UserError(f"agent {a.name!r}: give max_tokens in parameters, else the budget cannot be held.")
        self.path = Path(folder) / "replies.sqlite"
        self._lock = FolderLock(self.path)
        try:
            self.cache = ReplyCache(self.path)
        except BaseException:
            self._lock.release()
            raise
        self.stopped: PoolStopped | None = None
        self._calls: dict[str, Call] = {}
        self._slots = {a.name: llm_calls.Slots(a.concurrency) for a in self.agents}
        self._rng = random.Random(f"jitter {self.identity}")
        self._turn = dict.fromkeys(self.names, 0)  # whose turn it is among an agent's servers
        self._out = 0
        self._troubles = Troubles(self.cache.answered(), self.budget.lost_share)
        self._ready: asyncio.Task | None = None
        self._disk = ThreadPoolExecutor(1, "replies")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-pool", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    async def reply(self, agent: int, messages: Sequence[Message]) -> Reply:
        """The agent's reply to a conversation, from the file if it is there; it is there before this returns.

        Raises: PoolStopped.
        """
        return await self._inside(self._reply(agent, messages, ()))

    def draw(self, index: Sequence[int]) -> Draw:
        """The same pool, whose replies are samples of their own for each index, e.g. (generation, episode)."""
        return Draw(self, tuple(int(i) for i in index))

    @property
    def progress(self) -> str:
        """How far the calls are, for somebody who waits."""
        t = self._troubles
        told = f"{t.finished} calls ended, {self._out} requests out, {t.lost} calls lost"
        return f"{told}; the last trouble: {t.last}" if t.last else told

    def forget_lost(self) -> int:
        """Forget which calls were lost, so that they are asked again; how many there were."""
        return self.cache.forget_lost()

    def forget_recent(self) -> int:
        """The same for the latest calls only, after an outage: earlier generations stay as they were scored."""
        return self.cache.forget_lost(self._troubles.recent_lost())

    async def check(self) -> list[dict[str, Any]]:
        """Ask each server of each agent one tiny question (a paid call each); raises nothing where there is no answer.

        Returns: rows of agent, outcome (answered, timed_out, ...), seconds, model (the name returned), error.
        """
        servers = [(a, i) for a in self.agents for i in range(len(a.bases))]
        return list(await asyncio.gather(*[self._inside(self._check(a, i)) for a, i in servers]))

    def close(self) -> None:
        """Ask no more, wait for the replies that are out (each at most its deadline), and close the file."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._disk.shutdown()
        self.cache.close()
        self._lock.release()
        _OPEN.discard(self)

    def __enter__(self) -> LLMPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # From here on, all runs in the pool's own loop.

    async def _inside(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop.is_closed():
            work.close()
            raise PoolStopped("this pool is closed: open it again.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _on_disk(self, work: Any, *args: Any) -> Any:
        """A statement in the disk's thread; carried through even if we are cancelled."""
        return await asyncio.shield(self._loop.run_in_executor(self._disk, work, *args))

    async def _reply(self, index: int, messages: Sequence[Message], draw: tuple[int, ...]) -> Reply:
        agent, role = self.agents[index], llm_calls.role_of(messages)
        messages = llm_calls.merged(messages) if agent.merge_turns else messages
        parameters = agent.parameters_in(role)
        greedy = parameters.get("temperature") == 0 or agent.model.startswith(TINY)  # one reply to everything
        base = _place(agent) if agent.model.startswith(TINY) else agent.api_base
        asked = question(agent.model, base, messages, parameters, () if greedy else draw)
        key = digest(asked)
        if (call := self._calls.get(key)) is None:
            call = self._call(agent, role, messages, asked, role.name.lower() if role is not None else "")
            call.task = asyncio.create_task(self._answer(key, call))
            call.task.add_done_callback(lambda task: self._ended(key, call, task))
            self._calls[key] = call
        call.waiters += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiters -= 1
            if not call.waiters and not call.out and not call.task.done():
                call.task.cancel()  # nobody waits for it, and nothing is paid yet
                del self._calls[key]

    def _call(self, agent: Agent, role: Role | None, messages: Sequence[Message], asked: str, label: str) -> Call:
        self._turn[agent.name] += 1
        return Call(agent, role, messages, asked, label, self._turn[agent.name])

    def _ended(self, key: str, call: Call, task: asyncio.Task) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if not task.cancelled():
            task.exception()  # seen, also where nobody waits any more

    async def _answer(self, key: str, call: Call) -> Reply:
        if (found := await self._on_disk(self.cache.find, key)) is not None:
            return found
        self._go_on()
        agent, request, end, latest = call.agent, None, float("inf"), None
        attempt = paid = 0  # requests so far, and those of them that may cost something
        while True:
            try:
                async with asyncio.timeout_at(latest):
                    await self._slots[agent.name].take(retry=attempt > 0)
            except TimeoutError:
                await self._on_disk(self.cache.give_up, request)
                await self._count(key, True)
                break
            try:
                await self._load()
                sent, outcome, end = await self._send(key, call, attempt, end, paid)
                outcome = self._troubles.judged(agent, outcome, attempt)
                pause = self._pause(attempt, outcome)
                attempt, paid = attempt + 1, paid + (not outcome.free)
                latest = end - LEAST * agent.deadline
                # What costs nothing is tried until the deadline; a single attempt is a single attempt.
                more = paid < agent.attempts and (attempt < agent.attempts or agent.attempts > 1)
                again = outcome.retryable and more and self._loop.time() + pause < latest
                if outcome.fatal:
                    self._stop(f"agent {agent.name!r} cannot be used: {outcome.error}; then start again to resume.")
                final = outcome.usable or not (again or self.stopped or outcome.fatal)
                await self._keep(sent, outcome, final)
                if final:
                    await self._count(key, not outcome.usable)
            except UserError as e:  # the disk
                self._stop(str(e))
                raise
            finally:
                self._back(call)
                self._slots[agent.name].give()
            request = sent
            if final:
                break
            if not call.waiters:
                raise asyncio.CancelledError
            self._go_on()
            await asyncio.sleep(pause)
            self._go_on()
        return await self._on_disk(self.cache.find, key)  # the first in the file, if another process was faster

    async def _send(
        self, key: str, call: Call, attempt: int, end: float, paid: int = 0
    ) -> tuple[int, Outcome, float]:
        """One request of a call within the budget: its id, its outcome, and when the call must end."""
        agent, parameters = call.agent, call.agent.parameters_in(call.role)
        prompt, completion = llm_calls.most_tokens(call.messages, call.agent.max_tokens(call.role))
        price = self.prices[agent.name]
        money = llm_prices.cost(price, prompt, completion) if price is not None else None
        asked = call.asked if attempt == 0 else None
        row = (key, asked, agent.name, call.label, attempt, money, prompt + completion, self.budget)
        while True:
            self._go_on()
            call.out = True  # until its outcome is on disk and its bound given back
            self._out += 1
            now = self._loop.time()  # the deadline counts from before the writing
            if (request := await self._on_disk(self.cache.send, *row)) is not None:
                break
            self._back(call)
            # Where nothing is out, no bound can turn out too high and be given back.
            if not self._out and (limit := self.cache.exceeded(self.budget, money, prompt + completion)):
                told = f" (the last trouble: {self._troubles.last})" if self._troubles.last else ""
                self._stop(
                    f"the next request might exceed {limit}: raise it in the pool file, start again to resume.{told}"
                )
                self._go_on()
            await asyncio.sleep(0.05)
        end, now = min(end, now + agent.deadline), self._loop.time()
        base = agent.bases[(call.server + attempt) % len(agent.bases)]
        others = len(agent.bases) > 1 and paid + 1 < agent.attempts  # leave time to ask one of them
        if end - now < LEAST * agent.deadline:  # a file that was locked for long
            why = f"{self.path.name} could not be written in time"
            return request, Outcome("timed_out", error=why, retryable=True, free=True), end
        seconds = max(0.01, (end - now) / (2 if others else 1) - LAG * agent.deadline)
        return request, await llm_calls.request(agent, call.messages, parameters, seconds, price, base), end

    async def _keep(self, request: int, outcome: Outcome, final: bool) -> None:
        """Write an outcome: it may be paid for, so while another process holds the file, again until we are closed."""
        while True:
            stopped = self.stopped
            try:
                return await self._on_disk(self.cache.came, request, outcome, final)
            except Locked:
                if stopped:
                    raise

    def _back(self, call: Call) -> None:
        self._out -= call.out
        call.out = False

    async def _check(self, agent: Agent, server: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Reply with the one word: ready"}]
        asked = question(agent.model, agent.api_base, messages, agent.parameters, ("check", server, time.time_ns()))
        call = Call(agent, None, messages, asked, "check", server)
        await self._slots[agent.name].take(retry=False)
        try:
            await self._load()
            sent, outcome, _ = await self._send(digest(asked), call, 0, float("inf"))
            await self._keep(sent, outcome, False)
        finally:
            self._back(call)
            self._slots[agent.name].give()
        where = f" at {agent.bases[server]}" if len(agent.bases) > 1 else ""
        return {
            "agent": agent.name + where, "outcome": outcome.kind, "seconds": outcome.seconds, "model": outcome.model,
            "error": outcome.error,
        }  # fmt: skip

    async def _load(self) -> None:
        """Import litellm and look up the prices, once and outside the loop."""
        if self._ready is None:

            def prepare() -> dict[str, llm_prices.Price | None]:
                llm_calls.load()
                return {a.name: llm_prices.prices(a) for a in self.agents}

            async def prepared() -> None:
                self.prices = await asyncio.to_thread(prepare)

            self._ready = asyncio.create_task(prepared())
        await asyncio.shield(self._ready)

    def _pause(self, attempt: int, outcome: Outcome) -> float:
        """Seconds before the next attempt: what the server asks for, or longer."""
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(attempt, 20))
        return max(outcome.retry_after or 0.0, longest * self._rng.uniform(0.5, 1))

    async def _count(self, key: str, lost_now: bool) -> None:
        """Count a call that ended; stop if too many are lost, and forget those, for they are asked again."""
        if (why := self._troubles.ended(key, lost_now)) is not None:
            self._stop(why)
        if lost_now and self.stopped:  # by this call, or while it came to its end
            await self._on_disk(self.forget_recent)
            self._go_on()

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or PoolStopped(why)

    def _go_on(self) -> None:
        if self.stopped:
            raise PoolStopped(str(self.stopped))

    async def _end(self) -> None:
        self._stop("this pool is closed: open it again.")
        tasks = [c.task for c in self._calls.values() if c.task is not None]
        for call in list(self._calls.values()):
            if not call.out and call.task is not None:
                call.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._ready is not None:
            await llm_calls.close_clients()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=1)
        await self._loop.shutdown_default_executor()


class Draw:
    """A view of a pool whose replies are samples of their own."""

    def __init__(self, pool: LLMPool, index: tuple[int, ...]) -> None:
        self.pool, self.index = pool, index
        self.names, self.identity = pool.names, pool.identity

    async def reply(self, agent: int, messages: Sequence[Message]) -> Reply:
        return await self.pool._inside(self.pool._reply(agent, messages, self.index))


def stop_asking() -> int:
    """Let all open pools send no more; how many requests are out, whose replies are paid. A signal handler may call it.

    It waits for no lock and sets one attribute: the pools' loops run in threads of their own.
    """
    for pool in list(_OPEN):
        pool._stop("interrupted: start the same command again to resume.")
    return sum(pool._out for pool in list(_OPEN))


def wait_for_paid() -> int:
    """After `stop_asking`: wait until what is out is on disk, or its deadline over; how many requests are left."""
    pools = list(_OPEN)
    end = time.monotonic() + max((a.deadline for p in pools for a in p.agents), default=0) + 5
    while (out := sum(p._out for p in pools)) and time.monotonic() < end:
        time.sleep(0.05)
    return out


def _place(agent: Agent) -> Any:
    """What answers for an agent, for the pool's identity: which weights of an embedded one, else whose server."""
    if agent.model.startswith(TINY) and agent.api_base is None:
        from .tiny_provider import address

        return address()
    return agent.api_base if agent.model.startswith(TINY) else agent.api_base is not None


def _refuse_detour(agent: Agent) -> None:
    """UserError if a variable of the environment would send an agent without an address to somebody's server."""
    if agent.api_base is None and not agent.model.startswith(TINY):
        provider = agent.model.split("/")[0] if "/" in agent.model else "openai"
        for name in (f"{provider}_BASE_URL".upper(), f"{provider}_API_BASE".upper()):
            if os.environ.get(name):
                raise UserError(f"agent {agent.name!r}: unset {name}, or give the address as api_base in its file.")


def _by_role(agent: Agent) -> dict[str, dict[str, Any]]:
    return {role.name: dict(changed) for role, changed in agent.roles.items()}
