"""Steps that are one kernel on a GPU and a few torch operations elsewhere.

The torch operations are the reference. The Triton kernels are used for CUDA tensors if Triton is installed and works;
they are tested against the torch operations in Triton's interpreter and, by `benchmarks/precision.py`, on a GPU.

Fused attention needs neither the matrix A [b h n n] nor its gradient G, and both are larger than all other tensors of a
block. In half precision on a GPU, a block runs fused attention also where a method reads A and G; the sums that methods
read most are one Triton kernel, and the matrices themselves are computed where a method asks for them (`FusedAttention`).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from vitreous.capture.precision import full_precision, half_products
from vitreous.models.tensor_types import Mixing, PerHead

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_WIDTH = 16384  # elements of a row that one program holds


def kernels_for(*tensors: Tensor | None) -> Any:
    """Module of the Triton kernels, or None where the torch operations have to be used.

    The kernels have no second derivative, so they are not used where a graph of the backward pass is recorded.
    """
    for tensor in tensors:
        if tensor is not None and (
            tensor.dtype not in DTYPES or not on_gpu(tensor) or tensor.shape[-1] > LARGEST_WIDTH
        ):
            return None
    return load_kernels(tensors[0].device if tensors and tensors[0] is not None else None)


def on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


@cache
def load_kernels(device: torch.device | None) -> Any:
    """Import the kernels and run the smallest of them on a device; None if that fails, for example without a C compiler."""
    try:
        from vitreous.capture import triton_kernels

        x = torch.arange(6.0, device=device).view(2, 3)
        if triton_kernels.row_dot(x, x).tolist() != [5.0, 50.0]:
            raise ArithmeticError("a kernel gives a wrong result")
    except ImportError:
        return None
    except Exception as problem:  # noqa: BLE001 - whatever the compiler raises, torch's operations remain
        warnings.warn(f"Triton does not work here, so torch's operations are used ({problem})", stacklevel=2)
        return None
    return triton_kernels


def has_graph(*tensors: Tensor | None) -> bool:
    """Whether operations on these tensors are recorded by autograd."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 if it is in half precision."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def row_dot(x: Tensor, y: Tensor) -> Tensor:
    """Σ_d x·y over the last axis; in float32 for half precision. `y` may be one vector for all rows."""
    kernels = None if has_graph(x, y) else kernels_for(x, y)
    return (at_least_float32(x) * at_least_float32(y)).sum(-1) if kernels is None else kernels.row_dot(x, y)


def positive_mean(attention: Tensor, gradient: Tensor, weight: Tensor | None = None) -> Tensor:
    """mean_h A relu(G) w [b n m] of attention A [b h n m], its gradient G, and `weight` w [b h m]; float32 for half precision."""
    kernels = None if has_graph(attention, gradient, weight) else kernels_for(attention, gradient, weight)
    if kernels is not None:
        return kernels.positive_mean(attention, gradient, weight)
    product = at_least_float32(attention) * at_least_float32(gradient).clamp(min=0)
    return (product if weight is None else product * weight[:, :, None]).mean(1)


def token_products(x: Tensor, y: Tensor, less: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """⟨x, x⟩, ⟨x, y⟩ and ⟨y, y⟩ over the last axis, `less` being subtracted from y; in float32 for half precision."""
    kernels = None if has_graph(x, y, less) else kernels_for(x, y, less)
    if kernels is not None:
        return kernels.token_products(x, y, less)
    x, y = at_least_float32(x), at_least_float32(y) if less is None else at_least_float32(y) - at_least_float32(less)
    return (x * x).sum(-1), (x * y).sum(-1), (y * y).sum(-1)


def value_products(value: Tensor, shift: Tensor | None, projected: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """⟨u, v⟩ and vᵀ M v [r h n] of values v [b h n e] less `shift` [h e], `projected` u [r n h e] and `gram` M [h e e].

    In float32 for half precision. Rows r are those of the images b, repeated for every target.
    """
    kernels = None if has_graph(value, projected) else kernels_for(value, shift, projected, gram)
    # the kernel holds one matrix of M, and its products are in TF32
    if kernels is not None and gram.shape[-1] <= 128 and torch.get_float32_matmul_precision() != "highest":
        return kernels.value_products(value, shift, projected, gram)
    value = value.to(projected.dtype).repeat_interleave(len(projected) // len(value), 0)
    value = value if shift is None else value - shift[:, None]
    return row_dot(projected.transpose(1, 2), value), row_dot(value @ gram, value).clamp(min=0)


def ratio_backward(x: Tensor, y: Tensor, upstream: Tensor, slope: float) -> Tensor:
    """upstream · y / x, and upstream · slope where x and y are 0."""
    kernels = None if torch.is_grad_enabled() else kernels_for(x, y, upstream)
    if kernels is not None:
        return kernels.ratio_backward(x, y, upstream, slope)
    ratio = (at_least_float32(y) / at_least_float32(x)).nan_to_num_(nan=slope, posinf=torch.inf, neginf=-torch.inf)
    return ratio.mul_(upstream).to(upstream.dtype)


def norm_backward(upstream: Tensor, weight: Tensor | None, rstd: Tensor, centre: bool) -> Tensor:
    """Gradient at the input of a layer norm whose standard deviation (and, unless `centre`, mean) is constant."""
    kernels = None if torch.is_grad_enabled() else kernels_for(upstream, weight)
    if kernels is not None:
        mode = "frozen" if centre else "fixed"
        return kernels.norm_backward(upstream, None, None, weight, None, rstd, mode, upstream.dtype)[0]
    passed = upstream * rstd if weight is None else upstream * rstd * weight
    passed = passed - passed.mean(-1, keepdim=True) if centre else passed
    return passed.to(upstream.dtype)


class AddAndNormalise(Function):
    """Sum of the residual stream and an update, and its layer norm; both gradients are joined by one kernel.

    In a scope of bfloat16 products, `half`, the norm is returned in bfloat16, since only products read it, and sum and
    norm are one kernel too. Otherwise the forward pass is torch's own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor,
        update: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        mode: str,
        half: bool,
    ) -> tuple[Tensor, Tensor]:
        if half:
            kernels = kernels_for(stream, update)
            total, normed, mean, rstd = kernels.norm_forward(stream, update, weight, bias, eps, torch.bfloat16)
        else:
            total = stream if update is None else stream + update
            normed, mean, rstd = torch.native_layer_norm(total, total.shape[-1:], weight, bias, eps)
        ctx.mode, ctx.dtypes = mode, (stream.dtype, None if update is None else update.dtype)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*((total, mean) if mode == "exact" else (None, None)), rstd, weight)
        return total.view_as(total) if total is stream else total, normed

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor | None) -> tuple[Tensor | None, ...]:
        skip, upstream = upstreams
        x, mean, rstd, weight = ctx.saved_tensors
        own, of_update = ctx.dtypes
        if upstream is None:
            copy = None if skip is None or of_update is None else skip.to(of_update)
            return skip, copy, None, None, None, None, None
        kernels = kernels_for(upstream, skip, x)
        gradient, copy = kernels.norm_backward(upstream, skip, x, weight, mean, rstd, ctx.mode, own, of_update)
        return gradient, None if of_update is None else copy, None, None, None, None, None


def fuses_attention(tokens: Tensor) -> bool:
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
