"""The benchmark of `vitreous map` on a small model."""

from __future__ import annotations

import map_rate
import pytest

from vitreous.bench.plan import ModelSpec
from vitreous.mapping.explain import MapExplainer
from vitreous.mapping.job import MapJob


@pytest.mark.slow
def test_rates_are_measured_on_a_batch_in_memory():
    explainer = MapExplainer(MapJob(ModelSpec("scenes"), "scenes:single", ("gradcam",)), "cpu")

    assert map_rate.measure_rate_in_memory(explainer, batch=1, seconds=0.0) > 0
