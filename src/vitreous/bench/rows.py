"""The columns of the store; what they mean is written in `vitreous.bench.store`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import DataError

if TYPE_CHECKING:
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
