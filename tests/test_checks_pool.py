"""The checkers of lesson 01: the lesson's solutions pass, and typical mistakes get messages that fit."""

from collections import Counter

import numpy as np
import pytest
from lesson import definitions

from trinity_mini import checks_pool
from trinity_mini.checks import Wrong

LESSON = "01_one_question_many_models.ipynb"
CHECKERS = {
    "accuracy": checks_pool.check_accuracy,
    "vote": checks_pool.check_vote,
    "balanced_accuracy": checks_pool.check_balanced_accuracy,
    "chosen_by_group": checks_pool.check_chosen_by_group,
}
solutions = definitions(LESSON, *CHECKERS)


def error(p, n):
    return (p * (1 - p) / n) ** 0.5


def of_kept(r):
    return r[~np.isnan(r)]


def grouped(choose):
    """chosen_by_group with another way to choose a group's chain."""

    def fn(train, a, test, b):
        out = np.zeros(test.shape[1])
        for g in np.unique(b):
            out[b == g] = test[choose(train[:, a == g], test[:, b == g], train), b == g]
        return out

    return fn


def last_best(train, test, every):
    means = train.mean(1)
    return len(means) - 1 - means[::-1].argmax()


def by_counter(answers, key=lambda s: s):
    counts = Counter(key(s) for s in answers)
    return counts.most_common(1)[0][0]


def stripped(answers):
    return [s.strip() for s in answers if s is not None]


def tie(answers, take):
    counts = Counter(stripped(answers))
    return take(s for s in counts if counts[s] == max(counts.values())) if counts else None


MISTAKES = [
    ("accuracy", lambda r: (r.mean(), 0.1, len(r)), "take the lost episodes (nan) out"),
    ("accuracy", lambda r: (np.nan_to_num(r).mean(), error(np.nan_to_num(r).mean(), len(r)), len(r)), "left out, not"),
    ("accuracy", lambda r: (np.nanmean(r), of_kept(r).std(ddof=1) / len(of_kept(r)) ** 0.5, len(of_kept(r))), "n - 1"),
    ("accuracy", lambda r: (np.nanmean(r), error(np.nanmean(r), len(of_kept(r))) ** 2, len(of_kept(r))), "the root"),
    ("accuracy", lambda r: (np.nanmean(r), np.nanstd(r), len(of_kept(r))), "divide by sqrt(m)"),
    ("accuracy", lambda r: (np.nanmean(r), error(np.nanmean(r), len(r)), len(r)), "count in n, though not in the mean"),
    ("accuracy", lambda r: (np.nanmean(r), error(np.nanmean(r), len(of_kept(r))), len(r)), "third value"),
    ("accuracy", lambda r: np.nanmean(r), "a tuple"),
    ("vote", lambda answers: by_counter([s for s in answers if s] or [None]), "strip before"),
    ("vote", lambda answers: by_counter([s for s in answers if s] or [None]) and " a", "with space around it"),
    ("vote", lambda answers: by_counter(stripped(answers)), "stopped in line"),
    ("vote", lambda answers: by_counter(answers, str), "nobody wins"),
    ("vote", lambda answers: (by_counter([s for s in answers if s] or [""]) or "").strip() or None, "strip before"),
    ("vote", lambda answers: by_counter([s.strip() for s in answers if s] or [None]), "empty answer has a vote"),
    ("vote", lambda answers: tie(answers, min), "first in the alphabet"),
    ("vote", lambda answers: tie(answers, max), "last in the alphabet"),
    ("vote", lambda answers: (by_counter([s.strip() if s else None for s in answers])), "has no vote"),
    ("balanced_accuracy", lambda accepted, right: (accepted == right).mean(), "plain share"),
    ("balanced_accuracy", lambda accepted, right: accepted[right].mean(), "right answers accepted; the wrong"),
    ("balanced_accuracy", lambda accepted, right: 1 - accepted[~right].mean(), "wrong answers sent back; the right"),
    ("balanced_accuracy", lambda accepted, right: (accepted[right].mean() + accepted[~right].mean()) / 2, "NOT accept"),
    ("balanced_accuracy", lambda accepted, right: right[accepted].mean(), "precision"),
    ("balanced_accuracy", lambda accepted, right: accepted[right].mean() + (~accepted[~right]).mean(), "their mean"),
    ("chosen_by_group", grouped(lambda train, test, every: test.mean(1).argmax()), "TEST questions"),
    ("chosen_by_group", grouped(lambda train, test, every: every.mean(1).argmax()), "one chain for all groups"),
    ("chosen_by_group", grouped(last_best), "the first is taken"),
    ("chosen_by_group", lambda train, a, test, b: test.max(0), "this is the oracle"),
    ("chosen_by_group", lambda *args: solutions.chosen_by_group(*args).mean(), "not their mean"),
    ("chosen_by_group", lambda train, a, test, b: solutions.chosen_by_group(train, a, train, a), "in TRAINING"),
    ("chosen_by_group", lambda train, a, test, b: train[:, a == b].mean(0), "stopped"),
]


@pytest.mark.parametrize(("name", "fn", "says"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_gets_a_message_that_fits(name, fn, says):
    with pytest.raises(Wrong) as caught:
        CHECKERS[name](fn)
    assert says in str(caught.value)


def test_what_a_learner_is_given_may_not_be_written_to():
    def greedy(train, a, test, b):
        train[:] = 0
        return test[0]

    with pytest.raises(Wrong, match="read-only"):
        checks_pool.check_chosen_by_group(greedy)
