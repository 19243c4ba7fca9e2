"""The checkers of lesson 10, roles. Each draws fresh random inputs; oracles are pandas, scipy and all permutations."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import softmax
from scipy.stats import entropy

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20
DEALS, REPEATS = 6, 1500  # rounds, and permutations a round, of exercise 10.3


# ---- 10.1 ------------------------------------------------------------------------------------------------------------


def check_transition_matrix(fn: Callable) -> None:
    """Exercise 10.1: transition_matrix(spoken, speakers) -> (K + 1, K + 1), against pandas.crosstab."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        speakers = [f"agent {k}" for k in rng.permutation(int(rng.integers(4, 7)))]  # in any order
        many = speakers[:-1] if i % 3 == 0 else speakers  # the last one may never speak

        def table(pairs: list[tuple[str, str]], speakers: list[str] = speakers) -> np.ndarray:
            before, after = zip(*pairs, strict=True)
            counted = pd.crosstab(pd.Series(before), pd.Series(after))
            return counted.reindex(index=[*speakers, "start"], columns=[*speakers, "end"], fill_value=0).to_numpy(float)

        counts = np.zeros((1, 1))
        while (counts == counts.T).all():  # else lines and columns could not be told apart
            spoken = [[str(s) for s in rng.choice(many, int(rng.integers(1, 6)))] for _ in range(12)]
            spoken += [[s, s] for s in many]
            counts = table([p for e in spoken for p in itertools.pairwise(["start", *e, "end"])])
        found = called(fn, [list(e) for e in spoken], list(speakers), what="transition_matrix")
        inside = [p for e in spoken for p in itertools.pairwise(e)]
        flat = [s for e in spoken for s in e]
        sums = counts.sum(axis=1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            nan, by_column = counts / sums, counts / counts.sum(axis=0)
            borders = table([("start", flat[0]), *itertools.pairwise(flat), (flat[-1], "end")])
            borders, alone = _lines(borders), _lines(table(inside))
            wanted = _lines(counts)
            mistakes = {
                "these are counts: divide each line by its sum.": counts,
                "these are shares of all transitions: each LINE must sum to 1.": counts / counts.sum(),
                "the columns sum to 1: divide by the sum of the line (axis=1, keepdims=True).": np.nan_to_num(
                    by_column
                ),
                "the last speaker of an episode is not followed by the first of the next: pair them within "
                "each episode.": borders,
                "'start' and 'end' are missing: pair ['start', *episode, 'end'].": alone,
                "before and after are exchanged: lines are who spoke before.": wanted.T,
                "a line without a transition is 0 divided by 0: leave it at 0.": nan,
            }
        hint = recognised(found, mistakes, "count the pairs of ['start', *episode, 'end'], then divide the lines.")
        same(found, wanted, "transition_matrix(...)", hint)
    passed("transition_matrix", ROUNDS)


def _lines(counts: np.ndarray) -> np.ndarray:
    sums = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, sums, out=np.zeros_like(counts), where=sums > 0)


# ---- 10.2 ------------------------------------------------------------------------------------------------------------


def check_extra_bits(fn: Callable) -> None:
    """Exercise 10.2: extra_bits(family, kind, speaker) -> float, against a sum of scipy's entropies."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n, families, kinds, speakers = int(rng.integers(60, 200)), 3, int(rng.integers(2, 4)), int(rng.integers(3, 6))
        family = rng.choice(families, n, p=[0.6, 0.3, 0.1])
        kind = rng.integers(kinds, size=n)
        p = rng.dirichlet(np.full(speakers, 0.4), (families, kinds))
        speaker = np.array([rng.choice(speakers, p=p[f, k]) for f, k in zip(family, kind, strict=True)])
        if i % 2:
            kind = kind + kinds * family  # as in this world: a kind belongs to one family
        names = [np.array(list(letters)) for letters in ("XYZ", "abcdefghi", "stuvw")]
        given = [name[x] for name, x in zip(names, (family, kind, speaker), strict=True)]
        found = called(fn, *(g.copy() for g in given), what="extra_bits")
        f, k, s = given

        def h(*columns: np.ndarray) -> float:
            return float(entropy(np.unique(np.stack(columns), axis=1, return_counts=True)[1], base=2))

        wanted = h(f, k) + h(f, s) - h(f, k, s) - h(f)
        within = [h(k[f == x]) + h(s[f == x]) - h(k[f == x], s[f == x]) for x in np.unique(f)]
        mistakes = {
            "these are nats: use np.log2.": wanted * np.log(2),
            "this counts what the family tells, too: look within each family.": h(k) + h(s) - h(k, s),
            "this is what family and kind tell TOGETHER: subtract what the family tells.": h(f, k) + h(s) - h(f, k, s),
            "this is what the family tells; the kind is wanted on top of it.": h(f) + h(s) - h(f, s),
            "families count by their share of the turns, not equally.": float(np.mean(within)),
            "the families' bits are added up: weight each by its share of the turns.": float(np.sum(within)),
            "two families may call a kind alike: do not subtract, look within each family.": h(k)
            + h(s)
            - h(k, s)
            - (h(f) + h(s) - h(f, s)),
            "this is the uncertainty that is left, not the bits that were gained.": h(f, k, s) - h(f, k),
        }
        same(found, wanted, "extra_bits(...)", recognised(found, mistakes, "a weighted mean over the families."))
    passed("extra_bits", ROUNDS)


# ---- 10.3 ------------------------------------------------------------------------------------------------------------


def check_chance_level(fn: Callable) -> None:
    """Exercise 10.3: chance_level(families (E,), counts (E, K), repeats, rng) -> float, against ALL permutations."""
    rng, rounds, found, single = np.random.default_rng(), [], [], []
    for i in range(DEALS):
        families, order = np.array([0, 0, 0, 1, 1, 1]), rng.permutation(6)
        favour = np.array([0.94, 0.02, 0.02, 0.02])  # specialised, so that dealing matters
        turns = rng.permutation([2, 3, 5, 8, 10, 12])  # an episode counts by its turns
        counts = np.stack([rng.multinomial(n, favour[:: 1 if k < 3 else -1]) for k, n in enumerate(turns)])
        if i % 2:  # three families, a label left out
            families = np.array([0, 0, 2, 2, 3, 3])
        if i == DEALS - 1:  # everybody a speaker of their own: 1 bit, however the families are dealt
            counts = 8 * np.eye(6, dtype=int)
        families, counts = families[order], counts[order]
        values = _bits(_permuted(families), counts)
        seed = int(rng.integers(2**31))
        twice = [_asked(fn, families, counts, 20, seed) for _ in range(2)]
        if not np.array_equal(*twice, equal_nan=True):
            raise Wrong("chance_level differs for the same rng. Hint: draw from the rng that is given, from no other.")
        rounds.append((families, counts, values))
        single.append((_asked(fn, families, counts, 1, seed), twice[0]))
        found.append(_asked(fn, families, counts, REPEATS, seed))
    # With the same seed, the value of one deal tells many mistakes without chance.
    near = all(abs(f - v.mean()) <= _tolerance(v) for f, (*_, v) in zip(found, rounds, strict=True))
    own = [_bits(f[None], c)[0] for f, c, _ in rounds]
    if not near and all(abs(f - o) <= 1e-6 for f, o in zip(found, own, strict=True)):
        raise Wrong(
            "chance_level is the value of the episodes as they are: nothing was dealt anew. "
            "Hint: permute the families, then take the mean of the bits over the repeats."
        )
    one_deal = {
        None: [v for *_, v in rounds],
        "it is of episodes that all count alike. Hint: an episode weighs as many turns as it has: add its counts as "
        "they are.": [_bits(_permuted(f), c / c.sum(axis=1, keepdims=True)) for f, c, _ in rounds],
        "these are nats. Hint: use np.log2.": [v * np.log(2) for *_, v in rounds],
        "it is the gain over chance. Hint: the chance level itself is wanted.": [
            o - v for o, (*_, v) in zip(own, rounds, strict=True)
        ],
    }
    told = [
        what
        for what, wanted in one_deal.items()
        if all(abs(w - one).min() <= 1e-6 for w, (one, _) in zip(wanted, single, strict=True))
    ]
    if told and told[0] is not None:
        raise Wrong(f"chance_level with repeats=1 is the value of no single deal: {told[0]}")
    if not told and (near or all(one == many for one, many in single)):
        raise Wrong("chance_level with repeats=1 is the value of no single deal. Hint: deal `repeats` times.")
    if not near:
        raise Wrong(_far(found, rounds, rng))
    passed("chance_level", DEALS)


def _permuted(families: np.ndarray) -> np.ndarray:
    """(720, 6): all orders of six families."""
    return families[np.array(list(itertools.permutations(range(6))))]


def _asked(fn: Callable, families: np.ndarray, counts: np.ndarray, repeats: int, seed: int) -> float:
    given = families.copy(), counts.copy()
    found = called(fn, *given, repeats, np.random.default_rng(seed), what="chance_level")
    if not (np.array_equal(given[0], families) and np.array_equal(given[1], counts)):
        raise Wrong("chance_level has changed what it was given. Hint: rng.permutation(x) returns a new array.")
    try:
        number = float(found) if np.ndim(found) == 0 and not isinstance(found, str) else 0.0
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    same(found, number, "chance_level(...)", "return one number.")
    return float(found)


def _tolerance(values: np.ndarray) -> float:
    """Six standard errors of REPEATS draws."""
    return 6 * values.std() / REPEATS**0.5 + 1e-9


def _far(found: list[float], rounds: list[tuple], rng: np.random.Generator) -> str:
    """The message for what was found in the rounds; the hint is the mistake that is nearest over all of them."""
    total: dict[str, float] = {}
    for value, (families, counts, values) in zip(found, rounds, strict=True):
        wanted, k, far = values.mean(), counts.shape[1], max(_tolerance(values), 0.03)
        turns = np.repeat(np.tile(np.arange(k), 6), counts.ravel())  # speakers, a turn each
        owner = np.repeat(families, counts.sum(axis=1))
        shuffled = [_bits(rng.permutation(owner)[None], np.eye(k)[turns])[0] for _ in range(400)]
        resampled, own = _bits(families[rng.integers(6, size=(4000, 6))], counts), _bits(families[None], counts)[0]
        mistakes = {
            "these are nats: use np.log2.": wanted * np.log(2),
            "nothing was dealt anew: this is the value of the episodes as they are.": own,
            "deal the families among EPISODES: turns of one episode belong together.": np.mean(shuffled),
            "the largest of the dealt values is no chance level: the mean is wanted.": values.max(),
            "families were drawn with replacement: rng.permutation keeps how many episodes each has.": resampled.mean(),
            "this is the gain over chance; the chance level itself is wanted.": own - wanted,
            "this is the sum over the repeats: divide by their number.": wanted * REPEATS,
        }
        for hint, m in mistakes.items():
            total[hint] = total.get(hint, 0.0) + abs(value - m) / (far if m < 10 else far * REPEATS)
    hint = min(total, key=total.get)
    if not total[hint] <= len(found):
        hint = "permute the families, then take the mean of the bits over the repeats."
    worst = max(range(len(found)), key=lambda i: abs(found[i] - rounds[i][2].mean()))
    values = rounds[worst][2]
    return (
        f"chance_level(...) is {found[worst]:.4f}; all 720 permutations of these six episodes give {values.mean():.4f} "
        f"on average, and {REPEATS} random ones come within {_tolerance(values):.4f} of it. Hint: {hint}"
    )


def _bits(families: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Mutual information (P,) of family and speaker for families (P, E) and counts (E, K): sums of entropies."""
    own = np.stack([families == f for f in np.unique(families)], axis=1).astype(float)  # (P, F, E)
    joint = own @ counts
    joint /= joint.sum(axis=(1, 2), keepdims=True)

    def h(p: np.ndarray) -> np.ndarray:
        return entropy(p.reshape(len(p), -1), base=2, axis=1)

    return h(joint.sum(axis=2)) + h(joint.sum(axis=1)) - h(joint)


# ---- 10.4 ------------------------------------------------------------------------------------------------------------


def check_closed_softmax(fn: Callable) -> None:
    """Exercise 10.4: closed_softmax(logits (N, K), opened (K,)) -> (N, K), against scipy on the open outputs alone."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n, k = int(rng.integers(2, 6)), int(rng.integers(7, 10))
        z = rng.normal(0, 2, (n, k)) + rng.normal(0, 3, (n, 1))
        order = rng.permutation(k)
        opened = np.zeros(k, dtype=bool)
        opened[order[: int(rng.integers(2, k - 1))]] = True
        if i >= ROUNDS // 2:  # where a careless exponential overflows, and where one closed output has all the weight
            z = z * 300
            z[0, order[0]], z[1, order[-1]] = 2000, z[1].max() + 2000
        given = z.copy(), opened.copy()
        with np.errstate(all="ignore"):
            found = called(fn, *given, what="closed_softmax")
        if not np.array_equal(given[0], z):
            raise Wrong("closed_softmax has changed the logits it was given. Hint: make a new array with np.where.")
        wanted = np.zeros((n, k))
        wanted[:, opened] = softmax(z[:, opened], axis=1)
        whole = softmax(z, axis=1)
        with np.errstate(all="ignore"):
            columns = softmax(np.where(opened, z, -np.inf), axis=0)
        mistakes = {
            "a logit of 0 is no closed output, exp(0) is 1: use -np.inf.": softmax(np.where(opened, z, 0), axis=1),
            "the open outputs no longer sum to 1: close BEFORE the softmax, or divide again.": whole * opened,
            "the softmax runs down the columns: each line is a decision of its own (axis=1).": np.nan_to_num(columns),
            "nothing is closed.": whole,
            "the open outputs were closed: opened is True where an output may be chosen.": _shut(z, ~opened),
        }
        otherwise = "logits of closed outputs become -np.inf; subtract the line's largest open logit, then exp."
        if isinstance(found, np.ndarray) and found.shape == wanted.shape and np.isnan(found.astype(float)).any():
            otherwise = "inf / inf, or 0 / 0: subtract each line's largest OPEN logit before the exponential."
        same(found, wanted, "closed_softmax(...)", recognised(found, mistakes, otherwise))
    try:
        called(fn, np.zeros((1, 3)), np.zeros(3, dtype=bool), what="closed_softmax")
    except Wrong as e:
        if isinstance(e.__cause__, ValueError):
            passed("closed_softmax", ROUNDS)
            return
        raise
    raise Wrong("closed_softmax accepts that nothing is open. Hint: `if not opened.any(): raise ValueError(...)`.")


def _shut(z: np.ndarray, opened: np.ndarray) -> np.ndarray:
    out = np.zeros_like(z)
    out[:, opened] = softmax(z[:, opened], axis=1)
    return out


# ---- 10.5 ------------------------------------------------------------------------------------------------------------


def check_paired_seeds(fn: Callable) -> None:
    """Exercise 10.5: paired_seeds(a, b) -> (difference, se, n, ahead), against the module statistics."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(4, 11))
        base, d = rng.normal(0.7, 0.2, n), rng.normal(0, 1, n)
        d = (d - d.mean()) / d.std(ddof=1)
        d = d * 0.05 + (0.3, -1.5, -3.0, 1.6, 3.0)[i % 5] * 0.05 / n**0.5  # some between one and two s.e.
        seeds = rng.permutation(np.arange(1, 30))[: n + 2].tolist()
        a = {s: float(x) for s, x in zip(seeds, base + d, strict=False)} | {seeds[n]: 5.0}
        b = {s: float(x) for s, x in zip(seeds, base, strict=False)} | {seeds[n + 1]: -5.0}
        b = {s: b[s] for s in sorted(b, key=lambda s: (s * 7) % 31)}  # another order
        found = called(fn, dict(a), dict(b), what="paired_seeds")
        both = [s for s in a if s in b]
        diff = [a[s] - b[s] for s in both]

        def result(diff: list[float], se: float, times: float = 2, n: int | None = None) -> tuple:
            mean = statistics.fmean(diff)
            ahead = "a" if mean > times * se else "b" if mean < -times * se else None
            return mean, se, len(diff) if n is None else n, ahead

        sd, root = statistics.stdev(diff), len(diff) ** 0.5
        apart = np.hypot(statistics.stdev(a[s] for s in both), statistics.stdev(b[s] for s in both)) / root
        order = [x - y for x, y in zip(a.values(), b.values(), strict=True)]
        in_order = statistics.stdev(order) / len(order) ** 0.5
        wanted = result(diff, sd / root)
        mistakes = {
            "the difference runs the wrong way: a minus b.": result([-x for x in diff], sd / root),
            "divide by n - 1 in the standard deviation (ddof=1).": result(diff, statistics.pstdev(diff) / root),
            "this is the standard deviation of one seed: divide by the root of n.": result(diff, sd),
            "these are two independent samples' errors: take the difference seed by seed first.": result(diff, apart),
            "the values were paired in the order they came, not by seed.": result(order, in_order),
            "nobody is ahead inside TWO standard errors.": result(diff, sd / root, 1),
            "somebody is always called ahead: inside two standard errors it is nobody, None.": result(
                diff, sd / root, 0
            ),
        }
        hint = recognised(found, mistakes, "the seeds in both, one array of differences, its mean and error.")
        same(found, wanted, "paired_seeds(...)", hint)
    passed("paired_seeds", ROUNDS)
