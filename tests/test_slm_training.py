"""What the coordinator's language model reads, how it resumes, and what its states tell."""

import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
from world import LetterPool

from trinity_mini import slm_training
from trinity_mini.backbone import Backbone
from trinity_mini.files import UserError
from trinity_mini.fit import fit
from trinity_mini.pool import EmbeddedPool
from trinity_mini.roles import Role
from trinity_mini.slm_training import corpus, remarks, train_slm
from trinity_mini.tasks import FAMILIES, KINDS, TOPICS, recognise
from trinity_mini.tiny_lm import TOKENIZER, TinyConfig, TinyLM

N = 400


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return corpus(LetterPool(tmp_path_factory.mktemp("letters")), N, 0)


def read(text):
    """Question, turns as (tag, text) and remarks of one text, by its written form alone."""
    body, _, said = text.partition("#")
    body = body.replace("ACCEPT", "yes").replace("REVISE", "no")
    question = re.match("[^TWV]*", body)[0]
    turns = re.findall(r"([TWV])([^.TWV]*)\.", body[len(question) :])
    assert question + "".join(f"{tag}{words}." for tag, words in turns) == body
    assert said.endswith(".")
    return question, turns, [TOKENIZER.tokens[i] for i in TOKENIZER.encode(said[:-1])]


def truth(question, turns):
    """What should be remarked, from the question and the tags."""
    q = recognise(question)
    tags = [tag for tag, _ in turns]
    words = {f"<{q.family}>", q.kind if q.kind in TOPICS else f"<{q.kind}>", "<planned>" if "T" in tags else "<asked>"}
    return words | ({"<answered>"} if "W" in tags else set()) | ({"<rejected>"} if tags[-1:] == ["V"] else set())


def test_every_text_is_a_conversation_and_true_remarks(texts):
    assert len(texts) == N
    families, lengths, orders = Counter(), Counter(), set()
    for text in texts:
        question, turns, words = read(text)
        assert set(words) == truth(question, turns) and len(words) == len(set(words)), text
        families[recognise(question).family] += 1
        lengths[len(turns)] += 1
        orders.add(tuple(w.strip("<>") in FAMILIES for w in words).index(True))
    assert set(families) == set(FAMILIES) and min(families.values()) > 50
    assert set(lengths) == {0, 1, 2, 3, 4} and len(orders) > 2


def test_no_validation_or_test_question_is_read_but_facts(texts):
    splits = Counter()
    for text in texts:
        q = recognise(read(text)[0])
        splits[q.family == "know", q.split] += 1
    assert {split for know, split in splits if not know} == {"train"}
    assert {split for know, split in splits if know} == {"train", "validation", "test"}


def test_no_remark_says_who_should_speak():
    words = {w for f in FAMILIES for k in KINDS[f] for w in remarks(f, k, slm_training.Transcript("q"))}
    assert words == {f"<{f}>" for f in FAMILIES} | {f"<{k}>" for f in FAMILIES[:3] for k in KINDS[f]} | {*TOPICS} | {
        "<asked>"
    }
    assert remarks("math-hard", "infix", slm_training.Transcript("q"))[0] == "<math>"


def test_a_seed_fixes_the_texts(texts, tmp_path, global_streams_untouched):
    assert corpus(LetterPool(tmp_path), 20, 1) == corpus(LetterPool(tmp_path), 20, 1) != corpus(
        LetterPool(tmp_path), 20, 2
    )


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(slm_training, "SHAPE", TinyConfig(d=16, layers=2, heads=2, ff=16))
    monkeypatch.setattr(slm_training, "ROWS", 2)
    monkeypatch.setattr(slm_training, "fit", partial(fit, save_every=0))


def test_an_interrupted_training_ends_with_the_same_model(tmp_path, small, monkeypatch, global_streams_untouched):
    pool, whole, parts = LetterPool(tmp_path), tmp_path / "whole", tmp_path / "parts"
    card = train_slm(pool, whole, whole, 6, 80, 3)
    calls, real = 0, slm_training.loss

    def interrupted(model, batch):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return real(model, batch)

    monkeypatch.setattr(slm_training, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_slm(pool, parts, parts, 6, 80, 3)
    assert {**train_slm(pool, parts, parts, 6, 80, 3), "cpu_seconds": 0} == {**card, "cpu_seconds": 0}
    assert calls == 4 + 3
    assert (parts / "slm.safetensors").read_bytes() == (whole / "slm.safetensors").read_bytes()
    assert (card["steps"], card["texts"], card["seed"], card["pool"]) == (6, 80, 3, pool.identity)
    backbone = Backbone.embedded(parts)
    assert backbone.d == 16 and backbone.centre.shape == (16,) and backbone.scale > 0


@pytest.mark.parametrize("change", ["pool", "seed"])
def test_the_state_of_another_pool_or_seed_is_refused(tmp_path, small, change):
    pool = LetterPool(tmp_path)
    train_slm(pool, tmp_path, tmp_path, 1, 20, 3)
    if change == "pool":
        pool.identity = "another"
    with pytest.raises(UserError, match=r"slm\.pt is of another run.*delete it"):
        train_slm(pool, tmp_path, tmp_path, 1, 20, 4 if change == "seed" else 3)


def test_states_of_the_shipped_model_tell_where_a_conversation_stands():
    """A linear probe on the penultimate token's state, on conversations of other agents' making."""
    from trinity_mini import tasks
    from trinity_mini.episode import Rules, Transcript, fixed, play, play_all, run
    from trinity_mini.templates import router_text

    pool, backbone, rng = EmbeddedPool(), Backbone.embedded(), np.random.default_rng(0)
    asked = [q for f in FAMILIES for q in tasks.questions(f, "train", 80, 1) + tasks.questions(f, "test", 40, 1)]
    plays = []
    for q in asked:
        roles = [[1, 0, 2, 0], [0, 2, 1, 0], [0, 2, 0, 2], [1, 0, 0, 2], [2, 1, 0, 2]][rng.integers(5)]
        chain = [(int(rng.integers(len(pool.names))), Role(r)) for r in roles]
        plays.append(play(q, fixed(chain), pool, Rules(max_turns=4)))
    transcripts, labels = [], []
    for episode in run(play_all(plays)):
        turns = episode.turns[: rng.integers(len(episode.turns) + 1 - episode.accepted)]
        transcripts.append(Transcript(episode.question.prompt, turns))
        said = [t.role for t in turns]
        labels.append(
            [FAMILIES.index(episode.question.family), Role.THINKER in said, Role.WORKER in said,
             said[-1:] == [Role.VERIFIER]]
        )  # fmt: skip
    h = backbone.hidden([router_text(t) for t in transcripts]).double().numpy()
    x = np.column_stack([(h - h.mean(0)) / h.std(), np.ones(len(h))])
    labels = np.array(labels, dtype=int)
    train = np.array([q.split == "train" for q in asked])
    for column, name, least in ((0, "family", 0.98), (1, "plan", 0.95), (2, "answer", 0.95), (3, "rejection", 0.95)):
        wanted = np.eye(4)[labels[:, column]]
        w = np.linalg.solve(x[train].T @ x[train] + np.eye(x.shape[1]), x[train].T @ wanted[train])
        right = (x[~train] @ w).argmax(1) == labels[~train, column]
        assert right.mean() >= least, (name, right.mean())


def test_the_shipped_model_belongs_to_the_shipped_pool():
    from trinity_mini.files import DATA

    model, card = TinyLM.load(DATA / "coordinator", "slm")
    assert card["pool"] == EmbeddedPool().identity
    assert model.config == slm_training.SHAPE and card["parameters"] == sum(p.numel() for p in model.parameters())
