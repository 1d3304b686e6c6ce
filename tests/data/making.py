"""Small images and trees of files, in the formats of the datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

TENCH, GOLDFISH, ZEBRA = "n01440764", "n01443537", "n02391049"  # 0, 1, 340


def noise(width: int = 12, height: int = 8, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def save(picture: Image.Image | np.ndarray, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(path, **options)
    return path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
