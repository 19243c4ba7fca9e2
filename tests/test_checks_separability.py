"""The checkers of lesson 08: right answers pass, typical wrong ones get a message that fits."""

from itertools import product

import numpy as np
import pytest

from trinity_mini import checks_separability
from trinity_mini.checks import Wrong


def forms(h, blocks, keep="outside", norm=2, absolute=abs, b2=None, b3=None, b1=None):
    label = np.empty(len(h), dtype=int)
    for k, index in enumerate(blocks):
        label[index] = k
    gone = {"outside": label[:, None] == label, "off the diagonal": np.eye(len(h), dtype=bool), "all": np.zeros_like(h)}
    off, d = np.where(gone[keep], 0, h), h.diagonal()
    scaled = off / np.sqrt(np.outer(d, d))
    right = np.linalg.norm(scaled, norm), absolute(scaled).max(), (absolute(off).sum(1) / d).max()
    made = [f(off, d, scaled) if f else value for f, value in zip((b1, b2, b3), right, strict=True)]
    return tuple(map(float, made))


def points(f, theta, p, q, a, b, h):
    def inside(index, u):
        out = np.zeros((len(u), len(theta)))
        out[:, index] = u
        return h * out

    a, b = inside(p, a), inside(q, b)
    return f(theta + a + b) - f(theta + a - b) - f(theta - a + b) + f(theta - a - b)


def norm2(f, theta, p, q, a, b, h):
    return len(p) * len(q) * float(np.mean((points(f, theta, p, q, a, b, h) / (4 * h * h)) ** 2))


def unbiased(d):
    k = d.shape[1]
    return float(np.mean((d.sum(1) ** 2 - (d**2).sum(1)) / (k * (k - 1))))


def sums(x):
    return np.array([np.dot(s, x) for s in product((1, -1), repeat=len(x))])


def shifts(n_agents, d, order="rows", unit=True):
    n = n_agents + 3
    rows = []
    for group in (range(n_agents), range(n_agents, n)):
        for k in range(d):
            w = np.zeros((n, d)) if order == "rows" else np.zeros((d, n))
            if order == "rows":
                w[list(group), k] = 1
            else:
                w[k, list(group)] = 1
            rows.append(w.ravel() / (len(group) ** 0.5 if unit else 1))
    return np.array(rows)


def turned(n_agents, d):
    return np.roll(shifts(n_agents, d).reshape(2 * d, -1, d), 3, axis=1).reshape(2 * d, -1)


def twice(n_agents, d):
    once = shifts(n_agents, d)
    return np.concatenate((once[:d], once[:d]))


def noisy_p(x):
    flips = np.random.choice((-1, 1), (999, len(x)))
    return float(np.mean(flips @ x >= x.sum()))


WRONG = {
    "three_forms": [
        (lambda h, b: forms(h, b, b1=lambda o, d, x: np.linalg.norm(o / np.outer(d, d), 2)), "not by the product"),
        (lambda h, b: forms(h, b, b1=lambda o, d, x: np.linalg.eigvalsh(x).max()), "of either sign"),
        (lambda h, b: forms(h, b, b3=lambda o, d, x: abs(o).sum(1).max()), "by its own H_ii."),
        (lambda h, b: forms(h, b, b3=lambda o, d, x: (abs(o) / d).sum(1).max()), "not each column"),
        (lambda h, blocks: forms(h, blocks, "off the diagonal"), "B1.*INSIDE"),
        (lambda h, blocks: forms(h, blocks, "all"), "B1.*the diagonal too"),
        (lambda h, blocks: forms(h, blocks, norm="fro"), "B1.*Frobenius"),
        (lambda h, blocks: forms(h, blocks, b1=lambda o, d, s: np.linalg.norm(o / d[:, None], 2)), "both sides"),
        (lambda h, blocks: forms(h, blocks, b2=lambda o, d, s: s.max()), "B2.*abs first"),
        (lambda h, blocks: forms(h, blocks, b2=lambda o, d, s: abs(o / d[:, None]).max()), "B2.*not by H_ii"),
        (lambda h, blocks: forms(h, blocks, b3=lambda o, d, s: abs(s).sum(1).max()), "B3.*own H_ii"),
        (lambda h, blocks: forms(h, blocks, b3=lambda o, d, s: (o.sum(1) / d).max()), "B3.*signed ones cancel"),
        (lambda h, blocks: forms(h, blocks)[0], "three numbers"),
    ],
    "block_norm2": [
        (lambda *x: 16 * norm2(*x), "not by h\\^2"),
        (lambda *x: norm2(*x) * x[-1] ** 2, "h is squared"),
        (lambda *x: norm2(*x) / len(x[2]) / len(x[3]), "factor n_p n_q is missing"),
        (lambda *x: len(x[2]) * len(x[3]) * float(np.mean(points(*x) / 4 / x[-1] ** 2)) ** 2, "square each"),
        (lambda f, theta, *x: norm2(f, 0 * theta, *x), "around theta"),
        (lambda *x: norm2(*x) ** 0.5, "its square is wanted"),
        (lambda *x: norm2(*x) * len(x[4]), "take the mean"),
    ],
    "unbiased_square": [
        (lambda d: float(np.mean(d**2)), "its own noise"),
        (lambda d: float(np.mean(d.mean(1) ** 2)), "times itself"),
        (lambda d: float(d.mean() ** 2), "row by row"),
        (lambda d: float(np.mean(d[:, 0] * d[:, 1])), "all pairs"),
        (lambda d: float(np.mean((d.sum(1) ** 2 - (d**2).sum(1)) / d.shape[1] ** 2)), "not k\\^2"),
        (lambda d: unbiased(d) * len(d), "not a sum"),
        (lambda d: 2 * unbiased(d), "counted twice"),
    ],
    "exact_p": [
        (lambda x: float(np.mean(sums(x) > x.sum())), ">="),
        (lambda x: float(np.mean(abs(sums(x)) >= abs(x.sum()))), "one-sided"),
        (lambda x: float(np.mean(sums(x) <= x.sum())), "SMALL"),
        (lambda x: float((1 + np.sum(sums(x) >= x.sum())) / (1 + 2 ** len(x))), "nothing is to be added"),
        (lambda x: float(np.sum(sums(x) >= x.sum())), "how many there are"),
        (noisy_p, "call to call"),
    ],
    "blind": [
        (lambda n, d: np.kron(np.ones((1, n + 3)), np.eye(d)) / (n + 3) ** 0.5, "two softmaxes"),
        (lambda n, d: shifts(n, d, unit=False), "length"),
        (lambda n, d: shifts(n, d, "columns"), "row by row"),
        (turned, "come first"),
        (twice, "not orthogonal"),
        (lambda n, d: shifts(n, d).T, "axes are swapped"),
        (lambda n, d: shifts(n, d).tolist(), "numpy array"),
    ],
}


@pytest.mark.parametrize(("name", "wrong", "says"), [(n, f, says) for n, cases in WRONG.items() for f, says in cases])
def test_a_wrong_answer_gets_its_message(name, wrong, says):
    for _ in range(20):
        with pytest.raises(Wrong, match=f"(?s){says}"):
            getattr(checks_separability, f"check_{name}")(wrong)
