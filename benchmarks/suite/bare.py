"""Bare forwards: timm's own module on inputs that are ready, as many of the same lengths, as many at a time as fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.bed import Bed
from suite.sides import probed
from vitreous.capture.memory import rows_that_fit

TENTHS = [tenth / 10 for tenth in range(1, 10)]


def sequences(bed: Bed, lengths: Iterable[int], whole: int) -> Callable[[], None]:
    """The encoder and head on as many sequences as there are lengths, those of one length together; the model on `whole` images."""
    model: Any = bed.model
    tokens, counted = probed(bed).tokens, sorted(Counter(lengths).items())

    def fit(length: int) -> int:
        return rows_that_fit(length, tokens.shape[2], tokens.element_size(), tokens.device)

    most = max(min(fit(length), count) for length, count in counted)
    ready = tokens.repeat(-(-most // len(tokens)), 1, 1)

    @torch.no_grad()
    def run() -> None:
        model(bed.images[:whole])
        for length, count in counted:
            chunk = min(fit(length), count, len(ready))  # what is free may have grown since
            for start in range(0, count, chunk):
                model.forward_head(model.norm(model.blocks(ready[: min(chunk, count - start), :length])))

    return run


def pictures(bed: Bed, count: int, whole: int) -> Callable[[], None]:
    """The model on `count` images, as many at a time as fit, and on `whole` clean ones in a batch of their own."""
    ready = noise_images(bed, min(probed(bed).images_that_fit, count))

    @torch.no_grad()
    def run() -> None:
        bed.model(bed.images[:whole])
        for start in range(0, count, len(ready)):
            bed.model(ready[: count - start])

    return run


def noise_images(bed: Bed, count: int, different: int = 32) -> Tensor:
    """Noise, a few images of it again and again: a CPU would draw thousands for seconds."""
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn(min(count, different), *bed.images.shape[1:], generator=draw).to(bed.images)
    return noise.repeat(-(-count // len(noise)), 1, 1, 1)[:count]
