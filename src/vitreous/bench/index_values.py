"""Values of the index of a store that contain a hash or a checksum, so that damage is noticed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from vitreous.core.digests import digest


def hash_run(name: str, plan: str, started: float, about: str) -> str:
    """Hash of the description of a run."""
    return digest(json.dumps([name, plan, started, about]).encode(), size=8)


def pack_listing(run: str, cell: int, listing: Mapping[str, Any]) -> bytes:
    """The listing of a cell as the index keeps it, which contains the place where it belongs and a checksum."""
    return zlib.compress(json.dumps({**listing, "place": [run, cell]}, separators=(",", ":")).encode())


def unpack_listing(run: str, cell: int, packed: bytes) -> dict[str, Any] | None:
    """The listing of a cell; None if it is damaged."""
    try:
        listing = json.loads(zlib.decompress(packed))
        return listing if listing.pop("place") == [run, cell] else None
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError):
        return None
