"""The head: one hidden state in, a score for every agent and every role out.

Five kinds, as in the paper's ablation (paper section 2). Each is a function of a state and of
one flat vector of parameters, so that a batch may hold another candidate in every row. The first L
logits are the agents', the last three the roles', in the order worker, thinker, verifier.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .files import UserError

N_ROLES = 3


class Head:
    """What all kinds share. States are divided by sqrt(d): with parameters near 1 the logits of
    states of mean square 1 then spread by about 1, whatever the width.

    d: width of the state; n_agents: L; n: number of parameters;
    selection: how the paper draws from this kind, "sample" or "argmax".
    """

    selection = "sample"
    n: int

    def __init__(self, d: int, n_agents: int) -> None:
        if n_agents < 1 or d < 1:
            raise ValueError(f"a head needs at least one agent and one feature, not {n_agents}, {d}.")
        self.d, self.n_agents, self.n_out = d, n_agents, n_agents + N_ROLES

    def __call__(self, h: Tensor, w: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(agent logits (B, L), role logits (B, 3)) for states h (B, d).

        w: (B, n), a row each, or (n,) for all; noise: see SparseHead, the others ignore it.
        Raises: ValueError if a shape does not fit.
        """
        if h.ndim != 2 or h.shape[1] != self.d:
            raise ValueError(f"states of shape {tuple(h.shape)}: (rows, {self.d}) is needed.")
        if w.shape not in ((self.n,), (len(h), self.n)):
            raise ValueError(f"parameters of shape {tuple(w.shape)}: ({len(h)}, {self.n}) or ({self.n},) is needed.")
        z = self.logits(h / math.sqrt(self.d), w.to(h).expand(len(h), self.n), noise)
        return z[:, : self.n_agents], z[:, self.n_agents :]

    def logits(self, h: Tensor, w: Tensor, noise: Tensor | None) -> Tensor:
        """(B, L + 3) for scaled states h (B, d) and parameters w (B, n)."""
        raise NotImplementedError


def _matrix(w: Tensor, x: Tensor) -> Tensor:
    """W x for each row's own row-major W: w (B, out * in), x (B, in) -> (B, out)."""
    return torch.bmm(w.unflatten(1, (-1, x.shape[1])), x[:, :, None])[:, :, 0]


class LinearHead(Head):
    """z = W h, no bias; (L + 3) d parameters, row-major."""

    def __init__(self, d: int, n_agents: int) -> None:
        super().__init__(d, n_agents)
        self.n = self.n_out * d

    def logits(self, h, w, noise):
        return _matrix(w, h)


class LowRankHead(Head):
    """z = 3 V ELU(U h, alpha=.1); r (d + L + 3) parameters [U, V].

    The paper's text says rank 14, its count of 20,680 gives 20: we follow the count.
    """

    def __init__(self, d: int, n_agents: int, rank: int = 20) -> None:
        super().__init__(d, n_agents)
        self.rank, self.n = rank, rank * (d + self.n_out)

    def logits(self, h, w, noise):
        u, v = w.split((self.rank * self.d, self.rank * self.n_out), dim=1)
        return 3 * _matrix(v, F.elu(_matrix(u, h), alpha=0.1))


class SparseHead(Head):
    """z = W (h * gate), the gate open for the k features of highest score alpha.

    Parameters [W, alpha (d), log temperature, logit of k / d], (L + 3) d + d + 2; the paper counts
    as many and does not say what the two scalars are. k is at least 1; equal scores: the lower
    index goes first (all zeros open the first half of the features).

    noise: (B, d) Gumbel numbers for training, added to alpha; the gate is then
    sigmoid((alpha + noise - threshold) / temperature), the threshold midway between the k-th and
    the next score. Without noise, at inference, it is 0 or 1.
    """

    def __init__(self, d: int, n_agents: int) -> None:
        super().__init__(d, n_agents)
        self.n = self.n_out * d + d + 2

    def logits(self, h, w, noise):
        matrix, alpha, log_t, share = w.split((self.n_out * self.d, self.d, 1, 1), dim=1)
        k = (self.d * share.sigmoid()).round().long().clamp(1, self.d)
        scores = alpha if noise is None else alpha + noise.to(alpha)
        ranked, index = scores.sort(dim=1, descending=True, stable=True)
        if noise is None:
            ranks = torch.arange(self.d, device=h.device).expand_as(index)
            gate = torch.empty_like(h).scatter_(1, index, (ranks < k).to(h))
        else:
            following = ranked.gather(1, k.clamp(max=self.d - 1))
            threshold = (ranked.gather(1, k - 1) + following) / 2
            gate = ((scores - threshold) / log_t.exp()).sigmoid()
        return _matrix(matrix, h * gate)


class BlockDiagonalHead(Head):
    """Outputs and features cut into `blocks` runs of near-equal length; each run of outputs sees
    its own run of features. Two blocks: (L + 3) d / 2 parameters; L + 3 blocks: d."""

    def __init__(self, d: int, n_agents: int, blocks: int) -> None:
        super().__init__(d, n_agents)
        if d < blocks:
            raise ValueError(f"{blocks} blocks need at least as many features, not {d}.")
        self.rows = [len(part) for part in np.array_split(np.arange(self.n_out), blocks)]
        self.columns = [len(part) for part in np.array_split(np.arange(d), blocks)]
        self.sizes = [r * c for r, c in zip(self.rows, self.columns, strict=True)]
        self.n = sum(self.sizes)
        if blocks == self.n_out:
            self.selection = "argmax"  # the paper's exception

    def logits(self, h, w, noise):
        parts = zip(w.split(self.sizes, dim=1), h.split(self.columns, dim=1), strict=True)
        return torch.cat([_matrix(block, chunk) for block, chunk in parts], dim=1)


KINDS = {
    "linear": LinearHead,
    "low-rank": LowRankHead,
    "sparse": SparseHead,
    "block-diagonal-2": lambda d, n_agents: BlockDiagonalHead(d, n_agents, 2),
    "block-diagonal-n": lambda d, n_agents: BlockDiagonalHead(d, n_agents, n_agents + N_ROLES),
}


def make_head(kind: str, d: int, n_agents: int, **options: int) -> Head:
    """A head of a kind; `rank` is the only option, of "low-rank".

    Parameters at d = 1024, L = 7: linear 10,240, low-rank 20,680, sparse 11,266,
    block-diagonal-2 5,120, block-diagonal-n 1,024.
    Raises: UserError for an unknown kind.
    """
    if kind not in KINDS:
        raise UserError(f"unknown head {kind!r}: choose one of {', '.join(KINDS)}.")
    return KINDS[kind](d, n_agents, **options)


def softmax(logits: Tensor | np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, computed in float64."""
    z = np.asarray(logits, dtype=np.float64)
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sample(p: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """Index drawn from each row of p (B, K) by inverting its distribution function at u in [0, 1)."""
    cumulative = p.cumsum(-1)
    return (uniforms[:, None] >= cumulative[:, :-1]).sum(-1)


def select(
    agent_logits: Tensor | np.ndarray,
    role_logits: Tensor | np.ndarray,
    uniforms: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """(agents (B,), roles (B,)): two independent softmax draws with given numbers (B, 2) in [0, 1).

    uniforms None takes the largest logit. Ties then go to the lowest index, so a zero head always
    picks agent 0 as a worker: evolution by argmax starts on a plateau, sampling does not.
    Source: paper section 2 (sampled at train and at test time).
    """
    if uniforms is None:
        return np.asarray(agent_logits).argmax(-1), np.asarray(role_logits).argmax(-1)
    u = np.asarray(uniforms, dtype=np.float64)
    return sample(softmax(agent_logits), u[:, 0]), sample(softmax(role_logits), u[:, 1])
