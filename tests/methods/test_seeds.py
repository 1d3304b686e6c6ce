"""Random draws depend on the image and the seed, not on the precision of the model."""

from __future__ import annotations

import pytest
import torch

from vitreous.capture.probe import Probe
from vitreous.methods.path_methods import draw_noise
from vitreous.testing import tiny_vits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_smoothgrad_draws_the_same_noise_in_every_precision(dtype):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    probes = [Probe(tiny_vits(kind)["class token"], images) for kind in (torch.float32, dtype)]
    drawn = [torch.cat(list(draw_noise(probe, probe.images, 3, 1.0, seed=4)), 1) for probe in probes]

    assert torch.equal(drawn[0].to(dtype), drawn[1])
    assert not torch.equal(drawn[0][0], drawn[0][1])
