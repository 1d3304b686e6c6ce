"""Sprites: one object painted in layers in its own frame, shaded, and composited with its shadow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from vitreous.scenes.colour import Colour
from vitreous.scenes.field import Coordinates, Plane

SIZE = 112
Canvas = Float[np.ndarray, "3 H W"]
Mask = Bool[np.ndarray, "H W"]

_SHADOW_SOFTNESS = 3.5
_MARGIN = 6  # pixels around an object, for its shadow


@dataclass(frozen=True, slots=True)
class Pose:
    """Position of an object: centre and radius of its unit disc in pixels, rotation in radians, and mirroring.

    Parameters
    ----------
    x, y
        Centre in pixels.
    radius
        Radius of the unit disc in pixels.
    angle
        Rotation in radians.
    mirrored
        Whether the drawing is mirrored.

    Examples
    --------
    >>> from vitreous.scenes import Pose
    >>> Pose(x=56, y=56, radius=20).angle
    0.0
    """

    x: float
    y: float
    radius: float
    angle: float = 0.0
    mirrored: bool = False


class Light(NamedTuple):
    """Direction of the light source (a unit vector) and strength of shadows."""

    x: float
    y: float
    shadow: float


class Sprite:
    """Window of the image around one object: premultiplied colour, coverage, and signed distance to its outline."""

    def __init__(self, pose: Pose) -> None:
        reach = pose.radius * 1.06 + _MARGIN
        self.left, right = _within(pose.x, reach)
        self.top, bottom = _within(pose.y, reach)
        x = np.arange(self.left, right)[None, :] + (0.5 - pose.x)
        y = np.arange(self.top, bottom)[:, None] + (0.5 - pose.y)
        cos, sin = math.cos(pose.angle) / pose.radius, math.sin(pose.angle) / pose.radius
        u = x * cos + y * sin
        self.frame = Coordinates(-u if pose.mirrored else u, y * cos - x * sin)
        self.radius = pose.radius
        self.coverage: Plane = np.zeros(u.shape)
        self.colour = np.zeros((3, *u.shape))
        self.distance: Plane = np.full(u.shape, 9.0)
        self.evidence: Plane | None = None

    def solid(self, distance: Plane, colour: Colour) -> None:
        """Add a part on top, which extends the outline of the object."""
        cover = self._covered(distance)
        rest = 1 - cover
        self.colour = self.colour * rest + colour[:, None, None] * cover
        self.coverage = self.coverage * rest + cover
        self.distance = np.minimum(self.distance, distance)

    def detail(self, distance: Plane, colour: Colour, strength: float = 1.0) -> None:
        """Paint on existing parts without changing the outline."""
        cover = self._covered(distance) * strength
        self.colour = self.colour * (1 - cover) + colour[:, None, None] * (cover * self.coverage)

    def mark(self, chosen: Plane, other_mark: Plane, colour: Colour) -> None:
        """Paint the detail that distinguishes two paired classes; the evidence is the union of the details of both."""
        self.detail(chosen, colour)
        cover = np.maximum(self._covered(chosen), self._covered(other_mark))
        self.evidence = cover if self.evidence is None else np.maximum(self.evidence, cover)

    def light(self, light: Light) -> None:
        """Shade the edges by the direction of the light and darken the outline, so that thin parts stay visible."""
        pixels = self.distance * self.radius
        slope_x, slope_y = np.zeros_like(pixels), np.zeros_like(pixels)
        slope_x[:, 1:-1] = pixels[:, 2:] - pixels[:, :-2]
        slope_y[1:-1] = pixels[2:] - pixels[:-2]
        bevel = np.clip(1 + pixels * (3.2 / self.radius), 0, 1)
        facing = (slope_x * light.x + slope_y * light.y) * (0.13 * bevel)
        outline = np.clip(1.6 + pixels, 0, 1) * 0.26
        self.colour = self.colour * ((1 + facing) * (1 - outline))

    def draw_shadow(self, canvas: Canvas, light: Light, height: float) -> None:
        """Draw the shadow on the canvas, displaced by `height` pixels away from the light."""
        near = np.clip(0.5 - self.distance * (self.radius / (2 * _SHADOW_SOFTNESS)), 0, 1)
        dark = near * near * (3 - 2 * near) * light.shadow
        ground, window = self._meet(canvas, -round(light.x * height), -round(light.y * height))
        ground *= 1 - dark[window]

    def composite(self, canvas: Canvas, opacity: float = 1.0) -> None:
        """Composite the object onto the canvas."""
        ground, window = self._meet(canvas, 0, 0)
        ground *= 1 - self.coverage[window] * opacity
        ground += self.colour[:, window[0], window[1]] * opacity

    def mask(self) -> Mask:
        """Pixels that the object covers by at least one half."""
        return self._spread(self.coverage >= 0.5)

    def evidence_mask(self) -> Mask:
        """Pixels that determine the class: the mark if there is one, else the whole object."""
        return self.mask() if self.evidence is None else self._spread((self.evidence > 0) & (self.coverage >= 0.5))

    def _covered(self, distance: Plane) -> Plane:
        return np.clip(0.5 - distance * self.radius, 0, 1)

    def _meet(self, canvas: Canvas, dx: int, dy: int) -> tuple[Float[np.ndarray, "3 h w"], tuple[slice, slice]]:
        """Overlap of the canvas with the window shifted by (dx, dy): a view of the canvas, and slices of the window."""
        height, width = self.coverage.shape
        top, left = max(self.top + dy, 0), max(self.left + dx, 0)
        bottom, right = min(self.top + dy + height, SIZE), min(self.left + dx + width, SIZE)
        window = (
            slice(top - self.top - dy, bottom - self.top - dy),
            slice(left - self.left - dx, right - self.left - dx),
        )
        return canvas[:, top:bottom, left:right], window

    def _spread(self, window: Bool[np.ndarray, "h w"]) -> Mask:
        whole = np.zeros((SIZE, SIZE), dtype=bool)
        whole[self.top : self.top + window.shape[0], self.left : self.left + window.shape[1]] = window
        return whole


def _within(centre: float, reach: float) -> tuple[int, int]:
    start = min(max(math.floor(centre - reach), 0), SIZE - 4)
    return start, max(min(math.ceil(centre + reach), SIZE), start + 4)
