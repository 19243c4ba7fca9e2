"""Exactly one request to a real LLM through litellm, and its typed outcome (lesson 11)."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

from .llm_agents import LIMITS, SECRET, Agent, printable
from .llm_prices import cost_of
from .pool import Message
from .roles import PROMPTS, Role

CHARACTERS_A_TOKEN = 16  # a reply longer than max_tokens times this is cut: no tokenizer's mean comes near it
LONGEST = 1_000_000  # characters, where no max_tokens is set
GRACE = 0.5  # seconds for a cancelled request to leave, within its time
MOST_TOKENS = 10**9  # a usage beyond is no usage
# HTTP errors after which nothing is paid. Not 408, 499, 502, 504, 52x: the model may have answered a gateway that left.
FREE = {*range(400, 500), 500, 501, 503, 529} - {408, 499}
_SECRET_ENV = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    kind: answered, length (cut off; usable if there is a text), empty, filtered, refused (the request itself is at
    fault), timed_out or failed. text: None unless it can be used. usage: empty if the server reported none that makes
    sense. cost: None = unknown. model: the name the server returned. free: nothing was sent, or an HTTP error of `FREE`
    came back, so nothing was paid. fatal: no later request to this agent can succeed; `error` then says what to do.
    """

    kind: str
    text: str | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    finish_reason: str = ""
    model: str = ""
    seconds: float = 0.0
    error: str = ""
    retryable: bool = False
    retry_after: float | None = None
    free: bool = False
    fatal: bool = False

    @property
    def usable(self) -> bool:
        return self.text is not None


@cache
def load() -> Any:
    """litellm, imported at its first use (5 to 20 s): without network, telemetry or logs of what is said."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # before the import: its price table comes with it
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


def read(response: Any, agent: Agent, parameters: Mapping[str, Any], price: Sequence[float] | None) -> Outcome:
    """The outcome of a response that arrived, whatever is missing in it."""
    usage = _usage(getattr(response, "usage", None))
    common: dict[str, Any] = {
        "usage": usage, "cost": cost_of(usage, price),
        "model": printable(str(getattr(response, "model", None) or ""))[:200],
    }  # fmt: skip
    choices = getattr(response, "choices", None)
    if not choices:
        return Outcome("empty", error="the reply holds no choice", retryable=True, **common)
    message = getattr(choices[0], "message", None)
    text = getattr(message, "content", None)
    text = _clean(text) if isinstance(text, str) else ""
    reason = str(getattr(choices[0], "finish_reason", None) or "")
    common["finish_reason"] = printable(reason)[:50]
    if reason == "content_filter" or (not text.strip() and getattr(message, "refusal", None)):
        return Outcome("filtered", error="the provider's filter withheld the reply", **common)
    tokens = next((parameters[name] for name in LIMITS if name in parameters), None)
    longest = CHARACTERS_A_TOKEN * tokens if isinstance(tokens, int) else LONGEST
    if len(text) > longest:
        common["finish_reason"] = "length"
        return Outcome("length", text[:longest], error=f"cut: {len(text)} characters arrived", **common)
    if reason == "length":
        if not text.strip():
            return Outcome("length", error="max_tokens were used up before any text", **common)
        return Outcome("length", text, **common)
    if not text.strip() and not agent.model.startswith("tiny/"):  # an embedded agent may have nothing to say
        return Outcome("empty", error="the reply has no text", retryable=True, **common)
    return Outcome("answered", text, **common)


def failure(e: BaseException) -> Outcome:
    """The outcome of an exception: what may be tried again, and what can never succeed."""
    name, status = type(e).__name__, getattr(e, "status_code", None)
    headers = getattr(e, "litellm_response_headers", None) or getattr(getattr(e, "response", None), "headers", None)
    free = getattr(e, "litellm_response_headers", None) is not None  # an HTTP error came back
    statuses = {status, getattr(getattr(e, "response", None), "status_code", status)}
    free = free and statuses <= FREE  # litellm's own number and the server's
    text = re.sub(r"\s+", " ", str(e)).strip() or name
    text = re.sub(r"^litellm\.(\w+: )\1?", r"\1", text)
    if remedy := _remedy(name, status, text, e):
        return Outcome("refused", error=remedy, fatal=True, free=True)
    if name == "ContentPolicyViolationError":
        return Outcome("filtered", error=text, free=True)
    if name == "Timeout" or status == 408:
        return Outcome("timed_out", error=text, retryable=True)
    if isinstance(status, int) and 400 <= status < 500 and status not in (425, 429):
        return Outcome("refused", error=text, free=True)
    if "Invalid response object" in text:  # whole and paid, but litellm cannot read it; the next would be the same
        return Outcome("failed", error="litellm cannot read the reply: usage or content of a wrong type")
    return Outcome("failed", error=text, retryable=True, retry_after=_retry_after(headers), free=free)


def _remedy(name: str, status: Any, text: str, e: BaseException) -> str:
    """What to do where no later request can succeed, else nothing."""
    if name == "UserError":  # a key that is not set
        return text
    if name == "UnsupportedParamsError":
        return f"take the parameter out that this model does not know ({text})"
    if "LLM Provider NOT provided" in text:
        return "write its model as provider/model, e.g. openai/NAME: litellm knows no such provider"
    if status in (401, 403) or "Missing credentials" in text:
        return f"check its key and what that may use ({text})"
    if status == 402 or getattr(e, "code", None) == "insufficient_quota" or "exceeded your" in text and "quota" in text:
        return f"see to the account's credit ({text})"
    return f"check its model and api_base ({text})" if status == 404 else ""


def _usage(usage: Any) -> dict[str, int]:
    """The two counts, if they can be true: litellm puts 0 where the server reported nothing."""
    found = {n: getattr(usage, n, None) for n in ("prompt_tokens", "completion_tokens")}
    whole = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MOST_TOKENS for v in found.values())
    return found if whole and found["prompt_tokens"] > 0 else {}  # type: ignore[operator,return-value]


def _retry_after(headers: Any) -> float | None:
    """Seconds to wait, from Retry-After (seconds or a date) or retry-after-ms; None if the server does not say."""
    try:
        if (ms := headers.get("retry-after-ms")) is not None:
            seconds = float(ms) / 1000
        elif (value := headers.get("retry-after")) is None:
            return None
        else:
            try:
                seconds = float(value)
            except ValueError:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
    except (AttributeError, TypeError, ValueError, OverflowError, OSError):  # the last two: dates out of range
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _clean(text: str) -> str:
    """Text that can be stored: half surrogate pairs become question marks."""
    return str(text).encode("utf-8", "replace").decode()
