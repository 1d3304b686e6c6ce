"""Functions with another backward pass than their own: factors on gradients, norms, activations and sums whose
statistics, ratios or shares are constants of the backward pass, and a softmax at another temperature. Forward values are those
of the function itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from vitreous.capture import fused


class Phase:
    """Whether the linearised backward pass of a differentiable explanation is running."""

    __slots__ = ("linearised",)

    def __init__(self) -> None:
        self.linearised = False


def is_inactive(phase: Phase | None) -> bool:
    """Whether a backward pass is that of a loss on a map, in which the rules of the linearisation do not apply."""
    return phase is not None and not phase.linearised


def damp(x: Tensor, factor: float | int) -> Tensor:
    """Return x with its gradient multiplied by `factor`."""
    if factor == 1:
        return x
    return x.detach() if factor == 0 else Damp.apply(factor, None, x)[0]


class Damp(Function):
    """Identity of tensors whose gradients are multiplied by `factor`; if a phase is given, only while it is linearised."""

    @staticmethod
    def forward(ctx: Any, factor: float | int, phase: Phase | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.factor, ctx.phase = factor, phase
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        if is_inactive(ctx.phase):
            return None, None, *upstreams
        return None, None, *(None if ctx.factor == 0 else upstream * ctx.factor for upstream in upstreams)


class ResidualSum(Function):
    """Sum of the residual stream and an update, with ResLRP's rule in the backward pass; `phase` as for `Damp`."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, update: Tensor, gamma: float | int, phase: Phase | None = None) -> Tensor:
        ctx.gamma, ctx.phase = gamma, phase
        ctx.save_for_backward(stream, update)
        return stream + update

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (upstream,) = upstreams
        if is_inactive(ctx.phase):
            return upstream, upstream, None, None
        stream, update = ctx.saved_tensors
        total = stream + update
        # signs are compared instead of the product's, which may underflow
        weights = [1 + ctx.gamma * (part.sign() * total.sign() > 0).to(total.dtype) for part in (stream, update)]
        divisor = weights[0] * stream + weights[1] * update
        # where the total is 0 both shares tend to 0; where both parts are 0 the sum is left as it is
        nothing = (stream == 0) & (update == 0)
        share = torch.where(total == 0, nothing.to(total), total / torch.where(divisor == 0, 1, divisor))
        return upstream * share * weights[0], upstream * share * weights[1], None, None


class FrozenLayerNorm(Function):
    """LayerNorm whose standard deviation is constant in the backward pass; the mean is constant unless `centre`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centre: bool) -> Tensor:
        ctx.centre = centre
        y, _, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(rstd, weight)
        return y

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None, None, None]:
        (upstream,) = upstreams
        rstd, weight = ctx.saved_tensors
        return fused.norm_backward(upstream, weight, rstd, ctx.centre), None, None, None, None


class FrozenScale(Function):
    """RMSNorm whose root mean square is constant in the backward pass; `y` is the output of the norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward((x.square().mean(-1, keepdim=True) + eps).rsqrt(), weight)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None, None]:
        (upstream,) = upstreams
        scale, weight = ctx.saved_tensors
        return (upstream * scale if weight is None else upstream * scale * weight), None, None, None


class RatioActivation(Function):
    """Activation as x times the constant ratio act(x) / x; the ratio is act'(0) where x is 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, act: Callable[[Tensor], Tensor]) -> Tensor:
        y = act(x)
        ctx.act = act
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None]:
        (upstream,) = upstreams
        x, y = ctx.saved_tensors
        # act(x) = x · g(x) for every activation in use, so y / x is accurate for all x but 0, where it is 0 / 0
        return fused.ratio_backward(x, y, upstream, slope_at_zero(ctx.act)), None


class RatioFromZero(RatioActivation):
    """A function as act(0) plus x times the constant ratio (act(x) - act(0)) / x, which is act'(0) near x = 0."""

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None]:
        (upstream,) = upstreams
        x, y = ctx.saved_tensors
        # near 0 the difference has few digits, and the slope is as exact
        near = x.abs() < torch.finfo(x.dtype).eps ** 0.5
        ratio = (y - ctx.act(x.new_zeros(()))) / x.masked_fill(near, 1)
        return upstream * ratio.masked_fill(near, slope_at_zero(ctx.act)), None


@lru_cache(maxsize=64)
def slope_at_zero(act: Callable[[Tensor], Tensor]) -> float:
    """Derivative act'(0), computed in float64 and cached per function."""
    with torch.enable_grad():
        zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(act(zero), zero)
    return slope.item()


def softmax_at(
    temperature: float | int,
    softmax: Callable[[Tensor], Tensor],
    scores: Tensor,
    hold: Callable[[Tensor], Tensor] = Tensor.detach,
) -> Tensor:
    """Return softmax(scores); its backward pass has the Jacobian of the softmax at another temperature.

    Differentiating temperature · softmax(scores / temperature) gives that Jacobian without the factor 1 / temperature.
    `hold` makes a tensor a constant of the backward pass.
    """
    if temperature == 1 or not scores.requires_grad:
        return softmax(scores)
    heated = temperature * softmax(scores / temperature)
    return softmax(hold(scores)) + (heated - hold(heated))  # the difference is exactly 0


def attention_at(
    temperature: float | int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    **options: Any,
) -> Tensor:
    """Fused attention whose backward pass to queries and keys has the softmax at another temperature.

    Two fused calls instead of an attention matrix: one with queries and keys held fixed for the value and the gradient
    of the values, one at the other temperature with values held fixed for the gradient of queries and keys.
    """
    scored = [x for x in (query, key, attn_mask) if x is not None and x.requires_grad]
    if temperature == 1 or not scored:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale, **options)
    held_mask = None if attn_mask is None else attn_mask.detach()
    without_scores = F.scaled_dot_product_attention(
        query.detach(), key.detach(), value, held_mask, scale=scale, **options
    )
    heated_scale = (query.shape[-1] ** -0.5 if scale is None else scale) / temperature
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask / temperature
    heated = temperature * F.scaled_dot_product_attention(
        query, key, value.detach(), attn_mask, scale=heated_scale, **options
    )
    return without_scores + (heated - heated.detach())  # the difference is exactly 0
