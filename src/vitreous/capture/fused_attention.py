"""Attention that is not written out: what methods read of it is computed from queries, keys and values.

Fused attention needs neither the matrix A [b h n n] nor its gradient G, and both are larger than all other tensors of a
block. In half precision on a GPU, a block runs fused attention also where a method reads A and G; the sums that methods
read most are one Triton kernel, and the matrices themselves are computed where a method asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.fused import at_least_float32, kernels_for, positive_mean
from vitreous.capture.precision import full_precision, half_products
from vitreous.models.tensor_types import Mixing, PerHead


def is_used(tokens: Tensor) -> bool:
    """Whether blocks with these tokens run fused attention where a method reads the matrix or its gradient."""
    return (half_products() or tokens.dtype.itemsize == 2) and kernels_for(tokens) is not None


@dataclass(frozen=True, slots=True, eq=False)
class FusedAttention:
    """Inputs and output of the fused attention of one block.

    Attributes
    ----------
    q, k, v
        Queries, keys and values, without graph and in the precision of the products.
    scale
        Factor of the scores.
    mixed
        Output of the attention, with graph: the matrix's gradient follows from the gradient at it.
    """

    q: PerHead
    k: PerHead
    v: PerHead
    scale: float
    mixed: PerHead

    @torch.no_grad()
    def matrix(self) -> Mixing:
        """Attention matrix A = softmax(scale · q kᵀ)."""
        with full_precision(self.q.device):
            return ((self.q * self.scale) @ self.k.mT).softmax(-1)

    @torch.no_grad()
    def matrix_grad(self, upstream: Float[Tensor, "r h n e"]) -> Float[Tensor, "r h n n"]:
        """Gradient G = D vᵀ at the matrix, of the gradient D at the output."""
        with full_precision(self.v.device):
            return upstream @ self.rows(self.v, upstream).mT.to(upstream.dtype)

    @torch.no_grad()
    def positive_mean(
        self, upstream: Float[Tensor, "r h n e"], weight: Float[Tensor, "r h n"] | None
    ) -> Float[Tensor, "r n n"]:
        """mean_h A relu(G) w, in float32; `weight` w is 1 by default."""
        if kernels_for(self.q, upstream, weight) is not None:
            from vitreous.capture import triton_attention

            return triton_attention.positive_mean(self.q, self.k, self.v, self.scale, upstream, weight)
        return positive_mean(self.rows(self.matrix(), upstream), self.matrix_grad(upstream), weight)

    @torch.no_grad()
    def presence_grad(self, upstream: Float[Tensor, "r h n e"]) -> Float[Tensor, "r n"]:
        """Gradient of the score in the presence of each token, as `layer.presence_grad` of the matrices."""
        if kernels_for(self.q, upstream) is not None:
            from vitreous.capture import triton_attention

            return triton_attention.presence_grad(self.q, self.k, self.v, self.scale, upstream)
        return presence_grad(self.rows(self.matrix(), upstream), self.matrix_grad(upstream))

    def rows(self, per_image: Tensor, upstream: Tensor) -> Tensor:
        """Repeat a tensor per image to one row per image and target."""
        targets = len(upstream) // len(per_image)
        return per_image if targets == 1 else per_image.repeat_interleave(targets, 0)


def presence_grad(attention: Float[Tensor, "r h q n"], grad: Float[Tensor, "r h q n"]) -> Float[Tensor, "r n"]:
    """Gradient of the score t in the presence m of each token, at m = 1.

    With Aᵢⱼ ∝ mⱼ exp(…) and G the gradient in A: ∂t/∂mⱼ = Σₕᵢ Aₕᵢⱼ (Gₕᵢⱼ − Σₖ Aₕᵢₖ Gₕᵢₖ).
    """
    attention, grad = at_least_float32(attention), at_least_float32(grad)  # of nearly equal numbers
    taken = attention * grad
    return (taken - attention * taken.sum(-1, keepdim=True)).sum((1, 2))
