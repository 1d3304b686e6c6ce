"""Annealed maps: the mean of a map over coalitions that a patch belongs to."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.models.families import pictures, seen, tiny
from tests.reference.reference import HELD
from tests.reference.scene import look
from tests.reference.tokens import token_x_gradient
from vitreous.capture import path_gradients
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.coalition_methods import draw_coalitions
from vitreous.methods.spec import resolve

TARGETS = [3, 1]


class Those(nn.Module):
    """Replaces timm's patch dropping: only these tokens are kept."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.tokens]


def slow_temper(family: str, image: int, patches: list[int]) -> dict[int, float]:
    """`temper` of the patches of one coalition."""
    model = copy.deepcopy(tiny(family))
    prefix = model.num_prefix_tokens
    model.patch_drop = Those([*range(prefix), *(prefix + patch for patch in patches)])
    scene = look(model, pictures()[image], TARGETS[image], "probability", **HELD["tempered"])
    total = sum(token_x_gradient(scene, layer) for layer in range(scene.L))
    return {patch: total[prefix + place].item() for place, patch in enumerate(patches)}


@pytest.mark.parametrize("family", ["vit-even", "vit-mean"])
def test_an_annealed_map_is_the_mean_over_coalitions(family):
    found = vitreous.explain(seen(family), pictures(), TARGETS, "anneal(coalitions=4, kept=0.4, of='temper')").patches
    keep = draw_coalitions(pictures(), 12, 4, 0.4, True, seed=0)

    for image in range(2):
        heard: list[list[float]] = [[] for _ in range(12)]
        for coalition in [*keep[image], torch.ones(12, dtype=torch.bool)]:
            for patch, score in slow_temper(family, image, coalition.nonzero()[:, 0].tolist()).items():
                heard[patch].append(score)
        slow = torch.tensor([sum(scores) / len(scores) for scores in heard], dtype=torch.float64)

        assert all(len(scores) == 3 for scores in heard)
        torch.testing.assert_close(found[image], slow, rtol=0, atol=1e-9 * slow.abs().max().item())


def test_pairs_are_complements_and_depend_on_the_image():
    images = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    keep = draw_coalitions(images, 49, 6, 0.5, True, seed=1)

    assert keep.shape == (3, 6, 49)
    assert (keep[:, 0::2] ^ keep[:, 1::2]).all()
    assert set(keep.sum(-1).flatten().tolist()) == {24, 25}
    assert not (keep[0] == keep[1]).all()
    assert (draw_coalitions(images[1:2], 49, 6, 0.5, True, seed=1)[0] == keep[1]).all()
    assert not (draw_coalitions(images, 49, 6, 0.5, True, seed=2) == keep).all()


def test_pairs_take_several_sizes_in_turn():
    keep = draw_coalitions(torch.zeros(1, 3, 8, 8), 20, 6, (0.1, 0.5), True, seed=0)
    assert keep.sum(-1).tolist() == [[2, 18, 10, 10, 2, 18]]


def test_coalitions_may_be_drawn_one_by_one():
    keep = draw_coalitions(torch.zeros(1, 3, 8, 8), 20, 3, 0.75, False, seed=0)
    assert keep.sum(-1).tolist() == [[15, 15, 15]]

    found = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "anneal(coalitions=1, kept=0.1, complements=False)")
    whole = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "fuse")
    alone = draw_coalitions(pictures(), 12, 1, 0.1, False, seed=0)[:, 0]
    assert found.patches.isfinite().all()  # a patch in no coalition is still in the whole image
    torch.testing.assert_close(found.patches[~alone], whole.patches[~alone])


@pytest.mark.slow
def test_batched_and_single_coalitions_agree(monkeypatch):
    probe = Probe(seen("vit-mean"), pictures(), torch.tensor([[1, 2], [3, 4]]), "probability")
    together = resolve("anneal(coalitions=6)")(probe).patches
    monkeypatch.setattr(path_gradients, "coalitions_at_once", lambda probe, count: 1)
    alone = resolve("anneal(coalitions=6)")(probe).patches

    torch.testing.assert_close(alone, together, rtol=0, atol=1e-12 * together.abs().max().item())


def test_images_may_be_on_another_device_than_the_model():
    """Benchmarks keep images on the CPU; coalitions select tokens, which are on the device of the model."""
    probe = Probe(seen("vit-mean"), pictures(), torch.tensor(TARGETS), "probability")
    keep = draw_coalitions(pictures(), 12, 4, 0.5, True, seed=0)
    scores_of = resolve("temper").token_scores
    found = path_gradients.in_coalitions(probe, keep, scores_of)
    probe.originals = probe.originals.to("meta")

    torch.testing.assert_close(path_gradients.in_coalitions(probe, keep, scores_of), found)


def test_another_map_can_be_averaged():
    found = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "anneal(coalitions=4, of='genatt')")
    assert not found.signed
    assert (found.patches >= 0).all()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("anneal(coalitions=3)", "even number"),
        ("anneal(coalitions=0)", "even number"),
        ("anneal(kept=0.0)", "kept=0.0"),
        ("anneal(kept=1.0)", "kept=1.0"),
        ("anneal(of='tis')", "does not bring layers together"),
        ("anneal(of='rollout')", "whatever is asked"),
        ("anneal(of='nothing')", "nothing"),
        ("anneal(of='temper(question=\"logit\")')", "say it of the whole"),
    ],
)
def test_methods_that_cannot_be_averaged_are_refused(spec, sentence):
    with pytest.raises(SpecError, match=sentence):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, spec)
