"""In which order patches or pixels go, how far, and what area lies under the curve that comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.controls import generators
from vitreous.methods.options import choice
from vitreous.metrics.metric import Measured

TENTHS = tuple(tenth / 10 for tenth in range(1, 10))
TWENTIETHS = tuple(twentieth / 20 for twentieth in range(21))
Order = Literal["descending", "ascending"]
Area = Literal["normalised", "trapezoid", "mean"]
Show = Literal["fraction", "percent", "complement"]
ORDERS, AREAS, SHOWS = get_args(Order), get_args(Area), get_args(Show)

Scores = Float[Tensor, "r n"]
Ranks = Int[Tensor, "r n"]

# ── the order ────────────────────────────────────────────────────────────────────────────────────


def patch_ranks(attribution: Attribution, probe: Probe) -> Ranks:
    """0 for the patch of highest score, 1 for the next, …"""
    if probe.black_box or attribution.patches is None:
        raise ModelError(
            f"metrics by token masking take patches out of the encoder, and {probe.vit.name!r} is treated as a black box that has none; 'insertion', 'deletion' and 'aopc' remove pixels"
        )
    same_rows(attribution, probe)
    if attribution.patches.shape[1] != probe.layout.patches:
        raise ShapeError(
            f"the map has {attribution.patches.shape[1]} patches and {probe.vit.name!r} sees {probe.layout.patches}; it was made for another model or size"
        )
    return ranked(attribution.patches, lambda: per_row(drawn_cells(probe, probe.layout.patches), probe))


def pixel_scores(attribution: Attribution, probe: Probe) -> Scores:
    """The map at the size of the pictures, flat."""
    same_rows(attribution, probe)
    return attribution.pixels((probe.images.shape[-2], probe.images.shape[-1])).flatten(1)


def pixel_ranks(attribution: Attribution, probe: Probe) -> Ranks:
    """0 for the pixel of highest score; pixels of equal score go cell by cell."""
    return ranked(pixel_scores(attribution, probe), lambda: per_row(drawn_pixels(probe), probe)).int()


def ranked(scores: Scores, drawn: Callable[[], Int[Tensor, "r n"]]) -> Ranks:
    """Places in the order of descending score; equal scores in the order `drawn`, which is asked for where there are any."""
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    if bool((values[:, 1:] == values[:, :-1]).any()):
        first = drawn()
        order = first.gather(1, scores.gather(1, first).argsort(dim=-1, descending=True, stable=True))
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def drawn_cells(probe: Probe, cells: int) -> Int[Tensor, "b cells"]:
    """A random order of every picture's cells, drawn from its content."""
    draws = [torch.randperm(cells, generator=draw) for draw in generators(probe.originals, 0)]
    return torch.stack(draws).to(probe.images.device)


def drawn_pixels(probe: Probe) -> Int[Tensor, "b n"]:
    """The pixels of one cell after the other: scattered at random they would hurt the model whatever they hit."""
    height, width = probe.images.shape[-2:]
    down, right = probe.layout.patch if not probe.black_box else (-(-height // 14), -(-width // 14))
    rows, columns = -(-height // down), -(-width // right)
    place = torch.arange(height * width, device=probe.images.device)
    cell = (place // width // down) * columns + place % width // right
    turn = drawn_cells(probe, rows * columns).argsort(dim=-1)
    return (turn[:, cell] * len(place) + place).argsort(dim=-1)


def per_row(drawn: Int[Tensor, "b n"], probe: Probe) -> Int[Tensor, "r n"]:
    return drawn.repeat_interleave(probe.targets_per_image, 0)


def same_rows(attribution: Attribution, probe: Probe) -> None:
    if len(attribution) != probe.rows:
        raise ShapeError(f"there are {len(attribution)} maps, and the probe asks about {probe.rows} rows")


# ── how far ──────────────────────────────────────────────────────────────────────────────────────


def checked_levels(name: str, levels: Any) -> tuple[float, ...]:
    """Shares that grow from 0 at the least to 1 at the most."""
    given = tuple(levels) if isinstance(levels, tuple | list | range) else (levels,)
    numbers = given and all(isinstance(level, int | float) and 0 <= level <= 1 for level in given)
    if not numbers or not all(a < b for a, b in pairwise(given)):
        raise SpecError(f"{name}={levels!r}; shares must grow and lie between 0 and 1, such as (0.1, 0.5, 0.9)")
    return tuple(float(level) for level in given)


Grid = float | int | Sequence[float | int]
Levels = Annotated[Grid, partial(checked_levels, "levels")]
Ratios = Annotated[Grid, partial(checked_levels, "ratios")]


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number that is large enough."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{name}={value!r}; a whole number from {least} on would work")
    return value


def count_of(level: float, total: int) -> int:
    """How many of `total` a share is, cut off as published code cuts it."""
    return int(level * total)


# ── what comes of it ─────────────────────────────────────────────────────────────────────────────


def area_under(curve: Float[Tensor, "r s"], levels: Sequence[float], area: str) -> Float[Tensor, " r"]:
    """`normalised`: trapezoids over the width; `trapezoid`: as they are; `mean`: of the points."""
    choice("area", area, AREAS)
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


def shown_as(scores: Float[Tensor, " r"], show: str) -> Float[Tensor, " r"]:
    """As a fraction, in percent, or as what is missing to 100 percent."""
    choice("show", show, SHOWS)
    return scores if show == "fraction" else 100 * scores if show == "percent" else 100 - 100 * scores


def summed_up(
    attribution: Attribution,
    curve: Float[Tensor, "r s"],
    levels: Sequence[float],
    area: str = "normalised",
    show: str = "fraction",
    turned: bool = False,
    parts: Mapping[str, Float[Tensor, "r points"]] | None = None,
    **protocol: Any,
) -> Measured:
    """The area under a curve, as it is to be shown; `turned` says that the better direction is the other one.

    `parts` are more curves, of which the mean is taken. Maps with a NaN in them have no order: NaN.
    """
    known = has_order(attribution)
    scores = shown_as(area_under(curve, levels, area), show)
    means = {name: part.mean(-1).where(known, torch.nan) for name, part in (parts or {}).items()}
    return Measured(
        scores=scores.where(known, torch.nan),
        curve=curve.where(known[:, None], torch.nan),
        levels=levels,
        parts=means,
        protocol=protocol,
        flipped=turned != (show == "complement"),
    )


def has_order(attribution: Attribution) -> Bool[Tensor, " r"]:
    return ~attribution.maps().flatten(1).isnan().any(-1)
