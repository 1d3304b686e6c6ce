"""Work cut into cells: a model, a data set and a fixed slice of its pictures. A cell depends on the plan and on nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitreous.bench.keys import digest
from vitreous.bench.plan import DataSpec, Plan, one_of
from vitreous.core.errors import SpecError
from vitreous.data import Dataset, open_dataset, subset


@dataclass(frozen=True, slots=True)
class Cell:
    """All methods and metrics of the plan, for one model, on these places of one data set."""

    number: int
    model: int
    dataset: int
    places: tuple[int, ...]


@lru_cache(maxsize=8)
def opened(data: DataSpec) -> Dataset:
    """A data set, opened once per process."""
    return open_dataset(data.spec)


def cells_of(plan: Plan) -> list[Cell]:
    """Slices of `plan.slice` pictures; a plan with more pictures or methods has the same slices, and more of them."""
    cells: list[Cell] = []
    places = [chosen(plan, data) for data in plan.datasets]
    for model, spec in enumerate(plan.models):
        for dataset, data in enumerate(plan.datasets):
            if data.models and spec.label not in data.models:
                continue
            for start in range(0, len(places[dataset]), plan.slice):
                cells.append(Cell(len(cells), model, dataset, places[dataset][start : start + plan.slice]))
    return cells


def chosen(plan: Plan, data: DataSpec) -> tuple[int, ...]:
    """Which places of a data set are looked at: all of its part, or so many of a permutation that the seed decides."""
    dataset = opened(data)
    if not data.part:
        return tuple(range(len(dataset))) if plan.pictures is None else subset(dataset, plan.pictures, plan.seed)
    number, count = one_of(data.part)
    order = range(len(dataset)) if plan.pictures is None else subset(dataset, None, plan.seed)
    mine = tuple(place for place in order if place % count == number - 1)
    if not 0 < (plan.pictures or len(mine)) <= len(mine):
        raise SpecError(
            f"part {data.part} of {dataset.name} has {len(mine)} pictures, so {plan.pictures} cannot be chosen"
        )
    return mine[: plan.pictures]


def asked_of(plan: Plan, cells: Sequence[Cell]) -> dict[int, str]:
    """What every cell asks about, in short: its pictures by name and place, and which file the weights came from.

    A folder grows, and a checkpoint is trained on: a finished cell is one that asked about the same.
    """
    weights = [stamp(model.checkpoint) for model in plan.models]
    found = {}
    for cell in cells:
        keys = opened(plan.datasets[cell.dataset]).keys
        pictures = [f"{place} {keys[place]}" for place in cell.places]
        found[cell.number] = digest(weights[cell.model].encode(), *(one.encode() for one in pictures), size=8)
    return found


def stamp(file: str | None) -> str:
    """Size and time of a file; what is no file has none."""
    if file is None or not Path(file).is_file():
        return ""
    known = Path(file).stat()
    return f"{known.st_size} {known.st_mtime_ns}"


def shard_of(cells: Sequence[Cell], shard: str) -> list[Cell]:
    """`"2/8"`: every eighth cell from the second on."""
    try:
        number, count = one_of(shard)
    except SpecError as problem:
        raise SpecError(f"--shard {shard!r} {problem}") from None
    return [cell for cell in cells if cell.number % count == number - 1]
