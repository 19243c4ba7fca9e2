"""What lesson 02 defines gives the same as the package and as transformers."""

import numpy as np
import pytest
import torch
from lesson import definitions

from trinity_mini.backbone import Backbone
from trinity_mini.episode import Transcript, Turn
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import question_set
from trinity_mini.templates import router_text
from trinity_mini.tiny_lm import TOKENIZER

LESSON = "02_hidden_states.ipynb"
TEXTS = ["capital peru#>", "(3*6-3)%7T(18-3)%7,15%7.W2r1.VREVISE 22+rr+11+.#>", "ab", ">tv,wz,zj,ut,jq?wT.#>"]


@pytest.fixture(scope="module")
def lesson():
    """What the lesson builds its states from; its model is the shipped one."""
    names = ("written", "LETTER", "backbone", "model", "c", "layers_by_hand", "norm_by_hand", "attention_by_hand")
    return definitions(LESSON, *names, "as_qwen3", "qwen", "both_sides")


def test_the_conversation_written_by_hand(lesson):
    said = {Role.WORKER: ["2r1", " x#>y "], Role.THINKER: ["15%7.W9", ""], Role.VERIFIER: ["ACCEPT 2", "REVISE", "hm"]}
    turns = [Turn(0, role, Reply(text)) for role, texts in said.items() for text in texts]
    for k in range(len(turns) + 1):
        transcript = Transcript("(3*6-3)%7", tuple(turns[:k]))
        assert lesson.written(transcript) == router_text(transcript)


@pytest.mark.parametrize("text", TEXTS)
def test_states_by_hand(lesson, text):
    ids = TOKENIZER.encode(text)
    states = lesson.layers_by_hand(ids)
    h = lesson.norm_by_hand(states[-1, -2])
    torch.testing.assert_close(Backbone.embedded().hidden([text])[0], h, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        theirs = lesson.qwen(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for i, wanted in enumerate(theirs[:-1]):
        torch.testing.assert_close(states[i], wanted[0], atol=1e-2, rtol=1e-4)
    torch.testing.assert_close(lesson.norm_by_hand(states[-1]), theirs[-1][0], atol=1e-4, rtol=1e-4)


def test_attention_by_hand(lesson):
    """Against transformers' own weights."""
    ids = TOKENIZER.encode(TEXTS[1])
    states = lesson.layers_by_hand(ids)
    qwen = lesson.as_qwen3(lesson.model)
    qwen.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = qwen(torch.tensor([ids]), output_attentions=True).attentions
    for layer, x, wanted in zip(lesson.model.model.layers, states, attentions, strict=False):
        torch.testing.assert_close(lesson.attention_by_hand(layer, x), wanted[0], atol=1e-4, rtol=1e-3)


def test_both_sides_of_the_norm_in_a_batch(lesson):
    sides = lesson.both_sides(TEXTS, rows=3)
    assert np.allclose(sides["after", -2], Backbone.embedded().hidden(TEXTS), atol=1e-4)
    for i, text in enumerate(TEXTS):
        last = lesson.layers_by_hand(TOKENIZER.encode(text))[-1]
        for p in (-2, -1):
            assert np.allclose(sides["before", p][i], last[p], atol=1e-2)
            assert np.allclose(sides["after", p][i], lesson.norm_by_hand(last[p]), atol=1e-4)


def test_conversations_are_what_the_package_plays():
    lesson = definitions(LESSON, "conversations", "pool")
    asked = question_set("test", 2, seed=3)
    episodes = lesson.conversations(asked, seed=3)
    again = lesson.conversations(asked, seed=3)
    assert [e.turns for e in episodes] == [e.turns for e in again] and [e.question for e in episodes] == asked
    names = EmbeddedPool().names
    assert all(1 <= len(e.turns) <= 4 and all(0 <= t.agent < len(names) for t in e.turns) for e in episodes)


def test_components_are_the_eigenvectors_of_the_covariance():
    lesson = definitions(LESSON, "components")
    x = np.random.default_rng(0).normal(size=(50, 7)) @ np.diag([5, 4, 3, 2, 1, 1, 1]) + 3
    z, share = lesson.components(x, 3)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    assert np.allclose(np.abs(z), np.abs((x - x.mean(0)) @ vectors[:, :-4:-1]))
    assert np.allclose(share, values[:-4:-1] / values.sum())


@pytest.mark.parametrize("shape", [(60, 9), (20, 50)])
def test_ridge_is_penalised_least_squares(shape):
    """Against numpy's lstsq on rows that hold the penalty, with fewer and with more features than rows."""
    lesson = definitions(LESSON, "ridge", "one_hot")
    rng = np.random.default_rng(1)
    x, new, y = rng.normal(1, 1, shape), rng.normal(1, 1, (5, shape[1])), lesson.one_hot(rng.integers(3, size=shape[0]))
    middle = x.mean(0)
    rows = np.vstack([x - middle, 0.3**0.5 * np.eye(shape[1])])
    w = np.linalg.lstsq(rows, np.vstack([y - y.mean(0), np.zeros((shape[1], 3))]), rcond=None)[0]
    assert np.allclose(lesson.ridge(x, y, new, 0.3), (new - middle) @ w + y.mean(0))


def test_logistic_is_at_the_minimum():
    """Against scipy's minimiser of the same cost."""
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    lesson = definitions(LESSON, "logistic", "one_hot")
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, 3)), lesson.one_hot(rng.integers(3, size=40))

    def cost(flat):
        w = flat.reshape(4, 3)
        outputs = x @ w[:-1] + w[-1]
        return -(y * log_softmax(outputs, axis=1)).sum(1).mean() + 0.01 * np.sum(w[:-1] ** 2)

    w = minimize(cost, np.zeros(12), tol=1e-12).x.reshape(4, 3)
    wanted, found = x @ w[:-1] + w[-1], lesson.logistic(x, y, x, 0.01)
    assert np.allclose(wanted - wanted.mean(1, keepdims=True), found - found.mean(1, keepdims=True), atol=1e-3)


def test_tf_idf_learns_from_the_training_texts_only():
    lesson = definitions(LESSON, "grams", "tf_idf")
    bags = [lesson.grams(t) for t in ("abc", "abd", "abab", "zzz")]
    assert bags[2]["ab"] == 2 and bags[2]["aba"] == 1 and sum(bags[0].values()) == 6
    train, new = lesson.tf_idf(bags[:3], [bags[0], lesson.grams("abzz")])
    assert np.allclose(np.linalg.norm(train, axis=1), 1) and train.shape[1] == new.shape[1] == 3  # a, b, ab
    assert np.allclose(train[0], new[0]) and np.allclose(new[0], new[1])  # what training never saw counts nothing
