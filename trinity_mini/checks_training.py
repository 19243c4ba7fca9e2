"""The checkers of lesson 07, training. Fresh random inputs each time; the oracles: scipy, pandas, pycma, counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20
FAMILIES, ENOUGH = 4, 400  # lists of a draw; draws behind a statement about chance
UNLIKELY = 1e-7  # a right answer fails a test of chance so rarely


def check_mean_and_error(fn: Callable) -> None:
    """Exercise 7.1: mean_and_error(rewards with None) -> (mean, se, lost), against pandas."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(6, 40))
        r = rng.integers(2, size=n).astype(float)
        r[rng.random(n) < (0.3 if i else 0)] = np.nan
        r[rng.choice(n, 3, replace=False)] = [0.0, 1.0, 0.0 if i else np.nan]  # two and more, never all equal
        asked = [None if np.isnan(x) else float(x) for x in r]
        series = pd.Series(r)
        lost = int(series.isna().sum())
        wanted = (float(series.mean()), float(series.sem()), lost)
        found = called(fn, list(asked), what="mean_and_error")
        if isinstance(found, tuple | list) and len(found) == 3:
            given = np.array([np.nan if x is None else x for x in found], dtype=float) if _plain(found) else None
            zeros, seen = series.fillna(0.0), series[series > 0]
            se = wanted[1]
            mistakes = {
                "a lost episode is left out, never scored 0.": (zeros.mean(), zeros.sem(), lost),
                "a lost episode is left out of n as well: divide by the root of the number of SCORED episodes.": (
                    wanted[0], series.std() / n**0.5, lost,
                ),
                "this is the standard deviation of one episode; the mean's error is smaller by the root of n.": (
                    wanted[0], series.std(), lost,
                ),
                "this divides by n where n - 1 is wanted: ddof=1.": (wanted[0], series.sem(ddof=0), lost),
                "this is the error squared: take the root.": (wanted[0], se**2, lost),
                "the third number counts the lost episodes, not the scored ones.": (wanted[0], se, n - lost),
                "a reward of 0 is a scored episode: ask `r is not None`, not `if r`.": (
                    seen.mean(), seen.sem(), n - len(seen),
                ),
            }
            hint = recognised(given, mistakes, "mean, standard deviation / root of n, and a count; of the scored ones.")
        else:
            hint = "return three numbers: mean, standard error, how many were lost."
        same(found, wanted, f"mean_and_error of {n} episodes, {lost} lost,", hint)
    passed("mean_and_error", ROUNDS)


def _plain(values: Any) -> bool:
    return all(isinstance(x, int | float | np.number) for x in values)


def check_fair_draw(fn: Callable) -> None:
    """Exercise 7.2: fair_draw(families, m, rng) -> m questions; by counting, and chi-square tests of chance."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        sizes = rng.integers(6, 15, FAMILIES)
        families = [[f"{f}{i}" for i in range(size)] for f, size in zip("abcd", sizes, strict=True)]
        m = int(rng.integers(1, 21))
        before, state = [list(f) for f in families], int(rng.integers(2**31))
        found = called(fn, families, m, np.random.default_rng(state), what="fair_draw")
        if families != before:
            raise Wrong("fair_draw has changed the lists it was given. Hint: copy a list before you shuffle or pop.")
        _is_fair(found, families, m)
        again = called(fn, families, m, np.random.default_rng(state), what="fair_draw")
        if [str(q) for q in again] != [str(q) for q in found]:
            raise Wrong(
                "fair_draw gave two different draws from two generators of the same state. "
                "Hint: draw from `rng` only; np.random and random have streams of their own."
            )
    _by_chance(fn, rng)
    passed("fair_draw", ROUNDS)


def _is_fair(found: Any, families: list[list[str]], m: int) -> None:
    if not (isinstance(found, list | tuple) or isinstance(found, np.ndarray) and found.ndim):
        raise Wrong(f"fair_draw is a {type(found).__name__}, not a list. Hint: is the `return` missing?")
    found = [str(q) for q in found]
    same(len(found), m, f"the length of fair_draw(families, {m}, rng)", "m questions are wanted in all.")
    known = {q for f in families for q in f}
    if strange := [q for q in found if q not in known]:
        raise Wrong(f"fair_draw gave {strange[0]!r}, which is no question. Hint: return the questions themselves.")
    counts = [sum(q in f for q in found) for f in families]
    if max(counts) - min(counts) > 1:
        raise Wrong(
            f"of {m} questions the four families gave {counts}: counts may differ by one at most. "
            "Hint: first decide how many of each family, m // 4 or one more; then draw."
        )
    if twice := [q for q, n in Counter(found).items() if n > 1]:
        raise Wrong(f"{twice[0]!r} was drawn twice. Hint: rng.choice(..., replace=False) within a family.")


def _by_chance(fn: Callable, rng: np.random.Generator) -> None:
    """Which family gets the odd question, and which questions of a family come, must be left to chance."""
    families = [[f"{f}{i}" for i in range(5)] for f in "abcd"]
    draws = [called(fn, [list(f) for f in families], 6, rng, what="fair_draw") for _ in range(ENOUGH)]
    drawn = Counter(str(q) for draw in draws for q in draw)
    more = Counter(f for draw in draws for f, n in Counter(str(q)[0] for q in draw).items() if n == 2)
    extra = [more[f] for f in "abcd"]
    if stats.chisquare(extra).pvalue < UNLIKELY:
        raise Wrong(
            f"in {ENOUGH} draws of 6 the four families were drawn twice {extra} times: they should be even. "
            "Hint: let rng choose the families that give one question more, anew each time."
        )
    pairs = Counter(tuple(sorted(f for f, n in Counter(str(q)[0] for q in draw).items() if n == 2)) for draw in draws)
    every = [pairs[a, b] for i, a in enumerate("abcd") for b in "abcd"[i + 1 :]]
    if stats.chisquare(every).pvalue < UNLIKELY:
        raise Wrong(
            f"the two families with one question more come in fixed pairs ({dict(pairs)}): each of the six pairs "
            "should come equally often. Hint: rng.choice of the families without replacement, not a rotation."
        )
    for f in families:
        counts = [drawn[q] for q in f]
        if stats.chisquare(counts).pvalue < UNLIKELY:
            raise Wrong(
                f"in {ENOUGH} draws the questions of one family came {counts} times: they should be even. "
                "Hint: choose from the whole list, not its first entries."
            )


class _Watched:
    """A strategy that notes how it is used; the work is done by pycma."""

    def __init__(self, es: Any) -> None:
        self.es, self.asked, self.told = es, [], []

    def ask(self) -> list[np.ndarray]:
        self.asked.append(self.es.ask())
        return list(self.asked[-1])

    def tell(self, thetas: Any, values: Any) -> None:
        self.told.append(([np.array(t) for t in thetas], np.asarray(values, dtype=float)))
        self.es.tell(list(self.asked[-1]), list(self.told[-1][1]))


def _strategy(n: int, lam: int, seed: int) -> Any:
    from .pycma_strategy import pycma_strategy

    return pycma_strategy(np.zeros(n), 1.0, seed, lam)


def check_one_generation(fn: Callable) -> None:
    """Exercise 7.3: one_generation(strategy, score) -> fitness (lam,); watched, and held against a second pycma."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n, lam, seed = int(rng.integers(3, 8)), int(rng.integers(6, 12)), int(rng.integers(2**31))
        goal = rng.standard_normal(n)
        watched, twin = _Watched(_strategy(n, lam, seed)), _strategy(n, lam, seed)
        broken = int(rng.integers(lam)) if i % 2 else None
        bad = (np.nan, np.inf, -np.inf)[i // 2 % 3]

        def score(
            thetas: Any, goal: np.ndarray = goal, broken: int | None = broken, bad: float = bad, lam: int = lam
        ) -> np.ndarray:
            thetas = np.asarray(thetas)
            if thetas.shape != (lam, len(goal)):
                raise Wrong(
                    f"score was given shape {thetas.shape}; all candidates at once, {(lam, len(goal))}, are wanted. "
                    "Hint: score(np.array(thetas)), once."
                )
            fitness = np.exp(-np.square(thetas - goal).mean(axis=1))
            if broken is not None:
                fitness[broken] = bad
            return fitness

        if broken is None:
            fitness = called(fn, watched, score, what="one_generation")
            _was_told(watched, fitness, score, twin)
        else:
            _refuses(fn, watched, score, broken, bad)
    passed("one_generation", ROUNDS)


def _was_told(watched: _Watched, fitness: Any, score: Callable, twin: Any) -> None:
    same(len(watched.asked), 1, "the number of calls of ask()", "ask once, and keep the candidates for tell.")
    same(len(watched.told), 1, "the number of calls of tell()", "tell the strategy, once, what they are worth.")
    thetas, values = watched.told[0]
    right = score(np.array(watched.asked[0]))
    given = np.array([np.asarray(t) for t in thetas])
    if not np.array_equal(given, np.array(watched.asked[0])):
        raise Wrong("tell was given other candidates than ask gave, or in another order. Hint: tell(thetas, ...).")
    mistakes = {
        "pycma minimises: tell it the negative of the fitness, or it will look for the worst.": right,
        "the values stand in another order than the candidates: do not sort.": np.sort(-right),
        "tell the fitness as it is, negated; ranks are pycma's business.": np.argsort(np.argsort(-right)),
        "the negative of the fitness is wanted.": 1 - right,
    }
    same(values, -right, "what tell was given", recognised(values, mistakes, "tell(thetas, -fitness)."))
    mistakes = {"return the fitness, not the negative that pycma was told.": -right}
    fitness = np.array(fitness) if isinstance(fitness, list) else fitness
    same(fitness, right, "what one_generation returns", recognised(fitness, mistakes, "return the fitness (lam,)."))
    told = twin.ask()
    twin.tell(told, list(-right))
    same(np.array(watched.es.mean), np.array(twin.mean), "the mean after one generation", "ask, score, tell.")


def _refuses(fn: Callable, watched: _Watched, score: Callable, broken: int, bad: float) -> None:
    try:
        called(fn, watched, score, what="one_generation")
    except Wrong as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError):
            raise
        if watched.told:
            raise Wrong(
                "one_generation raised a ValueError after it had told the strategy: the NaN is in it already. "
                "Hint: look at np.isfinite(fitness) before tell."
            ) from error
        if str(broken) not in str(cause):
            raise Wrong(
                f"one_generation refuses, but its message does not name candidate {broken}: {cause}. "
                "Hint: np.argmin(np.isfinite(fitness)) is the first that is not finite."
            ) from error
        return
    if watched.told:
        raise Wrong(
            f"candidate {broken} had no fitness ({bad}), and the strategy was told all the same. Hint: raise a "
            "ValueError that names it, for inf as for NaN (np.isfinite); pycma would take the median in place of a NaN."
        )
    raise Wrong(f"candidate {broken} had no fitness ({bad}), and nothing was raised. Hint: raise a ValueError.")


def check_generations_within(fn: Callable) -> None:
    """Exercise 7.4: generations_within(budget, lam, m, every, questions) -> whole number, against adding up."""
    rng = np.random.default_rng()
    mistakes = _plan(rng)[2].keys()
    plans = [_plan(rng) for _ in range(ROUNDS - len(mistakes))]
    for mistake in mistakes:  # and for each mistake a plan that shows it
        plan = _plan(rng)
        while plan[2][mistake] == plan[1]:
            plan = _plan(rng)
        plans.append(plan)
    results = [called(fn, *plan[0], what="generations_within") for plan in plans]
    numbers = all(isinstance(r, int | np.integer) for r in results)
    known = [k for k in mistakes if numbers and all(plan[2][k] == r for plan, r in zip(plans, results, strict=True))]
    hint = known[0] if known else "T * lam * m + validations * questions must not exceed the budget."
    for (asked, wanted, _), found in zip(plans, results, strict=True):
        text = f"generations_within({', '.join(map(str, asked))})"
        if isinstance(found, float | np.floating):
            raise Wrong(f"{text} is {found:.6g}, which is no whole number. Hint: int, and // instead of /.")
        same(found, wanted, text, hint)
    passed("generations_within", len(plans))


def _plan(rng: np.random.Generator) -> tuple[tuple[int, int, int, int, int], int, dict[str, int]]:
    """((budget, lam, m, every, questions), generations that fit, what typical mistakes give)."""
    lam, m = int(rng.integers(4, 70)), int(rng.integers(1, 10))
    every, asked = int(rng.integers(2, 8)), int(rng.integers(1, 300))
    budget = int(rng.integers(0, 40 * lam * m))
    wanted = _played(budget, lam, m, every, asked)
    if wanted and rng.random() < 0.5:  # an exact fit
        budget = wanted * lam * m + -(-wanted // every) * asked
    mistakes = {
        "validation plays episodes, too: they come out of the same budget.": budget // (lam * m),
        "if the last generation is an `every`-th, it is validated once, not twice.": _played(
            budget, lam, m, every, asked, twice=True
        ),
        "the last generation is validated as well, whatever `every` says.": _played(
            budget, lam, m, every, asked, last=False
        ),
        "validation does not come after each generation, only after every `every`-th and the last.": budget
        // (lam * m + asked),
        "one too many: the last generation and its validation must fit as a whole.": wanted + 1,
        "what fits exactly is within the budget: <=, not <.": _played(budget - 1, lam, m, every, asked),
        "one too few.": wanted - 1,
    }
    return (budget, lam, m, every, asked), wanted, mistakes


def _played(budget: int, lam: int, m: int, every: int, asked: int, last: bool = True, twice: bool = False) -> int:
    """The largest number of generations within the budget, by adding them up."""
    spent, t, best = 0, 0, 0
    while spent <= budget:
        t += 1
        spent += lam * m + (asked if t % every == 0 else 0)
        if spent + (asked if twice or last and t % every else 0) <= budget:
            best = t
    return best


def check_paired_difference(fn: Callable) -> None:
    """Exercise 7.5: paired_difference(a, b) with NaN -> (difference, se, n), against scipy's paired t-test."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(12, 60))
        luck = rng.random(n)
        a, b = (luck < 0.8).astype(float), (luck + rng.normal(0, 0.2, n) < 0.5).astype(float)
        a[:3], b[:3] = [1, 0, 1], [0, 0, 1]  # two differences at least
        for x in (a, b) if i else ():
            x[3:][rng.random(n - 3) < 0.15] = np.nan
        a[3], b[4] = (np.nan, np.nan) if i else (a[3], b[4])
        test = stats.ttest_rel(a, b, nan_policy="omit")
        low, high = test.confidence_interval(0.9)
        pairs = int(test.df) + 1
        wanted = (float((low + high) / 2), float((high - low) / 2 / stats.t.ppf(0.95, test.df)), pairs)
        found = called(fn, a.copy(), b.copy(), what="paired_difference")
        hint = "return three numbers: mean difference, its standard error, number of pairs."
        if isinstance(found, tuple | list) and len(found) == 3 and _plain(found):
            d = (a - b)[~np.isnan(a - b)]
            difference, se, _ = wanted
            apart = float(np.hypot(stats.sem(a, nan_policy="omit"), stats.sem(b, nan_policy="omit")))
            both = ~np.isnan(a - b)
            unpaired = float(np.hypot(stats.sem(a[both]), stats.sem(b[both])))
            separate = float(np.nanmean(a) - np.nanmean(b))
            zeros = np.nan_to_num(a) - np.nan_to_num(b)
            sd, total = float(d.std(ddof=1)), len(a)
            mistakes = {
                "this is b - a: a - b is wanted.": (-difference, se, pairs),
                "a question that either lost is left out, not scored 0.": (zeros.mean(), stats.sem(zeros), total),
                "NaN spreads: leave out what is NaN in a or in b before you take a mean.": (np.nan, np.nan, total),
                "this is the error of two independent samples; here it is one sample of differences.": (
                    difference, unpaired, pairs,
                ),
                "this is the spread of the differences; the mean's error is smaller by the root of n.": (
                    difference, sd, pairs,
                ),
                "this divides by n where n - 1 is wanted: ddof=1.": (difference, stats.sem(d, ddof=0), pairs),
                "n is the number of questions that BOTH have: those with a lost episode do not count.": (
                    difference, sd / total**0.5, total,
                ),
            }
            hint = recognised(found, mistakes, "take d = a - b where both are there; then mean, standard error, len.")
            if hint.startswith("take") and any(np.isclose(found[0], x) for x in (separate,)) and separate != difference:
                hint = "each mean is over other questions: keep only those that BOTH have, then subtract."
            elif hint.startswith("take") and np.isclose(found[1], apart):
                hint = "this is the error of two independent samples; here it is one sample of differences."
        same(found, wanted, "paired_difference(a, b)", hint)
    passed("paired_difference", ROUNDS)
