"""Rows of stored maps: their columns, and the `Attribution` of rows of one method and grid size."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vitreous.methods.attribution import Attribution
from vitreous.methods.attribution_files import read_preprocess
from vitreous.models.vit import Layout

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class StoredMap:
    """One row: an image, target and method, and the map as an `Attribution` of one row.

    Parameters
    ----------
    key
        Key of the image in its dataset.
    index
        Its index there.
    target, target_name, role
        The explained class, its name, and why it was explained: "predicted", "label", "rival", "class", "top 1", ….
    label, predicted
        True class (−1 if unknown) and predicted class.
    probability
        Probability of the target.
    attribution
        The map.

    Examples
    --------
    >>> import torch
    >>> from vitreous import Attribution
    >>> from vitreous.maps import StoredMap
    >>> from vitreous.models.vit import Layout
    >>> attribution = Attribution(torch.rand(1, 4), Layout((2, 2), (16, 16), 0), torch.tensor([3]), "ixg")
    >>> StoredMap("cats/1.jpg", 0, 3, "cat", "predicted", -1, 3, 0.9, attribution).target_name
    'cat'
    """

    key: str
    index: int
    target: int
    target_name: str
    role: str
    label: int
    predicted: int
    probability: float
    attribution: Attribution


def group_places(values: Sequence[Hashable]) -> list[list[int]]:
    """Places of equal values, in the order of their first one."""
    places: dict[Hashable, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    return list(places.values())


def runs_of_equal(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start and stop of consecutive rows that are equal in some columns."""
    rows = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[start]:
            yield start, place
            start = place


def as_attribution(table: pa.Table, metadata: Mapping[str, Any]) -> Attribution:
    """Rows of one method and grid size as one `Attribution`; `metadata` is that of the file."""
    first = table.slice(0, 1).to_pylist()[0]
    shape = (first["rows"], first["columns"])
    grids = table["grid"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    scores = grids.astype(np.float32).reshape(len(table), -1) * table["scale"].to_numpy()[:, None]
    maps = torch.from_numpy(scores)
    about = metadata.get("layout") or {"grid": (), "patch": (), "prefix": 0}
    is_patch_grid = tuple(about["grid"]) == shape
    has_patches = first["native"] != "pixel" or is_patch_grid
    layout = (
        Layout(tuple(about["grid"]), tuple(about["patch"]), about["prefix"])
        if is_patch_grid
        else Layout(shape, (1, 1), 0)
    )
    preprocess = metadata.get("preprocess")
    provenance = metadata.get("provenance", {}).get(first["method"])
    score = table["score"].to_numpy()
    return Attribution(
        patches=maps if has_patches else None,
        native_pixels=None if has_patches else maps.view(len(table), *shape),
        native="patch" if has_patches else "pixel",
        layout=layout,
        targets=torch.from_numpy(table["target"].to_numpy().copy()),
        method=first["method"],
        signed=bool(first["signed"]),
        score=None if np.isnan(score).all() else torch.from_numpy(score.copy()),
        names=tuple(table["target_name"].to_pylist()),
        provenance=provenance or {"question": first["question"], "model": first.get("model")},
        preprocess=None if preprocess is None else read_preprocess(preprocess),
    )
