"""Outputs of published evaluation code on stored maps and masks: Chefer's segmentation, TIS, captum, Quantus."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from tests.methods.test_goldens import Golden, golden
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.methods.spec import resolve
from vitreous.metrics.complexity import entropy, sparseness
from vitreous.metrics.localisation import (
    ap,
    energy_pointing,
    f1,
    f1_rows,
    map_two_channel,
    miou,
    pixel_accuracy,
    pointing_game,
    resize_map,
)
from vitreous.metrics.robustness import max_sensitivity, sensitivity_to

__all__ = ["golden"]  # the fixture serves here too
MAPS = ("genatt", "ixg_plus")


def stored_map(golden: Golden, which: str) -> Attribution:
    """The patch map that the reference evaluated, as it was stored."""
    if which == "ixg_plus":
        patches = golden.arrays("skipplus_1d_ng")["ixg_plus__top"]
    elif golden.name == "tiny_reg":  # mean patch row of the matrix
        patches = golden.arrays("genatt_matrix")["top"][:, golden.prefix :, golden.prefix :].mean(1)
    else:
        patches = golden.arrays("genatt")["top"]
    layout = golden.vit.layout(golden.vit.size)
    return Attribution(torch.from_numpy(patches).double(), layout, golden.targets["top"], which)


def exact_map(golden: Golden, which: str) -> Attribution:
    """The same; the real model's maps were stored in single precision, and some references read them before that."""
    return made_again(golden, which.replace("_", "+")) if golden.name == "real" else stored_map(golden, which)


@cache
def made_again(golden: Golden, spec: str) -> Attribution:
    return resolve(spec)(Probe(golden.vit, golden.images, golden.targets["top"]))


def masks_in(arrays, golden: Golden) -> torch.Tensor:
    height, width = golden.vit.size
    bits = np.unpackbits(arrays["masks"], axis=1)[:, : height * width]
    return torch.from_numpy(bits.reshape(-1, height, width)).to(torch.int8)


def boxes_in(arrays, pictures: int) -> list[torch.Tensor]:
    rows = torch.from_numpy(arrays["boxes"])
    return [rows[rows[:, 0] == i, 1:5] for i in range(pictures)]


def close(golden: Golden, file: str, found: torch.Tensor, reference: np.ndarray) -> None:
    tolerance = golden.entry(file)["tolerance"]
    np.testing.assert_allclose(found.numpy(), reference, rtol=tolerance["rtol"], atol=tolerance["atol"])


# pixels of an enlarged map that are equal in exact arithmetic are ordered by rounding, which differs between CPU kernels
TIES = 1e-3


@pytest.mark.parametrize("which", MAPS)
def test_segmentation_agrees_with_the_published_evaluation(golden, which):
    arrays, found = golden.arrays("metric_segmentation"), stored_map(golden, which)
    objects = masks_in(arrays, golden)
    accuracy, iou = pixel_accuracy(found, objects=objects), miou(found, objects=objects)
    precision, rows = map_two_channel(found, objects=objects), f1_rows(found, objects=objects)
    parts = torch.stack([accuracy.parts["correct"], accuracy.parts["labelled"]], 1)
    areas = [
        torch.stack([iou.parts[f"{what}_{side}"] for side in ("background", "object")], 1)
        for what in ("intersection", "union")
    ]
    summary = torch.tensor([accuracy.value, iou.value, precision.value, rows.value], dtype=torch.float64)

    close(golden, "metric_segmentation", parts, arrays[f"{which}_correct_labeled"])
    close(golden, "metric_segmentation", torch.stack(areas, 1), arrays[f"{which}_inter_union"])
    np.testing.assert_allclose(precision.scores.numpy(), arrays[f"{which}_ap"], rtol=0, atol=TIES)
    close(golden, "metric_segmentation", rows.scores, arrays[f"{which}_f1_rowmean_as_published"])
    close(golden, "metric_segmentation", f1(found, objects=objects).scores, arrays[f"{which}_f1_image"])
    published, exact = arrays[f"{which}_summary_pixacc_miou_map_mf1published"], [0, 1, 3]
    close(golden, "metric_segmentation", summary[exact], published[exact])
    np.testing.assert_allclose(summary[2].item(), published[2], rtol=0, atol=TIES)


@pytest.mark.parametrize("which", MAPS)
def test_pointing_agrees_with_tis(golden, which):
    arrays, found = golden.arrays("metric_pointing_game"), exact_map(golden, which)
    boxes = boxes_in(arrays, len(found))
    hits = pointing_game.with_options(preset="tis")(found, boxes=boxes)
    energy = energy_pointing.with_options(preset="tis")(found, boxes=boxes)

    close(golden, "metric_pointing_game", hits.scores, arrays[f"{which}_hit"])
    close(golden, "metric_pointing_game", energy.scores, arrays[f"{which}_energy"])
    assert hits.undefined == 1  # one box covers more than half of its image


@pytest.mark.parametrize("which", MAPS)
def test_sparseness_agrees_with_tis(golden, which):
    arrays, found = golden.arrays("metric_sparseness_gini"), exact_map(golden, which)
    published = sparseness.with_options(preset="tis-released")

    close(golden, "metric_sparseness_gini", published(found).scores, arrays[f"{which}_gini_pixels"])
    patches = published.with_options(of="native")(found).scores
    close(golden, "metric_sparseness_gini", patches, arrays[f"{which}_gini_patches"])


def test_max_sensitivity_agrees_with_captum(golden):
    file = "metric_max_sensitivity"
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    arrays, noise = golden.arrays(file), []
    for picture in range(len(golden.images)):
        source = torch.random.fork_rng()
        with source:
            torch.manual_seed(2024 + picture)
            noise.append(torch.empty(10, *golden.images.shape[1:]).uniform_(-0.02, 0.02))
    noise = torch.stack(noise).double()
    probe = Probe(golden.vit, golden.images, golden.targets["top"])
    method = resolve("vanillagrad(space='pixels', channels='abs')")
    found = sensitivity_to(noise, method(probe), probe, method)

    np.testing.assert_allclose(noise[:1], arrays["deltas"], atol=1e-8)
    close(golden, file, found, arrays["max_sensitivity"])
    drawn = max_sensitivity(method(probe), probe=probe, method=method).scores  # other noise of the same size
    assert (drawn / found - 1).abs().max() < 0.5


@pytest.mark.parametrize("which", MAPS)
def test_quantus_agrees_where_the_definitions_do(golden, which):
    """Quantus takes magnitudes, divided by the largest of the batch, and adds 1e-7 before the Gini index.

    So an image's sparseness depends on the others in its batch; ours does not.
    """
    file = "metric_quantus"
    arrays, found = golden.arrays(file), exact_map(golden, which)
    objects = masks_in(arrays, golden)
    pixels = resize_map(found, golden.vit.size, "bilinear").abs()
    pixels = pixels / pixels.max()
    scaled = Attribution(found.patches, found.layout, found.targets, "x", "pixel", pixels)
    plain = sparseness.with_options(preset="quantus")
    mass = energy_pointing.with_options(part="abs")

    close(golden, file, plain.with_options(eps=1e-7)(scaled).scores, arrays[f"{which}_sparseness"])
    close(golden, file, entropy.with_options(preset="quantus")(found).scores, arrays[f"{which}_complexity"])
    close(golden, file, mass(found, objects=objects).scores, arrays[f"{which}_attribution_localisation"])
    # without its 1e-7 the Gini index differs by that much, and no more
    np.testing.assert_allclose(plain(scaled).scores, arrays[f"{which}_sparseness"], rtol=1e-4)
    # its pointing game calls it a hit when any of several equal peaks is inside; ours is the chance of one
    chance = pointing_game(scaled, objects=objects).scores
    assert ((chance > 0).double().numpy() == arrays[f"{which}_pointing_game"]).all()
    # its "relevance mass" keeps the sign in both sums, so on a signed map it is no share
    scores = resize_map(found, golden.vit.size, "bilinear")
    signed = (scores * objects).sum((1, 2)) / scores.sum((1, 2))
    close(golden, file, signed, arrays[f"{which}_relevance_mass_accuracy"])


def test_two_channels_are_not_the_foreground(golden):
    """The published mAP lies above the object's own average precision on these masks."""
    arrays, found = golden.arrays("metric_segmentation"), stored_map(golden, "genatt")
    objects = masks_in(arrays, golden)
    smooth = ap.with_options(interpolation="bilinear")(found, objects=objects)

    assert map_two_channel(found, objects=objects).value != pytest.approx(smooth.value, abs=0.02)
