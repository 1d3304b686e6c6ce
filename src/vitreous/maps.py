"""Read the maps that `vitreous map` wrote, without holding them all in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vitreous.bench.rows import need_pyarrow
from vitreous.core.errors import DataError, ModelError, unexpected_errors_as
from vitreous.data import Sample
from vitreous.data.batch import collate, preprocess_sample
from vitreous.front import load
from vitreous.map_findings import UNDEFINED, with_cautions
from vitreous.mapping.manifest import MANIFEST, check_files
from vitreous.mapping.shard_files import AGAIN, check_file, list_complete_files, read_about
from vitreous.mapping.source import open_source
from vitreous.measure import evaluate
from vitreous.methods.attribution import Attribution, join_attributions
from vitreous.methods.attribution_files import read_preprocess
from vitreous.metrics.metric import Metric
from vitreous.models.model import BlackBox
from vitreous.models.vit import Layout

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset

DESCRIBED = ("index", "target", "target_name", "role", "label", "predicted", "probability")

__all__ = ["MapFolder", "StoredMap", "read"]


def __dir__() -> list[str]:
    return sorted(__all__)


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


@dataclass(frozen=True, eq=False)
class MapFolder:
    """Maps in a folder. Only the rows that are requested are read.

    `len` is the number of rows, failed ones included. Iterating gives an `Attribution` of one row for every map, in the
    order of the files; `folder[key]` gives the maps of one image.

    Parameters
    ----------
    files
        The Parquet files, in order.
    seals
        Hash of every file by its name, as the manifest of a finished run lists them; empty if there is none.

    Raises
    ------
    DataError
        When a file is read that is damaged or is not the one that the manifest lists. Every file is checked once.

    Examples
    --------
    >>> from pathlib import Path
    >>> from vitreous import maps
    >>> from vitreous.bench.plan import ModelSpec
    >>> from vitreous.mapping.job import MapJob
    >>> from vitreous.mapping.run import run_map
    >>> job = MapJob(ModelSpec("scenes", "scenes"), "scenes:single?count=3", ("gradcam",))
    >>> progress = run_map(job, Path("maps"), device="cpu")
    >>> stored = maps.read("maps")
    >>> [batch.patches.shape for batch in stored.batches()]
    [torch.Size([3, 196])]
    >>> [row.index for row in stored.rows(method="gradcam")], [len(table) for table in stored.tables()]
    ([0, 1, 2], [3])
    >>> sum(len(batch) for batch in stored.scan(["method"], {}, 256))
    3
    >>> keys, failures = list(stored.keys()), list(stored.failures())
    >>> stored[keys[0]][0].role, len(failures)
    ('predicted', 0)
    >>> [sample.label == row.label for row, sample in stored.samples()]
    [True, True, True]
    >>> len(list(stored.evaluate("scenes", "sparseness")))
    3
    """

    files: tuple[Path, ...]
    seals: Mapping[str, str] = field(default_factory=dict)
    _checked: set[tuple[Path, bool]] = field(default_factory=set)

    @cached_property
    def dataset(self) -> pyarrow.dataset.Dataset:
        """All rows as a `pyarrow.dataset`, to filter and project them."""
        import pyarrow.dataset as pads

        self._check(self.files[0])
        options = pads.ParquetFragmentScanOptions(page_checksum_verification=True)
        file_format = pads.ParquetFileFormat(default_fragment_scan_options=options)
        return pads.dataset([str(file) for file in self.files], format=file_format)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Metadata of the files: job, model, layout, preprocessing and provenance of every method."""
        self._check(self.files[0])
        return read_about(self.files[0]) or {}

    def __len__(self) -> int:
        for file in self.files:
            self._check(file)
        return self.dataset.count_rows()

    def __iter__(self) -> Iterator[Attribution]:
        for row in self.rows():
            yield row.attribution

    def rows(self, batch_size: int = 256, **where: Any) -> Iterator[StoredMap]:
        """Every map with its image and classes; failed rows are left out.

        Parameters
        ----------
        batch_size
            Number of rows in memory.
        **where
            Values of columns that a row must have, such as `method="gradcam"` or `predicted=3`.

        Returns
        -------
        iterator of StoredMap
        """
        for table in self.tables(batch_size, **where):
            attributions = (joined[row] for joined in self._attributions(table) for row in range(len(joined)))
            for row in table.to_pylist():
                columns = {name: row[name] for name in DESCRIBED}
                yield StoredMap(key=row["key"], **columns, attribution=next(attributions))

    def batches(self, batch_size: int = 256, **where: Any) -> Iterator[Attribution]:
        """Maps as attributions of up to `batch_size` rows of one method and grid size.

        Parameters
        ----------
        batch_size, **where
            As for `rows`.

        Returns
        -------
        iterator of Attribution
        """
        for table in self.tables(batch_size, **where):
            yield from self._attributions(table)

    def tables(self, batch_size: int = 256, **where: Any) -> Iterator[pa.Table]:
        """The rows as Arrow tables of at most `batch_size` rows; failed rows are left out.

        Parameters
        ----------
        batch_size, **where
            As for `rows`.

        Returns
        -------
        iterator of pyarrow.Table
        """
        import pyarrow as pa

        for batch in self.scan(None, where, batch_size):
            if len(batch):
                yield pa.Table.from_batches([batch])

    def scan(
        self, columns: list[str] | None, where: Mapping[str, Any], batch_size: int, *, failed: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of the rows with these values, in batches.

        Parameters
        ----------
        columns
            Names of the columns; None for all.
        where
            Values that columns must have.
        batch_size
            Number of rows per batch.
        failed
            Whether failed rows are read, instead of the others.

        Returns
        -------
        iterator of pyarrow.RecordBatch
        """
        import pyarrow.dataset as pads

        condition = pads.field("error").is_valid() if failed else pads.field("error").is_null()
        for name, value in where.items():
            if name not in self.dataset.schema.names:
                raise DataError(f"maps have no column {name!r}; they have {', '.join(self.dataset.schema.names)}")
            condition &= pads.field(name) == value
        return self._read_batches(columns, condition, batch_size)

    def _read_batches(
        self, columns: list[str] | None, condition: pyarrow.dataset.Expression | None, batch_size: int
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the rows that fulfil a condition, file by file; every file is checked before it is read."""
        schema = self.dataset.schema
        for file, fragment in zip(self.files, self.dataset.get_fragments(), strict=True):
            self._check(file)
            with unexpected_errors_as(partial(describe_unreadable, file), OSError, ValueError):  # also those of Arrow
                chosen = fragment if condition is None else fragment.subset(condition, schema=schema)
                if not chosen.row_groups:
                    continue
                self._check(file, whole=True)
                # few batches are read ahead, so that memory does not grow with the size of the file
                yield from chosen.to_batches(
                    schema=schema, columns=columns, filter=condition, batch_size=batch_size, batch_readahead=1
                )

    def _check(self, file: Path, *, whole: bool = False) -> None:
        """Check the metadata of a file, or all of it, unless that was done before; raise `DataError` if it is damaged."""
        if (file, whole) in self._checked:
            return
        check_file(file, whole=whole)
        listed = self.seals.get(file.name)
        if listed is not None and (read_about(file) or {}).get("seal") != listed:
            raise DataError(f"'{file}' is not the file that '{MANIFEST}' lists; {AGAIN}")
        self._checked.add((file, whole))

    def __getitem__(self, key: str) -> list[StoredMap]:
        """The maps of one image, one per target and method.

        Of files whose range of keys does not contain the key, the metadata are read; others are scanned.

        Raises
        ------
        KeyError
            If there is no map of the image.
        """
        where: dict[str, Any] = {"key": key}
        stored = list(self.rows(**where))
        if not stored:
            raise KeyError(key)
        return stored

    def keys(self) -> Iterator[str]:
        """Keys of the images in the order of the files; those of several maps of an image are given once.

        Returns
        -------
        iterator of str
        """
        batches = self._read_batches(["key"], None, 4096)
        keys = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        yield from (key for key, _ in groupby(keys))

    def failures(self) -> Iterator[tuple[str, str]]:
        """Key and error message of every failed row.

        Returns
        -------
        iterator of tuple of str
        """
        for batch in self.scan(["key", "error"], {}, 4096, failed=True):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def samples(self, dataset: str | None = None, **where: Any) -> Iterator[tuple[StoredMap, Sample]]:
        """Every map with its image and annotations, which are read again.

        Parameters
        ----------
        dataset
            Spec of the dataset; None for the one that was explained.
        **where
            As for `rows`.

        Returns
        -------
        iterator of tuple
            `StoredMap` and `vitreous.data.Sample`.

        Raises
        ------
        DataError
            If the files do not say where the images are, or the dataset has other images there.
        """
        spec = dataset or self.about.get("dataset")
        if spec is None or "sorted" in self.about:
            raise DataError(
                f"'{self.files[0]}' does not say where its images are; read the folder that `vitreous map` wrote"
            )
        source = open_source(spec, self.about.get("images"))
        for file in self.files:
            self._check(file)
            shard = (read_about(file) or {})["shard"]
            part = source.parts[shard["part"]]
            items = enumerate(part.items(shard["start"]), shard["start"])
            index, item, sample = -1, None, None
            for row in MapFolder((file,), self.seals, self._checked).rows(**where):
                while index < row.index:
                    index, item = next(items, (row.index, None))
                    sample = None
                if item is None or item.key != row.key:
                    raise DataError(f"dataset '{spec}' has no {row.key!r} at the place where it was explained")
                sample = sample or part.load(item)
                yield row, sample

    def evaluate(
        self,
        model: str | BlackBox,
        metric: str | Metric = "deletion_aopc",
        *,
        dataset: str | None = None,
        batch_size: int = 32,
        precision: str | None = None,
        **where: Any,
    ) -> Iterator[tuple[StoredMap, float]]:
        """Score every map with a metric; images, labels, masks and boxes are read again, batch by batch.

        Parameters
        ----------
        model, metric, precision
            As for `vitreous.evaluate`; the model that was explained, as a name or loaded.
        dataset, **where
            As for `samples`.
        batch_size
            Number of maps that are scored together.

        Returns
        -------
        iterator
            Every map and its score, NaN where the metric is undefined.
        """
        vit = load(model) if isinstance(model, str) else model
        preprocess = vit.preprocess
        if preprocess is None:
            raise ModelError(f"{vit.name!r} does not say how images are prepared; wrap(model, preprocess=…) would work")
        measured = self.samples(dataset, **where)
        while chunk := list(islice(measured, batch_size)):
            scores: dict[int, float] = {}
            places_of: dict[Any, list[int]] = {}  # of maps that can be joined
            for place, (row, _) in enumerate(chunk):
                places_of.setdefault((row.attribution.method, row.attribution.layout), []).append(place)
            for places in places_of.values():
                samples = [preprocess_sample(chunk[place][1], preprocess, preprocess) for place in places]
                batch = collate(samples, preprocess.size)
                result = evaluate(
                    vit, batch.images, join_attributions([chunk[place][0].attribution for place in places]), metric,
                    labels=batch.labels, objects=batch.objects, rivals=batch.rivals, boxes=batch.boxes, precision=precision,
                )  # fmt: skip
                scores.update(zip(places, result.scores.tolist(), strict=True))
            for place, (row, _) in enumerate(chunk):
                yield row, scores[place]

    def _attributions(self, table: pa.Table) -> Iterator[Attribution]:
        """Attributions of consecutive rows of one method and grid size."""
        for start, stop in runs_of_equal(table, ("method", "rows", "columns")):
            yield as_attribution(table.slice(start, stop - start), self.about)


def read(folder: str | Path) -> MapFolder:
    """Open the maps that `vitreous map` wrote; nothing but the list of files is read.

    Every file is checked for damage before it is read. Of a run that is not finished, the files that are complete are read.

    Parameters
    ----------
    folder
        The folder given as `--out`, or its subfolder `_sorted`. Maps of version 0.1 are read as well.

    Returns
    -------
    MapFolder

    Raises
    ------
    DataError
        If there are no maps in the folder, a file of a finished run is missing, or pyarrow is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from vitreous import maps
    >>> from vitreous.bench.plan import ModelSpec
    >>> from vitreous.mapping.job import MapJob
    >>> from vitreous.mapping.run import run_map
    >>> job = MapJob(ModelSpec("scenes", "scenes"), "scenes:single?count=3", ("gradcam",))
    >>> progress = run_map(job, Path("maps"), device="cpu")
    >>> stored = maps.read("maps")
    >>> len(stored)
    3
    """
    need_pyarrow()
    files = tuple(list_complete_files(folder))
    if not files:
        raise DataError(
            f"'{folder}' holds no maps; `vitreous map DATASET --model … --out {folder}` would put some there"
        )
    return MapFolder(files, check_files(Path(folder), files))


def describe_unreadable(file: Path, problem: str) -> DataError:
    return DataError(f"'{file}' cannot be read ({problem}); {AGAIN}")


def runs_of_equal(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Start and stop of consecutive rows that are equal in some columns."""
    start = 0
    for _, group in groupby(zip(*(table[name].to_pylist() for name in columns), strict=True)):
        stop = start + len(list(group))
        yield start, stop
        start = stop


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
    attribution = Attribution(
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
    return with_cautions(attribution, [] if bool(maps.isfinite().all()) else [UNDEFINED])
