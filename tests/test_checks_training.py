"""The checkers of lesson 07: right answers pass, typical wrong ones get their own message."""

import numpy as np
import pytest
from scipy import stats

from trinity_mini import checks_training as c
from trinity_mini.checks import Wrong


def refused(check, fn):
    with pytest.raises(Wrong) as caught:
        check(fn)
    assert "Hint: " in str(caught.value) or "stopped" in str(caught.value)
    return str(caught.value)


# ---- the solutions ---------------------------------------------------------------------------------


def mean_and_error(rewards):
    r = np.array([x for x in rewards if x is not None])
    return r.mean(), r.std(ddof=1) / len(r) ** 0.5, len(rewards) - len(r)


def fair_draw(families, m, rng):
    counts = np.full(len(families), m // len(families))
    counts[rng.choice(len(families), m % len(families), replace=False)] += 1
    return [f[i] for f, n in zip(families, counts, strict=True) for i in rng.choice(len(f), n, replace=False)]


def one_generation(strategy, score):
    thetas = strategy.ask()
    fitness = score(np.array(thetas))
    if not np.isfinite(fitness).all():
        raise ValueError(f"candidate {np.argmin(np.isfinite(fitness))} has no fitness")
    strategy.tell(thetas, list(-fitness))
    return fitness


def generations_within(budget, lam, m, every, questions):
    t = 0
    while (t + 1) * lam * m + -(-(t + 1) // every) * questions <= budget:
        t += 1
    return t


def paired_difference(a, b):
    d = (a - b)[~np.isnan(a - b)]
    return d.mean(), stats.sem(d), len(d)


def test_the_solution_takes_lists_and_numpy_numbers():
    c.check_one_generation(lambda strategy, score: one_generation(strategy, score).tolist())
    c.check_mean_and_error(lambda r: [np.float32(x) for x in mean_and_error(r)])
    c.check_fair_draw(lambda families, m, rng: np.array(fair_draw(families, m, rng)))


# ---- wrong answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda r: mean_and_error([x or 0.0 for x in r])[:2] + (r.count(None),), "left out, never scored 0"),
        (lambda r: (mean_and_error(r)[0], np.std([x for x in r if x is not None], ddof=1), r.count(None)), "root of n"),
        (
            lambda r: (mean_and_error(r)[0], stats.sem([x for x in r if x is not None], ddof=0), r.count(None)),
            "ddof=1",
        ),
        (lambda r: mean_and_error(r)[:2] + (len(r) - r.count(None),), "counts the lost episodes"),
        (lambda r: mean_and_error([x if x else None for x in r]), "ask `r is not None`"),
        (lambda r: mean_and_error(r)[:2], "return three numbers"),
        (lambda r: sum(r), "stopped"),
        (
            lambda r: (
                mean_and_error(r)[0], np.std([x for x in r if x is not None], ddof=1) / len(r) ** 0.5, r.count(None)
            ),
            "SCORED",
        ),
    ],
)  # fmt: skip
def test_mean_and_error(wrong, says):
    assert says in refused(c.check_mean_and_error, wrong)


def pop_draw(families, m, rng):
    for f in families:
        rng.shuffle(f)
    return fair_draw(families, m, rng)


def rotating(families, m, rng):
    """The package's own rule: the families in turn from a random one on."""
    first, drawn = int(rng.integers(len(families))), []
    for k, f in enumerate(families):
        n = len(range((k - first) % len(families), m, len(families)))
        drawn += [f[i] for i in rng.choice(len(f), n, replace=False)]
    return drawn


def in_turn(families, m, rng):
    """Balanced, but the first families always give the odd questions."""
    counts = [len(range(k, m, len(families))) for k in range(len(families))]
    return [f[i] for f, n in zip(families, counts, strict=True) for i in rng.choice(len(f), n, replace=False)]


def first_entries(families, m, rng):
    counts = np.full(len(families), m // len(families))
    counts[rng.choice(len(families), m % len(families), replace=False)] += 1
    return [q for f, n in zip(families, counts, strict=True) for q in f[:n]]


def with_replacement(families, m, rng):
    counts = np.full(len(families), m // len(families))
    counts[rng.choice(len(families), m % len(families), replace=False)] += 1
    return [f[i] for f, n in zip(families, counts, strict=True) for i in rng.integers(len(f), size=n)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda f, m, rng: [f[0][0]] * (m + 1), "the length of fair_draw"),
        (lambda f, m, rng: list(range(m)), "is no question"),
        (lambda f, m, rng: list(rng.choice(sum(f, []), m, replace=False)), "may differ by one at most"),
        (with_replacement, "was drawn twice"),
        (pop_draw, "has changed the lists"),
        (lambda f, m, rng: fair_draw(f, m, np.random.default_rng()), "draw from `rng` only"),
        (in_turn, "should be even. Hint: let rng choose the families"),
        (rotating, "come in fixed pairs"),
        (first_entries, "choose from the whole list"),
        (lambda f, m, rng: None, "is the `return` missing"),
    ],
)
def test_fair_draw(wrong, says):
    assert says in refused(c.check_fair_draw, wrong)


def told(change=lambda thetas, fitness: (thetas, list(-fitness)), back=lambda fitness: fitness, before=False):
    """one_generation with another tell, another result, or the refusal in the wrong place."""

    def wrong(strategy, score):
        thetas = strategy.ask()
        fitness = score(np.array(thetas))
        bad = ~np.isfinite(fitness)
        if bad.any() and not before:
            raise ValueError(f"candidate {bad.argmax()}")
        strategy.tell(*change(thetas, fitness))
        if bad.any():
            raise ValueError(f"candidate {bad.argmax()}")
        return back(fitness)

    return wrong


def no_guard(strategy, score):
    thetas = strategy.ask()
    fitness = score(np.array(thetas))
    strategy.tell(thetas, list(-fitness))
    return fitness


def silent(strategy, score):
    thetas = strategy.ask()
    fitness = score(np.array(thetas))
    if np.isfinite(fitness).all():
        strategy.tell(thetas, list(-fitness))
    return fitness


def nameless(strategy, score):
    thetas = strategy.ask()
    fitness = score(np.array(thetas))
    if not np.isfinite(fitness).all():
        raise ValueError("no fitness")
    strategy.tell(thetas, list(-fitness))
    return fitness


def one_by_one(strategy, score):
    thetas = strategy.ask()
    strategy.tell(thetas, [-score(theta) for theta in thetas])


def asks_twice(strategy, score):
    fitness = score(np.array(strategy.ask()))
    strategy.tell(strategy.ask(), list(-fitness))
    return fitness


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (told(lambda thetas, fitness: (thetas, list(fitness))), "it will look for the worst"),
        (told(lambda thetas, fitness: (thetas, sorted(-fitness))), "do not sort"),
        (told(lambda thetas, fitness: (thetas[::-1], list(-fitness))), "in another order"),
        (told(back=lambda fitness: -fitness), "not the negative that pycma was told"),
        (told(back=lambda fitness: None), "is the `return` missing"),
        (told(before=True), "after it had told the strategy"),
        (no_guard, "the strategy was told all the same"),
        (silent, "nothing was raised"),
        (nameless, "does not name candidate"),
        (one_by_one, "all candidates at once"),
        (asks_twice, "the number of calls of ask()"),
        (lambda strategy, score: score(np.array(strategy.ask())), "the number of calls of tell()"),
        (lambda strategy, score: strategy.best(), "stopped"),
    ],
)
def test_one_generation(wrong, says):
    assert says in refused(c.check_one_generation, wrong)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda b, lam, m, every, q: b // (lam * m), "validation plays episodes, too"),
        (lambda b, lam, m, every, q: b // (lam * m + q), "only after every"),
        (lambda b, lam, m, every, q: b / (lam * m), "no whole number"),
        (lambda b, lam, m, every, q: generations_within(b, lam, m, every, q) + 1, "one too many"),
        (lambda b, lam, m, every, q: c._played(b, lam, m, every, q, last=False), "the last generation is validated"),
        (lambda b, lam, m, every, q: c._played(b, lam, m, every, q, twice=True), "validated once, not twice"),
        (lambda b, lam, m, every, q: generations_within(b - 1, lam, m, every, q), "what fits exactly"),
        (lambda b, lam, m, every, q: generations_within(b, lam, m, every, q) - 1, "one too few"),
    ],
)
def test_generations_within(wrong, says):
    assert says in refused(c.check_generations_within, wrong)


def separately(a, b):
    _, se, n = paired_difference(a, b)
    return np.nanmean(a) - np.nanmean(b), se, n


def independent(a, b):
    difference, _, n = paired_difference(a, b)
    both = ~np.isnan(a - b)
    return difference, np.hypot(stats.sem(a[both]), stats.sem(b[both])), n


def independent_of_other_questions(a, b):
    difference, _, n = paired_difference(a, b)
    return difference, np.hypot(stats.sem(a, nan_policy="omit"), stats.sem(b, nan_policy="omit")), n


def biased(a, b):
    difference, se, n = paired_difference(a, b)
    return difference, se * ((n - 1) / n) ** 0.5, n


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda a, b: paired_difference(b, a), "this is b - a"),
        (lambda a, b: paired_difference(np.nan_to_num(a), np.nan_to_num(b)), "left out, not scored 0"),
        (independent, "two independent samples"),
        (independent_of_other_questions, "two independent samples"),
        (biased, "ddof=1"),
        (lambda a, b: ((a - b).mean(), (a - b).std(ddof=1) / len(a) ** 0.5, len(a)), "NaN spreads"),
        (separately, "keep only those that BOTH have"),
        (lambda a, b: paired_difference(a, b)[:2], "return three numbers"),
        (lambda a, b: paired_difference(a, b)[:1] + (np.nanstd(a - b, ddof=1), paired_difference(a, b)[2]), "spread"),
    ],
)
def test_paired_difference(wrong, says):
    assert says in refused(c.check_paired_difference, wrong)
