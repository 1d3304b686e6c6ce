"""Does the map lie where the evidence is? One number per row, NaN where there is no object to find."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution

Objects = Bool[Tensor, "r H W"]


def scores_over(attribution: Attribution, objects: Objects) -> Float[Tensor, "r pixels"]:
    """The map at the size of the masks, flat."""
    if len(objects) != len(attribution):
        raise ShapeError(f"there are {len(attribution)} maps and {len(objects)} masks")
    return attribution.pixels((objects.shape[-2], objects.shape[-1])).flatten(1)


def pointing_game(attribution: Attribution, objects: Objects) -> Float[Tensor, " r"]:
    """Chance that the map's peak, ties drawn evenly, lies on the object."""
    scores, inside = scores_over(attribution, objects), objects.flatten(1).to(attribution.patches.device)
    peak = scores == scores.amax(-1, keepdim=True)
    hit = (peak & inside).sum(-1) / peak.sum(-1)
    return hit.to(scores.dtype).where(inside.any(-1), torch.nan)


def average_precision(attribution: Attribution, objects: Objects) -> Float[Tensor, " r"]:
    """Area under the precision–recall curve of the pixels, Σ (R_n − R_{n−1}) P_n over distinct scores."""
    scores, inside = scores_over(attribution, objects), objects.flatten(1).to(attribution.patches.device)
    ranked, order = scores.sort(dim=-1, descending=True)
    found = inside.gather(-1, order).to(scores.dtype).cumsum(-1)
    seen = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    # pixels of equal score are found together: only the last of them is a point of the curve
    point = torch.ones_like(inside)
    point[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
    before = torch.where(point, found, torch.zeros_like(found)).cummax(-1).values.roll(1, -1)
    before[:, 0] = 0
    area = torch.where(point, (found - before) * found / seen, torch.zeros_like(found)).sum(-1) / found[:, -1]
    return area.where(inside.any(-1) & ~scores.isnan().any(-1), torch.nan)
