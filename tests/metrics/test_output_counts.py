"""Counted forward passes of metrics that share model outputs equal those of a run."""

from __future__ import annotations

import pytest

import vitreous
from vitreous.capture.probe import probe_of
from vitreous.core.progress import reporting
from vitreous.measure import measure
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.output_counts import count_shared_passes

SHARING = [
    ["deletion_aopc", "deletion_accuracy", "insertion_aopc", "insertion_accuracy", "srg"],
    ["insertion(steps=7)", "deletion(steps=7)", "insertion_minus_deletion(steps=7)", "deletion(steps=14)"],
    ["aopc", "lodds", "positive_auc", "negative_auc"],
    ["sparseness", "deletion_aopc(ratios=(0.5,))", "deletion_aopc"],
]


@pytest.mark.parametrize("specs", SHARING)
def test_the_count_is_that_of_a_run(specs):
    vit = vitreous.load("scenes")
    images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    attribution = vitreous.explain(vit, images, method="ixg")
    metrics = [resolve_metric(spec) for spec in specs]
    runs: list[int] = []

    def report(done: int, total: int) -> None:
        if done == total:
            runs.append(total)

    probe = probe_of(vit, images, attribution.targets)
    probe.full_logits
    with reporting(report):
        measure(metrics, attribution, probe, labels=attribution.targets)

    counted = count_shared_passes(metrics, vit.layout(vit.size))
    assert sum(counted.values()) == sum(runs)


def test_metrics_that_run_the_model_themselves_are_left_out():
    vit = vitreous.load("scenes")
    metrics = [resolve_metric(spec) for spec in ("naopc", "sparseness", "max_sensitivity", "deletion_aopc")]
    assert list(count_shared_passes(metrics, vit.layout(vit.size))) == ["deletion_aopc"]
