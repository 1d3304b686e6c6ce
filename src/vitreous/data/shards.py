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
from vitreous.data.files import SUFFIXES, flat, ids_in, number, turn_of, upright_boxes
from vitreous.data.folder import binary
from vitreous.data.reader import has, located, reader
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
    return "{" in path.name or "*" in path.name or path.suffix == ".tar" or has("*.tar")(path)


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
    shards = expanded(located(place))
    samples: dict[str, dict[str, Part]] = {}
    for shard in shards:
        for key, parts in index_of(shard).items():
            samples[f"{shard.stem}/{key}"] = parts
    keys = [key for key, parts in samples.items() if image_in(parts)]
    if not keys:
        raise DataError(f"there is no image in '{place}'; expected {LAYOUT}")
    facts = {
        "ignore": ignore,
        "parts": digest(f"{key} {[(n, p.size) for n, p in samples[key].items()]}" for key in keys),
    }
    return Album("wds", keys, partial(read, keys, samples, ignore), None, facts)


def expanded(path: Path) -> list[Path]:
    """Shards of a path, a folder or a pattern, with ranges `{000..003}` and alternatives `{a,b}` expanded."""
    pieces = re.split(r"(\{[^{}]*\})", str(path))
    options = [alternatives(piece) if piece.startswith("{") else [piece] for piece in pieces]
    found: list[Path] = []
    for one in (Path("".join(choice)) for choice in product(*options)):
        matches = sorted(one.parent.glob(one.name)) if "*" in one.name or "?" in one.name else [one]
        matches = [shard for match in matches for shard in (sorted(match.glob("*.tar")) if match.is_dir() else [match])]
        if not matches or not all(match.is_file() for match in matches):
            raise DataError(f"there is no shard at '{one}'; expected {LAYOUT}")
        found += matches
    if len({shard.stem for shard in found}) < len(found):
        raise DataError(f"'{path}' names shards of the same name, so keys would not be unique")
    return found


def alternatives(piece: str) -> list[str]:
    inner = piece[1:-1]
    if match := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        return [str(one).zfill(len(match[1])) for one in range(int(match[1]), int(match[2]) + 1)]
    return inner.split(",")


def index_of(shard: Path) -> dict[str, dict[str, Part]]:
    """Files by key and by ending; the ending is what follows the first dot of the file name."""
    found: dict[str, dict[str, Part]] = {}
    last = ""
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if not member.isfile() or name.startswith(".") or "." not in name:
                    continue
                stem, _, ending = name.partition(".")
                key = f"{folder.removeprefix('./').removeprefix('.')}/{stem}".lstrip("/")
                if (key in found and key != last) or ending.lower() in found.get(key, {}):
                    raise DataError(
                        f"'{shard}' has the key {key!r} more than once; files of one key must lie side by side"
                    )
                found.setdefault(key, {})[ending.lower()] = Part(shard, member.offset_data, member.size)
                last = key
    except (tarfile.TarError, OSError) as problem:
        raise DataError(f"'{shard}' is damaged or not a plain tar file ({problem}); expected {LAYOUT}") from None
    return found


def image_in(parts: Mapping[str, Part]) -> str | None:
    """Ending of the image file, or None if there is none."""
    return next((ending for ending in IMAGES if ending in parts), None)


def read(keys: list[str], samples: Mapping[str, Mapping[str, Part]], ignore: int | None, index: int) -> Sample:
    key = keys[index]
    parts = samples[key]
    ending = image_in(parts)
    assert ending is not None  # `wds` lists only keys with an image
    where, data = f"{key}.{ending} of '{parts[ending].shard}'", parts[ending].read()
    try:
        picture = open_picture(data)
    except VitreousError as problem:
        raise DataError(f"{where}: {problem}") from None
    turn, facts = turn_of(data), facts_of(parts, key)
    painted = next((parts[one] for one in MASKS if one in parts), None)
    mask = None if painted is None else binary(flat(ids_in(painted.read(), turn, f"of {key}"), f"of {key}"), ignore)
    boxes = None
    if facts.get("boxes") is not None:
        rows = facts["boxes"]
        if not isinstance(rows, list) or not all(isinstance(box, list) and len(box) == 4 for box in rows):
            raise DataError(
                f"{key}.json of '{parts['json'].shard}' has the boxes {rows!r}; expected [[x0, y0, x1, y1], …]"
            )
        corners = np.asarray([[number(x, where) for x in box] for box in rows], dtype=np.float64)
        boxes = upright_boxes(corners.reshape(-1, 4), turn, picture)
    return Sample(key, picture, label_of(parts, facts, key), mask, boxes)


def facts_of(parts: Mapping[str, Part], key: str) -> dict[str, Any]:
    """Content of `key.json`; empty if there is no such file or it is not an object."""
    if "json" not in parts:
        return {}
    try:
        facts = json.loads(parts["json"].read())
    except ValueError:
        raise DataError(f"{key}.json of '{parts['json'].shard}' is no JSON") from None
    return facts if isinstance(facts, dict) else {}


def label_of(parts: Mapping[str, Part], facts: Mapping[str, Any], key: str) -> int | None:
    """Class from `key.cls`, or else from "label" or "cls" in `key.json`; None if neither exists."""
    source = "cls" if "cls" in parts else "json"
    if source == "cls":
        given = parts["cls"].read().decode("utf-8", "replace").strip()
    else:
        given = next((facts[one] for one in LABELS if facts.get(one) is not None), None)
    if given is None:
        return None
    where = f"{key}.{source} of '{parts[source].shard}'"
    if (label := int(number(given, where, "whole"))) < 0:
        raise DataError(f"{where} has the class {label}; classes count from 0")
    return label
