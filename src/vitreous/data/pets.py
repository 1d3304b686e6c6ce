"""Oxford-IIIT Pet: images of cats and dogs with trimaps (1 animal, 2 background, 3 border)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from vitreous.core.errors import DataError
from vitreous.data.files import StoredImage, parse_number, read_table
from vitreous.data.imagenet import imagenet_class_of
from vitreous.data.reader import contains, reader, require_folder
from vitreous.data.sample import Album, Mask, Sample, digest, make_album
from vitreous.models.class_names import imagenet_classes

LAYOUT = (
    "Oxford-IIIT Pet: images/*.jpg with annotations/list.txt and annotations/trimaps/, or with labels.csv and trimaps/"
)
BORDER = {"ignore": -1, "object": 1, "background": 0}


def is_pets(path: Path) -> bool:
    """Whether a folder has the annotations of Oxford-IIIT Pet, or trimaps with a label table."""
    return contains("annotations/list.txt")(path) or (contains("trimaps")(path) and contains("labels.csv")(path))


@reader("pets", recognises=is_pets)
def pets(
    place: str | Path,
    split: Literal["all", "trainval", "test"] = "all",
    labels: Literal["breed", "imagenet"] | None = None,
    border: Literal["ignore", "object", "background"] = "ignore",
) -> Album:
    """Oxford-IIIT Pet with trimaps, in its original layout or with labels.csv and trimaps/.

    ```text
    pets:/data/pets
    pets:/data/pets?split=test&labels=imagenet&border=background
    ```

    ```text
    /data/pets/images/pug_1.jpg
    /data/pets/annotations/list.txt
    /data/pets/annotations/test.txt
    /data/pets/annotations/trimaps/pug_1.png
    ```

    Parameters
    ----------
    place
        The folder.
    split
        "all", "trainval" or "test"; with labels.csv only "all".
    labels
        "breed" (37 classes) or "imagenet" (only breeds that are classes of ImageNet are read). None: "breed" in the
        original layout; labels.csv always has ImageNet classes.
    border
        Whether border pixels are ignored or count as object or background.

    Raises
    ------
    DataError
        If the folder has neither layout, lists no image, or the options do not fit labels.csv.
    """
    root = require_folder(place, LAYOUT)
    if (root / "annotations" / "list.txt").is_file():
        trimaps = root / "annotations" / "trimaps"
        entries, classes = read_original(root, split, labels or "breed")
    elif (root / "labels.csv").is_file() and (root / "trimaps").is_dir():
        if split != "all" or labels == "breed":
            raise DataError(
                f"'{root}' has labels.csv, which knows no splits and ImageNet's classes only; leave them out"
            )
        trimaps, classes = root / "trimaps", imagenet_classes(1000)
        entries = read_table_labels(root / "labels.csv")
    else:
        raise DataError(f"'{root}' is not laid out as {LAYOUT}")
    if not entries:
        raise DataError(f"'{root}' lists no image; expected {LAYOUT}")
    files = sorted(entries.items())
    facts = {"split": split, "border": border, "labels": digest(f"{name} {label}" for name, label in files)}
    keyed = [(Path(name).stem, (name, label)) for name, label in files]
    return make_album("pets", keyed, partial(read, root, trimaps, BORDER[border]), classes, facts)


def read(root: Path, trimaps: Path, border: int, key: str, file: tuple[str, int]) -> Sample:
    name, label = file
    stored = StoredImage(root / "images" / name)
    path = trimaps / Path(name).with_suffix(".png").name
    mask = convert_trimap(stored.read_mask_ids(path), border, path)
    return Sample(key, stored.image, label, mask)


def convert_trimap(ids: np.ndarray, border: int, path: Path) -> Mask:
    if odd := sorted(set(np.unique(ids).tolist()) - {1, 2, 3}):
        raise DataError(
            f"the trimap '{path}' has the numbers {odd}; 1 (animal), 2 (background) and 3 (border) are known"
        )
    return np.asarray([0, 1, 0, border], dtype=np.int8)[ids]


def read_table_labels(path: Path) -> dict[str, int]:
    """ImageNet class by file name."""
    return {
        row["file"]: int(parse_number(row["imagenet_label"], f"line {line} of '{path}'", "whole"))
        for line, row in read_table(path, "file", "imagenet_label")
    }


def read_original(root: Path, split: str, labels: str) -> tuple[dict[str, int], tuple[str, ...] | None]:
    """Class by file name from the lists of the original archive, and class names.

    A line of a list has name, breed (1 to 37), species, and breed within the species.
    """
    path = root / "annotations" / ("list.txt" if split == "all" else f"{split}.txt")
    entries, breeds = read_breed_list(path), read_breed_list(root / "annotations" / "list.txt")
    names = {number: name.rsplit("_", 1)[0] for name, number in breeds.items()}
    if labels == "breed":
        classes = tuple(names.get(index, f"breed {index}") for index in range(1, max(names, default=0) + 1))
        return {f"{name}.jpg": breed - 1 for name, breed in entries.items()}, classes
    class_by_breed = imagenet_class_of("pets")
    classes_by_name = {name: class_by_breed.get(name.rsplit("_", 1)[0].lower()) for name in entries}
    labelled = {f"{name}.jpg": label for name, label in classes_by_name.items() if label is not None}
    return labelled, imagenet_classes(1000)


def read_breed_list(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise DataError(f"there is no list at '{path}'; expected {LAYOUT}")
    breed_by_name = {}
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = text.split()
        if not fields or text.startswith("#"):
            continue
        if len(fields) != 4:
            raise DataError(f"line {line} of '{path}' is {text!r}; expected a name and three numbers")
        breed_by_name[fields[0]] = int(parse_number(fields[1], f"line {line} of '{path}'", "whole"))
    return breed_by_name
