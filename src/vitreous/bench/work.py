"""One method on some pictures: its maps once, every metric of them, and what each cost. Failures are sentences."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous.bench.keys import written
from vitreous.bench.subject import Subject
from vitreous.capture.blackbox import is_black_box
from vitreous.capture.probe import Probe
from vitreous.capture.question import ask
from vitreous.core.errors import ModelError, SpecError, VitreousError
from vitreous.front import cautions, provenance
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.metrics.metric import Metric, MetricResult

Fragment = dict[str, Any]  # columns of one row
PEAK = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def compute(
    subject: Subject, method: Method, metrics: Sequence[Metric | None], question: str | None
) -> list[list[Fragment]]:
    """For every metric (None: the map) and every row its columns. What fails on many pictures is tried on fewer."""
    try:
        made = method.of_black_box() if is_black_box(subject.vit) else method
        asked = ask(made.asked(question, scalar=subject.vit.scalar))
        probe = subject.probe.asking(asked)
        with costing(subject.vit.device) as cost:
            found = made(probe)
    except Exception as problem:  # noqa: BLE001 - one picture must not stop a thousand
        return again(problem, subject, method, metrics, question)
    caution = cautions(made, subject.vit)
    about = written(provenance(subject.vit, made, asked, subject.images, caution))
    shared = {"map_seconds": cost.seconds / subject.rows, "peak_mib": cost.mib, "about": about}
    memo: dict[Any, Any] = {}
    columns = []
    for metric in metrics:
        try:
            rows = drawn(found) if metric is None else measured(metric, found, probe, subject, made, memo)
        except Exception as problem:  # noqa: BLE001
            (rows,) = again(problem, subject, method, [metric], question)
        columns.append([{**shared, **row} for row in rows])
    return columns


def again(
    problem: Exception, subject: Subject, method: Method, metrics: Sequence[Metric | None], question: str | None
) -> list[list[Fragment]]:
    """Two halves, where pictures or memory may be at fault; else one sentence for every row."""
    if len(subject) > 1 and not isinstance(problem, SpecError | ModelError):
        if isinstance(problem, torch.OutOfMemoryError):
            problem.__traceback__ = None  # its frames hold what is to be freed
            torch.cuda.empty_cache()
        half = len(subject) // 2
        halves = (subject.only(range(half)), subject.only(range(half, len(subject))))
        parts = [compute(some, method, metrics, question) for some in halves]
        return [first + second for first, second in zip(*parts, strict=True)]
    return [[failure(sentence(problem))] * subject.rows for _ in metrics]


def failure(said: str) -> Fragment:
    return {"error": said, "value": float("nan")}


def sentence(problem: Exception) -> str:
    """One line; of what nobody expected, with its kind."""
    if os.environ.get("VITREOUS_DEBUG"):
        import traceback

        traceback.print_exception(problem)
    said = " ".join(str(problem).split())[:500]
    return said if isinstance(problem, VitreousError) else f"{type(problem).__name__}: {said}"


def measured(
    metric: Metric, found: Attribution, probe: Probe, subject: Subject, method: Method, memo: dict[Any, Any]
) -> list[Fragment]:
    device = subject.vit.device
    given = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in subject.given.items()
        if name in metric.takes and (name != "labels" or subject.labelled.all())
    }
    with costing(device) as cost:
        result = metric(found, probe=probe, method=method, memo=memo, **given)
        scores = result.scores.double().cpu().tolist()  # waits for the device
    return numbers(result, scores, cost.seconds / len(found))


def numbers(result: MetricResult, scores: list[float], seconds: float) -> list[Fragment]:
    parts = {name: part.double().cpu().tolist() for name, part in result.parts.items()}
    curve = None if result.curve is None else result.curve.double().cpu().tolist()
    same = {
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "levels": None if result.levels is None else list(result.levels),
        "seconds": seconds,
        "protocol": written(result.protocol),
    }
    return [
        {
            **same,
            "value": value,
            "parts": [(name, part[row]) for name, part in parts.items()],
            "curve": None if curve is None else curve[row],
        }
        for row, value in enumerate(scores)
    ]


def drawn(found: Attribution) -> list[Fragment]:
    """Maps as half-precision grids, each with the factor that brings it back."""
    maps = found.maps().float().cpu().numpy()
    score = [float("nan")] * len(maps) if found.score is None else found.score.double().cpu().tolist()
    rows = []
    for row, one in enumerate(maps):
        largest = np.abs(one[np.isfinite(one)]).max(initial=0)
        scale = np.float32(largest if largest > 0 else 1)
        rows.append(
            {
                "grid": (one / scale).astype(np.float16).ravel(),
                "scale": float(scale),
                "rows": one.shape[0],
                "columns": one.shape[1],
                "native": found.native,
                "signed": found.signed,
                "score": score[row],
            }
        )
    return rows


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Cost:
    seconds: float = 0.0
    mib: float = float("nan")


@contextmanager
def costing(device: torch.device) -> Iterator[Cost]:
    """Time and the largest memory while the context is open."""
    cost, peak = Cost(), watch_memory(device)
    begun = time.perf_counter()
    yield cost
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    cost.seconds, cost.mib = time.perf_counter() - begun, peak()


def watch_memory(device: torch.device) -> Callable[[], float]:
    """The largest memory from now on, in MiB: the device's, or the process's."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: torch.cuda.max_memory_allocated(device) / 2**20
    reset, status = PEAK
    try:
        reset.write_text("5")  # Linux: forget the peak so far
        return lambda: next(
            float(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM")
        )
    except OSError:
        unit = 2**20 if sys.platform == "darwin" else 1024  # since the process began, where the system cannot forget
        return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
