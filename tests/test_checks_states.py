"""The checkers of lesson 02: the lesson's solutions pass, and typical mistakes get messages that fit."""

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini import checks_states
from trinity_mini.checks import Wrong

LESSON = "02_hidden_states.ipynb"
CHECKERS = {
    "rms_norm": checks_states.check_rms_norm,
    "catch": checks_states.check_catch,
    "penultimate": checks_states.check_penultimate,
    "pca": checks_states.check_pca,
    "grouped_folds": checks_states.check_grouped_folds,
}
solutions = definitions(LESSON, *CHECKERS)


def root(x, eps, keep=True):
    return (x.square().mean(-1, keepdim=keep) + eps).sqrt()


def leaves_its_hook(module, run):
    caught = []
    module.register_forward_hook(lambda m, x, y: caught.append(y.clone()))
    run()
    return caught


def tidy_unless_it_fails(module, run):
    caught = []
    handle = module.register_forward_hook(lambda m, x, y: caught.append(y.clone()))
    run()
    handle.remove()
    return caught


def catching(hook):
    """catch with another hook, which gets the list, inputs and output."""

    def catch(module, run):
        caught = []
        with module.register_forward_hook(lambda m, x, y: hook(caught, x, y)):
            run()
        return caught

    return catch


def hides_errors(module, run):
    try:
        return solutions.catch(module, run)
    except RuntimeError:
        return []


def keeps_one(module, run):
    return solutions.catch(module, run)[-1:]


def of_the_model(module, run):
    return [torch.zeros(3, 2)] * len(solutions.catch(module, run))


def svd(x):
    return np.linalg.svd(x, full_matrices=False)


def shares(x, k):
    s = svd(x - x.mean(0))[1]
    return s[:k] ** 2 / np.sum(s**2)


def coordinates(x, k):
    u, s, _ = svd(x - x.mean(0))
    return u[:, :k] * s[:k]


def row_by_row(groups, k, rng):
    return rng.permutation(np.arange(len(groups)) % k)


def each_by_itself(groups, k, rng):
    names, group = np.unique(groups, return_inverse=True)
    return rng.integers(k, size=len(names))[group]


def in_order(groups, k, rng):
    names, group = np.unique(groups, return_inverse=True)
    return (np.arange(len(names)) % k)[group]


def own_generator(groups, k, rng):
    return solutions.grouped_folds(groups, k, np.random.default_rng())


ROWS = torch.arange(9)
MISTAKES = [
    ("rms_norm", lambda x, w, eps: x / root(x, eps), "the weight is missing"),
    ("rms_norm", lambda x, w, eps: x / root(x, 0) * w, "eps is missing"),
    ("rms_norm", lambda x, w, eps: x / (root(x, 0) + eps) * w, "under the root, added"),
    ("rms_norm", lambda x, w, eps: torch.nn.functional.layer_norm(x, w.shape, w, None, eps), "LayerNorm"),
    ("rms_norm", lambda x, w, eps: x / (x.square().sum(-1, True) + eps).sqrt() * w, "not the sum"),
    ("rms_norm", lambda x, w, eps: x / root(x, eps) ** 2 * w, "the root is missing"),
    ("rms_norm", lambda x, w, eps: x / (x.square().mean() + eps).sqrt() * w, "its own mean square"),
    ("rms_norm", lambda x, w, eps: x / root(x, eps, keep=False) * w, "stopped"),
    ("rms_norm", lambda x, w, eps: (x / root(x, eps) * w).numpy(), "a torch tensor"),
    ("catch", leaves_its_hook, "leaves a hook on the module. Hint"),
    ("catch", tidy_unless_it_fails, "when run() raises"),
    ("catch", catching(lambda caught, x, y: caught.append(y)), "keep a copy (clone)"),
    ("catch", catching(lambda caught, x, y: caught.append(x[0].clone())), "INPUTS"),
    ("catch", catching(lambda caught, x, y: [caught.append(y.clone()), 0 * y][1]), "a hook must return None"),
    ("catch", keeps_one, "only one call was kept"),
    ("catch", hides_errors, "hides an error"),
    ("catch", of_the_model, "has shape (3, 2)"),
    ("catch", lambda module, run: [], "has not called run"),
    ("penultimate", lambda h, m: h[:, -2], "position -2 of the padded row"),
    ("penultimate", lambda h, m: h[ROWS[: len(h)], m.sum(-1) - 2], "only if the padding is on the right"),
    ("penultimate", lambda h, m: h[ROWS[: len(h)], m.sum(-1) - 1], "the LAST real token"),
    ("penultimate", lambda h, m: torch.stack([s[k.bool()][-1] for s, k in zip(h, m, strict=True)]), "the LAST real"),
    ("penultimate", lambda h, m: h[m.bool()], "has shape"),
    ("pca", lambda x, k: (svd(x)[0][:, :k] * svd(x)[1][:k], shares(x, k)), "the mean was not taken away"),
    ("pca", lambda x, k: (svd(x - x.mean(0))[0][:, :k], shares(x, k)), "has lost the widths"),
    ("pca", lambda x, k: (x @ svd(x - x.mean(0))[2][:k].T, shares(x, k)), "must be centred, too"),
    ("pca", lambda x, k: (coordinates(x, k).T, shares(x, k)), "the axes are swapped"),
    ("pca", lambda x, k: (coordinates(x, k), svd(x - x.mean(0))[1][:k] / svd(x - x.mean(0))[1].sum()), "SQUARES"),
    ("pca", lambda x, k: (coordinates(x, k), shares(x, k) / shares(x, k).sum()), "not over the first k"),
    ("pca", lambda x, k: (coordinates(x, k), svd(x - x.mean(0))[1][:k] ** 2), "these are S squared"),
    ("pca", lambda x, k: (coordinates(x, k), np.var(coordinates(x, k), axis=0, ddof=1)), "these are variances"),
    ("pca", coordinates, "two things"),
    ("grouped_folds", row_by_row, "is in folds"),
    ("grouped_folds", each_by_itself, "rather than draw"),
    ("grouped_folds", in_order, "every rng gives the same folds"),
    ("grouped_folds", own_generator, "the same rng gives other folds"),
    ("grouped_folds", lambda groups, k, rng: solutions.grouped_folds(groups, k, rng) + 1, "from 0 to"),
    ("grouped_folds", lambda groups, k, rng: solutions.grouped_folds(groups, k, rng).tolist(), "a numpy array"),
]


@pytest.mark.parametrize(("name", "fn", "says"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_gets_a_message_that_fits(name, fn, says):
    with pytest.raises(Wrong) as caught:
        CHECKERS[name](fn)
    assert says in str(caught.value)


def test_signs_of_components_are_free():
    def turned(x, k):
        z, share = solutions.pca(x, k)
        return z * np.array([-1, 1] * k)[:k], share

    checks_states.check_pca(turned)
