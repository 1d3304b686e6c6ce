"""Adapter for torchvision's `VisionTransformer`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer, interpolate_embeddings

from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.checkpoint import load_into, not_fetched, read_checkpoint
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import Preprocess
from vitreous.models.model import ModelOrigin, ModuleForward, logits_of
from vitreous.models.model_registry import NamedModule, adapter, library_of, source
from vitreous.models.module_structure import base_layer
from vitreous.models.tensor_types import Hidden, Images, Logits, PerHead, Pooled, Tokens
from vitreous.models.vit import AttentionBranch, Block, Layout, LinearPool, MlpBranch, ViT, token_rows


@adapter("torchvision", matches=library_of("torchvision"))
def from_torchvision(model: nn.Module, name: str = "torchvision model") -> ViT:
    """Describe a torchvision transformer as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        A `VisionTransformer` of torchvision.
    name
        Name of the model.

    Raises
    ------
    ModelError
        If the class, its head or one of its blocks is not supported.
    """
    if not isinstance(model, VisionTransformer):
        raise ModelError(
            f"{type(model).__name__!r} is not a family that Vitreous can see through; known in torchvision: VisionTransformer"
        )
    head_of(model)  # raise now and not at the first image
    return ViT(
        name=name,
        module=model,
        embed=partial(embed, model),
        blocks=tuple(block_of(block) for block in model.encoder.layers),
        norm=model.encoder.ln,
        pool=LinearPool(token_rows(0)),
        pooled_norm=nn.Identity(),
        classify=partial(classify, model),
        layout=partial(layout_of, model.image_size, model.patch_size),
        forward=ModuleForward(model, logits_of),
        size=(model.image_size, model.image_size),
        origin=ModelOrigin(library="torchvision", class_name=type(model).__name__),
    )


@source("torchvision", families=[("torchvision", "torchvision:vit_b_16", "VisionTransformer")])
def create_torchvision(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True, **kwargs: Any
) -> NamedModule:
    """Build a classifier of torchvision.

    Parameters
    ----------
    name
        Name of the model in torchvision.
    checkpoint
        A local file with the weights; image size and number of classes of a vision transformer are read from it.
    pretrained
        Whether to download weights if there is no checkpoint; False gives random weights.
    **kwargs
        `weights`, the name of one of torchvision's sets of weights, and arguments of the model's builder. If
        `image_size` of a vision transformer differs from that of the weights, the position embedding is interpolated.

    Raises
    ------
    ModelError
        If the model or the weights are unknown, cannot be downloaded or do not fit.
    """
    if name not in list_models():
        transformers = [model for model in list_models() if model.startswith("vit_")]
        near = get_close_matches(name, list_models(), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"among others, it has {', '.join(transformers)}"
        raise ModelError(f"torchvision has no model {name!r}; {hint}")
    entry = weights_of(name, kwargs.pop("weights", None))
    preprocess, classes = Preprocess.from_torchvision(entry.transforms()), tuple(entry.meta["categories"])
    if name.startswith("vit_"):
        model = create_transformer(name, entry, checkpoint, pretrained, kwargs)
        preprocess = resize_preprocess(preprocess, model.image_size)
        outputs = base_layer(head_of(model)).out_features
    else:
        model = create_other(name, entry, checkpoint, pretrained, kwargs)
        outputs = kwargs.get("num_classes", len(classes))
    origin = ModelOrigin(source=name, weights=str(checkpoint or (entry if pretrained else "random")))
    return NamedModule(model, preprocess, classes if outputs == len(classes) else None, origin)


def create_transformer(
    name: str, entry: Any, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]
) -> VisionTransformer:
    """Build a `VisionTransformer` for the image size and number of classes that its weights have."""
    state = read_checkpoint(checkpoint) if checkpoint is not None else download(entry, name) if pretrained else None
    if state is not None:
        kwargs = settings_of(state) | kwargs
    model: Any = call_builder(name, None, kwargs)
    if state is not None:
        if "encoder.pos_embedding" in state:
            state = interpolate_embeddings(model.image_size, model.patch_size, OrderedDict(state))
        load_into(model, state, name)
    return model


def create_other(
    name: str, entry: Any, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]
) -> nn.Module:
    """Build a classifier with torchvision's own loader, which adapts some architectures to their weights."""
    try:
        model = call_builder(name, entry if pretrained and checkpoint is None else None, kwargs)
    except OSError as problem:
        raise ModelError(not_fetched(f"torchvision:{name}", problem)) from None
    if checkpoint is not None:
        load_into(model, read_checkpoint(checkpoint), name)
    return model


def call_builder(name: str, weights: Any, kwargs: dict[str, Any]) -> nn.Module:
    try:
        return get_model(name, weights=weights, **kwargs)
    except (TypeError, ValueError, AssertionError) as error:
        raise ModelError(f"torchvision cannot build {name!r} with {kwargs}: {error}") from None


def weights_of(name: str, entry: Any) -> Any:
    """Entry of torchvision's weights enum for the model: `entry`, or the default if that is None."""
    choice = get_model_weights(name)
    if entry is None:
        return choice["DEFAULT"]
    entry = getattr(entry, "name", str(entry))
    if entry not in choice.__members__:
        raise ModelError(f"no weights {entry!r} for {name!r}; known: {', '.join(choice.__members__)}")
    return choice[entry]


def download(entry: Any, name: str) -> dict[str, Tensor]:
    try:
        return dict(entry.get_state_dict(progress=False, check_hash=True, weights_only=True))
    except OSError as error:
        raise ModelError(
            f"the weights of {name!r} could not be fetched from {entry.url} ({error}); "
            "give a local file as checkpoint=…, or pretrained=False for random weights"
        ) from None


def settings_of(state: dict[str, Tensor]) -> dict[str, int]:
    """Image size and number of classes of the weights, as far as they can be read from the shapes."""
    settings = {}
    if {"encoder.pos_embedding", "conv_proj.weight"} <= state.keys():
        patches = state["encoder.pos_embedding"].shape[1] - 1
        settings["image_size"] = round(patches**0.5) * state["conv_proj.weight"].shape[-1]
    if "heads.head.weight" in state:
        settings["num_classes"] = len(state["heads.head.weight"])
    return settings


def resize_preprocess(own: Preprocess, size: int) -> Preprocess:
    """Preprocessing of the weights, scaled to the image size of the model."""
    box = None if own.resize is None else round(own.resize[0] * size / own.size[0])
    return replace(own, size=(size, size), resize=None if box is None else (box, box))


def embed(model: VisionTransformer, images: Images) -> Tokens:
    with evaluating(model.conv_proj):  # a convolutional stem contains batch norms
        patches = model.conv_proj(images).flatten(2).transpose(1, 2)
    return torch.cat([model.class_token.expand(len(patches), -1, -1), patches], dim=1) + model.encoder.pos_embedding


def layout_of(built: int, patch: int, size: tuple[int, int]) -> Layout:
    if tuple(size) != (built, built):
        raise ShapeError(
            f"this model takes {built}x{built} images, not {size[0]}x{size[1]}; "
            "load it with image_size=… for other squares, or take the model from timm or Hugging Face"
        )
    return Layout((built // patch, built // patch), (patch, patch), 1)


def classify(model: VisionTransformer, pooled: Pooled) -> Logits:
    return head_of(model)(pooled[:, 0])


def head_of(model: VisionTransformer) -> nn.Module:
    """The classifier: a linear layer, by itself or in a Sequential with nothing else but dropout."""
    heads = model.heads
    layers = list(heads) if isinstance(heads, nn.Sequential) else [heads]
    layers = [layer for layer in layers if not isinstance(layer, nn.Dropout)]
    if len(layers) != 1 or not isinstance(base_layer(layers[0]), nn.Linear):
        names = ", ".join(type(layer).__name__ for layer in layers)
        raise ModelError(f"a head of {names} (representation_size) is not known; known: one Linear")
    return layers[0]


def block_of(block: nn.Module) -> Block:
    if not isinstance(block, EncoderBlock):
        raise ModelError(f"a block of type {type(block).__name__!r} is not known; known: EncoderBlock")
    attention, mlp = block.self_attention, block.mlp
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ModelError("MultiheadAttention with separate projections, bias_kv or add_zero_attn is not known")
    first, act, second = (layer for layer in mlp if not isinstance(layer, nn.Dropout))
    return Block(
        AttentionBranch(block.ln_1, partial(project_qkv, attention), attention.out_proj, attention.head_dim**-0.5),
        MlpBranch(block.ln_2, partial(expand, first), act, second),
    )


def project_qkv(attention: Any, x: Tokens) -> tuple[PerHead, PerHead, PerHead]:
    packed = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = packed.unflatten(-1, (3, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
    return q, k, v


def expand(layer: nn.Module, x: Tokens) -> tuple[Hidden, ...]:
    return (layer(x),)
