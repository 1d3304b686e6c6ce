"""Which class a picture of ImageNet's validation set has, from the files that are handed around for it.

Two of them look alike and are not: a caffe list gives classes 0 to 999, the devkit's ground truth gives ILSVRC ids 1 to 1000 in another order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from vitreous.core.errors import DataError
from vitreous.data.files import number, rows_of
from vitreous.data.reader import choice, need
from vitreous.models.imagenet import index_of_wnid

Ids = Literal["caffe", "devkit"]
DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
LISTS = (f"{DEVKIT[:-4]}_caffe.txt", "val.txt", "LOC_val_solution.csv", DEVKIT)
NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})$")


def read_list(path: Path, stems: list[str], ids: Ids | None = None, meta: Path | None = None) -> dict[str, int]:
    """Class 0 to 999 of every picture, by its name without suffix."""
    if not path.is_file():
        raise DataError(f"there is no label file at '{path}'; known are {', '.join(LISTS)}")
    if path.suffix == ".csv":
        return {stem: index_in(wnids[0], path) for stem, wnids in solution_wnids(path).items()}
    choice("ids", ids, (None, "caffe", "devkit"))
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    values = [int(number(line[-1], f"line {i} of '{path}'", "whole")) for i, line in enumerate(lines, 1)]
    if not values:
        raise DataError(f"the label file '{path}' is empty; expected one line per picture, its class last")
    if (ids or kind_of(path, values)) == "devkit":
        classes = class_of_id(path, meta)
        if unknown := sorted(set(values) - classes.keys()):
            raise DataError(f"'{path}' has the ILSVRC id {unknown[0]}; ids go from 1 to 1000")
        values = [classes[value] for value in values]
    elif not 0 <= min(values) <= max(values) <= 999:
        raise DataError(f"'{path}' has classes from {min(values)} to {max(values)}; 0 to 999 are known")
    if all(len(line) > 1 for line in lines):
        return {Path(line[0]).stem: value for line, value in zip(lines, values, strict=True)}
    return by_line(stems, values, path)


def by_line(stems: list[str], values: list[int], path: Path) -> dict[str, int]:
    """Line i is picture ILSVRC2012_val_0000000i."""
    found = {}
    for stem in stems:
        match = NUMBER.search(stem)
        line = int(match[1]) if match else 0
        if not 1 <= line <= len(values):
            raise DataError(f"'{path}' has {len(values)} lines, and none is for the picture {stem!r}")
        found[stem] = values[line - 1]
    return found


def kind_of(path: Path, values: list[int]) -> Ids:
    """Whose numbers a list holds: 0 is a class and no ILSVRC id, 1000 an id and no class; else its name must say so."""
    name = path.name.lower()
    if 0 in values or "caffe" in name:
        return "caffe"
    if max(values) == 1000 or name == DEVKIT.lower():
        return "devkit"
    raise DataError(
        f"'{path}' may hold classes 0 to 999 or the devkit's ILSVRC ids 1 to 1000, which are in another order; "
        "say which with ids=caffe or ids=devkit"
    )


def class_of_id(path: Path, meta: Path | None) -> dict[int, int]:
    """Class of every ILSVRC id, by the devkit's meta.mat."""
    places = (
        [meta]
        if meta
        else [path.parent / "meta.mat", path.parent / "data" / "meta.mat", path.parent.parent / "meta.mat"]
    )
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise DataError(
            f"'{path}' holds the devkit's ILSVRC ids, which are no classes; put the devkit's meta.mat beside it, "
            f"or use {LISTS[0]}"
        )
    return read_meta(found)


def read_meta(path: Path) -> dict[int, int]:
    """ILSVRC ids of meta.mat as classes; ids beyond 1000 are groups of classes."""
    scipy_io = need("scipy.io", f"'{path}' (MATLAB)")
    try:
        synsets = scipy_io.loadmat(str(path), squeeze_me=True)["synsets"]
        wnids = {int(one["ILSVRC2012_ID"]): str(one["WNID"]) for one in synsets}
    except Exception:  # noqa: BLE001 - scipy fails in many ways on what is no MATLAB file
        raise DataError(
            f"'{path}' is damaged or not the devkit's meta.mat (synsets with ILSVRC2012_ID and WNID)"
        ) from None
    return {one: index_in(wnid, path) for one, wnid in wnids.items() if one <= 1000}


def solution_wnids(path: Path) -> Mapping[str, list[str]]:
    """WordNet ids of the boxes of every picture in Kaggle's solution."""
    return {stem: [wnid for wnid, _ in boxes] for stem, boxes in solution(path).items()}


def solution(path: Path) -> dict[str, list[tuple[str, list[float]]]]:
    """Kaggle's LOC_val_solution.csv: a picture, and after it `wnid x0 y0 x1 y1` as often as there are boxes."""
    found = {}
    for line, row in rows_of(path, "ImageId", "PredictionString"):
        fields = row["PredictionString"].split()
        where = f"line {line} of '{path}'"
        if not fields or len(fields) % 5:
            raise DataError(
                f"{where} has {len(fields)} entries; expected wnid x0 y0 x1 y1, as often as there are boxes"
            )
        found[row["ImageId"]] = [
            (fields[i], [number(text, where) for text in fields[i + 1 : i + 5]]) for i in range(0, len(fields), 5)
        ]
    return found


def index_in(wnid: str, path: Path) -> int:
    if wnid not in index_of_wnid():
        raise DataError(f"'{path}' has the WordNet id {wnid!r}, which is not a class of ImageNet-1k")
    return index_of_wnid()[wnid]
