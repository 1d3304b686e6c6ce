"""Columns of the rows: one row per image, target class, method and metric.

Rows are stored as Parquet and read as a pandas frame. `COLUMNS` maps column names to pyarrow types; the docstring of
`vitreous.bench.store` explains each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WHERE = {
    "key": "string",
    "model": "string",
    "dataset": "string",
    "image": "string",
    "index": "int64",
    "target": "int64",
    "target_name": "string",
    "role": "string",
    "label": "int64",
    "predicted": "int64",
    "probability": "float64",
    "method": "string",
    "question": "string",
}
COST = {"map_seconds": "float64", "peak_mib": "float64", "error": "string"}
ORIGIN = {
    "weights": "string",
    "code": "string",
    "pixels": "string",
    "evidence": "string",
    "precision": "string",
    "device": "string",
    "vitreous": "string",
    "torch": "string",
    "protocol": "string",
    "about": "string",
}
COLUMNS = {
    "scores": {
        **WHERE,
        "metric": "string",
        "value": "float64",
        "higher_is_better": "bool_",
        "parts": "parts",
        "curve": "numbers",
        "levels": "numbers",
        "seconds": "float64",
        **COST,
        **ORIGIN,
    },
    "maps": {
        **WHERE,
        "grid": "halves",
        "scale": "float32",
        "rows": "int32",
        "columns": "int32",
        "native": "string",
        "signed": "bool_",
        "score": "float64",
        **COST,
        **ORIGIN,
    },
}
COSTS = ("seconds", "map_seconds", "peak_mib", "device")  # columns that may differ between two runs of one plan


def need_pyarrow() -> None:
    """Raise `DataError` with the command that installs pyarrow if it is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            "results are kept in Parquet files, which need pyarrow: pip install 'vitreous[bench]'"
        ) from None


def make_schema(kind: str) -> pa.Schema:
    """Arrow schema of `kind`, "scores" or "maps"."""
    return make_arrow_schema(COLUMNS[kind])


def make_arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Arrow schema of columns, whose types are as in `COLUMNS`."""
    import pyarrow as pa

    special = {
        "parts": pa.map_(pa.string(), pa.float64()),
        "numbers": pa.list_(pa.float64()),
        "halves": pa.list_(pa.float16()),
    }
    return pa.schema([(name, special.get(of) or getattr(pa, of)()) for name, of in columns.items()])


def to_table(kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert rows to an Arrow table; missing columns are null.

    Raises
    ------
    KeyError
        If a row has a name that is not a column.
    """
    import pyarrow as pa

    columns_of_kind = COLUMNS[kind]
    for row in rows:
        if odd := row.keys() - columns_of_kind.keys():
            raise KeyError(f"{sorted(odd)} are no columns of {kind}")
    return pa.Table.from_pylist(list(rows), make_schema(kind))


def to_half_precision(maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maps [r h w] as float16 grids [r h·w] and the factors [r] that they are multiplied by.

    The largest finite value of a grid is ±1, which avoids overflow and underflow; a map of zeros has the factor 1.

    Examples
    --------
    >>> grids, scales = to_half_precision(np.array([[[1e6, -2e6]], [[0.0, 0.0]]], np.float32))
    >>> grids.tolist(), scales.tolist()
    ([[0.5, -1.0], [0.0, 0.0]], [2000000.0, 1.0])
    """
    flat = maps.reshape(len(maps), -1).astype(np.float32)
    largest = np.abs(np.where(np.isfinite(flat), flat, 0)).max(1, initial=0)
    scales = np.where(largest > 0, largest, 1).astype(np.float32)
    return (flat / scales[:, None]).astype(np.float16), scales


def to_frame(rows: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """Convert rows of a store to a pandas frame.

    Parameters
    ----------
    rows
        Result of `Store.table()`, or a frame that this function returned.

    Returns
    -------
    DataFrame
        The columns of `COLUMNS["scores"]` or `COLUMNS["maps"]`, in the order of the plan. `parts` holds a dictionary,
        `curve`, `levels` and `grid` hold arrays; missing text is NA.

    Raises
    ------
    DataError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise DataError("results are summarised with pandas: pip install 'vitreous[bench]'") from None
    return rows if isinstance(rows, pd.DataFrame) else rows.to_pandas(maps_as_pydicts="lossy")
