"""The images that requests may name: bundled scenes by name, uploads by the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import DataError
from vitreous.web.cache import Cache
from vitreous.web.model_pool import NotAvailable
from vitreous.web.settings import Settings

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitreous.scenes import Scene

SCENE = r"(single|pair|part|shortcut)-(0|[1-9]\d{0,3})-(0|[1-9]\d{0,3})(?:-(moved|absent))?"
UPLOAD = r"[0-9a-f]{64}"
NAME = rf"^(?:{SCENE}|{UPLOAD})$"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
MAX_SIDE = 20_000  # pixels; each row or column of an image costs time, however few pixels it has
ALBUM = (
    "pair-1-6",
    "shortcut-1-1-moved",
    "single-1-4",
    "part-1-1",
    "pair-1-4",
    "part-1-7",
    "single-1-1",
    "shortcut-1-0-moved",
)
CAPTIONS = {
    "single": "one object",
    "pair": "two objects",
    "part": "one mark decides",
    "shortcut": "a domino reveals it",
}


@dataclass(frozen=True, slots=True)
class SceneName:
    """The parts of a scene's name."""

    kind: str
    seed: int
    index: int
    mark: str | None

    @classmethod
    def parse(cls, name: str) -> SceneName | None:
        """Parse "pair-1-6" or "shortcut-1-1-moved"; None for any other name."""
        match = re.fullmatch(SCENE, name)
        return match and cls(match[1], int(match[2]), int(match[3]), match[4] if match[1] == "shortcut" else None)

    @property
    def caption(self) -> str:
        return CAPTIONS[self.kind]

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `vitreous.scenes.draw`."""
        mark = {} if self.mark is None else {"mark": self.mark}
        return {"seed": self.seed, "index": self.index, **mark}

    def draw(self) -> Scene:
        """Draw the scene."""
        from vitreous.scenes import draw

        return draw(self.kind, **self.arguments)

    @property
    def python(self) -> str:
        """The call that draws it."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"vitreous.scenes.draw({self.kind!r}, {arguments})"


class ImageStore:
    """Uploads are kept in memory only, the latest of them; scenes are drawn on demand."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self._uploads = settings, Cache(settings.cache)

    def add(self, data: bytes) -> tuple[str, int, int]:
        """Store an upload after checking that it is an image; return its name, width and height."""
        image = open_upload(data, self.settings.pixels)
        name = hashlib.sha256(data).hexdigest()
        self._uploads.put(name, data)
        return name, image.width, image.height

    def find(self, name: str) -> SceneName | bytes:
        """Return the scene of this name or the bytes of an upload; raise `NotAvailable` for a forgotten upload."""
        source = SceneName.parse(name) or self._uploads.get(name)
        if source is None:
            raise NotAvailable("that image is not here any more; drop it again, or choose a bundled one")
        return source

    def get(self, name: str) -> Image:
        """Return the image, upright and in RGB; raise `NotAvailable` for a forgotten upload."""
        from PIL import Image

        source = self.find(name)
        if isinstance(source, bytes):
            return open_upload(source, self.settings.pixels)
        return Image.fromarray(source.draw().image)


def open_upload(data: bytes, max_pixels: int) -> Image:
    """Decode an untrusted image; its format and size are checked before any of it is unpacked."""
    from PIL import Image

    from vitreous.models.image_input import open_image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise DataError(f"the image has more than {max_pixels:,} pixels; scale it down") from None
    except Exception:  # noqa: BLE001 - damaged headers raise many types
        raise DataError(
            "that is not an image, or a damaged one; PNG, JPEG, WebP, GIF, BMP or TIFF would work"
        ) from None
    width, height = header.size
    if width * height > max_pixels:
        raise DataError(f"the image has {width:,} × {height:,} pixels, more than {max_pixels:,}; scale it down")
    if max(width, height) > MAX_SIDE:
        raise DataError(f"the image has {width:,} × {height:,} pixels, more than {MAX_SIDE:,} on a side; crop it")
    return open_image(header)
