"""`load` and `wrap`: describe a model as a `ViT`, a `Network` or a black box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.capture.adapter_check import Agreement, compare_with_model, with_agreement
from vitreous.capture.argument_types import ModelInput, PreprocessInput
from vitreous.capture.inner_vit import find_inner_vit
from vitreous.capture.precision import without_autocast
from vitreous.capture.see_through import refuse_unsuited, see_through
from vitreous.core.errors import ModelError, NotAdaptedError
from vitreous.models.black_box import FunctionModule, describe_black_box
from vitreous.models.image_input import Preprocess
from vitreous.models.model import AnyModel, BlackBox, Network
from vitreous.models.model_registry import (
    adapt,
    build_named,
    find_adapter,
    model_label,
    refuse_meta_default,
    with_origin,
)
from vitreous.models.module_structure import structure_of, unwrap
from vitreous.models.outputs import check_declared, checked_names, count_with_noun, with_outputs
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
    outputs: Literal["binary", "logits"] | None = None,
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
    refuse_probabilities(outputs, name)
    classes = checked_names(classes)  # fail before weights are downloaded
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    named = build_named(name, checkpoint=checkpoint, pretrained=pretrained, device=device, **kwargs)
    model = describe(named.module, model_label(name), preprocess=named.preprocess, size=size)
    model = with_origin(model, named, checkpoint)
    if classes is not None or outputs is not None or named.classes is not None:
        model = with_declared_outputs(model, classes, outputs)
    return model if preprocess is None else with_preprocess(model, preprocess)


@without_autocast()
def wrap(
    model: nn.Module | Callable[[Tensor], Any],
    name: str | None = None,
    *,
    preprocess: PreprocessInput | None = None,
    classes: Sequence[str] | None = None,
    outputs: Literal["binary", "logits", "probabilities"] | None = None,
    black_box: bool = False,
    size: tuple[int, ...] | None = None,
) -> BlackBox:
    """Describe an existing model as a `ViT`, else as a `Network`, and check the description.

    The module is not modified. Wrappers of torch.compile, data-parallel training and PEFT are removed. The result is

    1. a `ViT` if there is an adapter for the module, or for a ViT inside it, and the described parts reproduce its logits;
    2. else a `Network`, if the shares of tokens and constants add up to the score at every block (see `see_through`);
    3. with `black_box=True`, and of a function that is no module, a `BlackBox`, whatever the model is.

    Parameters
    ----------
    model
        Any vision model; or a function of images, a float32 tensor [b c H W] on the CPU, that returns a tensor or an array
        [b classes], such as the prediction of another library.
    name
        Name of the model in captions and files.
    preprocess
        Converts images to tensors: a `Preprocess`, a torchvision transform (or weights), a timm transform, a Hugging
        Face image processor, or any callable from an RGB PIL image to a float tensor [channels, H, W]. If the geometry of the
        transform is known, maps are projected back onto the original image; otherwise a `Caveat` is issued. None uses
        the model's own configuration: timm's data config, or the processor in the folder that a Hugging Face model was
        loaded from.
    classes
        Class names, one per output. Two names for a single output declare it as binary.
    outputs
        "binary": the model has a single output, the logit of a binary classifier (sigmoid). None: a single output is a
        regression value, which is explained as it is; several outputs are classes. For black boxes also "probabilities":
        rows from 0 to 1 that add up to 1 (of a single output, the probability of the second of two classes). The score
        "probability" is then the value itself, and "logit" is log p (of a single output log p − log(1 − p)). Such rows
        are refused until they are declared as "probabilities" or as "logits".
    black_box
        Use the model only as a function from images to logits. The number of class names is then checked when the
        first image is run.
    size
        Height and width of the images that a model without an adapter is examined on; by default those of its
        configuration, or 224 x 224. Images of another size are examined when they are explained. A black box takes
        images of any size.

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
    >>> def classify(images):
    ...     red = images[:, 0].mean((1, 2)).sigmoid()
    ...     return torch.stack([red, 1 - red], 1).numpy()
    >>> vitreous.wrap(classify, classes=["red", "other"], outputs="probabilities", size=(64, 64))
    BlackBox('classify', 64x64, torch.float32, cpu)
    """
    refuse_meta_default()
    if not isinstance(model, nn.Module):
        refuse_no_function(model)
        model, black_box = FunctionModule(model), True
    if name is not None and not isinstance(name, str):
        raise ModelError(f"name is text, what the model is called in captions, not {name!r}")
    check_size(size)
    check_declared(outputs)
    classes = checked_names(classes)
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    if black_box:
        why = "a function" if isinstance(model, FunctionModule) else "asked for"
        return describe_black_box(model, why, name, preprocess, classes, outputs, size)
    refuse_probabilities(outputs, name or type(model).__name__)
    described = describe(model, name, preprocess=preprocess, size=size)
    return with_declared_outputs(described, classes, outputs)


def refuse_torchvision_detector(module: nn.Module) -> None:
    if any(base.__module__.startswith("torchvision.models.detection") for base in type(module).__mro__):
        raise ModelError(
            f"{type(module).__name__!r} returns lists of boxes, whose number changes with the image; a module that returns the class "
            "logits of one box would work, as in the guide 'Explain a detector' (docs/how-to/detector.md, 'Detectors of torchvision')"
        )


def refuse_no_function(model: Any) -> None:
    """Raise `ModelError` unless `model` is a function; of objects of known libraries it says how they become one."""
    if callable(model) and not isinstance(model, type):
        return
    recipe = ""
    if hasattr(model, "predict_proba"):
        recipe = (
            "; of a scikit-learn classifier: wrap(lambda x: model.predict_proba(x.flatten(1)), outputs='probabilities')"
        )
    elif hasattr(model, "get_inputs"):
        recipe = "; of an ONNX Runtime session: wrap(lambda x: session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])"
    raise ModelError(
        f"a model is an nn.Module, a ViT, a function of images or a name such as 'timm:vit_base_patch16_224', not "
        f"{type(model).__name__!r}{recipe}"
    )


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
    refuse_torchvision_detector(module)
    refuse_unsuited(module, name or type(module).__name__)
    try:
        vit = describe_by_adapter(module, name)
    except NotAdaptedError as problem:
        vit = find_inner_vit(module, name)
        if vit is None:
            try:
                network = as_network(module, name, str(problem), preprocess=preprocess, size=size)
            except ModelError as lost:
                raise ModelError(f"{problem}; as a network of any kind: {lost}") from None
            if find_adapter(module) is not None and [block.tokens.form for block in network.blocks] == ["pixels"]:
                raise ModelError(f"{problem}; as a network of any kind, it has no tokens but its pixels") from None
            return network
    return vit if preprocess is None else with_preprocess(vit, preprocess)


def with_preprocess(model: AnyModel, preprocess: Preprocess) -> AnyModel:
    """The model with another preprocessing; raise `ModelError` if it gives another number of channels."""
    if preprocess.channels != model.channels:
        raise ModelError(
            f"preprocess gives images of {count_with_noun(preprocess.channels, 'channel')}, and {model.name!r} takes {model.channels}; "
            f"vitreous.Preprocess.plain(size, mean, std, channels={model.channels}) would work"
        )
    return replace(model, preprocess=preprocess)


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


def refuse_probabilities(outputs: Any, name: str) -> None:
    if outputs == "probabilities":
        raise ModelError(
            f"outputs='probabilities' is of black boxes, and {name!r} is looked into; give it without its last softmax or sigmoid, "
            "or add black_box=True"
        )


def check_size(size: Any) -> None:
    sides = size if isinstance(size, tuple | list) else ()
    if size is not None and (len(sides) not in (2, 3) or any(type(side) is not int or side < 1 for side in sides)):
        raise ModelError(
            f"size is the height and width of an image in pixels, such as (224, 224) (with the number of frames before them for clips), not {size!r}"
        )
