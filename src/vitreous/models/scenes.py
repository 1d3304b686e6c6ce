"""Source of the models that ship with the package, trained on generated images in which the evidence is known."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitreous import scenes
from vitreous.core.errors import ModelError
from vitreous.models.checkpoint import load_into, read_checkpoint
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox
from vitreous.models.model_registry import NamedModule, source

AREA = 16  # pixels per side of an area, of which the median is taken
BORDER = 6  # pixels
# What 3,520 images of 880 scenes measure (stored as PNG, as JPEG of quality 75 and 50, and enlarged), and 5 % more at both
# ends. Of photographs 5 % lie within all ranges, and 2 % have the evidence as well; of further scenes 0.5 % do not.
RANGES = {
    "darkest": (0.079, 0.551),  # luminance of the darkest hundredth: scenes have no deep shadows
    "lighting": (0.028, 0.403),  # spread of the logarithm of luminance over areas: they are lit evenly
    "hue": (0.0, 0.0488),  # largest difference between two sides in a colour's share: their ground has one hue
    "texture": (0.0072, 0.083),  # median contrast in 8 x 8 pixels
}
EVIDENCE = 5.2  # log of the sum of exp(logits) of `scenes`, which is about 6.4 for scenes and 5.0 for photographs


@source(
    "scenes",
    families=[("Scenes", "scenes", "ships with the package; also 'scenes-biased', and 'scenes-swin' as a network")],
    unprefixed=scenes.MODELS,
)
def create_scenes(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True, **kwargs: Any
) -> NamedModule:
    """Load a model of the package; a checkpoint replaces its weights."""
    if kwargs:
        raise ModelError(f"{name!r} is built in one way only; it takes no {', '.join(sorted(kwargs))}")
    model = scenes.load_model(name)
    if checkpoint is not None:
        load_into(model, read_checkpoint(checkpoint), name)
    return NamedModule(model, Preprocess.plain((scenes.SIZE, scenes.SIZE), 0.5, 0.5), scenes.CLASSES)


# ── images that are no scenes ────────────────────────────────────────────────────────────────────


def caution_of_images(model: BlackBox, images: Tensor) -> str:
    """Caveat for images that an embedded model cannot know; an empty string for scenes and for other models."""
    is_embedded = model.name in scenes.MODELS and model.classes == scenes.CLASSES and not model.origin.record
    if not is_embedded or not isinstance(model.preprocess, Preprocess) or images.shape[1:2] != (3,):
        return ""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (model.preprocess.mean, model.preprocess.std))
    with torch.inference_mode():
        unlike = int((~are_scenes(images.float().cpu() * std + mean)).sum())
    if not unlike:
        return ""
    which = "the image does not look" if len(images) == 1 else f"{unlike} of {len(images)} images do not look"
    return (
        f"{which} like the drawn scenes that this small model was trained on; it names one of their "
        f"{len(scenes.CLASSES)} things for every image, so prediction and map mean nothing for a photograph; "
        "--model timm:vit_base_patch16_224, or vitreous.load('timm:vit_base_patch16_224'), is a model of photographs"
    )


def are_scenes(images: Float[Tensor, "b 3 H W"]) -> Bool[Tensor, " b"]:
    """Whether images, in colours from 0 to 1, look like scenes; measured, not certain (see `RANGES`)."""
    with torch.inference_mode():
        colours = images.clamp(0, 1)
        if colours.shape[-2:] != (scenes.SIZE, scenes.SIZE):
            colours = F.interpolate(colours, (scenes.SIZE, scenes.SIZE), mode="bilinear", antialias=True)
        within = torch.ones(len(images), dtype=torch.bool)
        for name, values in measure_image(colours).items():
            low, high = RANGES[name]
            within &= (low <= values) & (values <= high)
        if within.any():
            within[within.clone()] = evidence_model()(2 * colours[within] - 1).logsumexp(1) >= EVIDENCE
        return within


def measure_image(colours: Float[Tensor, "b 3 H W"]) -> dict[str, Float[Tensor, " b"]]:
    """The measures of `RANGES`."""
    luminance = colours.mean(1)
    areas = luminance.clamp(min=0.02).log().unfold(1, AREA, AREA).unfold(2, AREA, AREA).flatten(3).median(3).values
    spread = torch.quantile(areas.flatten(1), torch.tensor([0.2, 0.8]), dim=1)
    contrast = luminance.unfold(1, 8, 8).unfold(2, 8, 8).flatten(3).std(3)
    strips = (colours[..., :BORDER, :], colours[..., -BORDER:, :], colours[..., :BORDER], colours[..., -BORDER:])
    sides = torch.stack([strip.flatten(2).mean(2) for strip in strips], 1)  # [image side colour]
    shares = sides / sides.sum(2, keepdim=True).clamp(min=0.05)
    return {
        "darkest": torch.quantile(luminance.flatten(1), 0.01, dim=1),
        "lighting": spread[1] - spread[0],
        "hue": (shares.amax(1) - shares.amin(1)).amax(1),
        "texture": contrast.flatten(1).median(1).values,
    }


@cache
def evidence_model() -> nn.Module:
    return scenes.load_model("scenes")
