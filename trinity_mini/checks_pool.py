"""The checkers of lesson 01, the pool. Each draws fresh random inputs and compares with scipy or pandas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def check_accuracy(fn: Callable) -> None:
    """Exercise 1.1: accuracy(rewards (n,) with nan) -> (mean, standard error, count), against scipy.stats.sem."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, lost = int(rng.integers(8, 40)), int(rng.integers(1, 5))
        r = rng.permutation(np.r_[np.ones(3), np.zeros(4), rng.integers(2, size=n), np.full(lost, np.nan)])
        kept = pd.Series(r).dropna()
        p, m = float(kept.mean()), len(kept)
        wanted = (p, float(stats.sem(r, ddof=0, nan_policy="omit")), m)
        found = called(fn, r.copy(), what="accuracy")
        zeros = np.nan_to_num(r)
        q = float(zeros.mean())
        mistakes = {
            "a lost episode is left out, not counted as wrong.": (q, float(stats.sem(zeros, ddof=0)), len(r)),
            "the standard error has n, not n - 1, below the root: p (1 - p) / m.": (p, float(stats.sem(kept)), m),
            "this is the variance of the mean: the root is missing.": (p, p * (1 - p) / m, m),
            "this is the spread of one reward: divide by sqrt(m).": (p, (p * (1 - p)) ** 0.5, m),
            "the lost episodes count in n, though not in the mean.": (p, (p * (1 - p) / len(r)) ** 0.5, len(r)),
            "m must be the number of episodes that were not lost in the error, too.": (
                p, (p * (1 - p) / len(r)) ** 0.5, m,
            ),
            "the third value is how many episodes count, without the lost ones.": (*wanted[:2], len(r)),
        }  # fmt: skip
        if isinstance(found, tuple | list) and found and np.size(found[0]) == 1 and np.isnan(found[0]):
            raise Wrong("accuracy(rewards) is nan. Hint: take the lost episodes (nan) out before the mean.")
        hint = recognised(found, mistakes, "mean p, sqrt(p (1 - p) / m) and m, of the rewards that are not nan.")
        same(found, wanted, "accuracy(rewards)", hint)
    passed("accuracy", ROUNDS)


def check_vote(fn: Callable) -> None:
    """Exercise 1.2: vote(answers) -> the most frequent, against pandas; ties, spaces and lost replies included."""
    rng = np.random.default_rng()
    fixed = [[None] * 4, ["c", "a", "b", None, None, None], ["d", "b ", " b", "d", None], ["a", " b", "b ", "c"],
             ["b", "d", "d", "b"], ["", "x", ""]]  # fmt: skip
    for i in range(ROUNDS):
        padded = ["abcd"[k].rjust(rng.integers(1, 3)).ljust(rng.integers(1, 4)) for k in rng.integers(4, size=8)]
        said = [None if rng.random() < 0.3 else s for s in padded] if i >= len(fixed) else fixed[i]
        raw = pd.Series([s for s in said if s is not None], dtype="object")
        kept = raw.str.strip()
        counts = kept.groupby(kept, sort=False).size()  # in order of appearance; idxmax takes the first
        wanted = None if kept.empty else counts.idxmax()
        found = called(fn, list(said), what=f"vote({said})")
        if wanted is None and found is not None:
            raise Wrong(f"vote({said}) is {found!r}, and None is wanted. Hint: nobody has voted, so nobody wins.")
        if found is None and wanted is not None:
            raise Wrong(f"vote({said}) is None, and {wanted!r} is wanted. Hint: a lost reply (None) has no vote.")
        if isinstance(found, str) and found != found.strip():
            raise Wrong(f"vote({said}) is {found!r}, with space around it. Hint: count and return stripped answers.")
        if wanted is None:
            continue
        if wanted == "" and found == "x":
            raise Wrong(f"vote({said}) is 'x', and '' is wanted. Hint: an empty answer has a vote; only None is lost.")
        tied = sorted(counts[counts == counts.max()].index)
        mistakes = {
            "' b' and 'b ' are one answer: strip before counting.": (
                raw.groupby(raw, sort=False).size().idxmax().strip()
            ),
            "among equals the answer said first wins, not the first in the alphabet.": tied[0],
            "among equals the answer said first wins, not the last in the alphabet.": tied[-1],
            "among equals the answer said first wins, not the one said last.": [s for s in kept if s in tied][-1],
        }
        hint = recognised(found, mistakes, "count each stripped answer and take the largest count.")
        same(found, wanted, f"vote({said})", hint)
    passed("vote", ROUNDS)


def check_balanced_accuracy(fn: Callable) -> None:
    """Exercise 1.3: balanced_accuracy(accepted, right) -> a share, against the area under the ROC curve of scipy."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        right = rng.permutation(np.arange(60) < rng.integers(5, 25))
        accepted = np.where(right, rng.random(60) < 0.8, rng.random(60) < 0.3)
        accepted[np.flatnonzero(right)[0]] = accepted[np.flatnonzero(~right)[0]] = True
        pairs = right.sum() * (~right).sum()  # of a judge with two verdicts, the area is the balanced accuracy
        wanted = float(stats.mannwhitneyu(accepted[right], accepted[~right]).statistic / pairs)
        hits, false = accepted[right].mean(), accepted[~right].mean()
        mistakes = {
            "this is the plain share of right verdicts: each side must weigh a half, however many answers it has.": (
                accepted == right
            ).mean(),
            "this is the share of right answers accepted; the wrong ones sent back are the other half.": hits,
            "this is the share of wrong answers sent back; the right ones accepted are the other half.": 1 - false,
            "a wrong answer is judged well when it is NOT accepted.": (hits + false) / 2,
            "this is how many of the ACCEPTED answers are right (precision): group by what is right, not by what "
            "was accepted.": right[accepted].mean(),
            "group by what is right, not by what was accepted.": (
                right[accepted].mean() + (~right[~accepted]).mean()
            ) / 2,
            "the two shares are added: take their mean.": hits + 1 - false,
        }  # fmt: skip
        if len({round(x, 9) for x in (wanted, *mistakes.values())}) <= len(mistakes):
            continue  # by chance two mistakes give the same number: nobody could tell which it is
        found = called(fn, accepted.copy(), right.copy(), what="balanced_accuracy")
        hint = recognised(found, mistakes, "the mean of two shares, one over the right answers, one over the wrong.")
        same(found, wanted, "balanced_accuracy(accepted, right)", hint)
    passed("balanced_accuracy", ROUNDS)


def check_chosen_by_group(fn: Callable) -> None:
    """Exercise 1.4: chosen_by_group(train, train_groups, test, test_groups) -> (m,), against pandas' group means."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        c, n, m = int(rng.integers(4, 8)), int(rng.integers(30, 40)), int(rng.integers(41, 50))
        groups = np.array(["infix", "postfix", "capital"][: rng.integers(2, 4)])
        a, b = rng.permutation(np.resize(groups, n)), rng.permutation(np.resize(groups, m))
        train, test = (rng.integers(2, size=(c, k)).astype(float) for k in (n, m))
        one, two = np.flatnonzero(a == groups[0]), np.flatnonzero(b == groups[0])
        train[:, one[:2]] = 0
        train[2, a != groups[0]] = 0
        train[1:3, one[1:]] = 1  # in this group two chains are equally good, and on the test questions another is best
        test[0, two], test[1, two], test[2, two] = 1, np.arange(len(two)) % 2, np.arange(len(two)) % 2 == 0
        table = pd.DataFrame(train.T).groupby(a).mean()

        def rewards(best: pd.Series, test: np.ndarray = test, b: np.ndarray = b) -> np.ndarray:
            return test[best[b].to_numpy(), np.arange(len(b))]

        train.flags.writeable = test.flags.writeable = False
        wanted = rewards(table.idxmax(axis=1))
        found = called(fn, train, a, test, b, what="chosen_by_group")
        mistakes = {
            "the chains were chosen on the TEST questions: that flatters.": rewards(
                pd.DataFrame(test.T).groupby(b).mean().idxmax(axis=1)
            ),
            "this is the oracle, the best chain of each question: one choice a group, made in training.": test.max(0),
            "one chain for all groups: choose for each group on its own training questions.": test[
                train.mean(axis=1).argmax()
            ],
            "among equally good chains the first is taken.": rewards(table.iloc[:, ::-1].idxmax(axis=1)),
            "these are rewards of the chosen chains in TRAINING: give those on the test questions.": (
                train[table.idxmax(axis=1)[a].to_numpy(), np.arange(n)]
            ),
            "rewards one by one, (m,), not their mean.": wanted.mean(),
        }
        hint = recognised(found, mistakes, "for each group the best row of its training columns, on its test columns.")
        same(found, wanted, "chosen_by_group(...)", hint)
    passed("chosen_by_group", ROUNDS)
