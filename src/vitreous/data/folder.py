"""A folder of images with optional annotations: `labels.csv`, `boxes.csv`, `masks/`, or one folder per class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError
from vitreous.data.files import (
    list_images,
    parse_number,
    place_boxes,
    read_image_and_orientation,
    read_object_mask,
    read_table,
)
from vitreous.data.reader import reader, require_folder
from vitreous.data.sample import Album, Sample, digest
from vitreous.models.imagenet import imagenet_classes, index_of_wnid

LAYOUT = "a folder of images (or images/), beside them labels.csv, boxes.csv and masks/ if there are any"
LABELS = ("label", "imagenet_label")
ASIDE = ("masks", "trimaps", "annotations")


@reader("folder")
def folder(place: str | Path, ignore: int | None = None, labels: str | None = "auto") -> Album:
    """All images of a folder, with annotations if there are any.

    labels.csv has the columns file and label (or imagenet_label, wnid); boxes.csv has file, x0, y0, x1, y1 and
    optionally label (or wnid), width and height; masks/<name>.png has 0 for background and other values for the object.

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
    boxes = read_boxes(root / "boxes.csv", names) if (root / "boxes.csv").is_file() else {}
    classes = None
    if labels is None:
        label_by_name: dict[str, int] = {}
    elif (table := root / ("labels.csv" if labels == "auto" else labels)).is_file() or labels != "auto":
        label_by_name, classes = read_labels(table, names)
    elif any(label is not None for rows in boxes.values() for label, _ in rows):
        label_by_name, classes = read_box_labels(root / "boxes.csv", boxes), read_class_names(root / "boxes.csv")
    elif all("/" in name for name in names):
        label_by_name, classes = read_folder_labels(names)
    else:
        label_by_name = {}
    masks = root / "masks" if (root / "masks").is_dir() else None
    facts = {
        "labels": digest(f"{name} {label_by_name.get(name)}" for name in names),
        "boxes": digest(f"{name} {boxes.get(name)}" for name in names),
        "masks": masks is not None,
        "ignore": ignore,
    }
    return Album(root.name, names, partial(read, base, names, label_by_name, boxes, masks, ignore), classes, facts)


def read(
    base: Path,
    names: list[str],
    labels: Mapping[str, int],
    boxes: Mapping[str, list[tuple[int | None, list[float]]]],
    masks: Path | None,
    ignore: int | None,
    index: int,
) -> Sample:
    name = names[index]
    image, orientation = read_image_and_orientation(base / name)
    label = labels.get(name)
    drawn = None
    if name in boxes:
        own = [corners for of, corners in boxes[name] if of is None or label is None or of == label]
        drawn = place_boxes(own, orientation, image)
    mask = None
    if masks is not None and (path := find_mask(masks, name)) is not None:
        mask = read_object_mask(path, orientation, ignore=ignore)
    return Sample(name, image, label, mask, drawn)


def find_mask(masks: Path, name: str) -> Path | None:
    """Path of the mask (`masks/a/b.png` for `a/b.jpg`), or None if there is none."""
    path = masks / Path(name).with_suffix(".png")
    return path if path.is_file() else None


def read_labels(path: Path, names: list[str]) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Classes of the images in a label table, which may leave images out, and class names if they are ImageNet's."""
    image_names = frozenset(names)
    label_by_name = {
        name: parse_class(row, f"line {line} of '{path}'")
        for line, row in read_table(path, "file")
        if (name := parse_file_name(row)) in image_names
    }
    return require_rows(label_by_name, path), read_class_names(path)


def parse_file_name(row: Mapping[str, str]) -> str:
    return row["file"].removeprefix("./").removeprefix("images/")


def require_rows(rows_by_name: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return `rows_by_name`; raise `DataError` if it is empty, that is if no row of the table is about one of the images."""
    if not rows_by_name:
        raise DataError(
            f"'{path}' names none of the images; its column file gives their paths from the folder of images"
        )
    return rows_by_name


def parse_class(row: Mapping[str, str], where: str) -> int:
    """Class of a row, from its number or WordNet id; `DataError` if both are given and differ."""
    wnid, column = row.get("wnid", ""), next((field for field in LABELS if row.get(field)), None)
    if wnid and wnid not in index_of_wnid():
        raise DataError(f"{where} has the WordNet id {wnid!r}, which is not a class of ImageNet-1k")
    if column is None and not wnid:
        raise DataError(f"{where} says no class; expected a number in the column {' or '.join(LABELS)}, or a wnid")
    label = index_of_wnid()[wnid] if column is None else int(parse_number(row[column], where, "whole"))
    if label < 0:
        raise DataError(f"{where} has the class {label}; classes count from 0")
    if wnid and index_of_wnid()[wnid] != label:
        raise DataError(f"{where} says class {label} and {wnid}, which is class {index_of_wnid()[wnid]} of ImageNet")
    return label


def read_class_names(path: Path) -> tuple[str, ...] | None:
    """ImageNet class names if the table has a column wnid or imagenet_label, else None."""
    columns = next((row for _, row in read_table(path, "file")), {})
    return imagenet_classes(1000) if "wnid" in columns or "imagenet_label" in columns else None


def read_folder_labels(names: list[str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Classes from top-level folders, numbered in the order of their names."""
    classes = tuple(sorted({name.split("/", 1)[0] for name in names}))
    index_by_class = {class_name: index for index, class_name in enumerate(classes)}
    return {name: index_by_class[name.split("/", 1)[0]] for name in names}, classes


def read_boxes(path: Path, names: list[str]) -> dict[str, list[tuple[int | None, list[float]]]]:
    """Boxes by image: class (or None), and x0 y0 x1 y1 width height as for `place_boxes`."""
    boxes_by_name: dict[str, list[tuple[int | None, list[float]]]] = {}
    image_names = frozenset(names)
    for line, row in read_table(path, "file", "x0", "y0", "x1", "y1"):
        where = f"line {line} of '{path}'"
        if parse_file_name(row) not in image_names:
            continue
        corners = [parse_number(row[field], where) for field in ("x0", "y0", "x1", "y1")]
        corners += [parse_number(row.get(field) or 0, where) for field in ("width", "height")]
        label = parse_class(row, where) if row.get("label") or row.get("wnid") else None
        boxes_by_name.setdefault(parse_file_name(row), []).append((label, corners))
    return require_rows(boxes_by_name, path)


def read_box_labels(path: Path, boxes: Mapping[str, list[tuple[int | None, Any]]]) -> dict[str, int]:
    """Classes of images from the classes of their boxes; `DataError` if the boxes of an image have several classes."""
    label_by_name = {}
    for name, rows in boxes.items():
        labels = {label for label, _ in rows if label is not None}
        if len(labels) > 1:
            raise DataError(
                f"'{path}' has boxes of the classes {sorted(labels)} for '{name}'; labels.csv must say which is the image's"
            )
        label_by_name.update(dict.fromkeys([name], *labels) if labels else {})
    return label_by_name
