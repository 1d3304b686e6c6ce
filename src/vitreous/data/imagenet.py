"""ImageNet's validation set: one folder per class, or one folder with a label file; boxes as XML or CSV."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from vitreous.core.errors import DataError
from vitreous.data.devkit import LISTS, Ids, index_in, read_list, solution
from vitreous.data.files import is_picture, number, picture_and_turn, pictures_in, upright_boxes
from vitreous.data.reader import folder_at, has, located, reader
from vitreous.data.sample import Album, Boxes, Sample, digest
from vitreous.models.imagenet import wnids

LAYOUT = (
    "val/<wnid>/ILSVRC2012_val_*.JPEG, or val/ILSVRC2012_val_*.JPEG with a label file "
    f"({', '.join(LISTS)}); boxes in bbox/val/*.xml or LOC_val_solution.csv"
)
BOXES = ("bbox/val", "bbox", "Annotations/CLS-LOC/val", "val_bbox", "LOC_val_solution.csv")
WNID = re.compile(r"n\d{8}")
Drawn = tuple[
    str, list[float], tuple[float, float] | None
]  # wnid, corners, (width, height) of the image that they refer to (None: the stored image)


class UnlabelledImagesError(DataError):
    """A flat folder of images without a label file: it can be read as images, not as ImageNet's validation set."""

    def __init__(self, message: str, folder: Path = Path()) -> None:  # unpickling passes the message only
        super().__init__(message)
        self.folder = folder


def is_imagenet(path: Path) -> bool:
    """Whether files or folders are named as those of ImageNet, and neither tables, masks nor shards lie beside them."""
    validation = has("val/n[0-9]*", "n[0-9]*", "ILSVRC2012_val_*", "val/ILSVRC2012_val_*", "images/ILSVRC2012_val_*")
    return validation(path) and not has("labels.csv", "boxes.csv", "masks", "*.tar")(path)


@reader("imagenet-val", recognises=is_imagenet)
def imagenet_val(
    place: str | Path,
    labels: str | Path | None = None,
    ids: Ids | None = None,
    meta: str | Path | None = None,
    boxes: str | Path | None = None,
) -> Album:
    """ImageNet's validation images with their class and, if available, the boxes of that class.

    Parameters
    ----------
    place
        The folder.
    labels
        Label file. None: one folder per class if there are such folders, else a label file with one of its usual
        names.
    ids
        Meaning of the numbers in the label file, if it cannot be inferred: "caffe" (classes 0 to 999) or "devkit"
        (ILSVRC ids 1 to 1000).
    meta
        The devkit's meta.mat, needed for ILSVRC ids.
    boxes
        Folder of XML files, or LOC_val_solution.csv. None: looked for under its usual names.

    Raises
    ------
    UnlabelledImagesError
        If the images are not in folders per class and there is no label file.
    DataError
        If there are no images, or labels or boxes are missing or invalid.
    """
    root = folder_at(place, LAYOUT)
    base = next(one for one in (root / "val", root / "images", root) if one.is_dir())
    per_class = sorted(one for one in base.iterdir() if one.is_dir() and WNID.fullmatch(one.name))
    if per_class and labels is None:
        files = {f"{one.name}/{name}": index_in(one.name, one) for one in per_class for name in pictures_in(one)}
    else:
        files = flat_files(root, base, labels, ids, None if meta is None else located(meta))
    if not files:
        raise DataError(f"there is no image in '{base}'; expected {LAYOUT}")
    keys = {f"val/{wnids()[label]}/{Path(name).stem}": name for name, label in files.items()}
    names, order = [keys[key] for key in sorted(keys)], sorted(keys)
    drawn = boxes_of(root, boxes)
    facts = {"labels": digest(f"{key} {files[keys[key]]}" for key in order), "boxes": drawn is not None}
    from vitreous.models.imagenet import imagenet_classes

    return Album("imagenet-val", order, partial(read, base, order, names, files, drawn), imagenet_classes(1000), facts)


def flat_files(root: Path, base: Path, labels: str | Path | None, ids: Ids | None, meta: Path | None) -> dict[str, int]:
    """Images of a folder without subfolders per class, with their classes from a label file."""
    names = pictures_in(base) if labels else sorted(one.name for one in base.iterdir() if is_picture(one.name))
    stems = [Path(name).stem for name in names]
    if not names:
        return {}
    places = [folder / name for name in LISTS for folder in (root, base, root.parent, root / "data")]
    found = located(labels) if labels else next((one for one in places if one.is_file()), None)
    if found is None:
        raise UnlabelledImagesError(f"'{root}' has {len(names)} images and no label file; expected {LAYOUT}", base)
    classes = read_list(found, stems, ids, meta)
    if missing := [stem for stem in stems if stem not in classes]:
        raise DataError(f"'{found}' has no class for {missing[0]!r} ({len(missing)} images in all)")
    return {name: classes[stem] for name, stem in zip(names, stems, strict=True)}


def read(
    base: Path,
    keys: list[str],
    names: list[str],
    labels: dict[str, int],
    drawn: Callable[[str], list[Drawn]] | None,
    index: int,
) -> Sample:
    name = names[index]
    picture, turn = picture_and_turn(base / name)
    label = labels[name]
    boxes: Boxes | None = None
    if drawn is not None:
        stored = picture.size if turn < 5 else (picture.height, picture.width)
        own = [one for one in drawn(Path(name).stem) if one[0] == wnids()[label]]
        corners = [np.asarray(one) * np.tile(np.asarray(stored) / (size or stored), 2) for _, one, size in own]
        boxes = upright_boxes(np.asarray(corners, dtype=np.float64).reshape(-1, 4), turn, picture)
    return Sample(keys[index], picture, label, boxes=boxes)


def boxes_of(root: Path, given: str | Path | None) -> Callable[[str], list[Drawn]] | None:
    """Function from image name (without suffix) to its boxes of all classes, or None if there are no boxes."""
    places = [located(given)] if given else [root / one for one in BOXES]
    found = next((one for one in places if one.is_file() or (one.is_dir() and next(one.glob("*.xml"), None))), None)
    if found is None:
        if given:
            raise DataError(
                f"there are no boxes at '{places[0]}'; expected a folder of XML files or LOC_val_solution.csv"
            )
        return None
    return partial(from_xml, found) if found.is_dir() else partial(from_csv, found, solution(found))


def from_csv(path: Path, boxes: dict[str, list[tuple[str, list[float]]]], stem: str) -> list[Drawn]:
    if stem not in boxes:
        raise DataError(f"'{path}' has no boxes for {stem!r}")
    return [(wnid, corners, None) for wnid, corners in boxes[stem]]


def from_xml(folder: Path, stem: str) -> list[Drawn]:
    """Boxes in Pascal VOC format: each `object` has a `name` and a `bndbox`; `size` is that of the image."""
    path = folder / f"{stem}.xml"
    try:
        tree = ElementTree.parse(path)
    except FileNotFoundError:
        raise DataError(f"there are no boxes at '{path}'") from None
    except ElementTree.ParseError as problem:
        raise DataError(f"'{path}' is damaged ({problem}); expected XML as in Pascal VOC") from None

    def numbers(node: ElementTree.Element | None, *names: str) -> list[float]:
        if node is None:
            raise DataError(f"'{path}' has no {', '.join(names)}; expected XML as in Pascal VOC")
        return [number(node.findtext(name), f"'{path}' ({name})") for name in names]

    width, height = numbers(tree.find("size"), "width", "height")
    size = (width, height) if width > 0 and height > 0 else None
    return [
        (one.findtext("name", "").strip(), numbers(one.find("bndbox"), "xmin", "ymin", "xmax", "ymax"), size)
        for one in tree.iterfind("object")
    ]
