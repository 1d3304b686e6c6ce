"""Input and output of workers: the job that is sent to them, and the outcome of each cell that they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch

from vitreous.bench.keys import hash_identity, hash_weights
from vitreous.bench.model_options import load_model
from vitreous.bench.plan import Evaluation, ModelSpec, Plan
from vitreous.bench.work_cells import WorkCell, stamp_file
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.model import BlackBox


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model and the hash of its weights."""

    vit: BlackBox
    weights: str


def load_cached(model: ModelSpec, precision: str, device: str | None) -> LoadedModel:
    """Load a model; the last two are cached per process, until the checkpoint or the file of class names changes."""
    files = (model.checkpoint, dict(model.arguments).get("classes"))
    return load_hashed(model, precision, device, "; ".join(map(stamp_file, files)))


@lru_cache(maxsize=2)
def load_hashed(model: ModelSpec, precision: str, device: str | None, stamps: str) -> LoadedModel:
    """Load a model; its weights are hashed before they are converted to `precision`."""
    vit = load_model(model.name, model.checkpoint, model.pretrained, device, dict(model.arguments))
    weights = hash_weights(vit.module)
    vit.module.to(torch.float64 if precision == "float64" else torch.float32)
    return LoadedModel(vit, weights)


@dataclass(frozen=True, eq=False)
class ResultColumn:
    """One result that is computed for every row: a metric of a method's map, or the map itself.

    Parameters
    ----------
    method
        The method.
    metric
        The metric; None for the map itself.
    method_id, metric_id
        Hashes of method and metric with all their options.
    roles
        Roles of the targets for which the result is computed; all if empty.
    """

    method: Method
    metric: Metric | None
    method_id: str
    metric_id: str
    roles: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of rows in the store: "maps" or "scores"."""
        return "maps" if self.metric is None else "scores"

    @cached_property
    def spec(self) -> str:
        """Spec of the method; cached since every row contains it."""
        return self.method.spec


@dataclass(frozen=True, eq=False)
class PlanJob:
    """A plan and the keys of rows that are already known, as sent to workers.

    Parameters
    ----------
    plan
        The plan.
    known
        Keys of known rows, 16 bytes each, concatenated.
    device
        Device to use in place of the plan's; None for the plan's.
    """

    plan: Plan
    known: bytes = b""
    device: str | None = None

    @cached_property
    def keys(self) -> frozenset[str]:
        """Known keys as hexadecimal strings."""
        return frozenset(self.known[at : at + 16].hex() for at in range(0, len(self.known), 16))

    @cached_property
    def columns(self) -> tuple[tuple[ResultColumn, ...], ...]:
        """All results to compute on every dataset, grouped by method; the map comes first if the plan keeps maps."""
        return tuple(self.list_columns(evaluation) for evaluation in self.plan.evaluations)

    def list_columns(self, evaluation: Evaluation) -> tuple[ResultColumn, ...]:
        """Results to compute for one evaluation."""
        roles = evaluation.roles or ((),) * len(evaluation.metrics)
        metrics = [(resolve_metric(spec), own) for spec, own in zip(evaluation.metrics, roles, strict=True)]
        metrics_and_roles = [*([(None, ())] if self.plan.maps else []), *metrics]
        return tuple(
            ResultColumn(method, metric, hash_identity(method), hash_identity(metric), own)
            for method in map(resolve, self.plan.methods)
            for metric, own in metrics_and_roles
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "known": self.known, "device": self.device}


@dataclass(slots=True)
class Outcome:
    """Result of a cell.

    Parameters
    ----------
    work_cell
        The cell.
    model, dataset
        Labels.
    rows
        New rows by kind ("scores" or "maps").
    listed
        Role, label and row keys of every image, keys that were known before included.
    places
        Index of every image in its dataset, by image key.
    failed
        Error messages, one sentence each.
    skipped
        Number of images that the protocol leaves out.
    seconds
        Time that the cell took.
    """

    work_cell: WorkCell
    model: str
    dataset: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"scores": [], "maps": []})
    listed: dict[str, list[tuple[str, int, list[str]]]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    seconds: float = 0.0

    @property
    def cell(self) -> int:
        return self.work_cell.number

    @property
    def image_count(self) -> int:
        return len(self.work_cell.places)

    @property
    def listing(self) -> dict[str, Any]:
        """Labels and row keys of the cell as JSON values, as the store keeps them."""
        rows = [
            (image_key, place, *row)
            for image_key, place in self.places.items()
            for row in self.listed.get(image_key, ())
        ]
        return {"model": self.model, "dataset": self.dataset, "rows": rows, "failed": bool(self.failed)}
