"""Which pictures may be asked about: scenes by name, uploads by the hash of their bytes."""

from __future__ import annotations

import hashlib
import re
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import DataError
from vitreous.web.cache import Cache
from vitreous.web.roster import Unknown
from vitreous.web.settings import Settings

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitreous.scenes import Scene

SCENE = r"(single|pair|part|shortcut)-(0|[1-9]\d{0,3})-(0|[1-9]\d{0,3})(?:-(moved|absent))?"
UPLOAD = r"[0-9a-f]{64}"
NAME = rf"^(?:{SCENE}|{UPLOAD})$"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
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
WORDS = {
    "single": "one object",
    "pair": "two objects",
    "part": "one mark decides",
    "shortcut": "a domino gives it away",
}


@dataclass(frozen=True, slots=True)
class Named:
    """A scene by its name."""

    kind: str
    seed: int
    index: int
    mark: str | None

    @classmethod
    def read(cls, name: str) -> Named | None:
        found = re.fullmatch(SCENE, name)
        return found and cls(found[1], int(found[2]), int(found[3]), found[4] if found[1] == "shortcut" else None)

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.mark is None else {"mark": self.mark}

    def draw(self) -> Scene:
        from vitreous.scenes import draw

        return draw(self.kind, self.seed, self.index, **self.options)

    @property
    def python(self) -> str:
        mark = "" if self.mark is None else f", mark={self.mark!r}"
        return f"vitreous.scenes.draw({self.kind!r}, seed={self.seed}, index={self.index}{mark})"


class Pictures:
    """Uploads live in memory alone, the latest of them; scenes are drawn when they are asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self._uploads = settings, Cache(settings.cache)

    def add(self, data: bytes) -> tuple[str, int, int]:
        """Keep a picture that was found to be one: its name, width and height."""
        picture = opened(data, self.settings.pixels)
        name = hashlib.sha256(data).hexdigest()
        self._uploads.put(name, data)
        return name, picture.width, picture.height

    def has(self, name: str) -> bool:
        return Named.read(name) is not None or self._uploads.get(name) is not None

    def get(self, name: str) -> Image:
        """The picture, upright and in RGB."""
        from PIL import Image

        scene = Named.read(name)
        if scene is not None:
            return Image.fromarray(scene.draw().image)
        data = self._uploads.get(name)
        if data is None:
            raise missing()
        return opened(data, self.settings.pixels)


def missing() -> Unknown:
    return Unknown("that picture is not here any more; drop it again, or choose a bundled one")


def opened(data: bytes, most: int) -> Image:
    """A picture from a stranger: its kind and size are read before any of it is unpacked."""
    from PIL import Image

    from vitreous.models.picture import open_picture

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = Image.open(BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        raise DataError(f"the picture has more than {most:,} pixels; scale it down") from None
    except Exception:  # noqa: BLE001 - headers fail in many ways
        raise DataError(
            "that is not a picture, or a damaged one; PNG, JPEG, WebP, GIF, BMP or TIFF would work"
        ) from None
    width, height = header.size
    if width * height > most:
        raise DataError(f"the picture has {width:,} × {height:,} pixels, more than {most:,}; scale it down")
    return open_picture(header)
