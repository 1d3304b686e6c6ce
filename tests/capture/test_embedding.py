"""A convolution with non-overlapping windows as a matrix product: the same tokens and gradients; other convolutions are unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.cases import each
from tests.models.families import FAMILIES, pictures, seen
from vitreous.capture import forward


@pytest.fixture
def made(monkeypatch) -> list[tuple]:
    """Every convolution that became a product."""
    found, product = [], forward.patch_product
    monkeypatch.setattr(forward, "patch_product", lambda *given: found.append(given) or product(*given))
    return found


@each("family", FAMILIES)
def test_tokens_and_pixel_gradients_equal_those_of_the_model(family, made):
    made.clear()
    vit, walked, own = seen(family), pictures().clone().requires_grad_(), pictures().clone().requires_grad_()

    tokens, expected = forward.embed(vit, walked), vit.embed(own)

    assert len(made) == 1
    torch.testing.assert_close(tokens, expected, rtol=1e-12, atol=1e-12)
    back = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0), dtype=tokens.dtype)
    found, wanted = (torch.autograd.grad(t, x, back)[0] for t, x in ((tokens, walked), (expected, own)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_without_a_backward_pass_the_convolution_is_unchanged(made):
    vit = seen("vit")
    forward.embed(vit, pictures())
    with torch.no_grad():
        forward.embed(vit, pictures().clone().requires_grad_())

    assert made == []


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"kernel_size": 4, "stride": 2}, (8, 12)),  # windows overlap
        ({"kernel_size": 4, "stride": 4, "padding": 2}, (8, 12)),
        ({"kernel_size": 4, "stride": 4}, (9, 12)),  # a row is left over
        ({"kernel_size": 2, "stride": 2, "dilation": 2}, (8, 12)),
        ({"kernel_size": 4, "stride": 4, "groups": 3}, (8, 12)),
        ({"kernel_size": (2, 4), "stride": (4, 2)}, (8, 12)),
    ],
)
def test_other_convolutions_are_unchanged(settings, size, made):
    layer = nn.Conv2d(3, 6, **settings)
    with forward.AsProducts():
        layer(torch.randn(2, 3, *size))

    assert made == []


@pytest.mark.parametrize("bias", [True, False])
def test_windows_need_not_be_square(bias, made):
    torch.manual_seed(0)
    layer, images = nn.Conv2d(3, 5, (2, 4), (2, 4), bias=bias).double(), torch.randn(2, 3, 8, 12).double()
    with forward.AsProducts():
        found = layer(images)

    assert len(made) == 1
    torch.testing.assert_close(found, layer(images), rtol=1e-13, atol=1e-13)
