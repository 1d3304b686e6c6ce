"""Run one method on a batch: compute its maps once, then all metrics, with time and memory. Errors become rows."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous.bench.keys import to_canonical_json
from vitreous.bench.labelled_batch import LabelledBatch
from vitreous.bench.rows import to_half_precision
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.targets import ClassTarget
from vitreous.core.errors import ModelError, SpecError, VitreousError
from vitreous.explanation import choose_score_function, explain_batch
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.metrics.metric import Metric

Fragment = dict[str, Any]  # columns of one row
PEAK = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def compute(
    subject: LabelledBatch,
    method: Method,
    metrics: Sequence[Metric | None],
    question: str | None,
    precision: str | None = None,
) -> list[list[Fragment]]:
    """Compute a method and its metrics on a batch.

    If it fails on single images, the others are computed without them; if it is not known on which, each half of the
    batch is tried separately.

    Parameters
    ----------
    subject
        The batch.
    method
        The method.
    metrics
        Metrics of its maps; None for the map itself.
    question
        Name of the score function; None for the method's own.
    precision
        Precision of the map, as for `explain`.

    Returns
    -------
    list of list of dict
        For every metric and every row, the columns of the result.
    """

    def retry(problem: Exception, metrics: Sequence[Metric | None]) -> list[list[Fragment]]:
        """Try two halves of the batch if single images or memory may be the cause; else every row gets the error."""
        if isinstance(problem, VitreousError) and problem.row_errors:
            return compute_others(problem.row_errors, metrics)
        if len(subject) == 1 or isinstance(problem, SpecError | ModelError):
            return [[{"error": format_error(problem)}] * subject.rows for _ in metrics]
        free_memory(problem)
        half = len(subject) // 2
        halves = (subject.only(range(half)), subject.only(range(half, len(subject))))
        parts = [compute(half_batch, method, metrics, question, precision) for half_batch in halves]
        return [first + second for first, second in zip(*parts, strict=True)]

    def compute_others(
        row_errors: Mapping[int, VitreousError], metrics: Sequence[Metric | None]
    ) -> list[list[Fragment]]:
        """Rows of the images with an error get it; the other images are computed without them."""
        per_image = subject.targets_per_image
        errors = {row // per_image: format_error(error) for row, error in sorted(row_errors.items(), reverse=True)}
        sound = [index for index in range(len(subject)) if index not in errors]
        parts = compute(subject.only(sound), method, metrics, question, precision) if sound else [[] for _ in metrics]
        columns = []
        for part in parts:
            rows = iter(part)
            columns.append(
                [
                    {"error": errors[index]} if index in errors else next(rows)
                    for index in range(len(subject))
                    for _ in range(per_image)
                ]
            )
        return columns

    try:
        fitted, target = method.for_model(subject.vit), ClassTarget(subject.targets)
        score_function = choose_score_function(subject.vit, target, fitted, question)
        probe = subject.probe.with_score_function(score_function)
        with measure_cost(subject.vit.device) as cost:
            attribution = explain_batch(
                subject.vit, subject.images, target, fitted, score_function, precision=precision, probe=probe
            )
    except Exception as problem:  # noqa: BLE001 - one image must not stop the run
        return retry(problem, metrics)
    about = to_canonical_json(attribution.provenance)
    shared = {"map_seconds": cost.seconds / subject.rows, "peak_mib": cost.mib, "about": about}
    memo: dict[Any, Any] = {}
    columns = []
    for metric in metrics:
        try:
            rows = (
                make_map_columns(attribution)
                if metric is None
                else measure_columns(metric, attribution, probe, subject, fitted, memo)
            )
        except Exception as problem:  # noqa: BLE001
            (rows,) = retry(problem, [metric])
        columns.append([{**shared, **row} for row in rows])
    return columns


def free_memory(problem: Exception) -> None:
    """Free the memory of a GPU if that is what the problem was, so that smaller batches can be tried."""
    if isinstance(problem, torch.OutOfMemoryError):
        problem.__traceback__ = None  # its frames keep references to the tensors to be freed
        torch.cuda.empty_cache()


def format_error(problem: Exception) -> str:
    """One-line error message; unexpected errors are prefixed with their type."""
    if os.environ.get("VITREOUS_DEBUG"):
        import traceback

        traceback.print_exception(problem)
    message = " ".join(str(problem).split())[:500]
    return message if isinstance(problem, VitreousError) else f"{type(problem).__name__}: {message}"


def measure_columns(
    metric: Metric,
    attribution: Attribution,
    probe: BlackBoxProbe,
    subject: LabelledBatch,
    method: Method,
    memo: dict[Any, Any],
) -> list[Fragment]:
    """Compute a metric and return the columns of every row."""
    device = subject.vit.device
    annotations = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in subject.given.items()
        if name in metric.takes and (name != "labels" or subject.labelled.all())
    }
    with measure_cost(device) as cost:
        result = metric(attribution, probe=probe, method=method, memo=memo, **annotations)
        scores = result.scores.double().cpu().tolist()  # synchronises with the device, inside the timed block
    parts = {name: part.double().cpu().tolist() for name, part in result.parts.items()}
    curve = None if result.curve is None else result.curve.double().cpu().tolist()
    shared_columns = {
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "levels": None if result.levels is None else list(result.levels),
        "seconds": cost.seconds / len(attribution),
        "protocol": to_canonical_json(result.protocol),
    }
    return [
        {
            **shared_columns,
            "value": value,
            "parts": [(name, part[row]) for name, part in parts.items()],
            "curve": None if curve is None else curve[row],
        }
        for row, value in enumerate(scores)
    ]


def make_map_columns(attribution: Attribution) -> list[Fragment]:
    """Columns of every map: a float16 grid and the factor that it is multiplied by."""
    maps = attribution.maps().float().cpu().numpy()
    score = [float("nan")] * len(maps) if attribution.score is None else attribution.score.double().cpu().tolist()
    grids, scales = to_half_precision(maps)
    shape = {"rows": maps.shape[1], "columns": maps.shape[2]}
    shared_columns = {**shape, "native": attribution.native, "signed": attribution.signed}
    rows = zip(grids, scales.tolist(), score, strict=True)
    return [{**shared_columns, "grid": grid, "scale": scale, "score": number} for grid, scale, number in rows]


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Cost:
    """Elapsed time in seconds and peak memory in MiB."""

    seconds: float = 0.0
    mib: float = float("nan")


@contextmanager
def measure_cost(device: torch.device) -> Iterator[Cost]:
    """Context manager that measures time and peak memory of its block."""
    cost, peak = Cost(), watch_memory(device)
    begun = time.perf_counter()
    yield cost
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    cost.seconds, cost.mib = time.perf_counter() - begun, peak()


def watch_memory(device: torch.device) -> Callable[[], float]:
    """Start measuring peak memory of the device, or of the process on a CPU; call the result to get it in MiB."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device) / 2**20
    reset, status = PEAK
    try:
        reset.write_text("5")  # Linux: reset the peak
        return lambda: next(
            float(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM")
        )
    except OSError:
        # the peak since the process began, since it cannot be reset here
        unit = 2**20 if sys.platform == "darwin" else 1024
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
