"""A sample (one image with its annotations), and datasets of samples, which are read on access."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float, Int8
from PIL import Image

from vitreous.core.errors import DataError

Mask: TypeAlias = Int8[np.ndarray, "H W"]  # 1 object, 0 not, -1 ignored
Boxes: TypeAlias = Float[np.ndarray, "_ 4"]  # x0 y0 x1 y1; right and lower edges are exclusive

E = TypeVar("E")  # what is known of a sample before it is read


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """An image with its class, masks and boxes. Masks and boxes are in pixels of this image.

    Parameters
    ----------
    key
        Unique in its dataset, and independent of the folder that the dataset is in.
    image
        The image, upright and in RGB.
    label
        Class index, or None if unknown.
    mask
        Where the object of the label is.
    boxes
        Boxes of the label's class only; None if there are no box annotations.
    rivals
        Masks of other classes in the same image, by class index.
    cover
        If set, the class to explain is the one that covers most of the model input, and the sample is skipped if it
        covers less than this share or there is no class in the model input.

    Raises
    ------
    DataError
        If a box has x0 > x1 or y0 > y1, or a mask and the image differ in size.

    Examples
    --------
    >>> from PIL import Image
    >>> from vitreous.data import Sample
    >>> Sample("cats/1.jpg", Image.new("RGB", (32, 32)), label=3).label
    3
    """

    key: str
    image: Image.Image
    label: int | None = None
    mask: Mask | None = None
    boxes: Boxes | None = None
    rivals: Mapping[int, Mask] = field(default_factory=dict)
    cover: float | None = None

    def __post_init__(self) -> None:
        if self.boxes is not None and not (self.boxes[:, :2] <= self.boxes[:, 2:]).all():
            raise DataError(f"a box of {self.key!r} ends before it begins; expected x0 ≤ x1 and y0 ≤ y1")
        masks = [*self.rivals.values(), *([] if self.mask is None else [self.mask])]
        for height, width in {mask.shape for mask in masks}:
            if (width, height) != self.image.size:
                raise DataError(
                    f"the mask of {self.key!r} has {width}×{height} pixels and its image "
                    f"{self.image.width}×{self.image.height}; they must be alike"
                )


def make_sample_of_largest(key: str, image: Image.Image, masks: Mapping[int, Mask], cover: float) -> Sample:
    """Sample of an image with masks by class: the class with the largest mask is the label, the others are rivals."""
    label = max(masks, key=lambda index: int((masks[index] == 1).sum()), default=None)
    if label is None:
        return Sample(key, image, cover=cover)
    rivals = {index: mask for index, mask in masks.items() if index != label}
    return Sample(key, image, label, masks[label], rivals=rivals, cover=cover)


@runtime_checkable
class Dataset(Protocol):
    """Interface of datasets: keys are known in advance, images are read one by one.

    Examples
    --------
    >>> from vitreous.data import Dataset, open_dataset
    >>> dataset = open_dataset("scenes:pair?count=2")
    >>> isinstance(dataset, Dataset), dataset.describe()["kind"]
    (True, 'pair')
    """

    @property
    def name(self) -> str:
        """Name of the dataset."""
        ...

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names, or None if they are not known."""
        ...

    @property
    def keys(self) -> Sequence[str]:
        """One key per image."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...

    def describe(self) -> dict[str, Any]:
        """Plain values that identify the dataset; they do not depend on the folder it is in.

        Returns
        -------
        dict
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Album:
    """Dataset made of keys and a function that reads the sample at an index; all readers of this package return it.

    Parameters
    ----------
    name
        Name of the dataset.
    keys
        One key per sample.
    read
        Returns the sample at an index from 0 on.
    classes
        Class names, or None if they are not known.
    facts
        Plain values that identify the dataset in `describe`: options of the reader and digests of its annotations.

    Examples
    --------
    >>> from PIL import Image
    >>> from vitreous.data import Album, Sample
    >>> def read(index):
    ...     return Sample(str(index), Image.new("RGB", (32, 32)), label=index % 2)
    >>> album = Album("squares", ["0", "1", "2"], read, classes=("even", "odd"))
    >>> len(album), album[1].label, album.describe()
    (3, 1, {...})
    """

    name: str
    keys: Sequence[str]
    read: Callable[[int], Sample]
    classes: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Sample:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"{self.name} has {len(self)} images, none at {index}")
        return self.read(place % len(self))

    def describe(self) -> dict[str, Any]:
        """Plain values that identify the dataset; they do not depend on the folder it is in.

        Returns
        -------
        dict
            Name, number of images, a digest of the keys, and `facts`.
        """
        return {"dataset": self.name, "images": len(self), "keys": digest(self.keys), **self.facts}


def make_album(
    name: str,
    entries: Sequence[tuple[str, E]],
    read: Callable[[str, E], Sample],
    classes: tuple[str, ...] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Album:
    """Album whose samples are read by `read(key, entry)`.

    Parameters
    ----------
    name, classes, facts
        As for `Album`.
    entries
        Key of every sample, and what is known of it before it is read, such as its file and its class.
    read
        Reads a sample; to be pickled with the dataset, it is a function of a module or a `partial` of one.
    """
    return Album(name, [key for key, _ in entries], partial(read_entry, entries, read), classes, facts or {})


def read_entry(entries: Sequence[tuple[str, E]], read: Callable[[str, E], Sample], index: int) -> Sample:
    return read(*entries[index])


class NumberedKeys(Sequence[str]):
    """Keys `name/00000000`, `name/00000001`, … of one part after the other, made when they are asked for.

    Parameters
    ----------
    parts
        Name and number of keys of every part.

    Examples
    --------
    >>> keys = NumberedKeys([("train", 1_000_000_000)])
    >>> keys[-1]
    'train/999999999'
    """

    def __init__(self, parts: Sequence[tuple[str, int]]) -> None:
        self.names = [name for name, _ in parts]
        self.starts = [0, *accumulate(count for _, count in parts)]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        part, number = self.find(range(len(self))[index])
        return f"{self.names[part]}/{number:08d}"

    def find(self, index: int) -> tuple[int, int]:
        """Index of the part that holds an index, and the number of the key in it."""
        part = bisect_right(self.starts, index) - 1
        return part, index - self.starts[part]


def digest(lines: Iterable[str]) -> str:
    """First 16 hex digits of the SHA-256 of the lines."""
    return sha256("\n".join(lines).encode()).hexdigest()[:16]
