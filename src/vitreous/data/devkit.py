"""Labels of ImageNet's validation set, from the label files that are in circulation.

Two of the formats look alike but differ: a caffe list has classes 0 to 999, the devkit's ground truth has ILSVRC ids 1
to 1000 in another order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from vitreous.core.errors import DataError
from vitreous.data.files import parse_number, read_table
from vitreous.data.reader import check_choice, import_package
from vitreous.models.imagenet import index_of_wnid

Ids = Literal["caffe", "devkit"]
DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
LISTS = (f"{DEVKIT[:-4]}_caffe.txt", "val.txt", "LOC_val_solution.csv", DEVKIT)
NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})$")


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
        return {stem: find_class_of_wnid(boxes[0][0], path) for stem, boxes in read_solution(path).items()}
    check_choice("ids", ids, (None, "caffe", "devkit"))
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
    """Class by ILSVRC id, from the devkit's meta.mat."""
    places = (
        [meta]
        if meta
        else [path.parent / "meta.mat", path.parent / "data" / "meta.mat", path.parent.parent / "meta.mat"]
    )
    meta_file = next((place for place in places if place.is_file()), None)
    if meta_file is None:
        raise DataError(
            f"'{path}' holds the devkit's ILSVRC ids, which are no classes; put the devkit's meta.mat beside it, "
            f"or use {LISTS[0]}"
        )
    return read_meta(meta_file)


def read_meta(path: Path) -> dict[int, int]:
    """Class by ILSVRC id; ids above 1000 are groups of classes and left out."""
    scipy_io = import_package("scipy.io", f"'{path}' (MATLAB)")
    try:
        synsets = scipy_io.loadmat(str(path), squeeze_me=True)["synsets"]
        wnids = {int(synset_id["ILSVRC2012_ID"]): str(synset_id["WNID"]) for synset_id in synsets}
    except Exception:  # noqa: BLE001 - scipy raises many exceptions on other files
        raise DataError(
            f"'{path}' is damaged or not the devkit's meta.mat (synsets with ILSVRC2012_ID and WNID)"
        ) from None
    return {synset_id: find_class_of_wnid(wnid, path) for synset_id, wnid in wnids.items() if synset_id <= 1000}


def read_solution(path: Path) -> dict[str, list[tuple[str, list[float]]]]:
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
            (fields[i], [parse_number(text, where) for text in fields[i + 1 : i + 5]]) for i in range(0, len(fields), 5)
        ]
    return boxes_by_image


def find_class_of_wnid(wnid: str, path: Path) -> int:
    """Class of a WordNet id; `DataError` that names `path` if it is not in ImageNet-1k."""
    if wnid not in index_of_wnid():
        raise DataError(f"'{path}' has the WordNet id {wnid!r}, which is not a class of ImageNet-1k")
    return index_of_wnid()[wnid]
