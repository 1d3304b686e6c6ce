"""Datasets of the Hugging Face hub, or saved by the library datasets, with columns for image, label and mask."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError, SpecError
from vitreous.data.files import StoredImage, other_errors_as
from vitreous.data.reader import contains, expand_path, import_package, reader
from vitreous.data.sample import Album, NumberedKeys, Sample, digest


@reader("hf", recognises=contains("dataset_dict.json", "dataset_info.json"))
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
    """Dataset of the Hugging Face hub, or a folder written by `save_to_disk`.

    ```text
    hf:/data/hf
    ```

    ```text
    /data/hf/dataset_info.json
    /data/hf/state.json
    ```

    Parameters
    ----------
    place
        Name on the hub, or the folder.
    split
        Name of the split; needed if there are several.
    config
        Name of the configuration (subset) on the hub.
    image
        Column of images. None: "image", or the only column of type `datasets.Image`.
    label
        Column of classes. None: the only column of type `ClassLabel`, else "label" if it exists.
    mask
        Column of masks, stored as images; 0 is background. None: no masks.
    ignore
        Value in masks that marks ignored pixels.
    revision
        Branch, tag or commit on the hub.

    Raises
    ------
    DataError
        If the dataset cannot be loaded, or the package datasets is missing.
    SpecError
        If a split must be chosen, or a column does not exist or cannot be determined.
    """
    datasets = import_package("datasets", f"the dataset 'hf:{place}'")
    folder = expand_path(place)
    with other_errors_as(f"Hugging Face cannot load '{place}': {{reason}}"):
        if folder.is_dir() and any((folder / file_name).is_file() for file_name in ("state.json", "dataset_dict.json")):
            table = datasets.load_from_disk(str(folder))
        else:
            table = datasets.load_dataset(str(place), config, split=split, revision=revision)
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
    """Convert a `datasets.Dataset`.

    Parameters
    ----------
    table
        The dataset.
    name
        Name of the result.
    image, label, mask, ignore
        As for `hf`.

    Raises
    ------
    SpecError
        If a column does not exist, or the column of images cannot be determined.
    """
    datasets = import_package("datasets", "a Hugging Face dataset")
    features = table.features
    if image is None:
        images = [column for column, kind in features.items() if isinstance(kind, datasets.Image)]
        if "image" not in images and len(images) != 1:
            raise SpecError(
                f"{name} has {len(images)} columns of images among {', '.join(features)}; choose one with image=…"
            )
        image = "image" if "image" in images else str(images[0])
    classes = [column for column, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if label is None:
        label = classes[0] if len(classes) == 1 else "label" if "label" in features else None
    for column in (image, label, mask):
        if column is not None and column not in features:
            raise SpecError(f"{name} has no column {column!r}; it has {', '.join(features)}")
    names = tuple(features[label].names) if label in classes else None
    for column in filter(None, (image, mask)):  # undecoded, so that a damaged image affects its own row only
        table = table.cast_column(column, datasets.Image(decode=False))
    table = table.select_columns([column for column in (image, label, mask) if column is not None])
    keys = NumberedKeys([(str(table.split or "rows"), len(table))])
    facts = {"columns": [image, label, mask], "ignore": ignore, "content": digest([str(table._fingerprint)])}
    return Album(name, keys, partial(read, table, keys, image, label, mask, ignore), names, facts)


def read(
    table: Any, keys: Sequence[str], image: str, label: str | None, mask: str | None, ignore: int | None, index: int
) -> Sample:
    row = table[index]
    where = f"row {index} ({keys[index]})"
    stored = StoredImage(get_image_source(row[image], where), where)
    value = None if label is None else row[label]
    if value is not None and (not isinstance(value, int) or value < -1):
        raise DataError(f"{where} has the class {value!r}; classes are whole numbers from 0 on")
    painted = None
    if mask is not None and row[mask] is not None:
        painted = stored.read_mask(get_image_source(row[mask], where), ignore, where)
    return Sample(keys[index], stored.image, None if value == -1 else value, painted)  # -1: unknown in datasets


def get_image_source(cell: Any, where: str) -> bytes | Path:
    """Bytes or path of an undecoded image; `DataError` if it has neither."""
    if cell and cell.get("bytes"):
        return cell["bytes"]
    if cell and cell.get("path"):
        return Path(cell["path"])
    raise DataError(f"{where} has no image")
