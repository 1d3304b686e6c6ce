"""Clutter: drawn objects that carry no evidence for any class."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vitreous.scenes.colour import Palette
from vitreous.scenes.field import box, circle, ellipse, intersection, length, repeated, ring, rod, smooth_union, union
from vitreous.scenes.sprite import Sprite


def pebble(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    flat, x, y, shine = rng.random(4).tolist()
    stone = smooth_union(
        ellipse(s.frame, (-0.1, 0.0), 0.75, 0.45 + 0.2 * flat), circle(s.frame, (0.4 * x, 0.3 * y - 0.1), 0.45), 0.3
    )
    s.solid(stone, c.main)
    for _ in range(3):
        u, v, r = rng.random(3).tolist()
        s.detail(circle(s.frame, (1.2 * u - 0.6, v - 0.5), 0.05 + 0.1 * r), c.second, 0.7)
    s.detail(ellipse(s.frame, (-0.25, -0.2), 0.32, 0.14), c.cream, 0.15 + 0.3 * shine)


def twig(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    bend, fork, side = rng.random(3).tolist()
    knee = (0.1, 0.2 * bend - 0.1)
    tip = (0.3 + 0.3 * fork, 0.35 if side < 0.5 else -0.35)
    stem = union(rod(s.frame, (-0.92, 0.0), knee, 0.08, 0.065), rod(s.frame, knee, (0.92, 0.05), 0.065, 0.03))
    s.solid(union(stem, rod(s.frame, (-0.15, 0.0), tip, 0.05, 0.025)), c.ink)
    s.detail(stem + 0.045, c.main, 0.8)


def straw(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    tube = rod(s.frame, (-0.9, 0.0), (0.9, 0.0), 0.075)
    s.solid(tube, c.cream)
    s.detail(intersection(tube, repeated(s.frame.x + 0.6 * s.frame.y, 0.3) - 0.075), c.main)


def beads(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    for colour in (c.main, c.accent, c.second):
        u, v = (1.1 * rng.random(2) - 0.55).tolist()
        s.solid(circle(s.frame, (u, v), 0.3), colour)
        s.detail(circle(s.frame, (u - 0.09, v - 0.1), 0.08), c.cream, 0.8)


def confetti(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    for colour in (c.main, c.accent, c.cream):
        u, v, angle = (1.4 * rng.random(3) - 0.7).tolist()
        s.solid(box(s.frame.moved(u, v).turned(2 * angle), (0.0, 0.0), (0.28, 0.1)), colour)


def smudge(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    x, y, b = rng.random(3).tolist()
    s.solid(
        smooth_union(
            ellipse(s.frame, (-0.2, 0.0), 0.6, 0.4 + 0.2 * b), circle(s.frame, (0.5 * x, 0.6 * y - 0.3), 0.42), 0.35
        ),
        c.main,
    )


def bokeh(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    s.solid(length(s.frame) - 0.92, c.second)
    s.detail(ring(length(s.frame) - 0.86, 0.06), c.cream)


def streak(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    s.solid(rod(s.frame, (-0.9, 0.0), (0.9, 0.0), 0.11, 0.02), c.cream)


class Litter(NamedTuple):
    """A type of clutter: drawing function, range of radii in pixels, and opacity."""

    draw: Callable[[Sprite, Palette, np.random.Generator], None]
    smallest: float
    largest: float
    opacity: float = 1.0


CLUTTER = {
    "pebble": Litter(pebble, 6, 11),
    "twig": Litter(twig, 12, 20),
    "straw": Litter(straw, 10, 17),
    "beads": Litter(beads, 7, 11),
    "confetti": Litter(confetti, 9, 14),
    "smudge": Litter(smudge, 8, 18, opacity=0.35),
    "bokeh": Litter(bokeh, 6, 16, opacity=0.3),
    "streak": Litter(streak, 12, 30, opacity=0.35),
}
OCCLUDERS = ("pebble", "twig", "straw")
