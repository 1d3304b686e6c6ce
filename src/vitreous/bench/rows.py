"""Columns of the rows: one row per image, target class, method and metric.

Rows are stored as Parquet and read as a pandas frame. `COLUMNS` maps column names to pyarrow types; the docstring of
`vitreous.bench.store` explains each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitreous.core.deprecation import rename_warnings
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
OLD_COLUMNS = {"picture": "image"}  # of stores that versions before 0.2 wrote
COSTS = ("seconds", "map_seconds", "peak_mib", "device")  # columns that may differ between two runs of one plan


def need_pyarrow() -> None:
    """Raise `DataError` with the command that installs pyarrow if it is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            "results are kept in Parquet files, which need pyarrow: pip install 'vitreous[bench]'"
        ) from None


def schema(kind: str) -> pa.Schema:
    """Arrow schema of `kind`, "scores" or "maps"."""
    return arrow_schema(COLUMNS[kind])


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
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
    return pa.Table.from_pydict(
        {name: [row.get(name) for row in rows] for name in columns_of_kind}, schema=schema(kind)
    )


def rename_columns(table: pa.Table) -> pa.Table:
    """The table with old names of columns replaced."""
    return table.rename_columns([OLD_COLUMNS.get(name, name) for name in table.column_names])


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


__getattr__ = rename_warnings(__name__, {"as_frame": "to_frame"})
