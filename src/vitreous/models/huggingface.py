"""Adapter for Hugging Face image classifiers and CLIP/SigLIP towers, with the module layout of transformers 5."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.core.errors import ModelError, ShapeError
from vitreous.models.adapters import base_layer
from vitreous.models.eval_mode import evaluating
from vitreous.models.huggingface_blocks import beit_block, dinov2_block, plain_block, probe_pool, tower_block
from vitreous.models.image_input import Preprocess
from vitreous.models.model import ModelOrigin
from vitreous.models.model_registry import adapter, library_of
from vitreous.models.tensor_types import Images, Logits, Pooled, Tokens
from vitreous.models.vit import (
    AttentionPool,
    Block,
    Layout,
    LinearPool,
    ViT,
    mean_rows,
    token_and_mean_rows,
    token_rows,
)

Rows = Callable[[int], Float[Tensor, "q n"]]


def from_huggingface(model: nn.Module, name: str = "huggingface model") -> ViT:
    """Describe a Hugging Face image classifier as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        An instance of one of the classes in `FAMILIES`, or of a subclass.
    name
        Name of the model.

    Raises
    ------
    ModelError
        If the class is not supported, or its modules are not those of transformers 5.
    """
    kind = next((base.__name__ for base in type(model).__mro__ if base.__name__ in FAMILIES), None)
    if kind is None:
        supported = f"known in transformers: {', '.join(FAMILIES)}"
        raise ModelError(f"{type(model).__name__!r} is not a family that Vitreous can see through; {supported}")
    try:
        return FAMILIES[kind](model, name)
    except AttributeError as error:
        raise ModelError(f"{name!r} is not laid out as {kind} is in transformers 5: {error}") from None


@adapter("huggingface", matches=library_of("transformers"))
def describe_huggingface(model: nn.Module, name: str) -> ViT:
    """Describe a Hugging Face classifier, with the preprocessing stored beside its weights on this machine."""
    return replace(from_huggingface(model, name), preprocess=saved_preprocess(model))


def preprocess_of(name: str, local: bool = False) -> Preprocess | None:
    """Preprocessing of the model's image processor, or None if it has no processor; `local` reads local files only."""
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(name, trust_remote_code=False, local_files_only=local)
    except (OSError, ValueError):
        return None  # only weights, no processor
    return Preprocess.from_hf(processor)


def saved_preprocess(model: Any) -> Preprocess | None:
    """Preprocessing of a module that transformers loaded, from the processor stored with its weights.

    Only local files are read. None if there is no processor, or its geometry is not known; the user can then pass
    `preprocess=`.
    """
    name = getattr(getattr(model, "config", None), "_name_or_path", "")
    with suppress(ModelError):
        return preprocess_of(name, local=True) if name else None
    return None


# ── families ─────────────────────────────────────────────────────────────────────────────────────


def vit(model: Any, name: str) -> ViT:
    body = model.base_model
    prefix = 1 + hasattr(body.embeddings, "distillation_token")  # in DeiT, although this head does not use it
    return assemble(model, name, body, prefix, map(plain_block, body.layers), body.layernorm, token_rows(0))


def deit_with_teacher(model: Any, name: str) -> ViT:
    def classify(pooled: Pooled) -> Logits:
        return (model.cls_classifier(pooled[:, 0]) + model.distillation_classifier(pooled[:, 1])) / 2

    body = model.deit
    blocks = map(plain_block, body.layers)
    return assemble(model, name, body, 2, blocks, body.layernorm, token_rows(0, 1), classify=classify)


def beit(model: Any, name: str) -> ViT:
    body, pooled_norm = model.beit, model.beit.pooler.layernorm
    blocks = (beit_block(body, layer) for layer in body.layers)
    rows = token_rows(0) if pooled_norm is None else mean_rows(1)
    return assemble(model, name, body, 1, blocks, body.layernorm, rows, pooled_norm=pooled_norm, any_size=True)


def dinov2(model: Any, name: str) -> ViT:
    body, prefix = model.base_model, 1 + getattr(model.config, "num_register_tokens", 0)

    def classify(pooled: Pooled) -> Logits:
        return model.classifier(pooled.flatten(1))

    blocks, rows = map(dinov2_block, body.encoder.layer), token_and_mean_rows(prefix)
    return assemble(model, name, body, prefix, blocks, body.layernorm, rows, classify=classify, any_size=True)


def clip(model: Any, name: str) -> ViT:
    body = model.vision_model
    blocks = map(tower_block, body.encoder.layers)
    return assemble(model, name, body, 1, blocks, nn.Identity(), mean_rows(1), embed_norm=body.pre_layrnorm)


def siglip(model: Any, name: str) -> ViT:
    body = model.vision_model
    return assemble(model, name, body, 0, map(tower_block, body.encoder.layers), body.post_layernorm, mean_rows(0))


def clip_tower(model: Any, name: str) -> ViT:
    """CLIP's image embedding: the class token, normalised, and projected if the model has a projection."""
    body, project = getattr(model, "vision_model", model), getattr(model, "visual_projection", nn.Identity())
    return assemble(
        model,
        name,
        body,
        1,
        map(tower_block, body.encoder.layers),
        nn.Identity(),
        token_rows(0),
        classify=lambda pooled: project(pooled[:, 0]),
        pooled_norm=body.post_layernorm,
        embed_norm=body.pre_layrnorm,
        answer=embedding_of,
    )


def siglip_tower(model: Any, name: str) -> ViT:
    """SigLIP's image embedding: attention pooling with a learned query."""
    body = getattr(model, "vision_model", model)
    if not body.use_head:
        raise ModelError(f"{name!r} makes no embedding (vision_use_head=False); load it with its pooling head")
    blocks, classify = map(tower_block, body.encoder.layers), lambda pooled: pooled[:, 0]
    pool, norm = probe_pool(body.head), body.post_layernorm
    return assemble(model, name, body, 0, blocks, norm, pool, classify=classify, answer=embedding_of)


def backbone(model: Any, name: str) -> ViT:
    """A transformer without a head; its embedding is the class token after the last norm."""
    prefix = 1 + hasattr(model.embeddings, "distillation_token") + getattr(model.config, "num_register_tokens", 0)
    dinov2 = hasattr(model, "encoder")
    blocks = map(dinov2_block, model.encoder.layer) if dinov2 else map(plain_block, model.layers)
    return assemble(
        model,
        name,
        model,
        prefix,
        blocks,
        model.layernorm,
        token_rows(0),
        classify=lambda pooled: pooled[:, 0],
        any_size=dinov2,
        answer=class_token_of,
        embedding="no head; its embedding is the class token",
    )


def class_token_of(model: Any, images: Images, **options: bool) -> Logits:
    return model(pixel_values=images, **options).last_hidden_state[:, 0]


def embedding_of(model: Any, images: Images, **options: bool) -> Logits:
    """Image embeddings computed by the model itself, before normalisation to unit length."""
    features = getattr(model, "get_image_features", model)(pixel_values=images, **options)
    return features.image_embeds if "image_embeds" in features else features.pooler_output


FAMILIES: dict[str, Callable[[Any, str], ViT]] = {
    "ViTForImageClassification": vit,
    "DeiTForImageClassification": vit,
    "DeiTForImageClassificationWithTeacher": deit_with_teacher,
    "BeitForImageClassification": beit,
    "Dinov2ForImageClassification": dinov2,
    "Dinov2WithRegistersForImageClassification": dinov2,
    "CLIPForImageClassification": clip,
    "SiglipForImageClassification": siglip,
    "ViTModel": backbone,
    "DeiTModel": backbone,
    "Dinov2Model": backbone,
    "Dinov2WithRegistersModel": backbone,
    "CLIPModel": clip_tower,
    "CLIPVisionModelWithProjection": clip_tower,
    "CLIPVisionModel": clip_tower,
    "SiglipModel": siglip_tower,
    "SiglipVisionModel": siglip_tower,
}
TOWERS = frozenset(kind for kind, family in FAMILIES.items() if family in (clip_tower, siglip_tower))


def logits_of(model: Any, images: Images, **options: bool) -> Logits:
    return model(pixel_values=images, **options).logits


def assemble(
    model: Any,
    name: str,
    body: Any,
    prefix: int,
    blocks: Iterable[Block],
    norm: nn.Module,
    reads: Rows | AttentionPool,
    *,
    classify: Callable[[Pooled], Logits] | None = None,
    pooled_norm: nn.Module | None = None,
    embed_norm: nn.Module | None = None,
    any_size: bool = False,  # accepts other image sizes without `interpolate_pos_encoding`
    answer: Callable[..., Logits] = logits_of,
    embedding: str = "",
) -> ViT:
    """Build the `ViT` from the parts that differ between families and those that all families share."""
    embeddings, size = body.embeddings, body.config.image_size
    embedding = embedding or ("a tower" if answer is embedding_of else "")
    size = (size, size) if isinstance(size, int) else (size[0], size[1])
    conv: Any = base_layer(
        embeddings.patch_embeddings.projection
        if hasattr(embeddings, "patch_embeddings")
        else embeddings.patch_embedding
    )
    if any(isinstance(part, nn.Identity) for key, part in model.named_children() if key.endswith("classifier")):
        raise ModelError(f"{name!r} has no classifier (num_labels=0); give it a head with num_labels=…")

    def options(images: Images) -> dict[str, bool]:
        native_size = any_size or tuple(images.shape[-2:]) == size
        return {} if native_size else {"interpolate_pos_encoding": True}

    def embed(images: Images) -> Tokens:
        with evaluating(embeddings):
            tokens = embeddings(images, **options(images))
        return tokens if embed_norm is None else embed_norm(tokens)

    def forward(images: Images) -> Logits:
        with evaluating(model):
            return answer(model, images, **options(images))

    def one_head(pooled: Pooled) -> Logits:
        return model.classifier(pooled[:, 0])

    return ViT(
        name=name,
        module=model,
        embed=embed,
        blocks=tuple(blocks),
        norm=norm,
        pool=reads if isinstance(reads, AttentionPool) else LinearPool(reads),
        pooled_norm=nn.Identity() if pooled_norm is None else pooled_norm,
        classify=classify or one_head,
        layout=partial(layout_of, size, conv.kernel_size, prefix),
        forward=forward,
        size=size,
        channels=conv.in_channels,
        classes=None if embedding else classes_of(model.config),
        origin=ModelOrigin(library="transformers", class_name=type(model).__name__),
        embedding=embedding,
    )


def layout_of(built: tuple[int, int], patch: tuple[int, int], prefix: int, size: tuple[int, int]) -> Layout:
    (height, width), (tall, wide) = size, patch
    if height < tall or width < wide or height % tall or width % wide:
        raise ShapeError(f"an image of {height}x{width} does not divide into patches of {tall}x{wide}")
    if built[0] != built[1] and (height, width) != built:
        raise ShapeError(
            f"positions made for {built[0]}x{built[1]} are not interpolated to {height}x{width}; squares are"
        )
    return Layout((height // tall, width // wide), (tall, wide), prefix)


def classes_of(config: Any) -> tuple[str, ...] | None:
    """Class names of the config, or None if they are only LABEL_0, LABEL_1, … or incomplete."""
    names = config.id2label
    if set(names) != set(range(len(names))) or all(label == f"LABEL_{i}" for i, label in names.items()):
        return None
    return tuple(str(names[i]) for i in range(len(names)))
