"""Fused maps: the sum of a share and a slope, each of which has its own reference implementation."""

from __future__ import annotations

import pytest
import torch

import vitreous
from tests.methods.test_presence import fading
from tests.models.families import pictures, seen, tiny
from tests.reference.reference import HELD
from tests.reference.scene import look
from tests.reference.tokens import token_x_gradient
from vitreous.core.errors import SpecError

TARGETS = [3, 1]


@pytest.mark.parametrize("family", ["vit-even", "vit-mean"])
def test_a_fused_map_is_the_mean_share_and_the_slope(family):
    """Slowly: the share from hooks that hold norms and activations, the slope from a model whose tokens can fade."""
    found = vitreous.explain(seen(family), pictures(), TARGETS, "fuse").patches
    prefix = tiny(family).num_prefix_tokens

    for image, target in enumerate(TARGETS):
        scene = look(tiny(family), pictures()[image], target, "probability", **HELD["tempered"])
        share = sum(token_x_gradient(scene, layer) for layer in range(scene.L)) / scene.L
        there = torch.ones(len(share), dtype=torch.float64, requires_grad=True)
        said = fading(family, there)(pictures()[image : image + 1]).softmax(-1)[0, target]
        (slope,) = torch.autograd.grad(said, there)
        slow = (share + slope)[prefix:]

        torch.testing.assert_close(found[image], slow, rtol=0, atol=1e-9 * slow.abs().max().item())


@pytest.mark.parametrize("family", ["vit-mean", "deit-distilled", "clip", "map-reads-prefix"])
@pytest.mark.parametrize("question", ["probability", "logit"])
def test_its_parts_are_methods(family, question):
    fused, share, slope = (
        vitreous.explain(seen(family), pictures(), TARGETS, f"{name}(question={question!r})").patches
        for name in ("fuse", "temper", "presence")
    )
    torch.testing.assert_close(fused, share / seen(family).depth + slope, rtol=0, atol=1e-12)


def test_two_parallel_backward_passes_may_stream():
    held, streamed = (
        vitreous.explain(seen("vit-mean"), pictures(), [[3, 2], [1, 0]], "fuse", hold=hold).patches
        for hold in (True, False)
    )
    torch.testing.assert_close(streamed, held, rtol=0, atol=1e-12)


def test_it_can_be_annealed():
    made = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "anneal(coalitions=4, of='fuse')").patches
    parts = [
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, f"anneal(coalitions=4, of={of!r})").patches
        for of in ("temper", "presence")
    ]
    torch.testing.assert_close(made, parts[0] / seen("vit-even").depth + parts[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("spec", "instead"), [("fuse+skipplus", "temper\\+skipplus"), ("fuse@libra", "own way back")])
def test_built_in_linearisations_are_not_replaced(spec, instead):
    with pytest.raises(SpecError, match=instead):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, spec)
