"""Images for the page: what the model sees, the part that is cut off, thumbnails, and the outline of known evidence."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from vitreous.web.image_store import SceneName
from vitreous.web.model_pool import EMBEDDED
from vitreous.web.schemas import Crop

if TYPE_CHECKING:
    from vitreous.models.image_input import Preprocess

SIDE, THUMBNAIL_SIDE, CROP_SIDE = 560, 168, 360
OUTLINE_WIDTH = 2  # pixels on either side of the evidence's edge
DIMMED = 0.3  # brightness of what is cut off
VISIBLE_SHARE = 0.005  # a smaller cut is rounding


def encode_png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG", compress_level=4)
    return stream.getvalue()


def render_input(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    """Return the part of an image that the model sees, at the image's own resolution."""
    height, width = preprocess.size
    factor = SIDE / max(height, width)
    size = round(width * factor), round(height * factor)
    left, top, right, bottom = preprocess.window(image)
    box = max(left, 0.0), max(top, 0.0), min(right, float(image.width)), min(bottom, float(image.height))
    across, down = size[0] / (right - left), size[1] / (bottom - top)
    place = round((box[0] - left) * across), round((box[1] - top) * down)
    inner = max(round((box[2] - box[0]) * across), 1), max(round((box[3] - box[1]) * down), 1)
    canvas = Image.new("RGB", size, preprocess.fill if len(preprocess.fill) == 3 else preprocess.fill[:1] * 3)
    canvas.paste(image.resize(inner, Image.Resampling.LANCZOS, box=box), place)
    return canvas


def render_thumbnail(image: Image.Image) -> Image.Image:
    """Return the central square of an image, small."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return image.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS, box=box)


# ── what preprocessing cuts off ──────────────────────────────────────────────────────────────────


def describe_crop(size: tuple[int, int], preprocess: Preprocess) -> Crop:
    """Describe what a model sees of an image of this (height, width); the sentence is empty if it sees all of it."""
    height, width = size
    left, top, right, bottom = preprocess.window(size)
    box = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
    cut = {"left": box[0] / width, "top": box[1] / height, "right": 1 - box[2] / width, "bottom": 1 - box[3] / height}
    visible = max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0) / (width * height)
    padded = min(left / width, top / height, 1 - right / width, 1 - bottom / height) < -VISIBLE_SHARE
    return Crop(box=list(box), seen=visible, **cut, padded=padded, sentence=describe_cut(cut, visible, padded))


def describe_cut(cut: dict[str, float], visible: float, padded: bool) -> str:
    """Return one or two sentences about the cut, or an empty string where nothing is cut off or added."""
    parts = []
    for first, second, length in (("left", "right", "width"), ("top", "bottom", "height")):
        shares = {first: cut[first], second: cut[second]}
        if round(100 * cut[first]) == round(100 * cut[second]):
            shares = {f"{first} and {second} each": cut[first]}
        noticeable = {sides: share for sides, share in shares.items() if share >= VISIBLE_SHARE}
        parts += [f"{format_share(share)} of its {length} on the {sides}" for sides, share in noticeable.items()]
    sentences = []
    if parts:
        sentences.append(
            f"The model sees {format_share(visible)} of the image's area: preprocessing cuts off {' and '.join(parts)}."
        )
    if padded:
        sentences.append("The image is smaller than the model's input; the margin around it is filled with one colour.")
    return " ".join(sentences)


def format_share(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"


def render_crop(image: Image.Image, preprocess: Preprocess) -> Image.Image:
    """Return the whole image, small, with what the model does not see dimmed."""
    left, top, right, bottom = describe_crop((image.height, image.width), preprocess).box
    factor = CROP_SIDE / max(image.size)
    size = max(round(image.width * factor), 1), max(round(image.height * factor), 1)
    whole = image.resize(size, Image.Resampling.LANCZOS)
    across, down = size[0] / image.width, size[1] / image.height
    box = round(left * across), round(top * down), round(right * across), round(bottom * down)
    shown = whole.point([round(DIMMED * value) for value in range(256)] * 3)
    shown.paste(whole.crop(box), box[:2])
    if box[2] > box[0] and box[3] > box[1]:
        ImageDraw.Draw(shown).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), outline=(255, 255, 255), width=2)
    return shown


# ── known evidence ───────────────────────────────────────────────────────────────────────────────


def find_evidence(image: str, model: str) -> dict[int, np.ndarray]:
    """Return masks [H W] of the pixels that make a class, by class; they are known for scenes and the embedded models."""
    name = SceneName.parse(image)
    if name is None or model not in EMBEDDED:
        return {}
    scene = name.draw()
    masks = {scene_object.label: scene_object.evidence for scene_object in scene.objects}
    if model == "scenes-biased" and name.mark == "moved" and scene.mark is not None and scene.spurious is not None:
        masks[scene.mark] = scene.spurious
    return masks


def render_outline(mask: np.ndarray) -> Image.Image:
    """Return the edge of a mask in green within white, on a transparent background."""
    large = np.asarray(Image.fromarray(mask).resize((SIDE, SIDE), Image.Resampling.NEAREST))
    pixels = np.zeros((SIDE, SIDE, 4), np.uint8)
    for width, colour in ((OUTLINE_WIDTH + 1, (255, 255, 255, 235)), (OUTLINE_WIDTH, (20, 160, 111, 255))):
        pixels[dilate(large, width) & dilate(~large, width)] = colour
    return Image.fromarray(pixels)


def dilate(mask: np.ndarray, width: int) -> np.ndarray:
    """Grow a mask by `width` pixels in every direction, without wrapping around the edges."""
    return np.asarray(Image.fromarray(mask.astype(np.uint8)).filter(ImageFilter.MaxFilter(2 * width + 1)), bool)
