"""Values of an image for which its 8-bit RGB form has no room: greyscale of more than 8 bits, and other numbers of bands.

They travel in the `info` of the RGB image, which is what is drawn, and are used only while its pixels are those that they
were stored with.
"""

from __future__ import annotations

import zlib

import numpy as np
from PIL import Image

from vitreous.core.errors import ShapeError

KEY = "vitreous_bands"  # in `Image.info`: values uint8 or float32 [H, W, bands], from 0 to 255, and a checksum of the pixels


def with_bands(image: Image.Image, bands: np.ndarray) -> Image.Image:
    """The RGB image with `bands`, values from 0 to 255 [H, W, bands], which `bands_of` returns."""
    image.info[KEY] = (bands, checksum(image))
    return image


def show_bands(bands: np.ndarray) -> Image.Image:
    """An RGB image in 8 bits: of three or more bands the first three; one, or the mean of two, in grey."""
    shown = bands[..., :3] if bands.shape[-1] >= 3 else np.repeat(bands.mean(-1, keepdims=True), 3, axis=-1)
    return with_bands(Image.fromarray(np.ascontiguousarray(shown.round().astype(np.uint8))), bands)


def kept_bands(image: Image.Image) -> np.ndarray | None:
    """The values that an RGB image keeps, or None; also None if the image was changed after they were stored."""
    bands, stored = image.info.get(KEY, (None, 0))
    return bands if bands is not None and stored == checksum(image) else None


def checksum(image: Image.Image) -> int:
    return zlib.crc32(image.tobytes(), image.width)


def bands_of(image: Image.Image, count: int) -> list[Image.Image]:
    """Bands of an RGB image for a model of `count` channels, as images of 8 bits (mode L), or of floats from 0 to 255 (mode F).

    Parameters
    ----------
    image
        As returned by `open_image`.
    count
        1: greyscale, of more than 8 bits if the file has them. 3: the colours. Others: as many bands as the image has.

    Raises
    ------
    ShapeError
        If the image has another number of bands.
    """
    bands = kept_bands(image)
    channels = 3 if bands is None else bands.shape[-1]
    if bands is not None and channels == count:
        return [Image.fromarray(np.ascontiguousarray(band)) for band in np.moveaxis(bands, -1, 0)]
    if count == 1 and channels in (3, 4):
        return [image.convert("L")]
    if count == 3 and channels in (1, 3, 4):
        return list(image.split())
    raise ShapeError(
        f"the image has {channels} channel{'' if channels == 1 else 's'}, and the model takes {count}; a uint8 or uint16 array "
        f"[H, W, {count}], a .npy file of one, or a tensor [b, {count}, H, W] would work"
    )


def shown_at_full_contrast(image: Image.Image) -> Image.Image:
    """Greyscale of more than 8 bits from its darkest to its brightest value; other images as they are.

    A radiograph uses a part of its 16 bits and would be drawn nearly black.
    """
    bands = kept_bands(image)
    if bands is None or bands.dtype == np.uint8 or bands.shape[-1] != 1:
        return image
    low, high = float(bands.min()), float(bands.max())
    grey = ((bands[..., 0] - low) / ((high - low) or 1) * 255).round().astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")
