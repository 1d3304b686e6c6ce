"""Maps, masks and boxes resized to a common frame at the model's input size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8, Shaped
from torch import Tensor

from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import check_choice

Masks = Shaped[Tensor, "r H W"]  # 1 object, 0 background, −1 ignored; or booleans
Boxes = Sequence[Shaped[Tensor, "_ 4"] | None]  # None: not annotated
PerRow = Float[Tensor, " r"]
Interpolation = Literal["nearest-exact", "nearest", "bilinear", "bicubic"]


@dataclass(frozen=True, eq=False)
class FramedMap:
    """A map and the mask of the object at the same size."""

    map: Float[Tensor, "r H W"]  # float64, since scores are compared exactly
    inside: Bool[Tensor, "r H W"]
    counted: Bool[Tensor, "r H W"]

    @property
    def scores(self) -> Float[Tensor, "r n"]:
        return self.map.flatten(1)

    @cached_property
    def defined(self) -> Bool[Tensor, " r"]:
        """Rows with an object and a map without NaN."""
        return self.inside.flatten(1).any(-1) & self.has_scores

    @property
    def has_scores(self) -> Bool[Tensor, " r"]:
        """Rows whose map has no NaN."""
        return ~self.scores.isnan().any(-1)

    @cached_property
    def normalised(self) -> Float[Tensor, "r n"]:
        """The map scaled to [0, 1]; a constant map becomes 0."""
        low, high = self.scores.amin(-1, keepdim=True), self.scores.amax(-1, keepdim=True)
        return ((self.scores - low) / (high - low)).where(high > low, 0.0)

    @cached_property
    def marked(self) -> Bool[Tensor, "r H W"]:
        """Pixels above the mean of the map; none if it is constant."""
        return (self.normalised > self.normalised.mean(-1, keepdim=True)).view_as(self.inside)


def frame_map(
    attribution: Attribution, objects: Masks, interpolation: str = "bilinear", ignored: str = "skip"
) -> FramedMap:
    """Resize the map to the size of the masks.

    `ignored`: pixels of −1 are left out ("skip") or count as background ("background").
    """
    check_choice("ignored", ignored, ("skip", "background"))
    if len(objects) != len(attribution):
        raise ShapeError(f"there are {len(attribution)} maps and {len(objects)} masks")
    pixels = resize_map(attribution, (objects.shape[-2], objects.shape[-1]), interpolation)
    objects = objects.to(pixels.device)
    counted = torch.ones_like(objects, dtype=torch.bool) if ignored == "background" else objects >= 0
    return FramedMap(pixels, objects == 1, counted)


def resize_map(attribution: Attribution, size: tuple[int, int], interpolation: str) -> Float[Tensor, "r H W"]:
    """The pixel map if the method has one, else the patch grid, resized in float64; constant maps stay constant."""
    check_choice("interpolation", interpolation, get_args(Interpolation))
    source = attribution.native_maps.double()
    if tuple(source.shape[-2:]) == tuple(size):
        return source
    corners = False if interpolation in ("bilinear", "bicubic") else None
    resized = F.interpolate(source[:, None], size=tuple(size), mode=interpolation, align_corners=corners)[:, 0]
    first = source[:, :1, :1]
    return torch.where((source == first).flatten(1).all(-1)[:, None, None], first, resized)


def frame_annotation(
    attribution: Attribution, objects: Masks | None, boxes: Boxes | None, of: str, interpolation: str
) -> FramedMap:
    """FramedMap of the map with masks or boxes as the object; "auto" prefers masks if they are given."""
    check_choice("of", of, ("auto", "objects", "boxes"))
    if objects is not None and of != "boxes":
        return frame_map(attribution, objects, interpolation)
    if boxes is None or of == "objects":
        needed = {"auto": "objects=… or boxes=…", "objects": "objects=…", "boxes": "boxes=…"}[of]
        raise SpecError(f"there is nothing to point at; give {needed}")
    if len(boxes) != len(attribution):
        raise ShapeError(f"there are {len(attribution)} maps and boxes of {len(boxes)} images")
    return frame_map(
        attribution, draw_boxes(boxes, attribution.layout.size).to(attribution.targets.device), interpolation
    )


def draw_boxes(boxes: Boxes, size: tuple[int, int]) -> Int8[Tensor, "r H W"]:
    """Masks of half-open boxes x0 y0 x1 y1, truncated to whole pixels; rows without annotation (None) are all −1."""
    mask = torch.zeros(len(boxes), *size, dtype=torch.int8)
    for row, several in enumerate(boxes):
        if several is None:
            mask[row] = -1
            continue
        for x0, y0, x1, y1 in several.reshape(-1, 4).long().clamp(min=0).tolist():
            mask[row, y0:y1, x0:x1] = 1
    return mask


def dilate_masks(masks: Bool[Tensor, "r H W"], radius: int) -> Bool[Tensor, "r H W"]:
    """Dilate the masks by a disc of `radius` pixels."""
    if radius <= 0:
        return masks
    step = torch.arange(-radius, radius + 1, device=masks.device)
    disc = (step[:, None] ** 2 + step**2 <= radius**2).float()
    return F.conv2d(masks[:, None].float(), disc[None, None], padding=radius)[:, 0] > 0.5
