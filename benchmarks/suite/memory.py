"""Twice the images, masks or steps must not take more memory: the peak of the doubled work beside that of the single.

What is handed back for more images must be held: so many bytes more are taken off the doubled peak, and the row says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

import vitreous
from suite.bed import Bed
from suite.clock import Work, warm_peak
from suite.row import Figure, Row
from vitreous.capture.memory import free_bytes

GROUPS = ("memory",)
ALLOWED = 1.05
BATCH = 32  # what `explain` and `evaluate` take at once by default
PICTURES = f"{2 * BATCH} images, not {BATCH}"
LEFT = 2**33  # bytes that a GPU is left with
DRAWN = {"tis": "masks", "rise": "masks", "ig": "steps", "smoothgrad": "samples"}


def cases(bed: Bed) -> Iterator[Figure]:
    """Batches are the library's own: nothing is said of their size. On a GPU the single work, too, must fill one."""
    short = bed.quick or bed.size == "test"
    many = images_of(bed, 2 * BATCH)
    for name, option in DRAWN.items():
        drawn = (4 if short else 8) if name in ("ig", "smoothgrad") else (16 if short and not bed.cuda else 256)
        once, twice = f"{name}({option}={drawn})", f"{name}({option}={2 * drawn})"
        single = explaining(bed, once, bed.images)
        yield figure(bed, once, f"twice the {option}", explaining(bed, twice, bed.images), single)
        yield figure(bed, once, PICTURES, explaining(bed, once, many), explaining(bed, once, many[:BATCH]))
    yield figure(bed, "deletion_aopc", PICTURES, measured(bed, many), measured(bed, many[:BATCH]))


def images_of(bed: Bed, count: int) -> Tensor:
    return torch.cat([bed.images.roll(step, -1) for step in range(-(-count // bed.batch))])[:count]


def figure(bed: Bed, what: str, how: str, twice: Work, once: Work) -> Figure:
    return Figure("memory", what, how, lambda: doubled(bed, what, how, twice, once))


def doubled(bed: Bed, what: str, how: str, twice: Work, once: Work) -> Row:
    row = Row(bed.size, "memory", what, how, bed.batch, bed.precision, targets={"at_most": ALLOWED}, unit="× the peak")
    row.note = f"{LEFT >> 30} GiB of the device free" if bed.cuda else ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bytes_by_side = {side: weighed(work, bed) for side, work in (("ours", twice), ("theirs", once))}
    more_bytes = bytes_by_side["ours"][1] - bytes_by_side["theirs"][1]
    more_bytes = more_bytes if more_bytes > 0.01 * bytes_by_side["theirs"][0] else 0  # less is not worth a word
    row.peaks = {"ours": bytes_by_side["ours"][0] - more_bytes, "theirs": bytes_by_side["theirs"][0]}
    row.note = "; ".join(
        filter(None, (row.note, more_bytes and f"without the {more_bytes / 2**20:.3g} MiB more that are handed back"))
    )
    row.ratio = row.peaks["ours"] / row.peaks["theirs"]
    return row


def weighed(work: Work, bed: Bed) -> tuple[int, int]:
    """Bytes at the worst moment, and of what is handed back."""
    returned_bytes = 0

    def watched() -> None:
        nonlocal returned_bytes
        returned_bytes = sum(
            {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in tensors(work())}.values()
        )

    with crowded(bed):
        return warm_peak(watched, bed.device), returned_bytes


def tensors(value: object) -> Iterator[Tensor]:
    """Those in what a call returns."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for entry in fields(value):
            yield from tensors(getattr(value, entry.name))


@contextmanager
def crowded(bed: Bed) -> Iterator[None]:
    """A GPU with only so much left, so that batches chosen from free memory are full before minutes have passed."""
    if bed.cuda:
        torch.cuda.empty_cache()
    ballast = (
        torch.empty(max(0, int(free_bytes(bed.images.device)) - LEFT), dtype=torch.uint8, device=bed.device)
        if bed.cuda
        else None
    )
    yield
    del ballast
    if bed.cuda:
        torch.cuda.empty_cache()


def explaining(bed: Bed, spec: str, images: Tensor) -> Work:
    chosen = vitreous.resolve(spec)
    return lambda: vitreous.explain(bed.vit, images, method=chosen)


def measured(bed: Bed, images: Tensor) -> Work:
    """Random maps: what is measured is the measuring."""
    patches = bed.vit.layout(bed.vit.size).patches
    maps = torch.randn(len(images), patches, generator=torch.Generator().manual_seed(0)).to(images)
    return lambda: vitreous.evaluate(bed.vit, images, maps, "deletion_aopc", target=0)
