"""Twelve classes that differ in shape and texture, drawn inside the unit disc in any colours.

Every drawing function takes a sprite, a palette and a random generator for small individual differences.
"""

from __future__ import annotations

import math

import numpy as np

from vitreous.scenes.colour import Palette
from vitreous.scenes.field import (
    Coordinates,
    box,
    circle,
    convex,
    cut,
    diamond,
    ellipse,
    half_plane,
    intersection,
    lattice,
    length,
    repeated,
    ring,
    rod,
    smooth_union,
    union,
    vesica,
)
from vitreous.scenes.sprite import Sprite

DOWN = math.pi / 2
_PIXEL = 1 / 22  # about one pixel for an object of typical size: the thinnest line


def fish(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.4 + 0.08 * rng.random()
    tail = cut(convex(p, (0.32, 0.0), (0.96, -0.5), (0.96, 0.5), soft=0.06), circle(p, (1.13, 0.0), 0.34))
    s.solid(tail, c.second)
    s.solid(intersection(circle(p, (0.0, -0.18), 0.5), convex(p, (-0.4, -0.3), (0.34, -0.72), (0.42, 0.0))), c.second)
    body = ellipse(p, (-0.18, 0.0), 0.72, height)
    s.solid(body, c.main)
    s.detail(intersection(body, circle(p, (-0.1, 0.75), 0.62)), c.cream, 0.55)
    cell = lattice(Coordinates(p.y, p.x), 0.23)
    scales = intersection(ring(circle(cell, (0.0, -0.03), 0.13), 0.75 * _PIXEL), -cell.y)
    s.detail(intersection(scales, box(p, (0.2, 0.0), (0.36, 0.5))), c.second, 0.9)
    s.detail(
        intersection(ring(circle(p, (-0.72, 0.0), 0.44), 0.8 * _PIXEL), half_plane(p, (-0.6, 0.0), math.pi)), c.ink, 0.7
    )
    s.solid(rod(p, (-0.05, 0.12), (0.16, 0.26), 0.1, 0.05), c.second)
    s.detail(circle(p, (-0.58, -0.1), 0.12), c.cream)
    s.detail(circle(p, (-0.6, -0.1), 0.065), c.ink)


def leaf(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, width = s.frame, 0.42 + 0.08 * rng.random()
    s.solid(rod(p, (0.6, 0.0), (0.97, 0.06), 0.045, 0.035), c.ink)
    blade = vesica(p.moved(-0.12, 0.0), 0.84, width)
    teeth = 0.035 - 0.5 * repeated(p.x - 0.5 * np.abs(p.y), 0.14)
    s.solid(blade + teeth, c.main)
    s.detail(intersection(blade, p.y), c.second, 0.4)
    veins = repeated(p.x + 0.85 * np.abs(p.y), 0.25) * 0.76 - 0.65 * _PIXEL
    s.detail(intersection(veins, blade + 0.08), c.cream, 0.75)
    s.detail(rod(p, (-0.9, 0.0), (0.75, 0.0), 0.6 * _PIXEL, 1.1 * _PIXEL), c.cream)


def mug(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.56 + 0.08 * rng.random()
    s.solid(ring(ellipse(p, (0.46, 0.05), 0.32, 0.3), 0.085), c.second)
    wall = box(p, (-0.15, 0.06), (0.56, height), 0.18)
    s.solid(wall, c.main)
    drip = 0.05 + 0.2 * np.abs(1 - 2 * repeated(p.x / 0.42, 1.0))
    s.detail(intersection(wall, p.y + height - 0.26 - drip), c.second)
    s.solid(ellipse(p, (-0.15, 0.06 - height), 0.56, 0.17), c.cream)
    s.detail(ellipse(p, (-0.15, 0.07 - height), 0.46, 0.115), c.ink)


def key(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, notch = s.frame, 0.16 + 0.08 * rng.random()
    shaft = rod(p, (-0.3, 0.0), (0.88, 0.0), 0.085)
    bits = union(box(p, (0.8, notch), (0.07, notch)), box(p, (0.58, 0.14), (0.07, 0.14)))
    bow = union(*(circle(p, centre, 0.24) for centre in ((-0.75, 0.0), (-0.48, -0.26), (-0.48, 0.26))))
    holes = union(*(circle(p, centre, 0.11) for centre in ((-0.75, 0.0), (-0.48, -0.26), (-0.48, 0.26))))
    s.solid(union(shaft, bits), c.main)
    s.solid(cut(bow, holes), c.main)
    s.detail(ring(holes - 0.05, 0.6 * _PIXEL), c.second)
    s.detail(box(p, (-0.12, 0.0), (0.06, 0.2)), c.second)
    s.detail(rod(p, (0.0, -0.03), (0.86, -0.03), 0.5 * _PIXEL), c.cream, 0.8)


def mushroom(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, flat = s.frame, 0.72 + 0.1 * rng.random()
    s.solid(rod(p, (0.0, 0.05), (0.0, 0.72), 0.19, 0.25), c.cream)
    s.detail(ellipse(p, (0.0, 0.2), 0.36, 0.1), c.ink, 0.35)
    cap = intersection(ellipse(p, (0.0, 0.12), 0.9, flat), circle(p, (0.0, -1.35), 1.52))
    s.solid(cap, c.main)
    spots = (
        (-0.46, -0.13, 0.13),
        (-0.02, -0.3, 0.17),
        (0.42, -0.18, 0.12),
        (0.17, 0.02, 0.08),
        (-0.2, 0.03, 0.07),
        (0.66, 0.0, 0.06),
    )
    s.detail(union(*(circle(p, (x, y), radius) for x, y, radius in spots)), c.cream)


def starfish(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, thick = s.frame.with_fold(5), 0.27 + 0.06 * rng.random()
    s.solid(smooth_union(rod(p, (0.0, 0.0), (0.86, 0.0), thick, 0.1), circle(p, (0.0, 0.0), 0.34), 0.2), c.main)
    s.detail(rod(p, (0.2, 0.0), (0.8, 0.0), 0.11, 0.04), c.second, 0.8)
    bumps = union(*(circle(p, (x, 0.0), r) for x, r in ((0.24, 0.06), (0.44, 0.05), (0.62, 0.042), (0.77, 0.034))))
    s.detail(bumps, c.cream)
    s.detail(circle(p, (0.0, 0.0), 0.1), c.cream)


def gear(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p = s.frame.with_fold(int(rng.integers(8, 11)))
    teeth = convex(p, (0.5, -0.17), (0.95, -0.11), (0.95, 0.11), (0.5, 0.17), soft=0.05)
    disc = length(p)
    s.solid(cut(union(teeth, disc - 0.72), disc - 0.24), c.main)
    s.detail(ring(disc - 0.46, 0.13), c.second, 0.85)
    s.detail(ring(disc - 0.3, 0.5 * _PIXEL), c.ink, 0.6)
    s.detail(circle(p, (0.46, 0.0), 0.07), c.ink, 0.85)


def umbrella(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, hook = s.frame, 0.13 + 0.04 * rng.random()
    s.solid(rod(p, (0.0, -0.92), (0.0, 0.72), 0.045), c.ink)
    s.solid(intersection(ring(circle(p, (hook, 0.74), hook), 0.055), 0.74 - p.y), c.ink)
    scallops = circle(Coordinates(repeated(p.x, 0.43), p.y), (0.0, 0.2), 0.23)
    canopy = cut(intersection(ellipse(p, (0.0, 0.12), 0.88, 0.9), p.y - 0.12), scallops)
    s.solid(canopy, c.main)
    outer, inner = (ellipse(p, (0.0, 0.12), width, 0.9) for width in (0.645, 0.215))
    s.detail(intersection(outer, canopy), c.cream)
    s.detail(intersection(inner, canopy), c.main)
    s.detail(intersection(union(ring(outer, 0.4 * _PIXEL), ring(inner, 0.4 * _PIXEL)), canopy), c.ink, 0.6)


def butterfly(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, spread = s.frame.mirrored(), 0.3 + 0.08 * rng.random()
    upper = ellipse(p.moved(0.47, -0.32).turned(-0.75), (0.0, 0.0), 0.5, spread)
    lower = ellipse(p.moved(0.36, 0.36).turned(0.85), (0.0, 0.0), 0.4, 0.27)
    feelers = union(rod(p, (0.03, -0.4), (0.2, -0.8), 0.03), circle(p, (0.21, -0.83), 0.06))
    s.solid(feelers, c.ink)
    s.solid(lower, c.second)
    s.solid(upper, c.main)
    wings = union(upper, lower)
    s.detail(ring(wings + 0.05, 0.055), c.ink, 0.8)
    s.detail(circle(p, (0.55, -0.4), 0.13), c.cream)
    s.detail(circle(p, (0.55, -0.4), 0.06), c.ink)
    s.detail(circle(p, (0.4, 0.4), 0.1), c.cream)
    s.solid(rod(p, (0.0, -0.36), (0.0, 0.5), 0.085, 0.05), c.ink)


def sailboat(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, rake = s.frame, 0.1 * rng.random()
    s.solid(rod(p, (0.0, -0.86), (0.0, 0.5), 0.045), c.ink)
    s.solid(convex(p, (0.08, -0.86 + rake), (0.72, 0.3), (0.08, 0.3), soft=0.04), c.cream)
    main_sail = convex(p, (-0.09, -0.62), (-0.09, 0.3), (-0.62 - rake, 0.3), soft=0.04)
    s.solid(main_sail, c.second)
    stripes = repeated(p.y, 0.26) - 0.05
    s.detail(intersection(stripes, convex(p, (0.08, -0.8), (0.7, 0.3), (0.08, 0.3))), c.accent)
    hull = intersection(
        circle(p, (0.0, -0.12), 0.86), 0.4 - p.y, convex(p, (-0.86, 0.36), (0.86, 0.36), (0.6, 0.8), (-0.6, 0.8))
    )
    s.solid(hull, c.main)
    s.detail(intersection(hull, p.y - 0.5), c.cream)


def snail(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, turns = s.frame, 0.23 + 0.04 * rng.random()
    foot = rod(p, (-0.62, 0.56), (0.84, 0.64), 0.15, 0.07)
    neck = rod(p, (-0.55, 0.52), (-0.66, 0.12), 0.15, 0.13)
    feelers = union(rod(p, (-0.66, 0.1), (-0.84, -0.3), 0.035), rod(p, (-0.64, 0.1), (-0.56, -0.34), 0.035))
    tips = union(circle(p, (-0.85, -0.33), 0.065), circle(p, (-0.56, -0.37), 0.065))
    s.solid(union(feelers, tips), c.second)
    s.solid(smooth_union(foot, neck, 0.15), c.second)
    s.detail(circle(p, (-0.72, 0.12), 0.045), c.ink)
    shell = circle(p, (0.17, 0.0), 0.6)
    s.solid(shell, c.main)
    around = p.moved(0.17, 0.03)
    spiral = repeated(length(around) + np.arctan2(around.y, around.x) * (turns / (2 * math.pi)), turns)
    s.detail(intersection(spiral - 0.045, shell + 0.04), c.cream)


def tulip(s: Sprite, c: Palette, rng: np.random.Generator) -> None:
    p, height = s.frame, 0.1 * rng.random()
    s.solid(rod(p, (0.0, 0.0), (0.0, 0.92), 0.055), c.second)
    for side in (-1.0, 1.0):
        s.solid(vesica(p.moved(0.26 * side, 0.5).turned(DOWN + 0.55 * side), 0.46, 0.13), c.second)
    cup = ellipse(p, (0.0, -0.28), 0.46, 0.46)
    petals = union(
        *(vesica(p.moved(0.27 * side, -0.46 - height).turned(DOWN - 0.12 * side), 0.48, 0.25) for side in (-1, 1))
    )
    s.solid(smooth_union(intersection(cup, -0.35 - p.y), petals, 0.1), c.main)
    s.solid(vesica(p.moved(0.0, -0.36).turned(DOWN), 0.52, 0.27), c.accent)
    s.detail(diamond(p, (0.0, -0.1), 0.05, 0.3), c.cream, 0.6)


SHAPES = (fish, leaf, mug, key, mushroom, starfish, gear, umbrella, butterfly, sailboat, snail, tulip)
THINGS = {shape.__name__: shape for shape in SHAPES}
