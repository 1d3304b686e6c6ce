"""Eight classes in four pairs: each pair shares one drawing and differs only in a mark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from vitreous.scenes.colour import Colour, Palette
from vitreous.scenes.field import (
    Coordinates,
    Plane,
    Point,
    box,
    circle,
    convex,
    cut,
    diamond,
    ellipse,
    heart,
    intersection,
    ring,
    rod,
    union,
)
from vitreous.scenes.sprite import Sprite

Drawing = Callable[[Sprite, Palette, np.random.Generator], None]


def bear(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the mouth: smiling or frowning."""
    p, muzzle = s.frame, 0.05 * rng.random()
    m = p.mirrored()
    s.solid(circle(m, (0.58, -0.54), 0.29), c.main)
    s.detail(circle(m, (0.58, -0.54), 0.16), c.accent, 0.8)
    s.solid(ellipse(p, (0.0, 0.08), 0.84, 0.78), c.main)
    s.detail(ellipse(p, (0.0, 0.38), 0.52 + muzzle, 0.4), c.cream)
    s.detail(circle(m, (0.38, -0.16), 0.1), c.ink)
    s.detail(circle(m, (0.35, -0.2), 0.035), c.cream)
    s.detail(ellipse(p, (0.0, 0.1), 0.15, 0.1), c.ink)
    smile = intersection(ring(circle(p, (0.0, 0.2), 0.31), 0.06), 0.36 - p.y)
    frown = intersection(ring(circle(p, (0.0, 0.74), 0.31), 0.06), p.y - 0.58)
    _mark(s, member, smile, frown, c.ink)


def house(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the window: round or square."""
    p, eaves = s.frame, 0.06 * rng.random()
    s.solid(box(p, (0.42, -0.5), (0.12, 0.26)), c.second)
    wall = box(p, (0.0, 0.26), (0.6, 0.48))
    s.solid(wall, c.cream)
    s.detail(intersection(wall, np.abs(p.y - 0.66) - 0.08), c.second, 0.8)
    roof = convex(p, (0.0, -0.94), (0.8 + eaves, -0.12), (-0.8 - eaves, -0.12), soft=0.05)
    s.solid(roof, c.main)
    courses = np.abs(p.y + 0.42) - 0.025
    s.detail(intersection(union(courses, np.abs(p.y + 0.26) - 0.02, np.abs(p.y + 0.6) - 0.02), roof), c.ink, 0.35)
    _mark(s, member, circle(p, (0.0, 0.22), 0.3), box(p, (0.0, 0.22), (0.29, 0.29)), c.ink)
    _mark(s, member, circle(p, (0.0, 0.22), 0.2), panes(p, (0.0, 0.22), 0.2), c.accent)


def panes(p: Coordinates, centre: Point, half: float) -> Plane:
    """Square window with four panes."""
    x, y = p.moved(*centre)
    bars = union(np.abs(x), np.abs(y)) - 0.16 * half
    return cut(box(p, centre, (half, half)), bars)


def card(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the pip: a heart or a diamond."""
    p, width = s.frame, 0.56 + 0.06 * rng.random()
    s.solid(box(p, (0.0, 0.0), (width, 0.8), 0.12), c.cream)
    s.detail(ring(box(p, (0.0, 0.0), (width - 0.1, 0.7), 0.06), 0.025), c.main)
    s.detail(box(p, (0.0, 0.0), (width - 0.1, 0.7), 0.06), c.main, 0.18)
    for y in (-0.58, 0.58):
        s.detail(rod(p, (-0.2, y), (0.2, y), 0.035), c.second)
    _mark(s, member, heart(p, (0.0, 0.02), 0.37), diamond(p, (0.0, 0.0), 0.34, 0.42), c.accent)


def ladybird(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the spots: two or six."""
    p, girth = s.frame, 0.66 + 0.05 * rng.random()
    m = p.mirrored()
    legs = union(*(rod(m, (0.4, y), (0.8, y + bend), 0.045) for y, bend in ((-0.14, -0.22), (0.2, 0.03), (0.5, 0.2))))
    s.solid(union(legs, rod(m, (0.1, -0.7), (0.26, -0.94), 0.035)), c.ink)
    s.solid(circle(p, (0.0, -0.52), 0.33), c.ink)
    s.detail(circle(m, (0.17, -0.62), 0.07), c.cream)
    s.solid(ellipse(p, (0.0, 0.14), girth, 0.7), c.main)
    s.detail(ellipse(p, (0.0, -0.5), 0.42, 0.22), c.ink)
    s.detail(rod(p, (0.0, -0.3), (0.0, 0.9), 0.03), c.ink)
    two = circle(m, (0.33, 0.14), 0.2)
    six = union(circle(m, (0.22, -0.16), 0.105), circle(m, (0.42, 0.14), 0.105), circle(m, (0.22, 0.46), 0.105))
    _mark(s, member, two, six, c.ink)


def _mark(s: Sprite, member: int, first: Plane, second: Plane, colour: Colour) -> None:
    s.mark(*((first, second) if member == 0 else (second, first)), colour)


PAIRED_CLASSES: dict[str, Drawing] = {
    "smiling bear": partial(bear, 0),
    "frowning bear": partial(bear, 1),
    "round-window house": partial(house, 0),
    "square-window house": partial(house, 1),
    "heart card": partial(card, 0),
    "diamond card": partial(card, 1),
    "two-spot ladybird": partial(ladybird, 0),
    "six-spot ladybird": partial(ladybird, 1),
}
