"""What a planned run would cost, from a handful of pilot episodes (lesson 11).

Episodes differ heavily in length and price, so a mean over eight of them says little without its interval. The
amounts of an episode are taken as lognormal where the agent was used, and the uncertainty of both parameters is
carried through to the total of the run (generalised pivots, Krishnamoorthy and Mathew 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from .episode import Episode, Turn
from .files import UserError

LEAST = 5  # pilot episodes
DRAWS = 8_000
TOTAL = "all"


def estimate(
    pilot: Sequence[Episode], episodes: int, agents: Sequence[str], level: float = 0.9, max_turns: int = 5
) -> pd.DataFrame:
    """Calls, tokens and cost of a run of `episodes` episodes, a row for each agent and one for all.

    pilot: episodes played with the planned pool and untrained coordinator. The interval holds for *its* policy:
    in training the choice of agents and the number of turns drift, so `worst` is the cost if every episode took
    max_turns calls, each as dear as the agent's dearest in the pilot ("all": as the dearest agent's).

    Returns: columns agent, calls, prompt_tokens, completion_tokens, tokens_low, tokens_high, cost, low, high, worst;
    money in the unit of the prices. What rests on an unknown price or usage is None, as is the upper end for an agent
    that the pilot never met. Episodes with a lost call are left out: what is paid for lost calls comes on top.
    Raises: UserError for fewer than 5 whole pilot episodes or numbers that make no sense.
    """
    if episodes < 1 or max_turns < 1 or not 0 < level < 1:
        raise UserError("episodes and max_turns must be at least 1, and level between 0 and 1.")
    whole = [e for e in pilot if not any(t.reply.lost for t in e.turns)]
    if len(whole) < LEAST:
        raise UserError(f"{len(whole)} whole pilot episodes say nothing about a run: play at least {LEAST}, better 20.")
    measures: dict[str, Callable[[Turn], float | None]] = {
        "calls": lambda t: 1,
        "prompt_tokens": lambda t: t.reply.usage.get("prompt_tokens"),
        "completion_tokens": lambda t: t.reply.usage.get("completion_tokens"),
        "cost": lambda t: t.reply.cost,
    }
    sums = {name: _sums(whole, len(agents), f) for name, f in measures.items()}
    sums["tokens"] = sums["prompt_tokens"] + sums["completion_tokens"]
    dearest = [_dearest(whole, a) for a in range(len(agents))]
    known = [d for d in dearest if d is not None]
    rows = []
    for a, name in enumerate([*agents, TOTAL]):
        last = a == len(agents)
        amounts = {m: s.sum(axis=1) if last else s[:, a] for m, s in sums.items()}
        row: dict[str, object] = {"agent": name}
        for m in measures:
            row[m] = episodes * float(amounts[m].mean())
        for m, (low, high) in {"tokens": ("tokens_low", "tokens_high"), "cost": ("low", "high")}.items():
            spread = _pooled_spread(sums[m] if not last else amounts[m][:, None])
            row[low], row[high] = _interval(amounts[m], episodes, level, spread)
            if not row["calls"]:
                row[high] = None
        worst = dearest[a] if not last else max(known, default=None) if not np.isnan(known).any() else None
        row["worst"] = None if worst is None or np.isnan(worst) else episodes * max_turns * worst
        rows.append(row)
    order = ["agent", "calls", "prompt_tokens", "completion_tokens", "tokens_low", "tokens_high"]
    table = pd.DataFrame(rows)[[*order, "cost", "low", "high", "worst"]]
    for column in table.columns[1:]:  # object, so that None stays None and is not taken for a number
        table[column] = table[column].astype(object).where(table[column].notna(), None)
    table.attrs.update(
        episodes=episodes, pilot=len(whole), left_out=len(pilot) - len(whole), level=level, max_turns=max_turns
    )
    return table


def as_text(table: pd.DataFrame) -> str:
    """The table of `estimate`, and what it does not say, as plain text."""
    a = table.attrs

    def number(x: object, form: str) -> str:
        return "unknown" if x is None else format(x, form)

    lines = [
        f"{a['episodes']} episodes, estimated from {a['pilot']} pilot episodes; {a['level']:.0%} intervals",
        f"{'agent':16}{'calls':>9}{'tokens in':>13}{'tokens out':>13}{'cost':>11}{'low':>11}{'high':>11}{'worst':>11}",
    ]
    for r in table.itertuples():
        money = "".join(f"{_money(x):>11}" for x in (r.cost, r.low, r.high, r.worst))
        tokens = "".join(f"{number(x, ',.0f'):>13}" for x in (r.prompt_tokens, r.completion_tokens))
        lines.append(f"{r.agent[:15]:16}{r.calls:>9,.0f}{tokens}{money}")
    total = table.iloc[-1]
    low, high = number(total.tokens_low, ",.0f"), number(total.tokens_high, ",.0f")
    lines += [
        f"Tokens in all: {low} to {high}. The intervals hold for the pilot's choice of agents, which training changes;",
        f"worst: {a['max_turns']} calls in every episode, each as dear as the dearest of the pilot.",
    ]
    if a["left_out"]:
        lines.append(f"Left out: {a['left_out']} pilot episodes with a lost call; what lost calls cost comes on top.")
    return "\n".join(lines)


def _money(x: float | None) -> str:
    """Small amounts to three digits, in the unit of the prices."""
    return "unknown" if x is None else f"{x:,.2f}" if x >= 1 or x == 0 else f"{x:.3g}"


def _sums(pilot: Sequence[Episode], n_agents: int, measure: Callable[[Turn], float | None]) -> np.ndarray:
    """(episodes, agents) sum of a measure over turns; the column of an agent with an unknown value is all NaN."""
    sums = np.zeros((len(pilot), n_agents))
    for i, e in enumerate(pilot):
        for t in e.turns:
            value = measure(t)
            sums[i, t.agent] += np.nan if value is None else value
    sums[:, np.isnan(sums).any(axis=0)] = np.nan
    return sums


def _dearest(pilot: Sequence[Episode], agent: int) -> float | None:
    """Cost of an agent's dearest call: None if it was never asked, NaN if a price is unknown."""
    costs = [t.reply.cost for e in pilot for t in e.turns if t.agent == agent]
    if not costs:
        return None
    return float("nan") if None in costs else max(c for c in costs if c is not None)


def _pooled_spread(amounts: np.ndarray) -> tuple[float, int]:
    """Pooled variance of the logarithms within columns, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for column in amounts.T:
        positive = column[column > 0]  # not NaN
        if len(positive) > 1:
            squares += float(((np.log(positive) - np.log(positive).mean()) ** 2).sum())
            freedom += len(positive) - 1
    return (squares / freedom if freedom else 0.0), freedom


def _interval(
    amounts: np.ndarray, episodes: int, level: float, spread: tuple[float, int]
) -> tuple[float | None, float | None]:
    """Bounds of the total over `episodes` new episodes, given the amounts (n,) of the pilot's.

    An amount is positive with a share p and then lognormal (mu, s); each draw of (p, mu, s) that the pilot leaves
    possible gives mean and variance of the total, which is then drawn as a lognormal of its own. An agent met in
    fewer than four episodes borrows the spread of all.
    """
    if np.isnan(amounts).any():
        return None, None
    n, positive = len(amounts), amounts[amounts > 0]
    k = len(positive)
    if k == 0:
        return 0.0, 0.0
    rng = np.random.default_rng([7, n, k])
    logs = np.log(positive)
    variance, freedom = (float(logs.var(ddof=1)), k - 1) if k >= 4 else spread
    p = rng.beta(k + 0.5, n - k + 0.5, DRAWS) if k < n else np.ones(DRAWS)
    s2 = variance * freedom / rng.chisquare(freedom, DRAWS) if freedom else np.zeros(DRAWS)
    with np.errstate(over="ignore", invalid="ignore"):
        mu = logs.mean() + np.sqrt(s2 / k) * rng.standard_normal(DRAWS)
        one = p * np.exp(mu + s2 / 2)
        square = p * np.exp(2 * mu + 2 * s2)
        relative = np.log1p(np.maximum(square / one**2 - 1, 0) / episodes)  # log-variance of the total
        total = episodes * one * np.exp(np.sqrt(relative) * rng.standard_normal(DRAWS) - relative / 2)
    total = np.where(np.isnan(total), np.inf, total)
    low, high = np.quantile(total, [(1 - level) / 2, (1 + level) / 2], method="nearest")  # infinities may be among them
    middle = episodes * amounts.mean()
    # Amounts with a long tail of small ones are no lognormals, whose mean is then too high: Student's lower end also.
    student = middle + stdtrit(n - 1, (1 - level) / 2) * episodes * amounts.std(ddof=1) * np.sqrt(1 / n + 1 / episodes)
    return float(max(min(low, student), 0.0)), float(max(high, middle)) if np.isfinite(high) else None
