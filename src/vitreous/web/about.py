"""What the page must know before it can draw anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.web import shapes

if TYPE_CHECKING:
    from vitreous.web.studio import Studio


def describe(studio: Studio) -> shapes.About:
    import numpy as np

    from vitreous import __version__, list_methods
    from vitreous.draw.scale import OPACITY, QUANTILE, Scale

    settings = studio.settings
    wanted = shapes.MethodFacts.model_fields.keys()

    def ramp(signed: bool) -> list[list[int]]:
        scale = Scale(-1.0 if signed else 0.0, 1.0, 0.0, 1.0, signed)
        colours = scale.colours(np.linspace(scale.low, scale.high, 256))
        return (colours * 255).round().astype(int).tolist()

    return shapes.About(
        version=__version__,
        models=[shapes.ModelOffer(name=one.name, note=one.note) for one in studio.roster.entries.values()],
        methods=[shapes.MethodFacts(**{key: one[key] for key in wanted}) for one in list_methods()],
        colours=shapes.Colours(signed=ramp(True), unsigned=ramp(False), opacity=OPACITY, quantile=QUANTILE),
        seconds=settings.seconds,
        upload=settings.upload,
        pixels=settings.pixels,
        demo=settings.has_demo,
    )
