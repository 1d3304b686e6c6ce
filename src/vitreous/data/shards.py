"""WebDataset shards: tar files in which the files of a sample follow each other.

They are `key.jpg`, `key.cls`, `key.json` and `key.mask.png`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitreous.core.errors import DataError
from vitreous.data.files import SUFFIXES, StoredImage, match_files, other_errors_as, parse_number
from vitreous.data.reader import contains, expand_path, reader
from vitreous.data.sample import Album, Sample, digest, make_album

LAYOUT = "uncompressed tar files of key.jpg (or png, webp), key.cls or key.json, and key.mask.png if there are masks"
IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
MASKS = ("mask.png", "seg.png")
LABELS = ("label", "cls")


class Part(NamedTuple):
    """A file of a shard: its position in bytes, and its content if that is already in memory."""

    shard: Path | str
    offset: int
    size: int
    content: bytes | None = None

    def read(self) -> bytes:
        if self.content is not None:
            return self.content
        with Path(self.shard).open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def is_shards(path: Path) -> bool:
    """Whether a path is a pattern of shards, a shard, or a folder with shards."""
    return "{" in path.name or "*" in path.name or path.suffix == ".tar" or contains("*.tar")(path)


@reader("wds", recognises=is_shards)
def wds(place: str | Path, ignore: int | None = None) -> Album:
    """All images of WebDataset shards.

    ```text
    wds:/data/wds/shard-{000..001}.tar
    wds:/data/wds
    ```

    ```text
    /data/wds/shard-000.tar
    /data/wds/shard-001.tar
    ```

    Parameters
    ----------
    place
        Path of a shard or of a folder of shards, a pattern (`*`), a range (`shard-{000..003}.tar`) or alternatives
        (`{a,b}`).
    ignore
        Value in masks that marks ignored pixels.

    Raises
    ------
    DataError
        If there is no shard or no image, or a shard is damaged.
    """
    shards = expand_pattern(expand_path(place))
    entries: list[tuple[str, dict[str, Part]]] = []
    for shard in shards:
        with shard.open("rb") as file:
            samples = iterate_samples(file, shard)
            entries += [(f"{shard.stem}/{key}", parts) for key, parts in samples if find_image_ending(parts)]
    if not entries:
        raise DataError(f"there is no image in '{place}'; expected {LAYOUT}")
    facts = {
        "ignore": ignore,
        "parts": digest(f"{key} {[(ending, part.size) for ending, part in parts.items()]}" for key, parts in entries),
    }
    return make_album("wds", entries, partial(decode_parts, ignore=ignore), None, facts)


def expand_pattern(path: Path) -> list[Path]:
    """Shards of a path, a folder or a pattern, with ranges `{000..003}` and alternatives `{a,b}` expanded."""
    shards: list[Path] = []
    for pattern, files in match_files(path, "*.tar").items():
        if not files or not all(file.is_file() for file in files):
            raise DataError(f"there is no shard at '{pattern}'; expected {LAYOUT}")
        shards += files
    if len({shard.stem for shard in shards}) < len(shards):
        raise DataError(f"'{path}' names shards of the same name, so keys would not be unique")
    return shards


def iterate_samples(file: Any, shard: Path | str, *, stream: bool = False) -> Iterator[tuple[str, dict[str, Part]]]:
    """Key and files (by ending) of every sample of a shard, one after the other; nothing of earlier ones is kept.

    Parameters
    ----------
    file
        The open tar file.
    shard
        Its path.
    stream
        Whether the file cannot seek. The content of its members is read at once then; otherwise when it is needed.

    Raises
    ------
    DataError
        If the file is damaged, or the files of one key do not lie side by side.
    """
    seen: set[int] = set()  # hashes of the keys that have ended
    key, parts = "", {}
    try:
        with tarfile.open(fileobj=file, mode="r|" if stream else "r:") as archive:
            while (member := archive.next()) is not None:
                # tarfile would keep every member
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
                folder, _, base = member.name.rpartition("/")
                if not member.isfile() or base.startswith(".") or "." not in base:
                    continue
                stem, _, ending = base.partition(".")
                own = f"{folder.removeprefix('./').removeprefix('.')}/{stem}".lstrip("/")
                if own != key:
                    if parts:
                        yield key, parts
                        seen.add(hash(key))
                    key, parts = own, {}
                if hash(own) in seen or ending.lower() in parts:
                    raise DataError(
                        f"'{shard}' has the key {own!r} more than once; files of one key must lie side by side"
                    )
                content = archive.extractfile(member) if stream else None
                data = None if content is None else content.read()
                parts[ending.lower()] = Part(shard, member.offset_data, member.size, data)
    except (tarfile.TarError, OSError) as problem:
        raise DataError(f"'{shard}' is damaged or not a plain tar file ({problem}); expected {LAYOUT}") from None
    if parts:
        yield key, parts


def find_image_ending(parts: Mapping[str, Part]) -> str | None:
    """Ending of the image file, or None if there is none."""
    return next((ending for ending in IMAGES if ending in parts), None)


def decode_parts(key: str, parts: Mapping[str, Part], ignore: int | None) -> Sample:
    """Decode a sample from its files."""
    ending = find_image_ending(parts)
    assert ending is not None  # `wds` lists only keys with an image
    where = f"{key}.{ending} of '{parts[ending].shard}'"
    stored, facts = StoredImage(parts[ending].read(), where), read_facts(parts, key)
    painted = next((parts[ending_of_mask] for ending_of_mask in MASKS if ending_of_mask in parts), None)
    mask = None if painted is None else stored.read_mask(painted.read(), ignore, f"of {key}")
    boxes = None
    if facts.get("boxes") is not None:
        rows = facts["boxes"]
        if not isinstance(rows, list) or not all(isinstance(box, list) and len(box) == 4 for box in rows):
            raise DataError(
                f"{key}.json of '{parts['json'].shard}' has the boxes {rows!r}; expected [[x0, y0, x1, y1], …]"
            )
        corners = np.asarray([[parse_number(x, where) for x in box] for box in rows], dtype=np.float64)
        boxes = stored.turn_boxes(corners.reshape(-1, 4))
    return Sample(key, stored.image, read_label(parts, facts, key), mask, boxes)


def read_facts(parts: Mapping[str, Part], key: str) -> dict[str, Any]:
    """Content of `key.json`; empty if there is no such file or it is not an object."""
    if "json" not in parts:
        return {}
    with other_errors_as(f"{key}.json of '{parts['json'].shard}' is no JSON", ValueError):
        facts = json.loads(parts["json"].read())
    return facts if isinstance(facts, dict) else {}


def read_label(parts: Mapping[str, Part], facts: Mapping[str, Any], key: str) -> int | None:
    """Class from `key.cls`, or else from "label" or "cls" in `key.json`; None if neither exists."""
    source = "cls" if "cls" in parts else "json"
    if source == "cls":
        label_text = parts["cls"].read().decode("utf-8", "replace").strip()
    else:
        label_text = next((facts[field] for field in LABELS if facts.get(field) is not None), None)
    if label_text is None:
        return None
    where = f"{key}.{source} of '{parts[source].shard}'"
    if (label := int(parse_number(label_text, where, "whole"))) < 0:
        raise DataError(f"{where} has the class {label}; classes count from 0")
    return label
