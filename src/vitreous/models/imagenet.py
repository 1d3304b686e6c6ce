"""The thousand classes of ImageNet-1k by their WordNet ids, in the order of every published head."""

from __future__ import annotations

from functools import cache


@cache
def wnids() -> tuple[str, ...]:
    """WordNet ids of classes 0 to 999; they are sorted."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_label_name(i) for i in range(1000))


@cache
def index_of_wnid() -> dict[str, int]:
    """Class of a WordNet id."""
    return {wnid: index for index, wnid in enumerate(wnids())}
