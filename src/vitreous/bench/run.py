"""Compute the rows of one cell. Images are read once, maps are computed once, and only missing rows are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from vitreous.bench.keys import hash_key
from vitreous.bench.labelled_batch import LabelledBatch, prepare_batch
from vitreous.bench.plan import Plan
from vitreous.bench.work_cells import WorkCell, open_cached
from vitreous.bench.worker import compute, error_sentence, failure_columns
from vitreous.bench.worker_job import Loaded, Outcome, PlanJob, ResultColumn, load_cached
from vitreous.capture.precision import computing, effective_precision
from vitreous.data import batches
from vitreous.explanation import precision_of
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox

KEY_PRECISION = {"bf16": "bf16 products"}  # rows of "bf16" were computed with bfloat16 weights before 0.2


def run_cell(job: PlanJob, cell: WorkCell) -> Outcome:
    """Compute all rows of a cell whose keys are not in `job.known`.

    Errors of single images, methods and metrics become rows with an error message; they do not stop the cell.
    """
    begun = time.perf_counter()
    plan, data = job.plan, job.plan.datasets[cell.dataset]
    outcome = Outcome(cell, plan.models[cell.model].label, data.label)
    have = load_cached(plan.models[cell.model], plan.precision, job.device or plan.device)
    dataset = open_cached(data)
    outcome.places = {dataset.keys[place]: place for place in cell.places}
    with torch.inference_mode(False), computing(base_precision(plan, have.vit), have.vit.device):
        run_places(job, have, cell.places, plan.batch_size or plan.slice, outcome)
    outcome.seconds = time.perf_counter() - begun
    return outcome


def map_precision(plan: Plan) -> str | None:
    """Precision of the maps, as for `explain`; None if the weights are converted instead."""
    return None if plan.precision == "float64" else plan.precision


def base_precision(plan: Plan, vit: BlackBox) -> str | None:
    """Precision of predictions and metrics, which are not computed in bfloat16."""
    return effective_precision(map_precision(plan), vit, "tf32")


def row_precision(job: PlanJob, have: Loaded, column: ResultColumn) -> str:
    """Precision that the map of a column is computed in, which may be a higher one than the plan's."""
    return precision_of(column.method, have.vit, map_precision(job.plan)) or job.plan.precision


def run_places(job: PlanJob, have: Loaded, places: Sequence[int], size: int, outcome: Outcome) -> None:
    """Compute images in batches of `size`; if a batch fails as a whole, its images are computed one by one."""
    dataset, preprocess = open_cached(job.plan.datasets[outcome.at.dataset]), have.vit.preprocess
    assert preprocess is not None
    evaluation = job.plan.evaluations[outcome.at.dataset]
    if evaluation.preprocess is not None:
        preprocess = Preprocess.published(evaluation.preprocess, preprocess)
    # threads read images ahead unless the model itself runs on the CPU
    ahead = 0 if have.vit.device.type == "cpu" else None
    for batch in batches(dataset, preprocess, places, size, workers=ahead):
        outcome.skipped += len(batch.skipped)
        for image_key, message in batch.failures:
            append_unreadable(job, have, outcome, image_key, message)
        if not len(batch):
            continue
        own = [outcome.places[image_key] for image_key in batch.keys]
        try:
            subject, unfit = prepare_batch(have.vit, batch, own, evaluation.targets)
        except Exception as problem:  # noqa: BLE001 - one image must not stop the run
            if len(batch) > 1:
                run_places(job, have, own, 1, outcome)
            else:
                append_unreadable(job, have, outcome, batch.keys[0], error_sentence(problem))
            continue
        for image_key, message in unfit:
            append_unreadable(job, have, outcome, image_key, message)
        if subject is not None:
            run_batch(job, have, subject, outcome)


def run_batch(job: PlanJob, have: Loaded, subject: LabelledBatch, outcome: Outcome) -> None:
    """Group images by the results that they still lack, and compute each group."""
    share, columns = subject.share, job.columns[outcome.at.dataset]
    keys = [[row_key(job, have, subject, row, column) for column in columns] for row in range(subject.rows)]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, name in enumerate(subject.keys):
        own = keys[index * share : (index + 1) * share]
        outcome.listed[name] = [
            (role, int(subject.labels[index]), [text for text in row if text])
            for role, row in zip(subject.roles, own, strict=True)
        ]
        missing = tuple(
            place for place in range(len(columns)) if any(row[place] and row[place] not in job.keys for row in own)
        )
        # predicted and true class are the same
        one_class = share > 1 and len(set(subject.targets[index].tolist())) == 1
        groups.setdefault((bool(subject.labelled[index]), one_class, missing), []).append(index)
    for (_, one_class, missing), indices in groups.items():
        if not missing:
            continue
        part = subject.only(indices, [0] if one_class else None)
        part_keys = [keys[index * share + column] for index in indices for column in range(share)]
        if one_class:  # compute one row and use the key of whichever role needs the result
            part_keys = [
                [
                    next(filter(None, keys_of_column), "")
                    for keys_of_column in zip(*part_keys[at : at + share], strict=True)
                ]
                for at in range(0, len(part_keys), share)
            ]
        run_group(job, have, part, missing, part_keys, outcome)


def run_group(
    job: PlanJob,
    have: Loaded,
    batch: LabelledBatch,
    missing: Sequence[int],
    keys: Sequence[Sequence[str]],
    outcome: Outcome,
) -> None:
    """Compute the missing results of images that lack the same ones: every method once, followed by its metrics."""
    columns = job.columns[outcome.at.dataset]
    for method, places in groupby(missing, lambda place: columns[place].method):
        column_places = list(places)
        fragments_by_column = compute(
            batch,
            method,
            [columns[place].metric for place in column_places],
            job.plan.question,
            map_precision(job.plan),
        )
        for place, fragments in zip(column_places, fragments_by_column, strict=True):
            column = columns[place]
            for row, fragment in enumerate(fragments):
                if keys[row][place]:
                    about = {"key": keys[row][place], **batch.about(row), **fragment}
                    append_row(job, have, outcome, column, about, batch.evidence(row, column.metric))


def append_row(
    job: PlanJob, have: Loaded, outcome: Outcome, column: ResultColumn, columns: dict[str, Any], evidence: str
) -> None:
    """Append a row with its provenance to the outcome, and its error message to the outcome's failures."""
    import vitreous

    row = {
        "error": None,
        "model": outcome.model,
        "dataset": outcome.dataset,
        "method": column.spec,
        "question": column.method.chosen_question(job.plan.question, scalar=have.vit.scalar),
        "weights": have.weights,
        "evidence": evidence,
        "precision": row_precision(job, have, column),
        "device": str(have.vit.device),
        "vitreous": vitreous.__version__,
        "torch": torch.__version__,
        **columns,
    }
    if column.metric is not None:
        row = {"metric": column.metric.spec, "higher_is_better": column.metric.higher_is_better, **row}
    else:
        row.pop("value", None)
    outcome.rows[column.kind].append(row)
    if row["error"] is not None:
        outcome.failed.append(f"{row['method']} on {outcome.model}: {row['error']}")


def append_unreadable(job: PlanJob, have: Loaded, outcome: Outcome, image_key: str, message: str) -> None:
    """Append a row with an error for every result of an image that could not be read or has no valid target."""
    where = {"picture": image_key, "index": outcome.places[image_key], "target": -1, "label": -1, "predicted": -1}
    before, keys = len(outcome.failed), []
    for column in job.columns[outcome.at.dataset]:
        own = hash_key(
            dataset=outcome.dataset,
            picture=image_key,
            weights=have.weights,
            method=column.method_id,
            metric=column.metric_id,
        )
        keys.append(own)
        append_row(job, have, outcome, column, {"key": own, **where, **failure_columns(message)}, "")
    outcome.listed[image_key] = [("", -1, keys)]
    outcome.failed[before:] = [message]


def row_key(job: PlanJob, have: Loaded, subject: LabelledBatch, row: int, column: ResultColumn) -> str:
    """Key of a row and column; an empty string if the column is not computed for the role of the row's target."""
    import vitreous

    if column.roles and subject.roles[row % subject.share] not in column.roles:
        return ""
    precision = row_precision(job, have, column)
    return hash_key(
        weights=have.weights,
        pixels=subject.pixels[row // subject.share],
        target=str(int(subject.targets.flatten()[row])),
        method=column.method_id,
        metric=column.metric_id,
        evidence=subject.evidence(row, column.metric),
        question=column.method.chosen_question(job.plan.question, scalar=have.vit.scalar),
        precision=KEY_PRECISION.get(precision, precision),
        vitreous=vitreous.__version__,
    )
