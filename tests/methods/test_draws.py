"""Noise is what torch draws of each picture's own source, in however many blocks and threads; subsets are sorted by their size."""

from __future__ import annotations

import os

import pytest
import torch

from vitreous.capture.subsets import Sizes
from vitreous.capture.threads import crew
from vitreous.methods import controls, masks
from vitreous.methods.paths import several
from vitreous.metrics import imputation

PICTURES = torch.randn(3, 3, 8, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["one thread", "several threads, blocks of two"])
def at_work(request, monkeypatch):
    if request.param != "one thread":
        monkeypatch.setattr(controls, "ROOM", 2 * PICTURES[0].nbytes)
        for room in (controls, imputation):
            monkeypatch.setattr(room, "mapped", lambda *work: list(crew(os.getpid()).map(*work)))


@pytest.mark.parametrize("normal", [True, False])
def test_noise_of_a_pair_is_one_draw_of_its_source(at_work, normal):
    row, subset = [2, 0, 0, 1, 2], [5, 0, 1, 3, 4]
    draw = torch.randn if normal else torch.rand

    found = masks.noise(PICTURES, 7, normal)(row, subset)

    seeds = [controls.content_seeds(PICTURES[r : r + 1], 7)[0] for r in row]
    for one, seed, place in zip(found, seeds, subset, strict=True):
        assert torch.equal(one, draw(3, 8, 6, generator=torch.Generator().manual_seed(seed + place)))


def test_draws_of_one_source_follow_each_other(at_work):
    found = several(PICTURES.shape[1:], controls.generators(PICTURES, 1), 4, PICTURES.device)

    for places, source in zip(found, controls.generators(PICTURES, 1), strict=True):
        assert all(torch.equal(place, torch.randn(3, 8, 6, generator=source)) for place in places)


def test_a_picture_has_its_seed_whatever_its_strides_and_neighbours(at_work):
    seeds = controls.content_seeds(PICTURES, 3)

    assert len(set(seeds)) == len(PICTURES)
    assert controls.content_seeds(PICTURES.to(memory_format=torch.channels_last).flip(0), 3) == seeds[::-1]
    assert controls.content_seeds(PICTURES.repeat_interleave(2, 0)[::2], 3) == seeds


def test_pictures_are_filled_in_the_same_side_by_side(at_work, monkeypatch):
    pytest.importorskip("scipy")
    visible = torch.rand(3, 8, 6, generator=torch.Generator().manual_seed(1)) > 0.5
    alone = [imputation.solved(*pair) for pair in zip(PICTURES.split(1), visible.split(1), strict=True)]
    monkeypatch.setattr(imputation, "ROOM", 1)

    assert torch.equal(imputation.imputed(PICTURES, visible), torch.cat(alone))


def test_subsets_of_one_size_come_together_in_their_order():
    keep = torch.rand(4, 9, 5, generator=torch.Generator().manual_seed(2)) > 0.4
    counts = keep.sum(-1).flatten().tolist()

    found = {count: same.tolist() for count, same in Sizes.of(keep)}

    assert list(found) == sorted(set(counts))
    assert found == {size: [i for i, count in enumerate(counts) if count == size] for size in found}
