"""WebDataset shards: tar files in which the files of a sample follow each other.

They are `key.jpg`, `key.cls`, `key.json` and `key.mask.png`.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitreous.core.errors import DataError, VitreousError
from vitreous.data.files import (
    SUFFIXES,
    orient_boxes,
    parse_number,
    read_mask_values,
    read_orientation,
    to_single_channel,
)
from vitreous.data.folder import to_binary_mask
from vitreous.data.reader import contains, expand_path, reader
from vitreous.data.sample import Album, Sample, digest
from vitreous.models.image_decoding import open_picture

LAYOUT = "uncompressed tar files of key.jpg (or png, webp), key.cls or key.json, and key.mask.png if there are masks"
IMAGES = tuple(suffix[1:] for suffix in SUFFIXES)
MASKS = ("mask.png", "seg.png")
LABELS = ("label", "cls")


class Part(NamedTuple):
    """Position of a file in a shard, in bytes."""

    shard: Path
    offset: int
    size: int

    def read(self) -> bytes:
        with self.shard.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def is_shards(path: Path) -> bool:
    """Whether a path is a pattern of shards, a shard, or a folder with shards."""
    return "{" in path.name or "*" in path.name or path.suffix == ".tar" or contains("*.tar")(path)


@reader("wds", recognises=is_shards)
def wds(place: str | Path, ignore: int | None = None) -> Album:
    """All images of WebDataset shards.

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
    samples: dict[str, dict[str, Part]] = {}
    for shard in shards:
        for key, parts in index_shard(shard).items():
            samples[f"{shard.stem}/{key}"] = parts
    keys = [key for key, parts in samples.items() if image_ending(parts)]
    if not keys:
        raise DataError(f"there is no image in '{place}'; expected {LAYOUT}")
    facts = {
        "ignore": ignore,
        "parts": digest(f"{key} {[(n, p.size) for n, p in samples[key].items()]}" for key in keys),
    }
    return Album("wds", keys, partial(read, keys, samples, ignore), None, facts)


def expand_pattern(path: Path) -> list[Path]:
    """Shards of a path, a folder or a pattern, with ranges `{000..003}` and alternatives `{a,b}` expanded."""
    pieces = re.split(r"(\{[^{}]*\})", str(path))
    options = [list_alternatives(piece) if piece.startswith("{") else [piece] for piece in pieces]
    shards: list[Path] = []
    for pattern in (Path("".join(choice)) for choice in product(*options)):
        matches = sorted(pattern.parent.glob(pattern.name)) if "*" in pattern.name or "?" in pattern.name else [pattern]
        matches = [shard for match in matches for shard in (sorted(match.glob("*.tar")) if match.is_dir() else [match])]
        if not matches or not all(match.is_file() for match in matches):
            raise DataError(f"there is no shard at '{pattern}'; expected {LAYOUT}")
        shards += matches
    if len({shard.stem for shard in shards}) < len(shards):
        raise DataError(f"'{path}' names shards of the same name, so keys would not be unique")
    return shards


def list_alternatives(piece: str) -> list[str]:
    inner = piece[1:-1]
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        return [str(number).zfill(len(match[1])) for number in range(int(match[1]), int(match[2]) + 1)]
    return inner.split(",")


def index_shard(shard: Path) -> dict[str, dict[str, Part]]:
    """Files by key and by ending; the ending is what follows the first dot of the file name."""
    parts_by_key: dict[str, dict[str, Part]] = {}
    last = ""
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if not member.isfile() or name.startswith(".") or "." not in name:
                    continue
                stem, _, ending = name.partition(".")
                key = f"{folder.removeprefix('./').removeprefix('.')}/{stem}".lstrip("/")
                if (key in parts_by_key and key != last) or ending.lower() in parts_by_key.get(key, {}):
                    raise DataError(
                        f"'{shard}' has the key {key!r} more than once; files of one key must lie side by side"
                    )
                parts_by_key.setdefault(key, {})[ending.lower()] = Part(shard, member.offset_data, member.size)
                last = key
    except (tarfile.TarError, OSError) as problem:
        raise DataError(f"'{shard}' is damaged or not a plain tar file ({problem}); expected {LAYOUT}") from None
    return parts_by_key


def image_ending(parts: Mapping[str, Part]) -> str | None:
    """Ending of the image file, or None if there is none."""
    return next((ending for ending in IMAGES if ending in parts), None)


def read(keys: list[str], samples: Mapping[str, Mapping[str, Part]], ignore: int | None, index: int) -> Sample:
    key = keys[index]
    parts = samples[key]
    ending = image_ending(parts)
    assert ending is not None  # `wds` lists only keys with an image
    where, data = f"{key}.{ending} of '{parts[ending].shard}'", parts[ending].read()
    try:
        image = open_picture(data)
    except VitreousError as problem:
        raise DataError(f"{where}: {problem}") from None
    orientation, facts = read_orientation(data), read_facts(parts, key)
    painted = next((parts[ending_of_mask] for ending_of_mask in MASKS if ending_of_mask in parts), None)
    mask = (
        None
        if painted is None
        else to_binary_mask(
            to_single_channel(read_mask_values(painted.read(), orientation, f"of {key}"), f"of {key}"), ignore
        )
    )
    boxes = None
    if facts.get("boxes") is not None:
        rows = facts["boxes"]
        if not isinstance(rows, list) or not all(isinstance(box, list) and len(box) == 4 for box in rows):
            raise DataError(
                f"{key}.json of '{parts['json'].shard}' has the boxes {rows!r}; expected [[x0, y0, x1, y1], …]"
            )
        corners = np.asarray([[parse_number(x, where) for x in box] for box in rows], dtype=np.float64)
        boxes = orient_boxes(corners.reshape(-1, 4), orientation, image)
    return Sample(key, image, read_label(parts, facts, key), mask, boxes)


def read_facts(parts: Mapping[str, Part], key: str) -> dict[str, Any]:
    """Content of `key.json`; empty if there is no such file or it is not an object."""
    if "json" not in parts:
        return {}
    try:
        facts = json.loads(parts["json"].read())
    except ValueError:
        raise DataError(f"{key}.json of '{parts['json'].shard}' is no JSON") from None
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
