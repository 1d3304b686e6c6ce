"""Compute the rows of one cell. Images are read once, maps are computed once, and only missing rows are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from vitreous.bench.keys import key_of
from vitreous.bench.labelled_batch import Subject, subject_of
from vitreous.bench.plan import Plan
from vitreous.bench.work_cells import Cell, opened
from vitreous.bench.worker import compute, failure, sentence
from vitreous.bench.worker_job import Column, Job, Loaded, Outcome, loaded
from vitreous.capture.precision import computing, effective_precision
from vitreous.data import batches
from vitreous.explanation import precision_of
from vitreous.models.image_input import Preprocess
from vitreous.models.model import BlackBox

KEY_PRECISION = {"bf16": "bf16 products"}  # rows of "bf16" were computed with bfloat16 weights before 0.2


def run_cell(job: Job, cell: Cell) -> Outcome:
    """Compute all rows of a cell whose keys are not in `job.known`.

    Errors of single images, methods and metrics become rows with an error message; they do not stop the cell.
    """
    begun = time.perf_counter()
    plan, data = job.plan, job.plan.datasets[cell.dataset]
    outcome = Outcome(cell, plan.models[cell.model].label, data.label)
    have = loaded(plan.models[cell.model], plan.precision, job.device or plan.device)
    dataset = opened(data)
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


def row_precision(job: Job, have: Loaded, column: Column) -> str:
    """Precision that the map of a column is computed in, which may be a higher one than the plan's."""
    return precision_of(column.method, have.vit, map_precision(job.plan)) or job.plan.precision


def run_places(job: Job, have: Loaded, places: Sequence[int], size: int, outcome: Outcome) -> None:
    """Compute images in batches of `size`; if a batch fails as a whole, its images are computed one by one."""
    dataset, preprocess = opened(job.plan.datasets[outcome.at.dataset]), have.vit.preprocess
    assert preprocess is not None
    evaluation = job.plan.evaluations[outcome.at.dataset]
    if evaluation.preprocess is not None:
        preprocess = Preprocess.published(evaluation.preprocess, preprocess)
    # threads read images ahead unless the model itself runs on the CPU
    ahead = 0 if have.vit.device.type == "cpu" else None
    for batch in batches(dataset, preprocess, places, size, workers=ahead):
        outcome.skipped += len(batch.skipped)
        for picture, said in batch.failures:
            unread(job, have, outcome, picture, said)
        if not len(batch):
            continue
        own = [outcome.places[picture] for picture in batch.keys]
        try:
            subject, unfit = subject_of(have.vit, batch, own, evaluation.targets)
        except Exception as problem:  # noqa: BLE001 - one image must not stop the run
            if len(batch) > 1:
                run_places(job, have, own, 1, outcome)
            else:
                unread(job, have, outcome, batch.keys[0], sentence(problem))
            continue
        for picture, said in unfit:
            unread(job, have, outcome, picture, said)
        if subject is not None:
            run_batch(job, have, subject, outcome)


def run_batch(job: Job, have: Loaded, subject: Subject, outcome: Outcome) -> None:
    """Group images by the results that they still lack, and compute each group."""
    share, columns = subject.share, job.columns[outcome.at.dataset]
    keys = [[key(job, have, subject, row, column) for column in columns] for row in range(subject.rows)]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for picture, name in enumerate(subject.keys):
        own = keys[picture * share : (picture + 1) * share]
        outcome.listed[name] = [
            (role, int(subject.labels[picture]), [one for one in row if one])
            for role, row in zip(subject.roles, own, strict=True)
        ]
        missing = tuple(
            place for place in range(len(columns)) if any(row[place] and row[place] not in job.keys for row in own)
        )
        # predicted and true class are the same
        one_class = share > 1 and len(set(subject.targets[picture].tolist())) == 1
        groups.setdefault((bool(subject.labelled[picture]), one_class, missing), []).append(picture)
    for (_, one_class, missing), pictures in groups.items():
        if not missing:
            continue
        some = subject.only(pictures, [0] if one_class else None)
        theirs = [keys[picture * share + column] for picture in pictures for column in range(share)]
        if one_class:  # compute one row and use the key of whichever role needs the result
            theirs = [
                [next(filter(None, held), "") for held in zip(*theirs[at : at + share], strict=True)]
                for at in range(0, len(theirs), share)
            ]
        run_group(job, have, some, missing, theirs, outcome)


def run_group(
    job: Job, have: Loaded, some: Subject, missing: Sequence[int], keys: Sequence[Sequence[str]], outcome: Outcome
) -> None:
    """Compute the missing results of images that lack the same ones: every method once, followed by its metrics."""
    columns = job.columns[outcome.at.dataset]
    for method, places in groupby(missing, lambda place: columns[place].method):
        wanted = list(places)
        found = compute(
            some, method, [columns[place].metric for place in wanted], job.plan.question, map_precision(job.plan)
        )
        for place, fragments in zip(wanted, found, strict=True):
            column = columns[place]
            for row, fragment in enumerate(fragments):
                if keys[row][place]:
                    about = {"key": keys[row][place], **some.about(row), **fragment}
                    put(job, have, outcome, column, about, some.evidence(row, column.metric))


def put(job: Job, have: Loaded, outcome: Outcome, column: Column, columns: dict[str, Any], evidence: str) -> None:
    """Append a row with its provenance to the outcome, and its error message to the outcome's failures."""
    import vitreous

    row = {
        "error": None,
        "model": outcome.model,
        "dataset": outcome.dataset,
        "method": column.spec,
        "question": column.method.asked(job.plan.question, scalar=have.vit.scalar),
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


def unread(job: Job, have: Loaded, outcome: Outcome, picture: str, said: str) -> None:
    """Append a row with an error for every result of an image that could not be read or has no valid target."""
    where = {"picture": picture, "index": outcome.places[picture], "target": -1, "label": -1, "predicted": -1}
    before, keys = len(outcome.failed), []
    for column in job.columns[outcome.at.dataset]:
        own = key_of(
            dataset=outcome.dataset,
            picture=picture,
            weights=have.weights,
            method=column.method_id,
            metric=column.metric_id,
        )
        keys.append(own)
        put(job, have, outcome, column, {"key": own, **where, **failure(said)}, "")
    outcome.listed[picture] = [("", -1, keys)]
    outcome.failed[before:] = [said]


def key(job: Job, have: Loaded, subject: Subject, row: int, column: Column) -> str:
    """Key of a row and column; an empty string if the column is not computed for the role of the row's target."""
    import vitreous

    if column.roles and subject.roles[row % subject.share] not in column.roles:
        return ""
    precision = row_precision(job, have, column)
    return key_of(
        weights=have.weights,
        pixels=subject.pixels[row // subject.share],
        target=str(int(subject.targets.flatten()[row])),
        method=column.method_id,
        metric=column.metric_id,
        evidence=subject.evidence(row, column.metric),
        question=column.method.asked(job.plan.question, scalar=have.vit.scalar),
        precision=KEY_PRECISION.get(precision, precision),
        vitreous=vitreous.__version__,
    )
