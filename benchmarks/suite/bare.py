"""Plain forward passes: timm's module on prepared inputs of the same number and lengths, in batches that fit into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from suite.sides import make_probe
from suite.workload import Workload
from vitreous.capture.memory import rows_that_fit

TENTHS = [tenth / 10 for tenth in range(1, 10)]


def make_sequence_forwards(workload: Workload, lengths: Iterable[int], whole: int) -> Callable[[], None]:
    """Encoder and head on a sequence of each length, equal lengths in one batch, and the model on `whole` images."""
    model: Any = workload.model
    tokens, counted = make_probe(workload).tokens, sorted(Counter(lengths).items())

    def fit(length: int) -> int:
        return rows_that_fit(length, tokens.shape[2], tokens.element_size(), tokens.device)

    most = max(min(fit(length), count) for length, count in counted)
    ready = tokens.repeat(-(-most // len(tokens)), 1, 1)

    @torch.no_grad()
    def run() -> None:
        model(workload.images[:whole])
        for length, count in counted:
            chunk = min(fit(length), count, len(ready))  # free memory may have grown since
            for start in range(0, count, chunk):
                model.forward_head(model.norm(model.blocks(ready[: min(chunk, count - start), :length])))

    return run


def make_image_forwards(workload: Workload, count: int, whole: int) -> Callable[[], None]:
    """The model on `count` images, in batches that fit into memory, and on a separate batch of `whole` clean images."""
    ready = make_noise(workload, min(make_probe(workload).images_that_fit, count))

    @torch.no_grad()
    def run() -> None:
        workload.model(workload.images[:whole])
        for start in range(0, count, len(ready)):
            workload.model(ready[: count - start])

    return run


def make_noise(workload: Workload, count: int, different: int = 32) -> Tensor:
    """Images of noise; only a few are different, since drawing thousands on a CPU takes seconds."""
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn(min(count, different), *workload.images.shape[1:], generator=draw).to(workload.images)
    return noise.repeat(-(-count // len(noise)), 1, 1, 1)[:count]
