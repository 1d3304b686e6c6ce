"""Rows of maps: one per image, target and method, as Arrow tables.

key          key of the image in its dataset; index: its index in its part of the source
target       explained class; target_name: its name; role: "predicted", "label", "rival", "class" or "top 1", …
label        true class, −1 if unknown; predicted: predicted class
probability  softmax probability of the target (NaN if the model has a single output)
method       canonical spec; question: name of the score function
grid         the map in float16, row by row; the map is grid · scale
scale, rows, columns
             scale and shape of the grid
native       "patch" or "pixel"; for "pixel" the grid holds sums over patches, or pixels if a black box has no patches
signed       whether the scores have a sign; score: the number that is explained
error        null, or one sentence why there is no map; grid is null then
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.bench.rows import COLUMNS, make_arrow_schema, to_half_precision

if TYPE_CHECKING:
    import pyarrow as pa

STORED = (
    "key", "index", "target", "target_name", "role", "label", "predicted", "probability", "method", "question",
    "grid", "scale", "rows", "columns", "native", "signed", "score", "error",
)  # fmt: skip


def map_schema() -> pa.Schema:
    """Arrow schema of the rows."""
    return make_arrow_schema({name: COLUMNS["maps"][name] for name in STORED})


@dataclass(frozen=True, slots=True, eq=False)
class MapRows:
    """Maps of one method for n images with k targets each, on the CPU."""

    method: str
    question: str
    roles: tuple[str, ...]
    keys: Sequence[str]
    places: Sequence[int]
    labels: Sequence[int]
    maps: Float[Tensor, "r h w"]
    score: Float[Tensor, " r"] | None
    targets: Int[Tensor, "n k"]
    predicted: Int[Tensor, " n"]
    probability: Float[Tensor, "n k"]
    native: str
    signed: bool

    def table(self, names: Sequence[str]) -> pa.Table:
        """The rows as a table; `names` are the class names."""
        import pyarrow as pa

        share, count = len(self.roles), len(self.maps)
        grids, scales = to_half_precision(self.maps.numpy())
        targets = self.targets.numpy().ravel()
        offsets = np.arange(count + 1, dtype=np.int32) * grids.shape[1]
        columns: dict[str, Any] = {
            "key": [key for key in self.keys for _ in range(share)],
            "index": np.repeat(np.asarray(self.places), share),
            "target": targets,
            "target_name": [names[target] for target in targets],
            "role": list(self.roles) * len(self.keys),
            "label": np.repeat(np.asarray(self.labels), share),
            "predicted": np.repeat(self.predicted.numpy(), share),
            "probability": self.probability.numpy().ravel(),
            "method": [self.method] * count,
            "question": [self.question] * count,
            "grid": pa.ListArray.from_arrays(offsets, pa.array(grids.ravel())),
            "scale": scales,
            "rows": np.full(count, self.maps.shape[1], np.int32),
            "columns": np.full(count, self.maps.shape[2], np.int32),
            "native": [self.native] * count,
            "signed": [self.signed] * count,
            "score": np.full(count, np.nan) if self.score is None else self.score.numpy(),
            "error": pa.nulls(count, pa.string()),
        }
        return pa.table(columns, schema=map_schema())


def make_failed_rows(failures: Sequence[tuple[int, str, str]], methods: Sequence[str]) -> pa.Table:
    """Rows of images without a map: one per method, with the error message."""
    import pyarrow as pa

    rows = [
        {"index": index, "key": key, "error": error, "method": method, "target": -1, "label": -1, "predicted": -1}
        for index, key, error in failures
        for method in methods
    ]
    return pa.Table.from_pylist(rows, schema=map_schema())


def join_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in the order of the images; rows of one image are ordered by target, then by method."""
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0]
    joined = pa.concat_tables([map_schema().empty_table(), *tables]).combine_chunks()
    # Tables of several methods have the same rows: number the rows of an image within each table.
    within = np.concatenate([rank_in_image(table["index"].to_numpy()) for table in tables]) if tables else np.empty(0)
    return joined.take(np.lexsort((within, joined["index"].to_numpy())))


def rank_in_image(index: np.ndarray) -> np.ndarray:
    """Number of each row among the rows of its image, which lie side by side."""
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    return np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
