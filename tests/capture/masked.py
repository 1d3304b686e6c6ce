"""Token removal the slow way: all tokens stay, and nobody looks at those that should have left.

timm's own modules run; the keys of left-out patches are put at −inf in every layer and head, and the head reads what is kept.
"""

from __future__ import annotations

import torch
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from torch import Tensor, nn


@torch.no_grad()
def logits_with_masked_keys(model: nn.Module, image: Tensor, keep: Tensor) -> Tensor:
    """Logits [c] of one image [3 H W] with the patches outside of `keep` [p] masked as keys of attention."""
    prefix = model.num_prefix_tokens
    stays = torch.cat([torch.ones(prefix, dtype=torch.bool), keep])
    mask = torch.zeros(len(stays), dtype=image.dtype).masked_fill(
        ~stays, -torch.inf
    )  # on keys, the same for every query
    square = mask.expand(len(stays), -1)

    match model:
        case Eva():
            x, rope = model._pos_embed(model.patch_embed(image[None]))
            x = model.norm_pre(x)
            for index, block in enumerate(model.blocks):
                x = block(x, rope=rope[index] if model.rope_mixed else rope, attn_mask=square)
        case Beit():
            x = torch.cat([model.cls_token, model.patch_embed(image[None])], dim=1)
            x = x if model.pos_embed is None else x + model.pos_embed
            shared = 0 if model.rel_pos_bias is None else model.rel_pos_bias()
            for block in model.blocks:  # no mask argument, but a bias that is added to the scores
                x = block(x, shared_rel_pos_bias=shared + square.expand(block.attn.num_heads, -1, -1))
        case _:
            x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))
            for block in model.blocks:
                x = block(x, attn_mask=square)

    x = model.norm(x)
    if isinstance(model, VisionTransformerDistilled):
        return model.forward_head(x)[0]
    return model.head(model.fc_norm(pooled(model, x, stays, mask)))[0]


def pooled(model: nn.Module, x: Tensor, stays: Tensor, mask: Tensor) -> Tensor:
    prefix = model.num_prefix_tokens
    match model.global_pool:
        case "token":
            return x[:, 0]
        case "map":
            skip = prefix if getattr(model, "pool_include_prefix", True) is False else 0
            return model.attn_pool(x[:, skip:], attn_mask=mask[skip:].expand(1, -1))
        case "avg":
            skip = 0 if getattr(model, "pool_include_prefix", False) else prefix
            return x[:, skip:][:, stays[skip:]].mean(1)
    raise AssertionError(model.global_pool)
