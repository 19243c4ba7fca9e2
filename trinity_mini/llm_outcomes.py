"""What became of a request to a real LLM: of a response that arrived, of an exception (lesson 11)."""

from __future__ import annotations

import math
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from .llm_agents import LIMITS, Agent, printable
from .llm_prices import cost_of

CHARACTERS_A_TOKEN = 16  # a reply longer than max_tokens times this is cut: no tokenizer's mean comes near it
LONGEST = 1_000_000  # characters, where no max_tokens is set
MOST_TOKENS = 10**9  # a usage beyond is no usage
# HTTP errors after which nothing is paid. Not 408, 499, 502, 504, 52x: the model may have answered a gateway that left.
FREE = {*range(400, 500), 500, 501, 503, 529} - {408, 499}
# Types of exceptions before a connection stood: of httpx, of aiohttp, of the system.
UNREACHABLE = {
    "ConnectError", "ConnectTimeout", "ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError",
    "ClientConnectorCertificateError", "ClientProxyConnectionError", "ConnectionRefusedError", "gaierror",
}  # fmt: skip
UNREADABLE = (KeyError, TypeError, AttributeError, IndexError)  # of a provider's reader in litellm
_WAIT = re.compile(r"""(?:retry in|try again in|retryDelay["']?:\s*["']?)\s*(\d{1,6}(?:\.\d{1,9})?)\s*(ms|s)\b""", re.I)


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    kind: answered, length (cut off; usable if there is a text), empty, filtered, refused (the request itself is at
    fault), timed_out or failed. text: None unless it can be used. usage: empty if the server reported none that makes
    sense. cost: None = unknown. model: the name the server returned. free: nothing was sent, or an HTTP error of `FREE`
    came back, so nothing was paid. unreachable: there was no connection. fatal: no later request to this agent can
    succeed; `error` then says what to do. status: of the HTTP error, where there was one.
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
    unreachable: bool = False
    fatal: bool = False
    status: int | None = None

    @property
    def usable(self) -> bool:
        return self.text is not None


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
        greedy = parameters.get("temperature") == 0  # it would say nothing again, and be paid again
        return Outcome("empty", error="the reply has no text", retryable=not greedy, **common)
    return Outcome("answered", text, **common)


def failure(e: BaseException) -> Outcome:
    """The outcome of an exception: what may be tried again, and what can never succeed."""
    name, status = type(e).__name__, getattr(e, "status_code", None)
    status = status if isinstance(status, int) else None
    headers = getattr(e, "litellm_response_headers", None) or getattr(getattr(e, "response", None), "headers", None)
    came = getattr(e, "litellm_response_headers", None) is not None  # an HTTP error came back
    statuses = {status, getattr(getattr(e, "response", None), "status_code", status)}
    free = came and statuses <= FREE  # litellm's own number and the server's
    text = re.sub(r"\s+", " ", str(e).split("Traceback (most recent")[0]).strip() or name
    text = re.sub(r"^litellm\.(\w+: )\1?", r"\1", text)
    known = {"status": status if came else None}
    causes = _causes(e)
    if not came and (met := [c for c in causes if type(c).__name__ in UNREACHABLE]):
        text = f"{text} {met[-1]}"
        if any(isinstance(c, ssl.SSLCertVerificationError) for c in causes):
            return Outcome("refused", error=f"set SSL_CERT_FILE to a file with its certificate ({text})", fatal=True)
        return Outcome("failed", error=text, retryable=True, free=True, unreachable=True)
    if status == 403 and re.search(r"moderation|flagged", text):
        return Outcome("filtered", error=text, free=True, **known)
    if remedy := _remedy(name, status, text, e):
        return Outcome("refused", error=remedy, fatal=True, free=True, **known)
    if name == "ContentPolicyViolationError":
        return Outcome("filtered", error=text, free=True, **known)
    if name == "Timeout" or status == 408:
        return Outcome("timed_out", error=text, retryable=True, **known)
    if status is not None and 400 <= status < 500 and status not in (425, 429):
        return Outcome("refused", error=text, free=True, **known)
    unreadable = name == "APIConnectionError" and isinstance(causes[1:2][0] if causes[1:] else None, UNREADABLE)
    if "Invalid response object" in text or unreadable:  # whole and paid; the next would be the same
        return Outcome("failed", error="litellm cannot read the reply: something in it is missing or of a wrong type")
    return Outcome("failed", error=text, retryable=True, retry_after=_retry_after(headers, text), free=free, **known)


def _causes(e: BaseException | None) -> list[BaseException]:
    """An exception and what led to it, the nearest first."""
    found: list[BaseException] = []
    while e is not None and len(found) < 20:
        found.append(e)
        e = e.__cause__ or e.__context__
    return found


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
    # Not any quota: that of a minute is back in a minute.
    said = [text, *(str(getattr(c, name, "")) for c in _causes(e) for name in ("code", "body"))]
    spent = any("insufficient_quota" in s for s in said)
    if status == 402 or spent or "credit balance" in text:
        return f"see to the account's credit ({text})"
    return f"check its model and api_base ({text})" if status == 404 else ""


def _usage(usage: Any) -> dict[str, int]:
    """The two counts, if they can be true: litellm puts 0 where the server reported nothing.

    Some servers leave a model's thoughts out of the completion's count, but not out of the total, which is paid.
    """
    found = {n: getattr(usage, n, None) for n in ("prompt_tokens", "completion_tokens")}
    if not all(map(_count, found.values())) or found["prompt_tokens"] == 0:
        return {}
    total = getattr(usage, "total_tokens", None)
    if _count(total):
        found["completion_tokens"] = max(found["completion_tokens"], total - found["prompt_tokens"])
    return found


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS


def _retry_after(headers: Any, text: str = "") -> float | None:
    """Seconds to wait, from Retry-After (seconds or a date), retry-after-ms, or the error's own words, else None."""
    try:
        if (ms := headers.get("retry-after-ms")) is not None:
            seconds = float(ms) / 1000
        elif (value := headers.get("retry-after")) is not None:
            try:
                seconds = float(value)
            except ValueError:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
        elif found := _WAIT.search(text):
            seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
        else:
            return None
    except (AttributeError, TypeError, ValueError, OverflowError, OSError):  # the last two: dates out of range
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _clean(text: str) -> str:
    """Text that can be stored: half surrogate pairs become question marks."""
    return str(text).encode("utf-8", "replace").decode()
