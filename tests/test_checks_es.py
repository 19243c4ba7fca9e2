"""The checkers of lesson 06: right answers pass, typical wrong ones get a message that fits."""

import numpy as np
import pytest
from scipy.stats import binom

from trinity_mini import checks_es
from trinity_mini.checks import Wrong


def order(values):
    return np.argsort(values, kind="stable")


def last_told_first(values):
    return sorted(range(len(values)), key=lambda j: (values[j], -j))


def full(y, c, w, c_mu, keep=None):
    return (1 - c_mu if keep is None else keep) * c + c_mu * (y.T * w) @ y


def in_place(c, mean, sigma, best, w, c_mu):
    c *= 1 - c_mu
    c += c_mu * (((best - mean) / sigma).T * w) @ ((best - mean) / sigma)
    return c


def simulated(p, lam, m):
    return float(np.random.binomial(m, p, (4000, lam)).max(axis=1).mean() / m)


def unindexed(episodes):
    if any(all(r is None for r in row) for row in episodes):
        raise ValueError("a candidate was lost")
    return [float(np.mean([r for r in row if r is not None])) for row in episodes]


def skipping(episodes):
    return [float(np.mean([r for r in row if r is not None] or [0])) for row in episodes]


WRONG = {
    "recombine": [
        (lambda x, v, w: w @ x[order(-v)[: len(w)]], "LARGEST"),
        (lambda x, v, w: w @ x[: len(w)], "not sorted"),
        (lambda x, v, w: x[order(v)[: len(w)]].mean(axis=0), "equally weighted"),
        (lambda x, v, w: w[::-1] @ x[order(v)[: len(w)]], "wrong way"),
        (lambda x, v, w: w @ x[last_told_first(v)[: len(w)]], "order told"),
        (lambda x, v, w: w @ x[np.argsort(v)[: len(w)]], "order told, always"),
        (lambda x, v, w: w @ x[order(v)], "stopped.*ValueError"),
        (lambda x, v, w: w[:, None] * x[order(v)[: len(w)]], "shape"),
        (lambda x, v, w: None, "return"),
    ],
    "rank_mu": [
        (lambda c, m, s, b, w, r: full(b - m, c, w, r), "sigma is missing"),
        (lambda c, m, s, b, w, r: full((b - m) / s**0.5, c, w, r), "product by its square"),
        (lambda c, m, s, b, w, r: full((b - w @ b) / s, c, w, r), "OLD mean"),
        (lambda c, m, s, b, w, r: full((b - m) / s, c, w**2, r), "counts twice"),
        (lambda c, m, s, b, w, r: full((b - m) / s, c, 1 / len(w), r), "weighted: the best"),
        (lambda c, m, s, b, w, r: full((b - m) / s, c, w, r, keep=1), "1 - c_mu"),
        (lambda c, m, s, b, w, r: np.diag(np.diag(full((b - m) / s, c, w, r))), "diagonal alone"),
        (in_place, "changed the matrix"),
    ],
    "generations_until": [
        (lambda share, rate: int(np.log(1 - share) / np.log(1 - rate)), "round up"),
        (lambda share, rate: int(np.log(1 - share) / np.log(1 - rate)) + 2, "one too many|wanted"),
        (lambda share, rate: np.log(1 - share) / np.log(1 - rate), "whole number"),
        (lambda share, rate: 0 if not share else int(np.ceil(np.log(share) / np.log(1 - rate))), "1 - share is old"),
        (lambda share, rate: int(np.ceil(share / rate)), "what is LEFT"),
    ],
    "best_looks": [
        (lambda p, lam, m: m * float(np.sum(1 - binom.cdf(np.arange(m), m, p) ** lam) / m), "divide the successes"),
        (lambda p, lam, m: float(np.sum((1 - binom.cdf(np.arange(m), m, p)) ** lam) / m), "WORST"),
        (lambda p, lam, m: p, "truly is worth"),
        (lambda p, lam, m: float(np.sum(1 - binom.cdf(np.arange(1, m), m, p) ** lam) / m), "one term"),
        (lambda p, lam, m: float(np.sum(binom.cdf(np.arange(m), m, p) ** lam) / m), "counts failures"),
        (simulated, "do not simulate"),
    ],
    "fitness_of": [
        (lambda rows: [float(np.mean([r or 0 for r in row])) for row in rows], "not scored 0"),
        (lambda rows: [float(np.mean([r for r in row if r])) if any(row) else 0.0 for row in rows], "not `if r`"),
        (lambda rows: [sum(r for r in row if r) / len([r for r in row if r]) for row in rows], "not `if r`"),
        (lambda rows: [sum(row) / len(row) for row in rows], "None cannot be added"),
        (skipping, "neither NaN nor 0"),
        (lambda rows: [sum(s := [r for r in row if r is not None]) / len(s) for row in rows], "all lost.*ZeroDivision"),
        (unindexed, "index"),
        (lambda rows: [1.0 if r is None else r for r in rows[0]], "fitness_of"),
    ],
}


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_wrong_answer_gets_its_message(name, wrong, says):
    for _ in range(3):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_es, f"check_{name}")(wrong)
