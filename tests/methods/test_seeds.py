"""Random draws depend on the image and the seed, not on the precision of the model or on torch's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import vitreous
from tests.cases import each
from vitreous.capture.probe import Probe
from vitreous.methods.path_methods import draw_noise
from vitreous.models.random_draws import normal_numbers, random_order, uniform_numbers
from vitreous.models.vit import ViT
from vitreous.testing import tiny_vits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_smoothgrad_draws_the_same_noise_in_every_precision(dtype):
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    probes = [Probe(tiny_vits(kind)["class token"], images) for kind in (torch.float32, dtype)]
    drawn = [torch.cat(list(draw_noise(probe, probe.images, 3, 1.0, seed=4)), 1) for probe in probes]

    assert torch.equal(drawn[0].to(dtype), drawn[1])
    assert not torch.equal(drawn[0][0], drawn[0][1])


NAMES = [facts["name"] for facts in vitreous.list_methods()]
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def explain(vit: ViT, name: str) -> Tensor:
    method = vitreous.resolve(name)
    method = method.with_options(**{key: v for key, v in method.facts.trial.items() if key not in method.options})
    return vitreous.explain(vit, IMAGES, 1, method).native_maps


@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@pytest.mark.slow
@each("name", NAMES)
def test_a_map_depends_neither_on_the_default_dtype_nor_on_an_autocast_of_the_caller(name):
    vit = tiny_vits(torch.float32)["class token"]
    expected = explain(vit, name)

    with default_dtype(torch.float64):
        assert torch.equal(explain(vit, name), expected)
        assert explain(vit, name).dtype == expected.dtype
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(explain(vit, name), expected)


def test_numbers_are_drawn_on_the_device_of_their_generator():
    source = torch.Generator().manual_seed(3)
    expected = [uniform_numbers(source, (2, 3)), normal_numbers(source, (2,)), random_order(source, 5)]

    source.manual_seed(3)
    with torch.device("meta"), default_dtype(torch.float64):
        drawn = [uniform_numbers(source, (2, 3)), normal_numbers(source, (2,)), random_order(source, 5)]

    assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))
