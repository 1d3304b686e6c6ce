"""Rows of a run, sorted by model, dataset and metric in a temporary file, so that those of one metric are in memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vitreous.core.errors import DataError
from vitreous.methods.spec import depends_on_class

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

T = TypeVar("T")


QUESTION = ["image", "index", "target", "role"]  # columns that identify an image and target class
TARGET = ["image", "index", "target", "target_name", "role", "label", "predicted", "probability"]  # of `ImageTarget`
PROVENANCE = ("weights", "precision", "device", "vitreous", "torch", "question")
# columns with few different values
FACTS = ["method", "metric", "role", "is_read", "higher_is_better", "error", "protocol", *PROVENANCE]
NUMBERS = ("value", "seconds", "map_seconds", "peak_mib")
MISSING = {"image": "", "index": -1, "role": "", "label": -1, "predicted": -1, "probability": np.nan}
# columns of the store that are read
SUMMARISED = (
    "model", "dataset", *TARGET, "method", "metric", *NUMBERS, "higher_is_better", "parts", "curve", "levels", "error",
    "protocol", *PROVENANCE,
)  # fmt: skip
CACHE_BYTES = 1 << 28
CELLS_AT_ONCE = 64  # cells whose facts are merged


@dataclass(frozen=True, slots=True)
class ImageTarget:
    """One image and the class that was explained; it has one row per method and metric. Fields are as in `TARGET`."""

    image: str
    index: int
    target: int
    target_name: str
    role: str
    label: int
    predicted: int
    probability: float

    @property
    def key(self) -> tuple[str, int]:
        """Image and target class, which pair rows of two runs."""
        return self.image, self.target


class TemporaryBatches:
    """Record batches in a temporary file, which is deleted with this object, and arrays made from them."""

    def __init__(self) -> None:
        from cachetools import LRUCache

        self.file = TemporaryFile(prefix="vitreous-")  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self.file.close)
        self.cache: LRUCache[Hashable, Any] = LRUCache(CACHE_BYTES, getsizeof=count_bytes)

    def append(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Write a batch; return where it starts in the file, and its size."""
        start = self.file.seek(0, os.SEEK_END)
        return start, self.file.write(batch.serialize())

    def read(self, places: Iterable[tuple[int, int]], schema: pa.Schema) -> pa.Table:
        """Read batches that `append` wrote."""
        import pyarrow as pa

        batches = []
        for start, size in places:
            self.file.seek(start)
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(self.file.read(size)), schema))
        return pa.Table.from_batches(batches, schema)

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of `make`; those that were used last are kept, up to `CACHE_BYTES`."""
        from cachetools import cached

        return cached(self.cache, lambda: key)(make)()


def count_bytes(value: Any) -> int:
    """Size of an array, or of a dictionary of arrays."""
    return sum(map(count_bytes, value.values())) if isinstance(value, dict) else getattr(value, "nbytes", 8)


def make_row_schema(kind: str) -> pa.Schema:
    """Columns of the temporary file: "scores", or "curves" of the metrics that have some."""
    import pyarrow as pa

    columns = {"question_at": pa.int32(), "method_at": pa.int32()}
    if kind == "curves":
        return pa.schema({**columns, "levels_at": pa.int32(), "curve": pa.list_(pa.float32())})
    numbers = {name: pa.float64() for name in NUMBERS}
    return pa.schema({**columns, "failed": pa.bool_(), **numbers, "parts": pa.map_(pa.string(), pa.float64())})


@dataclass(eq=False)
class SectionFiles:
    """The rows of one model on one dataset, in the order of the plan.

    Parameters
    ----------
    batches
        File of the rows.
    questions, cells
        Images with target classes, also those of unreadable images, and the cell of the run that each is in.
    methods, levels
        Methods, and levels of curves as bytes, with their indices in the file.
    places
        Where the rows of every metric and kind are in the file.
    """

    batches: TemporaryBatches
    questions: list[ImageTarget] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    methods: dict[str, int] = field(default_factory=dict)
    levels: dict[bytes, int] = field(default_factory=dict)
    places: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    _question_at: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _facts: list[pd.DataFrame] = field(default_factory=list)

    @property
    def facts(self) -> pd.DataFrame:
        """The different values of `FACTS` in the order of the rows, and the number of rows that have them."""
        if len(self._facts) != 1:  # those of one cell are merged already
            self._facts[:] = [merge_facts(self._facts)]
        return self._facts[0]

    @property
    def score_by_method(self) -> dict[str, str]:
        """Name of the score that each method explains; empty if its maps do not depend on the class."""
        names = self.facts.groupby("method", sort=False)["question"].unique()
        return {
            str(method): " and ".join(name for name in own if isinstance(name, str))
            if depends_on_class(str(method))
            else ""
            for method, own in names.items()
        }

    def add(self, cell: int, table: pa.Table) -> None:
        """Add the rows of a cell; they follow those that were added before."""
        import pyarrow as pa

        frame = table.drop_columns(["parts", "curve"]).to_pandas()
        frame = frame.assign(role=frame["role"].astype(object).fillna(""), is_read=frame["target"] >= 0)
        self._facts.append(merge_facts([frame.assign(rows=1)]))
        if len(self._facts) > CELLS_AT_ONCE:
            self._facts = [merge_facts(self._facts)]
        levels = (b"" if levels is None else np.asarray(levels, float).tobytes() for levels in frame["levels"])
        columns = {
            "question_at": self._number_questions(cell, frame, table),
            "method_at": [self.methods.setdefault(method, len(self.methods)) for method in frame["method"]],
            "levels_at": [self.levels.setdefault(own, len(self.levels)) for own in levels],
            "failed": frame["error"].notna(),
            "curve": table["curve"].cast(pa.list_(pa.float32())),
            **{name: table[name] for name in (*NUMBERS, "parts")},
        }
        has_curve = (table["levels"].is_valid().to_numpy(), "curves")
        for is_written, kind in ((np.ones(len(table), bool), "scores"), has_curve):
            rows = pa.table({name: columns[name] for name in make_row_schema(kind).names}, schema=make_row_schema(kind))
            for metric, places in frame.loc[is_written].groupby("metric", sort=False).groups.items():
                own = rows.take(pa.array(np.sort(places))).combine_chunks()
                self.places.setdefault((str(metric), kind), []).extend(map(self.batches.append, own.to_batches()))

    def _number_questions(self, cell: int, frame: pd.DataFrame, table: pa.Table) -> np.ndarray:
        """Index of the image-target pair of every row."""
        local = frame.groupby(QUESTION, sort=False, dropna=False).ngroup().to_numpy()
        first_rows = np.unique(local, return_index=True)[1]
        numbers = []
        for record in table.select(TARGET).take(first_rows).to_pylist():
            defaults = {**MISSING, "target_name": f"class {record['target']}"}
            question = ImageTarget(*(defaults[name] if record[name] is None else record[name] for name in TARGET))
            key = (question.image, question.index, question.target, question.role)
            if key not in self._question_at:
                self._question_at[key] = len(self.questions)
                self.questions.append(question)
                self.cells.append(cell)
            numbers.append(self._question_at[key])
        return np.array(numbers, np.int32)[local]

    def read(self, metric: str, kind: str = "scores") -> pa.Table:
        """Rows of one metric, with the columns of `make_row_schema(kind)`."""
        return self.batches.read(self.places.get((metric, kind), ()), make_row_schema(kind))


def merge_facts(facts: list[pd.DataFrame]) -> pd.DataFrame:
    """Add up the rows that have the same values of `FACTS`; values stay in the order in which they come first."""
    import pandas as pd

    return pd.concat(facts).groupby(FACTS, sort=False, dropna=False).agg({"rows": "sum"}).reset_index()


def collect_sections(tables: Iterable[tuple[int, pa.Table]]) -> dict[tuple[str, str], SectionFiles]:
    """Sort rows by model, dataset and metric.

    Parameters
    ----------
    tables
        Cell number and rows of every cell of a run, with the columns `SUMMARISED`.

    Returns
    -------
    dict
        Rows by model and dataset, in the order of the run.
    """
    import pyarrow.compute as pc

    try:
        import pandas  # noqa: F401
    except ImportError:
        raise DataError("results are summarised with pandas: pip install 'vitreous[bench]'") from None
    batches = TemporaryBatches()
    sections: dict[tuple[str, str], SectionFiles] = {}
    for cell, table in tables:
        pairs = table.select(["model", "dataset"]).to_pandas().drop_duplicates()
        for model, dataset in pairs.itertuples(index=False):
            is_own = (pc.field("model") == model) & (pc.field("dataset") == dataset)
            rows = table if len(pairs) == 1 else table.filter(is_own)  # a cell is of one model and dataset
            sections.setdefault((model, dataset), SectionFiles(batches)).add(cell, rows)
    return sections
