"""DAVE and CAAP: the parts that their descriptions specify, compared with plain loops; neither has reference outputs."""

from __future__ import annotations

import math

import pytest
import torch

import vitreous
from tests.models.families import pictures, seen, tiny
from vitreous.core.errors import SpecError
from vitreous.core.progress import reporting
from vitreous.methods.dave import Warp, filter_bilaterally, mean_without_outliers, smooth_maps
from vitreous.testing import check_method

TARGETS = [3, 1]


# ── DAVE ─────────────────────────────────────────────────────────────────────────────────────────


def test_one_plain_copy_is_input_x_gradient_of_the_frozen_network():
    vit = seen("vit-even")
    plain = "dave(samples=1, alpha=0, transforms=False, smooth=False)"
    found = vitreous.explain(vit, pictures(), TARGETS, plain)
    same = vitreous.explain(vit, pictures(), TARGETS, "ixg(space='pixels')@libra")
    torch.testing.assert_close(found.native_pixels, same.native_pixels)
    assert found.signed


def test_copies_report_progress():
    told = []
    with reporting(lambda done, total: told.append((done, total))):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, "dave(samples=40)")

    assert told[-1] == (80, 80)
    assert len(told) > 2


def test_transforms_move_pixels_where_they_should():
    image = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0)).double()
    still = Warp.affine(6, 8, 0.0, (0.0, 0.0), 1.0, False)
    assert (still(image) == image).all()
    assert (Warp.affine(6, 8, 0.0, (0.0, 0.0), 1.0, True)(image) == image.flip(-1)).all()
    moved = Warp.affine(6, 8, 0.0, (2.0, 1.0), 1.0, False)(image)
    assert (moved[:, 1:, 2:] == image[:, :-1, :-2]).all()
    assert (moved[:, 0] == 0).all()
    square = image[:, :, :6]
    turned = Warp.affine(6, 6, math.pi / 2, (0.0, 0.0), 1.0, False)(square)
    torch.testing.assert_close(turned, square.rot90(-1, (1, 2)))


def test_gradients_come_back_by_the_adjoint():
    draw = torch.Generator().manual_seed(0)
    warp = Warp.draw(7, 9, draw, True)
    u, v = (torch.randn(3, 7, 9, generator=draw).double() for _ in range(2))
    torch.testing.assert_close((warp(u) * v).sum(), (u * warp.adjoint(v)).sum())


def test_outliers_are_left_out_of_the_mean():
    values = [0.9, 1.0, 1.1, 1.2, 50.0]
    maps = torch.tensor(values).double().view(5, 1, 1, 1, 1).expand(-1, -1, 3, -1, -1)
    # the median is 1.1, the median distance 0.1: 50 lies outside of 2.5 · 1.4826 · 0.1
    assert mean_without_outliers(maps).flatten().tolist() == pytest.approx([sum(values[:4]) / 4] * 3)


def test_smoothing_by_loops():
    maps = torch.randn(1, 7, 6, generator=torch.Generator().manual_seed(0)).double()

    def at(grid, y, x):
        return grid[y][x] if 0 <= y < 7 and 0 <= x < 6 else 0.0

    positive = maps[0].clamp(min=0).tolist()
    weight = {d: math.exp(-(d**2) / 98) for d in range(-5, 6)}
    whole = sum(weight.values())
    half = [
        [
            (
                positive[y][x]
                + sum(weight[i] * weight[j] * at(positive, y + i, x + j) for i in weight for j in weight) / whole**2
            )
            / 2
            for x in range(6)
        ]
        for y in range(7)
    ]
    slow = torch.zeros(7, 6).double()
    for y in range(7):
        for x in range(6):
            total = norm = 0.0
            for i in range(-2, 3):
                for j in range(-2, 3):
                    other = at(half, y + i, x + j)
                    share = math.exp(-(i * i + j * j) / 0.5) * math.exp(-((other - half[y][x]) ** 2) / 0.005)
                    total, norm = total + share * other, norm + share
            slow[y, x] = total / norm
    torch.testing.assert_close(filter_bilaterally(torch.tensor(half).double()[None])[0], slow, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(smooth_maps(maps)[0], slow / slow.max(), rtol=1e-5, atol=1e-6)
    assert (smooth_maps(-maps.abs()) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["dave", "dave(smooth=False)", "caap"])
def test_passes_the_contract_tests(spec):
    assert check_method(spec)


# ── CAAP ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3)])
def test_activations_of_a_patch_are_put_into_a_neutral_image(start, stop):
    model, vit, images = tiny("vit-even"), seen("vit-even"), pictures()[:1]
    found = vitreous.explain(vit, images, 3, f"caap(start={start}, stop={stop}, neutral='mean')").patches[0]
    neutral = images.mean((2, 3), keepdim=True).expand_as(images)
    prefix = model.num_prefix_tokens

    def states(image):
        x, found = vit.embed(image), []
        for block in model.blocks:
            found.append(x)
            x = block(x)
        return found, model.forward_head(model.norm(x))[0, 3]

    with torch.no_grad():
        source, _ = states(images)
        _, level = states(neutral)
        for patch in range(12):
            x = vit.embed(neutral)
            for layer, block in enumerate(model.blocks):
                if start <= layer < stop:
                    x = x.clone()
                    x[:, prefix + patch] = source[layer][:, prefix + patch]
                x = block(x)
            slow = model.forward_head(model.norm(x))[0, 3] - level
            torch.testing.assert_close(found[patch], slow, rtol=1e-7, atol=1e-9)


def test_a_range_without_blocks_is_refused():
    with pytest.raises(SpecError, match="the number of blocks"):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, "caap(start=2, stop=1)")
