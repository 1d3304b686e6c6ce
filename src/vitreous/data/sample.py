"""One picture and what is known of it, and a data set: many of them, each read when it is asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int8
from PIL import Image

from vitreous.core.errors import DataError

Mask: TypeAlias = Int8[np.ndarray, "H W"]  # 1 object, 0 not, -1 does not count
Boxes: TypeAlias = Float[np.ndarray, "_ 4"]  # x0 y0 x1 y1; the right and lower edge are not part of the box


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A picture with its class, and where that class is: masks and boxes are in the picture's own pixels."""

    key: str  # unique in its data set, the same wherever the data lies
    picture: Image.Image  # upright, RGB
    label: int | None = None
    mask: Mask | None = None
    boxes: Boxes | None = None  # of the label's class only; None where nobody drew any
    rivals: Mapping[int, Mask] = field(default_factory=dict)  # other classes in the same frame
    # where set, the class to explain is the largest that the model sees, if it covers at least this share of the frame
    cover: float | None = None

    def __post_init__(self) -> None:
        if self.boxes is not None and not (self.boxes[:, :2] <= self.boxes[:, 2:]).all():
            raise DataError(f"a box of {self.key!r} ends before it begins; expected x0 ≤ x1 and y0 ≤ y1")
        masks = [*self.rivals.values(), *([] if self.mask is None else [self.mask])]
        for height, width in {mask.shape for mask in masks}:
            if (width, height) != self.picture.size:
                raise DataError(
                    f"the mask of {self.key!r} has {width}×{height} pixels and its picture "
                    f"{self.picture.width}×{self.picture.height}; they must be alike"
                )


@runtime_checkable
class Dataset(Protocol):
    """What can be measured on: keys are known at once, pictures are opened one by one."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    @property
    def keys(self) -> Sequence[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...
    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Album:
    """A data set as every reader here gives it: keys, and a function that reads the picture of a place."""

    name: str
    keys: Sequence[str]
    read: Callable[[int], Sample]
    classes: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values: options, and what else sets it apart

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Sample:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"{self.name} has {len(self)} pictures, none at {index}")
        return self.read(place % len(self))

    def describe(self) -> dict[str, Any]:
        """What tells this data set from others, whatever folder it lies in."""
        return {"dataset": self.name, "pictures": len(self), "keys": digest(self.keys), **self.facts}


def digest(lines: Iterable[str]) -> str:
    """A short name for many lines, which changes when one of them does."""
    return sha256("\n".join(lines).encode()).hexdigest()[:16]
