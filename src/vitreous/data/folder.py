"""A folder of images with optional annotations: `labels.csv`, `boxes.csv`, `masks/`, or one folder per class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from vitreous.core.errors import DataError
from vitreous.data.files import StoredImage, list_images, parse_number, read_table
from vitreous.data.imagenet import find_class_of_wnid
from vitreous.data.reader import reader, require_folder
from vitreous.data.sample import Album, Sample, digest, make_album
from vitreous.models.class_names import imagenet_classes

LAYOUT = "a folder of images (or images/), beside them labels.csv, boxes.csv and masks/ if there are any"
LABELS = ("label", "imagenet_label")
ClassBox: TypeAlias = tuple[int | None, list[float]]  # class if it is known, and a row as for `place_boxes`
ASIDE = ("masks", "trimaps", "annotations")


@reader("folder")
def folder(place: str | Path, ignore: int | None = None, labels: str | None = "auto") -> Album:
    """All images of a folder, with annotations if there are any.

    `labels.csv` has the columns `file` and `label` (or `imagenet_label`, `wnid`); `boxes.csv` has `file`, `x0`, `y0`, `x1`,
    `y1` and optionally `label` (or `wnid`), `width` and `height`; `masks/NAME.png` has 0 for background and other values
    for the object.

    ```text
    folder:/data/folder
    folder:/data/folder?ignore=255
    ```

    ```text
    /data/folder/images/one.png
    /data/folder/masks/one.png
    /data/folder/labels.csv
    /data/folder/boxes.csv
    ```

    Parameters
    ----------
    place
        The folder. Images are in it or in its subfolder images/.
    ignore
        Value in masks that marks ignored pixels.
    labels
        File name of a label table. "auto": labels.csv, else the labels in boxes.csv, else one folder per class, as
        far as they exist. None: no labels.

    Raises
    ------
    DataError
        If there are no images, or an annotation file is invalid.
    """
    root = require_folder(place, LAYOUT)
    base = root / "images" if (root / "images").is_dir() else root
    names = list_images(base, ASIDE if base == root else ())
    if not names:
        raise DataError(f"there is no image in '{base}'; expected {LAYOUT}")
    box_table = root / "boxes.csv"
    boxes, box_classes = read_boxes(box_table, names) if box_table.is_file() else ({}, None)
    label_by_name: dict[str, int] = {}
    classes = None
    if labels is None:
        pass
    elif (table := root / ("labels.csv" if labels == "auto" else labels)).is_file() or labels != "auto":
        label_by_name, classes = read_labels(table, names)
    elif any(label is not None for rows in boxes.values() for label, _ in rows):
        label_by_name, classes = read_box_labels(box_table, boxes), box_classes
    elif all("/" in name for name in names):
        label_by_name, classes = read_folder_labels(names)
    masks = root / "masks" if (root / "masks").is_dir() else None
    facts = {
        "labels": digest(f"{name} {label_by_name.get(name)}" for name in names),
        "boxes": digest(f"{name} {boxes.get(name)}" for name in names),
        "masks": masks is not None,
        "ignore": ignore,
    }
    entries = [(name, (label_by_name.get(name), boxes.get(name))) for name in names]
    return make_album(root.name, entries, partial(read, base, masks, ignore), classes, facts)


def read(
    base: Path, masks: Path | None, ignore: int | None, name: str, annotations: tuple[int | None, list[ClassBox] | None]
) -> Sample:
    stored = StoredImage(base / name)
    label, class_boxes = annotations
    boxes = mask = None
    if class_boxes is not None:
        own = [corners for of, corners in class_boxes if of is None or label is None or of == label]
        boxes = stored.place_boxes(own)
    if masks is not None and (path := masks / Path(name).with_suffix(".png")).is_file():
        mask = stored.read_mask(path, ignore)
    return Sample(name, stored.image, label, mask, boxes)


def read_rows(path: Path, names: list[str], *columns: str) -> list[tuple[str, str, dict[str, str]]]:
    """Image, place for error messages and values of the rows of a table that are about one of the images."""
    image_names = frozenset(names)
    rows = [
        (row["file"].removeprefix("./").removeprefix("images/"), f"line {line} of '{path}'", row)
        for line, row in read_table(path, "file", *columns)
    ]
    if rows := [row for row in rows if row[0] in image_names]:
        return rows
    raise DataError(f"'{path}' names none of the images; its column file gives their paths from the folder of images")


def read_labels(path: Path, names: list[str]) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Classes of the images in a label table, which may leave images out, and class names if they are ImageNet's."""
    rows = read_rows(path, names)
    return {name: parse_class(row, where) for name, where, row in rows}, find_class_names(rows[0][-1])


def parse_class(row: Mapping[str, str], where: str) -> int:
    """Class of a row, from its number or WordNet id; `DataError` if both are given and differ."""
    wnid, column = row.get("wnid", ""), next((field for field in LABELS if row.get(field)), None)
    named = find_class_of_wnid(wnid, where) if wnid else None
    label = named if column is None else int(parse_number(row[column], where, "whole"))
    if label is None:
        raise DataError(f"{where} says no class; expected a number in the column {' or '.join(LABELS)}, or a wnid")
    if label < 0:
        raise DataError(f"{where} has the class {label}; classes count from 0")
    if named not in (None, label):
        raise DataError(f"{where} says class {label} and {wnid}, which is class {named} of ImageNet")
    return label


def find_class_names(row: Mapping[str, str]) -> tuple[str, ...] | None:
    """ImageNet class names if a table has a column wnid or imagenet_label, else None."""
    return imagenet_classes(1000) if "wnid" in row or "imagenet_label" in row else None


def read_folder_labels(names: list[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Classes from top-level folders, numbered in the order of their names."""
    classes = tuple(sorted({name.split("/", 1)[0] for name in names}))
    index_by_class = {class_name: index for index, class_name in enumerate(classes)}
    return {name: index_by_class[name.split("/", 1)[0]] for name in names}, classes


def read_boxes(path: Path, names: list[str]) -> tuple[dict[str, list[ClassBox]], tuple[str, ...] | None]:
    """Boxes by image, and class names if they are ImageNet's."""
    boxes_by_name: dict[str, list[ClassBox]] = {}
    rows = read_rows(path, names, "x0", "y0", "x1", "y1")
    for name, where, row in rows:
        corners = [parse_number(row[field], where) for field in ("x0", "y0", "x1", "y1")]
        corners += [parse_number(row.get(field) or 0, where) for field in ("width", "height")]
        label = parse_class(row, where) if row.get("label") or row.get("wnid") else None
        boxes_by_name.setdefault(name, []).append((label, corners))
    return boxes_by_name, find_class_names(rows[0][-1])


def read_box_labels(path: Path, boxes: Mapping[str, list[ClassBox]]) -> dict[str, int]:
    """Classes of images from the classes of their boxes; `DataError` if the boxes of an image have several classes."""
    label_by_name = {}
    for name, rows in boxes.items():
        labels = {label for label, _ in rows if label is not None}
        if len(labels) > 1:
            raise DataError(
                f"'{path}' has boxes of the classes {sorted(labels)} for '{name}'; labels.csv must say which is the image's"
            )
        if labels:
            label_by_name[name] = labels.pop()
    return label_by_name
