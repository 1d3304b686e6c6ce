"""Cells: the units of work of a plan, each one model on a fixed slice of the images of one dataset.

The cells depend on the plan and its datasets only, not on the executor that runs them. Workers get a `PlanJob` and
return one `Outcome` per cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from vitreous.bench.code_record import find_own_module, format_plan_code
from vitreous.bench.keys import hash_identity
from vitreous.bench.model_options import load_cached, stamp_file
from vitreous.bench.plan_source import parse_fraction
from vitreous.core.code_identity import CodeIdentity, identify_code
from vitreous.core.digests import digest
from vitreous.core.errors import DataError, SpecError
from vitreous.core.plugins import reduce_with_plugins
from vitreous.data import Dataset, open_dataset, read_subset, subset
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import Metric, resolve_metric

if TYPE_CHECKING:
    from vitreous.bench.plan import DataSpec, Evaluation, ModelSpec, Plan


@dataclass(frozen=True, slots=True)
class WorkCell:
    """All methods and metrics of the plan, for one model, on some images of one dataset.

    Parameters
    ----------
    number
        Number of the cell in the plan, from 0.
    model, dataset
        Indices into `Plan.models` and `Plan.datasets`.
    places
        Indices of the images in the dataset.
    """

    number: int
    model: int
    dataset: int
    places: tuple[int, ...]


@lru_cache(maxsize=8)
def open_cached(data: DataSpec) -> Dataset:
    """Open a dataset; the last eight are cached per process."""
    return open_dataset(data.spec)


def split_plan(plan: Plan) -> list[WorkCell]:
    """Split a plan into cells of at most `plan.slice` images.

    A plan with more images or methods has the same slices and further ones.
    """
    cells: list[WorkCell] = []
    places = [choose_places(data, evaluation) for data, evaluation in zip(plan.datasets, plan.evaluations, strict=True)]
    for model, spec in enumerate(plan.models):
        for dataset, data in enumerate(plan.datasets):
            if data.models and spec.label not in data.models:
                continue
            for start in range(0, len(places[dataset]), plan.slice):
                cells.append(WorkCell(len(cells), model, dataset, places[dataset][start : start + plan.slice]))
    return cells


def choose_places(data: DataSpec, evaluation: Evaluation) -> tuple[int, ...]:
    """Indices of the images of a dataset that are used.

    Returns
    -------
    tuple of int
        All images of the dataset (or of its `part`, or of the file `subset`) if `evaluation.images` is None; otherwise
        the first of them in the order of the subset, or of a permutation that depends on `evaluation.seed`, or of the
        dataset's own order if the seed is None.

    Raises
    ------
    SpecError
        If the dataset has fewer images than the plan asks for.
    DataError
        If the file `subset` cannot be read or lists an image that the dataset does not have.
    """
    dataset, count = open_cached(data), evaluation.images
    if data.subset is None and not data.part:
        return tuple(range(len(dataset))) if count is None else subset(dataset, count, evaluation.seed)
    if data.subset is not None:
        places: Sequence[int] = read_subset(dataset, data.subset)
    else:
        places = range(len(dataset)) if count is None else subset(dataset, None, evaluation.seed)
    if data.part:
        number, parts = parse_fraction(data.part, "part =")
        places = [place for place in places if place % parts == number - 1]
    if not 0 < (len(places) if count is None else count) <= len(places):
        source = f"part {data.part} of {dataset.name}" if data.part else f"'{data.subset}'"
        raise SpecError(f"{source} has {len(places)} images, so {count} cannot be chosen")
    return tuple(places[:count])


def fingerprint_cells(plan: Plan, cells: Sequence[WorkCell]) -> dict[int, str]:
    """Fingerprint of every cell by number: its images (index and key), the stamp of the checkpoint file, and the code.

    A finished cell is looked at again if its fingerprint has changed, for example because images were added to the
    folder, the checkpoint was overwritten or a method was edited; rows whose keys are known are not computed again.
    """
    code = format_plan_code(plan).encode()
    weights = [stamp_weights(model, plan) for model in plan.models]
    fingerprints = {}
    for cell in cells:
        keys = open_cached(plan.datasets[cell.dataset]).keys
        image_lines = [f"{place} {keys[place]}" for place in cell.places]
        fingerprints[cell.number] = digest(
            code, weights[cell.model].encode(), *(line.encode() for line in image_lines), size=8
        )
    return fingerprints


def stamp_weights(model: ModelSpec, plan: Plan) -> str:
    """Stamp of the checkpoint file; the hash of the weights of a model that a module of the user builds in its own way."""
    if find_own_module(model.name) is None:
        return stamp_file(model.checkpoint)
    return load_cached(model, plan.precision, plan.device).weights


def select_shard(cells: Sequence[WorkCell], shard: str) -> list[WorkCell]:
    """Cells of one shard: "2/8" selects every eighth cell, starting with the second.

    Raises
    ------
    SpecError
        If `shard` is not of the form i/n with 1 ≤ i ≤ n.
    """
    number, count = parse_fraction(shard, "--shard")
    return [cell for cell in cells if cell.number % count == number - 1]


# ── jobs and outcomes ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class ResultColumn:
    """One result that is computed for every row: a metric of a method's map, or the map itself.

    Parameters
    ----------
    method
        The method.
    metric
        The metric; None for the map itself.
    roles
        Roles of the targets for which the result is computed; all if empty.
    """

    method: Method
    metric: Metric | None
    roles: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of rows in the store: "maps" or "scores"."""
        return "maps" if self.metric is None else "scores"

    @cached_property
    def code(self) -> dict[str, tuple[CodeIdentity, ...]]:
        """Identities of the method's and the metric's code."""
        return {"method": identify_code(self.method), "metric": identify_code(self.metric)}

    @cached_property
    def method_id(self) -> str:
        """Hash of the method with all its options."""
        return hash_identity(self.method)

    @cached_property
    def metric_id(self) -> str:
        """Hash of the metric with all its options; empty for the map itself."""
        return hash_identity(self.metric)

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
    code
        Result of `format_plan_code` where the run was started; None to accept the code of every worker.
    """

    plan: Plan
    known: bytes = b""
    device: str | None = None
    code: str | None = None

    def check_code(self) -> None:
        """Raise `DataError` if this process has other code than the one that started the run."""
        if self.code is not None and not self._has_same_code:
            raise DataError(
                "the code of a method, metric, model or dataset is not the one that the run began with; it was edited, or a "
                "node has another version. Run the same command again"
            )

    @cached_property
    def _has_same_code(self) -> bool:
        return format_plan_code(self.plan) == self.code

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
            ResultColumn(method, metric, own)
            for method in map(resolve, self.plan.methods)
            for metric, own in metrics_and_roles
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_with_plugins(PlanJob, self.plan, self.known, self.device, self.code)


@dataclass(slots=True)
class Outcome:
    """Result of a cell, or a part of its rows before it is finished.

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
    is_complete
        Whether the cell is finished; otherwise the outcome has rows only, and more follow.
    """

    work_cell: WorkCell
    model: str
    dataset: str
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"scores": [], "maps": []})
    listed: dict[str, list[tuple[str, int, list[str]]]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    is_complete: bool = True

    def take_rows(self) -> Outcome:
        """An incomplete outcome with the rows so far, which are removed from this one."""
        part = Outcome(self.work_cell, self.model, self.dataset, self.rows, is_complete=False)
        self.rows = {kind: [] for kind in self.rows}
        return part

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
