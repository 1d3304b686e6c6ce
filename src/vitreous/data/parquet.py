"""Parquet files with encoded images: a column of bytes, or of {bytes, path} as Hugging Face writes it, and labels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from vitreous.core.errors import DataError, SpecError
from vitreous.data.files import decode_image, match_files, other_errors_as
from vitreous.data.reader import contains, expand_path, import_package, reader
from vitreous.data.remote import is_uri, list_remote_files, open_filesystem
from vitreous.data.sample import Album, NumberedKeys, Sample, digest

LAYOUT = (
    "Parquet files with a column of encoded images (bytes, or {bytes, path}), and a column label if there are labels"
)
READ_ROWS = 64  # rows in memory while a file is read in order


@dataclass(frozen=True, slots=True)
class ParquetImages:
    """One Parquet file of images.

    Parameters
    ----------
    path
        Path in its file system.
    uri
        The URI that names the file system; empty for local files.
    image, label, key
        Columns; label and key may be empty. Without a key column, keys are the name of the file and the row.
    groups
        Number of rows of every row group.
    size
        Size in bytes.
    """

    path: str
    uri: str
    image: str
    label: str
    key: str
    groups: tuple[int, ...]
    size: int

    @property
    def stem(self) -> str:
        return self.path.rsplit("/", 1)[-1].removesuffix(".parquet")

    @property
    def rows(self) -> int:
        return sum(self.groups)

    def find_group(self, row: int) -> tuple[int, int]:
        """Row group that a row is in, and the first row of that group."""
        starts = [0, *accumulate(self.groups)]
        group = bisect_right(starts, row) - 1
        return group, starts[group]

    def open(self) -> Any:
        """The file as a `pyarrow.parquet.ParquetFile`."""
        return open_parquet(self.path, self.uri)

    def records(self, start: int = 0) -> Iterator[tuple[str, tuple[bytes, int]]]:
        """Key, and encoded image and label (−1 if unknown), of every row from `start` on; few rows are in memory."""
        group, first = self.find_group(start)
        groups = list(range(group, len(self.groups)))
        with self.open() as file:
            for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=self.columns):
                rows = batch.to_pylist()
                for place, row in enumerate(rows, first):
                    if place >= start:
                        yield self.record(place, row)
                first += len(rows)

    @property
    def columns(self) -> list[str]:
        return [name for name in (self.image, self.label, self.key) if name]

    def record(self, place: int, row: dict[str, Any]) -> tuple[str, tuple[bytes, int]]:
        name = str(row[self.key]) if self.key else f"{self.stem}/{place:08d}"
        cell = row[self.image]
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        label = row[self.label] if self.label else None
        return name, (data or b"", -1 if label is None else int(label))


def open_parquet(path: str, uri: str) -> Any:
    """Open a Parquet file; raises `DataError` if that is not possible."""
    parquet = import_package("pyarrow.parquet", f"the Parquet file '{path}'")
    with other_errors_as(f"'{path}' cannot be read as Parquet ({{reason}}); expected {LAYOUT}"):
        return parquet.ParquetFile(open_filesystem(uri).open(path, "rb") if uri else path)


def list_parquet_files(
    place: str, image: str | None = None, label: str | None = None, key: str | None = None
) -> list[ParquetImages]:
    """The Parquet files at a path, folder, pattern or URI, with their columns found.

    Raises
    ------
    DataError
        If there is no file, or a file is damaged.
    SpecError
        If a column does not exist or cannot be determined.
    """
    if is_uri(place):
        filesystem, paths = list_remote_files(place, (".parquet",))
        sizes, uri = [int(filesystem.size(path) or 0) for path in paths], place
    else:
        paths = [str(path) for path in list_local_files(expand_path(place))]
        sizes, uri = [Path(path).stat().st_size for path in paths], ""
    files: list[ParquetImages] = []
    for path, size in zip(paths, sizes, strict=True):
        with open_parquet(path, uri) as file:
            columns = find_columns(file.schema_arrow, path, image, label, key)
            groups = tuple(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups))
            files.append(ParquetImages(path, uri, *columns, groups, size))
    if len({file.stem for file in files}) < len(files) and not files[0].key:
        raise DataError(
            f"'{place}' names Parquet files of the same name, so keys would not be unique; choose key=COLUMN"
        )
    return files


def list_local_files(path: Path) -> list[Path]:
    """Local Parquet files of a path, a folder (with its subfolders) or a pattern."""
    files = [file for matches in match_files(path, "**/*.parquet").values() for file in matches]
    if not files or not all(file.is_file() for file in files):
        raise DataError(f"there is no Parquet file at '{path}'; expected {LAYOUT}")
    return files


def find_columns(schema: Any, path: str, image: str | None, label: str | None, key: str | None) -> tuple[str, str, str]:
    """Names of the columns of images, labels and keys; label and key are empty if there is none."""
    import pyarrow as pa

    for name in (image, label, key):
        if name is not None and name not in schema.names:
            raise SpecError(f"'{path}' has no column {name!r}; it has {', '.join(schema.names)}")
    if image is None:
        images = [
            column.name
            for column in schema
            if pa.types.is_binary(column.type)
            or pa.types.is_large_binary(column.type)
            or (pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0)
        ]
        if len(images) != 1 and "image" not in images:
            raise SpecError(
                f"'{path}' has {len(images)} columns of bytes among {', '.join(schema.names)}; choose image=COLUMN"
            )
        image = "image" if "image" in images else str(images[0])
    if label is None and "label" in schema.names and pa.types.is_integer(schema.field("label").type):
        label = "label"
    return str(image), label or "", key or ""


def decode_record(key: str, data: bytes, label: int) -> Sample:
    """Sample of an encoded image; raises `DataError` if it cannot be decoded."""
    if not data:
        raise DataError(f"{key} has no image")
    return Sample(key, decode_image(data, key), None if label < 0 else label)


@reader("parquet", recognises=lambda path: path.suffix == ".parquet" or contains("*.parquet")(path))
def parquet(place: str | Path, image: str | None = None, label: str | None = None, key: str | None = None) -> Album:
    """Images of Parquet files, in a column of encoded images.

    Images are bytes, or `{bytes, path}` as Hugging Face writes them.

    ```text
    parquet:/data/parquet
    parquet:/data/parquet/part-0.parquet?label=label
    ```

    ```text
    /data/parquet/part-0.parquet
    /data/parquet/part-1.parquet
    ```

    Parameters
    ----------
    place
        Path of a file or of a folder, a pattern (`*`, `{000..003}`), or a URI.
    image
        Column of encoded images. None: "image", or the only column of bytes.
    label
        Column of classes. None: "label" if it exists.
    key
        Column of unique keys. None: keys are made of the file's name and the row.

    Raises
    ------
    DataError
        If there is no file, or a file is damaged.
    SpecError
        If a column does not exist or cannot be determined.
    """
    files = list_parquet_files(str(place), image, label, key)
    places = NumberedKeys([(file.stem, file.rows) for file in files])
    keys: Sequence[str] = places
    if key is not None:
        keys = [str(cell) for file in files for cell in file.open().read(columns=[key])[key].to_pylist()]
        if len(set(keys)) < len(keys):
            raise DataError(f"the column {key!r} of '{place}' has the same key more than once")
    facts = {
        "columns": list(files[0].columns),
        "files": digest(f"{file.stem} {file.size} {file.rows}" for file in files),
    }
    return Album("parquet", keys, partial(read, files, places), None, facts)


def read(files: Sequence[ParquetImages], places: NumberedKeys, index: int) -> Sample:
    number, row = places.find(index)
    group, first = files[number].find_group(row)
    key, (data, label) = read_group(files[number], group, first)[row - first]
    return decode_record(key, data, label)


@lru_cache(maxsize=2)
def read_group(file: ParquetImages, group: int, first: int) -> list[tuple[str, tuple[bytes, int]]]:
    """Records of a row group; the last two groups are cached, since images are mostly read in order."""
    with file.open() as opened:
        rows = opened.read_row_group(group, columns=file.columns).to_pylist()
    return [file.record(first + place, row) for place, row in enumerate(rows)]
