"""A method layer by layer, as `vitreous.inside` sees it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from vitreous.core.errors import Caveat
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import Method
from vitreous.web import schemas
from vitreous.web.responses import round_numbers

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.models.vit import ViT


def explain_layers(
    vit: ViT, images: Tensor, method: Method, target: int, question: str, precision: str | None = None
) -> schemas.Layers:
    """Return what every layer adds to a method's PLUS map, and the SkipPLUS map from every start layer."""
    import torch

    from vitreous.front import explain, inside

    starts = [method.with_fold(FOLDS["skipplus"].with_options(start=layer)) for layer in range(vit.depth)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        views = inside(vit, images, [[target]], method.with_fold(FOLDS["plus"]), question, precision=precision)
        if views.rest is None and method.recipe.finish is None:
            totals = views.parts["sum"][0]
        else:  # shares of biases and a last step belong to the map and to no single layer
            maps = [explain(vit, images, [[target]], start, question, precision=precision).patches for start in starts]
            totals = torch.cat([patches for patches in maps if patches is not None])
    frames = [
        schemas.LayerMap(layer=layer, scores=round_numbers(signal), start=start.spec, total=round_numbers(total))
        for layer, (start, signal, total) in enumerate(zip(starts, views.parts["signal"][0], totals, strict=True))
    ]
    grid = list(views.whole.layout.grid)
    return schemas.Layers(method=method.spec, target=target, grid=grid, signed=views.whole.signed, frames=frames)
