"""Source of timm models, also with weights of older timm versions, of DeiT, MAE and of training code."""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
from torch import nn

from vitreous.core.errors import ModelError
from vitreous.models.checkpoint import load_into, not_fetched, read_checkpoint
from vitreous.models.imagenet import imagenet_classes
from vitreous.models.model_registry import SOURCES, NamedModule, source
from vitreous.models.timm import preprocess_of
from vitreous.models.timm_keys import timm_arguments, timm_keys


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
    return NamedModule(model, preprocess, imagenet_classes(model.num_classes))


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
