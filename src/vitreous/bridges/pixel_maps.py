"""Maps at the resolution of the model's input whose sums are those of the patches."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.methods.attribution import Attribution


def spread_evenly(attribution: Attribution) -> Float[Tensor, "r H W"]:
    """Scores of the pixels: those of a pixel method, else every patch's score divided evenly among its pixels."""
    if attribution.native_pixels is not None:
        return attribution.native_pixels
    height, width = attribution.layout.patch
    maps = attribution.maps() / (height * width)
    return torch.repeat_interleave(torch.repeat_interleave(maps, height, -2), width, -1)
