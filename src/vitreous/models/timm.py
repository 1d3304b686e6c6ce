"""timm: source, also with weights of older versions, DeiT, MAE and training code; adapter for ViT, BEiT and EVA."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from jaxtyping import Float
from timm.data.config import resolve_model_data_config
from timm.layers.attention import Attention, AttentionRope
from timm.layers.attention_pool import AttentionPoolLatent
from timm.layers.layer_scale import LayerScale
from timm.layers.mlp import GluMlp, Mlp, SwiGLU
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import apply_rot_embed_cat
from timm.models import beit, eva, vision_transformer
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.checkpoint import load_into, not_fetched, read_checkpoint
from vitreous.models.class_names import imagenet_classes
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import Preprocess
from vitreous.models.model import UNKNOWN, ModelOrigin
from vitreous.models.model_registry import SOURCES, NamedModule, adapter, library_of, source
from vitreous.models.module_structure import base_layer
from vitreous.models.tensor_types import Hidden, Images, Logits, PerHead, Pooled, Tokens
from vitreous.models.vit import (
    AttentionBranch,
    AttentionPool,
    Block,
    LayerScaleFactor,
    Layout,
    LinearPool,
    MlpBranch,
    TokenPositions,
    ViT,
    expand_all,
    mean_rows,
    no_scale,
    scaled,
    token_rows,
)

ANCHOR = "patch_embed.proj.weight"  # every transformer of timm has it, as have MAE and DeiT
HEADS = ("classifier", "fc", "head.fc", "heads.head", "linear", "mlp_head", "head.head")  # of training code
HEAD_WEIGHT = re.compile(rf"(?!blocks\.)((?:.*\.)?(?:{'|'.join(map(re.escape, HEADS))}))\.weight")


# ── source ────────────────────────────────────────────────────────────────────────────────────────


@source(
    "timm",
    families=(
        ("ViT", "timm:vit_base_patch16_224", "class token, mean or attention pooling, registers, LayerScale, qk-norm"),
        ("DeiT", "timm:deit_small_patch16_224", "also DeiT-III"),
        ("DeiT, distilled", "timm:deit_base_distilled_patch16_224", "two heads, both read"),
        ("BEiT", "timm:beit_base_patch16_224", "relative position bias"),
        ("EVA", "timm:eva_large_patch14_336", "mean pooling"),
        ("EVA02", "timm:eva02_base_patch14_448", "rotary positions, SwiGLU"),
        ("DINOv2", "timm:vit_base_patch14_reg4_dinov2", "with and without registers"),
        ("DINOv3", "timm:vit_small_patch16_dinov3", "rotary positions, registers"),
        ("CLIP", "timm:vit_base_patch16_clip_224", "vision tower with a classifier"),
        ("SigLIP", "timm:vit_base_patch16_siglip_224", "attention pooling"),
    ),
)
def create_timm(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True, **kwargs: Any
) -> NamedModule:
    """Create a timm model by name, with weights from the checkpoint, from the hub or random."""
    if not timm.is_model(name.split(".", 1)[0]):
        unprefixed = [model for other in SOURCES for model in SOURCES[other].unprefixed]
        near = get_close_matches(name, [*unprefixed, *timm.list_models()], n=1)
        raise ModelError(f"timm has no model {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    state = None
    if checkpoint is not None:
        state = timm_keys(read_checkpoint(checkpoint), name)
        kwargs = timm_arguments(state, kwargs, name)
    try:
        model: Any = timm.create_model(name, pretrained=pretrained and state is None, **kwargs)
    except (OSError, RuntimeError, ConnectionError) as problem:
        if not (pretrained and state is None):
            raise ModelError(f"timm cannot build {name!r}: {str(problem).splitlines()[0]}") from None
        raise ModelError(not_fetched(f"timm:{name}", problem)) from None
    except (TypeError, AssertionError, ValueError, ArithmeticError) as problem:
        raise ModelError(f"timm cannot build {name!r} with {kwargs}: {problem}") from None
    if state is not None:
        load_into(model, convert_weights(model, state), name)
    preprocess = preprocess_of(model, kwargs.get("img_size")) if kwargs.get("in_chans", 3) == 3 else None
    origin = UNKNOWN if pretrained or state is not None else ModelOrigin(weights="random")
    return NamedModule(model, preprocess, imagenet_classes(model.num_classes), origin)


def convert_weights(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Convert weights of another image size or an older naming to those of `model`, if timm has a conversion."""
    own = model.state_dict()
    if "blocks.0.ls1.gamma" in own and "blocks.0.gamma_1" in state:  # DeiT-III as published; BEiT keeps these names
        state = {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key): value for key, value in state.items()}
    older = any(key.startswith("pre_logits.") for key in state)  # first ViTs of timm
    if not older and all(own[key].shape == value.shape for key, value in state.items() if key in own):
        return state
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return state if convert is None else convert(state, model)


def preprocess_of(model: Any, size: int | Sequence[int] | None) -> Preprocess:
    """Preprocessing of timm's data config, for the image size of the model; `size` if the model does not state its own."""
    config = resolve_model_data_config(model)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or size
    if size is not None:  # the config has the image size of the weights
        config["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    return Preprocess.from_timm(config)


# ── names of weights ──────────────────────────────────────────────────────────────────────────────


def timm_keys(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Rename weights to timm's names.

    The prefix of the backbone (such as "model.backbone.") is removed, also where the classifier is outside of it and
    has another name.

    Parameters
    ----------
    state
        Weights by name.
    name
        Name of the model, for error messages.

    Raises
    ------
    ModelError
        If there are several backbones, or several weights could be the classifier.
    """
    prefixes = sorted(key.removesuffix(ANCHOR) for key in state if key.endswith(ANCHOR))
    if len(prefixes) > 1:
        raise ModelError(
            f"the weights for {name!r} have {len(prefixes)} backbones ({', '.join(repr(p) for p in prefixes)}); "
            "save the weights of one of them"
        )
    if not prefixes:
        return state
    prefix = prefixes[0]
    inside = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    outside = {key: value for key, value in state.items() if not key.startswith(prefix)}
    if clash := sorted(inside.keys() & outside.keys()):
        raise ModelError(
            f"the weights for {name!r} have {clash[0]!r} inside and outside of {prefix!r}; save one of them"
        )
    renamed = inside | outside
    return renamed if "head.weight" in renamed else with_head(renamed, name)


def with_head(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Rename the classifier to "head"; unchanged if none is found."""
    matches = [HEAD_WEIGHT.fullmatch(key) for key, value in state.items() if value.ndim == 2]
    heads = sorted(match[1] for match in matches if match)
    if len(heads) > 1:
        raise ModelError(
            f"the weights for {name!r} have several classifiers ({', '.join(heads)}); save one of them, named 'head'"
        )
    owner = heads[0] if heads else "head"
    return {
        f"head.{key.removeprefix(f'{owner}.')}" if key.startswith(f"{owner}.") else key: state[key] for key in state
    }


def timm_arguments(state: dict[str, Tensor], arguments: dict[str, Any], name: str) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the weights imply, unless they are given.

    The classifier gives the number of classes. A norm behind the pooling in place of the one before it (MAE's fine-tuned
    models) means that the mean of the patches is pooled.

    Raises
    ------
    ModelError
        If the weights are those of a masked autoencoder, which has no classifier.
    """
    if "head.weight" not in state and any(key.startswith("decoder_") for key in state):
        raise ModelError(
            f"the weights for {name!r} are those of a masked autoencoder, which has no classifier; fine-tune it first "
            "(training/finetune.py --init), or give fine-tuned weights"
        )
    implied: dict[str, Any] = {}
    if "head.weight" in state:
        implied["num_classes"] = state["head.weight"].shape[0]
    if "fc_norm.weight" in state and "norm.weight" not in state:
        implied["global_pool"] = "avg"
    return {**implied, **arguments}


# ── adapter ───────────────────────────────────────────────────────────────────────────────────────


@adapter("timm", matches=library_of("timm"))
def describe_timm(model: Any, name: str) -> ViT:
    """Describe a timm transformer, with the preprocessing of its config and ImageNet's class names if it has 1000."""
    vit = from_timm(model, name)
    preprocess = preprocess_of(model, vit.size) if vit.channels == 3 else None
    return replace(vit, preprocess=preprocess, classes=imagenet_classes(model.num_classes))


def from_timm(model: Any, name: str = "timm model") -> ViT:
    """Describe a timm transformer as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        A `VisionTransformer`, `VisionTransformerDistilled`, `Eva` or `Beit` of timm.
    name
        Name of the model.

    Raises
    ------
    ModelError
        If the class or one of its parts is not supported.
    """
    match model:
        case vision_transformer.VisionTransformer():
            blocks = blocks_of(model, vision_transformer.Block, Attention)
        case eva.Eva():
            blocks = blocks_of(model, eva.EvaBlock, eva.EvaAttention, AttentionRope)
        case beit.Beit():
            blocks = blocks_of(model, beit.Block, beit.Attention)
        case _:
            raise ModelError(
                f"{type(model).__name__!r} is not a family that Vitreous can see through; "
                "known in timm: VisionTransformer (ViT, DeiT, CLIP, SigLIP, DINOv2), distilled DeiT, Beit, Eva (EVA, EVA02, DINOv3)"
            )
    distilled, headless = isinstance(model, VisionTransformerDistilled), isinstance(model.head, nn.Identity)
    pool = LinearPool(token_rows(0, 1)) if distilled else pool_of(model)
    require_type(model.patch_embed, PatchEmbed, part_name="a patch embedding")
    if headless and distilled:
        raise ModelError(f"{name!r} has no classifier (num_classes=0); give it a head with num_classes=…")
    patches: Any = model.patch_embed
    (height, width), patch = patches.img_size, tuple(patches.patch_size)
    if height % patch[0] or width % patch[1]:
        raise ModelError(f"an image of {height}x{width} does not divide into patches of {patch[0]}x{patch[1]}")
    return ViT(
        name=name,
        module=model,
        embed=partial(embed, model),
        blocks=blocks,
        norm=getattr(model, "norm", None) or nn.Identity(),  # MAE's subclasses delete it where they average tokens
        pool=pool,
        pooled_norm=getattr(model, "fc_norm", None) or nn.Identity(),
        classify=partial(classify, model),
        layout=partial(layout_of, model),
        forward=model,
        size=(height, width),
        channels=getattr(base_layer(patches.proj), "in_channels", 3),
        embedding="num_classes=0" if headless else "",
    )


def embed(model: Any, images: Images) -> Tokens:
    with evaluating(model):
        if isinstance(model, beit.Beit):
            tokens = model.patch_embed(images)
            tokens = torch.cat([model.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
            return tokens if model.pos_embed is None else tokens + model.pos_embed
        placed = model._pos_embed(model.patch_embed(images))
        return model.norm_pre(placed[0] if isinstance(model, eva.Eva) else placed)


def layout_of(model: Any, size: tuple[int, int]) -> Layout:
    patch = tuple(model.patch_embed.patch_size)
    built = tuple(g * p for g, p in zip(model.patch_embed.grid_size, patch, strict=True))
    if tuple(size) != built:
        if not getattr(model, "dynamic_img_size", False):
            raise ShapeError(
                f"this model takes {built[0]}x{built[1]} images, not {size[0]}x{size[1]}; "
                f"load it with img_size={tuple(size)} or dynamic_img_size=True"
            )
        if getattr(model.patch_embed, "dynamic_img_pad", False) or any(s % p for s, p in zip(size, patch, strict=True)):
            raise ShapeError(f"an image of {size[0]}x{size[1]} does not divide into patches of {patch[0]}x{patch[1]}")
    return Layout((size[0] // patch[0], size[1] // patch[1]), patch, model.num_prefix_tokens)


# ── heads ────────────────────────────────────────────────────────────────────────────────────────


def classify(model: Any, pooled: Pooled) -> Logits:
    """Logits of the head, or the mean of both heads of a distilled model."""
    logits = model.head(pooled[:, 0])
    return (logits + model.head_dist(pooled[:, 1])) / 2 if isinstance(model, VisionTransformerDistilled) else logits


def pool_of(model: Any) -> LinearPool | AttentionPool:
    # Eva's attention pooler also uses class and register tokens.
    everything = getattr(model, "pool_include_prefix", isinstance(model, eva.Eva) and model.global_pool == "map")
    prefix = 0 if everything else model.num_prefix_tokens
    match model.global_pool:
        case "token" | False:  # boolean in subclasses such as MAE's and RETFound's
            return LinearPool(token_rows(0))
        case "avg" | True:
            return LinearPool(mean_rows(prefix))
        case "map" if type(model.attn_pool) is AttentionPoolLatent:
            return latent_pool(model.attn_pool, prefix)
    raise ModelError(f"no readout is known for global_pool={model.global_pool!r}; known: 'token', 'avg', 'map'")


def latent_pool(pool: Any, prefix: int) -> AttentionPool:
    if pool.pos_embed is not None or pool.pool != "token":
        raise ModelError("attention pooling with position embedding or several averaged latents is not known")

    mlp = None if pool.mlp is None else mlp_branch(pool.norm, pool.mlp)
    query, key_value = partial(latent_query, pool), partial(latent_key_value, pool)
    return AttentionPool(query, key_value, pool.proj, pool.scale, prefix, pool.q_norm, pool.k_norm, mlp)


def latent_query(pool: Any) -> PerHead:
    return pool.q(pool.latent).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)[:, :, :1]


def latent_key_value(pool: Any, x: Tokens) -> tuple[PerHead, PerHead]:
    k, v = pool.kv(x).unflatten(-1, (2, pool.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return k, v


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


def require_type(part: Any, *types: type, part_name: str) -> Any:
    """Return `part` if its type is exactly one of `types`, else raise `ModelError`."""
    if type(part) not in types:
        names = ", ".join(t.__name__ for t in types)
        raise ModelError(f"{part_name} of type {type(part).__name__!r} is not known; known: {names}")
    return part


def blocks_of(model: Any, kind: type, *attention: type) -> tuple[Block, ...]:
    """Blocks of a transformer, all of one type, with attention of one of these types."""

    def block(index: int, b: Any) -> Block:
        require_type(b, kind, part_name="a block")
        attn = require_type(b.attn, *attention, part_name="attention")
        positions: dict[str, Any] = {}
        if getattr(model, "rope", None) is not None:
            positions["rotate"] = partial(rotated, model, index, attn)
        if relative_tables(model, attn):
            positions["bias"] = partial(relative_bias, model, attn)
        attention_part = attention_branch(b.norm1, attn, layer_scale_of(b, 1), **positions)
        return Block(attention_part, mlp_branch(b.norm2, b.mlp, layer_scale_of(b, 2)))

    return tuple(block(i, b) for i, b in enumerate(model.blocks))


def layer_scale_of(block: Any, branch: int) -> LayerScaleFactor:
    """Factor per channel of branch 1 or 2 of a block."""
    if isinstance(block, vision_transformer.Block):
        module = require_type(getattr(block, f"ls{branch}"), nn.Identity, LayerScale, part_name="layer scale")
        return partial(getattr, module, "gamma", None)
    return partial(getattr, block, f"gamma_{branch}")


def attention_branch(norm: nn.Module, attn: Any, factor: LayerScaleFactor, **positions: Any) -> AttentionBranch:
    if getattr(attn, "gate", None) is not None:
        raise ModelError("gated attention output (gated=True) is not known")
    identity = nn.Identity()
    return AttentionBranch(
        norm=norm,
        qkv=partial(project_qkv, attn),
        project=scaled(attn, "proj", factor),
        scale=attn.scale,
        q_norm=getattr(attn, "q_norm", identity),
        k_norm=getattr(attn, "k_norm", identity),
        inner_norm=getattr(attn, "norm", identity),
        layer_scale=factor,
        **positions,
    )


def project_qkv(attn: Any, x: Tokens) -> tuple[PerHead, PerHead, PerHead]:
    if attn.qkv is None:
        q, k, v = (
            layer(x).unflatten(-1, (-1, attn.head_dim)).transpose(1, 2)
            for layer in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        groups = getattr(attn, "num_kv_groups", 1)
        return (q, k, v) if groups == 1 else (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
    if getattr(attn, "q_bias", None) is None:
        packed = attn.qkv(x)
    else:  # BEiT and EVA store separate biases; that of the keys is zero
        packed = F.linear(x, attn.qkv.weight, torch.cat([attn.q_bias, attn.k_bias, attn.v_bias]))
    q, k, v = packed.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def rotated(model: Any, index: int, attn: Any, heads: PerHead, place: TokenPositions) -> PerHead:
    """Apply the rotary position embedding to patch tokens; prefix tokens have no position."""
    with evaluating(model.rope):  # DINOv3 augments its coordinates at random in training mode
        angles = model.rope.get_embed(shape=place.layout.grid) if model.dynamic_img_size else model.rope.get_embed()
    angles = angles[index] if model.rope_mixed else angles[None]  # [h p c] or [1 p c]
    prefix = place.layout.prefix
    if place.index is not None:
        angles = angles[:, place.index[:, prefix:] - prefix].transpose(0, 1)  # [b h p c]
    front, patches = heads[:, :, :prefix], heads[:, :, prefix:]
    turned = apply_rot_embed_cat(patches, angles, half=getattr(attn, "rotate_half", False))
    return torch.cat([front, turned.to(heads.dtype)], dim=2)


def relative_tables(model: Any, attn: Any) -> list[Float[Tensor, "h n n"]]:
    """Tables of relative position biases (BEiT): the block's own, and the one that all blocks share."""
    tables = []
    if getattr(attn, "relative_position_bias_table", None) is not None:
        tables.append(attn._get_rel_pos_bias()[0])
    if getattr(model, "rel_pos_bias", None) is not None:
        tables.append(model.rel_pos_bias())
    return tables


def relative_bias(model: Any, attn: Any, place: TokenPositions) -> Float[Tensor, "b h n n"]:
    return place.gather_pairs(torch.stack(relative_tables(model, attn)).sum(0))


def mlp_branch(norm: nn.Module, mlp: Any, factor: LayerScaleFactor = no_scale) -> MlpBranch:
    match require_type(mlp, Mlp, GluMlp, SwiGLU, part_name="an MLP"):
        case SwiGLU():
            expand = partial(expand_all, mlp, ("fc1_g", "fc1_x"))
        case GluMlp():
            expand = partial(expand_packed, mlp)
        case _:
            expand = partial(expand_all, mlp, ("fc1",))
    if isinstance(base_layer(mlp.fc1 if hasattr(mlp, "fc1") else mlp.fc1_g), nn.Conv2d):
        raise ModelError("an MLP made of convolutions (use_conv=True) is not known")
    contract = scaled(mlp, "fc2", factor)
    return MlpBranch(norm, expand, mlp.act, contract, getattr(mlp, "norm", None) or nn.Identity(), factor)


def expand_packed(mlp: Any, x: Tokens) -> tuple[Hidden, ...]:
    """Gate and value of an MLP that computes both in one product."""
    first, second = mlp.fc1(x).chunk(2, dim=-1)
    return (second, first) if mlp.gate_last else (first, second)
