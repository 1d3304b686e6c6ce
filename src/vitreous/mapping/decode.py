"""Decode stage: read, decode, resize and crop the images of slices, in threads or in processes.

The process that launches the model's kernels does as little else as possible, since all of its threads share one
interpreter lock: with a GPU, images are listed and decoded in other processes and arrive in shared, page-locked memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitreous.bench.child_processes import LOST, ChildProcesses
from vitreous.bench.signals import children_ignore_terminal
from vitreous.bench.worker import format_error
from vitreous.core.errors import DataError
from vitreous.data.batch import Row, find_largest_class, map_ahead, prepare_sample
from vitreous.mapping.job import Slice, SliceRange
from vitreous.mapping.source import ImageSource
from vitreous.models.image_input import Preprocess

ListSlices = Callable[[], Iterable[Slice]]

THREADS = 2  # decoding threads if there are no decoding processes
SLOTS_AHEAD = 6  # batches in shared memory beside those that are being decoded: explained, or waiting for that
LOST_DECODER = "a decoding process died (out of memory?); run the same command again to go on, with fewer --decoders if it persists"


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
        inputs [n channels H W] (float32). One group unless the preprocessing does not crop. On their way from a decoding process they are
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

    Colours are normalised on the model's device where the preprocessing is a plain `Preprocess` of colours: a quarter of
    the bytes to send, and the same numbers.
    """
    part = source.parts[work.range.part]
    convert = preprocess.colours if sends_colours(preprocess) else preprocess
    batch = ImageBatch(work.range)
    rows: list[Row] = []
    for index, item in enumerate(work.items, work.range.start):
        try:
            row = prepare_sample(item.key, partial(part.load, item), preprocess, convert)
        except Exception as problem:  # noqa: BLE001 - one image must not stop the run
            row = Row(item.key, failure=format_error(problem))
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


def sends_colours(preprocess: Preprocess) -> bool:
    """Whether images are sent as 8-bit colours; grey images and other bands may have more than 8 bits."""
    return type(preprocess) is Preprocess and preprocess.channels == 3


# ── ahead of their use ───────────────────────────────────────────────────────────────────────────


def decode(
    source: ImageSource, preprocess: Preprocess, list_slices: ListSlices, processes: int, batch_size: int
) -> Generator[ImageBatch, None, None]:
    """Decode slices ahead of their use.

    Parameters
    ----------
    source, preprocess
        What is decoded, and how.
    list_slices
        Lists the slices; if there are decoding processes, it is called in a process of its own.
    processes
        Number of decoding processes; 0 decodes in `THREADS` threads of this process.
    batch_size
        Largest number of images in a slice.
    """
    if processes:
        return decode_in_processes(source, preprocess, list_slices, processes, batch_size)
    return map_ahead(partial(decode_slice, source, preprocess), list_slices(), THREADS, 2 * THREADS - 1)


def decode_in_processes(
    source: ImageSource, preprocess: Preprocess, list_slices: ListSlices, processes: int, batch_size: int
) -> Generator[ImageBatch, None, None]:
    """Decode slices in processes; batches come as they are ready, in any order. `DataError` if a process dies."""
    height, width = preprocess.size
    itemsize = 1 if sends_colours(preprocess) else 4
    slots = share_slots(processes + SLOTS_AHEAD, batch_size * preprocess.channels * height * width * itemsize)
    try:
        with ChildProcesses("vitreous.mapping.decode") as children:  # decoders need no model library
            with children_ignore_terminal():  # the semaphore tracker is started here
                tasks, free_slots = children.context.Queue(processes), children.context.SimpleQueue()
            for slot in range(len(slots)):
                free_slots.put(slot)
            children.start(0, list_in_process, list_slices, tasks, processes)
            for number in range(processes):
                children.start(number + 1, decode_in_process, source, preprocess, slots, free_slots, tasks)
            for _, message in children.messages():
                if message is LOST:
                    raise DataError(LOST_DECODER)
                batch, slot = message
                take_from_slot(batch, slots[slot])
                batch.release = partial(free_slots.put, slot)
                yield batch
    finally:
        if torch.cuda.is_initialized() and slots.is_pinned():
            torch.cuda.synchronize()
            get_cuda_runtime().cudaHostUnregister(slots.data_ptr())


def share_slots(count: int, size: int) -> Tensor:
    """Shared memory for `count` batches of `size` bytes; page-locked if this process uses a GPU."""
    try:
        slots = torch.empty(count, size, dtype=torch.uint8).share_memory_()
    except RuntimeError as problem:
        raise DataError(
            f"there are no {count * size / 2**20:.0f} MiB of shared memory for decoded images ({str(problem).splitlines()[0]}); "
            "enlarge /dev/shm (docker run --shm-size), or give fewer --decoders, a smaller --batch-size, or --decoders 0"
        ) from None
    if torch.cuda.is_initialized():  # if this fails, batches are copied to page-locked memory one by one
        get_cuda_runtime().cudaHostRegister(slots.data_ptr(), slots.nbytes, 0)
    return slots


def get_cuda_runtime() -> Any:
    return torch.cuda.cudart()


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


def list_in_process(pipe: Connection, list_slices: ListSlices, tasks: Any, decoders: int) -> None:
    """Body of the listing process: put all slices into `tasks`, and None for every decoding process."""
    for work in list_slices():
        tasks.put(work)
    for _ in range(decoders):
        tasks.put(None)


def decode_in_process(
    pipe: Connection, source: ImageSource, preprocess: Preprocess, slots: Tensor, free_slots: Any, tasks: Any
) -> None:
    """Body of a decoding process: take a free slot and a slice, decode it, send the batch and the number of the slot."""
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
