"""Numbers about a folder of maps, counted in one pass over its files; memory does not grow with the number of images."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.maps import MapFolder, runs_of_equal

if TYPE_CHECKING:
    import pandas as pd

BINS = 20  # of probabilities
BATCH = 4096  # rows in memory
MESSAGES = 200  # different error messages that are counted separately
OTHER = "other errors"
COLUMNS = ("method", "role", "target", "target_name", "label", "predicted", "probability")
GRIDS = ("grid", "rows", "columns")


@dataclass(slots=True)
class Mean:
    """Mean and variance of numbers that come one after the other; NaN is counted apart."""

    count: int = 0
    undefined: int = 0
    mean: float = math.nan
    squares: float = 0.0  # sum of squared deviations from the mean

    def add(self, values: np.ndarray) -> None:
        """Add some numbers."""
        numbers = np.asarray(values, np.float64)
        numbers, length = numbers[~np.isnan(numbers)], len(numbers)
        self.undefined += length - len(numbers)
        if not len(numbers):
            return
        mean, total = float(numbers.mean()), self.count + len(numbers)
        step = mean - self.mean if self.count else 0.0
        self.squares += float(np.square(numbers - mean).sum()) + step**2 * self.count * len(numbers) / total
        self.mean = self.mean + step * len(numbers) / total if self.count else mean
        self.count = total

    @property
    def stderr(self) -> float:
        """Standard error of the mean; NaN for fewer than two numbers."""
        return math.sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else math.nan


@dataclass(slots=True)
class MethodStatistics:
    """What the maps of one method are like.

    Attributes
    ----------
    maps
        Number of maps.
    flat
        Number of maps whose scores are all 0 or not finite; they are in no mean.
    negative
        Share of the sum of absolute scores that is negative.
    strongest
        Share of the sum of absolute scores in the tenth of the patches with the largest ones; 0.1 if all are equal.
    """

    maps: int = 0
    flat: int = 0
    negative: Mean = field(default_factory=Mean)
    strongest: Mean = field(default_factory=Mean)

    def add(self, grids: np.ndarray) -> None:
        """Add maps [n p]."""
        scores = np.where(np.isfinite(grids), grids, 0).astype(np.float64)
        sizes = np.abs(scores)
        totals = sizes.sum(1)
        self.maps += len(scores)
        self.flat += int((totals == 0).sum())
        scores, sizes, totals = (values[totals > 0] for values in (scores, sizes, totals))
        if not len(scores):
            return
        tenth = max(1, round(scores.shape[1] / 10))
        self.negative.add(-np.minimum(scores, 0).sum(1) / totals)
        self.strongest.add(np.partition(sizes, -tenth, axis=1)[:, -tenth:].sum(1) / totals)


@dataclass(slots=True)
class LabelStatistics:
    """Classes of images that have a label, and how many of these classes are the label."""

    labelled: int = 0
    right: int = 0

    @property
    def right_share(self) -> float:
        return self.right / self.labelled if self.labelled else math.nan

    def add_labels(self, rows: pd.DataFrame, column: str) -> None:
        """Add the classes in a column of rows."""
        labelled = rows.loc[rows["label"] >= 0]
        self.labelled += len(labelled)
        self.right += int((labelled["label"] == labelled[column]).sum())


@dataclass(slots=True)
class RoleStatistics(LabelStatistics):
    """Probabilities of the classes that were explained for one reason, and how many of them are the true class."""

    probability: Mean = field(default_factory=Mean)
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))

    def add(self, rows: pd.DataFrame) -> None:
        """Add rows of explained classes."""
        self.add_labels(rows, "target")
        self.probability.add(rows["probability"].to_numpy())
        finite = rows["probability"].dropna()
        self.histogram += np.histogram(finite.clip(0, 1), BINS, (0, 1))[0]


@dataclass(slots=True)
class ClassStatistics(LabelStatistics):
    """Images with one predicted class."""

    name: str = ""
    images: int = 0


@dataclass(order=True, frozen=True, slots=True)
class ChosenImage:
    """An image to show; the ones of the largest order are kept."""

    order: float | int
    key: str
    file: Path = field(compare=False)


@dataclass(slots=True)
class FolderSummary:
    """Numbers about a folder of maps.

    Attributes
    ----------
    images, failed
        Images with maps, and images without.
    methods, roles, classes
        Statistics by method, by reason why a class was explained, and by predicted class.
    errors
        Number of failed rows by message, and the key of an image that has it.
    sample
        Some images, chosen by a hash of their keys.
    mistakes
        Images whose predicted class is not their label, those of the largest probability first.
    """

    images: int = 0
    failed: int = 0
    methods: dict[str, MethodStatistics] = field(default_factory=dict)
    roles: dict[str, RoleStatistics] = field(default_factory=dict)
    classes: dict[int, ClassStatistics] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    sample: list[ChosenImage] = field(default_factory=list)
    mistakes: list[ChosenImage] = field(default_factory=list)

    @property
    def maps(self) -> int:
        """Number of maps."""
        return sum(method.maps for method in self.methods.values())

    def add_rows(self, rows: pd.DataFrame, is_first: pd.Series, file: Path, count: int) -> None:
        """Count images and classes in rows with maps; `is_first` is true for the first row of every image."""
        images = rows.loc[is_first]
        self.images += len(images)
        explained = rows.loc[rows["method"] == next(iter(self.methods))]  # every method explains the same classes
        for role, own in explained.groupby("role"):
            self.roles.setdefault(str(role), RoleStatistics()).add(own)
        for predicted, own in images.groupby("predicted"):
            statistics = self.classes.setdefault(predicted, ClassStatistics())
            statistics.images += len(own)
            statistics.add_labels(own, "predicted")
        is_predicted = rows["target"] == rows["predicted"]
        for row in rows.loc[is_predicted].drop_duplicates("target").itertuples():
            self.classes[row.target].name = row.target_name
        is_mistake = is_predicted & (rows["label"] >= 0) & (rows["label"] != rows["predicted"])
        mistakes = explained.loc[is_mistake[explained.index] & explained["probability"].notna()]
        sample = (ChosenImage(hash_key(key), key, file) for key in images["key"])
        certain = (ChosenImage(row.probability, row.key, file) for row in mistakes.itertuples())
        self.sample = heapq.nlargest(count, chain(self.sample, sample))
        self.mistakes = heapq.nlargest(count, chain(self.mistakes, certain))

    def add_error(self, key: str, message: str) -> None:
        """Count an error; messages that differ by the key of the image only are the same."""
        message = message.replace(repr(key), "the image").replace(key, "the image")
        if message not in self.errors and len(self.errors) >= MESSAGES:
            message = OTHER
        self.errors[message] += 1
        self.examples.setdefault(message, key)


def summarise_folder(folder: MapFolder, count: int = 0) -> FolderSummary:
    """Count what a folder holds, and choose `count` images to show, and as many that were mistaken."""
    summary, last_key, last_failed = FolderSummary(), None, None
    for file in folder.files:
        part = MapFolder((file,))
        for batch in part.scan(["key", *COLUMNS, *GRIDS], {}, BATCH):
            if not len(batch):
                continue
            rows = batch.select(["key", *COLUMNS]).to_pandas()
            for method, grids in group_grids(batch, rows["method"].to_numpy()):
                summary.methods.setdefault(method, MethodStatistics()).add(grids)
            previous = rows["key"].shift(fill_value=last_key)  # the rows of an image lie side by side
            summary.add_rows(rows, rows["key"] != previous, file, count)
            last_key = rows["key"].iloc[-1]
        for key, message in part.failures():
            summary.failed += key != last_failed
            last_failed = key
            summary.add_error(key, message)
    return summary


def group_grids(batch: Any, methods: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Maps [n p] of every method, of one grid size at a time."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    for start, stop in runs_of_equal(table, ("rows", "columns")):
        flat = table["grid"].slice(start, stop - start).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        grids, own = flat.reshape(stop - start, -1), methods[start:stop]
        for method in dict.fromkeys(own.tolist()):
            yield method, grids[own == method]


def hash_key(key: str) -> int:
    """A number that orders images at random, and always in the same way."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())
