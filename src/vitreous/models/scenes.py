"""Source of the models that ship with the package, trained on generated images in which the evidence is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitreous import scenes
from vitreous.core.errors import ModelError
from vitreous.models.checkpoint import load_into, read_checkpoint
from vitreous.models.image_input import Preprocess
from vitreous.models.model_registry import NamedModule, source


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
