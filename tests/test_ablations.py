"""Variants of the coordinator: what is taken out is never chosen, and other readers against the plain forward pass."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from trinity_mini.ablation_studies import HEADS, SIGMAS, STUDIES, run_ablation, run_emergence, run_head
from trinity_mini.ablations import (
    SIGMA0,
    VARIANTS,
    LastToken,
    MeanToken,
    RestrictedHead,
    Variant,
    VariantGame,
    agent_entropy,
)
from trinity_mini.backbone import Backbone
from trinity_mini.baselines import sep_cma_es
from trinity_mini.episode import uniforms
from trinity_mini.episode_tree import EpisodeTree
from trinity_mini.head import make_head
from trinity_mini.pool import EmbeddedPool
from trinity_mini.presets import preset
from trinity_mini.study import frame
from trinity_mini.tasks import FAMILIES, questions


@pytest.fixture(scope="module")
def tree():
    asked = [q for f in FAMILIES for q in questions(f, "test", 3, 0)]
    return EpisodeTree(Backbone.embedded(), EmbeddedPool(), asked)


def played(tree, variant, seed=0, scale=3.0):
    game = VariantGame(tree, variant)
    theta = np.random.default_rng(seed).normal(0, scale, game.n)
    return game, theta, game.play_plain(theta, 1)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.max_turns == 5 and v.reads == "penultimate"], ids=str)
def test_only_what_is_allowed_is_chosen(tree, variant):
    _, _, p = played(tree, variant)
    spoken = p.agents >= 0
    assert set(np.unique(p.agents[spoken])) <= set(range(5) if variant.agents is None else variant.agents)
    assert set(np.unique(p.roles[spoken])) <= set(range(3) if variant.roles is None else map(int, variant.roles))
    assert set(p.rewards) <= {0.0, 1.0}


def test_the_variants_have_names_of_their_own():
    assert len({v.name for v in VARIANTS}) == len(VARIANTS) and VARIANTS[0] == Variant("full")


def test_argmax_takes_the_largest_logit(tree):
    game, theta, p = played(tree, Variant("x", argmax=True))
    w = torch.from_numpy(theta).float().view(8, -1) / math.sqrt(tree.backbone.d)
    for t in range(5):
        on = p.nodes[:, t] >= 0
        z = tree.features[p.nodes[on, t]] @ w.T
        assert (z[:, :5].argmax(1).numpy() == p.agents[on, t]).all()
        assert (z[:, 5:].argmax(1).numpy() == p.roles[on, t]).all()


def test_bonuses_change_the_fitness_and_not_the_answer(tree):
    game, theta, p = played(tree, Variant("x", entropy=0.15, turns_cost=0.02))
    b = len(tree.asked)
    draws = np.stack([uniforms(5, 1, i) for i in range(b)])
    with_bonus = game.play(theta[None], np.zeros(b, int), np.arange(b), draws)
    assert (with_bonus.agents == p.agents).all()
    for i in range(b):
        used = p.agents[i][p.agents[i] >= 0]
        wanted = p.rewards[i] + 0.15 * entropy(np.bincount(used)) - 0.02 * len(used)
        assert with_bonus.rewards[i] == pytest.approx(wanted)


def test_the_entropy_of_one_agent_is_zero():
    agents = np.array([[2, 2, 2, -1], [0, 1, -1, -1], [4, 3, 3, 3]])
    assert agent_entropy(agents, 5) == pytest.approx([0, math.log(2), entropy([0.25, 0.75])])


@pytest.mark.parametrize("reader", [LastToken, MeanToken])
def test_readers_against_a_plain_forward_pass(tree, reader):
    shipped = tree.backbone
    b = reader(shipped.model, shipped.tokenizer)
    texts = [shipped.render(t) for t in tree.transcripts[:20]]
    for text, found in zip(texts, b.hidden(texts), strict=True):
        ids = torch.tensor([shipped.tokenizer.encode(text)])
        n = ids.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        with torch.no_grad():
            x = shipped.model.model.norm(shipped.model(ids, mask, torch.arange(n)[None]))[0]
        wanted = x[-1] if reader is LastToken else x[:-1].mean(0)
        assert torch.allclose(found, wanted, atol=1e-4)


def test_sigma0_of_each_head_is_the_studys_choice():
    rows = frame("heads")
    tuning = rows[(rows.split == "validation") & (rows.seed > 100)].pivot_table("accuracy", "variant", "sigma0")
    assert (tuning.shape, tuning.isna().any(axis=None)) == ((len(HEADS), len(SIGMAS)), False)
    assert {name: v.sigma0 for name, v in HEADS.items()} == tuning.idxmax(axis=1).to_dict()
    assert {v.head for v in HEADS.values()} == set(SIGMA0)
    assert min(SIGMAS) < min(SIGMA0.values()) and max(SIGMA0.values()) < max(SIGMAS)  # none at an end


def test_the_heads_are_judged_with_their_own_sigma0_on_other_seeds_than_chose_it():
    rows, tried = frame("ablations"), frame("heads")
    assert not {*rows.seed} & {*tried[tried.split == "validation"].seed}
    for name, v in HEADS.items():
        used = rows[rows.variant == name].fillna({"sigma0": preset("mini").sigma0}).sigma0
        assert set(used) == {v.sigma0} and len(used) == 2 * 6
    plain = rows[~rows.variant.isin(HEADS)]
    assert plain.sigma0.isna().all() and all(v.sigma0 == preset("mini").sigma0 for v in VARIANTS if v.name not in HEADS)


def test_by_argmax_no_sigma0_differs_from_another(tree):
    variant = next(v for v in VARIANTS if v.head == "block-diagonal-n" and v.argmax)
    one, four = (list(sep_cma_es(VariantGame(tree, variant), 3 * 544, 1, sigma0=s))[-1] for s in (1.0, 4.0))
    assert one.reward == four.reward and np.allclose(4 * one.theta, four.theta)


def test_the_quick_studies_run(tmp_path, monkeypatch):
    monkeypatch.setattr("trinity_mini.ablation_studies.CachedPool", EmbeddedPool)
    rows = run_ablation(STUDIES["ablations"].quick[1])
    assert [r["selection"] for r in rows] == ["as trained", "argmax"] and rows[0]["turns"] <= 2
    (row,) = run_head(STUDIES["heads"].quick[0])
    assert row["n"] == 4 * 64 and 0 < row["accuracy"] < 1
    rows = run_emergence(STUDIES["emergence"].quick[0])
    looks = [r for r in rows if r["what"] == "generation"]
    for r in looks:
        counts, follows = np.array(r["counts"]), np.array(r["follows"])
        assert counts.sum() == pytest.approx(r["turns"] * r["n"]) and counts[:, 0].sum() == r["n"] == 800
        assert follows[-1].sum() == follows[:, -1].sum() == 800  # every episode starts and ends once
        assert follows.sum() == counts.sum() + 800
        assert (follows[:-1].sum(0)[:-1] + follows[-1][:-1] == counts.sum((0, 1)).ravel()).all()
    assert [r["generation"] for r in looks] == [0, 1] and {r["what"] for r in rows} == {"generation", "transfer"}


@pytest.mark.parametrize("options", [{"agents": ()}, {"agents": (5,)}, {"agents": (-1,)}, {"roles": ()}])
def test_a_variant_that_allows_nobody_is_refused(options):
    with pytest.raises(ValueError, match="must allow"):
        RestrictedHead(make_head("linear", 8, 5), Variant("x", **options))


def test_what_is_closed_stays_closed_however_large_the_logits():
    head = RestrictedHead(make_head("linear", 8, 5), Variant("x", agents=(0,), argmax=True))
    w = torch.from_numpy(np.random.default_rng(1).normal(0, 1e7, 8 * 8)).float()
    agent, role = head(torch.ones(3, 8), w)
    assert torch.isfinite(agent).all() and (agent.argmax(1) == 0).all() and torch.isfinite(role).all()
