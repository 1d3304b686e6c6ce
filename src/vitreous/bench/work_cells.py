"""Cells: the units of work of a plan, each one model on a fixed slice of the images of one dataset.

The cells depend on the plan and its datasets only, not on the executor that runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitreous.bench.keys import digest
from vitreous.bench.plan import DataSpec, Evaluation, Plan, parse_fraction
from vitreous.core.errors import SpecError
from vitreous.data import Dataset, open_dataset, read_subset, subset


@dataclass(frozen=True, slots=True)
class WorkCell:
    """All methods and metrics of the plan, for one model, on some images of one dataset.

    Parameters
    ----------
    number
        Number of the cell in the plan, from 0.
    model, dataset
        Indices into `Plan.models` and `Plan.datasets`.
    places
        Indices of the images in the dataset.
    """

    number: int
    model: int
    dataset: int
    places: tuple[int, ...]


@lru_cache(maxsize=8)
def open_cached(data: DataSpec) -> Dataset:
    """Open a dataset; the last eight are cached per process."""
    return open_dataset(data.spec)


def split_plan(plan: Plan) -> list[WorkCell]:
    """Split a plan into cells of at most `plan.slice` images.

    A plan with more images or methods has the same slices and further ones.
    """
    cells: list[WorkCell] = []
    places = [choose_places(data, evaluation) for data, evaluation in zip(plan.datasets, plan.evaluations, strict=True)]
    for model, spec in enumerate(plan.models):
        for dataset, data in enumerate(plan.datasets):
            if data.models and spec.label not in data.models:
                continue
            for start in range(0, len(places[dataset]), plan.slice):
                cells.append(WorkCell(len(cells), model, dataset, places[dataset][start : start + plan.slice]))
    return cells


def choose_places(data: DataSpec, evaluation: Evaluation) -> tuple[int, ...]:
    """Indices of the images of a dataset that are used.

    Returns
    -------
    tuple of int
        All images of the dataset (or of its `part`, or of the file `subset`) if `evaluation.images` is None; otherwise
        the first of them in the order of the subset, or of a permutation that depends on `evaluation.seed`, or of the
        dataset's own order if the seed is None.

    Raises
    ------
    SpecError
        If the dataset has fewer images than the plan asks for.
    DataError
        If the file `subset` cannot be read or lists an image that the dataset does not have.
    """
    dataset, count = open_cached(data), evaluation.images
    if data.subset is None and not data.part:
        return tuple(range(len(dataset))) if count is None else subset(dataset, count, evaluation.seed)
    if data.subset is not None:
        places: Sequence[int] = read_subset(dataset, data.subset)
    else:
        places = range(len(dataset)) if count is None else subset(dataset, None, evaluation.seed)
    if data.part:
        number, parts = parse_fraction(data.part)
        places = [place for place in places if place % parts == number - 1]
    if not 0 < (len(places) if count is None else count) <= len(places):
        source = f"part {data.part} of {dataset.name}" if data.part else f"'{data.subset}'"
        raise SpecError(f"{source} has {len(places)} images, so {count} cannot be chosen")
    return tuple(places[:count])


def fingerprint_cells(plan: Plan, cells: Sequence[WorkCell]) -> dict[int, str]:
    """Fingerprint of every cell by number: its images (index and key) and the stamp of the checkpoint file.

    A finished cell is computed again if its fingerprint has changed, for example because images were added to the
    folder or the checkpoint was overwritten.
    """
    weights = [stamp_file(model.checkpoint) for model in plan.models]
    fingerprints = {}
    for cell in cells:
        keys = open_cached(plan.datasets[cell.dataset]).keys
        image_lines = [f"{place} {keys[place]}" for place in cell.places]
        fingerprints[cell.number] = digest(
            weights[cell.model].encode(), *(line.encode() for line in image_lines), size=8
        )
    return fingerprints


def stamp_file(file: str | None) -> str:
    """Size and modification time of a file; an empty string if there is no such file."""
    if file is None or not Path(file).is_file():
        return ""
    stat = Path(file).stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def select_shard(cells: Sequence[WorkCell], shard: str) -> list[WorkCell]:
    """Cells of one shard: "2/8" selects every eighth cell, starting with the second.

    Raises
    ------
    SpecError
        If `shard` is not of the form i/n with 1 ≤ i ≤ n.
    """
    try:
        number, count = parse_fraction(shard)
    except SpecError as problem:
        raise SpecError(f"--shard {shard!r} {problem}") from None
    return [cell for cell in cells if cell.number % count == number - 1]
