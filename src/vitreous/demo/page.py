"""One self-contained page: images, true evidence, maps and scores side by side."""

from __future__ import annotations

from functools import partial

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from vitreous import __version__, scenes
from vitreous.demo.sections import METHODS, ChapterResult, ExplainedClass
from vitreous.draw import overlay_image
from vitreous.draw.captions import probability, remarks
from vitreous.draw.notebook import to_data_url
from vitreous.methods.attribution import Attribution
from vitreous.report.formatting import make_breakable
from vitreous.report.gallery import find_mask_edge

SIDE = 224
EDGE = (11, 110, 79)  # colour of the outline around the evidence


def page(results: list[ChapterResult]) -> str:
    """Render the whole page as HTML that loads no other file."""
    templates = Environment(
        loader=PackageLoader("vitreous.demo"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    templates.filters |= {
        "breakable": make_breakable,
        "enlarge": enlarge,
        "evidence": draw_evidence,
        "overlay": draw_overlay,
        "remarks": remarks,
        "data_url": partial(to_data_url, kind="webp", quality=86),
        "class_name": scenes.CLASSES.__getitem__,
        "probability": probability,
    }
    return templates.get_template("demo.html").render(results=results, methods=METHODS, version=__version__)


def enlarge(image: np.ndarray) -> Image.Image:
    """A scene at the size of the page's images."""
    return Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def draw_overlay(attribution: Attribution) -> Image.Image:
    """The map over its image, on its own colour scale."""
    return overlay_image(attribution, longest=480).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def draw_evidence(explained: ExplainedClass) -> Image.Image:
    """The image with everything but the evidence faded, and the outline of the evidence."""
    mask = np.asarray(Image.fromarray(explained.evidence.numpy()).resize((SIDE, SIDE), Image.Resampling.NEAREST))
    image = np.asarray(enlarge(explained.scene.image), np.float32)
    faded = image.mean(-1, keepdims=True) * 0.35 + 150
    pixels = np.where(mask[..., None], image, faded)
    pixels[find_mask_edge(mask, 2) & ~mask] = EDGE
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
