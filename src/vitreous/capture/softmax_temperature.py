"""Softmax and attention whose backward pass has the softmax at another temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor


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
