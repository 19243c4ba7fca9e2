"""Singular-value fine-tuning: each weight matrix keeps its directions and moves only its gains.

W = U diag(S) V^T becomes W' = U diag(s) V^T with s = S(1 + delta) * sum(S) / sum(S(1 + delta)).
The last factor keeps the nuclear norm while no gain turns negative (delta > -1), so scaling all gains of a matrix alike
changes nothing: one direction a matrix is neutral. Source: Transformer² (Sun et al. 2025); paper section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class SVF:
    """Singular-value coordinates of named weight matrices.

    weights: parameter name -> matrix (out, in), as in `model.named_parameters()`. A matrix that is
    the same tensor as an earlier one (a tied lm_head) keeps its coordinates, as in the released
    run, but they are inert: applying them would overwrite the earlier matrix.

    n: number of coordinates, min(out, in) a matrix.
    slices: name -> the matrix's coordinates in the flat vector.
    saved: name -> a copy of W as it was given.
    factors: name -> (U (out, r), S (r,), Vt (r, in)), float32: an SVD in bfloat16 is as wrong
    (3.5e-3) as the steps of the evolution strategy are large. Only U diag(S) Vt is determined; the
    signs of the singular vectors differ between builds of LAPACK.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.n = 0
        self.slices: dict[str, slice] = {}
        self.saved: dict[str, Tensor] = {}
        self.factors: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self.inert: set[str] = set()
        owner: dict[int, str] = {}
        for name, w in weights.items():
            self.slices[name] = slice(self.n, self.n + min(w.shape))
            self.n += min(w.shape)
            first = owner.setdefault(id(w), name)
            if first != name:
                self.inert.add(name)
                self.saved[name], self.factors[name] = self.saved[first], self.factors[first]
                continue
            self.saved[name] = w.detach().clone()
            u, s, vt = torch.linalg.svd(w.detach().float(), full_matrices=False)
            self.factors[name] = u.contiguous(), s, vt.contiguous()

    def singular_values(self, delta: Tensor) -> dict[str, Tensor]:
        """Effective singular values of every matrix for delta (..., n): name -> (..., r), float32.

        Raises: ValueError if delta has another length, is not finite, or takes the sum of a
        matrix's singular values to 0 or below (no scale can then restore it).
        """
        delta = torch.as_tensor(delta)
        if delta.shape[-1:] != (self.n,):
            raise ValueError(f"delta has shape {tuple(delta.shape)}: the last axis must be {self.n}.")
        if not delta.isfinite().all():
            raise ValueError("delta holds a value that is not finite.")
        values = {}
        for name, part in self.slices.items():
            s = self.factors[name][1]
            moved = s * (1 + delta[..., part].to(s))
            total = moved.sum(-1, keepdim=True)
            if (total <= 0).any():
                raise ValueError(f"delta takes the singular values of {name} to a sum of 0 or less.")
            values[name] = moved * (s.sum() / total)
        return values

    def reconstruct(self, name: str, delta: Tensor) -> Tensor:
        """W' (out, in) in float32 for delta (n,); the saved W itself where its delta is all 0.

        Raises: ValueError as `singular_values`.
        """
        values = self.singular_values(delta)[name]
        return self.product(name, values)

    def product(self, name: str, values: Tensor) -> Tensor:
        """U diag(values) Vt in the type of values; the saved W itself where values are W's own."""
        u, s, vt = self.factors[name]
        if not values.requires_grad and torch.equal(values, s):
            return self.saved[name].to(values)
        return (u * values) @ vt

    def apply(self, model: nn.Module, delta: Tensor) -> None:
        """Write W' for delta (n,) into the model's parameters, until `undo`.

        Raises: ValueError as `singular_values`; nothing is written then.
        """
        values = self.singular_values(delta)
        with torch.no_grad():
            for name in self.slices.keys() - self.inert:
                model.get_parameter(name).copy_(self.product(name, values[name]))

    def undo(self, model: nn.Module) -> None:
        """Put the saved tensors back, bit for bit.

        Undoing by arithmetic would drift: after 200 candidates the model would be another one.
        """
        with torch.no_grad():
            for name in self.slices.keys() - self.inert:
                model.get_parameter(name).copy_(self.saved[name])

    @contextmanager
    def applied(self, model: nn.Module, delta: Tensor) -> Iterator[nn.Module]:
        """`with svf.applied(model, delta):` runs with W' and leaves W, also after an error."""
        self.apply(model, delta)
        try:
            yield model
        finally:
            self.undo(model)
