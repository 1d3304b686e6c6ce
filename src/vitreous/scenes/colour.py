"""Random colour palettes in OKLCH (lightness, chroma, hue), independent of the class."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Colour = Float[np.ndarray, "3"]


def oklch(lightness: float, chroma: float, hue: float) -> Colour:
    """Convert OKLCH, `hue` in turns, to sRGB in 0..1; out-of-gamut channels are clipped."""
    a, b = chroma * math.cos(2 * math.pi * hue), chroma * math.sin(2 * math.pi * hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return np.array([_encode(min(max(channel, 0.0), 1.0)) for channel in linear])


def _encode(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055


class Palette(NamedTuple):
    """The five colours of an object."""

    main: Colour
    second: Colour
    accent: Colour
    ink: Colour
    cream: Colour


def palette(lightness: float, rng: np.random.Generator) -> Palette:
    """Palette around a random hue; `lightness` is that of the main colour."""
    hue, chroma, turn, accent_turn, step = rng.random(5).tolist()
    chroma = 0.09 + 0.08 * chroma
    second = lightness + (0.17 if lightness < 0.62 else -0.17)
    return Palette(
        main=oklch(lightness, chroma, hue),
        second=oklch(second, chroma * 0.9, hue + 0.14 * (turn - 0.5)),
        accent=oklch(0.5 + 0.2 * step, 0.15, hue + 0.35 + 0.3 * accent_turn),
        ink=oklch(0.27, 0.04, hue),
        cream=oklch(0.95, 0.025, hue + 0.1),
    )
