"""A method layer by layer, as `vitreous.inside` sees it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import Caveat
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.models.vit import ViT


def explain_layers(
    vit: ViT, images: Tensor, method: Method, target: int, question: str, precision: str | None = None
) -> dict[str, Any]:
    """Return what every layer adds to a method's PLUS map, and the SkipPLUS map from every start layer.

    Returns
    -------
    dict
        `method` (spec), `signed`, `layers` [depth, patches], `totals` [depth, patches], and `starts`, the spec of each row
        of `totals`.
    """
    import torch

    from vitreous.front import explain, inside

    summed = [method.with_fold(FOLDS["skipplus"].with_options(start=layer)) for layer in range(vit.depth)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        views = inside(vit, images, [[target]], method.with_fold(FOLDS["plus"]), question, precision=precision)
        if views.rest is None and method.recipe.finish is None:
            totals = views.parts["sum"][0]
        else:  # shares of biases and a last step belong to the map and to no single layer
            maps = [explain(vit, images, [[target]], spec, question, precision=precision).patches for spec in summed]
            totals = torch.cat([patches for patches in maps if patches is not None])
    return {
        "method": method.spec,
        "signed": views.whole.signed,
        "layers": views.parts["signal"][0].cpu(),
        "totals": totals.cpu(),
        "starts": [spec.spec for spec in summed],
    }
