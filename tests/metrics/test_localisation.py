"""Where the evidence is known, right and wrong can be told apart."""

from __future__ import annotations

import pytest
import torch

from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.localisation import average_precision, pointing_game
from vitreous.models.vit import Layout


def attribution(patches: torch.Tensor, patch: int = 1) -> Attribution:
    side = int(patches.shape[-1] ** 0.5)
    return Attribution(
        patches, Layout((side, side), (patch, patch), 1), torch.zeros(len(patches), dtype=torch.long), "x"
    )


def slow_average_precision(scores: torch.Tensor, inside: torch.Tensor) -> float:
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = scores >= threshold
        precision = (chosen & inside).sum().item() / chosen.sum().item()
        now = (chosen & inside).sum().item() / inside.sum().item()
        area, recall = area + (now - recall) * precision, now
    return area


def test_average_precision_is_the_area_over_distinct_scores():
    draw = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (20, 25), generator=draw).double()
    objects = torch.rand(20, 5, 5, generator=draw) > 0.7
    ours = average_precision(attribution(scores), objects)

    for row in range(20):
        assert ours[row].item() == pytest.approx(slow_average_precision(scores[row], objects[row].flatten()))


def test_a_perfect_map_scores_one_and_a_constant_one_the_objects_share():
    objects = torch.zeros(1, 4, 4, dtype=torch.bool)
    objects[:, :2] = True
    perfect, constant = attribution(objects.flatten(1).double()), attribution(torch.ones(1, 16).double())

    assert average_precision(perfect, objects).item() == 1
    assert pointing_game(perfect, objects).item() == 1
    assert average_precision(constant, objects).item() == 0.5
    assert pointing_game(constant, objects).item() == 0.5


def test_a_picture_without_its_object_has_no_score():
    nothing = torch.zeros(1, 4, 4, dtype=torch.bool)

    assert pointing_game(attribution(torch.rand(1, 16)), nothing).isnan().all()
    assert average_precision(attribution(torch.rand(1, 16)), nothing).isnan().all()


def test_maps_and_masks_must_be_as_many():
    with pytest.raises(ShapeError, match="1 maps and 2 masks"):
        pointing_game(attribution(torch.rand(1, 16)), torch.zeros(2, 4, 4, dtype=torch.bool))
