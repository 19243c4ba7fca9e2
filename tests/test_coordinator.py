"""theta in, decisions out, against transformers and scipy; and checkpoints that are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from scipy.special import softmax
from transformers import Qwen3Config, Qwen3ForCausalLM

from trinity_mini.backbone import Backbone
from trinity_mini.coordinator import Coordinator, read_checkpoint
from trinity_mini.files import UserError
from trinity_mini.head import KINDS
from trinity_mini.tiny_lm import TOKENIZER, TinyConfig, TinyLM

TEXTS = ["3+4*2#>", "capital peru#>", "abcT12.W7.#>", "abcT12.W9.#>"]
L = 4


def backbone(seed=2, **options):
    return Backbone(TinyLM(TinyConfig(d=32, layers=3, heads=4, ff=48), seed=seed), TOKENIZER, **options)


def thetas(coordinator, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, coordinator.n)) * coordinator.stds(1, 0.3)


def uniforms(rows=4):
    return np.random.default_rng(1).random((rows, 2))


@pytest.mark.parametrize("matrices, n_svf", [("paper", 7 * 32), ("released", 9 * 32), ("none", 0)])
def test_layout(matrices, n_svf):
    c = Coordinator(backbone(), L, matrices=matrices)
    assert (c.n_svf, c.n_head, c.n) == (n_svf, 7 * 32, n_svf + 7 * 32)
    delta, w = c.split(np.arange(c.n))
    assert delta.tolist() == list(range(n_svf)) and w.tolist() == list(range(n_svf, c.n))
    assert c.stds(2.0, 0.5).tolist() == [0.5] * n_svf + [2.0] * (7 * 32)
    with pytest.raises(ValueError, match=f"must be {c.n}"):
        c.split(np.zeros(c.n + 1))


def test_full_size_with_the_released_layout():
    config = Qwen3Config(
        vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        b = Backbone(Qwen3ForCausalLM(config), None)
    assert Coordinator(b, 7, matrices="released").n == 19_456
    assert Coordinator(b, 7).n == 7_168 + 10_240


@pytest.mark.parametrize("matrices", ["paper", "released", "none"])
def test_probabilities_are_those_of_a_swapped_transformers_model(matrices):
    b = backbone()
    c = Coordinator(b, L, matrices=matrices)
    config = Qwen3Config(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, head_dim=8, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    lm = Qwen3ForCausalLM(config).eval()
    lm.load_state_dict(b.model.state_dict(), strict=False)
    many = thetas(c)
    agent_p, role_p = c.probabilities(TEXTS, many)
    assert agent_p.dtype == role_p.dtype == np.float32
    for i, theta in enumerate(many):
        ids = torch.tensor([TOKENIZER.encode(TEXTS[i])])
        if c.n_svf:
            b.svf(matrices).apply(lm, torch.from_numpy(theta[: c.n_svf]).float())
        with torch.no_grad():
            h = lm(ids, output_hidden_states=True).hidden_states[-1][0, -2].double().numpy()
        if c.n_svf:
            b.svf(matrices).undo(lm)
        z = theta[c.n_svf :].reshape(L + 3, 32) @ h / 32**0.5
        np.testing.assert_allclose(agent_p[i], softmax(z[:L]), atol=1e-4)
        np.testing.assert_allclose(role_p[i], softmax(z[L:]), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_do_not_depend_on_their_company(kind):
    c = Coordinator(backbone(), L, head=kind)
    many, u = thetas(c), uniforms()
    agents, roles, agent_p, role_p = c.decide(TEXTS, many, u)
    assert agent_p.shape == (4, L) and role_p.shape == (4, 3)
    np.testing.assert_allclose(agent_p.sum(1), 1, atol=1e-6)
    for i in range(4):
        c.backbone.clear_cache()
        one = c.decide(TEXTS[i : i + 1], many[i], u[i : i + 1])
        assert (one[0][0], one[1][0]) == (agents[i], roles[i])
        np.testing.assert_allclose(one[2][0], agent_p[i], atol=1e-5)


def test_theta_zero_is_fair_when_sampled_and_stuck_by_argmax():
    b = backbone()
    u = np.random.default_rng(0).random((4, 2))
    fair, stuck = Coordinator(b, L), Coordinator(b, L, selection="argmax")
    agents, _, agent_p, role_p = fair.decide(TEXTS, np.zeros(fair.n), u)
    assert (agent_p == 1 / L).all() and np.allclose(role_p, 1 / 3)
    assert agents.tolist() == np.floor(u[:, 0] * L).astype(int).tolist()
    agents, roles, *_ = stuck.decide(TEXTS, np.zeros(stuck.n), u)
    assert not agents.any() and not roles.any()


def test_selection_of_the_paper():
    b = backbone()
    assert Coordinator(b, L, "block-diagonal-n", selection=None).selection == "argmax"
    assert Coordinator(b, L, "linear", selection=None).selection == "sample"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"head": "mlp"}, "unknown head"),
        ({"matrices": "all"}, "no matrix set"),
        ({"selection": "best"}, "unknown selection"),
    ],
)
def test_unknown_options(options, message):
    with pytest.raises(UserError, match=message):
        Coordinator(backbone(), L, **options)


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_theta_that_is_not_finite(where, value):
    c = Coordinator(backbone(), L)
    many = thetas(c)
    many[2, where] = value
    with pytest.raises(ValueError, match="row 2"):
        c.decide(TEXTS, many, uniforms())


def test_logits_that_are_not_finite():
    c = Coordinator(backbone(), L)
    many = thetas(c)
    many[1, c.n_svf :] = 1e300  # more than float32 holds
    with pytest.raises(ValueError, match="logits of row 1"):
        c.decide(TEXTS, many, uniforms())


def test_a_prompt_that_is_too_short():
    c = Coordinator(backbone(), L)
    with pytest.raises(ValueError, match="input 1"):
        c.decide(["abc", ""], np.zeros(c.n), uniforms(2))


def saved(tmp_path, **options):
    c = Coordinator(backbone(), L, **options)
    theta = thetas(c, 1)[0]
    path = tmp_path / "theta.safetensors"
    c.save(path, theta, "pool-1", {"seed": 3})
    return c, theta, path


def test_a_checkpoint_keeps_every_bit(tmp_path):
    c, theta, path = saved(tmp_path)
    found = Coordinator(backbone(), L).load(path, "pool-1")
    assert found.dtype == np.float64 and np.array_equal(found, theta)
    assert read_checkpoint(path)[1]["extra"] == {"seed": 3}
    with pytest.raises(ValueError, match="finite"):
        c.save(path, theta * np.nan, "pool-1")
    assert np.array_equal(c.load(path, "pool-1"), theta)


class OtherTokenizer:
    """The same ids by another vocabulary list."""

    tokens = TOKENIZER.tokens[::-1]
    encode = TOKENIZER.encode


@pytest.mark.parametrize(
    "other, pool, message",
    [
        (lambda: Coordinator(backbone(), L), "pool-2", "another pool .*pool-1, not pool-2.*: use the pool"),
        (lambda: Coordinator(backbone(), L + 1), "pool-1", "number of agents"),
        (lambda: Coordinator(backbone(), L, "sparse"), "pool-1", r"another head \(linear, not sparse\)"),
        (lambda: Coordinator(backbone(), L, matrices="none"), "pool-1", "matrix set"),
        (lambda: Coordinator(backbone(layer=0), L), "pool-1", "adapted layer"),
        (lambda: Coordinator(backbone(seed=5), L), "pool-1", "another backbone.*language model"),
        (lambda: Coordinator(Backbone(backbone().model, OtherTokenizer()), L), "pool-1", "text format"),
    ],
)
def test_checkpoints_of_another_world_are_refused(tmp_path, other, pool, message):
    _, _, path = saved(tmp_path)
    with pytest.raises(UserError, match=message):
        other().load(path, pool)


def damaged(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-100])
    elif how == "cut in the header":
        path.write_bytes(content[:20])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        path.write_bytes(save({"theta": np.zeros(3)}))
    elif how == "text":
        path.write_text("theta = [1, 2]")
    elif how == "another file of ours":
        path.write_bytes(save({"theta": np.zeros(3)}, metadata={"coordinator": json.dumps({"file": "x"})}))


@pytest.mark.parametrize("how", ["truncated", "cut in the header", "empty", "foreign", "text", "another file of ours"])
def test_damaged_and_foreign_files_are_refused(tmp_path, how):
    c, _, path = saved(tmp_path)
    damaged(path, how)
    with pytest.raises(UserError, match="truncated or not a coordinator.*restore"):
        c.load(path, "pool-1")


@pytest.mark.parametrize("change", [lambda t: t * np.nan, lambda t: t[1:]])
def test_thetas_that_cannot_be(tmp_path, change):
    c, theta, path = saved(tmp_path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    path.write_bytes(save({"theta": change(load(content)["theta"])}, metadata=header["__metadata__"]))
    with pytest.raises(UserError, match="finite numbers"):
        c.load(path, "pool-1")


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="cannot read .*check the path"):
        Coordinator(backbone(), L).load(tmp_path / "none.safetensors", "pool-1")
