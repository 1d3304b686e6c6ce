"""Open a dataset by name or path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vitreous.core.errors import Caveat, DataError, SpecError
from vitreous.data.imagenet import UnlabelledImagesError
from vitreous.data.reader import READERS, located, settled, split
from vitreous.data.sample import Dataset

ROOMS = (
    "cifar", "coco", "folder", "huggingface", "imagenet", "imagenet_s", "mura", "pets", "scenes", "segmentation", "shards",
)  # fmt: skip


def open_dataset(spec: str | Path, **options: Any) -> Dataset:
    """Open the dataset that a spec names.

    Parameters
    ----------
    spec
        `kind:where?option=value`, or a bare path whose kind is recognised from its content. A bare path to unlabelled
        images that are named like ImageNet's is read as a plain folder, with a `Caveat`; `imagenet-val:path` raises an
        error instead.
    **options
        Options of the reader; they take precedence over those in the spec.

    Raises
    ------
    SpecError
        If no dataset is named, or an option is unknown or of the wrong type.
    DataError
        If there is no dataset at the path, or it does not have the expected layout.
    """
    for room in ROOMS:
        import_module(f"vitreous.data.{room}")
    kind, place, given = split(str(spec))
    if not kind and not place:
        raise SpecError(f"no data set is named; give a path, or one of {kinds()} with where it lies")
    if kind == "assets":
        kind, place = "", str(located(f"assets:{place}"))
    name = kind or recognise(located(place))
    read = READERS[name]
    reader_options = settled(name, read, given, options)
    try:
        return read(place, **reader_options)
    except UnlabelledImagesError as problem:
        if kind or reader_options:
            raise
        warnings.warn(
            f"'{place}' has files named as ImageNet's and no label file, so it is read as a plain folder of images; "
            f"to read it as ImageNet's validation set, add a label file and write imagenet-val:{place} "
            f"(--data imagenet-val:{place} in `vitreous bench`)",
            Caveat,
            stacklevel=2,
        )
        return READERS["folder"](problem.folder)


def recognise(path: Path) -> str:
    """Kind of the dataset at a path, from its name and content; "folder" if no other kind fits."""
    if "{" in path.name or "*" in path.name or path.suffix == ".tar":
        return "wds"
    if path.suffix == ".mat":
        return "imagenet-seg"
    if not path.exists():
        raise DataError(f"there is no data set at '{path}'; give an existing path, or a kind before it: {kinds()}")
    if not path.is_dir():
        raise DataError(f"'{path}' is no data set that is known by its looks; say its kind before it: {kinds()}")
    for kind, looks in LOOKS.items():
        if looks(path):
            return kind
    return "folder"


def kinds() -> str:
    """Known kinds, for error messages."""
    return ", ".join(f"{kind}:" for kind in sorted(READERS))


def has(*names: str) -> Callable[[Path], bool]:
    """Return a test whether a folder contains one of these names or glob patterns."""
    return lambda path: any(next(path.glob(name), None) is not None for name in names)


# From the most specific to the least; the first match wins.
LOOKS: dict[str, Callable[[Path], bool]] = {
    "pets": lambda path: has("annotations/list.txt")(path) or (has("trimaps")(path) and has("labels.csv")(path)),
    "coco": has("annotations/instances_*.json"),
    "imagenet-s": has("validation-segmentation", "train-semi-segmentation"),
    "cifar10": has("cifar-10-batches-py", "test_batch", "data_batch_1"),
    "cifar100": lambda path: has("cifar-100-python")(path) or all((path / one).is_file() for one in ("test", "meta")),
    "mura": has("MURA-v1.1", "valid_image_paths.csv", "train_image_paths.csv", "valid/XR_*", "train/XR_*"),
    "hf": has("dataset_dict.json", "dataset_info.json"),
    "wds": has("*.tar"),
    "folder": has("labels.csv", "boxes.csv", "masks"),
    "imagenet-val": has(
        "val/n[0-9]*", "n[0-9]*", "ILSVRC2012_val_*", "val/ILSVRC2012_val_*", "images/ILSVRC2012_val_*"
    ),
}
