"""ImageNet's validation set: one folder per class, or one folder with a label file; boxes as XML or CSV.

Two formats of label files look alike but differ: a caffe list has classes 0 to 999, the devkit's ground truth has
ILSVRC ids 1 to 1000 in another order.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from vitreous.core.errors import DataError
from vitreous.data.files import StoredImage, is_image_name, list_images, other_errors_as, parse_number, read_table
from vitreous.data.reader import UnlabelledImagesError, contains, expand_path, import_package, reader, require_folder
from vitreous.data.sample import Album, Sample, digest, make_album
from vitreous.models.class_names import imagenet_classes, index_of_wnid, wnids

Ids = Literal["caffe", "devkit"]
DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
LISTS = (f"{DEVKIT[:-4]}_caffe.txt", "val.txt", "LOC_val_solution.csv", DEVKIT)
NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})$")
LAYOUT = (
    "val/<wnid>/ILSVRC2012_val_*.JPEG, or val/ILSVRC2012_val_*.JPEG with a label file "
    f"({', '.join(LISTS)}); boxes in bbox/val/*.xml or LOC_val_solution.csv"
)
BOXES = ("bbox/val", "bbox", "Annotations/CLS-LOC/val", "val_bbox", "LOC_val_solution.csv")
WNID = re.compile(r"n\d{8}")
Drawn = tuple[str, list[float]]  # wnid, and a row as for `place_boxes`


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

    There is one folder per class, or one folder of images with a label file:
    `ILSVRC2012_validation_ground_truth_caffe.txt`, `val.txt`, Kaggle's `LOC_val_solution.csv` (with boxes), or the
    devkit's `ILSVRC2012_validation_ground_truth.txt` with `meta.mat`, since its ids are in another order. Indices of a
    `subset` list count in the order of class folders and file names, as in torchvision.

    ```text
    imagenet-val:/data/imagenet-val
    imagenet-val:/data/imagenet-val?boxes=/data/imagenet-val/bbox/val
    imagenet-val:/data/imagenet-flat
    imagenet-val:/data/imagenet-flat?labels=/data/imagenet-flat/val.txt&ids=caffe
    ```

    ```text
    /data/imagenet-val/val/n01440764/ILSVRC2012_val_00000001.JPEG
    /data/imagenet-val/bbox/val/ILSVRC2012_val_00000001.xml
    /data/imagenet-flat/val/ILSVRC2012_val_00000001.JPEG
    /data/imagenet-flat/val.txt
    ```

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
    per_class = sorted(folder for folder in base.iterdir() if folder.is_dir() and WNID.fullmatch(folder.name))
    if per_class and labels is None:
        files = {
            f"{folder.name}/{name}": find_class_of_wnid(folder.name, f"'{folder}'")
            for folder in per_class
            for name in list_images(folder)
        }
    else:
        files = label_flat_files(root, base, labels, ids, None if meta is None else expand_path(meta))
    if not files:
        raise DataError(f"there is no image in '{base}'; expected {LAYOUT}")
    entry_by_key = {f"val/{wnids()[label]}/{Path(name).stem}": (name, label) for name, label in files.items()}
    entries = sorted(entry_by_key.items())
    drawn = open_boxes(root, boxes)
    facts = {"labels": digest(f"{key} {label}" for key, (_, label) in entries), "boxes": drawn is not None}
    return make_album("imagenet-val", entries, partial(read, base, drawn), imagenet_classes(1000), facts)


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


def read(base: Path, drawn: Callable[[str], list[Drawn]] | None, key: str, file: tuple[str, int]) -> Sample:
    name, label = file
    stored = StoredImage(base / name)
    if drawn is None:
        return Sample(key, stored.image, label)
    own = [row for wnid, row in drawn(Path(name).stem) if wnid == wnids()[label]]
    return Sample(key, stored.image, label, boxes=stored.place_boxes(own))


def open_boxes(root: Path, boxes: str | Path | None) -> Callable[[str], list[Drawn]] | None:
    """Function from image name (without suffix) to its boxes of all classes, or None if there are no boxes."""
    places = [expand_path(boxes)] if boxes else [root / name for name in BOXES]
    box_source = next(
        (path for path in places if path.is_file() or (path.is_dir() and next(path.glob("*.xml"), None))), None
    )
    if box_source is None and boxes:
        raise DataError(f"there are no boxes at '{places[0]}'; expected a folder of XML files or LOC_val_solution.csv")
    if box_source is None:
        return None
    if box_source.is_dir():
        return partial(read_xml_boxes, box_source)
    return partial(read_csv_boxes, box_source, read_solution(box_source))


def read_csv_boxes(path: Path, boxes: dict[str, list[Drawn]], stem: str) -> list[Drawn]:
    if stem not in boxes:
        raise DataError(f"'{path}' has no boxes for {stem!r}")
    return boxes[stem]


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


# ── label files ──────────────────────────────────────────────────────────────────────────────────


def read_list(path: Path, stems: list[str], ids: Ids | None = None, meta: Path | None = None) -> dict[str, int]:
    """Read a label file.

    Parameters
    ----------
    path
        A text file with the class last in each line, or Kaggle's LOC_val_solution.csv.
    stems
        Names of the images without suffix; needed if the lines do not contain names.
    ids
        Meaning of the numbers: classes ("caffe") or ILSVRC ids ("devkit"). None: inferred by `infer_id_kind`.
    meta
        The devkit's meta.mat, needed for ILSVRC ids; by default it is looked for near `path`.

    Returns
    -------
    dict
        Class 0 to 999 by name without suffix.

    Raises
    ------
    DataError
        If the file is missing, empty or invalid, or the meaning of its numbers cannot be inferred.
    """
    if not path.is_file():
        raise DataError(f"there is no label file at '{path}'; known are {', '.join(LISTS)}")
    if path.suffix == ".csv":
        return {stem: find_class_of_wnid(boxes[0][0], f"'{path}'") for stem, boxes in read_solution(path).items()}
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    values = [int(parse_number(line[-1], f"line {i} of '{path}'", "whole")) for i, line in enumerate(lines, 1)]
    if not values:
        raise DataError(f"the label file '{path}' is empty; expected one line per image, its class last")
    if (ids or infer_id_kind(path, values)) == "devkit":
        classes = read_class_ids(path, meta)
        if unknown := sorted(set(values) - classes.keys()):
            raise DataError(f"'{path}' has the ILSVRC id {unknown[0]}; ids go from 1 to 1000")
        values = [classes[value] for value in values]
    elif not 0 <= min(values) <= max(values) <= 999:
        raise DataError(f"'{path}' has classes from {min(values)} to {max(values)}; 0 to 999 are known")
    if all(len(line) > 1 for line in lines):
        return {Path(line[0]).stem: value for line, value in zip(lines, values, strict=True)}
    return match_lines(stems, values, path)


def match_lines(stems: list[str], values: list[int], path: Path) -> dict[str, int]:
    """Classes by name; line i, from 1 on, is that of image ILSVRC2012_val_<i in 8 digits>."""
    class_by_stem = {}
    for stem in stems:
        match = NUMBER.search(stem)
        line = int(match[1]) if match else 0
        if not 1 <= line <= len(values):
            raise DataError(f"'{path}' has {len(values)} lines, and none is for the image {stem!r}")
        class_by_stem[stem] = values[line - 1]
    return class_by_stem


def infer_id_kind(path: Path, values: list[int]) -> Ids:
    """Infer whether a list has classes or ILSVRC ids: only classes can be 0, only ids can be 1000.

    Otherwise the file name decides; `DataError` if it does not.
    """
    name = path.name.lower()
    if 0 in values or "caffe" in name:
        return "caffe"
    if max(values) == 1000 or name == DEVKIT.lower():
        return "devkit"
    raise DataError(
        f"'{path}' may hold classes 0 to 999 or the devkit's ILSVRC ids 1 to 1000, which are in another order; "
        "say which with ids=caffe or ids=devkit"
    )


def read_class_ids(path: Path, meta: Path | None) -> dict[int, int]:
    """Class by ILSVRC id, from the devkit's meta.mat; ids above 1000 are groups of classes and left out."""
    folder = path.parent
    places = [meta] if meta else [folder / "meta.mat", folder / "data" / "meta.mat", folder.parent / "meta.mat"]
    meta_file = next((place for place in places if place.is_file()), None)
    if meta_file is None:
        raise DataError(
            f"'{path}' holds the devkit's ILSVRC ids, which are no classes; put the devkit's meta.mat beside it, "
            f"or use {LISTS[0]}"
        )
    scipy_io = import_package("scipy.io", f"'{meta_file}' (MATLAB)")
    content = "the devkit's meta.mat (synsets with ILSVRC2012_ID and WNID)"
    with other_errors_as(f"'{meta_file}' is damaged or not {content}"):
        synsets = scipy_io.loadmat(str(meta_file), squeeze_me=True)["synsets"]
        wnid_by_id = {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
    wnids_of_classes = {synset_id: wnid for synset_id, wnid in wnid_by_id.items() if synset_id <= 1000}
    return {synset_id: find_class_of_wnid(wnid, f"'{meta_file}'") for synset_id, wnid in wnids_of_classes.items()}


def read_solution(path: Path) -> dict[str, list[Drawn]]:
    """Boxes by image from Kaggle's LOC_val_solution.csv, whose rows have `wnid x0 y0 x1 y1` once per box."""
    boxes_by_image = {}
    for line, row in read_table(path, "ImageId", "PredictionString"):
        fields = row["PredictionString"].split()
        where = f"line {line} of '{path}'"
        if not fields or len(fields) % 5:
            raise DataError(
                f"{where} has {len(fields)} entries; expected wnid x0 y0 x1 y1, as often as there are boxes"
            )
        boxes_by_image[row["ImageId"]] = [
            (fields[i], [*(parse_number(text, where) for text in fields[i + 1 : i + 5]), 0, 0])
            for i in range(0, len(fields), 5)
        ]
    return boxes_by_image


def find_class_of_wnid(wnid: str, where: str) -> int:
    """Class of a WordNet id; if it is not in ImageNet-1k, raise `DataError` that begins with `where`."""
    if wnid not in index_of_wnid():
        raise DataError(f"{where} has the WordNet id {wnid!r}, which is not a class of ImageNet-1k")
    return index_of_wnid()[wnid]


def imagenet_class_of(dataset: str) -> dict[str, int]:
    """Class of ImageNet by class name of another dataset, for the classes that both have."""
    text = Path(__file__).with_name("imagenet_classes.toml").read_text(encoding="utf-8")
    return {name: index_of_wnid()[wnid] for name, wnid in tomllib.loads(text)[dataset].items()}
