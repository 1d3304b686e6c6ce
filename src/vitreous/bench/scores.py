"""Rows of a store as arrays: one section per model and dataset, with one methods × image-targets array per metric."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from vitreous.bench.rows import to_frame
from vitreous.metrics.metric import Reducer, resolve_metric

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

QUESTION = ["picture", "index", "target", "role"]  # columns that identify an image and target class
PROVENANCE = ("weights", "precision", "device", "vitreous", "torch", "question")
MISSING = {"picture": "", "index": -1, "role": "", "label": -1, "predicted": -1, "probability": np.nan}
EXPLAINED = {"": "", "predicted": ", the predicted class explained", "label": ", the true class explained"}


@dataclass(frozen=True, slots=True)
class ImageTarget:
    """One image and the class that was explained; it has one row per method and metric."""

    picture: str
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
        return self.picture, self.target


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
    rows
        Rows of the store.
    """

    model: str
    dataset: str
    explained: str
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        return f"{self.model} on {self.dataset}{EXPLAINED[self.explained]}"

    @cached_property
    def measured(self) -> pd.DataFrame:
        """Rows of readable images with `method_at` and `question_at`, their indices in the arrays."""
        is_read = self.rows["target"].to_numpy() >= 0
        rows = self.rows.loc[is_read] if is_read.any() else self.rows
        places = {
            "method_at": rows.groupby("method", sort=False).ngroup(),
            "question_at": rows.groupby(QUESTION, sort=False, dropna=False).ngroup(),
        }
        return rows.assign(**places)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.measured["method"].unique())

    @cached_property
    def questions(self) -> tuple[ImageTarget, ...]:
        """Images with target classes, in the order of the array columns."""
        rows = self.measured.drop_duplicates("question_at").loc[:, [*ImageTarget.__slots__]].astype(object)
        missing = {**MISSING, "target_name": "class " + rows["target"].astype(str)}
        return tuple(ImageTarget(**record) for record in rows.fillna(missing).to_dict("records"))

    @cached_property
    def metrics(self) -> tuple[MetricScores, ...]:
        """Scores of every metric, in the order of the plan."""
        return tuple(MetricScores(self, str(name), rows) for name, rows in self.measured.groupby("metric", sort=False))

    @cached_property
    def clusters(self) -> tuple[np.ndarray, ...]:
        """For every image the indices of its image-target pairs; they are resampled together."""
        places: dict[str, list[int]] = {}
        for place, question in enumerate(self.questions):
            places.setdefault(question.picture, []).append(place)
        return tuple(map(np.array, places.values()))

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.role for question in self.questions))

    @property
    def failures(self) -> dict[str, int]:
        """Number of rows by error message."""
        return self.rows.groupby("error", sort=False).size().to_dict()

    @property
    def provenance(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(map(str, self.measured[name].dropna().unique())) for name in PROVENANCE}

    def of_role(self, role: str, explained: str = "") -> ScoreSection:
        """The section with the targets of one role only; rows of unreadable images, which have no role, are kept."""
        return ScoreSection(self.model, self.dataset, explained, self.rows.loc[role_of(self.rows).isin(("", role))])

    def pivot(self, values: pd.Series) -> Float[np.ndarray, "m q"]:
        """Arrange values of measured rows as methods × image-target pairs; NaN where there is no row."""
        rows = self.measured.loc[values.index]
        array = np.full((len(self.methods), len(self.questions)), np.nan)
        array[rows["method_at"], rows["question_at"]] = values.to_numpy(float)
        return array


@dataclass(frozen=True, eq=False)
class MetricScores:
    """Scores of one metric in a section as methods × image-target pairs; NaN where a score is undefined."""

    section: ScoreSection
    metric: str
    rows: pd.DataFrame

    @cached_property
    def parts(self) -> dict[str, Float[np.ndarray, "m q"]]:
        """The score and the other named numbers that the metric's reducer reads."""
        import pandas as pd

        named = pd.DataFrame([parts or {} for parts in self.rows["parts"]], index=self.rows.index)
        pooled = {str(name): self.section.pivot(named.loc[:, name]) for name in named.columns}
        return {"score": self.section.pivot(self.rows.loc[:, "value"]), **pooled}

    @property
    def scores(self) -> Float[np.ndarray, "m q"]:
        return self.parts["score"]

    @cached_property
    def answered(self) -> Bool[np.ndarray, "m q"]:
        """True where there is a row, also if its value is NaN."""
        array = np.zeros(self.scores.shape, bool)
        array[self.rows["method_at"], self.rows["question_at"]] = True
        return array

    @cached_property
    def higher_is_better(self) -> bool | None:
        """None if the metric has no better direction."""
        directions = self.rows.loc[self.rows["error"].isna(), "higher_is_better"]
        if not len(directions):
            return resolve_metric(self.metric).higher_is_better
        return None if directions.iloc[0] is None else bool(directions.iloc[0])

    @property
    def sign(self) -> int:
        """1 if higher is better, −1 if lower is, 0 if the metric has no better direction."""
        return {True: 1, False: -1, None: 0}[self.higher_is_better]

    @cached_property
    def reduce(self) -> Reducer:
        """Function that reduces the rows of a dataset to one value, by their mean or by pooling."""
        return resolve_metric(self.metric).reduce

    @property
    def seconds(self) -> Float[np.ndarray, "m q"]:
        return self.section.pivot(self.rows.loc[:, "seconds"])

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """Settings of the metric as stored with its rows."""
        protocols = self.rows["protocol"].dropna()
        return json.loads(protocols.iloc[0]) if len(protocols) and protocols.iloc[0] else {}

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """Levels of the curve that most rows have; empty if the metric has no curve."""
        counts = Counter(tuple(levels) for levels in self.rows["levels"] if levels is not None and len(levels))
        return counts.most_common(1)[0][0] if counts else ()

    @cached_property
    def curve(self) -> Float[np.ndarray, "m q s"] | None:
        """Curves over `levels`, in single precision since they are only plotted; None if the metric has none."""
        if not self.levels:
            return None
        array = np.full((*self.scores.shape, len(self.levels)), np.nan, np.float32)
        columns = (self.rows[name] for name in ("method_at", "question_at", "curve", "levels"))
        for method, question, curve, levels in zip(*columns, strict=True):
            if curve is not None and levels is not None and tuple(levels) == self.levels and len(curve) == len(levels):
                array[method, question] = curve
        return array


def role_of(rows: pd.DataFrame) -> pd.Series:
    """Role of each row; an empty string if the image could not be read."""
    return rows.loc[:, "role"].astype(object).fillna("")


def split_sections(rows: pa.Table | pd.DataFrame, *, by_class: bool = True) -> list[ScoreSection]:
    """Group the rows of a store by model and dataset, in the order of the plan.

    Parameters
    ----------
    rows
        Result of `Store.table()`, or the same as a frame.
    by_class
        Whether predicted and true classes get separate sections if both were explained; a value over both would count
        most images twice. Other target classes of an image always share a section.

    Returns
    -------
    list of ScoreSection
    """
    sections: list[ScoreSection] = []
    for _, group in to_frame(rows).reset_index(drop=True).groupby(["model", "dataset"], sort=False):
        section = ScoreSection(str(group["model"].iloc[0]), str(group["dataset"].iloc[0]), "", group)
        roles: Sequence[str] = [role for role in role_of(group).unique() if role]
        split = by_class and set(roles) == {"predicted", "label"}
        sections += [section.of_role(role, role) for role in roles] if split else [section]
    return sections
