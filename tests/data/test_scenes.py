"""Scenes as samples: object and evidence, target and rival."""

from __future__ import annotations

import numpy as np
import pytest

from vitreous.data import open_dataset
from vitreous.scenes import CLASSES, draw


@pytest.mark.parametrize("part", ["object", "evidence"])
def test_a_pair_has_two_masks(part):
    dataset = open_dataset(f"scenes:pair?count=4&seed=7&mask={part}")

    for index in range(4):
        sample, scene = dataset[index], draw("pair", 7, index)
        own, other = scene.objects
        assert np.array_equal(np.asarray(sample.image), scene.image)
        assert (sample.label, list(sample.rivals)) == (scene.target, [other.label])
        wanted = [one.mask if part == "object" else one.evidence for one in (own, other)]
        assert np.array_equal(sample.mask == 1, wanted[0])
        assert np.array_equal(sample.rivals[other.label] == 1, wanted[1])
        assert sample.boxes.tolist() == [list(own.box)]
    assert dataset.classes == CLASSES


def test_kinds_take_their_options():
    stamped = open_dataset("scenes:shortcut?count=2&mark=moved&label=3")

    assert [stamped[index].label for index in range(2)] == [3, 3]
    assert stamped[0].rivals == {}
    assert np.array_equal(np.asarray(stamped[1].image), draw("shortcut", 0, 1, mark="moved", label=3).image)
    assert open_dataset("scenes:").describe()["kind"] == "single"
