"""Localisation metrics: overlap of the map with the object's mask or box. NaN for images without an object.

Maps, masks and boxes are compared at the size of the masks, or of the model's input. Masks are 1 on the object, 0 on the
background and −1 where unknown; unknown pixels are left out. A constant map has no pixels above its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int8, Shaped
from torch import Tensor

from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.map_arrays import resize_maps
from vitreous.methods.options import Range, Share
from vitreous.metrics.metric import metric
from vitreous.metrics.metric_result import Figures, Measured, Parts
from vitreous.metrics.ranks import PerRow, average_precision

Masks = Shaped[Tensor, "r H W"]  # 1 object, 0 background, −1 ignored; or booleans
Boxes = Sequence[Shaped[Tensor, "_ 4"] | None]  # None: not annotated
Interpolation = Literal["nearest-exact", "nearest", "bilinear", "bicubic"]

FACTS: dict[str, Any] = {
    "family": "localisation",
    "higher_is_better": True,
    "bounds": (0, 1),
    "affine_invariant": True,
}
MASS_FACTS: dict[str, Any] = {**FACTS, "affine_invariant": False}

ROUNDING = 1e-14  # relative to the peak: rounding error of interpolating equal scores


# ── map, masks and boxes at one size ─────────────────────────────────────────────────────────────


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
    if len(objects) != len(attribution):
        raise ShapeError(f"there are {len(attribution)} maps and {len(objects)} masks")
    pixels = resize_map(attribution, (objects.shape[-2], objects.shape[-1]), interpolation)
    objects = objects.to(pixels.device)
    counted = torch.ones_like(objects, dtype=torch.bool) if ignored == "background" else objects >= 0
    return FramedMap(pixels, objects == 1, counted)


def resize_map(attribution: Attribution, size: tuple[int, int], interpolation: str) -> Float[Tensor, "r H W"]:
    """The pixel map if the method has one, else the patch grid, resized in float64; constant maps stay constant."""
    source = attribution.native_maps.double()
    if tuple(source.shape[-2:]) == tuple(size):
        return source
    first = source[:, :1, :1]
    constant = (source == first).flatten(1).all(-1)[:, None, None]
    return torch.where(constant, first, resize_maps(source, size, interpolation))


def frame_annotation(
    attribution: Attribution, objects: Masks | None, boxes: Boxes | None, of: str, interpolation: str
) -> FramedMap:
    """FramedMap of the map with masks or boxes as the object; "auto" prefers masks if they are given."""
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


# ── segmentation: the map, thresholded at its mean, as a mask ────────────────────────────────────


def pool_accuracy(parts: Parts) -> Figures:
    """Correct pixels of all images divided by labelled pixels of all images."""
    return divide_counts(np.nansum(parts["correct"], -1), np.nansum(parts["labelled"], -1))


def pool_ious(parts: Parts) -> Figures:
    """Mean of the IoU of object and background, each pooled over images."""
    background, inside = (
        divide_counts(np.nansum(parts[f"intersection_{side}"], -1), np.nansum(parts[f"union_{side}"], -1))
        for side in ("background", "object")
    )
    return (background + inside) / 2


def divide_counts(part: Figures, whole: Figures) -> Figures:
    with np.errstate(invalid="ignore"):
        return part / whole


def count_pixels(frame: FramedMap, *masks: Tensor) -> list[PerRow]:
    """Number of counted pixels in each mask; NaN for rows without an object."""
    sums = ((mask & frame.counted).flatten(1).sum(-1).double() for mask in masks)
    return [count.where(frame.defined, torch.nan) for count in sums]


@metric(
    **FACTS,
    reduce=pool_accuracy,
    paper="chefer2021transformer",
    formula="Σ [S > mean S] = mask / Σ labelled, pooled over images",
    aliases=("pixacc",),
)
def pixel_accuracy(attribution: Attribution, objects: Masks, interpolation: Interpolation = "bilinear") -> Measured:
    """Share of pixels that the map, thresholded at its mean, assigns correctly to object or background.

    A score is of one image; the value of a dataset pools pixels over its images. A constant map marks nothing.
    """
    frame = frame_map(attribution, objects, interpolation)
    everything = torch.ones_like(frame.inside)
    correct, labelled = count_pixels(frame, frame.marked == frame.inside, everything)
    return Measured(correct / labelled, parts={"correct": correct, "labelled": labelled})


@metric(
    **FACTS,
    reduce=pool_ious,
    paper="chefer2021transformer",
    formula="½ (IoU of the object + IoU of the background), intersections and unions pooled over images",
)
def miou(attribution: Attribution, objects: Masks, interpolation: Interpolation = "bilinear") -> Measured:
    """Mean intersection over union of object and background, the map thresholded at its mean."""
    frame = frame_map(attribution, objects, interpolation)
    inside, marked = frame.inside, frame.marked
    names = ("intersection_background", "union_background", "intersection_object", "union_object")
    pixel_counts = count_pixels(frame, ~inside & ~marked, ~(inside & marked), inside & marked, inside | marked)
    parts: dict[str, PerRow] = dict(zip(names, pixel_counts, strict=True))
    return Measured((pixel_counts[0] / pixel_counts[1] + pixel_counts[2] / pixel_counts[3]) / 2, parts=parts)


def f_score(right: Tensor, marked: Tensor, inside: Tensor) -> Tensor:
    """Harmonic mean of precision and recall from pixel counts; 0 if no pixel is correct."""
    return 2 * right / (marked + inside).clamp(min=1)


@metric(**FACTS, formula="2 |marked ∩ object| / (|marked| + |object|)", aliases=("dice",))
def f1(attribution: Attribution, objects: Masks, interpolation: Interpolation = "bilinear") -> PerRow:
    """F1 of the map, thresholded at its mean, over the whole image."""
    frame = frame_map(attribution, objects, interpolation)
    return f_score(*count_pixels(frame, frame.marked & frame.inside, frame.marked, frame.inside))


@metric(
    **FACTS,
    paper="chefer2021transformer",
    formula="mean over pixel rows of the row's F1, 0 where it has neither object nor mark",
)
def f1_rows(attribution: Attribution, objects: Masks, interpolation: Interpolation = "bilinear") -> PerRow:
    """F1 of every pixel row, averaged: what the published evaluation prints as mF1.

    It falls short of 1 also for a perfect map: rows without any object count as 0.
    """
    frame = frame_map(attribution, objects, interpolation)
    masks = (frame.marked & frame.inside, frame.marked, frame.inside)
    rows = f_score(*((mask & frame.counted).sum(-1).double() for mask in masks))
    with_pixels = frame.counted.any(-1)
    return ((rows * with_pixels).sum(-1) / with_pixels.sum(-1)).where(frame.defined, torch.nan)


# ── ranking: all thresholds ──────────────────────────────────────────────────────────────────────


@metric(
    **FACTS,
    paper="chefer2021transformer",
    formula="AP of [1 − S, S] against [background, object], S between 0 and 1: 2·H·W samples",
)
def map_two_channel(attribution: Attribution, objects: Masks, interpolation: Interpolation = "bilinear") -> PerRow:
    """Average precision over two channels, object and background, as one list.

    Not the average precision of the object: the background's easy pixels count too. A constant map scores ½.
    """
    frame = frame_map(attribution, objects, interpolation)
    constant = (frame.normalised == 0).all(-1, keepdim=True)
    scores = torch.cat([(1 - frame.normalised).where(~constant, 0.0), frame.normalised], -1)
    inside, counted = frame.inside.flatten(1), frame.counted.flatten(1)
    precision = average_precision(scores, torch.cat([~inside, inside], -1), torch.cat([counted, counted], -1))
    return precision.where(frame.defined, torch.nan)


@metric(
    **FACTS,
    paper="mehri2024skipplus",
    formula="Σ (R_n − R_{n−1}) P_n over distinct scores",
    presets={
        "skipplus": {"interpolation": "nearest-exact", "ignored": "background"},
        "skipplus-released": {"interpolation": "bicubic", "ignored": "background"},
    },
    aliases=("average_precision",),
)
def ap(
    attribution: Attribution,
    objects: Masks,
    interpolation: Interpolation = "nearest-exact",
    ignored: Literal["skip", "background"] = "skip",
) -> PerRow:
    """Average precision of the object's pixels: the area under precision over recall.

    A constant map scores the object's share of the image. `ignored`: pixels of −1 are skipped, or count as "background".
    """
    frame = frame_map(attribution, objects, interpolation, ignored)
    precision = average_precision(frame.scores, frame.inside.flatten(1), frame.counted.flatten(1))
    return precision.where(frame.defined, torch.nan)


# ── pointing ─────────────────────────────────────────────────────────────────────────────────────


def mask_undefined(frame: FramedMap, max_coverage: float | None, missing: str, scores: PerRow) -> PerRow:
    """Set scores of invalid rows to NaN: NaN in the map, no counted pixels, or coverage of at least `max_coverage`.

    Rows without an object become NaN, or 0 with `missing="miss"`.
    """
    inside, counted = (frame.inside & frame.counted).flatten(1), frame.counted.flatten(1).any(-1)
    has_object = inside.any(-1)
    scores = scores.where(has_object, 0.0 if missing == "miss" else torch.nan).where(
        frame.has_scores & counted, torch.nan
    )
    if max_coverage is None:
        return scores
    coverage = inside.sum(-1) / frame.counted.flatten(1).sum(-1)
    return scores.where(coverage < max_coverage, torch.nan)


@metric(
    **FACTS,
    paper="zhang2018top",
    formula="[arg max S ∈ object], peaks of equal height drawn evenly",
    presets={
        "classic": {"tolerance": 15},
        "tis": {"of": "boxes", "max_coverage": 0.5, "missing": "miss", "ties": "first"},
    },
)
def pointing_game(
    attribution: Attribution,
    objects: Masks | None = None,
    boxes: Boxes | None = None,
    of: Literal["auto", "objects", "boxes"] = "auto",
    tolerance: Annotated[int, Range(0, 65_536)] = 0,
    max_coverage: Share | None = None,
    missing: Literal["nan", "miss"] = "nan",
    ties: Literal["even", "first"] = "even",
    interpolation: Interpolation = "bilinear",
) -> PerRow:
    """Probability that the map's maximum lies on the object, or within `tolerance` pixels of it.

    Needs objects or boxes (`of`: which, if both are there). `max_coverage`: images whose object covers as much or more are
    left out. `missing="miss"`: an image whose object was cropped away counts as missed. `ties="first"`: the first of
    several peaks instead of the share of them on the object.
    """
    frame = frame_annotation(attribution, objects, boxes, of, interpolation)
    heights = frame.scores.masked_fill(~frame.counted.flatten(1), -torch.inf)
    if ties == "first":
        peak = torch.zeros_like(heights, dtype=torch.bool).scatter_(-1, heights.argmax(-1, keepdim=True), True)
    else:
        highest = heights.amax(-1, keepdim=True)
        peak = heights >= highest - ROUNDING * highest.abs()
    near = dilate_masks(frame.inside & frame.counted, tolerance).flatten(1)
    hit = (peak & near).sum(-1).double() / peak.sum(-1)
    return mask_undefined(frame, max_coverage, missing, hit)


@metric(
    **MASS_FACTS,
    paper="wang2020score",
    formula="Σ_object S⁺ / Σ S⁺",
    presets={"tis": {"of": "boxes", "part": "abs", "max_coverage": 0.5, "missing": "miss"}},
)
def energy_pointing(
    attribution: Attribution,
    objects: Masks | None = None,
    boxes: Boxes | None = None,
    of: Literal["auto", "objects", "boxes"] = "auto",
    part: Literal["positive", "abs"] = "positive",
    max_coverage: Share | None = None,
    missing: Literal["nan", "miss"] = "nan",
    interpolation: Interpolation = "bilinear",
) -> PerRow:
    """Share of the map's mass that lies on the object; NaN where it has none.

    `part`: its "positive" mass, or with "abs" also the negative. The rest as in `pointing_game`.
    """
    frame = frame_annotation(attribution, objects, boxes, of, interpolation)
    mass: Float[Tensor, "r n"] = frame.scores.clamp(min=0) if part == "positive" else frame.scores.abs()
    mass = mass * frame.counted.flatten(1)
    share = (mass * frame.inside.flatten(1)).sum(-1) / mass.sum(-1)
    return mask_undefined(frame, max_coverage, missing, share)
