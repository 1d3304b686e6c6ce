"""Attributions made by hand, for drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.methods.attribution import Attribution
from vitreous.models.picture import Preprocess
from vitreous.models.vit import Layout

GRID, PATCH = 8, 8


def grey(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (128, 128, 128))


def attribution(patches: Any, *, width: int = 640, height: int = 480, **changes: Any) -> Attribution:
    """Rows of 8x8 patches about a grey picture of which the model sees the middle square."""
    patches = torch.as_tensor(patches, dtype=torch.float32).reshape(-1, GRID * GRID)
    rows = len(patches)
    facts = {
        "layout": Layout((GRID, GRID), (PATCH, PATCH), 1),
        "targets": torch.arange(rows),
        "method": "made(by='hand')+plus",
        "logits": torch.zeros(rows, rows + 3),
        "names": tuple(f"thing {row}" for row in range(rows)),
        "pictures": tuple(grey(width, height) for _ in range(rows)),
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
    """Everything that is written on a figure."""
    texts = [text.get_text() for text in figure.texts]
    return "\n".join([*texts, *(tick.get_text() for axes in figure.axes for tick in axes.get_xticklabels())])
