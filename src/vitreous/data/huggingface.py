"""Data sets of the Hugging Face hub, or saved by its library: a column of pictures, and one of classes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError, SpecError, VitreousError
from vitreous.data.files import flat, ids_in, turn_of
from vitreous.data.folder import binary
from vitreous.data.reader import located, need, reader
from vitreous.data.sample import Album, Sample, digest
from vitreous.models.decode import open_picture


@reader("hf")
def hf(
    place: str | Path,
    split: str | None = None,
    config: str | None = None,
    image: str | None = None,
    label: str | None = None,
    mask: str | None = None,
    ignore: int | None = None,
    revision: str | None = None,
) -> Album:
    """A data set by its name on the hub, or a folder that `save_to_disk` wrote; columns are found by their types."""
    datasets = need("datasets", f"the data set 'hf:{place}'")
    folder = located(place)
    try:
        if folder.is_dir() and any((folder / one).is_file() for one in ("state.json", "dataset_dict.json")):
            table = datasets.load_from_disk(str(folder))
        else:
            table = datasets.load_dataset(str(place), config, split=split, revision=revision)
    except Exception as problem:  # noqa: BLE001 - a network, a hub and many formats
        raise DataError(f"Hugging Face cannot load '{place}': {' '.join(str(problem).split())[:200]}") from None
    if isinstance(table, dict):
        if split is None or split not in table:
            raise SpecError(f"'{place}' has the splits {', '.join(table)}; choose one with split=…")
        table = table[split]
    return from_hf(table, name=f"hf:{place}", image=image, label=label, mask=mask, ignore=ignore)


def from_hf(
    table: Any,
    name: str = "hf",
    image: str | None = None,
    label: str | None = None,
    mask: str | None = None,
    ignore: int | None = None,
) -> Album:
    """A `datasets.Dataset` at hand."""
    datasets = need("datasets", "a Hugging Face data set")
    features = table.features
    image = image or only(features, datasets.Image, "pictures", "image", name)
    classes = [one for one, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if label is None:
        label = classes[0] if len(classes) == 1 else "label" if "label" in features else None
    for column in (image, label, mask):
        if column is not None and column not in features:
            raise SpecError(f"{name} has no column {column!r}; it has {', '.join(features)}")
    names = tuple(features[label].names) if label in classes else None
    for column in filter(None, (image, mask)):  # undecoded: a damaged picture is then one row's own affair
        table = table.cast_column(column, datasets.Image(decode=False))
    table = table.select_columns([one for one in (image, label, mask) if one is not None])
    keys = [f"{table.split or 'rows'}/{index:08d}" for index in range(len(table))]
    facts = {"columns": [image, label, mask], "ignore": ignore, "content": digest([str(table._fingerprint)])}
    return Album(name, keys, partial(read, table, keys, image, label, mask, ignore), names, facts)


def only(features: Any, kind: type, what: str, usual: str, name: str) -> str:
    found = [one for one, feature in features.items() if isinstance(feature, kind)]
    if len(found) == 1 or usual in found:
        return usual if usual in found else found[0]
    raise SpecError(f"{name} has {len(found)} columns of {what} among {', '.join(features)}; choose one with {usual}=…")


def read(
    table: Any, keys: list[str], image: str, label: str | None, mask: str | None, ignore: int | None, index: int
) -> Sample:
    row = table[index]
    where = f"row {index} ({keys[index]})"
    source = source_of(row[image], where)
    try:
        picture = open_picture(source)
    except VitreousError as problem:
        raise DataError(f"{where}: {problem}") from None
    value = None if label is None else row[label]
    if value is not None and (not isinstance(value, int) or value < -1):
        raise DataError(f"{where} has the class {value!r}; classes are whole numbers from 0 on")
    painted = None
    if mask is not None and row[mask] is not None:
        stored = ids_in(source_of(row[mask], where), turn_of(source), where)
        painted = binary(flat(stored, where), ignore)
    return Sample(keys[index], picture, None if value == -1 else value, painted)  # -1: the hub's word for unknown


def source_of(cell: Any, where: str) -> bytes | Path:
    """Bytes, or a file, of an undecoded picture."""
    if cell and cell.get("bytes"):
        return cell["bytes"]
    if cell and cell.get("path"):
        return Path(cell["path"])
    raise DataError(f"{where} has no picture")
