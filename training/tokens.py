"""Forward passes without some of the patches: their tokens are removed, or they are grey in the image."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn.functional import interpolate


def compute_logits(
    model: VisionTransformer, images: Float[Tensor, "b 3 H W"], patches: Int[Tensor, "b k"] | None = None
) -> Float[Tensor, "b classes"]:
    """Logits with only these patches in the encoder; None for all of them."""
    tokens = model._pos_embed(model.patch_embed(images))
    if patches is not None:
        prefix = model.num_prefix_tokens
        chosen = tokens[:, prefix:].gather(1, patches[:, :, None].expand(-1, -1, tokens.shape[-1]))
        tokens = torch.cat([tokens[:, :prefix], chosen], dim=1)
    return model.forward_head(model.norm(model.blocks(model.norm_pre(tokens))))


def draw_patches(
    count: int, grid: int, share: float, random: torch.Generator, scattered: bool = True
) -> Int[Tensor, "b k"]:
    """A random share of the patches for each image: scattered evenly, or in a few connected areas."""
    side = grid if scattered else 4
    value = torch.rand((count, 1, side, side), device=random.device, generator=random)
    value = interpolate(value, size=(grid, grid), mode="bicubic").flatten(1)
    return value.topk(max(1, round(share * grid * grid)), dim=1).indices


def hide_patches(images: Float[Tensor, "b 3 H W"], grid: int, patches: Int[Tensor, "b k"]) -> Float[Tensor, "b 3 H W"]:
    """Images in which all but these patches are grey, for models whose tokens cannot be removed."""
    keep = torch.zeros(len(images), grid * grid, device=images.device).scatter_(1, patches, 1.0)
    return images * interpolate(keep.view(-1, 1, grid, grid), size=images.shape[-2:], mode="nearest")
