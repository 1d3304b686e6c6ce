"""Perturbation curves: the order of patches or pixels, the levels, and the area under the curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.random_control import generators
from vitreous.methods.regions import SQUARES
from vitreous.metrics.metric_result import Measured
from vitreous.models.random_draws import random_order

TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
TWENTIETHS = tuple(twentieth / 20 for twentieth in range(21))
Order = Literal["descending", "ascending"]
Area = Literal["normalised", "trapezoid", "mean"]
Show = Literal["fraction", "percent", "complement"]

Scores = Float[Tensor, "r n"]
Ranks = Int[Tensor, "r n"]

# ── order ────────────────────────────────────────────────────────────────────────────────────────


def patch_ranks(attribution: Attribution, probe: BlackBoxProbe) -> Ranks:
    """Rank of every patch, 0 for the highest score; see `rank_cells`.

    Raises
    ------
    ModelError
        If the model or the attribution is a black box, which has no patches.
    ShapeError
        If rows or patches of map and model differ.
    """
    if probe.black_box or attribution.patches is None:
        raise ModelError(
            f"metrics by token masking take patches out of the encoder, and {probe.vit.name!r} is treated as a black box that has none; 'insertion', 'deletion' and 'aopc' remove pixels"
        )
    check_rows(attribution, probe)
    if attribution.patches.shape[1] != probe.layout.patches:
        raise ShapeError(
            f"the map has {attribution.patches.shape[1]} patches and {probe.vit.name!r} sees {probe.layout.patches}; it was made for another model or size"
        )
    return rank_cells(attribution.patches, probe)


def rank_cells(scores: Scores, probe: BlackBoxProbe) -> Ranks:
    """Rank of every cell, such as a patch; ties in a random order drawn from the content of the image."""
    return rank_scores(scores, lambda: draw_cell_order(probe, scores.shape[1]))


def pixel_scores(attribution: Attribution, probe: BlackBoxProbe) -> Scores:
    """The map at the size of the images, flattened."""
    check_rows(attribution, probe)
    return attribution.pixels((probe.images.shape[-2], probe.images.shape[-1])).flatten(1)


def pixel_ranks(attribution: Attribution, probe: BlackBoxProbe) -> Ranks:
    """Rank of every pixel, 0 for the highest score; tied pixels are ordered cell by cell."""
    return rank_scores(pixel_scores(attribution, probe), lambda: draw_pixel_order(probe)).int()


def rank_scores(scores: Scores, draw_order: Callable[[], Int[Tensor, "b n"]]) -> Ranks:
    """Ranks by descending score; ties follow `draw_order`, a random order per image that is drawn only if there are ties."""
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    if bool((values[:, 1:] == values[:, :-1]).any()):
        drawn = draw_order()
        first = drawn.repeat_interleave(len(scores) // len(drawn), 0)
        order = first.gather(1, scores.gather(1, first).argsort(dim=-1, descending=True, stable=True))
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def draw_cell_order(probe: BlackBoxProbe, cells: int) -> Int[Tensor, "b cells"]:
    """Random order of the cells of every image, seeded by its content."""
    draws = [random_order(draw, cells) for draw in generators(probe.originals, 0)]
    return torch.stack(draws).to(probe.images.device)


def draw_pixel_order(probe: BlackBoxProbe) -> Int[Tensor, "b n"]:
    """Random order of pixels that completes one cell before the next.

    Cells are the model's patches, or for black boxes at most 14 x 14 rectangles. Pixels removed one by one at random
    would degrade the prediction wherever they lie.
    """
    height, width = probe.images.shape[-2:]
    down, right = probe.layout.patch if not probe.black_box else (-(-height // SQUARES), -(-width // SQUARES))
    rows, columns = -(-height // down), -(-width // right)
    place = torch.arange(height * width, device=probe.images.device)
    cell = (place // width // down) * columns + place % width // right
    turn = draw_cell_order(probe, rows * columns).argsort(dim=-1)
    return (turn[:, cell] * len(place) + place).argsort(dim=-1)


def check_rows(attribution: Attribution, probe: BlackBoxProbe) -> None:
    if len(attribution) != probe.rows:
        raise ShapeError(f"there are {len(attribution)} maps, and the probe asks about {probe.rows} rows")


# ── levels ───────────────────────────────────────────────────────────────────────────────────────


def check_levels(name: str, levels: Any) -> tuple[float, ...]:
    """Validate levels: strictly increasing fractions in [0, 1]; SpecError otherwise."""
    fractions = tuple(levels) if isinstance(levels, tuple | list | range) else (levels,)
    numbers = fractions and all(isinstance(level, int | float) and 0 <= level <= 1 for level in fractions)
    if not numbers or not all(a < b for a, b in pairwise(fractions)):
        raise SpecError(f"{name}={levels!r}; shares must grow and lie between 0 and 1, such as (0.1, 0.5, 0.9)")
    return tuple(float(level) for level in fractions)


Grid = float | int | Sequence[float | int]
Levels = Annotated[Grid, partial(check_levels, "levels")]
Ratios = Annotated[Grid, partial(check_levels, "ratios")]


def count_of(level: float, total: int) -> int:
    """Number of elements in a fraction of `total`, truncated as in published code."""
    return int(level * total)


# ── area ─────────────────────────────────────────────────────────────────────────────────────────


def area_under(curve: Float[Tensor, "r s"], levels: Sequence[float], area: str) -> Float[Tensor, " r"]:
    """Area under every row of the curve.

    "trapezoid": the trapezoidal rule; "normalised": that area divided by the width of the levels; "mean": the mean of
    the points.
    """
    if area == "mean":
        return curve.mean(-1)
    if len(levels) < 2:
        raise SpecError(f"area={area!r} needs at least two levels; one point has area='mean'")
    x = torch.tensor(levels, dtype=torch.float64)
    gaps = x.diff()
    weights = torch.zeros_like(x)
    weights[:-1] += gaps / 2
    weights[1:] += gaps / 2
    weights = weights / gaps.sum() if area == "normalised" else weights
    return (curve * weights.to(curve)).sum(-1)


def convert_scores(scores: Float[Tensor, " r"], show: str) -> Float[Tensor, " r"]:
    """Scores as "fraction", in "percent", or as "complement", 100 − percent."""
    return {"fraction": scores, "percent": 100 * scores, "complement": 100 - 100 * scores}[show]


def summarise_curve(
    curve: Float[Tensor, "r s"],
    levels: Sequence[float],
    area: str = "normalised",
    show: str = "fraction",
    turned: bool = False,
    parts: Mapping[str, Float[Tensor, "r points"]] | None = None,
    **protocol: Any,
) -> Measured:
    """Result of a perturbation metric: the area under its curve.

    Parameters
    ----------
    curve
        One value per row and level.
    levels
        Positions of the points of the curve.
    area
        "normalised", "trapezoid" or "mean"; see `area_under`.
    show
        "fraction", "percent" or "complement" (100 − percent), which reverses the better direction.
    turned
        Whether the better direction is the opposite of the metric's, for example with ascending order.
    parts
        Further curves, reported by their means.
    **protocol
        Further settings to record.

    Returns
    -------
    Measured
    """
    return Measured(
        scores=convert_scores(area_under(curve, levels, area), show),
        curve=curve,
        levels=levels,
        parts={name: part.mean(-1) for name, part in (parts or {}).items()},
        protocol=protocol,
        flipped=turned != (show == "complement"),
    )


def nan_without_order(attribution: Attribution, measured: Measured) -> Measured:
    """The result with scores, curve and parts set to NaN for maps that hold a NaN, which have no order."""
    defined = has_order(attribution)
    return replace(
        measured,
        scores=measured.scores.where(defined, torch.nan),
        curve=None if measured.curve is None else measured.curve.where(defined[:, None], torch.nan),
        parts={name: part.where(defined, torch.nan) for name, part in measured.parts.items()},
    )


def has_order(attribution: Attribution) -> Bool[Tensor, " r"]:
    """Rows whose map has no NaN."""
    return ~attribution.maps().flatten(1).isnan().any(-1)
