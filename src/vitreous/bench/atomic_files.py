"""Parquet files whose names contain the SHA-256 checksum of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import DataError
from vitreous.core.sealed_files import put_whole

if TYPE_CHECKING:
    import pyarrow as pa


def write_part(folder: Path, kind: str, table: pa.Table) -> tuple[str, int]:
    """Write a table as a Parquet file; return its name and its size in bytes."""
    data = encode_parquet(table)
    name = f"{kind}-{hashlib.sha256(data).hexdigest()}.parquet"
    put_whole(folder / name, data)
    return name, len(data)


def encode_parquet(table: pa.Table, **options: Any) -> bytes:
    """Content of a compressed Parquet file; `options` are those of `pyarrow.parquet.write_table`."""
    import pyarrow.parquet as pq

    stream = BytesIO()
    pq.write_table(table, stream, compression="zstd", **options)
    return stream.getvalue()


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read some columns (None for all) of a part; raise `DataError` if it is missing or its checksum differs."""
    import pyarrow.parquet as pq

    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if hashlib.sha256(data).hexdigest() != path.stem.split("-")[1]:
        raise DataError(f"'{path}' is damaged or gone; run the plan again, and what it held is computed again")
    with pq.ParquetFile(BytesIO(data)) as file:
        return file.read(None if columns is None else list(columns))


def is_whole(path: Path) -> bool:
    """Whether the checksum of the content is the one in the name."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.stem.split("-")[1]
    except (OSError, IndexError):
        return False
