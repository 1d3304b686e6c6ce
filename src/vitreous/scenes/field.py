"""Signed distance functions of simple shapes: negative inside, zero on the outline.

A `Coordinates` holds the coordinates of every pixel; its shapes are `Plane`s of distances.
All operations are elementwise in float64, so that images are byte-identical on every machine.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Plane = Float[np.ndarray, "h w"]
Point = tuple[float, float]


class Coordinates(NamedTuple):
    """Coordinates of every pixel: x to the right, y downwards."""

    x: Plane
    y: Plane

    # ── other frames ─────────────────────────────────────────────────────────────────────────────

    def moved(self, x: float, y: float) -> Coordinates:
        """Frame with its origin at (x, y)."""
        return Coordinates(self.x - x, self.y - y)

    def turned(self, angle: float) -> Coordinates:
        """Frame whose x axis points along `angle`, clockwise on the screen."""
        cos, sin = math.cos(angle), math.sin(angle)
        return Coordinates(self.x * cos + self.y * sin, self.y * cos - self.x * sin)

    def mirrored(self) -> Coordinates:
        """Frame with |x|: shapes drawn at x > 0 appear on both sides."""
        return Coordinates(np.abs(self.x), self.y)

    def with_fold(self, times: int) -> Coordinates:
        """Frame folded into one wedge around +x: shapes drawn there appear `times` times around the origin."""
        wedge = 2 * math.pi / times
        angle = np.arctan2(self.y, self.x)
        angle = angle - wedge * np.floor(angle / wedge + 0.5)
        radius = self.length()
        return Coordinates(radius * np.cos(angle), radius * np.sin(angle))

    def lattice(self, period: float) -> Coordinates:
        """Frame repeated in staggered rows: a shape drawn at the origin appears in every cell."""
        row = np.floor(self.y / period + 0.5)
        x = self.x + 0.5 * period * (row - 2 * np.floor(row / 2))
        return Coordinates(x - period * np.floor(x / period + 0.5), self.y - period * row)

    # ── shapes ───────────────────────────────────────────────────────────────────────────────────

    def length(self) -> Plane:
        """Distance from the origin."""
        return np.sqrt(self.x * self.x + self.y * self.y)

    def circle(self, centre: Point, radius: float) -> Plane:
        return self.moved(*centre).length() - radius

    def ellipse(self, centre: Point, a: float, b: float) -> Plane:
        """Ellipse; first-order approximation of the distance, exact on the outline."""
        x, y = self.moved(*centre)
        x, y = x / a, y / b
        level = np.sqrt(x * x + y * y)
        x, y = x / a, y / b
        return level * (level - 1) / np.sqrt(np.maximum(x * x + y * y, 1e-9))

    def box(self, centre: Point, half: Point, rounding: float = 0.0) -> Plane:
        x = np.abs(self.x - centre[0]) - (half[0] - rounding)
        y = np.abs(self.y - centre[1]) - (half[1] - rounding)
        outside = Coordinates(np.maximum(x, 0), np.maximum(y, 0)).length()
        return outside + np.minimum(np.maximum(x, y), 0) - rounding

    def rod(self, start: Point, end: Point, radius: float, end_radius: float | None = None) -> Plane:
        """Thick line with round ends, tapered if the two radii differ."""
        along = end[0] - start[0], end[1] - start[1]
        x, y = self.moved(*start)
        share = np.clip((x * along[0] + y * along[1]) / (along[0] ** 2 + along[1] ** 2), 0, 1)
        width = radius if end_radius is None else radius + (end_radius - radius) * share
        return Coordinates(x - along[0] * share, y - along[1] * share).length() - width

    def half_plane(self, point: Point, angle: float) -> Plane:
        """Half plane; `angle` points to the outside."""
        return (self.x - point[0]) * math.cos(angle) + (self.y - point[1]) * math.sin(angle)

    def convex(self, *corners: Point, soft: float = 0.0) -> Plane:
        """Convex polygon with corners clockwise on the screen; `soft` rounds them."""
        edges = list(zip(corners, (*corners[1:], corners[0]), strict=True))
        inner, *others = (self._beyond(*edge) for edge in edges)
        for other in others:
            inner = -smooth_union(-inner, -other, soft) if soft else np.maximum(inner, other)
        # outside a sharp corner the half planes underestimate the distance, which would show as a spike in the shadow
        outer = union(*(self.rod(*edge, 0.0) for edge in edges))
        return np.where(inner > 0, np.maximum(inner, outer), inner)

    def _beyond(self, start: Point, end: Point) -> Plane:
        side = math.dist(start, end)
        return (self.x - start[0]) * ((end[1] - start[1]) / side) - (self.y - start[1]) * ((end[0] - start[0]) / side)

    def vesica(self, half_length: float, half_width: float) -> Plane:
        """Almond shape along x: the intersection of two equal discs."""
        offset = (half_length**2 - half_width**2) / (2 * half_width)
        return Coordinates(self.x, np.abs(self.y) + offset).length() - (offset + half_width)

    def heart(self, centre: Point, size: float) -> Plane:
        """Heart with its tip at the bottom."""
        m = self.moved(*centre).mirrored()
        lobe = m.circle((0.46 * size, -0.34 * size), 0.5 * size)
        point = m.convex((-size, -0.3 * size), (0.0, -0.5 * size), (0.88 * size, -0.07 * size), (0.0, 0.95 * size))
        return union(lobe, point)

    def diamond(self, centre: Point, half_width: float, half_height: float) -> Plane:
        x, y = self.moved(*centre)
        slope = math.hypot(half_width, half_height)
        return (np.abs(x) * half_height + np.abs(y) * half_width - half_width * half_height) / slope


# ── operations on shapes ─────────────────────────────────────────────────────────────────────────


def union(*shapes: Plane) -> Plane:
    return reduce(np.minimum, shapes)


def intersection(*shapes: Plane) -> Plane:
    return reduce(np.maximum, shapes)


def cut(whole: Plane, *pieces: Plane) -> Plane:
    """Subtract the pieces from the whole."""
    return intersection(whole, *(-piece for piece in pieces))


def ring(distance: Plane, half_width: float) -> Plane:
    """Stroke of `half_width` along the outline of a shape."""
    return np.abs(distance) - half_width


def smooth_union(first: Plane, second: Plane, softness: float) -> Plane:
    """Smooth union: the seam between the shapes is filled."""
    overlap = np.maximum(softness - np.abs(first - second), 0)
    return np.minimum(first, second) - overlap * overlap / (4 * softness)


def repeated(value: Plane, period: float) -> Plane:
    """Distance along one axis to the nearest multiple of the period."""
    return np.abs(value - period * np.floor(value / period + 0.5))
