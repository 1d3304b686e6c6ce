"""Number of forward passes that several metrics of the same maps need together, counted without running a model.

Metrics that remove patches or pixels share model outputs, so the sum of what each of them states is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.metrics.metric import Metric
from vitreous.metrics.model_outputs import Paint, PerturbedModel, PerturbedOutputs
from vitreous.models.layout import Layout


class CountedModel(PerturbedModel):
    """A `PerturbedModel` without a model: outputs are zeros, and those that would have to be computed are counted.

    What else a metric reads of a model is missing, so that metrics which run the model themselves raise AttributeError.
    """

    def __init__(self, layout: Layout) -> None:
        probe = SimpleNamespace(layout=layout, images=torch.zeros(1, 1, *layout.size), targets_per_image=1)
        object.__setattr__(self, "probe", probe)
        object.__setattr__(self, "labels", torch.zeros(1, dtype=torch.long))
        object.__setattr__(self, "forwards", 0)
        object.__setattr__(self, "computed", {})

    def get_or_compute(self, key: Any, make: Callable[[], Any]) -> Any:
        return Paint(
            lambda visible, image, count: make(), (key,)
        )  # the only other common results are ranks, which are replaced here

    @property
    def patch_ranks(self) -> Int[Tensor, "r p"]:
        return torch.arange(self.probe.layout.patches)[None]

    @property
    def pixel_ranks(self) -> Int[Tensor, "r n"]:
        return torch.arange(self.probe.images[0, 0].numel())[None]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def add(self, count: int, shown: int) -> PerturbedOutputs:
        """Count forward passes; return outputs of `shown` levels."""
        object.__setattr__(self, "forwards", self.forwards + count)
        return PerturbedOutputs(torch.zeros(1, shown, 7), self)

    def outputs_of_pixels(self, numbers: Any, visible: Any, paint: Any) -> PerturbedOutputs:
        return self.add(len(numbers), len(numbers))

    def _outputs_by_count(self, key: Any, counts: Sequence[int], rank: Tensor, compute: Any) -> PerturbedOutputs:
        known_counts = self.computed.setdefault(key, {rank.shape[1]})
        new = set(counts) - known_counts
        known_counts |= new
        return self.add(len(new), len(counts))


# properties of the base class that are computed from the model
CountedModel.classes = property(lambda self: torch.zeros(1, 3, dtype=torch.long))  # pyright: ignore[reportAttributeAccessIssue]
CountedModel.whole = property(lambda self: torch.zeros(1, 7))  # pyright: ignore[reportAttributeAccessIssue]


def count_shared_passes(metrics: Sequence[Metric], layout: Layout) -> dict[str, int]:
    """Forward passes that each metric adds to those before it, beside the pass of the whole image.

    Parameters
    ----------
    metrics
        Metrics that are measured on the same maps, in this order.
    layout
        Patches and size of the model's images.

    Returns
    -------
    dict
        Number by spec; metrics that run the model in another way are left out.
    """
    model, passes = CountedModel(layout), {}
    for metric in metrics:
        measure = getattr(metric.function, "of_perturbed_model", None)
        before = model.forwards
        try:
            if measure is not None:
                measure(model, **metric.settings)
                passes[metric.spec] = model.forwards - before
        except (AttributeError, VitreousError):  # it runs the model itself, or does not fit it
            object.__setattr__(model, "forwards", before)
    return passes
