"""Image metrics beside their bare forwards: pixels are replaced and the model is run again.

ROAD also solves its linear systems, and IDSDS sums cells; they have no target.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from suite import bare
from suite.bed import Bed
from suite.case import Case
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric

STEPS = 14
GROUPS = ("metrics",)


def forwards(steps: int) -> dict[str, int]:
    """How many images beside the clean one every metric shows the model."""
    steps_option = f"steps={steps}"
    counts = {
        f"deletion({steps_option}, baseline={baseline!r})": steps for baseline in ("blur", "black", "mean", "random")
    }
    counts[f"insertion({steps_option})"] = steps - 1  # the last step is the clean image
    counts[f"insertion_minus_deletion({steps_option})"] = 2 * steps - 1
    counts |= {"positive_auc": 9, "negative_auc": 9, "aopc": 20, "lodds": 20}
    return counts | {"idsds(cells=4)": 16, "road(levels=(0.1, 0.5, 0.9))": 3}


def cases(bed: Bed) -> Iterator[Case]:
    layout = bed.vit.layout(bed.vit.size)
    few = bed.few if bed.cuda or bed.size == "test" else bed.images[: 2 - bed.quick]
    labels = torch.zeros(len(few), dtype=torch.long, device=bed.device)
    scores = torch.randn(len(few), layout.patches, generator=torch.Generator().manual_seed(3)).to(few)
    maps = Attribution(scores, layout, labels, "given")

    def measure(spec: str) -> object:
        return resolve_metric(spec)(maps, probe=Probe(bed.vit, few, labels), labels=labels)

    for spec, count in forwards(4 if bed.size == "test" else STEPS).items():
        yield Case(
            "metrics",
            spec,
            "its bare forwards",
            partial(measure, spec),
            bare.pictures(bed, count * len(few), len(few)),
            at_most=None if spec.startswith(("road", "idsds")) else 1.25,
            pictures=(len(few), len(few)),
        )
