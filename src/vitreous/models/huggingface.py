"""Hugging Face: source of classifiers and towers, their adapter (for the modules of transformers 5.18), and text towers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.core.errors import ModelError, ShapeError, VitreousError, describe_error
from vitreous.models.checkpoint import (
    read_checkpoint,
    refuse_integers,
    refuse_mismatch,
    stored_whole_numbers,
    whole_numbers,
)
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import Preprocess
from vitreous.models.model import ModelOrigin
from vitreous.models.model_registry import NamedModule, adapter, library_of, source
from vitreous.models.module_structure import base_layer
from vitreous.models.tensor_types import Images, Logits, PerHead, Pooled, Tokens
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
    mean_rows,
    no_scale,
    scaled,
    token_and_mean_rows,
    token_rows,
)

TEXT_MODELS = {"clip": "CLIPTextModelWithProjection", "siglip": "SiglipTextModel", "siglip2": "Siglip2TextModel"}
Rows = Callable[[int], Float[Tensor, "q n"]]


# ── source ───────────────────────────────────────────────────────────────────────────────────────


@source(
    "hf",
    families=[
        ("Hugging Face", "hf:google/vit-base-patch16-224", "ViT, DeiT, BEiT, DINOv2, SigLIP, CLIP classifiers"),
    ],
)
def create_huggingface(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True, **kwargs: Any
) -> NamedModule:
    """Load a classifier from the hub or a local folder. Code from the hub is never executed.

    Parameters
    ----------
    name
        Name on the hub, or a local folder with config.json and model.safetensors.
    checkpoint
        A local file with other weights.
    pretrained
        Whether to load weights if there is no checkpoint; False gives random weights.
    **kwargs
        Settings of the model's config.

    Raises
    ------
    ModelError
        If the model cannot be loaded, a setting is unknown, or the weights do not fit.
    """
    if kwargs.pop("trust_remote_code", False):
        raise ModelError("code from the hub is never run; trust_remote_code cannot be set")
    try:
        model, loading_info = fetch(name, checkpoint, pretrained, kwargs)
    except VitreousError:
        raise
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0].rstrip(".")
        raise ModelError(
            f"{name!r} could not be loaded: {why}; without the hub, give a local folder with config.json and "
            "model.safetensors as the name, and other weights as checkpoint=…"
        ) from None
    # Unexpected weights are allowed: they belong to poolers and text towers, which these classifiers do not have.
    misfits = ("mis-shaped", "mismatched_keys"), ("missing", "missing_keys")
    refuse_mismatch(name, {word: loading_info[key] for word, key in misfits} if loading_info else {})
    weights = str(checkpoint or ("pretrained" if pretrained else "random"))
    classes = None if type(model).__name__ in TOWERS else classes_of(model.config)
    return NamedModule(model, preprocess_of(name), classes, ModelOrigin(source=name, weights=weights))


def import_transformers() -> Any:
    """The package `transformers`, untyped: a type checker would read its 4,000 modules."""
    return import_module("transformers")


def fetch(name: str, checkpoint: str | Path | None, pretrained: bool, changes: dict[str, Any]) -> tuple[Any, dict]:
    """The module, and transformers' loading info (missing, unexpected and mismatched keys; empty without weights)."""
    try:
        transformers = import_transformers()
    except ImportError:
        raise ModelError("Hugging Face models need transformers: pip install 'vitreous[hf]'") from None
    loaded = transformers.AutoConfig.from_pretrained(
        name, trust_remote_code=False, return_unused_kwargs=True, **changes
    )
    config, unused = loaded
    if odd := sorted(set(unused) & set(changes)):
        raise ModelError(
            f"{', '.join(odd)} is no setting of {type(config).__name__}; see its documentation for those it has"
        )
    architecture = (config.architectures or [""])[0]
    auto = getattr(transformers, architecture if architecture in TOWERS else "AutoModelForImageClassification")
    builder = auto._from_config if architecture in TOWERS else partial(auto.from_config, trust_remote_code=False)
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # so that mismatches can be reported
    if checkpoint is not None:
        with torch.device("meta"):
            kind = type(builder(config))
        # `from_pretrained` also converts weight names of older versions of transformers.
        state = read_checkpoint(checkpoint)
        model, loading_info = kind.from_pretrained(None, config=config, state_dict=state, **report)
        refuse_integers(name, model.state_dict(), whole_numbers(state))
        return model, loading_info
    if pretrained:
        model, loading_info = auto.from_pretrained(
            name, config=config, trust_remote_code=False, use_safetensors=True, **report
        )
        if getattr(config, "quantization_config", None) is None:  # it would say the scale
            for path in saved_weights(name):
                refuse_integers(name, model.state_dict(), stored_whole_numbers(path))
        return model, loading_info
    return builder(config), {}


def saved_weights(name: str) -> list[Path]:
    """Safetensors files of a local folder, or of the cache of the hub."""
    if Path(name).is_dir():
        return sorted(Path(name).glob("*.safetensors"))
    path = import_module("huggingface_hub").try_to_load_from_cache(name, "model.safetensors")
    return [Path(path)] if isinstance(path, str) else []


def preprocess_of(name: str, local: bool = False) -> Preprocess | None:
    """Preprocessing of the model's image processor, or None if it has no processor; `local` reads local files only."""
    kind = import_transformers().AutoImageProcessor
    try:
        processor = kind.from_pretrained(name, trust_remote_code=False, local_files_only=local)
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


def classes_of(config: Any) -> tuple[str, ...] | None:
    """Class names of the config, or None if they are only LABEL_0, LABEL_1, … or incomplete."""
    names = config.id2label
    if set(names) != set(range(len(names))) or all(label == f"LABEL_{i}" for i, label in names.items()):
        return None
    return tuple(str(names[i]) for i in range(len(names)))


# ── adapter ──────────────────────────────────────────────────────────────────────────────────────


@adapter("huggingface", matches=library_of("transformers"))
def describe_huggingface(model: nn.Module, name: str) -> ViT:
    """Describe a Hugging Face classifier, with the preprocessing stored beside its weights on this machine."""
    return replace(from_huggingface(model, name), preprocess=saved_preprocess(model))


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
        If the class is not supported, or its modules are not those of transformers 5.18.
    """
    kind = next((base.__name__ for base in type(model).__mro__ if base.__name__ in FAMILIES), None)
    if kind is None:
        supported = f"known in transformers: {', '.join(FAMILIES)}"
        raise ModelError(f"{type(model).__name__!r} is not a family that Vitreous can see through; {supported}")
    try:
        return FAMILIES[kind](model, name)
    except AttributeError as error:
        raise ModelError(f"{name!r} is not laid out as {kind} is in transformers 5.18: {error}") from None


def vit(model: Any, name: str) -> ViT:
    """ViT, and DeiT with a head that does not read the distillation token."""
    return assemble(model, name, model.base_model, token_rows(0))


def deit_with_teacher(model: Any, name: str) -> ViT:
    def classify(pooled: Pooled) -> Logits:
        return (model.cls_classifier(pooled[:, 0]) + model.distillation_classifier(pooled[:, 1])) / 2

    return assemble(model, name, model.deit, token_rows(0, 1), classify=classify)


def beit(model: Any, name: str) -> ViT:
    pooled_norm = model.beit.pooler.layernorm
    rows = token_rows(0) if pooled_norm is None else mean_rows(1)
    return assemble(model, name, model.beit, rows, pooled_norm=pooled_norm)


def dinov2(model: Any, name: str) -> ViT:
    return assemble(model, name, model.base_model, token_and_mean_rows(count_prefix(model.base_model)))


def clip(model: Any, name: str) -> ViT:
    return assemble(model, name, model.vision_model, mean_rows(1), norm=nn.Identity())


def siglip(model: Any, name: str) -> ViT:
    return assemble(model, name, model.vision_model, mean_rows(0), norm=model.vision_model.post_layernorm)


def clip_tower(model: Any, name: str) -> ViT:
    """CLIP's image embedding: the class token, normalised, and projected if the model has a projection."""
    body, project = getattr(model, "vision_model", model), getattr(model, "visual_projection", nn.Identity())
    parts = {
        "norm": nn.Identity(),
        "pooled_norm": body.post_layernorm,
        "classify": lambda pooled: project(pooled[:, 0]),
    }
    return assemble(model, name, body, token_rows(0), answer=embedding_of, embedding="a tower", **parts)


def siglip_tower(model: Any, name: str) -> ViT:
    """SigLIP's image embedding: attention pooling with a learned query."""
    body = getattr(model, "vision_model", model)
    if not body.use_head:
        raise ModelError(f"{name!r} makes no embedding (vision_use_head=False); load it with its pooling head")
    parts = {"norm": body.post_layernorm, "classify": lambda pooled: pooled[:, 0]}
    return assemble(model, name, body, probe_pool(body.head), answer=embedding_of, embedding="a tower", **parts)


def backbone(model: Any, name: str) -> ViT:
    """A transformer without a head; its embedding is the class token after the last norm."""
    reason, classify = "no head; its embedding is the class token", lambda pooled: pooled[:, 0]
    return assemble(model, name, model, token_rows(0), classify=classify, answer=class_token_of, embedding=reason)


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


def class_token_of(model: Any, images: Images, **options: bool) -> Logits:
    return model(pixel_values=images, **options).last_hidden_state[:, 0]


def embedding_of(model: Any, images: Images, **options: bool) -> Logits:
    """Image embeddings computed by the model itself, before normalisation to unit length."""
    features = getattr(model, "get_image_features", model)(pixel_values=images, **options)
    return features.image_embeds if "image_embeds" in features else features.pooler_output


def assemble(
    model: Any,
    name: str,
    body: Any,
    reads: Rows | AttentionPool,
    *,
    norm: nn.Module | None = None,
    classify: Callable[[Pooled], Logits] | None = None,
    pooled_norm: nn.Module | None = None,
    answer: Callable[..., Logits] = logits_of,
    embedding: str = "",
) -> ViT:
    """Build the `ViT` from the parts that differ between families and those that all families share."""
    embeddings, size = body.embeddings, body.config.image_size
    size = (size, size) if isinstance(size, int) else (size[0], size[1])
    patches = getattr(embeddings, "patch_embeddings", None)
    conv: Any = base_layer(embeddings.patch_embedding if patches is None else patches.projection)
    if any(isinstance(part, nn.Identity) for key, part in model.named_children() if key.endswith("classifier")):
        raise ModelError(f"{name!r} has no classifier (num_labels=0); give it a head with num_labels=…")
    # BEiT and DINOv2 take images of any size without being told to interpolate their positions.
    on_request = "interpolate_pos_encoding" in signature(embeddings.forward).parameters

    def options(images: Images) -> dict[str, bool]:
        return {"interpolate_pos_encoding": True} if on_request and tuple(images.shape[-2:]) != size else {}

    def embed(images: Images) -> Tokens:
        with evaluating(embeddings):
            tokens = embeddings(images, **options(images))
        return body.pre_layrnorm(tokens) if hasattr(body, "pre_layrnorm") else tokens  # of CLIP

    def forward(images: Images) -> Logits:
        with evaluating(model):
            return answer(model, images, **options(images))

    return ViT(
        name=name,
        module=model,
        embed=embed,
        blocks=tuple(block_of(body, layer) for layer in layers_of(body)),
        norm=body.layernorm if norm is None else norm,
        pool=reads if isinstance(reads, AttentionPool) else LinearPool(reads),
        pooled_norm=nn.Identity() if pooled_norm is None else pooled_norm,
        classify=classify or (lambda pooled: model.classifier(pooled.flatten(1))),
        layout=partial(layout_of, size, conv.kernel_size, count_prefix(body)),
        forward=forward,
        size=size,
        channels=conv.in_channels,
        classes=None if embedding else classes_of(model.config),
        origin=ModelOrigin(library="transformers", class_name=type(model).__name__),
        embedding=embedding,
    )


def count_prefix(body: Any) -> int:
    """Number of tokens before the patches: class token, distillation token and registers."""
    tokens = [hasattr(body.embeddings, name) for name in ("cls_token", "class_embedding", "distillation_token")]
    return sum(tokens) + getattr(body.config, "num_register_tokens", 0)


def layout_of(built: tuple[int, int], patch: tuple[int, int], prefix: int, size: tuple[int, int]) -> Layout:
    (height, width), (tall, wide) = size, patch
    if height < tall or width < wide or height % tall or width % wide:
        raise ShapeError(f"an image of {height}x{width} does not divide into patches of {tall}x{wide}")
    if built[0] != built[1] and (height, width) != built:
        raise ShapeError(
            f"positions made for {built[0]}x{built[1]} are not interpolated to {height}x{width}; squares are"
        )
    return Layout((height // tall, width // wide), (tall, wide), prefix)


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


BLOCK_PARTS = (  # the norms of both branches, and the attention
    ("layernorm_before", "layernorm_after", "attention"),  # ViT, DeiT, BEiT
    ("norm1", "norm2", "attention"),  # DINOv2
    ("layer_norm1", "layer_norm2", "self_attn"),  # CLIP, SigLIP
)


def layers_of(body: Any) -> nn.ModuleList:
    encoder = getattr(body, "encoder", body)
    return encoder.layer if hasattr(encoder, "layer") else encoder.layers


def block_of(body: Any, layer: Any) -> Block:
    names = next((names for names in BLOCK_PARTS if hasattr(layer, names[0])), BLOCK_PARTS[0])
    before, after, attention = (getattr(layer, name) for name in names)
    return Block(
        attention_branch(before, attention, partial(layer_scale, layer, 1), partial(relative_bias, body, layer)),
        mlp_branch(after, layer.mlp, partial(layer_scale, layer, 2)),
    )


def layer_scale(layer: Any, branch: int) -> Tensor | None:
    """Layer scale of branch 1 or 2 of a block, in DINOv2 and in BEiT."""
    module = getattr(layer, f"layer_scale{branch}", None)
    return getattr(layer, f"lambda_{branch}", None) if module is None else module.lambda1


def relative_bias(body: Any, layer: Any, place: TokenPositions) -> Float[Tensor, "b h n n"] | None:
    """Relative position bias of BEiT: the sum of the block's own and the shared table, or None without both."""
    parts = (getattr(layer, "relative_position_bias", None), getattr(body, "shared_position_bias", None))
    tables = [part(place.layout.grid)[0] for part in parts if part is not None]
    return place.gather_pairs(torch.stack(tables).sum(0)) if tables else None


def attention_branch(
    norm: nn.Module, attention: Any, factor: LayerScaleFactor, bias: Callable[[TokenPositions], Tensor | None]
) -> AttentionBranch:
    if hasattr(attention, "out_proj"):  # CLIP and SigLIP
        heads, scale, projection = attention.num_heads, attention.scale, "out_proj"
    else:
        heads, scale, projection = attention.num_attention_heads, attention.scaling, "o_proj"

    def qkv(x: Tokens) -> tuple[PerHead, PerHead, PerHead]:
        q, k, v = (
            project(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return q, k, v

    project = scaled(attention, projection, factor)
    return AttentionBranch(norm, qkv, project, scale, bias=bias, layer_scale=factor)


def mlp_branch(norm: nn.Module, mlp: Any, factor: LayerScaleFactor = no_scale) -> MlpBranch:
    if hasattr(mlp, "gate_proj"):
        expand, act, projection = lambda x: (mlp.gate_proj(x), mlp.up_proj(x)), mlp.act_fn, "down_proj"
    else:
        expand, act, projection = lambda x: (mlp.fc1(x),), mlp.activation_fn, "fc2"
    return MlpBranch(norm, expand, act, scaled(mlp, projection, factor), layer_scale=factor)


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


# ── text towers ──────────────────────────────────────────────────────────────────────────────────


def load_text_tower(name: str | Path) -> tuple[nn.Module, Any]:
    """Text encoder and tokenizer by a name on the hub or a folder; a `ModelError` if they cannot be loaded."""
    try:
        transformers = import_transformers()
        family = transformers.AutoConfig.from_pretrained(name).model_type.split("_")[0]
        if family not in TEXT_MODELS:
            raise ModelError(f"{str(name)!r} is a {family!r} model; text towers are known of: {', '.join(TEXT_MODELS)}")
        module = getattr(transformers, TEXT_MODELS[family]).from_pretrained(name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as problem:
        raise ModelError(f"the text tower of {str(name)!r} cannot be loaded ({describe_error(problem)})") from None
    return module.eval(), tokenizer


def padding_options(model: nn.Module) -> dict[str, Any]:
    """Arguments of the tokenizer that the model's texts need: SigLIP reads the last of a fixed number of tokens."""
    config: Any = getattr(model, "config", None)
    if not str(getattr(config, "model_type", "")).startswith("siglip"):
        return {}
    length = getattr(config, "text_config", config).max_position_embeddings
    return {"padding": "max_length", "max_length": length}


def saved_tokenizer(model: nn.Module) -> Any:
    """The tokenizer that was saved with a model, without downloading; a `ModelError` if there is none."""
    place = getattr(model, "name_or_path", "")
    try:
        if not place:
            raise OSError("the model was not loaded by from_pretrained")
        return import_transformers().AutoTokenizer.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, ImportError) as problem:
        raise ModelError(
            f"the tokenizer of {type(model).__name__!r} is not at hand ({describe_error(problem)}); "
            "target=vitreous.prompt_target(model, prompts, tokenizer) takes one"
        ) from None
