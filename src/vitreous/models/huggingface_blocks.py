"""Blocks and attention poolers of Hugging Face transformers, split into parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.tensor_types import Hidden, PerHead, Tokens
from vitreous.models.vit import AttentionBranch, AttentionPool, Block, MlpBranch, TokenPositions, no_bias

Scale = Callable[[Tokens], Tokens]
unscaled: Scale = nn.Identity()


def plain_block(layer: Any) -> Block:
    """Block of ViT and DeiT."""
    return Block(
        attention_branch(layer.layernorm_before, layer.attention), mlp_branch(layer.layernorm_after, layer.mlp)
    )


def beit_block(body: Any, layer: Any) -> Block:
    bias = partial(relative_bias, body, layer)
    attention_part = attention_branch(
        layer.layernorm_before, layer.attention, lambda x: layer.lambda_1 * x, bias, lambda: layer.lambda_1
    )
    return Block(
        attention_part,
        mlp_branch(layer.layernorm_after, layer.mlp, lambda x: layer.lambda_2 * x, lambda: layer.lambda_2),
    )


def dinov2_block(layer: Any) -> Block:
    attention_part = attention_branch(
        layer.norm1, layer.attention, layer.layer_scale1, factor=lambda: layer.layer_scale1.lambda1
    )
    return Block(
        attention_part, mlp_branch(layer.norm2, layer.mlp, layer.layer_scale2, lambda: layer.layer_scale2.lambda1)
    )


def tower_block(layer: Any) -> Block:
    """Block of CLIP and SigLIP."""
    return Block(attention_branch(layer.layer_norm1, layer.self_attn), mlp_branch(layer.layer_norm2, layer.mlp))


def relative_bias(body: Any, layer: Any, place: TokenPositions) -> Float[Tensor, "b h n n"] | None:
    """Relative position bias of BEiT: the sum of the block's own and the shared table, or None without both."""
    parts = (layer.relative_position_bias, body.shared_position_bias)
    tables = [part(place.layout.grid)[0] for part in parts if part is not None]
    return place.gather_pairs(torch.stack(tables).sum(0)) if tables else None


def attention_branch(
    norm: nn.Module,
    attention: Any,
    scale: Scale = unscaled,
    bias: Callable[[TokenPositions], Tensor | None] = no_bias,
    factor: Callable[[], Tensor | None] = lambda: None,
) -> AttentionBranch:
    tower = hasattr(attention, "out_proj")
    heads = attention.num_heads if tower else attention.num_attention_heads

    def qkv(x: Tokens) -> tuple[PerHead, PerHead, PerHead]:
        q, k, v = (
            project(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return q, k, v

    def project(mixed: Hidden) -> Tokens:
        return scale((attention.out_proj if tower else attention.o_proj)(mixed))

    return AttentionBranch(
        norm, qkv, project, attention.scale if tower else attention.scaling, bias=bias, layer_scale=factor
    )


def mlp_branch(
    norm: nn.Module, mlp: Any, scale: Scale = unscaled, factor: Callable[[], Tensor | None] = lambda: None
) -> MlpBranch:
    if hasattr(mlp, "gate_proj"):
        expand, act, down = lambda x: (mlp.gate_proj(x), mlp.up_proj(x)), mlp.act_fn, mlp.down_proj
    else:
        expand, act, down = lambda x: (mlp.fc1(x),), mlp.activation_fn, mlp.fc2
    return MlpBranch(norm, expand, act, lambda x: scale(down(x)), layer_scale=factor)


def probe_pool(head: Any) -> AttentionPool:
    """Pooler of SigLIP: `nn.MultiheadAttention` with a learned query, then an MLP."""
    attention = head.attention
    heads, width = attention.num_heads, attention.head_dim

    def split(x: Tokens, part: int) -> PerHead:
        weight, bias = (p.chunk(3)[part] for p in (attention.in_proj_weight, attention.in_proj_bias))
        return F.linear(x, weight, bias).unflatten(-1, (heads, width)).transpose(1, 2)

    return AttentionPool(
        query=lambda: split(head.probe, 0),
        key_value=lambda x: (split(x, 1), split(x, 2)),
        project=attention.out_proj,
        scale=width**-0.5,
        skip=0,
        mlp=mlp_branch(head.layernorm, head.mlp),
    )
