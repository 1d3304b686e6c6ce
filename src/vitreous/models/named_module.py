"""Build any classifier by name, including unsupported architectures: module, preprocessing and class names."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from vitreous.core.errors import ModelError
from vitreous.models.checkpoint import load_into, read_checkpoint, refuse
from vitreous.models.load import SCENES, build, create_timm, imagenet_classes, no_hub
from vitreous.models.picture import Preprocess


class NamedModule(NamedTuple):
    """A module with the preprocessing and class names that its library provides."""

    module: nn.Module
    preprocess: Preprocess | None
    classes: tuple[str, ...] | None


def build_module(name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]) -> NamedModule:
    """Build a classifier by a name such as 'timm:resnet50' or 'torchvision:resnet18'.

    Parameters
    ----------
    name, checkpoint, pretrained
        As for `vitreous.load`.
    kwargs
        Arguments of the model's builder.

    Raises
    ------
    ModelError
        If the library has no such model, or the weights do not fit.
    """
    source, _, rest = name.partition(":")
    if rest and source == "torchvision":
        return build_torchvision(rest, checkpoint, pretrained, kwargs)
    if rest and source == "hf":
        return build_huggingface(rest, checkpoint, pretrained, kwargs)
    if (rest and source != "timm") or name in SCENES:
        vit = build(name, checkpoint=checkpoint, pretrained=pretrained, **kwargs)
        return NamedModule(vit.module, vit.preprocess, vit.classes)
    return build_timm_module(rest or name, checkpoint, pretrained, kwargs)


def build_timm_module(
    name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]
) -> NamedModule:
    from timm.data import resolve_model_data_config

    model = create_timm(name, checkpoint, pretrained, kwargs)
    config = resolve_model_data_config(model)
    if side := kwargs.get("img_size"):  # timm's config has the size of the weights, not of the model
        config["input_size"] = (3, *(side if isinstance(side, tuple | list) else (side, side)))
    return NamedModule(model, Preprocess.from_timm(config), imagenet_classes(model.num_classes))


def build_torchvision(
    name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]
) -> NamedModule:
    from torchvision.models import get_model, get_model_weights, list_models

    if name not in list_models():
        near = get_close_matches(name, list_models(), n=1)
        raise ModelError(f"torchvision has no model {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    weights: Any = get_model_weights(name).DEFAULT  # type: ignore[attr-defined]
    try:
        model = get_model(name, weights=weights if pretrained and checkpoint is None else None, **kwargs)
    except OSError as problem:
        raise ModelError(no_hub(f"torchvision:{name}", problem)) from None
    except (TypeError, ValueError, AssertionError) as problem:
        raise ModelError(f"torchvision cannot build {name!r} with {kwargs}: {problem}") from None
    if checkpoint is not None:
        load_into(model, read_checkpoint(checkpoint), name)
    named = "num_classes" not in kwargs
    return NamedModule(
        model, Preprocess.from_torchvision(weights.transforms()), tuple(weights.meta["categories"]) if named else None
    )


def build_huggingface(
    name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]
) -> NamedModule:
    from vitreous.models.huggingface import fetch, preprocess_of

    try:
        model, found = fetch(name, checkpoint, pretrained, kwargs)
    except (OSError, ValueError) as problem:
        if isinstance(problem, ModelError):
            raise
        raise ModelError(no_hub(f"hf:{name}", problem)) from None
    refuse(name, {"mis-shaped": found["mismatched_keys"], "missing": found["missing_keys"]} if found else {})
    labels = getattr(model.config, "id2label", None) or {}
    return NamedModule(model, preprocess_of(name), tuple(labels[index] for index in sorted(labels)) or None)
