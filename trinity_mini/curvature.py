"""J's second derivatives without noise: the oracle for separability.py, and Definition 1 itself (lesson 08).

On a tree of all conversations (episode_tree) J is a sum that autograd can differentiate twice. A Hessian-vector
product costs a few evaluations of J, whatever the number of parameters (Pearlmutter 1994).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from .backbone import Backbone
from .episode_tree import EpisodeTree
from .moving_states import MovingStates
from .separability import Array, directions_of

Reward = Callable[[Tensor], Tensor]  # theta (n,) float64 -> a number, twice differentiable


def chances(features: Tensor, w: Tensor, n_agents: int) -> tuple[Tensor, Tensor]:
    """(agent (N, L), role (N, 3)) probabilities of a linear head w ((L + 3) d,) for features (N, d)."""
    z = features @ w.view(-1, features.shape[1]).T / math.sqrt(features.shape[1])
    return z[:, :n_agents].softmax(1), z[:, n_agents:].softmax(1)


def head_reward(tree: EpisodeTree) -> Reward:
    """J of a linear head w ((L + 3) d,) on a whole tree, without SVF."""
    return lambda w: tree.expected_reward(lambda h: chances(h, w, tree.n_agents)).mean()


def leading_states(features: Tensor, rank: int, n_out: int) -> tuple[NDArray, float]:
    """Orthonormal basis (n_out * d, n_out * rank) of heads that read the leading principal directions of the states.

    features: (N, d). Row-major like the head: output r reads direction k in column r * rank + k. Returns it and the
    share of the states' mean square in those directions. The states' mean counts: the head has no bias.
    """
    x = features.double().numpy()
    values, vectors = np.linalg.eigh(x.T @ x)
    u = vectors[:, ::-1][:, :rank]
    return np.kron(np.eye(n_out), u), float(values[::-1][:rank].sum() / values.sum())


def products(reward: Sequence[Reward], theta: Array, vectors: Array) -> Array:
    """H v for each row of vectors (m, n), H the Hessian of the mean of the rewards at theta (n,): (m, n).

    One reward's graph is kept at a time: give a question each where memory is short.
    """
    out = torch.zeros(vectors.shape, dtype=torch.float64)
    for j in reward:
        x = torch.from_numpy(np.array(theta, dtype=float)).requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            (slope,) = torch.autograd.grad(j(x), x, create_graph=True)
            for i, v in enumerate(torch.from_numpy(np.asarray(vectors, dtype=float))):
                out[i] += torch.autograd.grad(slope @ v, x, retain_graph=True)[0]
    return (out / len(reward)).numpy()


def hessian(reward: Reward, theta: Array, basis: Array) -> Array:
    """B' H B for an orthonormal basis B (n, r): (r, r), symmetric up to rounding."""
    h = products([reward], theta, basis.T) @ basis
    return (h + h.T) / 2


def block_products(
    reward: Sequence[Reward], theta: Array, blocks: Mapping[str, NDArray], directions: int, seed: int
) -> Array:
    """Measurements of ||H_pq||_F^2, (directions, K, K), symmetric in p and q; no noise but the directions'.

    With a uniform unit direction a of block p, E||(H a)_q||^2 = ||H_qp||_F^2 / n_p: one product measures a whole
    row of blocks. F_pq and F_qp are two measurements of one number: each gets their mean.
    """
    rng = np.random.default_rng(seed)
    units = [directions_of(b, len(theta), directions, rng) for b in blocks.values()]
    found = products(reward, theta, np.concatenate(units)).reshape(len(units), directions, -1)
    x = np.empty((directions, len(units), len(units)))
    for p, source in enumerate(blocks.values()):
        for q, target in enumerate(blocks.values()):
            part = found[p] @ target if target.ndim == 2 else found[p][:, target]
            x[:, p, q] = source.shape[-1] * (part**2).sum(1)
    return (x + x.transpose(0, 2, 1)) / 2


def frobenius(h: Array, blocks: Mapping[str, NDArray]) -> Array:
    """||H_pq||_F^2 of a Hessian (n, n): (K, K)."""
    return np.array([[(h[np.ix_(p, q)] ** 2).sum() for q in blocks.values()] for p in blocks.values()])


def definition1(h: Array, blocks: Mapping[str, NDArray]) -> dict[str, float]:
    """The three forms of block-eps-separability (paper section 4, Definition 1) for a Hessian h (n, n).

    The definition wants a positive diagonal, and a diagonal scaling S of our choice. Returns `positive`, the share of
    the diagonal that is; where it is not 1 the definition does not apply, and |H_ii| stands for H_ii below.
    B1, the spectral norm, and B2, the largest entry, of D^-1/2 off(H) D^-1/2: S cancels. B3, the largest row sum of
    |off(H)_ij| / |H_ii|, does depend on it: `B3` has S = 1, `B3_jacobi` S = 1 / |H_ii|, `B3_best` the best S: the least
    row sum over all diagonal scalings of a matrix of positive entries is its spectral radius (Perron, Frobenius), and
    that is at least B1.

    One block per output row can satisfy none of them with a small eps. A softmax does not see what is added to all its
    K logits: J(W + 1 v') = J(W), so H annihilates (v, ..., v), and each H_rk,rk = - sum over r' != r of H_rk,r'k: the
    diagonal is made of inter-block entries. Hence B3 >= 1 with S = 1; and with D > 0 and u = e_k in all K rows,
    w = D^1/2 u gives w' D^-1/2 off(H) D^-1/2 w = u' off(H) u = -sum_r H_rk,rk = -w'w: B1 >= 1, whatever S, so
    B3 >= B1 >= 1 for every S. A K x K symmetric matrix with a zero diagonal and entries up to B2 has a norm of
    (K - 1) B2 at most: B2 >= 1 / (K - 1).
    """
    label = np.full(len(h), -1)
    for k, index in enumerate(blocks.values()):
        label[index] = k
    used = np.flatnonzero(label >= 0)
    h, label = h[np.ix_(used, used)], label[used]
    off = np.where(label[:, None] != label[None, :], h, 0)
    d = np.abs(h.diagonal())
    scaled = off / np.sqrt(np.outer(d, d))
    return {
        "positive": float((h.diagonal() > 0).mean()),
        "B1": float(np.linalg.norm(scaled, 2)),
        "B2": float(np.abs(scaled).max()),
        "B3": float((np.abs(off).sum(1) / d).max()),
        "B3_jacobi": float(np.abs(scaled).sum(1).max()),
        "B3_best": float(np.linalg.eigvalsh(np.abs(scaled)).max()),
    }


def question_reward(backbone: Backbone, tree: EpisodeTree) -> Reward:
    """J of one question's tree for theta = [SVF deltas | linear head], through the SLM's adapted layers.

    Raises: ValueError if the backbone is no TinyLM or the tree holds several questions.
    """
    if len(tree.asked) != 1:
        raise ValueError("a tree of one question is needed: the states of a larger one do not fit into memory.")
    texts = [backbone.encode(backbone.render(t))[:-1] for t in tree.transcripts]
    states = MovingStates(backbone, [texts], torch.float64)
    n = states.svf.n

    def reward(theta: Tensor) -> Tensor:
        h = states.features(theta[:n])
        return tree.expected_reward(lambda _: chances(h, theta[n:], tree.n_agents)).mean()

    return reward
