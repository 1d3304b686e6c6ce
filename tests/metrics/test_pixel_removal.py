"""Insertion and deletion of pixels, compared with a reference implementation, and properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitreous
from tests.metrics.slow import (
    COUNT,
    LABELS,
    MEAN,
    STD,
    area,
    highest_first,
    images,
    maps,
    measured,
    model,
    probe,
    revealed,
    say_pixels,
    softmax,
    wanted,
)
from tests.models.families import seen, tiny
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.order import pixel_ranks
from vitreous.metrics.pixel_fills import baseline_of
from vitreous.metrics.pixel_removal import count_replaced_pixels
from vitreous.models.black_box import with_observed_outputs

PIXELS = 24 * 32


def reference(family, image, scores, rest, insert, each, start, kind, track):
    """Mean and curve of one row, `each` pixels a step."""
    order = highest_first(scores)
    curve, levels = [], []
    for gone in range(0 if start else each, PIXELS + each, each):
        gone = min(gone, PIXELS)
        seen_ones = order if insert else order[::-1]
        picture = revealed(image, rest, seen_ones, gone if insert else PIXELS - gone)
        curve.append(softmax(say_pixels(family, picture))[track])
        levels.append(gone / PIXELS)
        if gone == PIXELS:
            break
    return area(levels, curve, kind), curve


@pytest.mark.parametrize("family", ["vit", "vit-mean", "vit-one-output"])
@pytest.mark.parametrize("verb", ["insertion", "deletion"])
@pytest.mark.parametrize("pixels", [False, True])
def test_each_metric_agrees_with_its_reference(family, verb, pixels):
    asked = probe(family)
    attribution = maps(asked, pixels=pixels)
    if not pixels:  # enlarged patches have ties, which the reference does not handle: a small ramp removes them
        ramp = torch.linspace(0, 1e-9, PIXELS, dtype=torch.float64).view(24, 32)
        attribution = Attribution(
            attribution.patches, asked.layout, asked.targets, "given", "pixel", attribution.pixels() + ramp
        )

    for which, baseline, steps, start, kind in (
        ("label", "blur", 12, False, "mean"),
        ("predicted", "mean", 5, True, "normalised"),  # the last step is shorter
    ):
        spec = f"{verb}(track='{which}', baseline='{baseline}', steps={steps}, start={start}, area='{kind}')"
        found = measured(spec, attribution, asked)
        rest = baseline_of(asked, baseline)
        for row, image in enumerate(images()):
            track = wanted(which, say_pixels(family, image), int(LABELS[row]), int(asked.targets[row]))
            each = -(-PIXELS // steps)
            score, curve = reference(
                family, image, attribution.pixels()[row], rest[row], verb == "insertion", each, start, kind, track
            )
            assert found.curve[row].tolist() == pytest.approx(curve, abs=1e-9)
            assert found.scores[row].item() == pytest.approx(score, abs=1e-9)


def test_the_difference_is_the_difference():
    asked = probe("vit")
    attribution, memo = maps(asked), {}
    found = measured("insertion_minus_deletion(steps=6, baseline=('mean', 'black'))", attribution, asked, memo)
    ins = measured("insertion(steps=6, baseline='mean')", attribution, asked)
    out = measured("deletion(steps=6, baseline='black')", attribution, asked)

    torch.testing.assert_close(found.scores, ins.scores - out.scores)
    torch.testing.assert_close(found.parts["insertion"], ins.scores)
    with pytest.raises(SpecError, match="no meaning for a difference"):
        measured("insertion_minus_deletion(steps=6, show='complement')", attribution, asked)
    with pytest.raises(SpecError, match="one for insertion and one for deletion"):
        measured("insertion_minus_deletion(steps=6, baseline=('blur',))", attribution, asked)


# ── baselines ────────────────────────────────────────────────────────────────────────────────────


def test_baselines_are_as_published_and_documented():
    asked = probe("vit")
    mean, std = torch.tensor(MEAN).double()[:, None, None], torch.tensor(STD).double()[:, None, None]
    pixels = asked.images * std + mean

    assert baseline_of(asked, "black").abs().max() == 0
    shown = baseline_of(asked, "black", "pixels") * std + mean
    assert shown.abs().max() < 1e-7  # mean and std are kept in float32
    for row in range(COUNT):
        assert baseline_of(asked, "mean")[row].unique().item() == pytest.approx(asked.images[row].mean().item())
        grey = baseline_of(asked, "mean", "pixels")[row] * std + mean
        torch.testing.assert_close(grey[:, 0, 0], pixels[row].mean((1, 2)), rtol=0, atol=1e-7)
    noise = baseline_of(asked, "random")
    assert 0 <= noise.min() < 0.01
    assert 0.99 < noise.max() < 1
    coloured = baseline_of(asked, "random", "pixels") * std + mean
    torch.testing.assert_close(coloured, noise, rtol=0, atol=1e-6)
    assert not torch.equal(baseline_of(asked, "random", seed=1), noise)


def test_blur_is_torchvisions():
    tv = pytest.importorskip("torchvision.transforms.functional")
    asked = probe("vit")

    torch.testing.assert_close(baseline_of(asked, "blur"), tv.gaussian_blur(asked.images, [11, 11], [5.0, 5.0]))


def test_rises_blur_is_a_folded_gaussian_over_zeros():
    ndimage = pytest.importorskip("scipy.ndimage")
    point = np.zeros((11, 11))
    point[5, 5] = 1
    kernel = torch.from_numpy(ndimage.gaussian_filter(point, 5))
    asked = probe("vit")
    own = F.conv2d(asked.images, kernel.expand(3, 1, 11, 11), padding=5, groups=3)

    torch.testing.assert_close(baseline_of(asked, "blur-rise"), own)


def test_noise_depends_only_on_the_image():
    together = baseline_of(probe("vit"), "random", seed=3)

    for row in range(COUNT):
        alone = baseline_of(probe("vit", some=slice(row, row + 1)), "random", seed=3)
        assert torch.equal(alone[0], together[row])


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


def test_steps_end_with_the_whole_image():
    assert count_replaced_pixels(50176, 224, False) == [224 * k for k in range(1, 225)]
    assert count_replaced_pixels(50176, 28, True) == [1792 * k for k in range(29)]
    assert count_replaced_pixels(10, 4, False) == [3, 6, 9, 10]
    assert count_replaced_pixels(10, 6, False) == [2, 4, 6, 8, 10]  # steps of equal size, as few as it takes
    with pytest.raises(SpecError, match="1 to 10 steps"):
        count_replaced_pixels(10, 11, False)


def test_endpoints_are_those_of_the_preset():
    asked = probe("vit")
    attribution = maps(asked)
    tis = measured("insertion(preset='tis', steps=6)", attribution, asked)
    rise = measured("insertion(preset='rise', steps=6)", attribution, asked)
    whole = asked.full_logits.softmax(-1)

    assert tis.levels[0] == pytest.approx(1 / 6)
    assert rise.levels[0] == 0
    assert len(rise.levels) == len(tis.levels) + 1
    torch.testing.assert_close(tis.curve[:, -1], whole.gather(1, LABELS[:, None])[:, 0])
    torch.testing.assert_close(rise.curve[:, -1], whole.amax(-1))
    torch.testing.assert_close(tis.scores, tis.curve.mean(-1))
    inner = rise.curve.sum(-1) - rise.curve[:, 0] / 2 - rise.curve[:, -1] / 2
    torch.testing.assert_close(rise.scores, inner / 6)
    assert resolve_metric("deletion(preset='rise')").settings["baseline"] == "black"


# ── batches, chunks, memory ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spec", ["insertion(steps=6)", "deletion(steps=6, baseline='random')"])
def test_an_image_scores_the_same_alone_in_a_batch_and_in_chunks(spec, monkeypatch):
    several = probe("vit-mean", share=2)
    attribution = maps(several)
    together = measured(spec, attribution, several)

    for row in range(2 * COUNT):
        one = slice(row // 2, row // 2 + 1)
        alone = Probe(model("vit-mean"), images()[one], attribution.targets[row : row + 1])
        found = resolve_metric(spec)(attribution[row], probe=alone)
        torch.testing.assert_close(found.curve[0], together.curve[row], rtol=0, atol=1e-12)
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 5)
    chunked = measured(spec, attribution, probe("vit-mean", share=2))
    torch.testing.assert_close(chunked.curve, together.curve, rtol=0, atol=1e-12)


def test_perturbed_images_are_created_in_chunks(monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 7)
    asked, alive = probe("vit"), []
    run_model = asked.run_model
    monkeypatch.setattr(asked, "run_model", lambda pictures: alive.append(len(pictures)) or run_model(pictures))
    measured("deletion(steps=96)", maps(asked), asked)

    assert max(alive) == 7
    assert sum(alive) == COUNT * 96


def test_equal_pixels_go_patch_by_patch():
    asked = probe("vit")
    flat = Attribution(torch.zeros(COUNT, 12, dtype=torch.float64), asked.layout, asked.targets, "given")
    ranks = pixel_ranks(flat, asked)

    assert (ranks.sort(-1).values == torch.arange(PIXELS)).all()
    cells = ranks.view(COUNT, 3, 8, 4, 8).movedim(2, 3).flatten(3).flatten(1, 2)  # [b 12 64]
    assert (cells.amax(-1) - cells.amin(-1) == 63).all()  # all pixels of a patch are removed together
    assert len({tuple(row) for row in cells.amin(-1).tolist()}) == COUNT


def test_black_boxes_are_measured_by_their_pixels():
    box = replace(vitreous.wrap(tiny("vit"), black_box=True), preprocess=None)
    box = with_observed_outputs(box, images())
    attribution = maps(probe("vit"), pixels=True)
    targets = attribution.targets
    spec = "deletion(steps=6)"
    found = vitreous.evaluate(box, images(), attribution.native_pixels, spec, target=targets)
    own = vitreous.evaluate(seen("vit"), images(), attribution.native_pixels, spec, target=targets)

    torch.testing.assert_close(found.scores, own.scores)
    flat = vitreous.evaluate(box, images(), torch.zeros(COUNT, 24, 32).double(), spec, target=targets)
    assert flat.scores.isfinite().all()
    with pytest.raises(ModelError, match="preprocessing has no mean and std"):
        vitreous.evaluate(box, images(), attribution.native_pixels, "deletion(steps=6, space='pixels')", target=targets)


def test_a_map_with_a_hole_has_no_score():
    asked = probe("vit")
    attribution = maps(asked)
    attribution.patches[2, 0] = torch.nan

    assert measured("insertion(steps=4)", attribution, asked).scores.isnan().tolist() == [False, False, True]
