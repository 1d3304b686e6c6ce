"""What travels to whoever runs cells, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch

from vitreous.bench.cells import Cell, stamp
from vitreous.bench.keys import hash_of_weights, identity
from vitreous.bench.model_options import load_model
from vitreous.bench.plan import ModelSpec, Plan
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.vit import ViT

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    vit: ViT
    weights: str


def loaded(model: ModelSpec, precision: str, device: str | None) -> Loaded:
    """Load a model once per process, or again when its checkpoint or its file of class names has changed."""
    files = (model.checkpoint, dict(model.arguments).get("classes"))
    return as_stored(model, precision, device, "; ".join(map(stamp, files)))


@lru_cache(maxsize=2)
def as_stored(model: ModelSpec, precision: str, device: str | None, stamp: str) -> Loaded:
    """The weights are hashed as they were stored."""
    vit = load_model(model.name, model.checkpoint, model.pretrained, device, dict(model.arguments))
    weights = hash_of_weights(vit.module)
    vit.module.to(DTYPES[precision])
    return Loaded(vit, weights)


@dataclass(frozen=True, eq=False)
class Column:
    """What is wanted of every row: a metric of a method's map, or with no metric the map."""

    method: Method
    metric: Metric | None
    method_id: str
    metric_id: str
    roles: tuple[str, ...] = ()  # of targets that it is wanted for; none: all

    @property
    def kind(self) -> str:
        return "maps" if self.metric is None else "scores"

    @cached_property
    def spec(self) -> str:
        """Of the method, as every row says it."""
        return self.method.spec


@dataclass(frozen=True, eq=False)
class Job:
    """A plan and what is known already; it travels to whoever runs cells."""

    plan: Plan
    known: bytes = b""  # keys, 16 bytes each
    device: str | None = None  # in place of the plan's

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(self.known[at : at + 16].hex() for at in range(0, len(self.known), 16))

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        roles = self.plan.roles or ((),) * len(self.plan.metrics)
        metrics = [(resolve_metric(spec), own) for spec, own in zip(self.plan.metrics, roles, strict=True)]
        wanted = [*([(None, ())] if self.plan.maps else []), *metrics]
        return tuple(
            Column(method, metric, identity(method), identity(metric), own)
            for method in map(resolve, self.plan.methods)
            for metric, own in wanted
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "known": self.known, "device": self.device}


@dataclass(slots=True)
class Outcome:
    """What a cell came to: its new rows by kind, and the keys that it is made of, known ones included."""

    at: Cell
    model: str
    dataset: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"scores": [], "maps": []})
    listed: dict[str, list[tuple[str, int, list[str]]]] = field(default_factory=dict)  # picture → role, label, keys
    places: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # one sentence each
    skipped: int = 0  # pictures that the protocol leaves out
    seconds: float = 0.0

    @property
    def cell(self) -> int:
        return self.at.number

    @property
    def pictures(self) -> int:
        return len(self.at.places)

    @property
    def listing(self) -> dict[str, Any]:
        rows = [
            (picture, place, *row) for picture, place in self.places.items() for row in self.listed.get(picture, ())
        ]
        return {"model": self.model, "dataset": self.dataset, "rows": rows, "failed": bool(self.failed)}
