"""Peak memory with twice the images, masks or steps, relative to that of the single work, which it must not exceed.

The results of more images have to be stored: their additional bytes are subtracted from the doubled peak, and noted in the row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

import vitreous
from suite.clock import Work, measure_warm_peak
from suite.row import Figure, Row
from suite.workload import Workload
from vitreous.capture.memory import free_bytes

GROUPS = ("memory",)
ALLOWED = 1.05
BATCH = 32  # default batch size of `explain` and `evaluate`
PICTURES = f"{2 * BATCH} images, not {BATCH}"
LEFT = 2**33  # bytes of GPU memory that are left free
DRAWN = {"tis": "masks", "rise": "masks", "ig": "steps", "smoothgrad": "samples"}


def cases(workload: Workload) -> Iterator[Figure]:
    """Batch sizes are those that the library chooses; on a GPU the single work fills one, too."""
    short = workload.quick or workload.size == "test"
    many = repeat_images(workload, 2 * BATCH)
    for name, option in DRAWN.items():
        drawn = (4 if short else 8) if name in ("ig", "smoothgrad") else (16 if short and not workload.cuda else 256)
        once, twice = f"{name}({option}={drawn})", f"{name}({option}={2 * drawn})"
        single = make_explainer(workload, once, workload.images)
        yield make_figure(
            workload, once, f"twice the {option}", make_explainer(workload, twice, workload.images), single
        )
        yield make_figure(
            workload, once, PICTURES, make_explainer(workload, once, many), make_explainer(workload, once, many[:BATCH])
        )
    yield make_figure(
        workload, "deletion_aopc", PICTURES, make_evaluator(workload, many), make_evaluator(workload, many[:BATCH])
    )


def repeat_images(workload: Workload, count: int) -> Tensor:
    return torch.cat([workload.images.roll(step, -1) for step in range(-(-count // workload.batch))])[:count]


def make_figure(workload: Workload, what: str, how: str, twice: Work, once: Work) -> Figure:
    return Figure("memory", what, how, lambda: compare_doubled(workload, what, how, twice, once))


def compare_doubled(workload: Workload, what: str, how: str, twice: Work, once: Work) -> Row:
    row = Row(
        workload.size,
        "memory",
        what,
        how,
        workload.batch,
        workload.precision,
        targets={"at_most": ALLOWED},
        unit="× the peak",
    )
    row.note = f"{LEFT >> 30} GiB of the device free" if workload.cuda else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bytes_by_side = {side: measure_memory(work, workload) for side, work in (("ours", twice), ("theirs", once))}
    more_bytes = bytes_by_side["ours"][1] - bytes_by_side["theirs"][1]
    more_bytes = more_bytes if more_bytes > 0.01 * bytes_by_side["theirs"][0] else 0  # less is negligible
    row.peaks = {"ours": bytes_by_side["ours"][0] - more_bytes, "theirs": bytes_by_side["theirs"][0]}
    row.note = "; ".join(
        filter(None, (row.note, more_bytes and f"without the {more_bytes / 2**20:.3g} MiB of additional results"))
    )
    row.ratio = row.peaks["ours"] / row.peaks["theirs"]
    return row


def measure_memory(work: Work, workload: Workload) -> tuple[int, int]:
    """Peak memory of a call, and bytes of its result."""
    returned_bytes = 0

    def run() -> None:
        nonlocal returned_bytes
        returned_bytes = sum(
            {
                part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in iterate_tensors(work())
            }.values()
        )

    with occupy_memory(workload):
        return measure_warm_peak(run, workload.device), returned_bytes


def iterate_tensors(value: object) -> Iterator[Tensor]:
    """Tensors in the result of a call."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iterate_tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from iterate_tensors(part)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from iterate_tensors(getattr(value, entry.name))


@contextmanager
def occupy_memory(workload: Workload) -> Iterator[None]:
    """Occupy GPU memory, so that batches whose size is chosen from the free memory are small enough to be filled quickly."""
    if workload.cuda:
        torch.cuda.empty_cache()
    ballast = (
        torch.empty(max(0, int(free_bytes(workload.images.device)) - LEFT), dtype=torch.uint8, device=workload.device)
        if workload.cuda
        else None
    )
    yield
    del ballast
    if workload.cuda:
        torch.cuda.empty_cache()


def make_explainer(workload: Workload, spec: str, images: Tensor) -> Work:
    chosen = vitreous.resolve(spec)
    return lambda: vitreous.explain(workload.vit, images, method=chosen)


def make_evaluator(workload: Workload, images: Tensor) -> Work:
    """Evaluation of random maps."""
    patches = workload.vit.layout(workload.vit.size).patches
    maps = torch.randn(len(images), patches, generator=torch.Generator().manual_seed(0)).to(images)
    return lambda: vitreous.evaluate(workload.vit, images, maps, "deletion_aopc", target=0)
