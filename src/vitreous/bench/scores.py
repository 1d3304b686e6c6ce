"""Scores of a run as arrays: one section per model and dataset, with one methods × image-targets array per metric.

Arrays are made from the rows of one metric (`section_files`) when they are needed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from vitreous.bench.section_files import PROVENANCE, ImageTarget, SectionFiles
from vitreous.metrics.metric import CurveAxes, resolve_metric
from vitreous.metrics.metric_result import Reducer

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

T = TypeVar("T")
EXPLAINED = {"": "", "predicted": ", the predicted class explained", "label": ", the true class explained"}


@dataclass(frozen=True, eq=False)
class ScoreSection:
    """All rows of one model on one dataset.

    Rows are identified by method, metric and image-target pair (`ImageTarget`, called question in the code).

    Parameters
    ----------
    model, dataset
        Labels.
    explained
        "predicted" or "label" if both predicted and true classes were explained and the section holds one of them; else
        empty.
    files
        Rows of the store.
    role
        Role of the targets that the section holds; empty for all. Rows of unreadable images, which have no role, are
        always part of it.
    score
        Score function of the methods that the section holds, beside those whose maps do not depend on the class; empty
        for all.
    """

    model: str
    dataset: str
    explained: str
    files: SectionFiles
    role: str = ""
    score: str = ""

    @property
    def title(self) -> str:
        return f"{self.model} on {self.dataset}{EXPLAINED[self.explained]}{self.score and f', score: {self.score}'}"

    @cached_property
    def own_methods(self) -> dict[str, str]:
        """Name of the score of every method of `files` that the section holds; empty for maps of any class."""
        return {
            method: score
            for method, score in self.files.score_by_method.items()
            if not self.score or score in ("", self.score)
        }

    @property
    def score_by_method(self) -> dict[str, str]:
        """Name of the score that each method explains; empty if its maps do not depend on the class."""
        return {method: self.own_methods[method] for method in self.methods}

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the scores that are explained, in the order of the methods."""
        return tuple(dict.fromkeys(filter(None, self.score_by_method.values())))

    @cached_property
    def facts(self) -> pd.DataFrame:
        """The different values of methods, metrics, provenance and errors, with the number of rows."""
        facts = self.files.facts
        facts = facts.loc[facts["role"].isin(("", self.role))] if self.role else facts
        return facts.loc[facts["method"].isin([*self.own_methods])] if self.score else facts

    @cached_property
    def measured_facts(self) -> pd.DataFrame:
        """`facts` of readable images; of all if no image could be read."""
        is_read = self.facts["is_read"]
        return self.facts.loc[is_read] if np.any(is_read) else self.facts

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.measured_facts["method"].unique())

    @cached_property
    def is_own(self) -> Bool[np.ndarray, " all"]:
        """Whether the section holds the image-target pairs of `files`."""
        return np.array([not self.role or question.role in ("", self.role) for question in self.files.questions])

    @cached_property
    def question_index(self) -> Int[np.ndarray, " all"]:
        """Array column of every image-target pair of `files`; −1 if it has none.

        Unreadable images have none, unless no image could be read.
        """
        is_read = self.is_own & np.array([question.target >= 0 for question in self.files.questions])
        has_column = is_read if is_read.any() else self.is_own
        return np.where(has_column, np.cumsum(has_column) - 1, -1)

    @cached_property
    def questions(self) -> tuple[ImageTarget, ...]:
        """Images with target classes, in the order of the array columns."""
        pairs = zip(self.files.questions, self.question_index, strict=True)
        return tuple(question for question, column in pairs if column >= 0)

    @cached_property
    def metrics(self) -> tuple[MetricScores, ...]:
        """Scores of every metric, in the order of the plan."""
        return tuple(MetricScores(self, str(name)) for name in self.measured_facts["metric"].unique())

    @cached_property
    def clusters(self) -> tuple[np.ndarray, ...]:
        """For every image the indices of its image-target pairs; they are resampled together."""
        places: dict[str, list[int]] = {}
        for place, question in enumerate(self.questions):
            places.setdefault(question.image, []).append(place)
        return tuple(map(np.array, places.values()))

    @cached_property
    def place_by_key(self) -> dict[tuple[str, int], int]:
        """Array column of every image and target class; the first one if a class was explained in two roles."""
        return {question.key: place for place, question in reversed([*enumerate(self.questions)])}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.role for question in self.questions))

    @property
    def failures(self) -> dict[str, int]:
        """Number of rows by error message."""
        return count_rows(self.facts, "error")

    @property
    def provenance(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(map(str, self.measured_facts[name].dropna().unique())) for name in PROVENANCE}

    @cached_property
    def map_seconds(self) -> dict[str, float]:
        """Median seconds per map of every method."""
        seconds = np.full((len(self.methods), len(self.questions)), np.nan)
        for scores in self.metrics:
            rows, places = scores.load()
            seconds[places] = rows["map_seconds"].to_numpy()
        defined = {method: row[~np.isnan(row)] for method, row in zip(self.methods, seconds, strict=True)}
        return {method: float(np.median(row)) if len(row) else np.nan for method, row in defined.items()}

    def of_role(self, role: str, explained: str = "") -> ScoreSection:
        """The section with the targets of one role only; rows of unreadable images, which have no role, are kept."""
        return ScoreSection(self.model, self.dataset, explained, self.files, role, self.score)

    def of_score(self, score: str) -> ScoreSection:
        """The section with the methods of one score and those without; with all methods if `score` is empty."""
        return ScoreSection(self.model, self.dataset, self.explained, self.files, self.role, score)


@dataclass(frozen=True, eq=False)
class MetricScores:
    """Scores of one metric in a section as methods × image-target pairs; NaN where a score is undefined."""

    section: ScoreSection
    metric: str

    @cached_property
    def facts(self) -> pd.DataFrame:
        """`ScoreSection.facts` of the metric."""
        return self.section.facts.loc[self.section.facts["metric"] == self.metric]

    @cached_property
    def measured_facts(self) -> pd.DataFrame:
        facts = self.section.measured_facts
        return facts.loc[facts["metric"] == self.metric]

    def rows(self, kind: str = "scores") -> pa.Table:
        """Rows of the metric, also those of unreadable images, with the columns of `make_row_schema(kind)`."""
        section = self.section
        rows = section.files.read(self.metric, kind)
        if section.score:
            is_own = np.array([method in section.own_methods for method in section.files.methods])
            rows = rows.filter(is_own[rows["method_at"].to_numpy()])
        return rows.filter(section.is_own[rows["question_at"].to_numpy()]) if section.role else rows

    def load(self, kind: str = "scores") -> tuple[pa.Table, tuple[np.ndarray, np.ndarray]]:
        """Rows of readable images, and their indices in methods × image-target pairs."""
        rows, section = self.rows(kind), self.section
        rows = rows.filter(section.question_index[rows["question_at"].to_numpy()] >= 0)
        row_by_method = {method: row for row, method in enumerate(section.methods)}
        method_index = np.array([row_by_method.get(method, -1) for method in section.files.methods])
        question_at = section.question_index[rows["question_at"].to_numpy()]
        return rows, (method_index[rows["method_at"].to_numpy()], question_at)

    def _cached(self, name: str, make: Callable[[], T]) -> T:
        section = self.section
        place = (section.model, section.dataset, section.role, section.score, self.metric, name)
        return section.files.batches.cached(place, make)

    @property
    def parts(self) -> dict[str, Float[np.ndarray, "m q"]]:
        """The score and the other named numbers that the metric's reducer reads."""
        return self._cached("parts", self._make_parts)

    def _make_parts(self) -> dict[str, np.ndarray]:
        rows, (method_at, question_at) = self.load()
        entries = rows["parts"].combine_chunks()
        row_of_entry = np.repeat(np.arange(len(rows)), np.diff(entries.offsets.to_numpy()))
        parts = {"score": (np.arange(len(rows)), rows["value"].to_numpy())}
        names, values = entries.keys.dictionary_encode(), entries.items.to_numpy(zero_copy_only=False)
        for code, name in enumerate(names.dictionary.to_pylist()):
            is_own = names.indices.to_numpy() == code
            parts[name] = row_of_entry[is_own], values[is_own]
        arrays = {name: np.full((len(self.section.methods), len(self.section.questions)), np.nan) for name in parts}
        for name, (places, values) in parts.items():
            arrays[name][method_at[places], question_at[places]] = values
        return arrays

    def parts_of(self, method: str, places: Sequence[int] | slice = slice(None)) -> dict[str, Float[np.ndarray, " q"]]:
        """`parts` of one method, on all image-target pairs or on those at `places`."""
        row = self.section.methods.index(method)
        return {name: values[row, places] for name, values in self.parts.items()}

    @property
    def scores(self) -> Float[np.ndarray, "m q"]:
        return self.parts["score"]

    @property
    def answered(self) -> Bool[np.ndarray, "m q"]:
        """True where there is a row, also if its value is NaN."""
        array = np.zeros((len(self.section.methods), len(self.section.questions)), bool)
        array[self.load()[1]] = True
        return array

    @cached_property
    def higher_is_better(self) -> bool | None:
        """None if the metric has no better direction."""
        directions = self.measured_facts.loc[self.measured_facts["error"].isna(), "higher_is_better"]
        if not len(directions):
            return resolve_metric(self.metric).higher_is_better
        return bool(directions.iloc[0]) if directions.notna().iloc[0] else None

    @property
    def sign(self) -> int:
        """1 if higher is better, −1 if lower is, 0 if the metric has no better direction."""
        return {True: 1, False: -1, None: 0}[self.higher_is_better]

    @cached_property
    def reduce(self) -> Reducer:
        """Function that reduces the rows of a dataset to one value, by their mean or by pooling."""
        return resolve_metric(self.metric).reduce

    @cached_property
    def axes(self) -> CurveAxes | None:
        """What levels and values of the curves are."""
        return resolve_metric(self.metric).chosen_axes

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """Settings of the metric as stored with its rows."""
        protocols = self.measured_facts["protocol"].dropna()
        return json.loads(protocols.iloc[0]) if len(protocols) and protocols.iloc[0] else {}

    @cached_property
    def _levels(self) -> bytes:
        """Levels of the curve that most rows have, as bytes; empty if the metric has no curve."""
        levels = [*self.section.files.levels]
        counts = Counter(self.load("curves")[0]["levels_at"].to_numpy().tolist())
        return next((levels[at] for at, _ in counts.most_common() if levels[at]), b"")

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the curve that most rows have; empty if the metric has no curve."""
        return tuple(np.frombuffer(self._levels).tolist())

    @property
    def curve(self) -> Float[np.ndarray, "m q s"] | None:
        """Curves over `levels`, in single precision since they are only plotted; None if the metric has none."""
        return self._cached("curve", self._make_curve) if self.levels else None

    def _make_curve(self) -> np.ndarray:
        import pyarrow as pa

        rows, (method_at, question_at) = self.load("curves")
        curves, count = rows["curve"].combine_chunks(), len(self.levels)
        is_own = rows["levels_at"].to_numpy() == self.section.files.levels[self._levels]
        is_own &= np.diff(curves.offsets.to_numpy()) == count
        values = curves.filter(pa.array(is_own)).flatten().to_numpy(zero_copy_only=False).reshape(-1, count)
        array = np.full((len(self.section.methods), len(self.section.questions), count), np.nan, np.float32)
        array[method_at[is_own], question_at[is_own]] = values
        return array


def count_rows(facts: pd.DataFrame, column: str) -> Counter[str]:
    """Number of rows by the values of a column, in the order of the rows; missing values are left out."""
    return Counter(facts.groupby(column, sort=False).agg({"rows": "sum"})["rows"].to_dict())


def make_sections(
    files: Mapping[tuple[str, str], SectionFiles], *, by_class: bool = True, by_score: bool = True
) -> list[ScoreSection]:
    """Sections of sorted rows, in the order of the plan.

    Parameters
    ----------
    files
        Sorted rows by model and dataset.
    by_class
        Whether predicted and true classes get separate sections if both were explained; a value over both would count
        most images twice. Other target classes of an image always share a section.
    by_score
        Whether methods that explain different scores, such as the logit and the probability, get separate sections, so
        that they are not ranked against each other. Methods whose maps do not depend on the class are in all of them.
    """
    sections: list[ScoreSection] = []
    for (model, dataset), own in files.items():
        section = ScoreSection(model, dataset, "", own)
        roles = [role for role in section.facts["role"].unique() if role]
        split = by_class and set(roles) == {"predicted", "label"}
        for part in [section.of_role(role, role) for role in roles] if split else [section]:
            is_mixed = by_score and len(part.scores) > 1
            sections += [part.of_score(score) for score in part.scores] if is_mixed else [part]
    return sections
