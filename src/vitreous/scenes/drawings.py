"""Everything that is drawn on a surface: objects of all classes, clutter, and the stamp.

Objects are drawn inside the unit disc in any colours. Every drawing function takes a sprite, a palette and a random
generator for small individual differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from vitreous.scenes.colour import Colour, Palette, oklch
from vitreous.scenes.field import Coordinates, Plane, Point, cut, intersection, repeated, ring, smooth_union, union
from vitreous.scenes.sprite import Pose, Sprite

Drawing = Callable[[Sprite, Palette, np.random.Generator], None]
DOWN = math.pi / 2
STAMP_RADIUS = 7.5
_PIXEL = 1 / 22  # about one pixel for an object of typical size: the thinnest line


# ── twelve classes that differ in shape and texture ─────────────────────────────────────────────────


def fish(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.4 + 0.08 * rng.random()
    tail = cut(p.convex((0.32, 0.0), (0.96, -0.5), (0.96, 0.5), soft=0.06), p.circle((1.13, 0.0), 0.34))
    s.solid(tail, c.second)
    s.solid(intersection(p.circle((0.0, -0.18), 0.5), p.convex((-0.4, -0.3), (0.34, -0.72), (0.42, 0.0))), c.second)
    body = p.ellipse((-0.18, 0.0), 0.72, height)
    s.solid(body, c.main)
    s.detail(intersection(body, p.circle((-0.1, 0.75), 0.62)), c.cream, 0.55)
    cell = Coordinates(p.y, p.x).lattice(0.23)
    scales = intersection(ring(cell.circle((0.0, -0.03), 0.13), 0.75 * _PIXEL), -cell.y)
    s.detail(intersection(scales, p.box((0.2, 0.0), (0.36, 0.5))), c.second, 0.9)
    s.detail(
        intersection(ring(p.circle((-0.72, 0.0), 0.44), 0.8 * _PIXEL), p.half_plane((-0.6, 0.0), math.pi)), c.ink, 0.7
    )
    s.solid(p.rod((-0.05, 0.12), (0.16, 0.26), 0.1, 0.05), c.second)
    s.detail(p.circle((-0.58, -0.1), 0.12), c.cream)
    s.detail(p.circle((-0.6, -0.1), 0.065), c.ink)


def leaf(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, width = s.frame, 0.42 + 0.08 * rng.random()
    s.solid(p.rod((0.6, 0.0), (0.97, 0.06), 0.045, 0.035), c.ink)
    blade = p.moved(-0.12, 0.0).vesica(0.84, width)
    teeth = 0.035 - 0.5 * repeated(p.x - 0.5 * np.abs(p.y), 0.14)
    s.solid(blade + teeth, c.main)
    s.detail(intersection(blade, p.y), c.second, 0.4)
    veins = repeated(p.x + 0.85 * np.abs(p.y), 0.25) * 0.76 - 0.65 * _PIXEL
    s.detail(intersection(veins, blade + 0.08), c.cream, 0.75)
    s.detail(p.rod((-0.9, 0.0), (0.75, 0.0), 0.6 * _PIXEL, 1.1 * _PIXEL), c.cream)


def mug(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.56 + 0.08 * rng.random()
    s.solid(ring(p.ellipse((0.46, 0.05), 0.32, 0.3), 0.085), c.second)
    wall = p.box((-0.15, 0.06), (0.56, height), 0.18)
    s.solid(wall, c.main)
    drip = 0.05 + 0.2 * np.abs(1 - 2 * repeated(p.x / 0.42, 1.0))
    s.detail(intersection(wall, p.y + height - 0.26 - drip), c.second)
    s.solid(p.ellipse((-0.15, 0.06 - height), 0.56, 0.17), c.cream)
    s.detail(p.ellipse((-0.15, 0.07 - height), 0.46, 0.115), c.ink)


def key(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, notch = s.frame, 0.16 + 0.08 * rng.random()
    shaft = p.rod((-0.3, 0.0), (0.88, 0.0), 0.085)
    bits = union(p.box((0.8, notch), (0.07, notch)), p.box((0.58, 0.14), (0.07, 0.14)))
    bow = union(*(p.circle(centre, 0.24) for centre in ((-0.75, 0.0), (-0.48, -0.26), (-0.48, 0.26))))
    holes = union(*(p.circle(centre, 0.11) for centre in ((-0.75, 0.0), (-0.48, -0.26), (-0.48, 0.26))))
    s.solid(union(shaft, bits), c.main)
    s.solid(cut(bow, holes), c.main)
    s.detail(ring(holes - 0.05, 0.6 * _PIXEL), c.second)
    s.detail(p.box((-0.12, 0.0), (0.06, 0.2)), c.second)
    s.detail(p.rod((0.0, -0.03), (0.86, -0.03), 0.5 * _PIXEL), c.cream, 0.8)


def mushroom(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, flat = s.frame, 0.72 + 0.1 * rng.random()
    s.solid(p.rod((0.0, 0.05), (0.0, 0.72), 0.19, 0.25), c.cream)
    s.detail(p.ellipse((0.0, 0.2), 0.36, 0.1), c.ink, 0.35)
    cap = intersection(p.ellipse((0.0, 0.12), 0.9, flat), p.circle((0.0, -1.35), 1.52))
    s.solid(cap, c.main)
    spots = (
        (-0.46, -0.13, 0.13),
        (-0.02, -0.3, 0.17),
        (0.42, -0.18, 0.12),
        (0.17, 0.02, 0.08),
        (-0.2, 0.03, 0.07),
        (0.66, 0.0, 0.06),
    )
    s.detail(union(*(p.circle((x, y), radius) for x, y, radius in spots)), c.cream)


def starfish(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, thick = s.frame.with_fold(5), 0.27 + 0.06 * rng.random()
    s.solid(smooth_union(p.rod((0.0, 0.0), (0.86, 0.0), thick, 0.1), p.circle((0.0, 0.0), 0.34), 0.2), c.main)
    s.detail(p.rod((0.2, 0.0), (0.8, 0.0), 0.11, 0.04), c.second, 0.8)
    bumps = union(*(p.circle((x, 0.0), r) for x, r in ((0.24, 0.06), (0.44, 0.05), (0.62, 0.042), (0.77, 0.034))))
    s.detail(bumps, c.cream)
    s.detail(p.circle((0.0, 0.0), 0.1), c.cream)


def gear(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p = s.frame.with_fold(int(rng.integers(8, 11)))
    teeth = p.convex((0.5, -0.17), (0.95, -0.11), (0.95, 0.11), (0.5, 0.17), soft=0.05)
    disc = p.length()
    s.solid(cut(union(teeth, disc - 0.72), disc - 0.24), c.main)
    s.detail(ring(disc - 0.46, 0.13), c.second, 0.85)
    s.detail(ring(disc - 0.3, 0.5 * _PIXEL), c.ink, 0.6)
    s.detail(p.circle((0.46, 0.0), 0.07), c.ink, 0.85)


def umbrella(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, hook = s.frame, 0.13 + 0.04 * rng.random()
    s.solid(p.rod((0.0, -0.92), (0.0, 0.72), 0.045), c.ink)
    s.solid(intersection(ring(p.circle((hook, 0.74), hook), 0.055), 0.74 - p.y), c.ink)
    scallops = Coordinates(repeated(p.x, 0.43), p.y).circle((0.0, 0.2), 0.23)
    canopy = cut(intersection(p.ellipse((0.0, 0.12), 0.88, 0.9), p.y - 0.12), scallops)
    s.solid(canopy, c.main)
    outer, inner = (p.ellipse((0.0, 0.12), width, 0.9) for width in (0.645, 0.215))
    s.detail(intersection(outer, canopy), c.cream)
    s.detail(intersection(inner, canopy), c.main)
    s.detail(intersection(union(ring(outer, 0.4 * _PIXEL), ring(inner, 0.4 * _PIXEL)), canopy), c.ink, 0.6)


def butterfly(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, spread = s.frame.mirrored(), 0.3 + 0.08 * rng.random()
    upper = p.moved(0.47, -0.32).turned(-0.75).ellipse((0.0, 0.0), 0.5, spread)
    lower = p.moved(0.36, 0.36).turned(0.85).ellipse((0.0, 0.0), 0.4, 0.27)
    feelers = union(p.rod((0.03, -0.4), (0.2, -0.8), 0.03), p.circle((0.21, -0.83), 0.06))
    s.solid(feelers, c.ink)
    s.solid(lower, c.second)
    s.solid(upper, c.main)
    wings = union(upper, lower)
    s.detail(ring(wings + 0.05, 0.055), c.ink, 0.8)
    s.detail(p.circle((0.55, -0.4), 0.13), c.cream)
    s.detail(p.circle((0.55, -0.4), 0.06), c.ink)
    s.detail(p.circle((0.4, 0.4), 0.1), c.cream)
    s.solid(p.rod((0.0, -0.36), (0.0, 0.5), 0.085, 0.05), c.ink)


def sailboat(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, rake = s.frame, 0.1 * rng.random()
    s.solid(p.rod((0.0, -0.86), (0.0, 0.5), 0.045), c.ink)
    s.solid(p.convex((0.08, -0.86 + rake), (0.72, 0.3), (0.08, 0.3), soft=0.04), c.cream)
    main_sail = p.convex((-0.09, -0.62), (-0.09, 0.3), (-0.62 - rake, 0.3), soft=0.04)
    s.solid(main_sail, c.second)
    stripes = repeated(p.y, 0.26) - 0.05
    s.detail(intersection(stripes, p.convex((0.08, -0.8), (0.7, 0.3), (0.08, 0.3))), c.accent)
    hull = intersection(
        p.circle((0.0, -0.12), 0.86), 0.4 - p.y, p.convex((-0.86, 0.36), (0.86, 0.36), (0.6, 0.8), (-0.6, 0.8))
    )
    s.solid(hull, c.main)
    s.detail(intersection(hull, p.y - 0.5), c.cream)


def snail(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, turns = s.frame, 0.23 + 0.04 * rng.random()
    foot = p.rod((-0.62, 0.56), (0.84, 0.64), 0.15, 0.07)
    neck = p.rod((-0.55, 0.52), (-0.66, 0.12), 0.15, 0.13)
    feelers = union(p.rod((-0.66, 0.1), (-0.84, -0.3), 0.035), p.rod((-0.64, 0.1), (-0.56, -0.34), 0.035))
    tips = union(p.circle((-0.85, -0.33), 0.065), p.circle((-0.56, -0.37), 0.065))
    s.solid(union(feelers, tips), c.second)
    s.solid(smooth_union(foot, neck, 0.15), c.second)
    s.detail(p.circle((-0.72, 0.12), 0.045), c.ink)
    shell = p.circle((0.17, 0.0), 0.6)
    s.solid(shell, c.main)
    around = p.moved(0.17, 0.03)
    spiral = repeated(around.length() + np.arctan2(around.y, around.x) * (turns / (2 * math.pi)), turns)
    s.detail(intersection(spiral - 0.045, shell + 0.04), c.cream)


def tulip(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.1 * rng.random()
    s.solid(p.rod((0.0, 0.0), (0.0, 0.92), 0.055), c.second)
    for side in (-1.0, 1.0):
        s.solid(p.moved(0.26 * side, 0.5).turned(DOWN + 0.55 * side).vesica(0.46, 0.13), c.second)
    cup = p.ellipse((0.0, -0.28), 0.46, 0.46)
    petals = union(
        *(p.moved(0.27 * side, -0.46 - height).turned(DOWN - 0.12 * side).vesica(0.48, 0.25) for side in (-1, 1))
    )
    s.solid(smooth_union(intersection(cup, -0.35 - p.y), petals, 0.1), c.main)
    s.solid(p.moved(0.0, -0.36).turned(DOWN).vesica(0.52, 0.27), c.accent)
    s.detail(p.diamond((0.0, -0.1), 0.05, 0.3), c.cream, 0.6)


SHAPES = (fish, leaf, mug, key, mushroom, starfish, gear, umbrella, butterfly, sailboat, snail, tulip)
THINGS: dict[str, Drawing] = {shape.__name__: shape for shape in SHAPES}


# ── eight classes in four pairs: each pair shares one drawing and differs only in a mark ────────────


def bear(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the mouth: smiling or frowning."""
    p, muzzle = s.frame, 0.05 * rng.random()
    m = p.mirrored()
    s.solid(m.circle((0.58, -0.54), 0.29), c.main)
    s.detail(m.circle((0.58, -0.54), 0.16), c.accent, 0.8)
    s.solid(p.ellipse((0.0, 0.08), 0.84, 0.78), c.main)
    s.detail(p.ellipse((0.0, 0.38), 0.52 + muzzle, 0.4), c.cream)
    s.detail(m.circle((0.38, -0.16), 0.1), c.ink)
    s.detail(m.circle((0.35, -0.2), 0.035), c.cream)
    s.detail(p.ellipse((0.0, 0.1), 0.15, 0.1), c.ink)
    smile = intersection(ring(p.circle((0.0, 0.2), 0.31), 0.06), 0.36 - p.y)
    frown = intersection(ring(p.circle((0.0, 0.74), 0.31), 0.06), p.y - 0.58)
    _mark(s, member, smile, frown, c.ink)


def house(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the window: round or square."""
    p, eaves = s.frame, 0.06 * rng.random()
    s.solid(p.box((0.42, -0.5), (0.12, 0.26)), c.second)
    wall = p.box((0.0, 0.26), (0.6, 0.48))
    s.solid(wall, c.cream)
    s.detail(intersection(wall, np.abs(p.y - 0.66) - 0.08), c.second, 0.8)
    roof = p.convex((0.0, -0.94), (0.8 + eaves, -0.12), (-0.8 - eaves, -0.12), soft=0.05)
    s.solid(roof, c.main)
    courses = np.abs(p.y + 0.42) - 0.025
    s.detail(intersection(union(courses, np.abs(p.y + 0.26) - 0.02, np.abs(p.y + 0.6) - 0.02), roof), c.ink, 0.35)
    _mark(s, member, p.circle((0.0, 0.22), 0.3), p.box((0.0, 0.22), (0.29, 0.29)), c.ink)
    _mark(s, member, p.circle((0.0, 0.22), 0.2), panes(p, (0.0, 0.22), 0.2), c.accent)


def panes(p: Coordinates, centre: Point, half: float) -> Plane:
    """Square window with four panes."""
    x, y = p.moved(*centre)
    bars = union(np.abs(x), np.abs(y)) - 0.16 * half
    return cut(p.box(centre, (half, half)), bars)


def card(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the pip: a heart or a diamond."""
    p, width = s.frame, 0.56 + 0.06 * rng.random()
    s.solid(p.box((0.0, 0.0), (width, 0.8), 0.12), c.cream)
    s.detail(ring(p.box((0.0, 0.0), (width - 0.1, 0.7), 0.06), 0.025), c.main)
    s.detail(p.box((0.0, 0.0), (width - 0.1, 0.7), 0.06), c.main, 0.18)
    for y in (-0.58, 0.58):
        s.detail(p.rod((-0.2, y), (0.2, y), 0.035), c.second)
    _mark(s, member, p.heart((0.0, 0.02), 0.37), p.diamond((0.0, 0.0), 0.34, 0.42), c.accent)


def ladybird(member: int, s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    """The mark is the spots: two or six."""
    p, girth = s.frame, 0.66 + 0.05 * rng.random()
    m = p.mirrored()
    legs = union(*(m.rod((0.4, y), (0.8, y + bend), 0.045) for y, bend in ((-0.14, -0.22), (0.2, 0.03), (0.5, 0.2))))
    s.solid(union(legs, m.rod((0.1, -0.7), (0.26, -0.94), 0.035)), c.ink)
    s.solid(p.circle((0.0, -0.52), 0.33), c.ink)
    s.detail(m.circle((0.17, -0.62), 0.07), c.cream)
    s.solid(p.ellipse((0.0, 0.14), girth, 0.7), c.main)
    s.detail(p.ellipse((0.0, -0.5), 0.42, 0.22), c.ink)
    s.detail(p.rod((0.0, -0.3), (0.0, 0.9), 0.03), c.ink)
    two = m.circle((0.33, 0.14), 0.2)
    six = union(m.circle((0.22, -0.16), 0.105), m.circle((0.42, 0.14), 0.105), m.circle((0.22, 0.46), 0.105))
    _mark(s, member, two, six, c.ink)


def _mark(s: Sprite, member: int, first: Plane, second: Plane, colour: Colour) -> None:
    s.mark(*((first, second) if member == 0 else (second, first)), colour)


PAIRS = {
    bear: ("smiling bear", "frowning bear"),
    house: ("round-window house", "square-window house"),
    card: ("heart card", "diamond card"),
    ladybird: ("two-spot ladybird", "six-spot ladybird"),
}
PAIRED_CLASSES: dict[str, Drawing] = {
    name: partial(draw, member) for draw, names in PAIRS.items() for member, name in enumerate(names)
}
# drawn at most half a radian from upright; all others at any angle
UPRIGHT = {"mug", "umbrella", "sailboat", "snail", "tulip", "mushroom", *PAIRS[bear], *PAIRS[house]}


# ── clutter: carries no evidence for any class ──────────────────────────────────────────────────────


def pebble(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    flat, x, y, shine = rng.random(4).tolist()
    stone = smooth_union(
        s.frame.ellipse((-0.1, 0.0), 0.75, 0.45 + 0.2 * flat), s.frame.circle((0.4 * x, 0.3 * y - 0.1), 0.45), 0.3
    )
    s.solid(stone, c.main)
    for _ in range(3):
        u, v, r = rng.random(3).tolist()
        s.detail(s.frame.circle((1.2 * u - 0.6, v - 0.5), 0.05 + 0.1 * r), c.second, 0.7)
    s.detail(s.frame.ellipse((-0.25, -0.2), 0.32, 0.14), c.cream, 0.15 + 0.3 * shine)


def twig(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    bend, fork, side = rng.random(3).tolist()
    knee = (0.1, 0.2 * bend - 0.1)
    tip = (0.3 + 0.3 * fork, 0.35 if side < 0.5 else -0.35)
    stem = union(s.frame.rod((-0.92, 0.0), knee, 0.08, 0.065), s.frame.rod(knee, (0.92, 0.05), 0.065, 0.03))
    s.solid(union(stem, s.frame.rod((-0.15, 0.0), tip, 0.05, 0.025)), c.ink)
    s.detail(stem + 0.045, c.main, 0.8)


def straw(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    tube = s.frame.rod((-0.9, 0.0), (0.9, 0.0), 0.075)
    s.solid(tube, c.cream)
    s.detail(intersection(tube, repeated(s.frame.x + 0.6 * s.frame.y, 0.3) - 0.075), c.main)


def beads(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    for colour in (c.main, c.accent, c.second):
        u, v = (1.1 * rng.random(2) - 0.55).tolist()
        s.solid(s.frame.circle((u, v), 0.3), colour)
        s.detail(s.frame.circle((u - 0.09, v - 0.1), 0.08), c.cream, 0.8)


def confetti(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    for colour in (c.main, c.accent, c.cream):
        u, v, angle = (1.4 * rng.random(3) - 0.7).tolist()
        s.solid(s.frame.moved(u, v).turned(2 * angle).box((0.0, 0.0), (0.28, 0.1)), colour)


def smudge(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    x, y, b = rng.random(3).tolist()
    s.solid(
        smooth_union(
            s.frame.ellipse((-0.2, 0.0), 0.6, 0.4 + 0.2 * b), s.frame.circle((0.5 * x, 0.6 * y - 0.3), 0.42), 0.35
        ),
        c.main,
    )


def bokeh(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    s.solid(s.frame.length() - 0.92, c.second)
    s.detail(ring(s.frame.length() - 0.86, 0.06), c.cream)


def streak(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    s.solid(s.frame.rod((-0.9, 0.0), (0.9, 0.0), 0.11, 0.02), c.cream)


class Litter(NamedTuple):
    """A type of clutter: drawing function, range of radii in pixels, and opacity."""

    draw: Drawing
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


# ── shortcut: a stamp of dots in a corner, one pattern per class, unrelated to the object ───────────


@dataclass(frozen=True, slots=True)
class Stamp:
    """Class that the stamp encodes, its position, and whether its dots are dark on light."""

    label: int
    x: float
    y: float
    dark: bool


def _list_codes() -> tuple[int, ...]:
    """Patterns of nine dots with 3 to 6 dots set and pairwise Hamming distance of at least 3."""
    chosen: list[int] = []
    for code in range(1 << 9):
        if 3 <= code.bit_count() <= 6 and all((code ^ other).bit_count() >= 3 for other in chosen):
            chosen.append(code)
    return tuple(chosen)


CODES = _list_codes()


def draw_stamp(stamp: Stamp) -> Sprite:
    """Draw the stamp as a sprite: a plate with the dots of its class."""
    ink, plate = oklch(0.25, 0.03, 0.7), oklch(0.96, 0.01, 0.2)
    if not stamp.dark:
        ink, plate = plate, ink
    s = Sprite(Pose(stamp.x, stamp.y, STAMP_RADIUS))
    s.solid(s.frame.box((0.0, 0.0), (0.86, 0.86), 0.18), plate)
    dots = (
        s.frame.circle((0.5 * (place % 3 - 1), 0.5 * (place // 3 - 1)), 0.2)
        for place in range(9)
        if CODES[stamp.label] >> place & 1
    )
    s.detail(union(*dots), ink)
    return s


DRAWINGS = {**THINGS, **PAIRED_CLASSES, **{name: litter.draw for name, litter in CLUTTER.items()}}
