"""The checkers of lesson 10: right answers pass, typical wrong ones get a message that fits."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from scipy.stats import entropy, sem

from trinity_mini import checks_roles
from trinity_mini.checks import Wrong

# ---- transitions -------------------------------------------------------------------------------------------


def counted(spoken, speakers, ends=True, borders=False, turn=False):
    rows, columns = [*speakers, "start"], [*speakers, "end"]
    counts = np.zeros((len(rows), len(columns)))
    flat = [[s for e in spoken for s in e]] if borders else spoken
    for e in flat:
        for a, b in itertools.pairwise(["start", *e, "end"] if ends else e):
            counts[rows.index(a), columns.index(b)] += 1
    return counts.T if turn else counts


def lines(counts, axis=1, guard=True):
    sums = counts.sum(axis=axis, keepdims=True)
    with np.errstate(invalid="ignore"):
        return counts / (np.where(sums > 0, sums, 1) if guard else sums)


# ---- bits --------------------------------------------------------------------------------------------------


def h(*columns, base=2):
    return float(entropy(pd.DataFrame(dict(enumerate(columns))).value_counts().to_numpy(), base=base))


def mi(a, b):
    return h(a) + h(b) - h(a, b)


def within(f, k, s):
    return [mi(k[f == x], s[f == x]) for x in np.unique(f)], [np.mean(f == x) for x in np.unique(f)]


def information(joint, log=np.log2):
    p = joint / joint.sum()
    q = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    return (p[p > 0] * log((p / q)[p > 0])).sum()


def dealt(f, c, n, rng, deal=None, finish=np.mean, log=np.log2):
    deal = deal or (lambda: rng.permutation(f))
    return float(finish([information(np.eye(f.max() + 1)[deal()].T @ c, log) for _ in range(n)]))


def as_it_is(f, c):
    return float(information(np.eye(f.max() + 1)[f].T @ c))


def turns_dealt(f, c, n, rng):
    speaker, owner = np.repeat(np.tile(np.arange(c.shape[1]), len(c)), c.ravel()), np.repeat(f, c.sum(1))
    own, said = np.eye(f.max() + 1), np.eye(c.shape[1])[speaker]
    return float(np.mean([information(own[rng.permutation(owner)].T @ said) for _ in range(n // 4)]))


def in_place(f, c, n, rng):
    rng.shuffle(f)
    return dealt(f, c, n, rng)


# ---- pairs -------------------------------------------------------------------------------------------------


def result(d, se, times=2):
    mean = float(np.mean(d))
    return mean, float(se), len(d), "a" if mean > times * se else "b" if mean < -times * se else None


def by_seed(a, b):
    return np.array([a[s] - b[s] for s in a if s in b])


def apart(a, b):
    both = [s for s in a if s in b]
    return result(by_seed(a, b), np.hypot(sem([a[s] for s in both]), sem([b[s] for s in both])))


def in_order(a, b):
    d = np.array([*a.values()]) - np.array([*b.values()])
    return result(d, sem(d))


WRONG = {
    "transition_matrix": [
        (lambda e, s: lines(counted(e, sorted(s))), "differ"),
        (counted, "these are counts"),
        (lambda e, s: counted(e, s) / counted(e, s).sum(), "each LINE must sum to 1"),
        (lambda e, s: lines(counted(e, s), axis=0), "columns sum to 1"),
        (lambda e, s: lines(counted(e, s, borders=True)), "within each episode"),
        (lambda e, s: lines(counted(e, s, ends=False)), "'start' and 'end' are missing"),
        (lambda e, s: lines(counted(e, s)).T, "exchanged"),
        (lambda e, s: lines(counted(e, s), guard=False), "0 divided by 0"),
        (lambda e, s: lines(counted(e, s))[:-1, :-1], "shape"),
        (lambda e, s: None, "return"),
    ],
    "extra_bits": [
        (lambda f, k, s: float(np.dot(*within(f, k, s)) * np.log(2)), "nats"),
        (lambda f, k, s: mi(k, s), "within each family"),
        (lambda f, k, s: mi(f, s), "on top of it"),
        (lambda f, k, s: h(f, k) + h(s) - h(f, k, s), "TOGETHER"),
        (lambda f, k, s: float(np.mean(within(f, k, s)[0])), "share of the turns, not equally"),
        (lambda f, k, s: float(np.sum(within(f, k, s)[0])), "added up"),
        (lambda f, k, s: mi(k, s) - mi(f, s), "call a kind alike"),
        (lambda f, k, s: h(f, k, s) - h(f, k), "uncertainty that is left"),
        (lambda f, k, s: np.array(within(f, k, s)[0]), "single number"),
    ],
    "chance_level": [
        (lambda f, c, n, rng: dealt(f, c, 300, rng), "repeats=1"),
        (lambda f, c, n, rng: dealt(f, c / c.sum(1, keepdims=True), n, rng), "weighs as many turns as it has"),
        (lambda f, c, n, rng: dealt(f, c, n, rng, log=np.log), "nats"),
        (lambda f, c, n, rng: as_it_is(f, c), "nothing was dealt"),
        (turns_dealt, "EPISODES"),
        (lambda f, c, n, rng: dealt(f, c, n, rng, finish=np.max), "largest|nothing was dealt"),
        (lambda f, c, n, rng: dealt(f, c, n, rng, deal=lambda: rng.choice(f, len(f))), "replacement"),
        (lambda f, c, n, rng: as_it_is(f, c) - dealt(f, c, n, rng), "gain over chance|nats"),
        (lambda f, c, n, rng: dealt(f, c, n, rng, finish=np.sum), "divide by their number"),
        (lambda f, c, n, rng: dealt(f, c, n, np.random.default_rng()), "same rng"),
        (in_place, "changed what it was given"),
        (lambda f, c, n, rng: float("nan"), "permute the families"),
    ],
    "closed_softmax": [
        (lambda z, o: softmax(np.where(o, z, 0), axis=1), r"exp\(0\) is 1"),
        (lambda z, o: softmax(z, axis=1) * o, "BEFORE the softmax"),
        (lambda z, o: np.nan_to_num(softmax(np.where(o, z, -np.inf), axis=0)), "down the columns"),
        (lambda z, o: softmax(z, axis=1), "nothing is closed"),
        (lambda z, o: softmax(np.where(o, -np.inf, z), axis=1), "open outputs were closed"),
        (lambda z, o: (e := np.exp(np.where(o, z, -np.inf))) / e.sum(1, keepdims=True), "largest (OPEN|open) logit"),
        (lambda z, o: (e := softmax(z, axis=1) * o) / e.sum(1, keepdims=True), "largest (OPEN|open) logit"),
        (lambda z, o: np.nan_to_num(softmax(np.where(o, z, -np.inf), axis=1)), "accepts that nothing is open"),
    ],
    "paired_seeds": [
        (lambda a, b: result(-by_seed(a, b), sem(by_seed(a, b))), "a minus b"),
        (lambda a, b: result(d := by_seed(a, b), d.std() / len(d) ** 0.5), "ddof=1"),
        (lambda a, b: result(d := by_seed(a, b), d.std(ddof=1)), "root of n"),
        (apart, "seed by seed first"),
        (in_order, "in the order they came"),
        (lambda a, b: result(d := by_seed(a, b), sem(d), 1), "inside TWO"),
        (lambda a, b: result(d := by_seed(a, b), sem(d), 0), "always called ahead"),
        (lambda a, b: result(by_seed(a, b), sem(by_seed(a, b)))[:3], "length 3"),
    ],
}


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_answer_gets_its_message(name, wrong, says):
    for _ in range(20 if name != "chance_level" else 5):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_roles, f"check_{name}")(wrong)
