"""Open images from files, bytes, arrays and PIL images, as upright RGB; errors name the file."""

from __future__ import annotations

import warnings
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vitreous.core.errors import DataError, ShapeError, unexpected_errors_as
from vitreous.models.image_bands import show_bands, with_bands

Source: TypeAlias = str | Path | bytes | Image.Image | np.ndarray | Tensor

CHANNELS = (1, 3, 4)  # grey, RGB, RGBA


def open_image(source: Source) -> Image.Image:
    """Open an image as upright RGB with 8 bits per channel.

    Parameters
    ----------
    source
        A path, the bytes of a file, a PIL image, or an array or tensor of uint8 or uint16 (see `image_of_array`), also as a
        .npy file.

    Returns
    -------
    PIL.Image.Image
        Rotated as the EXIF orientation says, transparent pixels composited on white, and greyscale of more than 8 bits
        scaled to 0 to 255. What this form has no room for (more bits, or other bands) is kept for models that take it
        (`vitreous.models.image_bands`).

    Raises
    ------
    DataError
        If the file is missing, empty, damaged, too large or not an image.
    ShapeError
        If an array does not have the shape or dtype of an image.
    """
    return open_upright(source)[0]


def open_upright(source: Source) -> tuple[Image.Image, int]:
    """The image as `open_image` returns it, and its EXIF orientation, 1 to 8; 1 (upright) if missing or invalid."""
    data, name = read_source(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large images and invalid metadata, which can still be opened
        try:
            image = data if isinstance(data, Image.Image) else Image.open(BytesIO(data))
            image.load()
            if image.format == "PNG" and isinstance(data, bytes) and misses_rows(data, image):
                raise DataError(f"{name} is cut short: its last rows are missing; save it again in full")
        except DataError:
            raise
        except UnidentifiedImageError:
            raise DataError(f"{name} is not an image that can be read; PNG, JPEG, WebP or TIFF would work") from None
        except Image.DecompressionBombError:
            limit = f"{2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels (twice PIL.Image.MAX_IMAGE_PIXELS)"
            raise DataError(f"{name} has more than {limit}; scale it down, or raise that limit") from None
        except Exception:  # noqa: BLE001 - decoders fail in many ways on a damaged file
            raise DataError(f"{name} is damaged or cut short; save it again in full") from None
        if not all(image.size):
            raise DataError(f"{name} has no pixels")
        orientation = 1
        with suppress(Exception):  # with invalid EXIF data the orientation is unknown
            upright = ImageOps.exif_transpose(image)
            image, orientation = upright, image.getexif().get(ExifTags.Base.Orientation, 1)
        return to_rgb(image, name), orientation if orientation in range(1, 9) else 1


def misses_rows(data: bytes, image: Image.Image) -> bool:
    """Whether a PNG file ends before its last row, which Pillow leaves black without an error."""
    width, height, depth, colours, interlaced = *image.size, data[24], data[25], data[28]
    if not interlaced and np.asarray(image)[-1].any():  # the last row was written
        return False
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    sizes = ((-(-(width - x) // across), -(-(height - y) // down)) for x, y, across, down in passes)
    expected = sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns > 0 and rows > 0)
    inflate, size, start = zlib.decompressobj(), 0, 8
    while start + 8 <= len(data) and size < expected:
        length, kind = int.from_bytes(data[start : start + 4]), data[start + 4 : start + 8]
        if kind == b"IDAT":
            size += len(inflate.decompress(data[start + 8 : start + 8 + length]))
        start += 12 + length
    return size < expected


ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)  # x, y, steps


def read_source(source: Source) -> tuple[bytes | Image.Image, str]:
    """Content of the source (the bytes of a file, or a PIL image), and its name for error messages."""
    match source:
        case Image.Image():
            file = getattr(source, "filename", "")
            return source, f"'{file}'" if file else "the image"
        case np.ndarray() | Tensor():
            return image_of_array(source), "the image"
        case str() | Path() if Path(source).suffix == ".npy" and Path(source).is_file():
            return image_of_array(read_array(Path(source))), f"'{source}'"
        case bytes():
            data, name = source, f"the image ({len(source)} bytes)"
        case _:
            name = f"'{source}'"
            try:
                data = Path(source).read_bytes()
            except FileNotFoundError:
                raise DataError(f"no image at {name}; give the path of a local file") from None
            except (OSError, ValueError) as error:
                raise DataError(f"{name} cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if not data:
        raise DataError(f"{name} is empty")
    return data, name


def read_array(path: Path) -> np.ndarray:
    with unexpected_errors_as(lambda why: DataError(f"'{path}' is not an array that numpy can read ({why})")):
        return np.load(path, allow_pickle=False)


def image_of_array(array: np.ndarray | Tensor) -> Image.Image:
    """Convert an array to a PIL image: [H, W] grey, or with 1 (grey), 3 (RGB), 4 (RGBA) or other numbers of channels.

    Values are uint8, or uint16, in which 65535 is white. Channels are the last axis of a numpy array and the first axis of
    a tensor. The other order is assumed only if the shape does not fit the usual one.
    """
    pixels = array.numpy(force=True) if isinstance(array, Tensor) else array
    if pixels.dtype not in (np.uint8, np.uint16):
        raise ShapeError(
            f"an array of {pixels.dtype} does not say which value is white; give uint8 from 0 to 255 ([H, W, 3]), a PIL image, "
            "or a float tensor [b, 3, H, W] that is normalised as the model takes it"
        )
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    bands = as_bands(pixels, isinstance(array, Tensor))
    if bands is not None:
        return show_bands(bands)
    if pixels.ndim == 3:
        first, last = pixels.shape[0] in CHANNELS, pixels.shape[-1] in CHANNELS
        if first and (isinstance(array, Tensor) or not last):
            pixels = pixels.transpose(1, 2, 0)
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] in CHANNELS)):
        raise ShapeError(
            f"an image is [H, W], [H, W, 3] or [H, W, 4], or [3, H, W] as a tensor, not {list(array.shape)}; "
            "several are a list of such, or [b, H, W, 3]"
        )
    if not pixels.size:
        raise DataError("the image has no pixels")
    return Image.fromarray(np.ascontiguousarray(pixels))


def as_bands(pixels: np.ndarray, channels_first: bool) -> np.ndarray | None:
    """Bands [H, W, c] of an array with another number of channels than RGB has, or of 16 bits; else None."""
    if pixels.ndim == 2 and pixels.dtype == np.uint16:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or not pixels.size:
        return None
    counts = [(pixels.shape[0], 0), (pixels.shape[-1], 2)]
    counts = counts if channels_first else counts[::-1]
    axis = next((axis for count, axis in counts if count in CHANNELS), None)
    if axis is not None and pixels.dtype == np.uint8:
        return None
    if axis is None:  # channels are fewer than rows and columns
        axis = next((axis for count, axis in counts if count < min(np.delete(pixels.shape, axis))), None)
    if axis is None:
        return None
    bands = np.moveaxis(pixels, axis, -1)
    return bands if bands.dtype == np.uint8 else levels(bands, "I;16")


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert any mode to RGB; transparent pixels are composited on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return show_bands(levels(np.asarray(image), image.mode)[..., None])
    try:
        # Four bands of a TIFF file or of an array may be those of a satellite, which a model of four channels takes.
        bands = np.asarray(image) if image.mode in ("RGBA", "CMYK") and image.format in (None, "TIFF") else None
        if image.has_transparency_data:
            front = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front)
        return image.convert("RGB") if bands is None else with_bands(image.convert("RGB"), bands)
    except ValueError:
        raise DataError(f"{name} has colours in mode {image.mode!r}, which cannot be shown as RGB") from None


def levels(values: np.ndarray, mode: str) -> np.ndarray:
    """Values of more than 8 bits, scaled to 0 to 255 and not rounded.

    The range is 0 to 65535 (16 bits), 0 to 1 or 0 to 255, chosen by mode and maximum. If values lie outside of it, the
    range is from the minimum to the maximum of the image.
    """
    values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    full = 65535 if mode.startswith("I;16") or (mode == "I" and high > 255) else 1 if mode == "F" and high <= 1 else 255
    if low >= 0 and high <= full:
        low, high = 0, full
    return ((values - low) / ((high - low) or 1) * 255).astype(np.float32)


def resize_by_torch(image: Image.Image, size: tuple[int, int], method: Image.Resampling) -> Image.Image:
    """Resize by torchvision on tensors, which rounds differently from Pillow."""
    from torchvision.transforms.v2 import InterpolationMode, functional

    pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, -1).permute(2, 0, 1)
    pixels = functional.resize(pixels, [size[1], size[0]], InterpolationMode(method.name.lower()), antialias=True)
    resized = pixels.permute(1, 2, 0).numpy()
    return Image.fromarray(resized if image.mode == "RGB" else resized[..., 0])
