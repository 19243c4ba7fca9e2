"""The checkers of lesson 03: the lesson's solutions pass, and each typical mistake gets its own message."""

import numpy as np
import pytest
import torch

from trinity_mini import checks_head
from trinity_mini.checks import Wrong

CHECKS = {
    "policy_table": checks_head.check_policy_table,
    "gumbel_draw": checks_head.check_gumbel_draw,
    "flips": checks_head.check_flips,
    "centred": checks_head.check_centred,
    "block_diagonal": checks_head.check_block_diagonal,
}


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def overflowing(z):
    with np.errstate(all="ignore"):
        return np.exp(z) / np.exp(z).sum()


def in_place(w, n):
    w[:n] -= w[:n].mean(0)
    w[n:] -= w[n:].mean(0)
    return w


def blocks(h, w, n_out, blocks, divide=True, turn=False, local=False):
    z, start = [], 0
    for rows, columns in zip(
        np.array_split(np.arange(n_out), blocks), np.array_split(np.arange(h.shape[1]), blocks), strict=True
    ):
        r, c = len(rows), len(columns)
        part = w[start : start + r * c]
        block = part.view(c, r).T if turn else part.view(r, c)
        z.append(h[:, columns] @ block.T / (c**0.5 if local else 1))
        start += r * c
    return torch.cat(z, 1) / (h.shape[1] ** 0.5 if divide and not local else 1)


MISTAKES = [
    ("policy_table", lambda z, n: np.outer(softmax(z)[:n], softmax(z)[n:]), "not one over all"),
    ("policy_table", lambda z, n: np.outer(softmax(z[3:]), softmax(z[:3])), "first L logits"),
    ("policy_table", lambda z, n: np.outer(overflowing(z[:n]), overflowing(z[n:])), "exp overflows"),
    ("policy_table", lambda z, n: np.outer(softmax(z[n:]), softmax(z[:n])), "shape|first L"),
    (
        "policy_table",
        lambda z, n: np.outer(np.exp(z[:n] - z[:n].max()), np.exp(z[n:] - z[n:].max())),
        "divide by their sum",
    ),
    ("gumbel_draw", lambda z, u: (z + np.log(-np.log(u))).argmax(1), "the sign"),
    ("gumbel_draw", lambda z, u: (z - np.log(u)).argmax(1), "two logarithms"),
    ("gumbel_draw", lambda z, u: (softmax(z) - np.log(-np.log(u))).argmax(1), "not to the probabilities"),
    ("gumbel_draw", lambda z, u: z.argmax(1), "no noise"),
    ("gumbel_draw", lambda z, u: (z + u).argmax(1), "no Gumbel numbers"),
    ("gumbel_draw", lambda z, u: (z - np.log(-np.log(u))).argmax(0), "shape"),
    ("flips", lambda p, q: 1 - p @ q, "two independent numbers"),
    ("flips", lambda p, q: np.abs(p - q).sum() / 2, "total variation"),
    ("flips", lambda p, q: float(p.argmax() != q.argmax()), "sums of p"),
    ("centred", lambda w, n: w - w.mean(0), "one mean for all rows"),
    ("centred", lambda w, n: w - w.mean(), "one number for the whole matrix"),
    ("centred", lambda w, n: w - w.mean(1, keepdim=True), "wrong axis"),
    ("centred", lambda w, n: torch.cat([w[:n] - w[:n].mean(0), w[n:]]), "roles have their neutral"),
    ("centred", in_place, "has changed the w"),
    ("block_diagonal", lambda *a: blocks(*a, divide=False), r"divides by sqrt\(d\)"),
    ("block_diagonal", lambda *a: blocks(*a, turn=True), "row by row"),
    ("block_diagonal", lambda *a: blocks(*a, local=True), "width of the whole state"),
    ("block_diagonal", lambda h, w, n, b: h @ w.view(n, -1).T, "stopped"),
]


@pytest.mark.parametrize("name, wrong, says", MISTAKES, ids=[f"{m[0]}: {m[2]}" for m in MISTAKES])
def test_a_mistake_gets_its_message(name, wrong, says):
    for _ in range(3):
        with pytest.raises(Wrong, match=says):
            CHECKS[name](wrong)


def test_the_two_agree_flips_is_told():
    def agreeing(p, q):
        bounds = np.unique(np.concatenate([[0, 1], p.cumsum()[:-1], q.cumsum()[:-1]]))
        u = (bounds[1:] + bounds[:-1]) / 2
        picks = [(u[:, None] >= r.cumsum()[:-1]).sum(1) for r in (p, q)]
        return float(np.diff(bounds)[picks[0] == picks[1]].sum())

    with pytest.raises(Wrong, match="what is left of 1"):
        checks_head.check_flips(agreeing)
