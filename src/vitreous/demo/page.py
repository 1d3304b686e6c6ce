"""One self-contained page: images, true evidence, maps and scores side by side."""

from __future__ import annotations

import re
from base64 import b64encode
from io import BytesIO

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vitreous import __version__, scenes
from vitreous.demo.sections import METHODS, ChapterResult, ExplainedClass
from vitreous.draw import overlay_image
from vitreous.draw.captions import remarks
from vitreous.methods.attribution import Attribution

SIDE = 224
EDGE = (11, 110, 79)  # colour of the outline around the evidence


def page(results: list[ChapterResult]) -> str:
    """Render the whole page as HTML that loads no other file."""
    templates = Environment(
        loader=PackageLoader("vitreous.demo"), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    templates.filters |= {
        "allow_breaks": allow_breaks,
        "enlarge": enlarge,
        "evidence": draw_evidence,
        "overlay": draw_overlay,
        "remarks": remarks,
        "data_url": to_data_url,
        "class_name": scenes.CLASSES.__getitem__,
        "probability": compute_class_probability,
    }
    return templates.get_template("demo.html").render(
        results=results, methods=METHODS, best=find_best_scores(results), version=__version__
    )


def find_best_scores(results: list[ChapterResult]) -> list[dict[str, float]]:
    """Highest pointing and precision of each chapter."""
    measures = ("pointing", "precision")
    return [{name: max(getattr(score, name) for score in result.scores) for name in measures} for result in results]


def compute_class_probability(explained: ExplainedClass) -> float:
    """Softmax probability of the explained class."""
    logits = next(iter(explained.attributions.values())).logits
    assert logits is not None  # `explain` sets them
    return logits[0].softmax(-1)[explained.target].item()


def allow_breaks(spec: str) -> Markup:
    """A method spec that may be broken after a joint."""
    return Markup("<wbr>").join(re.split(r"(?<=[+(])", spec))


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
    edge = np.zeros_like(mask)
    for axis in (0, 1):
        for step in (-2, -1, 1, 2):
            edge |= mask ^ np.roll(mask, step, axis)
    pixels = np.where(mask[..., None], image, faded)
    pixels[edge & ~mask] = EDGE
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def to_data_url(image: Image.Image) -> str:
    """An image as a data URL."""
    buffer = BytesIO()
    image.convert("RGB").save(buffer, "WEBP", quality=86)
    return f"data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}"
