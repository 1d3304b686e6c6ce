"""Attributions made by hand, for drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from vitreous.methods.attribution import Attribution
from vitreous.models.image_input import Preprocess
from vitreous.models.vit import Layout

GRID, PATCH = 8, 8


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (128, 128, 128))


def attribution(patches: Any, *, width: int = 480, height: int = 360, **changes: Any) -> Attribution:
    """Rows of 8x8 patches of the central square of a grey image."""
    patches = torch.as_tensor(patches, dtype=torch.float32).reshape(-1, GRID * GRID)
    rows = len(patches)
    facts = {
        "layout": Layout((GRID, GRID), (PATCH, PATCH), 1),
        "targets": torch.arange(rows),
        "method": "made(by='hand')+plus",
        "logits": torch.zeros(rows, rows + 3),
        "names": tuple(f"thing {row}" for row in range(rows)),
        "originals": tuple(grey(width, height) for _ in range(rows)),
        "preprocess": Preprocess.plain(GRID * PATCH),
        "provenance": {"model": "timm:made_by_hand", "question": "logit"},
    }
    return Attribution(patches=patches, **{**facts, **changes})


def one_hot(row: int, column: int, value: float = 1.0) -> torch.Tensor:
    grid = torch.zeros(GRID, GRID)
    grid[row, column] = value
    return grid


def redness(picture: Image.Image) -> np.ndarray:
    """How much more red than blue every pixel is."""
    pixels = np.asarray(picture).astype(int)
    return pixels[..., 0] - pixels[..., 2]


def words(figure: Any) -> str:
    """All texts of a figure."""
    texts = [text.get_text() for text in figure.texts]
    return "\n".join([*texts, *(tick.get_text() for axes in figure.axes for tick in axes.get_xticklabels())])


def check_texts_fit(figure: Any) -> None:
    """Measure a figure and check that all its texts, also the numbers at colour bars, lie on it and apart."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    with rc_context({"text.hinting": "none"}):  # as figures draw themselves
        for axes in figure.axes:
            axes.get_tightbbox(renderer)  # places the tick labels, without painting the images
        check_boxes(figure, renderer)


def check_boxes(figure: Any, renderer: Any) -> None:
    texts = [*figure.texts, *(tick for axes in figure.axes if axes.axison for tick in axes.get_xticklabels())]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts if text.get_text()]
    page = figure.bbox
    for text, box in boxes:
        assert page.x0 <= box.x0, text
        assert box.x1 <= page.x1, text
        assert page.y0 <= box.y0, text
        assert box.y1 <= page.y1, text
    for place, (text, box) in enumerate(boxes):
        for other_text, other in boxes[place + 1 :]:
            assert not box.shrunk(0.9, 0.6).overlaps(other.shrunk(0.9, 0.6)), (text, other_text)


def joined(figure: Any) -> str:
    """All texts of a figure without spaces, so that a wrapped caption can be found as a whole."""
    return "".join("".join(text.get_text().split()) for text in figure.texts)
