"""CIFAR-10 and CIFAR-100 in the published Python format; the pickles are read without executing code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from vitreous.core.errors import DataError
from vitreous.data.reader import contains, reader, require_folder
from vitreous.data.sample import Album, Sample, digest, make_album

LAYOUT10 = "cifar-10-batches-py/ with data_batch_1 to 5, test_batch and batches.meta"
LAYOUT100 = "cifar-100-python/ with train, test and meta"


def encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    """Replacement for `_codecs.encode`, by which old pickle protocols store bytes; other encodings are not allowed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


def list_array_parts() -> dict[tuple[str, str], Any]:
    """Allowed names in the pickle of an array, under the module names of old and new numpy."""
    reconstruct = np.empty(0).__reduce__()[0]
    frombuffer = np.empty(1).__reduce_ex__(5)[0]
    parts: dict[tuple[str, str], Any] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
    for core in ("numpy.core", "numpy._core"):
        parts[f"{core}.multiarray", "_reconstruct"] = reconstruct
        parts[f"{core}.numeric", "_frombuffer"] = frombuffer
    return parts | {("_codecs", "encode"): encode_latin1}


class ArraysOnly(pickle.Unpickler):
    """Unpickler for numbers, strings, lists, dictionaries and numpy arrays; any other class raises an error."""

    def find_class(self, module: str, name: str) -> Any:
        parts = list_array_parts()
        if (module, name) not in parts:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return parts[module, name]


def unpickle(path: Path, layout: str) -> dict[str, Any]:
    """Dictionary stored in a file, with its keys as str."""
    try:
        content = ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"there is no file at '{path}'; expected {layout}") from None
    except pickle.UnpicklingError as problem:
        raise DataError(
            f"'{path}' is not read: {problem}, and only arrays, numbers and texts are; expected {layout}"
        ) from None
    except Exception:  # noqa: BLE001 - a damaged pickle can raise many exceptions
        raise DataError(f"'{path}' is damaged or no pickle; expected {layout}") from None
    if not isinstance(content, dict):
        raise DataError(f"'{path}' holds a {type(content).__name__}, not a dictionary; expected {layout}")
    return {text(key): value for key, value in content.items()}


def text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@reader("cifar10", recognises=contains("cifar-10-batches-py", "test_batch", "data_batch_1"))
def cifar10(place: str | Path, split: Literal["test", "train"] = "test") -> Album:
    """CIFAR-10, the Python version; its pickles are read without executing code.

    ```text
    cifar10:/data/cifar10
    cifar10:/data/cifar10?split=test
    ```

    ```text
    /data/cifar10/cifar-10-batches-py/test_batch
    /data/cifar10/cifar-10-batches-py/batches.meta
    ```

    Parameters
    ----------
    place
        Folder that contains cifar-10-batches-py/, or that folder itself.
    split
        "test" or "train".
    """
    root = require_folder(place, LAYOUT10, inside="cifar-10-batches-py")
    parts = {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))}
    return open_parts("cifar10", root, parts[split], split, "labels", ("batches.meta", "label_names"), LAYOUT10)


@reader(
    "cifar100",
    recognises=lambda path: (
        (path / "cifar-100-python").exists() or all((path / name).is_file() for name in ("test", "meta"))
    ),
)
def cifar100(place: str | Path, split: Literal["test", "train"] = "test", coarse: bool = False) -> Album:
    """CIFAR-100, the Python version; its pickles are read without executing code.

    ```text
    cifar100:/data/cifar100?split=test
    ```

    ```text
    /data/cifar100/cifar-100-python/test
    /data/cifar100/cifar-100-python/meta
    ```

    Parameters
    ----------
    place
        Folder that contains cifar-100-python/, or that folder itself.
    split
        "test" or "train".
    coarse
        Use the 20 superclasses as labels instead of the 100 classes.
    """
    root = require_folder(place, LAYOUT100, inside="cifar-100-python")
    grain = "coarse" if coarse else "fine"
    return open_parts("cifar100", root, (split,), split, f"{grain}_labels", ("meta", f"{grain}_label_names"), LAYOUT100)


def open_parts(
    name: str, root: Path, parts: Sequence[str], split: str, column: str, meta: tuple[str, str], layout: str
) -> Album:
    pixels, labels = zip(*(read_batch_file(root / part, column, layout) for part in parts), strict=True)
    together, classes = np.concatenate(pixels), np.concatenate(labels)
    names = unpickle(root / meta[0], layout).get(meta[1])
    if not isinstance(names, list):
        raise DataError(f"'{root / meta[0]}' has no {meta[1]}; expected {layout}")
    if classes.min() < 0 or classes.max() >= len(names):
        raise DataError(f"'{root}' has classes from {classes.min()} to {classes.max()}, and names for {len(names)}")
    entries = [(f"{split}/{index:05d}", index) for index in range(len(together))]
    facts = {
        "split": split,
        "labels": digest(map(str, classes.tolist())),
        "pixels": sha256(together.tobytes()).hexdigest()[:16],
    }
    return make_album(name, entries, partial(read_sample, together, classes), tuple(map(text, names)), facts)


def read_batch_file(path: Path, column: str, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [images 3072] and classes of one file."""
    content = unpickle(path, layout)
    pixels, labels = content.get("data"), content.get(column, ())
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"'{path}' has no data of 3072 bytes per image; expected {layout}")
    whole = isinstance(labels, list) and all(isinstance(label, int) for label in labels)
    if not whole or len(labels) != len(pixels):
        raise DataError(f"'{path}' has no {column}, one for each of its {len(pixels)} images; expected {layout}")
    return pixels, np.asarray(labels, dtype=np.int64)


def read_sample(pixels: np.ndarray, labels: np.ndarray, key: str, index: int) -> Sample:
    """Sample at an index; a row of `pixels` is 1024 red, 1024 green and 1024 blue values, each in row-major order."""
    colours = pixels[index].reshape(3, 32, 32).transpose(1, 2, 0)
    return Sample(key, Image.fromarray(np.ascontiguousarray(colours)), int(labels[index]))
