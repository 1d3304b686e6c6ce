"""`load` and `wrap`: describe a model as a `ViT`, a `Network` or a black box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitreous.capture.adapter_check import Agreement, compare_with_model, with_agreement
from vitreous.capture.argument_types import ModelInput, PreprocessInput
from vitreous.capture.inner_vit import find_inner_vit
from vitreous.capture.precision import without_autocast
from vitreous.capture.see_through import refuse_unsuited, see_through
from vitreous.core.errors import ModelError, NotAdaptedError
from vitreous.models.black_box import describe_black_box
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox, Network
from vitreous.models.model_registry import adapt, build_named, model_label, with_origin
from vitreous.models.module_structure import structure_of, unwrap
from vitreous.models.outputs import check_declared, checked_names, with_outputs
from vitreous.models.transforms import as_preprocess
from vitreous.models.vit import ViT

# Result of the adapter check per module, with the module's structure at that time (checked before reuse).
WRAPPED: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], Agreement]] = WeakKeyDictionary()


@without_autocast()
def load(
    name: str,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    *,
    preprocess: PreprocessInput | None = None,
    classes: Sequence[str] | None = None,
    outputs: Literal["binary"] | None = None,
    size: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> Network:
    """Load a model by name and check it.

    Parameters
    ----------
    name
        For example "timm:vit_base_patch16_224", "hf:google/vit-base-patch16-224", "torchvision:vit_b_16" or "scenes".
    checkpoint
        Path of a local safetensors or torch file with the weights. Torch files are read with `weights_only=True`.
    pretrained
        Whether to download pretrained weights if no checkpoint is given. If False, weights are random.
    device
        For example "cpu" or "cuda". If None, the builder's default device.
    preprocess
        Replaces the preprocessing of the model's own library; accepts the same values as in `wrap`.
    classes
        Class names, one per output. Two names for a single output declare it as binary.
    outputs
        "binary": the model has a single output, the logit of a binary classifier (sigmoid). None: a single output is a
        regression value, which is explained as it is; several outputs are classes.
    size
        Height and width of the images that a model without an adapter is examined on; by default those of its
        configuration.
    **kwargs
        Passed to the builder: `img_size=`, `num_classes=`, …

    Returns
    -------
    ViT or Network
        A `ViT` if an adapter describes the model's parts, else a `Network`; see `wrap`.

    Raises
    ------
    ModelError
        If the model does not exist, the weights do not fit, it is neither a `ViT` nor a `Network`, or `classes` and `outputs` do
        not fit its outputs.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.load("scenes")
    ViT('scenes', 12 blocks, 112x112, torch.float32, cpu)
    >>> vitreous.load("timm:vit_tiny_patch16_224", pretrained=False, num_classes=5).outputs
    5
    """
    check_size(size)
    check_declared(outputs)
    classes = checked_names(classes)  # fail before weights are downloaded
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    named = build_named(name, checkpoint=checkpoint, pretrained=pretrained, device=device, **kwargs)
    model = describe(named.module, model_label(name), preprocess=named.preprocess, size=size)
    model = with_origin(model, named, checkpoint)
    if classes is not None or outputs is not None or named.classes is not None:
        model = with_declared_outputs(model, classes, outputs)
    return model if preprocess is None else replace(model, preprocess=preprocess)


@without_autocast()
def wrap(
    model: nn.Module,
    name: str | None = None,
    *,
    preprocess: PreprocessInput | None = None,
    classes: Sequence[str] | None = None,
    outputs: Literal["binary"] | None = None,
    black_box: bool = False,
    size: tuple[int, ...] | None = None,
) -> BlackBox:
    """Describe an existing module as a `ViT`, else as a `Network`, and check the description.

    The module is not modified. Wrappers of torch.compile, data-parallel training and PEFT are removed. The result is

    1. a `ViT` if there is an adapter for the module, or for a ViT inside it, and the described parts reproduce its logits;
    2. else a `Network`, if the shares of tokens and constants add up to the score at every block (see `see_through`);
    3. with `black_box=True` a `BlackBox`, whatever the module is.

    Parameters
    ----------
    model
        Any vision model.
    name
        Name of the model in captions and files.
    preprocess
        Converts images to tensors: a `Preprocess`, a torchvision transform (or weights), a timm transform, a Hugging
        Face image processor, or any callable from an RGB PIL image to a float tensor [3, H, W]. If the geometry of the
        transform is known, maps are projected back onto the original image; otherwise a `Caveat` is issued. None uses
        the model's own configuration: timm's data config, or the processor in the folder that a Hugging Face model was
        loaded from.
    classes
        Class names, one per output. Two names for a single output declare it as binary.
    outputs
        "binary": the model has a single output, the logit of a binary classifier (sigmoid). None: a single output is a
        regression value, which is explained as it is; several outputs are classes.
    black_box
        Use the model only as a function from images to logits. The number of class names is then checked when the
        first image is run.
    size
        Height and width of the images that a model without an adapter is examined on; by default those of its
        configuration, or 224 x 224. Images of another size are examined when they are explained.

    Returns
    -------
    BlackBox
        A `ViT`, a `Network` or a plain `BlackBox`, as above.

    Raises
    ------
    ModelError
        If the module cannot be run or is neither a `ViT` nor a `Network`, or `classes` and `outputs` do not fit its outputs.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=2)
    >>> vit = vitreous.wrap(model, classes=["cat", "dog"])
    >>> vit.class_name(1)
    'dog'
    >>> vitreous.wrap(timm.create_model("resnet18", pretrained=False), size=(64, 64))
    Network('ResNet', 8 blocks, 64x64, torch.float32, cpu)
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"a model is an nn.Module, a ViT or a name such as 'timm:vit_base_patch16_224', not {type(model).__name__!r}"
        )
    if name is not None and not isinstance(name, str):
        raise ModelError(f"name is text, what the model is called in captions, not {name!r}")
    check_size(size)
    check_declared(outputs)
    classes = checked_names(classes)
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    if black_box:
        return describe_black_box(model, name=name, preprocess=preprocess, classes=classes, outputs=outputs)
    described = describe(model, name, preprocess=preprocess, size=size)
    return with_declared_outputs(described, classes, outputs)


def as_model(model: ModelInput) -> BlackBox:
    """A model by its name (`load`), a module (`wrap`), or a model that is described already."""
    return load(model) if isinstance(model, str) else model if isinstance(model, BlackBox) else wrap(model)


def describe(
    module: nn.Module,
    name: str | None = None,
    *,
    preprocess: Preprocess | None = None,
    size: tuple[int, ...] | None = None,
) -> Network:
    """Describe a module as a `ViT`, or else as a `Network`; parameters as for `wrap`."""
    module = unwrap(module)
    refuse_unsuited(module, name or type(module).__name__)
    try:
        vit = describe_by_adapter(module, name)
    except NotAdaptedError as problem:
        vit = find_inner_vit(module, name)
        if vit is None:
            try:
                return as_network(module, name, str(problem), preprocess=preprocess, size=size)
            except ModelError as lost:
                raise ModelError(f"{problem}; as a network of any kind: {lost}") from None
    return vit if preprocess is None else replace(vit, preprocess=preprocess)


def describe_by_adapter(module: nn.Module, name: str | None) -> ViT:
    """Describe a module by its adapter after comparing its logits with the module's, whose result is reused for the same module."""
    vit, structure, remembered = adapt(module, name), structure_of(module), WRAPPED.get(module)
    if remembered is not None and remembered[0] == structure:
        agreement = remembered[1]
    else:
        agreement = compare_with_model(vit)
        WRAPPED[module] = (structure, agreement)
    return with_agreement(vit, agreement)


def as_network(
    module: nn.Module,
    name: str | None = None,
    reason: str = "",
    *,
    preprocess: Preprocess | None = None,
    size: tuple[int, ...] | None = None,
) -> Network:
    """Describe a module as a `Network`; `reason` says why it is no `ViT`, other parameters as for `wrap`."""
    return replace(see_through(unwrap(module), name, size=size, preprocess=preprocess), reason=reason)


def network_of(
    model: BlackBox, size: tuple[int, ...] | None = None, reason: str = "its outputs are scored"
) -> BlackBox:
    """The model as a network whose outputs of any kind can be read; a black box and a network as they are."""
    if not isinstance(model, ViT):
        return model
    return as_network(model.module, model.name, reason, preprocess=model.preprocess, size=size)


def with_declared_outputs(model: Network, classes: Sequence[str] | None, outputs: str | None) -> Network:
    """The model with the given meaning of its outputs; `classes` and `outputs` as for `wrap`."""
    if model.output_type is None:
        if classes is not None or outputs is not None:
            raise ModelError(
                f"{model.name!r} returns no logits that classes= or outputs= could name; score=… of vitreous.explain says what "
                "is explained"
            )
        return model
    return with_outputs(model, model.output_type.count, classes, outputs)


def check_size(size: Any) -> None:
    sides = size if isinstance(size, tuple | list) else ()
    if size is not None and (len(sides) not in (2, 3) or any(type(side) is not int or side < 1 for side in sides)):
        raise ModelError(
            f"size is the height and width of an image in pixels, such as (224, 224) (with the number of frames before them for clips), not {size!r}"
        )
