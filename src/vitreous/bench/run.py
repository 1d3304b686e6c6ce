"""Compute the rows of one cell. Images are read once, maps are computed once, and only missing rows are computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import torch

from vitreous.bench.code_record import format_code, identify_reader, identify_score
from vitreous.bench.keys import hash_key
from vitreous.bench.labelled_batch import LabelledBatch, prepare_batch
from vitreous.bench.model_options import LoadedModel, load_cached
from vitreous.bench.work_cells import Outcome, PlanJob, ResultColumn, WorkCell, open_cached
from vitreous.bench.worker import compute, format_error
from vitreous.capture.precision import computing, effective_precision
from vitreous.core.code_identity import CodeIdentity
from vitreous.data import Dataset, batches
from vitreous.explanation import precision_of
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox

if TYPE_CHECKING:
    from vitreous.bench.plan import Plan

KEY_PRECISION = {"bf16": "bf16 products"}  # rows of "bf16" were computed with bfloat16 weights before 0.2


def run_cell(job: PlanJob, cell: WorkCell) -> Iterator[Outcome]:
    """Compute all rows of a cell whose keys are not in `job.known`.

    Errors of single images, methods and metrics become rows with an error message; they do not stop the cell.

    Yields
    ------
    Outcome
        Incomplete ones with the rows of a method and metric each, then a complete one with the listing of the cell.
    """
    job.check_code()
    plan, model, data = job.plan, job.plan.models[cell.model], job.plan.datasets[cell.dataset]
    loaded, dataset = load_cached(model, plan.precision, job.device or plan.device), open_cached(data)
    outcome = Outcome(cell, model.label, data.label)
    outcome.places = {dataset.keys[place]: place for place in cell.places}
    # predictions and metrics are not computed in bfloat16
    precision = effective_precision(map_precision(plan), loaded.vit, "tf32")
    with torch.inference_mode(False), computing(precision, loaded.vit.device):
        run = CellRun(job, loaded, dataset, outcome, identify_reader(data.spec))
        for _ in run.run_places(cell.places, plan.batch_size or plan.slice):
            yield outcome.take_rows()
    yield outcome


def map_precision(plan: Plan) -> str | None:
    """Precision of the maps, as for `explain`; None if the weights are converted instead."""
    return None if plan.precision == "float64" else plan.precision


@dataclass(frozen=True, eq=False)
class CellRun:
    """The computation of one cell.

    Parameters
    ----------
    job
        The plan, and the keys of rows that are known.
    loaded
        The model with the hash of its weights and its code.
    dataset
        The dataset of the cell.
    outcome
        Result, to which rows are appended.
    dataset_code
        Code of the dataset's reader.
    """

    job: PlanJob
    loaded: LoadedModel
    dataset: Dataset
    outcome: Outcome
    dataset_code: tuple[CodeIdentity, ...] = ()
    _code: dict[tuple[int, bool], str] = field(default_factory=dict)

    @property
    def vit(self) -> BlackBox:
        return self.loaded.vit

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        return self.job.columns[self.outcome.work_cell.dataset]

    def run_places(self, places: Sequence[int], size: int) -> Iterator[None]:
        """Compute images in batches of `size`; if a batch fails as a whole, its images are computed one by one.

        It stops after every metric, where the rows so far may be taken.
        """
        evaluation, preprocess = self.job.plan.evaluations[self.outcome.work_cell.dataset], self.vit.preprocess
        assert preprocess is not None
        if evaluation.preprocess is not None:
            preprocess = Preprocess.published(evaluation.preprocess, preprocess)
        # threads read images ahead unless the model itself runs on the CPU
        ahead = 0 if self.vit.device.type == "cpu" else None
        for batch in batches(self.dataset, preprocess, places, size, workers=ahead):
            self.outcome.skipped += len(batch.skipped)
            for image_key, message in batch.failures:
                self.append_unreadable(image_key, message)
            if not len(batch):
                continue
            own = [self.outcome.places[image_key] for image_key in batch.keys]
            try:
                subject, unfit = prepare_batch(self.vit, batch, own, evaluation.targets)
            except Exception as problem:  # noqa: BLE001 - one image must not stop the run
                if len(batch) > 1:
                    yield from self.run_places(own, 1)
                else:
                    self.append_unreadable(batch.keys[0], format_error(problem))
                continue
            for image_key, message in unfit:
                self.append_unreadable(image_key, message)
            if subject is not None:
                yield from self.run_batch(subject)

    def run_batch(self, subject: LabelledBatch) -> Iterator[None]:
        """Group images by the results that they still lack, and compute each group."""
        per_image = subject.targets_per_image
        keys = [[self.row_key(subject, row, column) for column in self.columns] for row in range(subject.rows)]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, name in enumerate(subject.keys):
            own = keys[index * per_image : (index + 1) * per_image]
            self.outcome.listed[name] = [
                (role, int(subject.labels[index]), [key for key in row if key])
                for role, row in zip(subject.roles, own, strict=True)
            ]
            missing = tuple(
                place
                for place in range(len(self.columns))
                if any(row[place] and row[place] not in self.job.keys for row in own)
            )
            # predicted and true class are the same
            one_class = per_image > 1 and len(set(subject.targets[index].tolist())) == 1
            groups.setdefault((bool(subject.labelled[index]), one_class, missing), []).append(index)
        for (_, one_class, missing), indices in groups.items():
            if not missing:
                continue
            part = subject.only(indices, [0] if one_class else None)
            rows = [keys[index * per_image : (index + 1) * per_image] for index in indices]
            if one_class:  # compute one row and use the key of whichever role needs the result
                part_keys = [
                    [next(filter(None, of_column), "") for of_column in zip(*own, strict=True)] for own in rows
                ]
            else:
                part_keys = [row for own in rows for row in own]
            yield from self.run_group(part, missing, part_keys)

    def run_group(self, batch: LabelledBatch, missing: Sequence[int], keys: Sequence[Sequence[str]]) -> Iterator[None]:
        """Compute the missing results of images that lack the same ones: every method once, followed by its metrics."""
        plan = self.job.plan
        for method, group in groupby(missing, lambda place: self.columns[place].method):
            places = list(group)
            metrics = [self.columns[place].metric for place in places]
            results = compute(batch, method, metrics, plan.question, map_precision(plan))
            for place, fragments in zip(places, results, strict=True):
                column = self.columns[place]
                for row, fragment in enumerate(fragments):
                    if keys[row][place]:
                        evidence = batch.evidence(row, column.metric)
                        about = {"key": keys[row][place], "evidence": evidence, **batch.about(row), **fragment}
                        self.append_row(column, about)
                yield

    def append_row(self, column: ResultColumn, columns: dict[str, Any]) -> None:
        """Append a row with its provenance to the outcome, and its error message to the outcome's failures."""
        row = {
            "error": None,
            "model": self.outcome.model,
            "dataset": self.outcome.dataset,
            "method": column.spec,
            "evidence": "",
            "device": str(self.vit.device),
            "torch": torch.__version__,
            **self.provenance(column),
            **columns,
        }
        if column.metric is not None:
            metric = {"metric": column.metric.spec, "higher_is_better": column.metric.higher_is_better}
            row = {"value": math.nan, **metric, **row}
        self.outcome.rows[column.kind].append(row)
        if row["error"] is not None:
            self.outcome.failed.append(f"{row['method']} on {self.outcome.model}: {row['error']}")

    def append_unreadable(self, image_key: str, message: str) -> None:
        """Append a row with an error for every result of an image that could not be read or has no valid target."""
        index = self.outcome.places[image_key]
        where = {"image": image_key, "index": index, "target": -1, "label": -1, "predicted": -1}
        before, keys = len(self.outcome.failed), []
        for column in self.columns:
            own = hash_key(
                dataset=self.outcome.dataset,
                image=image_key,
                weights=self.loaded.weights,
                method=column.method_id,
                metric=column.metric_id,
            )
            keys.append(own)
            self.append_row(column, {"key": own, "error": message, **where})
        self.outcome.listed[image_key] = [("", -1, keys)]
        self.outcome.failed[before:] = [message]

    def provenance(self, column: ResultColumn) -> dict[str, str]:
        """What determines a result beside the image: weights, code, score function, precision of the map, version."""
        import vitreous

        plan = self.job.plan
        question = column.method.chosen_question(plan.question, scalar=self.vit.scalar)
        return {
            "weights": self.loaded.weights,
            "code": self.format_code(column, with_dataset=True),
            "question": cast("str", question),  # plans and registered methods name their score functions
            # may be a higher one than the plan's
            "precision": precision_of(column.method, self.vit, map_precision(plan)) or plan.precision,
            "vitreous": vitreous.__version__,
        }

    def format_code(self, column: ResultColumn, *, with_dataset: bool) -> str:
        """JSON text of the code that computes a result; keys are without that of the dataset, whose pixels they have."""
        key = (id(column), with_dataset)
        if key not in self._code:
            question = column.method.chosen_question(self.job.plan.question, scalar=self.vit.scalar)
            parts = {**column.code, "score": identify_score(question), "model": self.loaded.code}
            self._code[key] = format_code(**parts, dataset=self.dataset_code if with_dataset else ())
        return self._code[key]

    def row_key(self, subject: LabelledBatch, row: int, column: ResultColumn) -> str:
        """Key of a row and column; an empty string if the column is not computed for the role of the row's target."""
        if column.roles and subject.roles[row % subject.targets_per_image] not in column.roles:
            return ""
        provenance = self.provenance(column)
        precision = KEY_PRECISION.get(provenance["precision"], provenance["precision"])
        return hash_key(
            **{**provenance, "precision": precision, "code": self.format_code(column, with_dataset=False)},
            model=self.loaded.structure,
            pixels=subject.pixels[row // subject.targets_per_image],
            target=str(int(subject.targets.flatten()[row])),
            method=column.method_id,
            metric=column.metric_id,
            evidence=subject.evidence(row, column.metric),
        )
