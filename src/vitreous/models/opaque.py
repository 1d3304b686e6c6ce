"""A classifier of which nothing is known but its answers: no blocks, no tokens, pixels in and logits out."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vitreous.core.errors import ModelError, ShapeError, VitreousError
from vitreous.models.outputs import check_declared, checked_names, with_outputs
from vitreous.models.picture import Preprocess
from vitreous.models.quiet import evaluating
from vitreous.models.shapes import Images
from vitreous.models.vit import Layout, LinearPool, ViT


def opaque(
    module: nn.Module,
    why: str = "asked for",
    name: str | None = None,
    preprocess: Any = None,
    classes: Any = None,
    outputs: str | None = None,
) -> ViT:
    """Any model as a `ViT` without parts, for methods that ask about pixels only; `classes` and `outputs` as for `wrap`."""
    name = name or type(module).__name__
    if not any(p.is_floating_point() for p in module.parameters()):
        raise ModelError(f"{name!r} has no parameters, so its device and precision are not known")
    if getattr(module, "num_classes", None) == 0:
        raise ModelError(f"{name!r} has no classifier (num_classes=0); give it a head with num_classes=…")
    preprocess = preprocess_of(module) if preprocess is None else preprocess

    def forward(images: Images) -> Tensor:
        with evaluating(module):
            return logits_of(module(images), name)

    def refuse(*_: Any) -> NoReturn:
        raise ModelError(f"{name!r} is treated as a black box: it has no tokens")

    names = checked_names(classes)
    check_declared(outputs)
    vit = ViT(
        name=name,
        module=module,
        embed=refuse,
        blocks=(),
        norm=nn.Identity(),
        pool=LinearPool(refuse),
        pooled_norm=nn.Identity(),
        classify=refuse,
        layout=pixel_layout,
        forward=forward,
        size=getattr(preprocess, "size", (224, 224)),
        preprocess=preprocess,
        classes=classes_of(module) if names is None else names,
        black_box=f"treated as a black box: {why}",
    )
    return with_outputs(vit, 1, names, outputs) if outputs == "binary" else vit


def pixel_layout(size: tuple[int, int]) -> Layout:
    """Every pixel a place of its own."""
    return Layout(size, (1, 1), 0)


@torch.no_grad()
def greet(vit: ViT, picture: Images) -> ViT:
    """The black box after one image, which shows how many outputs it has; the names of its classes must be as many."""
    try:
        own = vit.forward(picture[:1].to(vit.device, vit.dtype))
    except VitreousError:
        raise
    except Exception as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
        raise ModelError(f"{vit.name!r} cannot be run on an image {list(picture.shape[1:])} ({reason})") from problem
    if own.ndim != 2 or len(own) != 1 or not own.shape[-1]:
        raise ModelError(
            f"{vit.name!r} answers a picture with shape {tuple(own.shape)}; a classifier answers with (1, classes)"
        )
    if not own.isfinite().all():
        raise ModelError(f"{vit.name!r} gives logits that are not finite; are its weights loaded?")
    given = None if vit.classes == classes_of(vit.module) else vit.classes
    return with_outputs(vit, own.shape[-1], given, "binary" if vit.binary else None)


def logits_of(answer: Any, name: str) -> Tensor:
    """The logits in what a model returns: a tensor, the first of several, or a field of that name."""
    answer = getattr(answer, "logits", answer)
    answer = answer[0] if isinstance(answer, tuple | list) and len(answer) else answer
    if not isinstance(answer, Tensor):
        raise ShapeError(f"{name!r} answers with {type(answer).__name__!r}, in which no logits were found")
    return answer


def preprocess_of(module: nn.Module) -> Preprocess | None:
    """How timm's models, and those of transformers that lie in a folder, want their pictures; of others it is not known."""
    if hasattr(getattr(module, "config", None), "_name_or_path"):
        from vitreous.models.huggingface import saved_preprocess

        return saved_preprocess(module)
    if not isinstance(getattr(module, "pretrained_cfg", None), dict):
        return None
    from timm.data import resolve_model_data_config

    return Preprocess.from_timm(resolve_model_data_config(module))


def classes_of(module: nn.Module) -> tuple[str, ...] | None:
    """ImageNet's names for timm's models of as many classes."""
    from vitreous.models.load import imagenet_classes

    count = getattr(module, "num_classes", None)
    return imagenet_classes(count) if isinstance(count, int) and hasattr(module, "pretrained_cfg") else None
