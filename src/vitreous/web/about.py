"""What the page needs before it can draw anything."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from vitreous.web import schemas

if TYPE_CHECKING:
    from vitreous.web.service import Service


def describe_playground(service: Service) -> schemas.About:
    """Return models, methods, colour scales and limits."""
    import numpy as np

    from vitreous import __version__, list_methods
    from vitreous.draw.scale import OPACITY, QUANTILE, Scale
    from vitreous.front import explain

    settings = service.settings
    fields = schemas.MethodFacts.model_fields.keys()

    def colour_table(signed: bool) -> list[list[int]]:
        scale = Scale(-1.0 if signed else 0.0, 1.0, 0.0, 1.0, signed)
        colours = scale.colours(np.linspace(scale.low, scale.high, 256))
        return (colours * 255).round().astype(int).tolist()

    return schemas.About(
        version=__version__,
        models=[schemas.ModelOffer(name=entry.name, note=entry.note) for entry in service.models.entries.values()],
        methods=[schemas.MethodFacts(**{key: facts[key] for key in fields}) for facts in list_methods()],
        default=inspect.signature(explain).parameters["method"].default,
        colours=schemas.Colours(
            signed=colour_table(True), unsigned=colour_table(False), opacity=OPACITY, quantile=QUANTILE
        ),
        seconds=settings.seconds,
        upload=settings.upload,
        pixels=settings.pixels,
        demo=settings.has_demo,
    )
