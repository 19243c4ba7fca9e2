"""The checkers of lesson 11, real models. Each draws fresh random inputs.

Oracles: outcomes and keys are known by construction, pauses are cut from a numpy table, money is counted in fractions,
and the interval is scipy's.
"""

from __future__ import annotations

import copy
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.stats import norm, t

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20
FIRST, LONGEST, LEAST = 0.5, 30.0, 0.1  # of exercise 11.2, as in llm_pool


def _with_hint(fn: Callable, *args: Any, what: str, hint: str) -> Any:
    """What fn gives; if it stops, the message has the case's hint, too."""
    try:
        return called(fn, *args, what=what)
    except Wrong as e:
        raise Wrong(f"{e} Hint: {hint}") from e


def _words(rng: np.random.Generator, n: int = 6) -> str:
    return "".join(rng.choice(list("abcdefghij"), n))


# ---- 11.1 ------------------------------------------------------------------------------------------------------------


def _reply(content: Any, reason: str, more: Mapping[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], **more}


def _cases(rng: np.random.Generator) -> list[tuple[str, int | None, dict[str, Any], str]]:
    """(kind, status, reply, hint) of each way to answer, in an order in which a mistake meets its own hint first."""
    text = _words(rng)
    more = {"model": _words(rng), "usage": {"prompt_tokens": int(rng.integers(1, 99)), "completion_tokens": 3}}
    error = {"error": {"message": _words(rng)}}
    blank = str(rng.choice([" ", "\n", "\t \n"]))
    no_content: dict[str, Any] = _reply(None, "stop", more)
    del no_content["choices"][0]["message"]["content"]

    def choice(**entries: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, **entries}], **more}

    said = {"role": "assistant", "content": text}
    two = _reply(text, "stop", more)
    two["choices"] += _reply(None, "content_filter", more)["choices"]
    return [
        ("answered", 200, _reply(text, "stop", more), "status 200 and a text: it is answered."),
        ("answered", 200, _reply(f" {text}\n", "stop", more), "blanks around a text do no harm."),
        ("answered", 200, two, "of several choices look at the FIRST."),
        ("answered", 200, choice(message=said), "`finish_reason` may be missing: choice.get('finish_reason')."),
        ("answered", 200, choice(message=said, finish_reason=None), "`finish_reason` may be None: the text decides."),
        ("answered", 200, _reply(text, "tool_calls", more), "with any other finish_reason the text decides."),
        ("timed_out", None, {}, "status None: nothing whole has arrived in time."),
        ("empty", 200, {"choices": [], **more}, "`choices` may be an empty list: look before you take its first."),
        ("empty", 200, {**more}, "`choices` may be missing: reply.get('choices')."),
        ("empty", 200, _reply(None, "stop", more), "the content may be None: that is no text."),
        ("empty", 200, no_content, "`content` may be missing: message.get('content')."),
        ("empty", 200, choice(finish_reason="stop"), "`message` may be missing: choice.get('message') or {}."),
        ("empty", 200, choice(message=None, finish_reason="stop"), "`message` may be None: use `or {}`."),
        ("empty", 200, _reply("", "stop", more), "an empty string is no text."),
        ("empty", 200, _reply(blank, "stop", more), "blanks are no text: look at content.strip()."),
        ("filtered", 200, _reply(None, "content_filter", more), "look at finish_reason before you look at the text."),
        ("filtered", 200, _reply(text, "content_filter", more), "what a filter has left of a text is not to be used."),
        ("length", 200, _reply(text, "length", more), "finish_reason length: the text was cut off."),
        ("length", 200, _reply("", "length", more), "the tokens were used up before any text: length, not empty."),
        ("failed", 429, error, "429 says `later`, not `never`: it is worth another try."),
        ("timed_out", 408, error, "408 is the server's own time-out."),
        ("failed", 425, error, "425 says `too early`: it is worth another try."),
        ("refused", int(rng.choice([400, 401, 403, 404, 413, 422])), error, "other 4xx: the request is at fault."),
        ("failed", int(rng.choice([500, 502, 503, 504, 529])), error, "5xx: the server is at fault, not the request."),
    ]


def check_outcome_of(fn: Callable) -> None:
    """Exercise 11.1: outcome_of(status, reply) -> kind, on replies that were built to be of that kind."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        for kind, status, reply, hint in _cases(rng):
            shown = f"outcome_of({status}, {str(reply)[:140]})"
            given = copy.deepcopy(reply)
            found = _with_hint(fn, status, given, what=shown, hint=hint)
            same(found, kind, shown, hint)
            if given != reply:
                raise Wrong("outcome_of has changed the reply it was given. Hint: read it only.")
    passed("outcome_of", ROUNDS)


# ---- 11.2 ------------------------------------------------------------------------------------------------------------


def _pauses(
    asked: np.ndarray, u: np.ndarray, seconds: float, deadline: float, *, low: float = 0.5, width: float = 0.5,
    from_k: int = 0, longest: float = LONGEST, ask: str = "max", cut: str = "begin", last: int = 0, clip: bool = False,
) -> list[float]:  # fmt: skip
    """The pauses; the keywords make the mistakes. asked: NaN where the server asks for nothing."""
    k = np.arange(len(asked) - 1 + last)
    own = np.minimum(longest, FIRST * 2.0 ** (k + from_k)) * (low + width * u[k])
    wanted = asked[k]
    wait = {
        "max": np.fmax(own, wanted), "ignore": own, "add": own + np.nan_to_num(wanted), "min": np.fmin(own, wanted),
        "instead": np.where(np.isnan(wanted), own, wanted), "capped": np.fmin(LONGEST, np.fmax(own, wanted)),
    }[ask]  # fmt: skip
    begin = np.cumsum(wait + seconds)
    limit, at = {
        "begin": ((1 - LEAST) * deadline, begin), "end": ((1 - LEAST) * deadline, begin + seconds),
        "whole": (deadline, begin), "never": (np.inf, begin),
        "no seconds": ((1 - LEAST) * deadline, np.cumsum(wait)), "before": ((1 - LEAST) * deadline, begin - wait),
        "one": ((1 - LEAST) * deadline, wait + seconds),
    }[cut]  # fmt: skip
    n = int(np.argmax(at >= limit)) if (at >= limit).any() else len(k)
    kept = wait[:n].tolist()
    if clip and n < len(k):
        kept.append(max(0.0, (1 - LEAST) * deadline - float(begin[n] - wait[n])))
    return kept


_SHAPE_MISTAKES: dict[str, dict[str, Any]] = {
    "without chance all callers come back at the same moment: draw from half to all of it, 0.5 + 0.5 * u[k].": {
        "low": 1.0, "width": 0.0},
    "the draw is from HALF to all of the doubled pause, not from nothing.": {"low": 0.0, "width": 1.0},
    "the first pause is half a second (times its draw), 0.5 * 2**k with k from 0.": {"from_k": 1},
    "no pause of ours is longer than 30 s, before the draw.": {"longest": np.inf},
    "the server has said how long to wait (Retry-After): wait at least that.": {"ask": "ignore"},
    "our pause and the server's wish are not added: the longer of the two.": {"ask": "add"},
    "the LONGER of our pause and the server's wish.": {"ask": "min"},
    "where the server asks for less than our own pause, ours stays: the longer of the two.": {"ask": "instead"},
    "the 30 s are a limit for our own pauses; where the server asks for more, it gets more.": {"ask": "capped"},
    "after the last attempt nothing follows, so there is nothing to wait for.": {"last": 1},
}  # fmt: skip
_CUT_MISTAKES: dict[str, dict[str, Any]] = {
    "a retry that would begin after the deadline is not made, and its pause neither.": {"cut": "never"},
    "attempts take time, too: `seconds` each.": {"cut": "no seconds"},
    "a tenth of the deadline must be left when a retry begins: compare with 0.9 * deadline.": {"cut": "whole"},
    "compare the time at which the retry would BEGIN, this pause included.": {"cut": "before"},
    "the deadline is for the whole call: add up attempts and pauses.": {"cut": "one"},
    "a pause is not shortened: if the retry would begin too late, give up at once.": {"clip": True},
}
# Differs where the limit is met within an attempt, "before" where it is met within a pause: not with the same inputs.
_END_MISTAKES = {"a retry has to begin before 0.9 * deadline; it may END later.": {"cut": "end"}}


def check_pauses(fn: Callable) -> None:
    """Exercise 11.2: pauses(retry_after, u, seconds, deadline) -> list of seconds, against a table cut by numpy."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        for mistakes in (_SHAPE_MISTAKES, _CUT_MISTAKES, _END_MISTAKES):
            asked, u, seconds, deadline = _drawn(rng, mistakes)
            wanted = _pauses(asked, u, seconds, deadline)
            wrong = {hint: _pauses(asked, u, seconds, deadline, **change) for hint, change in mistakes.items()}
            given = [None if np.isnan(a) else float(a) for a in asked], u.tolist()
            found = called(fn, list(given[0]), list(given[1]), seconds, deadline, what="pauses")
            otherwise = "pause k is the longer of retry_after[k] and min(30, 0.5 * 2**k) * (0.5 + 0.5 * u[k])."
            wrong = {"return a list of numbers.": wanted, **wrong}  # an array of the right ones
            same(found, wanted, "pauses(...)", recognised(found, wrong, otherwise))
    found = called(fn, [None] * 4, [1.0] * 4, 1.5, 5.0, what="pauses")
    tie = "a retry that would begin exactly AT 0.9 * deadline does not begin before it: >=."
    same(found, [0.5], "pauses([None] * 4, [1.0] * 4, 1.5, 5.0)", tie)
    if (found := called(fn, [None], [0.5], 1.0, 60.0, what="pauses")) != []:
        raise Wrong(f"pauses(...) of one attempt is {found!r}, and [] is wanted. Hint: one attempt has no retry.")
    passed("pauses", 3 * ROUNDS)


def _drawn(rng: np.random.Generator, mistakes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Inputs for which the right pauses and those of each mistake all differ."""
    shape = mistakes is _SHAPE_MISTAKES
    while True:
        n = 10 if shape else 60  # so many that each way to cut ends elsewhere
        deadline = 1e4 if shape else float(rng.uniform(700, 900))
        asked, u = np.full(n, np.nan), rng.uniform(0.1, 0.9, n)
        asked[1], asked[3] = rng.uniform(2.0, 4.0), rng.uniform(0.05, 0.3)  # more and less than our own
        asked[7], asked[n - 1] = rng.uniform(35, 50), rng.uniform(1, 2)
        asked[n - 4] = asked[n - 4] if shape else deadline  # beyond it by itself
        seconds = float(rng.uniform(3.0, 6.0))
        lists = [_pauses(asked, u, seconds, deadline, **change) for change in ({}, *mistakes.values())]
        if len({tuple(np.round(x, 3)) for x in lists}) == len(lists):
            return asked, u, seconds, deadline


# ---- 11.3 ------------------------------------------------------------------------------------------------------------

Request = dict[str, Any]


def _request(rng: np.random.Generator) -> Request:
    return {
        "model": f"openai/{_words(rng)}",
        "messages": [{"role": "system", "content": _words(rng)}, {"role": "user", "content": _words(rng)}],
        "temperature": float(rng.uniform(0, 1)),
        "max_tokens": int(rng.integers(100, 5000)),
        "extra_body": {"top_k": int(rng.integers(1, 50)), "template": {"thinking": True, "depth": 2}},
        "api_key": _words(rng, 12),
        "metadata": {"run": _words(rng)},
    }


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _reversed(v) for k, v in reversed(value.items())}
    return [_reversed(v) for v in value] if isinstance(value, list) else value


def _pairs(rng: np.random.Generator) -> list[tuple[bool, Request, tuple, Request, tuple, str]]:
    """(same key?, request, draw, request, draw, hint)."""
    a, draw = _request(rng), tuple(rng.permutation(9)[:2].tolist())

    def changed(*path: Any, to: Any) -> Request:
        b = copy.deepcopy(a)
        at = b
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to
        return b

    def told(*texts: str) -> Request:
        return {**a, "messages": [{"role": "user", "content": text} for text in texts]}

    w, extra = _words(rng), copy.deepcopy(a)
    for i, m in enumerate(extra["messages"]):
        m |= {"id": _words(rng), "created": i}
    quoted = [told(f'{w}", "{w}'), told(w, w)], [told(f"{w}\nuser: {w}"), told(w, w)], [told(w + w, w), told(w, w + w)]
    return [
        (True, a, draw, copy.deepcopy(a), draw, "the same request gives the same key each time."),
        (True, a, draw, _reversed(a), draw, "the order of a dictionary means nothing: json.dumps with sort_keys=True."),
        (True, a, draw, {**a, "api_key": _words(rng, 12)}, draw, "the API key decides no reply: leave it out."),
        (True, a, draw, {k: v for k, v in a.items() if k != "api_key"}, draw, "without an API key it is the same."),
        (True, a, draw, {**a, "metadata": {"run": _words(rng), "by": "me"}}, draw, "metadata decide no reply."),
        (True, a, draw, extra, draw, "of a message, role and content decide; ids and dates do not."),
        (False, a, draw, {**a, "model": a["model"] + "2"}, draw, "another model gives another reply."),
        (False, a, draw, changed("messages", 1, "content", to=_words(rng, 7)), draw, "another content, another reply."),
        (False, a, draw, changed("messages", 1, "role", to="assistant"), draw, "the role of a message is missing."),
        (False, told(w), draw, told(w.upper()), draw, "capital letters count: keep each text as it is."),
        (False, a, draw, {**a, "messages": a["messages"][::-1]}, draw, "the order of the messages matters."),
        (False, a, draw, {**a, "temperature": a["temperature"] + 0.5}, draw, "the temperature is missing."),
        (False, a, draw, {**a, "max_tokens": a["max_tokens"] + 1}, draw, "max_tokens is missing."),
        (False, a, draw, {**a, _words(rng): 1}, draw, "EVERY other entry is a parameter and may decide."),
        (False, a, draw, changed("extra_body", "template", "thinking", to=False), draw, "extra_body's entries, too."),
        (False, a, draw, changed("extra_body", "metadata", to=w), draw, "metadata go at the top level only."),
        (False, a, draw, changed("extra_body", "api_key", to=w), draw, "api_key goes at the top level only."),
        (False, a, draw, a, (draw[0], draw[1] + 1), "the draw is missing: a fresh sample is a call of its own."),
        (False, a, draw, a, draw[::-1], "the order of the draw's numbers counts."),
        (False, a, (), a, (0,), "no draw is not draw (0,)."),
        (False, a, (1, 23), a, (12, 3), "(1, 23) and (12, 3) are two draws: keep what separates the numbers."),
        *((False, x, draw, y, draw, "texts that are glued together hide where one ends: use JSON.") for x, y in quoted),
    ]  # fmt: skip


def check_cache_key(fn: Callable) -> None:
    """Exercise 11.3: cache_key(request, draw) -> 64 hexadecimal digits, on pairs known to be one call or two."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        for alike, a, first, b, second, hint in _pairs(rng):
            keys = []
            for request, draw in ((a, first), (b, second)):
                given = copy.deepcopy(request)
                key = _with_hint(fn, given, draw, what="cache_key", hint=hint)
                same(key, str(key), "cache_key(...)", "return a text.")
                if not re.fullmatch(r"[0-9a-f]{64}", key):
                    raise Wrong(
                        f"cache_key(...) is {key[:70]!r}, and 64 hexadecimal digits are wanted. Hint: "
                        "hashlib.sha256(text.encode()).hexdigest(); Python's own hash() differs in each process."
                    )
                if given != request:
                    raise Wrong("cache_key has changed the request it was given. Hint: build a new dictionary.")
                keys.append(key)
            if (keys[0] == keys[1]) != alike:
                changed = _differing(a, b) or f"draw {first} and {second}"
                verdict = "two keys for one and the same call" if alike else "one key for two different calls"
                raise Wrong(f"cache_key gives {verdict} ({changed}). Hint: {hint}")
    passed("cache_key", ROUNDS)


def _differing(a: Request, b: Request) -> str:
    names = [k for k in {**a, **b} if a.get(k) != b.get(k)]
    return ", ".join(f"{k}: {str(a.get(k))[:70]} / {str(b.get(k))[:70]}" for k in names)


# ---- 11.4 ------------------------------------------------------------------------------------------------------------


def _money(turns: Sequence[tuple[str, Mapping[str, int]]], prices: Mapping[str, Any], scale: int = 10**6) -> float:
    """Exact, for turns whose usages and prices are known."""
    total = Fraction(0)
    for agent, usage in turns:
        price_in, price_out = (Fraction(p) for p in prices[agent])
        total += usage["prompt_tokens"] * price_in + usage["completion_tokens"] * price_out
    return float(total / scale)


def check_transcript_cost(fn: Callable) -> None:
    """Exercise 11.4: transcript_cost(turns, prices) -> money or None, against sums of fractions."""
    rng = np.random.default_rng()

    def usage() -> dict[str, int]:  # at prices of 1 to 5 and 6 to 20 the prompt always costs more than the reply
        return {"prompt_tokens": int(rng.integers(2000, 5000)), "completion_tokens": int(rng.integers(10, 90))}

    def ask(turns: list, prices: dict) -> Any:
        return called(fn, copy.deepcopy(turns), dict(prices), what="transcript_cost")

    for _ in range(ROUNDS):
        while True:  # until no two mistakes give nearly the same
            names = ("ada", "bo", "cy")
            prices: dict[str, Any] = {n: (float(rng.uniform(1, 5)), float(rng.uniform(6, 20))) for n in names}
            turns = [(str(n), usage()) for n in rng.permutation(["ada", "bo", "cy", "ada"])]
            only = {n: [(a, {**u, n: 0}) for a, u in turns] for n in ("prompt_tokens", "completion_tokens")}
            mistakes = {
                "prices are for a MILLION tokens.": _money(turns, prices, 1),
                "prices are for a million tokens, not for a thousand.": _money(turns, prices, 1000),
                "the first price is for the prompt, the second for the reply.": _money(
                    turns, {n: p[::-1] for n, p in prices.items()}
                ),
                "the prompt costs, too, in every turn again.": _money(only["prompt_tokens"], prices),
                "the reply costs, too.": _money(only["completion_tokens"], prices),
                "each turn has its own agent's price.": _money([(turns[0][0], u) for _, u in turns], prices),
                "this is one turn: add them all up.": _money(turns[-1:], prices),
            }
            costs = [float(m) for m in (*mistakes.values(), _money(turns, prices))]
            if np.diff(np.log(np.sort(costs))).min() > 0.01:
                break
        found = ask(turns, prices)
        hint = recognised(found, mistakes, "tokens times price, over a million, added up over the turns.")
        same(found, _money(turns, prices), "transcript_cost(...)", hint, 1e-9)

        free = {**prices, "dee": (0.0, 0.0)}
        for case, table, hint in (
            ([("dee", usage())], free, "a price of 0 is a known price: the cost is 0.0, not unknown."),
            ([*turns, ("dee", usage())], free, "a free agent adds nothing, and its price is known."),
            ([("ada", {**usage(), "completion_tokens": 0})], prices, "0 tokens were reported: that is known."),
            (turns, {**prices, "eli": None}, "an unknown price does no harm where the agent has not spoken."),
            ([], prices, "without a turn nothing is paid: 0.0."),
        ):
            same(ask(case, table), _money(case, table), f"transcript_cost of {len(case)} turns", hint, 1e-9)
        for case, table, hint in (
            ([*turns, ("ada", {})], prices, "a usage that was not reported is unknown, never 0."),
            ([("dee", {})], free, "without a usage nothing is known, even of a free agent."),
            ([("ada", {}), *turns], prices, "ONE unknown turn makes the sum unknown, wherever it stands."),
            ([*turns, ("eli", usage())], {**prices, "eli": None}, "a price that is None is unknown, never 0."),
        ):
            found = ask(case, table)
            if found is not None:
                raise Wrong(f"transcript_cost(...) is {found!r}, and None is wanted. Hint: {hint}")
    passed("transcript_cost", ROUNDS)


# ---- 11.5 ------------------------------------------------------------------------------------------------------------


def check_total_interval(fn: Callable) -> None:
    """Exercise 11.5: total_interval(pilot, episodes, level) -> (total, low, high), against scipy's t.interval."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        wide = i % 2 == 1  # so wide that the lower end would be below 0
        while True:
            n, episodes = int(rng.integers(5, 9)), int(rng.integers(60, 100))
            level = float(rng.choice([0.8, 0.9, 0.95]))
            if all(_apart(n, episodes, x) for x in (level, 0.999)):
                break
        spread = rng.normal(size=n)
        spread = (spread - spread.mean()) / spread.std(ddof=1)
        spread = np.abs(spread + 1) ** 3 if wide else spread
        pilot = (spread + 0.001 if wide else 10 + spread) * float(rng.uniform(0.5, 2))

        def interval(
            quantile: float, sd: float, n: int = n, one: float = 1.0, episodes: int = episodes, x: np.ndarray = pilot
        ) -> tuple[float, float, float]:
            half = quantile * episodes * sd * (1 / n + one / episodes) ** 0.5
            mean = float(x.mean())
            return episodes * mean, max(0.0, episodes * mean - half), episodes * mean + half

        sd, both = statistics.stdev(pilot), (1 + level) / 2
        mean, scale = statistics.fmean(pilot), sd * (1 / n + 1 / episodes) ** 0.5
        low, high = (episodes * x for x in t.interval(level, n - 1, loc=mean, scale=scale))
        q = float(t.ppf(both, n - 1))
        if wide and low >= 0:
            level = 0.999
            both = (1 + level) / 2
            q = float(t.ppf(both, n - 1))
            low, high = (episodes * x for x in t.interval(level, n - 1, loc=mean, scale=scale))
        found = called(fn, pilot.copy(), episodes, level, what="total_interval")
        total = episodes * mean
        each = (mean, max(0.0, low / episodes), high / episodes)
        mistakes: dict[str, Any] = {
            "this is the cost of one episode: the run has `episodes` of them.": each,
            f"{n} episodes are few: Student's t with n - 1 degrees of freedom, not the normal distribution.": interval(
                float(norm.ppf(both)), sd
            ),
            "degrees of freedom are n - 1.": interval(float(t.ppf(both, n)), sd),
            "divide by n - 1 in the standard deviation (ddof=1).": interval(q, statistics.pstdev(pilot)),
            "half of what is left out lies above: the quantile of (1 + level) / 2.": interval(
                float(t.ppf(level, n - 1)), sd
            ),
            "this is the spread of ONE episode: the mean of n has sd / sqrt(n).": (
                total, max(0.0, total - q * episodes * sd), total + q * episodes * sd
            ),
            "the run's own episodes vary, too: 1 / n + 1 / episodes.": interval(q, sd, one=0.0),
            "return a tuple of three numbers, total, low, high.": (total, max(0.0, low), high),  # not an array
            "the lower end is never below 0: nobody pays you.": (total, low, high),
        }  # fmt: skip
        hint = recognised(found, mistakes, "episodes * (mean ± t * sd * sqrt(1 / n + 1 / episodes)).")
        same(found, (total, max(0.0, low), high), "total_interval(...)", hint, 1e-7)
    passed("total_interval", ROUNDS)


def _apart(n: int, episodes: int, level: float) -> bool:
    """Whether the half-widths of all mistakes of exercise 11.5 differ by half a per cent or more."""
    both = (1 + level) / 2
    q, whole = t.ppf(both, n - 1), (1 / n + 1 / episodes) ** 0.5
    widths = [norm.ppf(both) * whole, t.ppf(both, n) * whole, t.ppf(level, n - 1) * whole, q * n**-0.5, q * whole, q]
    widths.append(q * whole * (1 - 1 / n) ** 0.5)
    return bool(np.diff(np.log(np.sort(widths))).min() > 0.005)
