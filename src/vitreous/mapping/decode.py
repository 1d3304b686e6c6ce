"""Decode stage: read, decode, resize and crop the images of a slice, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.bench.pool import become_worker
from vitreous.core.errors import VitreousError
from vitreous.data.batch import Row, find_largest_class, prepare_sample
from vitreous.mapping.job import Slice, SliceRange
from vitreous.mapping.source import ImageSource
from vitreous.models.image_input import Preprocess


class ImagesInSlot(NamedTuple):
    """Where the images of a group lie in a slot, a piece of memory that processes share."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int

    def view(self, slot: Tensor) -> Tensor:
        size = self.dtype.itemsize * torch.Size(self.shape).numel()
        return slot[self.start : self.start + size].view(self.dtype).view(self.shape)


@dataclass(slots=True, eq=False)
class ImageBatch:
    """Decoded images of a slice.

    Parameters
    ----------
    range
        Which images they are.
    keys, places
        Keys of the images, and their indices in the part.
    labels, rival_labels
        Class indices; −1 if unknown.
    groups
        Images of one size each: the positions in `keys`, and colours [n 3 H W] (uint8, before normalisation) or model
        inputs (float32). One group unless the preprocessing does not crop. On their way from a decoding process they are
        an `ImagesInSlot`, or an array if the slot is too small.
    failures
        Index, key and error message of images that could not be read.
    skipped
        Number of images that the dataset's protocol leaves out.
    release
        Called when the images are no longer needed; None if nothing is to be done.
    """

    range: SliceRange
    keys: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    rival_labels: list[int] = field(default_factory=list)
    groups: list[tuple[list[int], Any]] = field(default_factory=list)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    skipped: int = 0
    release: Callable[[], None] | None = None


def decode_slice(source: ImageSource, preprocess: Preprocess, work: Slice) -> ImageBatch:
    """Decode the images of a slice; an image that cannot be read becomes a failure.

    Colours are normalised on the model's device where the preprocessing is a plain `Preprocess`: a quarter of the bytes
    to send, and the same numbers.
    """
    part = source.parts[work.range.part]
    convert = preprocess.colours if type(preprocess) is Preprocess else preprocess
    batch = ImageBatch(work.range)
    rows: list[Row] = []
    for index, item in enumerate(work.items, work.range.start):
        try:
            row = prepare_sample(item.key, partial(part.load, item), preprocess, convert)
        except Exception as problem:  # noqa: BLE001 - one image must not stop the run
            message = str(problem) if isinstance(problem, VitreousError) else f"{type(problem).__name__}: {problem}"
            row = Row(item.key, failure=" ".join(message.split())[:500])
        if row.failure:
            batch.failures.append((index, item.key, row.failure))
        elif row.image is None:
            batch.skipped += 1
        else:
            rows.append(row)
            batch.keys.append(item.key)
            batch.places.append(index)
            batch.labels.append(row.label)
            rival = find_largest_class(row.rivals)[0] if row.rivals else None
            batch.rival_labels.append(-1 if rival is None else rival)
    images = [row.image for row in rows if row.image is not None]
    order = sorted(range(len(images)), key=lambda position: tuple(images[position].shape))
    for _, positions in groupby(order, lambda position: tuple(images[position].shape)):
        group = list(positions)
        batch.groups.append((group, torch.stack([images[position] for position in group])))
    return batch


# ── in a process ─────────────────────────────────────────────────────────────────────────────────


def put_in_slot(batch: ImageBatch, slot: Tensor) -> None:
    """Move the images of a batch to shared memory; groups that do not fit become arrays, which are sent."""
    start = 0
    for number, (positions, images) in enumerate(batch.groups):
        if start + images.nbytes > len(slot):
            batch.groups[number] = positions, images.numpy()
            continue
        place = ImagesInSlot(tuple(images.shape), images.dtype, start)
        place.view(slot).copy_(images)
        batch.groups[number] = positions, place
        start += -(-images.nbytes // 64) * 64  # aligned for every dtype


def take_from_slot(batch: ImageBatch, slot: Tensor) -> None:
    """Replace the places of images by tensors, without a copy."""
    batch.groups = [
        (positions, images.view(slot) if isinstance(images, ImagesInSlot) else torch.from_numpy(images))
        for positions, images in batch.groups
    ]


def list_in_process(list_slices: Callable[[], Iterable[Slice]], tasks: Any, decoders: int, pipe: Any) -> None:
    """Body of the listing process: put all slices into `tasks`, and None for every decoding process."""
    become_worker(threads=1)
    try:
        for work in list_slices():
            tasks.put(work)
    except Exception as problem:  # noqa: BLE001 - raised again in the parent
        pipe.send(problem)
    for _ in range(decoders):
        tasks.put(None)
    pipe.send(None)


def decode_in_process(
    source: ImageSource, preprocess: Preprocess, slots: Tensor, free_slots: Any, tasks: Any, pipe: Any
) -> None:
    """Body of a decoding process: take a free slot and a slice, decode it, send the batch and the number of the slot."""
    become_worker(threads=1)
    if hasattr(os, "nice"):
        os.nice(5)  # the thread that launches kernels comes first
    while True:
        slot = free_slots.get()
        work = tasks.get()
        if work is None:
            break
        batch = decode_slice(source, preprocess, work)
        put_in_slot(batch, slots[slot])
        pipe.send((batch, slot))
    free_slots.put(slot)  # another process may wait for it
    pipe.send(None)
