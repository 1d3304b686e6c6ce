"""Losses on attribution maps, for training with `vitreous.explain(..., differentiable=True)`.

Each takes maps with a graph and returns one number, the mean over the maps.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution

TINY = 1e-12

__all__ = ["inconsistency", "mass_outside", "roughness"]


def __dir__() -> list[str]:
    return sorted(__all__)


def mass_outside(attribution: Attribution, masks: Bool[Tensor, "r height width"]) -> Float[Tensor, ""]:
    """Share of the absolute scores outside of masks: right for the right reasons.

    Parameters
    ----------
    attribution
        Maps with a graph.
    masks
        Where the evidence is, one mask per map, of any size; a patch counts by the share of it that the mask covers.

    Returns
    -------
    Tensor
        From 0 (all mass inside) to 1. A map of zeros counts 0.

    Raises
    ------
    ShapeError
        If the masks are not one per map.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> _ = vit.module.requires_grad_()
    >>> scene = vitreous.scenes.draw("single", seed=0, index=0)
    >>> images = vitreous.scenes.tensor(scene)[None]
    >>> attribution = vitreous.explain(vit, images, method="decompx+plus", differentiable=True)
    >>> loss = vitreous.losses.mass_outside(attribution, torch.ones(1, 112, 112, dtype=torch.bool))
    >>> loss.backward()
    >>> loss.item()
    0.0
    """
    maps = grid_maps(attribution).abs()
    if masks.ndim != 3 or len(masks) != len(maps):
        raise ShapeError(f"masks must be [{len(maps)}, height, width], one per map, not {list(masks.shape)}")
    inside = F.adaptive_avg_pool2d(masks[:, None].to(maps), (maps.shape[-2], maps.shape[-1]))[:, 0]
    outside = (maps * (1 - inside)).sum((1, 2))
    return (outside / maps.sum((1, 2)).clamp_min(TINY)).mean()


def inconsistency(first: Attribution, second: Attribution) -> Float[Tensor, ""]:
    """One minus the cosine between the maps of two versions of each image (augmented, or of two models).

    Parameters
    ----------
    first, second
        Maps of the same shape. Undo a flip or crop before they are compared.

    Returns
    -------
    Tensor
        From 0 (the same up to a positive factor) to 2.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="decompx+plus")
    >>> abs(vitreous.losses.inconsistency(attribution, attribution).item()) < 1e-6  # a map agrees with itself
    True
    """
    maps = [grid_maps(attribution).flatten(1) for attribution in (first, second)]
    if maps[0].shape != maps[1].shape:
        raise ShapeError(f"maps of one shape are compared, not {list(maps[0].shape)} and {list(maps[1].shape)}")
    return (1 - F.cosine_similarity(maps[0], maps[1], dim=1)).mean()


def roughness(attribution: Attribution) -> Float[Tensor, ""]:
    """Total variation: mean absolute difference of neighbouring patches, relative to the mean absolute score.

    Parameters
    ----------
    attribution
        Maps with a graph.

    Returns
    -------
    Tensor
        0 for a constant map.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> vitreous.losses.roughness(vitreous.explain(vit, images, method="decompx+plus")).item() > 0
    True
    """
    maps = grid_maps(attribution)
    steps = maps.diff(dim=1).abs().sum((1, 2)) + maps.diff(dim=2).abs().sum((1, 2))
    count = maps.diff(dim=1)[0].numel() + maps.diff(dim=2)[0].numel()
    return (steps / count / maps.abs().mean((1, 2)).clamp_min(TINY)).mean()


def grid_maps(attribution: Attribution) -> Float[Tensor, "r rows columns"]:
    if attribution.patches is None:
        raise ShapeError(f"{attribution.method!r} has no scores of patches; a loss needs a map on the patch grid")
    return attribution.maps()
