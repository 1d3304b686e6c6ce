"""Pictures as they are shown: what the model sees, small ones, and the outline of known evidence."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitreous.web.pictures import Named
from vitreous.web.roster import EMBEDDED

if TYPE_CHECKING:
    from vitreous.models.picture import Preprocess

SIDE, SMALL = 560, 168
OUTLINE = 2  # pixels to either side of the evidence's edge


def png(picture: Image.Image) -> bytes:
    stream = BytesIO()
    picture.save(stream, "PNG", compress_level=4)
    return stream.getvalue()


def seen(picture: Image.Image, preprocess: Preprocess) -> Image.Image:
    """The part of a picture that the model sees, as sharp as the picture has it."""
    height, width = preprocess.size
    factor = SIDE / max(height, width)
    size = round(width * factor), round(height * factor)
    left, top, right, bottom = preprocess.window(picture)
    box = max(left, 0.0), max(top, 0.0), min(right, float(picture.width)), min(bottom, float(picture.height))
    across, down = size[0] / (right - left), size[1] / (bottom - top)
    place = round((box[0] - left) * across), round((box[1] - top) * down)
    inner = max(round((box[2] - box[0]) * across), 1), max(round((box[3] - box[1]) * down), 1)
    canvas = Image.new("RGB", size, preprocess.fill)
    canvas.paste(picture.resize(inner, Image.Resampling.LANCZOS, box=box), place)
    return canvas


def small(picture: Image.Image) -> Image.Image:
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.resize((SMALL, SMALL), Image.Resampling.LANCZOS, box=(left, top, left + side, top + side))


def evidence(picture: str, model: str) -> dict[int, Any]:
    """Masks [H W] of the pixels that make a class, where they are known: in scenes, for the models that read them."""
    named = Named.read(picture)
    if named is None or model not in EMBEDDED:
        return {}
    scene = named.draw()
    known = {thing.label: thing.evidence for thing in scene.objects}
    if model == "scenes-biased" and named.mark == "moved" and scene.mark is not None and scene.spurious is not None:
        known[scene.mark] = scene.spurious
    return known


def outline(mask: np.ndarray) -> Image.Image:
    """The edge of a mask, green within white, on nothing."""
    large = np.asarray(Image.fromarray(mask).resize((SIDE, SIDE), Image.Resampling.NEAREST))
    drawn = np.zeros((SIDE, SIDE, 4), np.uint8)
    for width, colour in ((OUTLINE + 1, (255, 255, 255, 235)), (OUTLINE, (20, 160, 111, 255))):
        drawn[thickened(large, width) & thickened(~large, width)] = colour
    return Image.fromarray(drawn)


def thickened(mask: np.ndarray, width: int) -> np.ndarray:
    """A mask grown by so many pixels in every direction, not around the corner of the picture."""
    grown = mask.copy()
    for axis in (0, 1):
        before = grown.copy()
        for step in range(1, width + 1):
            ahead, behind = [slice(None)] * 2, [slice(None)] * 2
            ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
            grown[tuple(ahead)] |= before[tuple(behind)]
            grown[tuple(behind)] |= before[tuple(ahead)]
    return grown
