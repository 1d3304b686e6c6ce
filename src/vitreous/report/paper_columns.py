"""Columns of the published tables, and the values of a run that fill them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from typing import Any

import numpy as np

from vitreous.bench.scores import MetricScores, ScoreSection
from vitreous.bench.summary import summarise_metric
from vitreous.metrics.metric import resolve_metric

get_metric = lru_cache(maxsize=512)(resolve_metric)
EXPLAINED = {"Pred.": ("predicted", "top 1"), "GT": ("label",)}  # roles of the explained class


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A column of a published table.

    Parameters
    ----------
    title
        Title in the paper.
    metric, options
        Name of the metric, and options that it must have.
    explained
        "Pred." or "GT": whether the predicted or the true class is explained; empty for all targets.
    percent
        Whether fractions are shown in percent.
    """

    title: str
    metric: str
    options: tuple[tuple[str, Any], ...] = ()
    explained: str = ""
    percent: bool = False

    @property
    def name(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.options)
        spec = f"{self.metric}({options})" if options else self.metric
        classes = {"": "", "Pred.": " of the predicted class", "GT": " of the label"}
        return spec + classes[self.explained]

    def is_filled_by(self, metric: str) -> bool:
        """Whether a metric has the name and options of the column."""
        own = get_metric(metric)
        return own.name == self.metric and all(own.settings.get(key) == value for key, value in self.options)


BASELINES = {"Mean": "mean", "Blur": "blur", "Black": "black", "Rand": "random"}
# TokenTM, table 4
VARIANTS = {
    "tokentm(preset='baseline')": "Baseline",
    "tokentm(preset='af')": "+ AF",
    "tokentm(preset='af+l')": "+ AF + L",
    "tokentm": "+ AF + L + NECC",
    "tokentm(preset='full')": "+ AF + L + NECC",
}
SEGMENTATION = (
    PublishedColumn("Pix. Acc.", "pixel_accuracy", percent=True),
    PublishedColumn("mAP", "map_two_channel", percent=True),
    PublishedColumn("mIoU", "miou", percent=True),
)
# the paper does not say which class it explains in table 4: the predicted one, or the label if there is no other
PERTURBATION = {
    explained: [
        PublishedColumn(title, metric, explained=explained, percent=True)
        for title, metric in (("Neg.", "negative_auc"), ("Pos.", "positive_auc"))
    ]
    for explained in EXPLAINED
}
ACCURACY = [
    replace(column, title=f"{column.title} ({explained})")
    for explained, columns in PERTURBATION.items()
    for column in columns
]
INSERTION = {
    title: [PublishedColumn(word, metric, (("baseline", baseline),)) for word, baseline in BASELINES.items()]
    for title, metric in (
        ("Insertion", "insertion"),
        ("Deletion", "deletion"),
        ("Insertion - Deletion", "insertion_minus_deletion"),
    )
}
PROBABILITY = (PublishedColumn("AOPC", "aopc"), PublishedColumn("LOdds", "lodds"))
POINTING = (PublishedColumn("pointing game", "pointing_game"),)
SENSITIVITY = (PublishedColumn("max sensitivity", "max_sensitivity"),)
SPARSENESS = (PublishedColumn("sparseness", "sparseness"),)
STRENGTHS = (
    PublishedColumn("Deletion Accuracy", "deletion_accuracy", percent=True),
    PublishedColumn("Deletion AOPC", "deletion_aopc", percent=True),
    PublishedColumn("Insertion Accuracy", "insertion_accuracy", percent=True),
    PublishedColumn("Insertion AOPC", "insertion_aopc", percent=True),
    PublishedColumn("AP", "ap", percent=True),
)


@dataclass(frozen=True, slots=True)
class FilledColumn:
    """Values of all methods in a column of a published table.

    Parameters
    ----------
    title, name
        Title in the paper, and name of what fills it.
    values
        Value by method.
    higher
        Whether higher is better; None if the column does not judge.
    section
        Section that has the values.
    scores
        Scores of the explained classes that the values were computed from; None for a difference of two columns.
    scale
        Factor that the values were multiplied by.
    """

    title: str
    name: str
    values: Mapping[str, float]
    higher: bool | None
    section: ScoreSection
    scores: MetricScores | None = None
    scale: float = 1

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of every method; empty for a difference of two columns."""
        if self.scores is None:
            return {}
        entries = summarise_metric(self.scores).entries
        return {entry.method: (entry.low * self.scale, entry.high * self.scale) for entry in entries}


def fill_column(section: ScoreSection, published: PublishedColumn) -> FilledColumn | None:
    """Fill a column with the values of a section; None if the section does not have them."""
    roles = [role for role in EXPLAINED.get(published.explained, section.roles) if role in section.roles]
    own = section.of_role(roles[0]) if len(roles) == 1 < len(section.roles) else section
    scores = next((scores for scores in own.metrics if published.is_filled_by(scores.metric)), None)
    if scores is None or not roles:
        return fill_difference(section, published) if published.metric == "insertion_minus_deletion" else None
    reduced = np.asarray(scores.reduce(scores.parts), float)
    if np.isnan(reduced).all():
        return None
    is_fraction = get_metric(scores.metric).settings.get("show", "fraction") == "fraction"
    scale = 100 if published.percent and is_fraction else 1
    values = dict(zip(own.methods, (reduced * scale).tolist(), strict=True))
    return FilledColumn(published.title, published.name, values, scores.higher_is_better, own, scores, scale)


def fill_difference(section: ScoreSection, published: PublishedColumn) -> FilledColumn | None:
    """Compute insertion − deletion if a section has both with the same baseline, otherwise None."""
    metrics = ("insertion", "deletion")
    into, out = (fill_column(section, PublishedColumn("", metric, published.options)) for metric in metrics)
    if into is None or out is None or (into.higher, out.higher) != (True, False):
        return None
    differences = {method: value - out.values.get(method, nan) for method, value in into.values.items()}
    return FilledColumn(published.title, published.name, differences, True, section)
