"""Image metrics, which replace pixels and run the model again, relative to plain forward passes.

ROAD also solves its linear systems, and IDSDS sums cells; they have no target.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from suite import bare
from suite.case import Case
from suite.workload import Workload
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric

STEPS = 14
GROUPS = ("metrics",)


def count_forwards(steps: int) -> dict[str, int]:
    """Number of perturbed images of every metric."""
    steps_option = f"steps={steps}"
    counts = {
        f"deletion({steps_option}, baseline={baseline!r})": steps for baseline in ("blur", "black", "mean", "random")
    }
    counts[f"insertion({steps_option})"] = steps - 1  # the last step is the clean image
    counts[f"insertion_minus_deletion({steps_option})"] = 2 * steps - 1
    counts |= {"positive_auc": 9, "negative_auc": 9, "aopc": 20, "lodds": 20}
    return counts | {"idsds(cells=4)": 16, "road(levels=(0.1, 0.5, 0.9))": 3}


def cases(workload: Workload) -> Iterator[Case]:
    layout = workload.vit.layout(workload.vit.size)
    few = workload.few if workload.cuda or workload.size == "test" else workload.images[: 2 - workload.quick]
    labels = torch.zeros(len(few), dtype=torch.long, device=workload.device)
    scores = torch.randn(len(few), layout.patches, generator=torch.Generator().manual_seed(3)).to(few)
    maps = Attribution(scores, layout, labels, "given")

    def measure(spec: str) -> object:
        return resolve_metric(spec)(maps, probe=Probe(workload.vit, few, labels), labels=labels)

    for spec, count in count_forwards(4 if workload.size == "test" else STEPS).items():
        yield Case(
            "metrics",
            spec,
            "its bare forwards",
            partial(measure, spec),
            bare.make_image_forwards(workload, count * len(few), len(few)),
            at_most=None if spec.startswith(("road", "idsds")) else 1.25,
            pictures=(len(few), len(few)),
        )
