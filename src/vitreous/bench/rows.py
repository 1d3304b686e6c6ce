"""The row model: one row per image, target class, method and metric, stored as Parquet and read as a pandas frame.

`COLUMNS` names the columns with their pyarrow types; the documentation of `vitreous.bench.store` says what each one means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

WHERE = {
    "key": "string",
    "model": "string",
    "dataset": "string",
    "picture": "string",
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
COSTS = ("seconds", "map_seconds", "peak_mib", "device")  # what may differ between two runs of one plan


def need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            "results are kept in Parquet files, which need pyarrow: pip install 'vitreous[bench]'"
        ) from None


def schema(kind: str) -> pa.Schema:
    import pyarrow as pa

    special = {
        "parts": pa.map_(pa.string(), pa.float64()),
        "numbers": pa.list_(pa.float64()),
        "halves": pa.list_(pa.float16()),
    }
    return pa.schema([(name, special.get(of) or getattr(pa, of)()) for name, of in COLUMNS[kind].items()])


def as_table(kind: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows as columns; a name that is no column is refused, one that is missing is null."""
    import pyarrow as pa

    known = COLUMNS[kind]
    for row in rows:
        if odd := row.keys() - known.keys():
            raise KeyError(f"{sorted(odd)} are no columns of {kind}")
    return pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in known}, schema=schema(kind))


def as_frame(rows: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """Rows of a store as a pandas frame.

    Parameters
    ----------
    rows
        What `Store.table()` returns, or a frame that this function made.

    Returns
    -------
    DataFrame
        The columns of `COLUMNS["scores"]` or `COLUMNS["maps"]`, in the order of the plan. `parts` holds a dictionary, `curve`,
        `levels` and `grid` hold arrays; text that is missing is NA.

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
