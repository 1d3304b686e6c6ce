"""Standard errors of methods that average over samples, compared with plain loops."""

from __future__ import annotations

import math

import pytest
import torch

import vitreous
from tests.models.families import pictures, seen
from vitreous.capture.path_gradients import in_coalitions
from vitreous.capture.probe import Probe
from vitreous.core.errors import ShapeError
from vitreous.methods import activation_masks as tis
from vitreous.methods import surrogate
from vitreous.methods.attribution import Attribution
from vitreous.methods.coalition_methods import averaged_method, draw_coalitions
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.masks import SmoothMasks
from vitreous.methods.random_control import generators
from vitreous.methods.surrogate import regression_errors

TARGETS = [3, 1]
CLOSE = {"rtol": 1e-7, "atol": 1e-12}


def spread(values: list[float]) -> float:
    """Standard error of the mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def test_the_error_of_tis_is_that_of_the_mean_over_the_subsets_of_a_patch():
    vit, images = seen("vit-even"), pictures()
    stderr = vitreous.explain(vit, images, TARGETS, "tis(masks=9, kept=0.3)").stderr
    probe = Probe(vit, images, torch.tensor(TARGETS), "probability")
    activations = torch.cat(probe.states[1:], -1)[:, probe.layout.prefix :].mT
    keep = tis.keep_largest(tis.cluster_activations(activations, 9, images, 0), 0.3)
    scores = probe.score(keep)
    for image in range(2):
        for patch in range(keep.shape[-1]):
            own = [scores[image, m].item() for m in range(9) if keep[image, m, patch]]
            slow = spread(own) if len(own) > 1 else math.nan
            torch.testing.assert_close(stderr[image, patch].item(), slow, equal_nan=True, **CLOSE)


def test_the_error_of_a_rescaled_tis_map_is_rescaled():
    vit, images = seen("vit-even"), pictures()
    plain, scaled = (vitreous.explain(vit, images, TARGETS, f"tis(masks=9, normalise={on})") for on in (False, True))
    span = plain.patches.amax(-1, keepdim=True) - plain.patches.amin(-1, keepdim=True)
    torch.testing.assert_close(scaled.stderr, plain.stderr / span, equal_nan=True)


def test_the_error_of_rise_is_that_of_the_mean_over_masks():
    vit, images = seen("vit-even"), pictures()
    stderr = vitreous.explain(vit, images, TARGETS, "rise(masks=7, cells=3, p=0.4)").stderr
    masks = SmoothMasks.draw(7, 3, 0.4, images, 0)(torch.arange(7))
    for image in range(2):
        logits = torch.stack([vit.module(images[image : image + 1] * mask)[0] for mask in masks])
        scores = logits.softmax(-1)[:, TARGETS[image]].tolist()
        sums = patch_sums(masks, vit.layout(tuple(images.shape[-2:])))
        for patch in range(sums.shape[1]):
            terms = [score * sums[m, patch].item() / 0.4 for m, score in enumerate(scores)]
            torch.testing.assert_close(stderr[image, patch].item(), spread(terms), rtol=1e-6, atol=1e-9)


def test_the_error_of_anneal_is_that_of_its_random_terms():
    vit, images = seen("vit-even"), pictures()
    stderr = vitreous.explain(vit, images, TARGETS, "anneal(coalitions=6, of='temper')").stderr
    keep, method = draw_coalitions(images, 12, 6, 0.5, True, 0), averaged_method("temper")
    for image in range(2):
        maps = []
        for coalition in keep[image]:
            probe = Probe(vit, images[image : image + 1], torch.tensor(TARGETS[image : image + 1]), "probability")
            maps.append(in_coalitions(probe, coalition[None, None], method.token_scores)[0, 0])
        for patch in range(12):
            terms = [
                score[patch].item() for score, coalition in zip(maps, keep[image], strict=True) if coalition[patch]
            ]
            share = len(terms) / (1 + len(terms))
            torch.testing.assert_close(stderr[image, patch].item(), spread(terms) * share, **CLOSE)


def test_the_error_of_kernelshap_treats_a_coalition_and_its_complement_as_one_sample():
    vit, images = seen("vit-even"), pictures()[:1]
    found = vitreous.explain(vit, images, TARGETS[:1], "kernelshap(samples=80)")
    on, _ = surrogate.coalitions(12, 80, True, generators(images, 0)[0])
    probe = Probe(vit, images, torch.tensor(TARGETS[:1]), "probability")
    score = {tuple(row.tolist()): probe.score(row[None, None])[0, 0].item() for row in surrogate.with_ends(on)}
    nothing, values = score[(False,) * 12], found.patches[0].tolist()
    # plain least squares of half the difference of two complements, with residuals² / (1 − leverage)
    rows = [[float(member) - sum(row) / 12 for member in row] for row in on[0::2].tolist()]
    design = torch.tensor(rows, dtype=torch.float64)
    inverse = torch.linalg.pinv(design.T @ design, rtol=1e-10)
    total = torch.zeros(12, 12, dtype=torch.float64)
    for row, x in zip(on[0::2].tolist(), design, strict=True):
        other = [not member for member in row]
        residual = [
            score[tuple(side)] - nothing - sum(value for value, inside in zip(values, side, strict=True) if inside)
            for side in (row, other)
        ]
        half = (residual[0] - residual[1]) / 2
        total += half**2 / (1 - x @ inverse @ x) * torch.outer(x, x)
    slow = (inverse @ total @ inverse).diagonal().sqrt()
    torch.testing.assert_close(found.stderr[0], slow, rtol=1e-6, atol=1e-12)


def test_the_error_of_exact_shapley_values_is_zero_and_of_too_few_samples_unknown():
    vit, images = seen("vit-even"), pictures()[:1]
    assert (vitreous.explain(vit, images, 3, "kernelshap(samples=4096)").stderr == 0).all()
    assert vitreous.explain(vit, images, 3, "kernelshap(samples=16)").stderr.isnan().all()
    assert vitreous.explain(vit, images, 3, "lime(samples=10)").stderr.isnan().all()


def test_the_error_of_lime_is_a_robust_covariance_and_a_lasso_has_none():
    vit, images = seen("vit-even"), pictures()[:1]
    found = vitreous.explain(vit, images, 3, "lime(samples=60, alpha=0.5)")
    draw = generators(images, 0)[0]
    on = torch.rand(60, 12, generator=draw) < 0.5
    on[0] = True
    scores = Probe(vit, images, torch.tensor([3]), "probability").score(on[None])[0]
    weight = [math.exp(-((1 - math.sqrt(sum(row) / 12)) ** 2) / (2 * 0.25**2)) for row in on.tolist()]
    whole = sum(weight)
    mean = [sum(w * row[j] for w, row in zip(weight, on.tolist(), strict=True)) / whole for j in range(12)]
    level = sum(w * y for w, y in zip(weight, scores.tolist(), strict=True)) / whole
    x = torch.tensor([[row[j] - mean[j] for j in range(12)] for row in on.tolist()], dtype=torch.float64)
    w = torch.tensor(weight, dtype=torch.float64)
    inverse = torch.linalg.inv(sum(w[i] * torch.outer(x[i], x[i]) for i in range(60)) + 0.5 * torch.eye(12).double())
    total = torch.zeros(12, 12, dtype=torch.float64)
    for i in range(60):
        residual = scores[i] - level - x[i] @ found.patches[0]
        total += (w[i] * residual) ** 2 / (1 - w[i] * x[i] @ inverse @ x[i]) * torch.outer(x[i], x[i])
    torch.testing.assert_close(found.stderr[0], (inverse @ total @ inverse).diagonal().sqrt(), rtol=1e-6, atol=1e-12)
    assert vitreous.explain(vit, images, 3, "lime(samples=60, fit='lasso', alpha=0.01)").stderr is None


def test_regions_of_pixels_give_errors_of_patches_or_of_the_pixels_of_a_black_box():
    vit, images = seen("vit-even"), pictures()[:1]
    patches = vitreous.explain(vit, images, 3, "kernelshap(samples=80, space='pixels')")
    assert patches.stderr.shape == patches.patches.shape
    box = vitreous.wrap(vit.module, black_box=True)
    pixels = vitreous.explain(box, images, 3, "rise(masks=8, cells=3)")
    assert pixels.stderr.shape == pixels.native_pixels.shape
    assert (pixels.stderr > 0).all()


def test_intervals_of_a_regression_have_their_nominal_coverage():
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor([1.0, -2.0, 0.5, 0.0]).double()
    inside = 0
    for _ in range(400):
        x = torch.randn(60, 4, generator=draw).double()
        noise = torch.randn(60, generator=draw).double() * (0.5 + x[:, 0].abs())  # unequal
        inverse = torch.linalg.inv(x.T @ x)
        found = inverse @ x.T @ (x @ truth + noise)
        factor = regression_errors(x, (x @ (truth - found) + noise)[None], inverse, torch.ones(60).double())
        inside += int(((found - truth).abs() < 1.96 * factor[0].square().sum(0).sqrt()).sum())
    assert 0.92 < inside / 1600 < 0.97


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_errors_are_saved_cut_and_tabled(tmp_path, suffix):
    found = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "kernelshap(samples=80)")
    again = Attribution.load(found.save(tmp_path / f"map.{suffix}"))
    torch.testing.assert_close(again.stderr, found.stderr)
    torch.testing.assert_close(found[1].stderr, found.stderr[1:])
    table = found.to_pandas()
    assert table["stderr"].tolist() == found.stderr.flatten().tolist()
    assert "stderr" not in vitreous.explain(seen("vit-even"), pictures(), TARGETS, "ixg").to_pandas()


def test_unsettled_scores_have_zero_in_their_interval():
    found = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "kernelshap(samples=80)")
    wide = (found.patches.abs() <= 2.5758 * found.stderr).unflatten(1, found.layout.grid)
    assert (found.unsettled(0.99) == wide).all()
    assert (found.unsettled(0.5) <= wide).all()
    with pytest.raises(ShapeError, match=r"confidence=2\.0"):
        found.unsettled(2.0)
    with pytest.raises(ShapeError, match="no standard errors"):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, "ixg").unsettled()


def test_a_plot_draws_lines_over_unsettled_scores():
    import numpy as np

    from vitreous.draw import overlay_image

    found = vitreous.explain(seen("vit-even"), pictures(), TARGETS, "kernelshap(samples=80)")
    plain, lined = (np.asarray(overlay_image(found, 0, uncertainty=on), float) for on in (False, True))
    changed = (plain != lined).any(-1)
    unsettled = found.unsettled()[0].numpy()
    height, width = (side // cells for side, cells in zip(changed.shape, unsettled.shape, strict=True))
    lines = changed[: height * unsettled.shape[0], : width * unsettled.shape[1]]
    lines = lines.reshape(unsettled.shape[0], height, unsettled.shape[1], width).any((1, 3))
    assert unsettled.any()
    assert not unsettled.all()
    assert (lines == unsettled).all()
    assert "interval contains zero" in "".join(text.get_text() for text in found.plot(uncertainty=True).texts)
    with pytest.raises(ShapeError, match="no standard errors"):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, "ixg").plot(uncertainty=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("few", "many"),
    [
        ("rise(masks=200, seed={})", "rise(masks=3000, seed=99)"),
        ("lime(samples=300, seed={})", "lime(samples=3000, seed=99)"),
        ("kernelshap(samples=300, seed={})", "kernelshap(samples=4096)"),
        ("anneal(coalitions=64, seed={})", "anneal(coalitions=1000, seed=99)"),
    ],
)
def test_intervals_contain_the_value_with_many_samples(few, many):
    vit, images = seen("vit-even"), pictures()
    limit = vitreous.explain(vit, images, TARGETS, many)
    expected, inside = limit.patches, []
    if few.startswith("anneal"):  # the image itself is one more coalition, whose weight depends on their number
        whole = vitreous.explain(vit, images, TARGETS, "fuse").patches
        expected = (whole + 32 * (501 * expected - whole) / 500) / 33
    for seed in range(12):
        found = vitreous.explain(vit, images, TARGETS, few.format(seed))
        inside.append((found.patches - expected).abs() <= 1.96 * (found.stderr**2 + limit.stderr**2).sqrt())
    assert 0.9 < torch.stack(inside).double().mean() < 0.985
