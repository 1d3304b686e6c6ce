"""ImageNet's validation set: one folder per class, or one folder with a label file; boxes as XML or CSV."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from vitreous.core.errors import DataError
from vitreous.data.devkit import LISTS, Ids, find_class_of_wnid, read_list, read_solution
from vitreous.data.files import is_image_name, list_images, parse_number, place_boxes, read_image_and_orientation
from vitreous.data.reader import contains, expand_path, reader, require_folder
from vitreous.data.sample import Album, Boxes, Sample, digest
from vitreous.models.imagenet import imagenet_classes, wnids

LAYOUT = (
    "val/<wnid>/ILSVRC2012_val_*.JPEG, or val/ILSVRC2012_val_*.JPEG with a label file "
    f"({', '.join(LISTS)}); boxes in bbox/val/*.xml or LOC_val_solution.csv"
)
BOXES = ("bbox/val", "bbox", "Annotations/CLS-LOC/val", "val_bbox", "LOC_val_solution.csv")
WNID = re.compile(r"n\d{8}")
Drawn = tuple[str, list[float]]  # wnid, and a row as for `place_boxes`


class UnlabelledImagesError(DataError):
    """A flat folder of images without a label file: it can be read as images, not as ImageNet's validation set."""

    def __init__(self, message: str, folder: Path = Path()) -> None:  # unpickling passes the message only
        super().__init__(message)
        self.folder = folder


def is_imagenet(path: Path) -> bool:
    """Whether files or folders are named as those of ImageNet, and neither tables, masks nor shards lie beside them."""
    validation = contains(
        "val/n[0-9]*", "n[0-9]*", "ILSVRC2012_val_*", "val/ILSVRC2012_val_*", "images/ILSVRC2012_val_*"
    )
    return validation(path) and not contains("labels.csv", "boxes.csv", "masks", "*.tar")(path)


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
    root = require_folder(place, LAYOUT)
    base = next(folder for folder in (root / "val", root / "images", root) if folder.is_dir())
    per_class = sorted(
        class_folder for class_folder in base.iterdir() if class_folder.is_dir() and WNID.fullmatch(class_folder.name)
    )
    if per_class and labels is None:
        files = {
            f"{class_folder.name}/{name}": find_class_of_wnid(class_folder.name, class_folder)
            for class_folder in per_class
            for name in list_images(class_folder)
        }
    else:
        files = label_flat_files(root, base, labels, ids, None if meta is None else expand_path(meta))
    if not files:
        raise DataError(f"there is no image in '{base}'; expected {LAYOUT}")
    keys = {f"val/{wnids()[label]}/{Path(name).stem}": name for name, label in files.items()}
    names, order = [keys[key] for key in sorted(keys)], sorted(keys)
    drawn = open_boxes(root, boxes)
    facts = {"labels": digest(f"{key} {files[keys[key]]}" for key in order), "boxes": drawn is not None}
    return Album("imagenet-val", order, partial(read, base, order, names, files, drawn), imagenet_classes(1000), facts)


def label_flat_files(
    root: Path, base: Path, labels: str | Path | None, ids: Ids | None, meta: Path | None
) -> dict[str, int]:
    """Images of a folder without subfolders per class, with their classes from a label file."""
    names = list_images(base) if labels else sorted(path.name for path in base.iterdir() if is_image_name(path.name))
    stems = [Path(name).stem for name in names]
    if not names:
        return {}
    places = [folder / name for name in LISTS for folder in (root, base, root.parent, root / "data")]
    label_file = expand_path(labels) if labels else next((path for path in places if path.is_file()), None)
    if label_file is None:
        raise UnlabelledImagesError(f"'{root}' has {len(names)} images and no label file; expected {LAYOUT}", base)
    classes = read_list(label_file, stems, ids, meta)
    if missing := [stem for stem in stems if stem not in classes]:
        raise DataError(f"'{label_file}' has no class for {missing[0]!r} ({len(missing)} images in all)")
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
    image, orientation = read_image_and_orientation(base / name)
    label = labels[name]
    boxes: Boxes | None = None
    if drawn is not None:
        own = [row for wnid, row in drawn(Path(name).stem) if wnid == wnids()[label]]
        boxes = place_boxes(own, orientation, image)
    return Sample(keys[index], image, label, boxes=boxes)


def open_boxes(root: Path, boxes: str | Path | None) -> Callable[[str], list[Drawn]] | None:
    """Function from image name (without suffix) to its boxes of all classes, or None if there are no boxes."""
    places = [expand_path(boxes)] if boxes else [root / name for name in BOXES]
    box_source = next(
        (path for path in places if path.is_file() or (path.is_dir() and next(path.glob("*.xml"), None))), None
    )
    if box_source is None:
        if boxes:
            raise DataError(
                f"there are no boxes at '{places[0]}'; expected a folder of XML files or LOC_val_solution.csv"
            )
        return None
    return (
        partial(read_xml_boxes, box_source)
        if box_source.is_dir()
        else partial(read_csv_boxes, box_source, read_solution(box_source))
    )


def read_csv_boxes(path: Path, boxes: dict[str, list[tuple[str, list[float]]]], stem: str) -> list[Drawn]:
    if stem not in boxes:
        raise DataError(f"'{path}' has no boxes for {stem!r}")
    return [(wnid, [*corners, 0, 0]) for wnid, corners in boxes[stem]]


def read_xml_boxes(folder: Path, stem: str) -> list[Drawn]:
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
        return [parse_number(node.findtext(name), f"'{path}' ({name})") for name in names]

    size = numbers(tree.find("size"), "width", "height")
    size = size if min(size) > 0 else [0, 0]
    return [
        (node.findtext("name", "").strip(), [*numbers(node.find("bndbox"), "xmin", "ymin", "xmax", "ymax"), *size])
        for node in tree.iterfind("object")
    ]
