"""The checkers of lesson 11: right answers pass, typical wrong ones get a message that fits, every time."""

import hashlib
import json

import numpy as np
import pytest
from scipy.stats import norm, t

from trinity_mini import checks_llm
from trinity_mini.checks import Wrong

# ---- outcomes ----------------------------------------------------------------------------------------------


def outcome(
    status, reply, retry=(425, 429), late=(408,), strip=True, text_first=False, careful=True, last="failed", which=0,
    reason_of=lambda c: c.get("finish_reason"), message_of=lambda c: c.get("message") or {}, only_stop=False,
):  # fmt: skip
    """Right with the defaults."""
    if status is None or status in late:
        return "timed_out" if status is not None or careful else "failed"
    if status != 200:
        return last if status in retry or status >= 500 else "refused"
    if careful and not reply.get("choices"):
        return "empty"
    choice = reply["choices"][which]
    reason, text = reason_of(choice), message_of(choice).get("content")
    if text_first is True and not text:
        return "empty"
    if text_first == "both" and text and text.strip():
        return "answered"
    if reason in ("content_filter", "length"):
        return "filtered" if reason == "content_filter" else "length"
    if only_stop and reason != "stop":
        return "empty"
    return "answered" if text and (text.strip() or not strip) else "empty"


def none_is_text(status, reply):
    right = outcome(status, reply)
    return "answered" if right == "empty" and reply.get("choices") else right


# ---- pauses ------------------------------------------------------------------------------------------------


def pauses(
    asked, u, seconds, deadline, low=0.5, width=0.5, k0=0, longest=30.0, choose=max, more=0, least=0.9, count=True,
    before=False, clip=False, alone=False, cap=1e9, ends=False, tie=False,
):  # fmt: skip
    """Right with the defaults."""
    made, now = [], 0.0
    for k in range(len(asked) - 1 + more):
        now = seconds if alone else now + seconds * count
        pause = min(longest, 0.5 * 2.0 ** (k + k0)) * (low + width * u[k])
        if asked[k] is not None:
            pause = min(cap, choose(pause, asked[k]))
        at = now + pause * (not before) + seconds * ends
        if at > least * deadline or (at == least * deadline and not tie):
            return [*made, max(0.0, least * deadline - now)] if clip else made
        made.append(pause)
        now += pause
    return made


# ---- keys --------------------------------------------------------------------------------------------------


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def key(request, draw, out=("api_key", "metadata"), sort=True, message=("role", "content"), only=None, glue=None):
    """Right with the defaults."""
    kept = {k: v for k, v in request.items() if k not in out and (only is None or k in only)}
    kept["messages"] = [[m[k] for k in message] for m in request["messages"]]
    draws = list(draw) if glue is None else glue(draw)
    return sha(json.dumps([kept, draws], sort_keys=sort))


def without(value, names):
    """A request without some names, at every depth."""
    if isinstance(value, dict):
        return {k: without(v, names) for k, v in value.items() if k not in names}
    return value


def whole_messages(request, draw):
    kept = {k: v for k, v in request.items() if k not in ("api_key", "metadata")}
    return sha(json.dumps([kept, draw], sort_keys=True))


def glued(request, draw):
    rest = {k: v for k, v in request.items() if k not in ("api_key", "metadata", "messages")}
    said = "\n".join(f"{m['role']}: {m['content']}" for m in request["messages"])
    return sha(said + json.dumps([rest, list(draw)], sort_keys=True))


def in_place(request, draw):
    request.pop("api_key", None)
    return key(request, draw)


def any_order(request, draw):
    return key({**request, "messages": sorted(request["messages"], key=lambda m: m["content"])}, draw)


# ---- money -------------------------------------------------------------------------------------------------


def cost(turns, prices, scale=1e6, swap=False, parts=(1, 1), unknown=None, falsy=False, any_price=False, first=False):
    """Right with the defaults."""
    total, table = 0.0, prices
    if any_price and None in prices.values():
        return None
    for agent, usage in turns:
        price = table[turns[0][0] if first else agent]
        if not usage or price is None or (falsy == "price" and not any(price)) or (falsy and not all(usage.values())):
            if unknown is None:
                return None
            continue
        a, b = price[::-1] if swap else price
        total += (usage["prompt_tokens"] * a * parts[0] + usage["completion_tokens"] * b * parts[1]) / scale
    return (total or None) if falsy == "total" else total


def none_at_the_end(turns, prices):
    total = 0.0
    for agent, usage in turns:
        total = cost([(agent, usage)], prices)
        if total is None:
            return None
    return total


def last_decides(turns, prices):
    known = [(a, u) for a, u in turns if u and prices[a] is not None]
    return None if turns and turns[-1] not in known else cost(known, prices)


# ---- intervals ---------------------------------------------------------------------------------------------


def interval(x, n, level, q=None, ddof=1, own=1, one=0, clip=True, total=True):
    """Right with the defaults."""
    q = q(level, len(x)) if q else t.ppf((1 + level) / 2, len(x) - 1)
    half = q * np.std(x, ddof=ddof) * (1.0 if one else (1 / len(x) + own / n) ** 0.5)
    low, high = x.mean() - half, x.mean() + half
    return tuple(float(v) * (n if total else 1) for v in (x.mean(), max(0, low) if clip else low, high))


WRONG = {
    "outcome_of": [
        (lambda s, r: outcome(s, r, careful=False), "nothing whole has arrived"),
        (lambda s, r: outcome(s, r) if s != 200 or r.get("choices") != [] else r["choices"][0], "empty list"),
        (none_is_text, "content may be None"),
        (lambda s, r: outcome(s, r, strip=False), "blanks are no text"),
        (lambda s, r: outcome(s, r, text_first=True), "before you look at the text"),
        (lambda s, r: outcome(s, r, text_first="both"), "a filter has left"),
        (lambda s, r: outcome(s, r) if outcome(s, r) != "filtered" else "empty", "before you look at the text"),
        (lambda s, r: outcome(s, r) if outcome(s, r) != "length" else "answered", "was cut off"),
        (lambda s, r: outcome(s, r, which=-1), "look at the FIRST"),
        (lambda s, r: outcome(s, r, reason_of=lambda c: c["finish_reason"]), "finish_reason. may be missing"),
        (lambda s, r: outcome(s, r, reason_of=lambda c: c.get("finish_reason", "").lower()), "reason. may be None"),
        (lambda s, r: outcome(s, r, message_of=lambda c: c["message"]), "message. may be missing"),
        (lambda s, r: outcome(s, r, message_of=lambda c: c.get("message", {})), "message. may be None"),
        (lambda s, r: outcome(s, r, only_stop=True), "may be missing|other finish_reason"),
        (lambda s, r: outcome(s, r, only_stop=True, reason_of=lambda c: c.get("finish_reason") or "stop"),
         "other finish_reason"),
        (lambda s, r: outcome(s, r, retry=()), "`later`, not `never`"),
        (lambda s, r: outcome(s, r, late=()), "server's own time-out"),
        (lambda s, r: outcome(s, r, retry=(429,)), "too early"),
        (lambda s, r: "failed" if s and 400 <= s < 500 and s != 408 else outcome(s, r), "request is at fault"),
        (lambda s, r: "refused" if s and s >= 500 else outcome(s, r), "server is at fault"),
        (lambda s, r: outcome(s, r) if r.pop("model", 1) else "", "changed the reply"),
        (lambda s, r: None, "return"),
    ],
    "pauses": [
        (lambda *a: pauses(*a, low=1.0, width=0.0), "the same moment"),
        (lambda *a: pauses(*a, low=0.0, width=1.0), "HALF to all"),
        (lambda *a: pauses(*a, k0=1), "k from 0"),
        (lambda *a: pauses(*a, longest=1e9), "longer than 30 s"),
        (lambda *a: pauses(*a, choose=lambda own, asked: own), "Retry-After"),
        (lambda *a: pauses(*a, choose=lambda own, asked: own + asked), "not added"),
        (lambda *a: pauses(*a, choose=min), "The LONGER|the LONGER"),
        (lambda *a: pauses(*a, choose=lambda own, asked: asked), "ours stays"),
        (lambda *a: pauses(*a, cap=30.0), "it gets more"),
        (lambda *a: pauses(*a, more=1), "after the last attempt"),
        (lambda *a: pauses(*a, least=1e9), "begin after the deadline"),
        (lambda *a: pauses(*a, count=False), "attempts take time"),
        (lambda *a: pauses(*a, least=1.0), "a tenth"),
        (lambda *a: pauses(*a, before=True), "BEGIN"),
        (lambda *a: pauses(*a, alone=True), "add up"),
        (lambda *a: pauses(*a, ends=True), "may END later"),
        (lambda *a: pauses(*a, tie=True), "exactly AT"),
        (lambda *a: pauses(*a, clip=True), "not shortened"),
        (lambda *a: pauses(*a)[0], "list"),
        (lambda *a: np.array(pauses(*a)), "return a list of numbers"),
        (lambda *a: pauses(*a) or None, "one attempt"),
    ],
    "cache_key": [
        (lambda r, d: key(r, d, sort=False), "order of a dictionary"),
        (lambda r, d: key(r, d, out=("metadata",)), "API key decides no reply"),
        (lambda r, d: key(r, d, out=("api_key",)), "metadata decide no reply"),
        (whole_messages, "ids and dates"),
        (lambda r, d: key(r, d, out=("api_key", "metadata", "model")), "another model"),
        (lambda r, d: key(r, d, message=("role",)), "another content"),
        (lambda r, d: key(r, d, message=("content",)), "role of a message"),
        (any_order, "order of the messages"),
        (lambda r, d: key(json.loads(json.dumps(r).lower()), d), "capital letters count"),
        (lambda r, d: key(without(r, ("metadata",)), d), "metadata go at the top level"),
        (lambda r, d: key(without(r, ("api_key",)), d), "api_key goes at the top level"),
        (lambda r, d: key(r, d, out=("api_key", "metadata", "temperature")), "temperature is missing"),
        (lambda r, d: key(r, d, out=("api_key", "metadata", "max_tokens")), "max_tokens is missing"),
        (lambda r, d: key(r, d, only=("model", "temperature", "max_tokens", "extra_body")), "EVERY other entry"),
        (lambda r, d: key(r, d, out=("api_key", "metadata", "extra_body")), "extra_body's entries"),
        (lambda r, d: key(r, ()), "the draw is missing"),
        (lambda r, d: key(r, d, glue=sorted), "order of the draw"),
        (lambda r, d: key(r, d, glue=lambda d: sum(x * 1000**i for i, x in enumerate(d))), "no draw is not"),
        (lambda r, d: key(r, d, glue=lambda d: "".join(map(str, d))), r"\(1, 23\)"),
        (glued, "use JSON"),
        (lambda r, d: str(hash(key(r, d))), "hash.. differs in each process|64 hexadecimal"),
        (lambda r, d: hashlib.md5(key(r, d).encode()).hexdigest(), "64 hexadecimal"),
        (lambda r, d: hashlib.sha256(key(r, d).encode()).digest(), "return a text"),
        (in_place, "changed the request"),
        (lambda r, d: None, "return"),
        (lambda r, d: sha(json.dumps(r["nothing"])), "KeyError.*Hint"),
    ],
    "transcript_cost": [
        (lambda x, p: cost(x, p, scale=1), "for a MILLION"),
        (lambda x, p: cost(x, p, scale=1000), "not for a thousand"),
        (lambda x, p: cost(x, p, swap=True), "first price is for the prompt"),
        (lambda x, p: cost(x, p, parts=(0, 1)), "prompt costs, too"),
        (lambda x, p: cost(x, p, parts=(1, 0)), "reply costs, too"),
        (lambda x, p: cost(x, p, first=True), "its own agent's price"),
        (none_at_the_end, "add them all up"),
        (lambda x, p: cost(x, p, falsy="price"), "price of 0 is a known price"),
        (lambda x, p: cost(x, p, falsy="total"), "price of 0 is a known price"),
        (lambda x, p: cost(x, p, falsy="usage"), "0 tokens were reported"),
        (lambda x, p: cost(x, p, any_price=True), "where the agent has not spoken"),
        (lambda x, p: cost(x, p) if x else None, "without a turn"),
        (lambda x, p: cost(x, p, unknown=0), "never 0"),
        (last_decides, "ONE unknown turn"),
        (lambda x, p: cost([(a, u) for a, u in x if u or p[a] is None or any(p[a])], p), "even of a free agent"),
    ],
    "total_interval": [
        (lambda x, n, v: interval(x, n, v, total=False), "one episode"),
        (lambda x, n, v: interval(x, n, v, q=lambda v, k: norm.ppf((1 + v) / 2)), "Student's t"),
        (lambda x, n, v: interval(x, n, v, q=lambda v, k: t.ppf((1 + v) / 2, k)), "n - 1"),
        (lambda x, n, v: interval(x, n, v, ddof=0), "ddof=1"),
        (lambda x, n, v: interval(x, n, v, q=lambda v, k: t.ppf(v, k - 1)), r"\(1 \+ level\) / 2"),
        (lambda x, n, v: interval(x, n, v, one=1), "ONE episode"),
        (lambda x, n, v: interval(x, n, v, own=0), "own episodes vary"),
        (lambda x, n, v: interval(x, n, v, clip=False), "never below 0"),
        (lambda x, n, v: np.array(interval(x, n, v)), "a tuple of three numbers"),
        (lambda x, n, v: interval(x, n, v)[1:], "length 2"),
        (lambda x, n, v: None, "return"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
def test_a_wrong_answer_gets_its_message(name, wrong, says):
    for _ in range(20):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_llm, f"check_{name}")(wrong)
