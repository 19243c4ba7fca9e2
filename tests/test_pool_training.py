"""The mixtures, their packing and the loss, each against a direct way to the same thing."""

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trinity_mini import pool_training
from trinity_mini.fit import fit
from trinity_mini.pool import MAX_REPLY
from trinity_mini.pool_training import (
    FAMILY_OF,
    ROW,
    ROWS,
    SPECIALITIES,
    ExampleStream,
    encode,
    loss,
    pack,
    train_agent,
)
from trinity_mini.roles import accepts
from trinity_mini.tasks import FAMILIES, KINDS, TOPICS, Question, recognise
from trinity_mini.templates import check, verdict_text
from trinity_mini.tiny_lm import TOKENIZER, TinyConfig, TinyLM


def examples(name, n, seed=0):
    stream = ExampleStream(SPECIALITIES[name], np.random.default_rng(seed))
    return [next(stream) for _ in range(n)]


def parts(e):
    """Question, plan, candidate and role tag of a prompt."""
    body, tag = e.prompt[:-1], e.prompt[-1]
    candidate = plan = None
    if tag == "V":
        body, _, candidate = body.removesuffix(".").partition("W")
    body, _, rest = body.partition("T")
    if rest:
        plan = rest.removesuffix(".")
    return body, plan, candidate, tag


# ---------------------------------------------------------------- who is good at what


def test_every_kind_family_and_topic_has_its_specialists():
    s = SPECIALITIES.values()
    assert {k for a in s for k in a.thinks} == {k for f in FAMILIES[:3] for k in KINDS[f]}
    assert {f for a in s for f in a.works} == {f for a in s for f in a.verifies} == set(FAMILIES[:3])
    assert {t for a in s for t in a.topics} == set(TOPICS)


def test_no_agent_can_solve_a_family_alone():
    for a in SPECIALITIES.values():
        assert not {FAMILY_OF[k] for k in a.thinks} & {*a.works, *a.verifies}


# ---------------------------------------------------------------- examples


def test_a_seed_fixes_the_examples(global_streams_untouched):
    assert examples("dee", 30) == examples("dee", 30) != examples("dee", 30, seed=1)


@pytest.mark.parametrize("name", SPECIALITIES)
def test_examples_are_readable_weighted_and_never_of_a_test_question(name):
    seen = Counter()
    for e in examples(name, 1200):
        question, plan, candidate, tag = parts(e)
        seen[tag] += 1
        tokens, weights = encode(e)
        assert TOKENIZER.decode(tokens) == e.prompt + e.reply and e.reply.endswith(".") and "." not in e.reply[:-1]
        assert len(tokens) == len(weights) <= ROW and len(TOKENIZER.encode(e.reply)) <= MAX_REPLY
        prompt_length = len(TOKENIZER.encode(e.prompt))
        assert tokens[:prompt_length] == TOKENIZER.encode(e.prompt)  # as at inference
        assert not any(weights[:prompt_length]) and all(w > 0 for w in weights[prompt_length:])
        q = recognise(question)
        assert q.family in FAMILIES
        assert q.family == "know" or Question(q.family, q.kind, question, "", "").split == "train"
        if tag == "T":
            strong = q.family == "know" or q.kind in SPECIALITIES[name].thinks
            assert e.reply == q.plan + "." and (max(weights) == 1.0) == strong
        elif tag == "W" and plan in (None, q.plan):
            assert e.reply == q.answer + "."
    assert min(seen[tag] for tag in "TWV") > 25


@pytest.mark.parametrize("name", ["dee", "eli"])
def test_verifiers_see_right_and_wrong_candidates_and_send_back_what_they_cannot_check(name):
    verdicts = Counter()
    for e in examples(name, 1500):
        question, plan, candidate, tag = parts(e)
        if tag == "V":
            working = e.reply[:-1]
            q, s = recognise(question), SPECIALITIES[name]
            facts = q.family == "know"
            if (q.kind not in s.topics if facts else q.family not in s.verifies or plan is None):
                assert working == "R" and not accepts(verdict_text(working)) and e.weights == [1.0, 1.0]
                verdicts["sent back"] += 1
                continue
            own = working[1:-1:3].rstrip("_")  # every second character of the triples
            assert check(candidate, own) == working
            assert accepts(verdict_text(working)) is (candidate == own)
            verdicts[candidate == own] += 1
            assert e.weights[0] == 1.0 and e.weights[-2:] == [4.0, 1.0]
            assert e.weights[2:-2:3] == [3.0] * (len(working) // 3)
    assert 0.25 < verdicts[True] / (verdicts[True] + verdicts[False]) < 0.45 and verdicts["sent back"] > 25


# ---------------------------------------------------------------- packing and loss


@pytest.fixture(scope="module")
def batch():
    encoded = [encode(e) for e in examples("dee", 160)]
    return encoded, *pack(encoded, ROWS)


def test_rows_hold_whole_examples_in_order(batch):
    encoded, b, used = batch
    assert 60 < used <= 160
    tokens = [t for ids, _ in encoded[:used] for t in ids]
    flat = b.ids.flatten()
    assert flat[flat > 0].tolist() == tokens
    assert b.weights.flatten()[flat.numpy() > 0].tolist() == pytest.approx([w for _, ws in encoded[:used] for w in ws])
    starts = (b.positions == 0) & (b.ids > 0)
    assert starts.sum() == used
    assert b.ids.shape == (ROWS, ROW) and b.mask.shape == (ROWS, 1, ROW, ROW)


def test_all_examples_may_fit(batch):
    b, used = pack(batch[0][:3], rows=ROWS)
    assert used == 3 and not b.ids[1:].any()


def test_packed_loss_is_the_weighted_mean_over_single_examples(batch):
    encoded, b, used = batch
    model = TinyLM(TinyConfig(d=16, layers=2, heads=2, ff=16), seed=1).eval()
    total = weight = 0.0
    with torch.inference_mode():
        for tokens, w in encoded[:used]:
            ids = torch.tensor([tokens])
            t = len(tokens)
            x = model(ids, torch.ones(t, t, dtype=torch.bool).tril()[None, None], torch.arange(t)[None])
            each = F.cross_entropy(model.logits(x)[0, :-1], ids[0, 1:], reduction="none")
            total += float((each * torch.tensor(w[1:])).sum())
            weight += sum(w[1:])
        assert float(loss(model, b)) == pytest.approx(total / weight, rel=1e-5)


# ---------------------------------------------------------------- training an agent


def test_an_interrupted_agent_is_the_same_agent(tmp_path, monkeypatch, global_streams_untouched):
    monkeypatch.setattr(pool_training, "ROWS", 2)
    monkeypatch.setattr(pool_training, "TinyConfig", partial(TinyConfig, d=16, layers=1, heads=2, ff=16))
    monkeypatch.setattr(pool_training, "fit", partial(fit, save_every=0))
    whole = train_agent("ada", tmp_path / "whole", tmp_path / "whole", steps=6, seed=3)

    calls = 0

    def interrupted(model, batch):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return loss(model, batch)

    parts = tmp_path / "parts"
    monkeypatch.setattr(pool_training, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_agent("ada", parts, parts, steps=6, seed=3)
    card = train_agent("ada", parts, parts, steps=6, seed=3)
    assert calls == 4 + 3  # three steps were kept
    assert (parts / "ada.safetensors").read_bytes() == (tmp_path / "whole" / "ada.safetensors").read_bytes()
    assert {**card, "cpu_seconds": 0} == {**whole, "cpu_seconds": 0}
    model, read = TinyLM.load(parts, "ada")
    assert read == json.loads(json.dumps({"config": read["config"], **card}))
    assert read["parameters"] == sum(p.numel() for p in model.parameters())
