"""The checkers of lesson 09: right answers pass, typical wrong ones get a message that fits."""

from math import comb

import numpy as np
import pytest

from trinity_mini import checks_baselines
from trinity_mini.checks import Wrong


def softmax(z):
    return np.exp(z) / np.exp(z).sum()


def parts(w, h, agent, role):
    z, n = w @ h, len(w) - 3
    return np.eye(n)[agent], np.eye(3)[role], softmax(z[:n]), softmax(z[n:])


def slope(w, h, agent, role, sign=1.0, both=(1, 1)):
    a, r, p, q = parts(w, h, agent, role)
    return sign * np.outer(np.concatenate([both[0] * (a - p), both[1] * (r - q)]), h)


def no_probabilities(w, h, agent, role):
    a, r, _, _ = parts(w, h, agent, role)
    return np.outer(np.concatenate([a, r]), h)


def one_softmax(w, h, agent, role):
    a, r, _, _ = parts(w, h, agent, role)
    return np.outer(np.concatenate([a, r]) - softmax(w @ h), h)


def role_in_the_agents_rows(w, h, agent, role):
    _, _, p, q = parts(w, h, agent, role)
    hot = np.zeros(len(w))
    hot[agent] += 1
    hot[role] += 1
    return np.outer(hot - np.concatenate([p, q]), h)


def not_of_the_log(w, h, agent, role):
    _, _, p, q = parts(w, h, agent, role)
    return p[agent] * q[role] * slope(w, h, agent, role)


def compared(with_itself=False, whole_batch=False, lost=None, alone=0.0, sign=1.0, spread=False):
    """leave_one_out with one thing wrong."""

    def found(rewards):
        out = np.zeros(rewards.shape)
        for (i, j), r in np.ndenumerate(rewards):
            rest = rewards[i] if with_itself else np.delete(rewards[i], j)
            if whole_batch:
                rest = np.delete(rewards.ravel(), i * rewards.shape[1] + j)
            if lost == "wrong":
                rest, r = np.nan_to_num(rest), np.nan_to_num(r)
            if lost == "zero":
                rest = np.nan_to_num(rest)
            rest = rest[np.isfinite(rest)]
            if np.isfinite(r):
                out[i, j] = sign * (r - rest.mean()) if len(rest) else alone * r
                if spread:
                    out[i, j] /= np.nanstd(rewards[i]) or 1
        return out

    return found


def nan_kept(rewards):
    return np.where(np.isfinite(rewards), compared()(rewards), np.nan)


def in_place(rewards):
    rewards[:] = compared()(rewards)
    return rewards


def gap(p, k):
    return np.log(p * (k - 1) / (1 - p))


def up(x):
    return max(0, int(np.ceil(x)))


def snr(x, ddof=1, left=1.0, over=1.0):
    noise = x.var(0, ddof=ddof).sum()
    return float(((x.mean(0) ** 2).sum() - left * noise / len(x)) / noise)


def best(tuning, fresh, k, score=None):
    order = np.argsort(tuning)
    score = fresh if score is None else score
    return float(sum(comb(i, k - 1) * score[j] for i, j in enumerate(order)) / comb(len(order), k))


def again(tuning, fresh, k):
    n = len(tuning)
    i = np.arange(n)
    return float((((i + 1) ** k - i**k) / n**k) @ fresh[np.argsort(tuning)])


def simulated(tuning, fresh, k):
    rng, n = np.random.default_rng(), len(tuning)
    drawn = [rng.permutation(n)[:k] for _ in range(300)]
    return float(np.mean([fresh[s[np.argmax(tuning[s])]] for s in drawn]) + 1e-6 * rng.random())


WRONG = {
    "choice_slope": [
        (no_probabilities, "probabilities are missing"),
        (lambda *a: slope(*a, sign=-1), "sign is turned"),
        (one_softmax, "one softmax over all rows"),
        (lambda *a: slope(*a, both=(1, 0)), "rows of the roles are 0"),
        (lambda *a: slope(*a, both=(0, 1)), "rows of the agents are 0"),
        (role_in_the_agents_rows, "after the agents'"),
        (not_of_the_log, "slope of p; the slope of log p"),
        (lambda *a: slope(*a).T, "axes are swapped"),
        (lambda *a: None, "return"),
    ],
    "leave_one_out": [
        (lambda r: np.nan_to_num(r), "nothing was taken off"),
        (compared(with_itself=True), "holds the episode itself"),
        (compared(whole_batch=True), "SAME question"),
        (compared(lost="zero"), "counts as a reward of 0"),
        (compared(lost="wrong"), "not a wrong one"),
        (compared(spread=True), "GRPO"),
        (compared(alone=1.0), "nobody to compare with"),
        (compared(sign=-1.0), "MINUS the mean"),
        (nan_kept, "no NaN may come out"),
        (in_place, "changed the rewards"),
    ],
    "updates_needed": [
        (lambda p, k, lr, h: up(gap(p, k) / (lr * np.abs(h).sum())), "twice as far"),
        (lambda p, k, lr, h: int(gap(p, k) / (2 * lr * np.abs(h).sum())), "one too few"),
        (lambda p, k, lr, h: int(gap(p, k) / (2 * lr * np.abs(h).sum())) + 2, "one too many"),
        (lambda p, k, lr, h: up(gap(p, 2) / (2 * lr * np.abs(h).sum())), "k - 1 others"),
        (lambda p, k, lr, h: up(gap(p, k) / (2 * lr * np.linalg.norm(h))), "not by h's length"),
        (lambda p, k, lr, h: up(gap(p, k) / (2 * lr * abs(h.sum()))), "negative help as well"),
        (lambda p, k, lr, h: gap(p, k) / (2 * lr * np.abs(h).sum()), "whole number"),
        (lambda p, k, lr, h: int(np.ceil(gap(p, k) / (2 * lr * np.abs(h).sum()))) - (p < 1 / k), "before the first"),
    ],
    "signal_to_noise": [
        (lambda x: snr(x, left=0), "holds noise, too"),
        (lambda x: snr(x, left=len(x)), "noise of one estimate over N"),
        (lambda x: snr(x, ddof=0), "ddof=1"),
        (lambda x: 1 / snr(x), "wrong way up"),
        (lambda x: max(snr(x), 0) ** 0.5, "ratio of squares|first index|wanted"),
        (
            lambda x: ((x.mean(0) ** 2).sum() - x.var(0, ddof=1).sum() / len(x)) / x.std(0, ddof=1).sum(),
            "not of the standard deviations",
        ),
        (lambda x: np.mean((x.mean(0) ** 2 - x.var(0, ddof=1) / len(x)) / x.var(0, ddof=1)), "mean of ratios"),
    ],
    "expected_best": [
        (lambda a, b, k: best(a, b, k, score=a), "CHOSEN by"),
        (lambda a, b, k: best(b, b, k), "peeking"),
        (lambda a, b, k: best(-a, b, k), "WORST"),
        (lambda a, b, k: float(b.mean()), "nothing was chosen"),
        (lambda a, b, k: float(b[np.argmax(a)]), "best of all n|peeking"),
        (again, "drawn twice"),
        (simulated, "do not simulate"),
    ],
}


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_answer_gets_its_message(name, wrong, says):
    for _ in range(20):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_baselines, f"check_{name}")(wrong)
