"""The shortcut: a small stamp of dots in a corner, one pattern for each class, that has nothing to do with the thing itself."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.scenes.colour import oklch
from vitreous.scenes.field import box, circle, union
from vitreous.scenes.sprite import Pose, Sprite

RADIUS = 7.5


@dataclass(frozen=True, slots=True)
class Stamp:
    """Which class the stamp names, where it is, and whether it is dark on light."""

    label: int
    x: float
    y: float
    dark: bool


def _codes() -> tuple[int, ...]:
    """Patterns of nine dots, each at least three dots from every other, none nearly empty or nearly full."""
    chosen: list[int] = []
    for code in range(1 << 9):
        if 3 <= code.bit_count() <= 6 and all((code ^ other).bit_count() >= 3 for other in chosen):
            chosen.append(code)
    return tuple(chosen)


CODES = _codes()


def press(stamp: Stamp) -> Sprite:
    """The stamp as a sprite: a plate with the dots of its class."""
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
