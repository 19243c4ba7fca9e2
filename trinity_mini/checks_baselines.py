"""The checkers of lesson 09, evolution or gradients. Fresh random inputs; the oracles are autograd and brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch

from .checks import Wrong, called, passed, recognised, same

ROUNDS = 20


def check_choice_slope(fn: Callable) -> None:
    """Exercise 9.1: choice_slope(w (L + 3, d), h (d,), agent, role) -> (L + 3, d), against autograd."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, d = int(rng.integers(3, 7)), int(rng.integers(10, 15))
        w, h = rng.normal(size=(n + 3, d)), rng.normal(size=d)
        agent, role = int(rng.integers(n)), int(rng.integers(3))
        x = torch.from_numpy(w.copy()).requires_grad_()
        z = x @ torch.from_numpy(h)
        (z[:n].log_softmax(0)[agent] + z[n:].log_softmax(0)[role]).backward()
        wanted = x.grad.numpy()
        p, q = (v.softmax(0).detach().numpy() for v in (z[:n], z[n:]))
        together = z.softmax(0).detach().numpy()
        hot = np.zeros(n + 3)
        hot[[agent, n + role]] = 1
        shifted = np.concatenate([p, q])
        first = np.zeros(n + 3)
        first[agent] += 1
        first[role] += 1
        mistakes = {
            "the probabilities are missing: the slope of log p(a) is the one-hot of a MINUS p.": np.outer(hot, h),
            "the sign is turned: what was chosen must become MORE likely, one-hot minus p.": -wanted,
            "these are two softmaxes, one over the agents and one over the roles, not one over all.": np.outer(
                hot - 2 * together, h
            ),
            "one softmax over all rows: the agents and the roles each have their own.": np.outer(hot - together, h),
            "the rows of the roles are 0: both draws count.": np.where(np.arange(n + 3)[:, None] < n, wanted, 0),
            "the rows of the agents are 0: both draws count.": np.where(np.arange(n + 3)[:, None] < n, 0, wanted),
            "the roles' rows come after the agents': role r is row L + r.": np.outer(first - shifted, h),
            "this is the slope of p; the slope of log p is that over p.": wanted * p[agent] * q[role],
        }
        found = called(fn, w.copy(), h.copy(), agent, role, what="choice_slope")
        hint = recognised(found, mistakes, "an outer product: (one-hot minus probabilities, agents first) times h.")
        same(found, wanted, f"choice_slope(..., agent={agent}, role={role})", hint)
    passed("choice_slope", ROUNDS)


def check_leave_one_out(fn: Callable) -> None:
    """Exercise 9.2: leave_one_out(rewards (Q, R), NaN where lost) -> (Q, R), against a loop over the others."""
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        q, r = int(rng.integers(4, 7)), int(rng.integers(4, 8))
        rewards = rng.integers(2, size=(q, r)).astype(float)
        rewards[rng.random((q, r)) < 0.2] = np.nan
        rewards[0, :3], rewards[1], rewards[2, :3] = [1, np.nan, 0], np.nan, [0, 1, 1]
        rewards[1, int(rng.integers(r))] = 1.0  # a single one seen: nobody to compare it with
        rewards[3] = [1.0, *[0.0] * (r - 1)]
        rewards = rng.permuted(rewards, axis=1)

        def each(what: Callable[[int, int], float], rewards: np.ndarray = rewards) -> np.ndarray:
            """what(i, j) of each seen episode, 0 of each lost one."""
            out = np.zeros(rewards.shape)
            for i, j in np.argwhere(np.isfinite(rewards)):
                out[i, j] = what(i, j)
            return out

        def others(i: int, j: int, rewards: np.ndarray = rewards) -> np.ndarray:
            left = np.delete(rewards[i], j)
            return left[np.isfinite(left)]

        def against_others(i: int, j: int, rewards: np.ndarray = rewards) -> float:
            rest = others(i, j)
            return float(rewards[i, j] - rest.mean()) if len(rest) else 0.0

        def spread(i: int, rewards: np.ndarray = rewards) -> float:
            return float(np.nanstd(rewards[i])) or 1.0

        wanted = each(against_others)
        zeros = np.nan_to_num(rewards)
        everything = np.nansum(rewards), np.isfinite(rewards).sum()
        with_lost = zeros - (zeros.sum(1, keepdims=True) - zeros) / (r - 1)
        given = rewards.copy()
        found = called(fn, given, what="leave_one_out")
        if not np.array_equal(given, rewards, equal_nan=True):
            raise Wrong("leave_one_out has changed the rewards it was given. Hint: work on a copy.")
        mistakes = {
            "nothing was taken off: subtract the mean of the other episodes.": zeros,
            "the mean holds the episode itself: leave it out of its own baseline.": each(
                lambda i, j, x=rewards: x[i, j] - float(np.nanmean(x[i]))
            ),
            "the others are those of the SAME question, not of the whole batch.": each(
                lambda i, j, x=rewards, e=everything: x[i, j] - (e[0] - x[i, j]) / (e[1] - 1)
            ),
            "a lost episode counts as a reward of 0: leave it out of the means.": np.where(
                np.isfinite(rewards), with_lost, 0
            ),
            "a lost episode is not a wrong one: its weight is 0, and it is in no mean.": with_lost,
            "divided by the standard deviation (as GRPO does): here only the mean is taken off.": each(
                lambda i, j: against_others(i, j) / spread(i)
            ),
            "with nobody to compare with, the weight is 0, not the reward.": each(
                lambda i, j, x=rewards: against_others(i, j) if len(others(i, j)) else x[i, j]
            ),
            "the sign is turned: the reward MINUS the mean of the others.": -wanted,
        }
        hint = recognised(found, mistakes, "(sum - own) / (count - 1), with sums and counts of the seen ones only.")
        if isinstance(found, np.ndarray) and found.dtype.kind == "f" and np.isnan(found).any():
            hint = "no NaN may come out: a lost episode weighs 0, and so does one that has nobody to compare with."
        same(found, wanted, "leave_one_out(...)", hint)
    passed("leave_one_out", ROUNDS)


def check_updates_needed(fn: Callable) -> None:
    """Exercise 9.3: updates_needed(p, k, lr, h) -> whole number, against a head that is moved step by step."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        while True:
            k, p, h = int(rng.integers(3, 8)), float(rng.uniform(0.5, 0.95)), rng.normal(size=int(rng.integers(4, 20)))
            steps = float(rng.uniform(20, 200))
            lr = math.log(p * (k - 1) / (1 - p)) / (2 * float(np.abs(h).sum())) / steps
            mistakes = _wrong_counts(p, k, lr, h)
            found_by = [*mistakes.values(), math.ceil(steps)]
            if 0.001 < steps % 1 < 0.999 and len({*found_by}) == len(found_by):  # each mistake has its own number
                break
        if i == ROUNDS - 1:
            p = 0.9 / k  # less than the uniform policy has
        w, wanted = np.zeros((k, len(h))), 0
        while np.exp(w[0] @ h) / np.exp(w @ h).sum() < p:
            w[0] += lr * np.sign(h)
            w[1:] -= lr * np.sign(h)
            wanted += 1
        found = called(fn, p, k, lr, h.copy(), what="updates_needed")
        text = f"updates_needed({p:.3f}, {k}, {lr:.3g}, h)"
        if isinstance(found, float | np.floating):
            if not float(found).is_integer():
                raise Wrong(f"{text} is {found:.4g}, not a whole number. Hint: round up, with np.ceil.")
            found = int(found)
        if i == ROUNDS - 1:
            mistakes = {"p is reached before the first update here: the answer is 0, and never negative.": found}
        hint = recognised(found, mistakes, "the gap is ln(p (k - 1) / (1 - p)); an update closes 2 lr sum|h| of it.")
        same(found, wanted, text, hint)
    passed("updates_needed", ROUNDS)


def _wrong_counts(p: float, k: int, lr: float, h: np.ndarray) -> dict[str, int]:
    odds, reach = math.log(p / (1 - p)), float(np.abs(h).sum())
    gap = odds + math.log(k - 1)
    right = math.ceil(gap / (2 * lr * reach))
    length, total = float(np.linalg.norm(h)), max(abs(float(h.sum())), 1e-9)
    return {
        "one too few: round up.": right - 1,
        "one too many: it is enough to reach p.": right + 1,
        "the other logits fall while this one rises: their difference moves twice as far.": math.ceil(
            gap / (lr * reach)
        ),
        "there are k - 1 others to outweigh: the odds are p / (1 - p) times k - 1.": math.ceil(odds / (2 * lr * reach)),
        "each parameter moves by lr, so a logit moves by lr times the sum of |h|, not by h's length.": math.ceil(
            gap / (2 * lr * length)
        ),
        "parts of h that are negative help as well, since their weight can fall: sum |h|.": math.ceil(
            gap / (2 * lr * total)
        ),
    }


def check_signal_to_noise(fn: Callable) -> None:
    """Exercise 9.4: signal_to_noise(x (N, n)) -> a number, against averages over pairs of different estimates.

    The mean of x_i . x_j is the signal without a bias, half the mean of |x_i - x_j|^2 is the noise.
    """
    rng = np.random.default_rng()
    for _ in range(ROUNDS):
        n, d = int(rng.integers(4, 9)), int(rng.integers(3, 8))
        x = rng.normal(size=d) + rng.uniform(0.5, 2, d) * rng.normal(size=(n, d))
        pairs = list(itertools.combinations(range(n), 2))
        signal = float(np.mean([x[i] @ x[j] for i, j in pairs]))
        noise = float(np.mean([((x[i] - x[j]) ** 2).sum() / 2 for i, j in pairs]))
        wanted = signal / noise
        mean, low = float((x.mean(0) ** 2).sum()), float(x.var(0).sum())
        mistakes = {
            "the mean of few estimates holds noise, too: take noise / N off its square.": mean / noise,
            "the noise left in the mean is the noise of one estimate over N.": (mean - noise) / noise,
            "with the variance of n - 1 (ddof=1): np.var divides by N unless told.": (mean - low / n) / low,
            "the wrong way up: signal over noise.": noise / signal,
            "a ratio of squares: no root is taken.": math.sqrt(max(wanted, 0)),
            "the noise is the sum of the variances, not of the standard deviations.": signal
            / float(x.std(0, ddof=1).sum()),
            "first sum over the parameters, then divide; this is a mean of ratios.": float(
                np.mean((x.mean(0) ** 2 - x.var(0, ddof=1) / n) / x.var(0, ddof=1))
            ),
        }
        found = called(fn, x.copy(), what="signal_to_noise")
        hint = recognised(found, mistakes, "(|mean|^2 - noise / N) / noise, noise the sum of the variances.")
        same(found, wanted, "signal_to_noise(x)", hint)
    passed("signal_to_noise", ROUNDS)


def check_expected_best(fn: Callable) -> None:
    """Exercise 9.5: expected_best(tuning (n,), fresh (n,), k) -> a number, against every subset of k settings."""
    rng = np.random.default_rng()
    for i in range(ROUNDS):
        n = int(rng.integers(5, 9))
        k = {0: 1, 1: n}.get(i, int(rng.integers(2, n)))
        tuning, fresh = rng.permutation(n) / n + rng.uniform(0, 0.5 / n, n), rng.random(n)
        while fresh.argmax() in (tuning.argmax(), tuning.argmin()):  # else two mistakes give one number
            rng.shuffle(fresh)
        subsets = list(itertools.combinations(range(n), k))

        def mean(of: Callable[[tuple], float], subsets: list = subsets) -> float:
            return float(np.mean([of(s) for s in subsets]))

        wanted = mean(lambda s, a=tuning, b=fresh: b[max(s, key=lambda j: a[j])])
        order, ranks = np.argsort(tuning), np.arange(n)
        again = ((ranks + 1) ** k - ranks**k) / n**k
        mistakes = {
            "this is the score it was CHOSEN by, luck included: report the fresh one.": mean(
                lambda s, a=tuning: max(a[j] for j in s)
            ),
            "choosing by the fresh scores is peeking: choose by `tuning`.": mean(
                lambda s, b=fresh: max(b[j] for j in s)
            ),
            "this is the WORST of k: the largest tuning score is wanted.": mean(
                lambda s, a=tuning, b=fresh: b[min(s, key=lambda j: a[j])]
            ),
            "nothing was chosen: this is the mean of all settings.": float(fresh.mean()),
            "this is the best of all n; only k of them are tried.": float(fresh[order[-1]]),
            "no setting is drawn twice: comb(i, k - 1) / comb(n, k), not powers.": float(again @ fresh[order]),
        }
        found = called(fn, tuning.copy(), fresh.copy(), k, what="expected_best")
        again = called(fn, tuning.copy(), fresh.copy(), k, what="expected_best")
        if isinstance(found, float) and not np.array_equal(again, found, equal_nan=True):
            raise Wrong("expected_best differs from call to call. Hint: add up the chances, do not simulate.")
        hint = recognised(found, mistakes, "the i-th from below wins if the other k - 1 are among the i below it.")
        same(found, wanted, f"expected_best(..., k={k})", hint)
    passed("expected_best", ROUNDS)
