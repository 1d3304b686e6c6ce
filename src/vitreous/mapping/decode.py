"""Decode stage: read, decode, resize and crop the images of a slice, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.batch import Row, find_largest_class, prepare_sample
from vitreous.mapping.job import Slice
from vitreous.mapping.source import ImageSource
from vitreous.models.image_input import Preprocess


@dataclass(slots=True, eq=False)
class ImageBatch:
    """Decoded images of a slice.

    Parameters
    ----------
    shard, part, start, stop, ends_shard, ends_part
        As for `Slice`.
    keys, places
        Keys of the images, and their indices in the part.
    labels, rival_labels
        Class indices; −1 if unknown.
    groups
        Images of one size each: the positions in `keys`, and colours [n 3 H W] (uint8, before normalisation) or model
        inputs (float32). One group unless the preprocessing does not crop.
    failures
        Index, key and error message of images that could not be read.
    skipped
        Number of images that the dataset's protocol leaves out.
    """

    shard: str
    part: int
    start: int
    stop: int
    ends_shard: bool
    ends_part: bool
    keys: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    rival_labels: list[int] = field(default_factory=list)
    groups: list[tuple[list[int], Tensor]] = field(default_factory=list)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    skipped: int = 0


def decode_slice(source: ImageSource, preprocess: Preprocess, work: Slice) -> ImageBatch:
    """Decode the images of a slice; an image that cannot be read becomes a failure.

    Colours are normalised on the model's device where the preprocessing is a plain `Preprocess`: a quarter of the bytes
    to send, and the same numbers.
    """
    part = source.parts[work.part]
    convert = preprocess.colours if type(preprocess) is Preprocess else preprocess
    batch = ImageBatch(work.shard, work.part, work.start, work.stop, work.ends_shard, work.ends_part)
    rows: list[Row] = []
    for index, item in enumerate(work.items, work.start):
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
        chosen = list(positions)
        batch.groups.append((chosen, torch.stack([images[position] for position in chosen])))
    return batch


# ── in a decoding process ────────────────────────────────────────────────────────────────────────

DECODING: list[tuple[ImageSource, Preprocess]] = []


def start_decoding(source: ImageSource, preprocess: Preprocess) -> None:
    """Initialise a decoding process; it ends with its parent, which handles the signals."""
    import multiprocessing
    import signal
    import threading

    from vitreous.bench.pool import exit_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, args=(multiprocessing.parent_process(),), daemon=True).start()
    torch.set_num_threads(1)
    DECODING[:] = [(source, preprocess)]


def decode_here(work: Slice) -> ImageBatch:
    """Decode a slice in a decoding process."""
    source, preprocess = DECODING[0]
    return decode_slice(source, preprocess, work)
