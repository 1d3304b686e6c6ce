"""Read images, masks and tables from files; error messages name the file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from vitreous.core.errors import DataError, VitreousError, message_of, unexpected_errors_as
from vitreous.data.sample import Boxes, Mask
from vitreous.models.image_decoding import open_upright

SUFFIXES = (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


def other_errors_as(sentence: str, *kinds: type[Exception]) -> AbstractContextManager[None]:
    """Context that raises `DataError` for exceptions of these kinds, by default for all but those of this library.

    Decoders, file formats and kinds of storage have many exceptions of their own. `{reason}` in the sentence is replaced by
    the message of the exception, or its type if it has none.
    """

    def error(reason: str) -> DataError:
        return DataError(sentence.replace("{reason}", reason))

    return unexpected_errors_as(error, *kinds, describe=lambda problem: message_of(problem) or type(problem).__name__)


def is_image_name(name: str) -> bool:
    """Whether a file name has the suffix of an image and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")  # macOS adds files such as ._x.jpg to archives


def list_images(root: Path, skip: tuple[str, ...] = ()) -> list[str]:
    """Sorted paths of all images below a folder, relative to it; folders named in `skip` are left out."""
    paths = []
    for folder, subfolders, names in os.walk(root, followlinks=True):
        subfolders[:] = sorted(
            subfolder for subfolder in subfolders if not subfolder.startswith(".") and subfolder not in skip
        )
        paths += [(Path(folder) / name).relative_to(root).as_posix() for name in names if is_image_name(name)]
    return sorted(paths)


def match_files(path: Path, inside: str) -> dict[Path, list[Path]]:
    """Files by pattern, for every pattern that a path with braces stands for.

    Parameters
    ----------
    path
        A path or a pattern, with braces as for `expand_braces`.
    inside
        Pattern of the files of a folder that matches.
    """
    matches = {}
    for pattern in map(Path, expand_braces(str(path))):
        paths = sorted(pattern.parent.glob(pattern.name)) if "*" in pattern.name or "?" in pattern.name else [pattern]
        matches[pattern] = [file for own in paths for file in (sorted(own.glob(inside)) if own.is_dir() else [own])]
    return matches


def expand_braces(text: str) -> list[str]:
    """All texts that a text with ranges and alternatives in braces stands for.

    Examples
    --------
    >>> expand_braces("a-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar']
    """
    pieces = re.split(r"(\{[^{}]*\})", text)
    options = [list_alternatives(piece) if piece.startswith("{") else [piece] for piece in pieces]
    return ["".join(choice) for choice in product(*options)]


def list_alternatives(piece: str) -> list[str]:
    inner = piece[1:-1]
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        return [str(number).zfill(len(match[1])) for number in range(int(match[1]), int(match[2]) + 1)]
    return inner.split(",")


class StoredImage:
    """An image file and its annotations in pixels as stored, which are turned upright as the image is.

    Parameters
    ----------
    source
        Path or content of the file.
    where
        Begin of the error message if it cannot be opened; by default the message of `open_upright` alone.

    Attributes
    ----------
    image
        The image, upright.
    orientation
        EXIF orientation of the file, 1 to 8.
    """

    def __init__(self, source: Path | bytes, where: str = "") -> None:
        try:
            self.image, self.orientation = open_upright(source)
        except VitreousError as problem:
            raise DataError(f"{where}: {problem}" if where else str(problem)) from None

    def turn(self, values: np.ndarray) -> np.ndarray:
        """Values per pixel, turned upright: orientations 2 to 4 flip axes, 5 to 8 also swap height and width."""
        values = values.swapaxes(0, 1) if self.orientation >= 5 else values
        rows = -1 if self.orientation in (3, 4, 7, 8) else 1
        columns = -1 if self.orientation in (2, 3, 6, 7) else 1
        return np.ascontiguousarray(values[::rows, ::columns])

    def turn_boxes(self, boxes: Boxes) -> Boxes:
        """Boxes, turned upright."""
        x, y = boxes[:, 0::2], boxes[:, 1::2]
        if self.orientation >= 5:
            x, y = y, x
        x = self.image.width - x[:, ::-1] if self.orientation in (2, 3, 6, 7) else x
        y = self.image.height - y[:, ::-1] if self.orientation in (3, 4, 7, 8) else y
        return np.stack([x, y], -1).reshape(-1, 4)

    def place_boxes(self, rows: Sequence[Sequence[float]]) -> Boxes:
        """Annotated boxes, in pixels of the image and turned upright.

        A row is x0 y0 x1 y1 width height; the last two are the size of the image that the box was annotated in, or 0 if
        it is that of the file.
        """
        stored = self.image.size if self.orientation < 5 else self.image.size[::-1]
        drawn = np.asarray(rows, dtype=np.float64).reshape(-1, 6)
        sides = np.where(drawn[:, 4:] > 0, drawn[:, 4:], stored)
        return self.turn_boxes(drawn[:, :4] * np.tile(np.asarray(stored) / sides, 2))

    def read_mask(self, source: Path | bytes, ignore: int | None = None, name: str = "") -> Mask:
        """Mask file as 0 where it is 0, -1 where it is `ignore` and 1 elsewhere; otherwise as `read_mask_ids`."""
        ids = self.read_mask_ids(source, name)
        mask = (ids != 0).astype(np.int8)
        if ignore is not None:
            mask[ids == ignore] = -1
        return mask

    def read_mask_ids(self, source: Path | bytes, name: str = "") -> np.ndarray:
        """Values of a mask file with one number per pixel [H W]; equal colour channels are reduced to one."""
        ids = self.read_mask_values(source, name)
        if ids.ndim == 2:
            return ids
        colours = ids[..., :3] if ids.shape[-1] >= 3 else ids[..., :1]
        if (colours != colours[..., :1]).any():
            name = name or f"'{source}'"
            raise DataError(f"the mask {name} is in colour; one number per pixel (a grey or palette PNG) would work")
        return colours[..., 0]

    def read_mask_values(self, source: Path | bytes, name: str = "") -> np.ndarray:
        """Values of a mask file, [H W] or [H W channels], turned upright; `name` is that of the mask in error messages."""
        name = name or f"'{source}'"
        if isinstance(source, Path) and not source.is_file():
            raise DataError(f"there is no mask at {name}")
        with (
            other_errors_as(f"the mask {name} is damaged or not an image; a whole PNG would work"),
            Image.open(BytesIO(source) if isinstance(source, bytes) else source) as stored,
        ):
            # Of a palette image, the indices are the ids; the colours are for display only.
            values = np.asarray(stored.convert("L") if stored.mode in ("1", "LA") else stored)
        return self.turn(values)


def read_table(path: Path, *needed: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers (header: 1) and rows of a CSV file; raise `DataError` if a needed column or value is missing."""
    layout = f"a CSV file whose first line names the columns {', '.join(needed)}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no table at '{path}'; expected {layout}") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"'{path}' cannot be read ({problem}); expected {layout}") from None
    table = csv.DictReader(text.splitlines())
    if missing := [column for column in needed if column not in (table.fieldnames or ())]:
        raise DataError(f"'{path}' has no column {', '.join(missing)}; expected {layout}")
    for row in table:
        if any(row[column] is None for column in needed):
            raise DataError(f"line {table.line_num} of '{path}' is cut short; expected {layout}")
        yield table.line_num, {key: (value or "").strip() for key, value in row.items() if key is not None}


def parse_number(text: Any, where: str, kind: Literal["whole", "any"] = "any") -> float:
    """Parse a finite number (an integer if `kind` is "whole"); else raise `DataError` that begins with `where`."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value) or (kind == "whole" and value != int(value)):
        raise DataError(f"{where} has {text!r} where a {'whole ' if kind == 'whole' else ''}number was expected")
    return value


def decode_image(source: Path | bytes, where: str) -> Image.Image:
    """Upright image; if it cannot be opened, raise `DataError` that begins with `where`."""
    return StoredImage(source, where).image
