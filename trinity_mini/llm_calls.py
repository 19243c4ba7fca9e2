"""Exactly one request to a real LLM through litellm, and its typed outcome (lesson 11)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from .llm_agents import SECRET, Agent, printable
from .llm_outcomes import Outcome, failure, read
from .pool import Message
from .roles import PROMPTS, Role

LOOPBACK = ("localhost", "127.0.0.1", "::1")
GRACE = 0.5  # seconds for a cancelled request to leave, within its time
_SECRET_ENV = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


@cache
def load() -> Any:
    """litellm, imported at its first use (5 to 20 s): without network, telemetry or logs of what is said."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import: its price table comes with it
    for name in ("NO_PROXY", "no_proxy"):  # a proxy must not see what goes to this machine, nor the key
        here = [h for h in os.environ.get(name, "").split(",") if h]
        os.environ[name] = ",".join([*here, *(h for h in LOOPBACK if h not in here)])
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "openai", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    return litellm


def most_tokens(messages: Sequence[Message], max_tokens: int | None) -> tuple[int, int]:
    """An upper bound of a request's (prompt, completion) tokens: no token is shorter than a byte."""
    return sum(len(m["content"].encode("utf-8", "replace")) + 32 for m in messages) + 32, max_tokens or 0


def redact(text: str, *variables: str | None) -> str:
    """The text without the keys that the environment holds: in `variables`, and in all that are named like a key's."""
    secrets = {v.strip() for k, v in os.environ.items() if _SECRET_ENV.search(k) and len(v.strip()) >= 6}
    secrets |= {v for k in variables if k and len(v := os.environ.get(k, "").strip()) >= 4}
    for secret in sorted(secrets, key=len, reverse=True):
        text = re.sub(re.escape(secret), "[key]", text, flags=re.IGNORECASE)
    return SECRET.sub("[key]", text)


class Slots:
    """A semaphore that serves a retry before a first attempt, so that queues do not eat its deadline."""

    def __init__(self, n: int) -> None:
        self.free = n
        self.waiting: tuple[deque[asyncio.Future], deque[asyncio.Future]] = (deque(), deque())

    async def take(self, retry: bool) -> None:
        if self.free:
            self.free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting[0 if retry else 1].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the slot in the same moment
                self.give()
            raise

    def give(self) -> None:
        for queue in self.waiting:
            while queue:
                if not (turn := queue.popleft()).done():
                    turn.set_result(None)
                    return
        self.free += 1


def role_of(messages: Sequence[Message]) -> Role | None:
    """The role that the first message asks for, None if it is no role's prompt."""
    return next((role for role, prompt in PROMPTS.items() if messages and messages[0]["content"] == prompt), None)


def merged(messages: Sequence[Message]) -> list[Message]:
    """The system message and consecutive user messages as one user message, an empty line between them."""
    joined: list[dict[str, str]] = []
    for m in messages:
        role = "user" if m["role"] == "system" else m["role"]
        if joined and joined[-1]["role"] == role == "user":
            joined[-1]["content"] += "\n\n" + m["content"]
        else:
            joined.append({"role": role, "content": m["content"]})
    return list(joined)


async def request(
    agent: Agent,
    messages: Sequence[Message],
    parameters: Mapping[str, Any],
    seconds: float,
    price: Sequence[float] | None = None,
    base: str | None = None,
) -> Outcome:
    """One request and what became of it; ends within `seconds` (a slow drip too) and raises only CancelledError.

    base: which of the agent's servers to ask, None = the first. Call `load` before, outside the event loop.
    """
    start = time.monotonic()
    base = base or agent.bases[0]
    try:
        outcome = await _outcome(agent, messages, parameters, seconds, price, base)
        error = printable(redact(outcome.error, agent.api_key_env)[:300])
    except Exception as e:  # of our own reading of what came
        outcome, error = Outcome("failed"), f"{type(e).__name__} while its reply was read"
    return replace(outcome, error=error, seconds=time.monotonic() - start)


async def _outcome(agent, messages, parameters, seconds, price, base) -> Outcome:
    try:
        # Without a key of its own, an address gets none: not what litellm finds in the environment.
        key = agent.key() or ("none" if base else None)
        task = asyncio.ensure_future(_ask(agent, messages, parameters, base, key))
        try:
            done, _ = await asyncio.wait([task], timeout=seconds - min(GRACE, seconds / 10))
        finally:
            if not task.done():
                task.cancel()
        if not done:
            # Its socket is closed; it is not waited for if it does not leave.
            await asyncio.wait([task], timeout=min(GRACE, seconds / 10))
            return Outcome("timed_out", error=f"no whole reply in {seconds:.1f} s", retryable=True)
        if task.cancelled():  # from within; not ours, which would have left the wait
            return Outcome("failed", error="litellm cancelled the request", retryable=True)
        return read(task.result(), agent, parameters, price)
    except Exception as e:
        return failure(e)


async def _ask(agent, messages, parameters, base, key) -> Any:
    litellm = load()
    if agent.model.startswith("tiny/"):
        from .tiny_provider import register

        register()
    return await litellm.acompletion(
        **parameters,
        model=agent.model,
        messages=[{"role": m["role"], "content": m["content"]} for m in messages],
        api_base=base,
        api_key=key,
        timeout=agent.deadline + 1,  # ours comes first; the same for all, since litellm makes a client for each value
        num_retries=0,
        max_retries=0,
    )


async def close_clients() -> None:
    """Close the connections that litellm keeps for the running loop, and forget them; those of other loops stay."""
    cache = load().in_memory_llm_clients_cache
    mine = cache.update_cache_key_with_event_loop("")
    for key in [k for k in list(cache.cache_dict) if k.endswith(mine)]:
        handler = cache.cache_dict.pop(key, None)
        client = getattr(handler, "_client", None) or getattr(handler, "client", None) or handler
        for one in (getattr(client, "_transport", None), client):
            close = getattr(one, "aclose", None) or getattr(one, "close", None)
            with contextlib.suppress(Exception):  # it may be closed already
                if inspect.isawaitable(closed := close()):
                    await closed
