"""Colour scales of the rows of an attribution: one per image, or one per map."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from vitreous.draw.scale import Number, Scale, find_negligible_rows, merge_scales, scale_of
from vitreous.methods.attribution import Attribution


def group_rows_by_image(attribution: Attribution) -> list[int]:
    """Number of every row's image, equal for rows about the same image.

    Rows without any image count as one group: maps on one scale can be compared, whatever they show.
    """
    images, originals = attribution.images, attribution.originals
    numbers: dict[object, int] = {}
    groups = []
    for row in range(len(attribution)):
        if images is not None:
            key: object = images[row].float().cpu().numpy().tobytes()
        elif originals is not None:
            original = originals[row]
            key = (original.size, original.tobytes()) if isinstance(original, Image.Image) else id(original)
        else:
            key = None
        groups.append(numbers.setdefault(key, len(numbers)))
    return groups


def choose_scales(attribution: Attribution, groups: Sequence[int], quantile: Number) -> list[Scale]:
    """Colour scale of every row: that of its group, or a neutral one for a negligible map."""
    negligible = find_negligible_rows(attribution)
    own = [scale_of(attribution[row], quantile=quantile) for row in range(len(attribution))]
    scales = []
    for row, group in enumerate(groups):
        members = [other for other in range(len(own)) if groups[other] == group and not negligible[other]]
        scales.append(own[row] if negligible[row] else merge_scales([own[member] for member in members]))
    return scales


def describe_scales(attribution: Attribution, shared: bool, methods: int) -> str:
    """Footnote on which maps have one colour scale; empty when no image has several maps to compare."""
    groups = group_rows_by_image(attribution)
    if len(set(groups)) == len(groups):
        return ""
    if not shared:
        return "own colour scale per map"
    shared_by = (
        "all maps" if attribution.images is None and attribution.originals is None else "all classes of an image"
    )
    return f"one colour scale for {shared_by}" + (", per method" if methods > 1 else "")
