"""Black-box models: any classifier, of which only the logits are used; and what a module of any architecture states of its images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitreous.core.errors import ModelError, unexpected_errors_as
from vitreous.models.image_input import Preprocess
from vitreous.models.layout import Clip, Layout
from vitreous.models.model import BlackBox, forward_of, logits_of
from vitreous.models.outputs import with_outputs
from vitreous.models.random_draws import normal_numbers
from vitreous.models.tensor_types import Images


def describe_black_box(
    module: nn.Module,
    why: str = "asked for",
    name: str | None = None,
    preprocess: Preprocess | None = None,
    classes: tuple[str, ...] | None = None,
    outputs: str | None = None,
) -> BlackBox:
    """Describe any model as a `BlackBox`, for methods that only need logits of images.

    Parameters
    ----------
    module
        A classifier of images.
    why
        Reason why it is a black box, used in error messages.
    name
        Name of the model; its class name by default.
    preprocess
        Conversion of images to tensors. None: that of the module's library, if it is known.
    classes, outputs
        As for `vitreous.wrap`, which checks them.

    Raises
    ------
    ModelError
        If the module has no floating-point parameters or no classifier, or `classes` do not fit `outputs`.
    """
    name = name or type(module).__name__
    refuse_without_parameters(module, name)
    if getattr(module, "num_classes", None) == 0:
        raise ModelError(f"{name!r} has no classifier (num_classes=0); give it a head with num_classes=…")
    preprocess = preprocess_of(module) if preprocess is None else preprocess
    model = BlackBox(
        name=name,
        module=module,
        forward=forward_of(module, logits_of),
        layout=pixel_layout,
        size=getattr(preprocess, "size", (224, 224)),
        channels=expected_channels(module),
        preprocess=preprocess,
        classes=classes_of(module) if classes is None else classes,
        reason=f"treated as a black box: {why}",
    )
    return with_outputs(model, 1, classes, outputs) if outputs == "binary" else model


def refuse_without_parameters(module: nn.Module, name: str) -> None:
    if not any(p.is_floating_point() for p in module.parameters()):
        raise ModelError(f"{name!r} has no parameters, so its device and precision are not known")


def refuse_inference_tensors(module: nn.Module, name: str) -> None:
    if any(tensor.is_inference() for tensor in (*module.parameters(), *module.buffers())):
        raise ModelError(
            f"{name!r} was created under torch.inference_mode(), so no gradient passes through it; create or load it "
            "outside of it, or under torch.no_grad()"
        )


def pixel_layout(size: tuple[int, int]) -> Layout:
    """Layout in which every pixel is a patch."""
    return Layout(size, (1, 1), 0)


@torch.no_grad()
def with_observed_outputs(model: BlackBox, images: Images) -> BlackBox:
    """Run a black box on one image and set the number and meaning of its outputs.

    Parameters
    ----------
    model
        A model from `describe_black_box`.
    images
        A batch of model inputs, of which the first is used.

    Raises
    ------
    ModelError
        If the model fails on the image, does not return finite logits [1, classes], or its class names do not fit.
    """
    shape = list(images.shape[1:])
    with unexpected_errors_as(lambda why: ModelError(f"{model.name!r} cannot be run on an image {shape} ({why})")):
        own = model.forward(images[:1].to(model.device, model.dtype))
    if own.ndim != 2 or len(own) != 1 or not own.shape[-1]:
        raise ModelError(
            f"{model.name!r} answers an image with shape {tuple(own.shape)}; a classifier answers with (1, classes), and score=… "
            "says what to explain of other outputs"
        )
    if not own.isfinite().all():
        raise ModelError(f"{model.name!r} gives logits that are not finite; are its weights loaded?")
    set_names = None if model.classes == classes_of(model.module) else model.classes
    return with_outputs(model, own.shape[-1], set_names, "binary" if model.binary else None)


def preprocess_of(module: nn.Module) -> Preprocess | None:
    """Preprocessing of a timm model, or of a transformers model whose processor is stored locally; otherwise None."""
    if expected_channels(module) != 3:
        return None
    if hasattr(getattr(module, "config", None), "_name_or_path"):
        from vitreous.models.huggingface import saved_preprocess

        return saved_preprocess(module)
    if not isinstance(getattr(module, "pretrained_cfg", None), dict):
        return None
    from vitreous.models.timm import preprocess_of as preprocess_of_timm

    return preprocess_of_timm(module, None)


def classes_of(module: nn.Module) -> tuple[str, ...] | None:
    """ImageNet class names if the module is a timm model with 1000 classes, else None."""
    from vitreous.models.class_names import imagenet_classes

    count = getattr(module, "num_classes", None)
    return imagenet_classes(count) if isinstance(count, int) and hasattr(module, "pretrained_cfg") else None


# ── expected images ──────────────────────────────────────────────────────────────────────────────


def expected_input(
    module: nn.Module, preprocess: Any, size: tuple[int, ...] | None
) -> tuple[Clip | None, tuple[int, int]]:
    """Form of the clips (None for images), and height and width; `size` as for `see_through`."""
    configs = [getattr(part, "config", None) for part in module.modules()]
    counts = [frames for config in configs if isinstance(frames := getattr(config, "num_frames", None), int)]
    if size is None:
        clip = Clip(counts[0], axis=1) if counts else None
        return clip, expected_size(module, preprocess)
    if len(size) == 3:
        return Clip(size[0], axis=1 if counts else 2), (size[1], size[2])
    if len(size) == 2:  # images, even if a configuration counts frames: Perceiver's does for every kind of input
        return None, (size[0], size[1])
    raise ModelError(f"size={size}; (height, width), or (frames, height, width) for clips, would work")


def expected_size(module: nn.Module, preprocess: Any) -> tuple[int, int]:
    """Image size that the module or a part of it was built for, else that of its preprocessing, else 224 x 224."""
    for part in module.modules():
        config = getattr(part, "config", None)
        config = getattr(config, "vision_config", config)
        for owner, attribute in ((part, "img_size"), (part, "image_size"), (config, "image_size")):
            size = getattr(owner, attribute, None)
            if isinstance(size, int) and size > 0:
                return (size, size)
            if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(x, int) for x in size):
                return (size[0], size[1])
    size = getattr(preprocess, "size", None)
    if size is not None:
        return size
    settings = [getattr(part, "default_cfg", None) for part in module.modules()]  # timm: the size of the weights
    input_sizes = [config["input_size"] for config in settings if isinstance(config, dict) and config.get("input_size")]
    return (input_sizes[0][1], input_sizes[0][2]) if input_sizes else (224, 224)


def random_image(module: nn.Module, size: tuple[int, int], clip: Clip | None = None, seed: int = 0) -> Images:
    parameter = next(p for p in module.parameters() if p.is_floating_point())
    if parameter.device.type == "meta":
        raise ModelError("the model lies on the device 'meta' and has no values; load its weights onto 'cpu' first")
    generator = torch.Generator().manual_seed(seed)
    channels = expected_channels(module)
    shape = (1, channels, *size) if clip is None else clip.shape(channels, size)
    image = normal_numbers(generator, shape)
    return image.to(parameter.device, parameter.dtype)


def expected_channels(module: nn.Module) -> int:
    """Channels of the images: the input channels of the first convolution that no other one can feed, else 3."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)]
    if not convolutions or (first := convolutions[0].in_channels) == 3:  # decoders may give 3 channels as well
        return 3
    produced = {part.out_channels for part in convolutions}
    return next((part.in_channels for part in convolutions if part.in_channels not in produced), first)
