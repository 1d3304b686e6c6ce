"""Lists of images in a file: indices, keys or file names, such as the list that a paper's authors publish."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vitreous.core.errors import DataError
from vitreous.data.reader import expand_path
from vitreous.data.sample import Dataset


def read_subset(dataset: Dataset, path: str | Path) -> tuple[int, ...]:
    """Read a list of images.

    Parameters
    ----------
    dataset
        The dataset that the images belong to.
    path
        A text file with one entry per line, or a list in JSON or YAML. An entry is the index of an image in the dataset
        (from 0, in the order of its keys), its key, or the name of its file with or without folders and suffix. Empty
        lines and lines that begin with `#` are ignored.

    Returns
    -------
    tuple of int
        Indices in the order of the file.

    Raises
    ------
    DataError
        If the file cannot be read or is empty, or an entry is unknown, ambiguous or occurs twice.

    Examples
    --------
    >>> from pathlib import Path
    >>> from vitreous.data import open_dataset, read_subset
    >>> dataset = open_dataset("scenes:single?count=5")
    >>> _ = Path("images.json").write_text("[3, 0]")
    >>> read_subset(dataset, "images.json")
    (3, 0)
    """
    entries = read_entries(path)
    by_name = group_by_name(dataset.keys)
    places = [find_index(entry, dataset, by_name, path) for entry in entries]
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise DataError(f"'{path}' lists {dataset.keys[twice]!r} twice; once is enough")
    return tuple(places)


def read_entries(path: str | Path) -> list[str]:
    """Entries of a list of images; raise `DataError` if the file cannot be read or is empty."""
    file = expand_path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not text in UTF-8"
        raise DataError(
            f"the list of images '{path}' cannot be read: {reason}; give a text file with an index or a file name in each line"
        ) from None
    entries = list_entries(text)
    if not entries:
        raise DataError(f"'{path}' lists no images; expected one index or file name per line")
    return entries


def list_entries(text: str) -> list[str]:
    """Entries of a JSON list, or of a list with one entry per line and optional YAML dashes and quotes."""
    if text.lstrip().startswith("["):
        try:
            return [str(entry) for entry in json.loads(text)]
        except json.JSONDecodeError:
            pass
    lines = [line.strip().removeprefix("- ").strip(" \"',[]") for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "---"))]


def group_by_name(keys: Sequence[str]) -> dict[str, list[int]]:
    """Indices by key, file name and file name without suffix."""
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        for name in dict.fromkeys((key, PurePosixPath(key).name, PurePosixPath(key).stem)):
            places.setdefault(name, []).append(place)
    return places


def find_index(entry: str, dataset: Dataset, by_name: dict[str, list[int]], path: str | Path) -> int:
    """Index of the image that an entry names; a number that is also a name counts as the index."""
    if entry.isdecimal():
        if int(entry) >= len(dataset):
            raise DataError(f"'{path}' lists index {entry}, and {dataset.name} has {len(dataset)} images")
        return int(entry)
    name = PurePosixPath(entry)
    places = by_name.get(entry) or by_name.get(name.name) or by_name.get(name.stem) or []
    if len(places) != 1:
        problem = "has no such image" if not places else f"has {len(places)} images of that name"
        raise DataError(f"'{path}' lists {entry!r}, and {dataset.name} {problem}; give indices or keys")
    return places[0]
