"""Every image belongs to one slice and one shard, independently of what was finished before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from vitreous.mapping.job import Share, iterate_slices, name_shard
from vitreous.mapping.source import ImageSource, SourceItem


@dataclass(frozen=True)
class Numbers:
    """A part whose images are numbers."""

    images: int

    def items(self, start: int) -> Any:
        return (SourceItem(f"{number}", number) for number in range(start, self.images))

    def load(self, item: SourceItem) -> Any:
        raise NotImplementedError

    def stamp(self, start: int, stop: int) -> str:
        return ""


def listed(source: ImageSource, finished: dict[str, int], batch: int, shard: int, share: Share) -> list[Any]:
    parts = range(len(source.parts))
    return [work for part in parts for work in iterate_slices(source, part, finished, batch, shard, share)]


@pytest.mark.parametrize("sizes", [(0,), (1,), (12,), (13, 0, 8), (5, 5, 5, 5)])
def test_shares_and_finished_shards_complete_each_other(sizes: tuple[int, ...]) -> None:
    source = ImageSource("numbers", "numbers", tuple(map(Numbers, sizes)))
    draw = random.Random(0)
    everything = sorted((part, number) for part, size in enumerate(sizes) for number in range(size))
    for _ in range(40):
        batch, shard, shares = draw.randint(1, 7), draw.randint(1, 7), draw.randint(1, 3)
        finished, done = {}, []
        for part, size in enumerate(sizes):
            for number in range(-(-size // shard)):
                images = min(shard, size - number * shard)
                upto = draw.choice([0, images, draw.randint(0, images)])
                # a complete shard counts as a full one, also if it is the last of its part
                finished[name_shard(source, part, number)] = shard if upto == images else upto
                done += [(part, number * shard + place) for place in range(upto)]
        slices = [work for at in range(shares) for work in listed(source, finished, batch, shard, Share(at, shares))]

        assert sorted(done + [(work.range.part, item.place) for work in slices for item in work.items]) == everything
        for span, items in slices:
            assert span.shard == name_shard(source, span.part, span.start // shard)
            assert [item.place for item in items] == list(range(span.start, span.stop))
            assert len(items) <= batch
            assert (span.stop - 1) // shard == span.start // shard
            assert span.ends_part == (span.stop == sizes[span.part])
            assert span.ends_shard == (span.ends_part or span.stop % shard == 0)
