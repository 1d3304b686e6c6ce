"""From a name or a path to a data set."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError, SpecError
from vitreous.data.reader import READERS, located, settled, split
from vitreous.data.sample import Dataset

ROOMS = ("cifar", "folder", "huggingface", "imagenet", "imagenet_s", "mura", "pets", "scenes", "segmentation", "shards")


def open_dataset(spec: str | Path, **options: Any) -> Dataset:
    """The data set that a spec names: `kind:where?option=value`, or a bare path, known by what lies there."""
    for room in ROOMS:
        import_module(f"vitreous.data.{room}")
    kind, place, given = split(str(spec))
    if not kind and not place:
        raise SpecError(f"no data set is named; give a path, or one of {kinds()} with where it lies")
    if kind == "assets":
        kind, place = "", str(located(f"assets:{place}"))
    name = kind or recognise(located(place))
    read = READERS[name]
    return read(place, **settled(name, read, given, options))


def recognise(path: Path) -> str:
    """The kind of data set that lies at a path."""
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
    return ", ".join(f"{kind}:" for kind in sorted(READERS))


def has(*names: str) -> Callable[[Path], bool]:
    """A folder that holds one of these files or folders, or a file of such a pattern."""
    return lambda path: any(next(path.glob(name), None) is not None for name in names)


# from the most telling to the least
LOOKS: dict[str, Callable[[Path], bool]] = {
    "pets": lambda path: has("annotations/list.txt")(path) or (has("trimaps")(path) and has("labels.csv")(path)),
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
