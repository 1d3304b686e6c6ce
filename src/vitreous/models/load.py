"""Build a module by its name, and describe a module as a `ViT` by its adapter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.core.errors import ModelError, NotAdaptedError
from vitreous.models.adapters import unwrap
from vitreous.models.model import AnyModel
from vitreous.models.model_registry import NamedModule, find_adapter, find_source
from vitreous.models.vit import ViT


def build_named(
    name: str,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    **kwargs: Any,
) -> NamedModule:
    """Build a module by name, in eval mode and with `requires_grad` of its parameters set to False.

    Parameters
    ----------
    name
        "scenes", "scenes-biased", "scenes-swin", "timm:…", "hf:…", "torchvision:…" or the name of another registered source; a name
        without a prefix is one of timm.
    checkpoint
        A local safetensors or torch file with the weights.
    pretrained
        Whether to fetch weights if there is no checkpoint; False gives random weights.
    device
        Where to put the model; None leaves it where it was built.
    **kwargs
        Arguments of the library's builder.

    Raises
    ------
    ModelError
        If the name, checkpoint or device is invalid, the library has no such model, or the weights cannot be fetched or
        do not fit.
    """
    check_device(device)
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"a model name is text such as 'timm:vit_base_patch16_224', not {name!r}")
    origin, rest = find_source(name)
    if not rest.strip():
        examples = [family.example.removeprefix(f"{origin.name}:") for family in origin.families[:1]]
        hint = "".join(f", as in '{origin.name}:{example}'" for example in examples)
        raise ModelError(f"{name!r} names no model; write it behind the colon{hint}")
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise ModelError(f"checkpoint is the path of a local .safetensors or .pth file, not {checkpoint!r}")
    built = origin.create(rest, checkpoint=checkpoint, pretrained=pretrained, **kwargs)
    named = built if isinstance(built, NamedModule) else NamedModule(built)
    if not isinstance(named.module, nn.Module):
        raise ModelError(f"the source {origin.name!r} returned {type(built).__name__!r} for {rest!r}, not an nn.Module")
    named.module.eval().requires_grad_(False)
    if device is not None:
        try:
            named.module.to(device)
        except (RuntimeError, AssertionError, TypeError) as problem:
            raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    return named


def model_label(name: str) -> str:
    """The full name of a model: its source and its name there."""
    origin, rest = find_source(name)
    return rest if rest in origin.unprefixed else f"{origin.name}:{rest}"


def with_origin(model: AnyModel, named: NamedModule, checkpoint: str | Path | None) -> AnyModel:
    """The model with the preprocessing, class names and origin of the source that built it."""
    return replace(
        model,
        preprocess=named.preprocess or model.preprocess,
        classes=named.classes or model.classes,
        origin=replace(model.origin.updated(named.origin), checkpoint=str(checkpoint) if checkpoint else None),
    )


def check_device(device: Any) -> None:
    try:
        is_name = isinstance(device, str | int | torch.device) and not isinstance(device, bool)
        kind = torch.device(device).type if is_name and device != "" else None
    except (RuntimeError, ValueError) as problem:
        raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    if device is not None and not is_name:
        raise ModelError(f"device is a name such as 'cpu' or 'cuda:0', not {device!r}")
    if kind == "meta":
        raise ModelError("a model on the device 'meta' has no values; 'cpu' would work")


def adapt(model: nn.Module, name: str | None = None) -> ViT:
    """Describe an existing module as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        A module for which an adapter is registered: a timm, Hugging Face or torchvision transformer, or one of a
        plugin. Wrappers of `torch.compile`, data-parallel training and PEFT are removed.
    name
        Name of the model; its class name by default.

    Raises
    ------
    NotAdaptedError
        If there is no adapter for the module, or its adapter does not support it.
    """
    model = unwrap(model)
    adapter = find_adapter(model)
    if adapter is None:
        raise NotAdaptedError(
            f"{type(model).__name__!r} is not a timm, Hugging Face or torchvision transformer, so its parts are not known; "
            "wrap the backbone itself, or register an adapter"
        )
    try:
        vit = adapter.describe(model, name or type(model).__name__)
    except ModelError as problem:
        raise NotAdaptedError(str(problem)) from None
    if not isinstance(vit, ViT):
        raise ModelError(f"the adapter {adapter.name!r} returned {type(vit).__name__!r} for a module, not a ViT")
    return vit
