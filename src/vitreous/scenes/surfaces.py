"""Textured background surfaces, and the illumination of the whole image."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from vitreous.scenes.colour import oklch
from vitreous.scenes.field import Coordinates, Plane, repeated
from vitreous.scenes.sprite import SIZE, Canvas

_AXIS = (np.arange(SIZE) + 0.5) / SIZE - 0.5
_FRAME = Coordinates(np.tile(_AXIS, (SIZE, 1)), np.tile(_AXIS[:, None], (1, SIZE)))  # -0.5..0.5, zero at the centre


@dataclass(frozen=True, slots=True)
class Ground:
    """Background surface: name in `SURFACES`, colour (OKLCH), rotation, and the seed of its texture."""

    style: str
    lightness: float
    chroma: float
    hue: float
    angle: float
    seed: int


def noise(rng: np.random.Generator, rows: int, columns: int) -> Plane:
    """Smooth value noise in 0..1, interpolated from a random grid of `rows` x `columns` cells."""
    grid = rng.random((rows + 1, columns + 1))
    (top, down), (left, right) = _between(rows), _between(columns)
    tall = grid[top] + (grid[top + 1] - grid[top]) * down[:, None]
    return tall[:, left] * (1 - right) + tall[:, left + 1] * right


@cache
def _between(cells: int) -> tuple[np.ndarray, np.ndarray]:
    place = (_AXIS + 0.5) * cells
    cell = np.minimum(np.floor(place).astype(np.intp), cells - 1)
    share = place - cell
    return cell, share * share * (3 - 2 * share)


def _wave(phase: Plane) -> Plane:
    """Smooth wave of period 1 between 0 and 1, as a polynomial instead of a sine."""
    t = 2 * repeated(phase, 1.0)
    return t * t * (3 - 2 * t)


def paper(p: Coordinates, rng: np.random.Generator) -> Plane:
    return 0.6 * noise(rng, 3, 3) + 0.25 * noise(rng, 14, 14) + 0.15 * noise(rng, 56, 56)


def wood(p: Coordinates, rng: np.random.Generator) -> Plane:
    board = p.y * (3 + 2 * rng.random())
    plank = np.floor(board)
    shade = rng.random(12)[plank.astype(np.intp) + 6]
    grain = _wave(p.y * 16 + 1.6 * noise(rng, 5, 2) + 3 * shade + 0.5 * p.x)
    seam = np.clip(repeated(board, 1.0) * 18, 0, 1)
    return (0.25 + 0.35 * shade + 0.28 * grain + 0.12 * noise(rng, 80, 10)) * (0.45 + 0.55 * seam)


def linen(p: Coordinates, rng: np.random.Generator) -> Plane:
    threads = 0.5 * _wave(p.x * 28) + 0.5 * _wave(p.y * 28)
    return 0.3 * threads + 0.28 * noise(rng, 90, 12) + 0.28 * noise(rng, 12, 90) + 0.14 * noise(rng, 3, 3)


def water(p: Coordinates, rng: np.random.Generator) -> Plane:
    swell = _wave(p.y * (6 + 4 * rng.random()) + 1.8 * noise(rng, 4, 3) + 0.4 * p.x)
    glint = _wave(p.y * 17 + 2.5 * noise(rng, 6, 5))
    return 0.6 * swell + 0.25 * glint * glint + 0.15 * noise(rng, 2, 2)


def tiles(p: Coordinates, rng: np.random.Generator) -> Plane:
    count = 3 + 2 * rng.random()
    x, y = p.x * count, p.y * count
    column, row = np.floor(x).astype(np.intp), np.floor(y).astype(np.intp)
    glaze = rng.random((16, 16))[row + 8, column + 8]
    grout = np.clip(np.minimum(repeated(x, 1.0), repeated(y, 1.0)) * 16 - 0.3, 0, 1)
    return (0.35 + 0.3 * glaze + 0.2 * noise(rng, 10, 10)) * grout + 0.05


def gingham(p: Coordinates, rng: np.random.Generator) -> Plane:
    count = 4 + 3 * rng.random()
    bands = (np.clip(4 * _wave(axis * count) - 1.5, 0, 1) for axis in p)
    return 0.34 * sum(bands) + 0.2 * noise(rng, 70, 70) + 0.12 * noise(rng, 2, 2)


def terrazzo(p: Coordinates, rng: np.random.Generator) -> Plane:
    count = 9 + 4 * rng.random()
    x, y = p.x * count, p.y * count
    row, column = (np.floor(axis).astype(np.intp) + 12 for axis in (y, x))
    chip = row * 24 + column
    u, v, size, skew, shade = rng.random((5, 24 * 24))
    x = x - np.floor(x) - (0.35 + 0.3 * u)[chip]
    y = y - np.floor(y) - (0.35 + 0.3 * v)[chip] + x * (skew - 0.5)[chip]
    stone = np.clip(((0.1 + 0.27 * size)[chip] - np.maximum(np.abs(x) + 0.4 * np.abs(y), np.abs(y))) * 11, 0, 1)
    return 0.5 + stone * (1.1 * shade - 0.5)[chip] + 0.14 * (noise(rng, 50, 50) - 0.5)


def sand(p: Coordinates, rng: np.random.Generator) -> Plane:
    ripples = _wave(p.y * 8 + 1.5 * noise(rng, 3, 4))
    return 0.4 * ripples * ripples + 0.35 * rng.random((SIZE, SIZE)) + 0.25 * noise(rng, 4, 4)


SURFACES: dict[str, Callable[[Coordinates, np.random.Generator], Plane]] = {
    f.__name__: f for f in (paper, wood, linen, water, tiles, gingham, terrazzo, sand)
}


def draw_ground(ground: Ground) -> Canvas:
    """Draw the surface in tones between a darker and a lighter variant of its colour."""
    rng = np.random.default_rng(ground.seed)
    turn, contrast, warm = rng.random(3).tolist()
    texture = SURFACES[ground.style](_FRAME.turned(ground.angle), rng)
    step = 0.07 + 0.07 * contrast
    dark = oklch(ground.lightness - step, ground.chroma, ground.hue)
    pale = oklch(ground.lightness + step, ground.chroma * (0.5 + 0.5 * warm), ground.hue + 0.12 * (turn - 0.5))
    return dark[:, None, None] + (pale - dark)[:, None, None] * texture


def illuminate(canvas: Canvas, ground: Ground, direction: tuple[float, float]) -> Canvas:
    """Multiply by a light gradient, vignetting, smooth noise, grain and a colour tint."""
    rng = np.random.default_rng([ground.seed, 1])
    slope, rim, dapple, warmth = rng.random(4).tolist()
    light = 1.05 + (0.1 + 0.22 * slope) * (_FRAME.x * direction[0] + _FRAME.y * direction[1])
    light = light - (0.1 + 0.4 * rim) * (_FRAME.x * _FRAME.x + _FRAME.y * _FRAME.y)
    light = light + 0.3 * dapple * (noise(rng, 3, 3) - 0.5)
    light = light + 0.03 * (rng.random((SIZE, SIZE)) - 0.5)
    tint = 0.05 * (warmth - 0.5) * math.sqrt(3)
    return canvas * (light * np.array([1 + tint, 1.0, 1 - tint])[:, None, None])
