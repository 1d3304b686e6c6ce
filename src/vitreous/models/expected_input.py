"""The images that a module of any architecture takes, as far as its configuration states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitreous.core.errors import ModelError
from vitreous.models.layout import Clip
from vitreous.models.tensor_types import Images


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
        for size in (
            getattr(part, "img_size", None),
            getattr(part, "image_size", None),
            getattr(config, "image_size", None),
        ):
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
    image = torch.randn(shape, generator=generator)
    return image.to(parameter.device, parameter.dtype)


def expected_channels(module: nn.Module) -> int:
    """Channels of the images: the input channels of the first convolution that no other one can feed, else 3."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Conv3d)]
    if not convolutions or (first := convolutions[0].in_channels) == 3:  # decoders may give 3 channels as well
        return 3
    produced = {part.out_channels for part in convolutions}
    return next((part.in_channels for part in convolutions if part.in_channels not in produced), first)
