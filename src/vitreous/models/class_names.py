"""Class names: those of ImageNet-1k with their WordNet ids, and those in a file (one per line, or JSON)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError

FORMATS = 'one name per line, or JSON: ["cat", …], {"0": "cat", …} or {"0": ["n02123045", "cat"], …}'


def read_class_names(path: str | Path) -> tuple[str, ...]:
    """Read class names in the order of the model's outputs.

    Parameters
    ----------
    path
        A text file with one name per line, or a JSON file with a list of names, an object from index to name, or an
        object from index to [WordNet id, name] as in ImageNet's class index.

    Raises
    ------
    DataError
        If the file cannot be read, or an index is missing, duplicated or not a number.
    """
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no file of class names at '{path}'; expected {FORMATS}") from None
    except UnicodeDecodeError:
        raise DataError(f"'{path}' is not text in UTF-8; expected {FORMATS}") from None
    except OSError as problem:
        raise DataError(f"'{path}' cannot be read: {problem.strerror}; expected {FORMATS}") from None
    if text.lstrip().startswith(("[", "{")):
        names = names_from_json(text, path)
    else:
        names = [line.strip() for line in text.rstrip().splitlines()]
    if not names:
        raise DataError(f"'{path}' is empty; expected {FORMATS}")
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"'{path}' has {name!r} as the name of class {index}; expected {FORMATS}")
    return tuple(name.strip() for name in names)


def names_from_json(text: str, path: Path) -> list[Any]:
    """Entries of a JSON list or object in class order; of an entry [WordNet id, name], only the name."""
    try:
        content = json.loads(text)
    except ValueError as problem:
        raise DataError(f"'{path}' begins as JSON and is not ({problem}); expected {FORMATS}") from None
    if isinstance(content, dict):
        if odd := next((key for key in content if not key.strip().isdecimal()), None):
            raise DataError(f"'{path}' has the key {odd!r}, which is no index of a class; expected {FORMATS}")
        by_index = {int(key): entry for key, entry in content.items()}
        if missing := sorted(set(range(len(content))) - by_index.keys()):
            raise DataError(f"'{path}' has {len(content)} entries and no class {missing[0]}; indices count from 0")
        content = [by_index[index] for index in range(len(content))]
    return [entry[1] if isinstance(entry, list) and len(entry) == 2 else entry for entry in content]


# ── ImageNet-1k, in the order that published classifiers use ─────────────────────────────────────


@cache
def wnids() -> tuple[str, ...]:
    """WordNet ids of classes 0 to 999, which is also their alphabetical order."""
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_label_name(i) for i in range(1000))


@cache
def index_of_wnid() -> dict[str, int]:
    """Mapping from WordNet id to class index."""
    return {wnid: index for index, wnid in enumerate(wnids())}


@cache
def imagenet_classes(count: int) -> tuple[str, ...] | None:
    """Class names of ImageNet-1k if `count` is 1000, else None."""
    if count != 1000:
        return None
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_description(i).split(",")[0] for i in range(count))
