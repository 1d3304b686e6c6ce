"""Build a `ViT` from a model name or from an existing module."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.core.errors import ModelError
from vitreous.models.adapters import adapted_model
from vitreous.models.checkpoint import load_into, read_checkpoint
from vitreous.models.timm_keys import timm_arguments, timm_keys
from vitreous.models.vit import ViT

SCENES = ("scenes", "scenes-biased")
EXAMPLES = {
    "scenes": "scenes",
    "timm": "vit_base_patch16_224",
    "hf": "google/vit-base-patch16-224",
    "torchvision": "vit_b_16",
}


def build(
    name: str,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    **kwargs: Any,
) -> ViT:
    """Build a model by name, in eval mode and with `requires_grad` of its parameters set to False.

    Parameters
    ----------
    name
        "scenes", "scenes-biased", "timm:…", "hf:…" or "torchvision:…"; a name without a prefix is one of timm.
    checkpoint
        A local safetensors or torch file with the weights.
    pretrained
        Whether to fetch weights if there is no checkpoint; False gives random weights.
    device
        Where to put the model; None leaves it where it was built.
    **kwargs
        Arguments of the library's builder.

    Returns
    -------
    ViT
        Not yet compared with the module's own logits; `vitreous.load` does that.

    Raises
    ------
    ModelError
        If the name, checkpoint or device is invalid, the weights cannot be fetched or do not fit, or the architecture
        is not supported.
    """
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"a model name is text such as 'timm:vit_base_patch16_224', not {name!r}")
    source, colon, rest = name.partition(":")
    if colon and not rest.strip() and source in EXAMPLES:
        raise ModelError(f"{name!r} names no model; write it behind the colon, as in '{source}:{EXAMPLES[source]}'")
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise ModelError(f"checkpoint is the path of a local .safetensors or .pth file, not {checkpoint!r}")
    check_device(device)
    if not rest:
        source, rest = ("scenes" if name in SCENES else "timm"), name
    match source:
        case "scenes":
            vit = build_scenes(rest, checkpoint, kwargs)
        case "timm":
            vit = build_timm(rest, checkpoint, pretrained, kwargs)
        case "hf":
            from vitreous.models.huggingface import load_huggingface

            vit = load_huggingface(rest, checkpoint=checkpoint, pretrained=pretrained, device=device, **kwargs)
        case "torchvision":
            from vitreous.models.torchvision import load_torchvision

            vit = load_torchvision(rest, checkpoint=checkpoint, pretrained=pretrained, device=device, **kwargs)
        case _:
            raise ModelError(f"no source {source!r}; write 'scenes', 'timm:…', 'hf:…' or 'torchvision:…'")
    vit.module.eval().requires_grad_(False)
    try:
        vit.module.to(device or vit.device)
    except (RuntimeError, AssertionError, TypeError) as problem:
        raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    return replace(
        vit,
        name=rest if source == "scenes" else f"{source}:{rest}",
        facts={**vit.facts, "checkpoint": str(checkpoint) if checkpoint else None},
    )


def check_device(device: Any) -> None:
    try:
        known = isinstance(device, str | int | torch.device) and not isinstance(device, bool)
        kind = torch.device(device).type if known and device != "" else None
    except (RuntimeError, ValueError) as problem:
        raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    if device is not None and not known:
        raise ModelError(f"device is a name such as 'cpu' or 'cuda:0', not {device!r}")
    if kind == "meta":
        raise ModelError("a model on the device 'meta' has no values; 'cpu' would work")


def build_scenes(name: str, checkpoint: str | Path | None, kwargs: dict[str, Any]) -> ViT:
    """Model that ships with the package, trained on generated images in which the evidence is known."""
    if kwargs:
        raise ModelError(f"{name!r} is built in one way only; it takes no {', '.join(sorted(kwargs))}")
    from vitreous import scenes
    from vitreous.models.picture import Preprocess
    from vitreous.models.timm import from_timm

    model = scenes.load_model(name)
    if checkpoint is not None:
        load_into(model, read_checkpoint(checkpoint), name)
    side = (scenes.SIZE, scenes.SIZE)
    return replace(from_timm(model, name), preprocess=Preprocess.plain(side, 0.5, 0.5), classes=scenes.CLASSES)


def build_timm(name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]) -> ViT:
    from timm.data import resolve_model_data_config

    from vitreous.models.picture import Preprocess
    from vitreous.models.timm import from_timm

    model = create_timm(name, checkpoint, pretrained, kwargs)
    vit = from_timm(model, f"timm:{name}")
    config = resolve_model_data_config(model)
    config["input_size"] = (3, *vit.size)
    return replace(vit, preprocess=Preprocess.from_timm(config), classes=imagenet_classes(model.num_classes))


def create_timm(name: str, checkpoint: str | Path | None, pretrained: bool, kwargs: dict[str, Any]) -> Any:
    """Create a timm model by name, with weights from the checkpoint, from the hub or random."""
    import timm

    if not timm.is_model(name.split(".", 1)[0]):
        near = get_close_matches(name, [*SCENES, *timm.list_models()], n=1)
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
        raise ModelError(no_hub(f"timm:{name}", problem)) from None
    except (TypeError, AssertionError, ValueError, ArithmeticError) as problem:
        raise ModelError(f"timm cannot build {name!r} with {kwargs}: {problem}") from None
    if state is not None:
        load_into(model, fitted(model, state), name)
    return model


def no_hub(name: str, problem: Exception) -> str:
    """Error message for weights that could not be fetched."""
    reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    return (
        f"the weights of {name!r} could not be fetched ({reason[:120]}); "
        "pass checkpoint='local file.safetensors', or pretrained=False for random weights"
    )


def fitted(model: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """Convert weights of another image size or an older naming to those of `model`, if timm has a conversion."""
    own = model.state_dict()
    if "blocks.0.ls1.gamma" in own and "blocks.0.gamma_1" in state:  # DeiT-III as published; BEiT keeps these names
        state = {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", key): value for key, value in state.items()}
    older = any(key.startswith("pre_logits.") for key in state)  # first ViTs of timm
    if not older and all(own[key].shape == value.shape for key, value in state.items() if key in own):
        return state
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return state if convert is None else convert(state, model)


@cache
def imagenet_classes(count: int) -> tuple[str, ...] | None:
    """Class names of ImageNet-1k if `count` is 1000, else None."""
    if count != 1000:
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_description(i).split(",")[0] for i in range(count))


def view(model: Any, name: str | None = None) -> ViT:
    """Describe an existing module as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        A timm, Hugging Face or torchvision transformer; wrappers of `torch.compile`, data-parallel training and PEFT
        are removed.
    name
        Name of the model; its class name by default.

    Raises
    ------
    ModelError
        If the architecture is not supported.
    """
    for shell in ("_orig_mod", "module"):  # wrappers of torch.compile and data-parallel training
        model = getattr(model, shell, None) or model
    model = adapted_model(model)
    label = name or type(model).__name__
    for ancestor in type(model).__mro__:
        match ancestor.__module__.split(".")[0]:
            case "timm":
                from timm.data import resolve_model_data_config

                from vitreous.models.picture import Preprocess
                from vitreous.models.timm import from_timm

                vit = from_timm(model, label)
                config = {**resolve_model_data_config(model), "input_size": (3, *vit.size)}
                return replace(
                    vit, preprocess=Preprocess.from_timm(config), classes=imagenet_classes(model.num_classes)
                )
            case "transformers":
                from vitreous.models.huggingface import from_huggingface, saved_preprocess

                return replace(from_huggingface(model, label), preprocess=saved_preprocess(model))
            case "torchvision":
                from vitreous.models.torchvision import from_torchvision

                return from_torchvision(model, label)
    raise ModelError(
        f"{type(model).__name__!r} is not a timm, Hugging Face or torchvision transformer, so its parts are not known; "
        "wrap the backbone itself, or register an adapter"
    )
