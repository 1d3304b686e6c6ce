"""Batches of model inputs: images, masks and boxes with the same geometry applied, prefetched by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from PIL import Image
from torch import Tensor

from vitreous.core.errors import DataError, SpecError
from vitreous.data.sample import Dataset, Sample
from vitreous.models.image_input import Preprocess

Seen: TypeAlias = Int8[Tensor, "H W"]
Corners: TypeAlias = Float[Tensor, "_ 4"]
Item = TypeVar("Item")
Result = TypeVar("Result")
Convert: TypeAlias = Callable[[Image.Image], Tensor]  # image to model input, or to its colours before normalisation


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Model inputs with their annotations, and the keys of images that are missing. A batch may be empty.

    Attributes
    ----------
    keys
        Keys of the images in the batch.
    images
        Model inputs.
    labels
        Class indices; -1 if unknown.
    originals
        The original images.
    objects
        Masks of the object of the label: 1 object, 0 not, -1 ignored; all -1 for an image without a mask. None if no
        image of the batch has a mask.
    boxes
        Boxes per image in pixels of the model input, clipped to it: empty if all of them lie outside, None for an image
        without box annotations. None if no image of the batch has any.
    rivals
        Masks of the largest other class in the model input, as `objects`; all -1 for an image without one.
    rival_labels
        Class indices of `rivals`; -1 for an image without one.
    failures
        Keys and error messages of images that could not be read.
    skipped
        Keys and reasons of images that the dataset's protocol leaves out, although they can be read.

    Examples
    --------
    >>> from vitreous import Preprocess
    >>> from vitreous.data import batches, open_dataset
    >>> (batch,) = batches(open_dataset("scenes:single?count=2"), Preprocess.plain(64))
    >>> batch.images.shape, len(batch)
    (torch.Size([2, 3, 64, 64]), 2)
    """

    keys: tuple[str, ...]
    images: Float[Tensor, "b channels H W"]
    labels: Int[Tensor, " b"]
    originals: list[Image.Image]
    objects: Int8[Tensor, "b H W"] | None = None
    boxes: list[Corners | None] | None = None
    rivals: Int8[Tensor, "b H W"] | None = None
    rival_labels: Int[Tensor, " b"] | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One image of a batch, or the reason why it is missing (`failure` or `skipped`)."""

    key: str
    image: Tensor | None = None
    original: Image.Image | None = None
    label: int = -1
    mask: Seen | None = None
    boxes: Corners | None = None
    rivals: dict[int, Seen] = field(default_factory=dict)
    failure: str = ""
    skipped: str = ""


def batches(
    dataset: Dataset,
    preprocess: Preprocess,
    indices: Iterable[int] | None = None,
    batch_size: int = 32,
    workers: int | None = None,
) -> Iterator[Batch]:
    """Iterate over a dataset in batches.

    Parameters
    ----------
    dataset
        The dataset.
    preprocess
        Preprocessing of the model, applied to images, masks and boxes.
    indices
        Which images to read, in this order; None for all.
    batch_size
        Number of indices per batch. A batch has fewer images if some cannot be read or are skipped.
    workers
        Number of threads that read ahead, by about one batch; 0 reads in the calling thread. None: the number of CPU
        cores, at most 4.

    Returns
    -------
    iterator of Batch

    Raises
    ------
    SpecError
        If `batch_size` is less than 1 or `workers` is negative.

    Examples
    --------
    >>> from vitreous import Preprocess
    >>> from vitreous.data import batches, open_dataset
    >>> dataset = open_dataset("scenes:single?count=5")
    >>> [len(batch) for batch in batches(dataset, Preprocess.plain(64), indices=[4, 0, 2], batch_size=2)]
    [2, 1]
    """
    if batch_size < 1 or (workers is not None and workers < 0):
        raise SpecError(f"batch_size={batch_size} and workers={workers}; at least 1 and 0 would work")
    chosen = range(len(dataset)) if indices is None else list(indices)
    threads = min(4, os.cpu_count() or 1) if workers is None else workers
    read = partial(prepare, dataset, preprocess)
    rows = map_ahead(read, chosen, threads, batch_size + threads) if threads else map(read, chosen)
    return collate_batches(rows, batch_size, preprocess.size)


def collate_batches(rows: Iterator[Row], batch_size: int, size: tuple[int, int]) -> Iterator[Batch]:
    while batch_rows := list(islice(rows, batch_size)):
        yield collate(batch_rows, size)


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Results of a function in the order of the items; threads compute at most `ahead` of them in advance."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="vitreous-data")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def prepare(dataset: Dataset, preprocess: Preprocess, index: int) -> Row:
    """Read one row; if that raises `DataError`, the message becomes the row's `failure`."""
    return prepare_sample(dataset.keys[index], partial(dataset.__getitem__, index), preprocess, preprocess)


def prepare_sample(key: str, load: Callable[[], Sample], preprocess: Preprocess, convert: Convert) -> Row:
    """Load and preprocess one sample; if that raises `DataError`, the message becomes the row's `failure`."""
    try:
        return preprocess_sample(load(), preprocess, convert)
    except DataError as problem:
        return Row(key, failure=str(problem))


def preprocess_sample(sample: Sample, preprocess: Preprocess, convert: Convert) -> Row:
    """Apply the preprocessing to a sample; `convert` makes the tensor of the image.

    If `sample.cover` is set, the label becomes the class that covers most of the model input, and the sample is skipped
    if that class covers less than this share or there is none.
    """
    mask = None if sample.mask is None else preprocess.masks(sample.mask)
    rivals = {label: preprocess.masks(rival) for label, rival in sample.rivals.items()}
    label = sample.label
    if sample.cover is not None:
        present = rivals if label is None or mask is None else {label: mask, **rivals}
        label, share = find_largest_class(present)
        if label is None or share < sample.cover:
            return Row(sample.key, skipped=f"the largest class covers {share:.1%} of what the model sees")
        mask, rivals = present[label], {rival: rival_mask for rival, rival_mask in present.items() if rival != label}
    boxes = None if sample.boxes is None else preprocess.boxes(sample.boxes, sample.image)
    shown = -1 if label is None else label
    return Row(sample.key, convert(sample.image), sample.image, shown, mask, boxes, rivals)


def collate(rows: Sequence[Row], size: tuple[int, int]) -> Batch:
    """Collate rows to a batch; annotations that no row has are None."""
    good = [row for row in rows if row.image is not None]
    nothing = torch.full(size, -1, dtype=torch.int8)

    def stacked(masks: Sequence[Seen | None]) -> Int8[Tensor, "b H W"] | None:
        if all(mask is None for mask in masks):
            return None
        return torch.stack([nothing if mask is None else mask for mask in masks])

    first = [find_largest_class(row.rivals)[0] for row in good]
    rivals = stacked([None if label is None else row.rivals[label] for label, row in zip(first, good, strict=True)])
    return Batch(
        keys=tuple(row.key for row in good),
        images=torch.stack([row.image for row in good if row.image is not None]) if good else torch.empty(0, 3, *size),
        labels=torch.tensor([row.label for row in good], dtype=torch.long),
        originals=[row.original for row in good if row.original is not None],
        objects=stacked([row.mask for row in good]),
        boxes=[row.boxes for row in good] if any(row.boxes is not None for row in good) else None,
        rivals=rivals,
        rival_labels=None if rivals is None else torch.tensor([-1 if label is None else label for label in first]),
        failures=[(row.key, row.failure) for row in rows if row.failure],
        skipped=[(row.key, row.skipped) for row in rows if row.skipped],
    )


def find_largest_class(masks: dict[int, Seen]) -> tuple[int | None, float]:
    """Class with the largest mask (if tied, the smallest index) and its share of pixels; (None, 0.0) if all empty."""
    shares = {label: float((masks[label] == 1).double().mean()) for label in sorted(masks)}
    most = max(shares, key=lambda label: shares[label], default=None)
    return (most, shares[most]) if most is not None and shares[most] else (None, 0.0)


def subset(dataset: Dataset, count: int | None, seed: int | None = None) -> tuple[int, ...]:
    """Choose indices of `count` images.

    Parameters
    ----------
    dataset
        The dataset.
    count
        Number of images; None for all.
    seed
        None: the first `count` images. Otherwise the first `count` of `np.random.default_rng(seed).permutation` over
        all images sorted by file name, as in SkipPLUS.

    Returns
    -------
    tuple of int
        The indices.

    Raises
    ------
    SpecError
        If `count` is less than 1 or larger than the dataset.

    Examples
    --------
    >>> from vitreous.data import open_dataset, subset
    >>> dataset = open_dataset("scenes:single?count=5")
    >>> subset(dataset, 2), len(subset(dataset, 3, seed=0))
    ((0, 1), 3)
    """
    total = len(dataset)
    count = total if count is None else count
    if not 0 < count <= total:
        raise SpecError(f"{dataset.name} has {total} images, so {count} cannot be chosen; 1 to {total} would work")
    if seed is None:
        return tuple(range(count))
    by_name = sorted(range(total), key=lambda place: (dataset.keys[place].rsplit("/", 1)[-1], dataset.keys[place]))
    return tuple(by_name[place] for place in np.random.default_rng(seed).permutation(total)[:count].tolist())
