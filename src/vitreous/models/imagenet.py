"""Names and WordNet ids of the 1000 classes of ImageNet-1k, in the order that published classifiers use."""

from __future__ import annotations

from functools import cache


@cache
def wnids() -> tuple[str, ...]:
    """WordNet ids of classes 0 to 999, which is also their alphabetical order."""
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_label_name(i) for i in range(1000))


@cache
def index_of_wnid() -> dict[str, int]:
    """Mapping from WordNet id to class index."""
    return {wnid: index for index, wnid in enumerate(wnids())}


@cache
def imagenet_classes(count: int) -> tuple[str, ...] | None:
    """Class names of ImageNet-1k if `count` is 1000, else None."""
    if count != 1000:
        return None
    from timm.data.imagenet_info import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return tuple(info.index_to_description(i).split(",")[0] for i in range(count))
