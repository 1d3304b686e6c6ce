"""What `vitreous map` computes, as plain values that are sent to every process, and the slices it is computed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from vitreous.bench.keys import hash_entries
from vitreous.core.plugins import reduce_with_plugins
from vitreous.mapping.source import ImageSource, SourceItem

if TYPE_CHECKING:
    from vitreous.bench.plan import ModelSpec, Targets

FORMAT = "vitreous.maps/3"
SHARD_SIZE = 4096  # images in an output file
BATCH_SIZE = {"cuda": 64, "cpu": 16}  # images in a batch, if none is given


@dataclass(frozen=True, slots=True)
class MapJob:
    """What is computed for every image.

    Parameters
    ----------
    model
        The model.
    spec
        Spec of the source.
    methods
        Canonical specs of the methods.
    targets
        Classes to explain: as the entry `targets` of a plan.
    question
        Name of the score function; None for the default of each method.
    precision
        Precision of the computation.
    images
        Number of images; None for all.
    shard_size
        Number of images in an output file.
    weights
        Hash of the model's weights, filled when the model was loaded.
    code
        Code that computes the maps, as from `vitreous.bench.code_record.format_code`; filled with the weights.
    """

    model: ModelSpec
    spec: str
    methods: tuple[str, ...]
    targets: Targets = "predicted"
    question: str | None = None
    precision: str = "float32"
    images: int | None = None
    shard_size: int = SHARD_SIZE
    weights: str = ""
    code: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_with_plugins(MapJob, *(getattr(self, entry.name) for entry in fields(self)))

    @property
    def run(self) -> str:
        """Hash of everything that determines the rows but the code; files of other jobs are not continued."""
        entries = asdict(self)
        del entries["code"]
        return hash_entries({**entries, "format": FORMAT})


class SliceRange(NamedTuple):
    """Which images a slice holds.

    Parameters
    ----------
    shard
        Name of the output file that their maps go to.
    part
        Index of the part of the source.
    start, stop
        Indices in the part of the first image and of the one after the last.
    ends_shard, ends_part
        Whether the shard, and the part, end after these images.
    """

    shard: str
    part: int
    start: int
    stop: int
    ends_shard: bool
    ends_part: bool


class Slice(NamedTuple):
    """Images that are decoded and explained together."""

    range: SliceRange
    items: tuple[SourceItem, ...]


def name_shard(source: ImageSource, part: int, number: int) -> str:
    """Name of an output file without its suffix; the mapping from images to files depends on the job only."""
    return f"maps-{number:05d}" if len(source.parts) == 1 else f"maps-{part:05d}-{number:05d}"


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` equal shares of the shards, for processes that work side by side."""

    number: int = 0
    count: int = 1

    def has_part(self, source: ImageSource, part: int) -> bool:
        """Whether any shard of a part is in this share; with many parts, whole parts are shared out."""
        return not self.by_part(source) or part % self.count == self.number

    def has_shard(self, source: ImageSource, part: int, shard: int) -> bool:
        return self.has_part(source, part) and (self.by_part(source) or shard % self.count == self.number)

    def by_part(self, source: ImageSource) -> bool:
        return len(source.parts) >= 2 * self.count


def iterate_slices(
    source: ImageSource,
    part: int,
    finished: Mapping[str, int],
    batch_size: int,
    shard_size: int,
    share: Share = Share(),  # noqa: B008 - immutable
) -> Iterator[Slice]:
    """Slices of one part that are still to be computed, in order.

    Parameters
    ----------
    source, part
        The source and the index of the part.
    finished
        Number of images that each shard already holds, counted from its first image.
    batch_size
        Largest number of images in a slice.
    shard_size
        Number of images in an output file.
    share
        Which shards to list.
    """
    if not share.has_part(source, part):
        return

    def images_done(shard: int) -> int:
        if not share.has_shard(source, part, shard):
            return shard_size
        return finished.get(name_shard(source, part, shard), 0)

    shard = next(shard for shard in count() if images_done(shard) < shard_size)
    first = shard * shard_size + images_done(shard)
    items: list[SourceItem] = []
    listed: Iterator[Any] = chain(source.parts[part].items(first), [None])  # None follows the last image
    for index, (item, following) in enumerate(pairwise(listed), first):
        shard, place = divmod(index, shard_size)
        if place < images_done(shard):  # computed before, or by another process
            continue
        items.append(item)
        ends_part = following is None
        ends_shard = ends_part or place == shard_size - 1
        if ends_shard or len(items) == batch_size:
            start, stop = index + 1 - len(items), index + 1
            name = name_shard(source, part, shard)
            yield Slice(SliceRange(name, part, start, stop, ends_shard, ends_part), tuple(items))
            items = []
