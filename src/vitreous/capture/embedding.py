"""Patch embedding with a fast backward pass on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitreous.models.tensor_types import Images, Tokens
from vitreous.models.vit import ViT


class AsProducts(TorchFunctionMode):
    """Run convolutions with non-overlapping windows as matrix products; results are equal up to rounding.

    On a CPU, the backward pass of torch's convolution takes four times as long.
    """

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is F.conv2d and len(args) == 7 and not kwargs and side_by_side(*args):
            return product(*args[:3])
        return func(*args, **(kwargs or {}))


def side_by_side(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Whether the windows of a convolution cover the input without overlap, padding or remainder."""
    window = tuple(weight.shape[2:])
    if x.ndim != 4 or not isinstance(stride, tuple) or not isinstance(dilation, tuple):
        return False
    whole = all(length % side == 0 for length, side in zip(x.shape[-2:], window, strict=True))
    return whole and stride == window and padding in ((0, 0), "valid") and dilation == (1, 1) and groups == 1


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolution with non-overlapping windows, as a matrix product."""
    height, width = weight.shape[2:]
    patches = x.unflatten(3, (-1, width)).unflatten(2, (-1, height))  # [b c rows height columns width]
    return F.linear(patches.permute(0, 2, 4, 1, 3, 5).flatten(3), weight.flatten(1), bias).movedim(-1, 1)


def embed(vit: ViT, images: Images) -> Tokens:
    """Embed images; uses matrix products if gradients in the pixels are needed on a CPU (slower on a GPU)."""
    walked = torch.is_grad_enabled() and images.requires_grad and images.device.type == "cpu"
    with AsProducts() if walked else nullcontext():
        return vit.embed(images)
