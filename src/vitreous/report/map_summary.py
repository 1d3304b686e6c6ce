"""Numbers about a folder of maps, counted in one pass over its files; memory does not grow with the number of images."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.maps import MapFolder, runs_of_equal

BINS = 20  # of probabilities
BATCH = 4096  # rows in memory
MESSAGES = 200  # different error messages that are counted separately
OTHER = "other errors"
COLUMNS = ("index", "method", "role", "target", "target_name", "label", "predicted", "probability")
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
class RoleStatistics:
    """Probabilities of the classes that were explained for one reason, and how many of them are the true class."""

    probability: Mean = field(default_factory=Mean)
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    labelled: int = 0
    right: int = 0


@dataclass(slots=True)
class ClassStatistics:
    """Images with one predicted class."""

    name: str = ""
    images: int = 0
    labelled: int = 0
    right: int = 0


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


def summarise_folder(folder: MapFolder, count: int = 0) -> FolderSummary:
    """Count what a folder holds, and choose `count` images to show, and as many that were mistaken."""
    summary, last_key, last_failed = FolderSummary(), None, None
    for file in folder.files:
        part = MapFolder((file,))
        for batch in part.scan([part.key_column, *COLUMNS, *GRIDS], {}, BATCH):
            if len(batch):
                last_key = add_batch(summary, batch, part.key_column, last_key, file, count)
        for key, message in part.failures():
            summary.failed += key != last_failed
            last_failed = key
            add_error(summary, key, message)
    summary.sample.sort(reverse=True)
    summary.mistakes.sort(reverse=True)
    return summary


def add_batch(summary: FolderSummary, batch: Any, key_column: str, last_key: str | None, file: Path, count: int) -> str:
    """Add rows with maps; return the key of the last one."""
    columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in (key_column, *COLUMNS)}
    keys, methods = columns[key_column], columns["method"]
    for method, grids in group_grids(batch, methods):
        summary.methods.setdefault(method, MethodStatistics()).add(grids)
    starts = keys != np.concatenate([np.array([last_key], object), keys[:-1]])  # the rows of an image lie side by side
    own = np.flatnonzero(starts)
    summary.images += len(own)
    first_method = next(iter(summary.methods))  # classes are those of every method, and counted once
    rows = np.flatnonzero(methods == first_method)
    for role in np.unique(columns["role"][rows]):
        add_role(summary, role, {name: values[rows[columns["role"][rows] == role]] for name, values in columns.items()})
    for row in own:
        digest = blake2b(str(keys[row]).encode(), digest_size=8).digest()
        choose(summary.sample, ChosenImage(int.from_bytes(digest), str(keys[row]), file), count)
    add_predictions(summary, columns, own)
    is_mistake = (columns["label"] >= 0) & (columns["label"] != columns["predicted"])
    is_mistake &= (columns["target"] == columns["predicted"]) & ~np.isnan(columns["probability"])
    for row in rows[is_mistake[rows]]:
        choose(summary.mistakes, ChosenImage(float(columns["probability"][row]), str(keys[row]), file), count)
    return str(keys[-1])


def group_grids(batch: Any, methods: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Maps [n p] of every method, of one grid size at a time."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch])
    for start, stop in runs_of_equal(table, ("rows", "columns")):
        flat = table["grid"].slice(start, stop - start).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        grids, own = flat.reshape(stop - start, -1), methods[start:stop]
        for method in dict.fromkeys(own.tolist()):
            yield method, grids[own == method]


def add_role(summary: FolderSummary, role: str, columns: dict[str, np.ndarray]) -> None:
    statistics = summary.roles.setdefault(role, RoleStatistics())
    probability, has_label = columns["probability"], columns["label"] >= 0
    statistics.probability.add(probability)
    finite = probability[~np.isnan(probability)]
    statistics.histogram += np.histogram(np.clip(finite, 0, 1), BINS, (0, 1))[0]
    statistics.labelled += int(has_label.sum())
    statistics.right += int((has_label & (columns["target"] == columns["label"])).sum())


def add_predictions(summary: FolderSummary, columns: dict[str, np.ndarray], own: np.ndarray) -> None:
    """Count the predicted classes of the images whose first rows are `own`; names are those of explained classes."""
    for row in own:
        predicted, label = int(columns["predicted"][row]), int(columns["label"][row])
        statistics = summary.classes.setdefault(predicted, ClassStatistics())
        statistics.images += 1
        statistics.labelled += label >= 0
        statistics.right += label == predicted
    for row in np.flatnonzero(columns["target"] == columns["predicted"]):
        summary.classes[int(columns["target"][row])].name = columns["target_name"][row]


def add_error(summary: FolderSummary, key: str, message: str) -> None:
    """Count an error; messages that differ by the key of the image only are the same."""
    message = message.replace(repr(key), "the image").replace(key, "the image")
    if message not in summary.errors and len(summary.errors) >= MESSAGES:
        message = OTHER
    summary.errors[message] += 1
    summary.examples.setdefault(message, key)


def choose(chosen: list[ChosenImage], image: ChosenImage, count: int) -> None:
    """Keep the `count` images of the largest order, one per key."""
    if len(chosen) < count:
        heapq.heappush(chosen, image)
    elif chosen and image > chosen[0]:
        heapq.heapreplace(chosen, image)
