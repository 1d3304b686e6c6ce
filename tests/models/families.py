"""Tiny members of every timm family, in float64.

Real entry functions where timm has one, so that their own settings (pooling, biases, norms, rotary positions) are what is
tested, shrunk to a few blocks. Every parameter is drawn at random: no gain is 1, no shift 0, no attention uniform, so that
nothing can be forgotten without a number changing. The grid is 3 x 4, so that rows and columns cannot be confused.

Tests of a family that the installed timm does not have yet are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from timm.layers import RotaryEmbeddingMixed, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitreous.capture.adapter_check import check_adapter
from vitreous.models.model_registry import adapt, build_named, model_label, with_origin
from vitreous.models.timm import from_timm
from vitreous.models.vit import ViT

SIZE = (24, 32)  # 3 x 4 patches of 8 x 8
SMALL: dict[str, Any] = {
    "depth": 3,
    "embed_dim": 24,
    "num_heads": 2,
    "patch_size": 8,
    "img_size": SIZE,
    "num_classes": 5,
}
ROTARY: dict[str, Any] = {"embed_dim": 32, "num_heads": 2}  # rotary positions take a multiple of 4 channels per head


def named(name: str, **changes: Any) -> Callable[..., nn.Module]:
    """timm's own entry function with smaller settings."""
    return lambda **more: timm.create_model(name, pretrained=False, **{**SMALL, **changes, **more})


def made(kind: type[nn.Module], **changes: Any) -> Callable[..., nn.Module]:
    """timm's class with settings that no entry function has."""
    return lambda **more: kind(**{**SMALL, **changes, **more})


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "vit": named("vit_tiny_patch16_224"),
    "vit-even": named("vit_tiny_patch16_224", depth=4),
    "vit-mean": made(VisionTransformer, reg_tokens=2, global_pool="avg", init_values=0.1, num_heads=3),  # and fc_norm
    "vit-registers-mean": named("vit_medium_patch16_reg4_gap_256"),
    "vit-no-class-token": named("vit_base_patch16_gap_224"),  # norm before the mean
    "vit-mean-of-everything": made(VisionTransformer, reg_tokens=1, global_pool="avg", pool_include_prefix=True),
    "vit-qk-norm": made(VisionTransformer, qk_norm=True),
    "vit-no-biases": made(VisionTransformer, qkv_bias=False, proj_bias=False),
    "vit-bare": made(
        VisionTransformer, qkv_bias=False, proj_bias=False, norm_layer="rmsnorm"
    ),  # blocks without any bias
    "vit-torch-rmsnorm": made(VisionTransformer, norm_layer=nn.RMSNorm),  # whose epsilon is the precision's
    "vit-rmsnorm": named("test_vit4", num_heads=3),
    "vit-rmsnorm-class-token": made(VisionTransformer, norm_layer="rmsnorm", qk_norm=True),
    "vit-swiglu": made(VisionTransformer, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, global_pool="avg"),
    "vit-dynamic": named("test_vit"),
    "vit-one-output": named("vit_tiny_patch16_224", num_classes=1),
    "siglip": named("vit_base_patch16_siglip_224"),
    "map-skips-prefix": made(VisionTransformer, reg_tokens=2, global_pool="map"),
    "map-reads-prefix": named("test_vit3", num_heads=3),
    "deit": named("deit_tiny_patch16_224"),
    "deit-distilled": named("deit_tiny_distilled_patch16_224"),
    "deit-3": named("deit3_small_patch16_224"),
    "clip": named("vit_base_patch16_clip_quickgelu_224"),
    "dinov2": named("vit_small_patch14_dinov2"),
    "dinov2-registers": named("vit_small_patch14_reg4_dinov2"),
    "dinov2-giant": named("vit_giant_patch14_reg4_dinov2"),
    "beit": named("beit_base_patch16_224"),
    "beit-shared": made(Beit, use_shared_rel_pos_bias=True, global_pool="token", init_values=None),
    "beit-both-tables": made(
        Beit, use_shared_rel_pos_bias=True, use_rel_pos_bias=True, swiglu_mlp=True, scale_mlp=True
    ),
    "beit-3": named("beit3_base_patch16_224"),  # inner norms in attention and MLP
    "eva-large": named("eva_large_patch14_336"),
    "eva-giant": named("eva_giant_patch14_224"),
    "eva02": named("eva02_base_patch14_448", **ROTARY),
    "eva02-tiny": named("eva02_tiny_patch14_224", **ROTARY),
    "eva02-clip": named("eva02_base_patch16_clip_224", **ROTARY),
    "rope": named("vit_small_patch16_rope_224", **ROTARY),
    "rope-mixed": named("vit_small_patch16_rope_mixed_224", **ROTARY),
    "dinov3": named("vit_small_patch16_dinov3", **ROTARY),
    "dinov3-plus": named("vit_small_plus_patch16_dinov3_qkvb", **ROTARY),
    "sapiens2": named(
        "vit_base_patch16_sapiens2", embed_dim=32, num_heads=4, num_kv_heads=2
    ),  # grouped queries, RMSNorm
    "perception-encoder": named("vit_pe_core_tiny_patch16_384", **ROTARY, attn_pool_num_heads=4),
    "eva-mean-qk-norm": made(Eva, **ROTARY, use_rot_pos_emb=True, qk_norm=True, num_reg_tokens=1, init_values=0.1),
}
FIRST_TIMM = {"sapiens2": "1.0.30", "eva-mean-qk-norm": "1.0.30"}  # of families that the lowest timm lacks


def has_timm(version: str) -> bool:
    return Version(timm.__version__) >= Version(version)


def is_available(family: str) -> bool:
    return has_timm(FIRST_TIMM.get(family, "0"))


@torch.no_grad()
def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter redrawn, in float64 and eval mode."""
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64)

    for name, parameter in model.named_parameters():
        fan = parameter[0].numel() if parameter.ndim > 1 else 1
        if name.endswith(("gamma", "gamma_1", "gamma_2")):  # LayerScale
            fresh = 0.7 + 0.3 * noise(parameter)
        elif "norm" in name:
            fresh = 1 + 0.3 * noise(parameter) if name.endswith("weight") else 0.3 * noise(parameter)
        elif name.endswith("bias"):
            fresh = 0.3 * noise(parameter)
        elif "freqs" in name:  # rotary frequencies, learned
            fresh = parameter * (1 + 0.3 * noise(parameter))
        elif name.endswith(("token", "pos_embed", "latent", "table")):
            fresh = 0.7 * noise(parameter)
        else:
            fresh = noise(parameter) * fan**-0.5
        if any(part in name for part in ("qkv.weight", "q_proj.weight", "k_proj.weight")):
            fresh = 1.6 * fresh  # attention that looks somewhere
        parameter.copy_(fresh)
    for part in model.modules():
        if isinstance(
            part, RotaryEmbeddingMixed
        ):  # timm mixes its frequencies in float32 whatever the model's precision
            part.t_x, part.t_y = part.t_x.float(), part.t_y.float()
    return model


def build(family: str, seed: int = 0, **changes: Any) -> nn.Module:
    """A new model that the test may modify."""
    if not is_available(family):
        pytest.skip(f"{family} needs timm {FIRST_TIMM[family]}")
    return shaken(FAMILIES[family](**changes), seed)


@cache
def tiny(family: str) -> nn.Module:
    """A model that tests share and must not modify."""
    return build(family)


@cache
def described(name: str, checkpoint: Path | None = None, **options: Any) -> ViT:
    """A model by its name through the adapter of its library, without comparing their logits."""
    named = build_named(name, checkpoint=checkpoint, **options)
    return with_origin(adapt(named.module, model_label(name)), named, checkpoint)


@cache
def seen(family: str) -> ViT:
    """The same model through the adapter, after comparing its logits with the module's."""
    return check_adapter(from_timm(tiny(family), family), outputs="binary" if family == "vit-one-output" else None)


@cache
def pictures(count: int = 2, size: tuple[int, int] = SIZE, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
