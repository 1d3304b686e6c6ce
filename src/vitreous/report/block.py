"""A run as arrays: for every model and data set, methods × questions, metric by metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from vitreous.bench.summary import Column as Summary
from vitreous.bench.summary import summarise
from vitreous.metrics.metric import Reducer, resolve_metric

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Question:
    """One picture and the class that was explained."""

    picture: str
    index: int
    target: int
    name: str
    role: str
    label: int
    predicted: int
    probability: float

    @property
    def key(self) -> tuple[str, int]:
        return self.picture, self.target


@dataclass(frozen=True, eq=False)
class Column:
    """One metric of every method and question; NaN where it is undefined."""

    metric: str
    higher: bool | None
    parts: Mapping[str, Float[np.ndarray, "m q"]]  # "score" and what a reducer pools
    curve: Float[np.ndarray, "m q s"] | None = None
    levels: tuple[float, ...] = ()
    seconds: Float[np.ndarray, "m q"] | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> Float[np.ndarray, "m q"]:
        return self.parts["score"]

    @property
    def sign(self) -> int:
        """1 where more is better, −1 where less is, 0 where it does not judge."""
        return {True: 1, False: -1, None: 0}[self.higher]

    @cached_property
    def reduce(self) -> Reducer:
        """How rows become the figure of a set."""
        return resolve_metric(self.metric).reduce


@dataclass(frozen=True, eq=False)
class Block:
    """A model on a data set."""

    model: str
    dataset: str
    methods: tuple[str, ...]
    questions: tuple[Question, ...]
    columns: tuple[Column, ...]
    map_seconds: Float[np.ndarray, "m q"]
    peak_mib: Float[np.ndarray, "m q"]
    failures: Mapping[str, int]  # sentence → rows
    provenance: Mapping[str, tuple[str, ...]]
    rows: pa.Table
    explained: str = ""  # the class, where predicted and true ones were both asked about: these are blocks of their own

    @cached_property
    def clusters(self) -> tuple[np.ndarray, ...]:
        """Places of the questions about one picture, picture by picture: they are drawn together."""
        held: dict[str, list[int]] = {}
        for place, question in enumerate(self.questions):
            held.setdefault(question.picture, []).append(place)
        return tuple(np.array(places) for places in held.values())

    @property
    def title(self) -> str:
        said = {"": "", "predicted": ", the predicted class explained", "label": ", the true class explained"}
        return f"{self.model} on {self.dataset}{said[self.explained]}"

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Figures by metric."""
        return {one.metric: one for one in summarise(self.rows)}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.role for question in self.questions))


@dataclass(frozen=True, eq=False)
class Run:
    """What a run came to, and how."""

    folder: Path
    name: str
    plan: str  # TOML
    made: float
    about: Mapping[str, Any]
    blocks: tuple[Block, ...]
    wholes: tuple[Block, ...]  # the same, whichever class was explained
    maps: pa.Table | None = None
