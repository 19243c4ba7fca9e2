"""SVF against numpy's and torch's linear algebra, a transformers model, and the counts of the paper."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from trinity_mini.backbone import Backbone
from trinity_mini.bench_svf import bench_svf, random_qwen3
from trinity_mini.files import UserError
from trinity_mini.svf import SVF


def matrices(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(5, 8, generator=g), "b": torch.randn(9, 4, generator=g)}


def normal(*shape, scale=0.3, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def test_layout_and_zero():
    weights = matrices()
    svf = SVF(weights)
    assert svf.n == 5 + 4
    assert svf.slices == {"a": slice(0, 5), "b": slice(5, 9)}
    for name, w in weights.items():
        u, s, vt = svf.factors[name]
        np.testing.assert_allclose(s, np.linalg.svd(w.numpy(), compute_uv=False), atol=1e-5)
        torch.testing.assert_close((u * s) @ vt, w, atol=1e-5, rtol=0)
        assert torch.equal(svf.reconstruct(name, torch.zeros(9)), w)


def test_gains_keep_directions_and_nuclear_norm():
    weights = matrices()
    svf, delta = SVF(weights), normal(9)
    for name, w in weights.items():
        changed = svf.reconstruct(name, delta).numpy()
        u, s, vt = np.linalg.svd(w.numpy(), full_matrices=False)
        gains = 1 + delta[svf.slices[name]].numpy()
        wanted = u @ np.diag(s * gains) @ vt * s.sum() / (s * gains).sum()
        np.testing.assert_allclose(changed, wanted, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(changed, "nuc"), s.sum(), rtol=1e-5)


def test_scaling_a_matrix_is_a_neutral_direction():
    svf = SVF(matrices())
    delta = torch.zeros(9)
    delta[:5] = 0.7
    torch.testing.assert_close(svf.reconstruct("a", delta), matrices()["a"], atol=1e-5, rtol=0)


def test_batches_of_deltas_equal_single_ones():
    svf, deltas = SVF(matrices()), normal(3, 2, 9)
    batch = svf.singular_values(deltas)
    assert {k: tuple(v.shape) for k, v in batch.items()} == {"a": (3, 2, 5), "b": (3, 2, 4)}
    for name in batch:
        assert torch.equal(batch[name][2, 1], svf.singular_values(deltas[2, 1])[name])


@pytest.mark.parametrize(
    "delta, message",
    [
        (torch.zeros(8), "last axis must be 9"),
        (torch.full((9,), torch.nan), "not finite"),
        (torch.full((9,), torch.inf), "not finite"),
        (torch.full((9,), -1.0), "sum of 0 or less"),
        (torch.full((9,), -2.0), "sum of 0 or less"),
    ],
)
def test_impossible_deltas(delta, message):
    with pytest.raises(ValueError, match=message):
        SVF(matrices()).singular_values(delta)


def test_bfloat16_weights_are_factored_in_float32():
    w = matrices()["a"].bfloat16()
    u, s, vt = SVF({"a": w}).factors["a"]
    assert s.dtype == torch.float32
    torch.testing.assert_close((u * s) @ vt, w.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_200_candidates_leave_the_weights_bit_for_bit(dtype):
    backbone = random_qwen3(32, 3)
    model = backbone.model.to(dtype)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    svf = backbone.svf()
    for delta in normal(200, svf.n):
        svf.apply(model, delta)
        svf.undo(model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(RuntimeError), svf.applied(model, normal(svf.n)):
        assert any(not torch.equal(v, before[k]) for k, v in model.state_dict().items())
        raise RuntimeError
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_gradient_agrees_with_finite_differences():
    torch.manual_seed(0)
    svf = SVF(matrices())
    x, delta = torch.randn(8), normal(9).requires_grad_()

    def loss(delta):
        return (svf.reconstruct("a", delta) @ x).square().sum()

    loss(delta).backward()
    step = torch.zeros(9)
    step[2] = 1e-2
    slope = (loss(delta.detach() + step) - loss(delta.detach() - step)) / 2e-2
    assert float(slope) == pytest.approx(float(delta.grad[2]), rel=1e-2)


def test_counts_of_qwen3_0_6b():
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        backbone = Backbone(Qwen3ForCausalLM(config), None)
    assert backbone.layer == 26
    paper, released = backbone.svf("paper"), backbone.svf("released")
    assert (paper.n, released.n) == (7_168, 9_216)
    assert released.n + 10 * backbone.d == 19_456
    assert all(".26." in name for name in paper.slices)
    assert list(released.slices)[7:] == ["model.embed_tokens.weight", "lm_head.weight"]
    assert released.inert == {"lm_head.weight"}


def test_a_tied_head_is_handled_once():
    backbone = random_qwen3(32, 3)
    svf, model = backbone.svf("released"), backbone.model
    delta = torch.zeros(svf.n)
    delta[svf.slices["lm_head.weight"]] = normal(svf.slices["lm_head.weight"].stop - svf.slices["lm_head.weight"].start)
    before = model.lm_head.weight.clone()
    with svf.applied(model, delta):  # the head's own block must not reach the embeddings
        assert torch.equal(model.model.embed_tokens.weight, before)
    delta[svf.slices["model.embed_tokens.weight"]] = 0.5 * normal(32)
    wanted = svf.reconstruct("model.embed_tokens.weight", delta)
    with svf.applied(model, delta):
        torch.testing.assert_close(model.lm_head.weight, wanted)
        assert model.lm_head.weight is model.model.embed_tokens.weight


def test_unknown_matrix_set():
    with pytest.raises(UserError, match="paper, released"):
        random_qwen3(32, 3).svf("all")


def test_bench_agrees_and_is_faster():
    rows = {row["name"]: row for row in bench_svf(quick=True)}
    assert all(set(row) == {"name", "family", "value", "se", "n", "unit"} for row in rows.values())
    assert rows["largest difference"]["value"] < 1e-4
    assert rows["speed-up, all at once"]["value"] > 2  # 5 measured; the bound at this size is 6
