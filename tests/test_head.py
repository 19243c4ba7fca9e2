"""The heads against torch's own layers and the paper's parameter counts; selection against scipy."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import special, stats

from trinity_mini.files import UserError
from trinity_mini.head import KINDS, make_head, sample, select, softmax
from trinity_mini.roles import Role

D, L = 26, 5


def draws(head, rows, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, head.d, generator=g), torch.randn(rows, head.n, generator=g)


@pytest.mark.parametrize(
    "kind, n",
    [
        ("linear", 10_240),
        ("low-rank", 20_680),
        ("sparse", 11_266),
        ("block-diagonal-2", 5_120),
        ("block-diagonal-n", 1_024),
    ],
)
def test_counts_of_the_paper(kind, n):
    assert make_head(kind, 1024, 7).n == n


@pytest.mark.parametrize("kind", KINDS)
def test_own_parameters_in_every_row(kind):
    head = make_head(kind, D, L)
    h, w = draws(head, 6)
    agent, role = head(h, w)
    assert agent.shape == (6, L) and role.shape == (6, 3)
    for i in range(6):
        one_agent, one_role = head(h[i : i + 1], w[i])
        torch.testing.assert_close(agent[i], one_agent[0])
        torch.testing.assert_close(role[i], one_role[0])
    for shared, repeated in zip(head(h, w[0]), head(h, w[:1].expand(6, -1)), strict=True):
        torch.testing.assert_close(shared, repeated)


def test_linear_is_row_major_over_sqrt_d():
    head = make_head("linear", D, L)
    h, w = draws(head, 4)
    z = torch.cat(head(h, w[0]), dim=1)
    torch.testing.assert_close(z, F.linear(h, w[0].view(L + 3, D)) / D**0.5)


def test_low_rank():
    head = make_head("low-rank", D, L, rank=4)
    h, w = draws(head, 4)
    u, v = w[0, : 4 * D].view(4, D), w[0, 4 * D :].view(L + 3, 4)
    wanted = 3 * F.linear(F.elu(F.linear(h / D**0.5, u), alpha=0.1), v)
    torch.testing.assert_close(torch.cat(head(h, w[0]), dim=1), wanted)


def test_sparse_keeps_the_k_best_features():
    head = make_head("sparse", D, L)
    h, w = draws(head, 4)
    w[0, -1] = special.logit(7 / D)
    matrix, alpha = w[0, : -D - 2].view(L + 3, D), w[0, -D - 2 : -2]
    kept = torch.zeros(D)
    kept[alpha.topk(7).indices] = 1
    torch.testing.assert_close(torch.cat(head(h, w[0]), dim=1), F.linear(h * kept / D**0.5, matrix))


def test_sparse_with_noise_is_a_smooth_gate_that_hardens():
    head = make_head("sparse", D, L)
    h, w = draws(head, 4)
    w[:, -1] = special.logit(7 / D)
    noise = torch.from_numpy(stats.gumbel_r.rvs(size=(4, D), random_state=1)).float()
    w.requires_grad_()
    head(h, w, noise)[0].sum().backward()
    assert (w.grad[:, -D - 2 : -2] != 0).all()  # every score learns
    cold = w.detach().clone()
    cold[:, -2] = -12
    shifted = cold.clone()
    shifted[:, -D - 2 : -2] += noise
    for soft, hard in zip(head(h, cold, noise), head(h, shifted), strict=True):
        torch.testing.assert_close(soft, hard, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("share", [-50.0, 50.0])
@pytest.mark.parametrize("noisy", [False, True])
def test_sparse_at_its_limits(share, noisy):
    head = make_head("sparse", D, L)
    h, w = draws(head, 4)
    w[:, -1] = share
    agent, _ = head(h, w, torch.zeros(4, D) if noisy else None)
    assert agent.isfinite().all() and (agent != 0).all()


@pytest.mark.parametrize("kind, blocks", [("block-diagonal-2", 2), ("block-diagonal-n", L + 3)])
def test_block_diagonal_is_a_matrix_with_zeros(kind, blocks):
    head = make_head(kind, D, L)
    h, w = draws(head, 4)
    parts = w[0].split(head.sizes)
    full = torch.block_diag(*(p.view(-1, c) for p, c in zip(parts, head.columns, strict=True)))
    assert full.shape == (L + 3, D) and len(parts) == blocks
    torch.testing.assert_close(torch.cat(head(h, w[0]), dim=1), F.linear(h, full) / D**0.5)
    assert head.selection == ("argmax" if blocks > 2 else "sample")


def test_unknown_kind():
    with pytest.raises(UserError, match="linear, low-rank, sparse, block-diagonal-2, block-diagonal-n"):
        make_head("mlp", D, L)


def test_shapes_that_do_not_fit():
    head = make_head("linear", D, L)
    h, w = draws(head, 4)
    with pytest.raises(ValueError, match="states of shape"):
        head(h[:, 1:], w)
    with pytest.raises(ValueError, match="parameters of shape"):
        head(h, w[:3])
    with pytest.raises(ValueError, match="at least one agent"):
        make_head("linear", D, 0)
    with pytest.raises(ValueError, match="blocks"):
        make_head("block-diagonal-n", 4, L)


def test_gradient_of_the_log_probability():
    """REINFORCE's: (one-hot - p) h^T / sqrt(d)."""
    head = make_head("linear", D, L)
    h, w = draws(head, 1)
    w = w[0].requires_grad_()
    agent, _ = head(h, w)
    agent.log_softmax(-1)[0, 2].backward()
    p = special.softmax(agent.detach().numpy()[0])
    wanted = np.outer(np.eye(L)[2] - p, h.numpy()[0] / D**0.5)
    np.testing.assert_allclose(w.grad.view(L + 3, D)[:L], wanted, atol=1e-6)
    assert not w.grad.view(L + 3, D)[L:].any()


def test_the_order_of_the_roles():
    assert [r.label for r in sorted(Role)] == ["Worker", "Thinker", "Verifier"]
    for role in Role:
        logits = torch.zeros(1, 3)
        logits[0, role] = 50
        assert select(torch.zeros(1, L), logits, np.full((1, 2), 0.5))[1] == [role]


def test_softmax_does_not_overflow():
    z = np.array([[1e4, 0.0, -1e4], [0.0, 1.0, 2.0]])
    np.testing.assert_allclose(softmax(z), special.softmax(z, axis=-1), atol=1e-15)


def test_draws_follow_the_softmax_independently():
    rng = np.random.default_rng(0)
    agent, role = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[1.0, 0.0, 0.5]])
    n = 20_000
    agents, roles = select(agent.expand(n, 3), role.expand(n, 3), rng.random((n, 2)))
    joint = np.outer(special.softmax(agent[0].numpy()), special.softmax(role[0].numpy()))
    counts = np.zeros((3, 3))
    np.add.at(counts, (agents, roles), 1)
    assert stats.chisquare(counts.ravel(), (joint / joint.sum() * n).ravel()).pvalue > 1e-3


def test_inverse_distribution_function_at_its_edges():
    p = np.array([[0.0, 0.25, 0.0, 0.75, 0.0]])
    u = np.array([0.0, 0.2499, 0.25, 0.999, 1 - 2**-53])
    assert sample(np.repeat(p, 5, axis=0)[:, :4], u).tolist() == [1, 1, 3, 3, 3]
    tenths = np.full((1, 10), 0.1)  # their sum is less than 1 in floating point
    assert sample(tenths, np.array([1 - 2**-53])) == [9]


def test_ties_of_argmax_go_to_the_lowest_index():
    agents, roles = select(torch.zeros(3, L), torch.tensor([[0.0, 2.0, 2.0]]).expand(3, 3), None)
    assert agents.tolist() == [0, 0, 0] and roles.tolist() == [1, 1, 1]
    agents, _ = select(torch.zeros(3, L), torch.zeros(3, 3), np.array([[0.1, 0], [0.5, 0], [0.9, 0]]))
    assert agents.tolist() == [0, 2, 4]
