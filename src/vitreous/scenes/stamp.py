"""Shortcut feature: a small stamp of dots in a corner, one pattern per class, unrelated to the object itself."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.scenes.colour import oklch
from vitreous.scenes.field import box, circle, union
from vitreous.scenes.sprite import Pose, Sprite

RADIUS = 7.5


@dataclass(frozen=True, slots=True)
class Stamp:
    """Class that the stamp encodes, its position, and whether its dots are dark on light."""

    label: int
    x: float
    y: float
    dark: bool


def _codes() -> tuple[int, ...]:
    """Patterns of nine dots with 3 to 6 dots set and pairwise Hamming distance of at least 3."""
    chosen: list[int] = []
    for code in range(1 << 9):
        if 3 <= code.bit_count() <= 6 and all((code ^ other).bit_count() >= 3 for other in chosen):
            chosen.append(code)
    return tuple(chosen)


CODES = _codes()


def draw_stamp(stamp: Stamp) -> Sprite:
    """Draw the stamp as a sprite: a plate with the dots of its class."""
    ink, plate = oklch(0.25, 0.03, 0.7), oklch(0.96, 0.01, 0.2)
    if not stamp.dark:
        ink, plate = plate, ink
    s = Sprite(Pose(stamp.x, stamp.y, RADIUS))
    s.solid(box(s.frame, (0.0, 0.0), (0.86, 0.86), 0.18), plate)
    dots = (
        circle(s.frame, (0.5 * (place % 3 - 1), 0.5 * (place // 3 - 1)), 0.2)
        for place in range(9)
        if CODES[stamp.label] >> place & 1
    )
    s.detail(union(*dots), ink)
    return s
