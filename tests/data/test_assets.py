"""The real datasets in the assets can be read."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data import batches, open_dataset, subset
from vitreous.models.image_input import Preprocess

SEES = Preprocess((224, 224), (248, 248), "shortest")


def test_imagenet_with_boxes(assets):
    dataset = open_dataset("assets:imagenet-val-1k-256")
    with (assets / "imagenet-val-1k-256" / "boxes.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert len(dataset) == 1000
    assert dataset.classes[340] == "zebra"
    for index in (0, 123, 999):
        own = [row for row in rows if row["file"] == dataset.keys[index]]
        sample = dataset[index]
        assert sample.label == int(own[0]["label"])
        assert sample.boxes.tolist() == [[float(row[one]) for one in ("x0", "y0", "x1", "y1")] for row in own]
        assert sample.image.size == (int(own[0]["width"]), int(own[0]["height"]))


def test_pets_with_trimaps(assets):
    dataset = open_dataset("assets:oxford-pets-480")

    (batch,) = batches(dataset, SEES, subset(dataset, 8, seed=0), batch_size=8)

    assert len(dataset) == 480
    assert batch.failures == []
    for index, key in enumerate(batch.keys):
        trimap = np.asarray(Image.open(assets / "oxford-pets-480" / "trimaps" / f"{key}.png"))
        seen = SEES.masks(trimap)
        assert torch.equal(batch.objects[index] == 1, seen == 1)
        assert torch.equal(batch.objects[index] == -1, seen == 3)
    assert (batch.objects == 1).flatten(1).any(1).all()


@pytest.mark.parametrize("name", ["imagenet-val-1k-256", "oxford-pets-480"])
def test_every_key_has_a_class(assets, name):
    dataset = open_dataset(assets / name)

    assert len(set(dataset.keys)) == len(dataset)
    assert all(0 <= dataset[index].label < 1000 for index in range(0, len(dataset), 61))
