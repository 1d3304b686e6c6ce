"""The Swin transformer of the package: its predictions, and maps that find the known evidence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vitreous
from vitreous.scenes import MODELS, Scenes, load_model, tensor

FRESH = 987_654


@pytest.fixture(scope="module")
def network() -> vitreous.Network:
    return vitreous.load("scenes-swin")


@pytest.fixture(scope="module")
def album() -> list:
    return list(Scenes("single", 12, FRESH))


def stacked(album: list) -> Tensor:
    return torch.stack([tensor(scene) for scene in album])


@pytest.mark.slow
def test_it_is_a_network_of_three_stages_with_the_classes_of_scenes(network):
    assert type(network) is vitreous.Network
    assert [block.tokens.grid for block in network.blocks] == [(28, 28)] * 2 + [(14, 14)] * 2 + [(7, 7)] * 4
    assert network.classes == vitreous.load("scenes").classes
    assert network.missing < 1e-4
    assert "scenes-swin" in MODELS


@pytest.mark.slow
def test_it_classifies_most_objects_correctly():
    album = list(Scenes("single", 50, FRESH))
    with torch.inference_mode():
        predicted = load_model("scenes-swin")(stacked(album)).argmax(1)

    assert (predicted == torch.tensor([scene.target for scene in album])).float().mean() >= 0.85


@pytest.mark.slow
def test_its_maps_are_complete_and_find_the_evidence(network, album):
    images, targets = stacked(album), [scene.target for scene in album]
    objects = torch.stack([torch.from_numpy(scene.objects[0].evidence) for scene in album])
    whole = vitreous.explain(network, images, targets, "decompx")

    torch.testing.assert_close(whole.patches.sum(-1) + whole.bias, whole.score, rtol=1e-3, atol=1e-3)
    chance = objects.flatten(1).float().mean(1).mean()
    for spec in ("temper", "decompx+plus"):
        attribution = vitreous.explain(network, images, targets, spec)
        found = vitreous.evaluate(network, images, attribution, "ap", objects=objects).scores.mean()
        assert attribution.maps().shape == (12, 28, 28)
        assert found > 3 * chance, f"{spec}: {found:.2f}, chance {chance:.2f}"
