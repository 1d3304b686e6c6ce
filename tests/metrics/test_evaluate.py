"""`evaluate`: inputs, results and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from tests.methods.test_blackbox import Recurrent
from vitreous.core.errors import ShapeError, SpecError
from vitreous.metrics.metric import METRICS
from vitreous.metrics.order import check_levels
from vitreous.testing import tiny_vits


@pytest.fixture(scope="module")
def vit():
    return next(iter(tiny_vits().values()))


@pytest.fixture(scope="module")
def images(vit):
    return torch.randn(3, 3, *vit.size, generator=torch.Generator().manual_seed(0), dtype=vit.dtype)


def test_several_metrics_of_one_map_are_the_single_ones(vit, images):
    found = vitreous.explain(vit, images, method="ixg")
    names = ["deletion_aopc", "insertion_aopc(ratios=(0.25, 0.5))", "sparseness"]
    together = vitreous.evaluate(vit, images, found, names)

    for name, result in zip(names, together, strict=True):
        torch.testing.assert_close(result.scores, vitreous.evaluate(vit, images, found, name).scores)


def test_a_parameter_that_is_neither_input_nor_option_is_named():
    with pytest.raises(TypeError, match=r"'width' without a default.*inputs are called probe, labels"):
        vitreous.metric("x", higher_is_better=None)(lambda attribution, width: attribution)


def test_several_metrics_are_given_as_a_list_or_a_tuple(vit, images):
    attribution = vitreous.explain(vit, images, method="ixg")
    metrics = "sparseness", vitreous.resolve_metric("deletion_aopc")

    in_tuple, in_list = (vitreous.evaluate(vit, images, attribution, several) for several in (metrics, list(metrics)))

    assert (
        [result.metric for result in in_tuple]
        == [result.metric for result in in_list]
        == ["sparseness", "deletion_aopc"]
    )


def test_batches_are_joined(vit, images):
    found = vitreous.explain(vit, images, target=[[0, 1], [2, 3], [4, 5]], method="ixg")
    whole = vitreous.evaluate(vit, images, found, "deletion_aopc")
    parts = vitreous.evaluate(vit, images, found, "deletion_aopc", batch_size=2)

    assert len(whole) == 6
    torch.testing.assert_close(whole.scores, parts.scores)
    torch.testing.assert_close(whole.curve, parts.curve)


def test_maps_from_other_sources_are_evaluated(vit, images):
    found = vitreous.explain(vit, images, target=[0, 1, 2], method="ixg")
    own = vitreous.evaluate(vit, images, found.patches, "deletion_aopc", target=[0, 1, 2])
    torch.testing.assert_close(own.scores, vitreous.evaluate(vit, images, found, "deletion_aopc").scores)
    assert own.protocol["metric"] == "deletion_aopc"

    pixels = found.pixels()
    as_pixels = vitreous.evaluate(vit, images, pixels, "insertion", target=[0, 1, 2], steps=4)
    torch.testing.assert_close(
        as_pixels.scores, vitreous.evaluate(vit, images, found, "insertion", steps=4).scores, atol=1e-6, rtol=0
    )


def test_a_black_box_is_measured_by_its_pixels():
    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    box = vitreous.wrap(cnn.eval(), black_box=True)
    images = torch.randn(2, 3, 28, 28)
    found = vitreous.explain(box, images, target=1, method="occlusion")

    fresh = vitreous.wrap(cnn, black_box=True)
    assert vitreous.evaluate(fresh, images, found, "deletion", steps=4).scores.isfinite().all()
    with pytest.raises(vitreous.ModelError, match="black box"):
        vitreous.evaluate(fresh, images, found, "deletion_aopc")


def test_undefined_scores_are_counted_and_left_out_of_the_mean(vit, images):
    found = vitreous.explain(vit, images, method="ixg")
    objects = torch.zeros(3, *vit.size, dtype=torch.bool)
    objects[1:, :8] = True
    result = vitreous.evaluate(vit, images, found, "ap", objects=objects)

    assert result.undefined == 1
    assert result.value == pytest.approx(float(result.scores[1:].mean()))
    low, high = result.interval()
    assert low <= result.value <= high


def test_pooled_figures_are_not_means():
    result = vitreous.MetricResult(
        "x",
        torch.tensor([1.0, 0.0]),
        True,
        parts={"correct": torch.tensor([1.0, 0.0]), "labelled": torch.tensor([1.0, 9.0])},
        reduce=lambda parts: np.asarray(parts["correct"].sum(-1) / parts["labelled"].sum(-1)),
    )
    assert result.value == pytest.approx(0.1)
    low, high = result.interval()
    assert 0 <= low <= 0.1 <= high <= 1


@pytest.mark.parametrize(
    ("metric", "given", "error", "sentence"),
    [
        ("deletion_aop", {}, SpecError, "did you mean 'deletion_aopc'"),
        ("deletion_aopc(ratio=3)", {}, SpecError, "did you mean 'ratios'"),
        ("deletion_aopc()x", {}, SpecError, "not understood"),
        ("ap", {}, SpecError, "needs objects"),
        ("deletion_accuracy", {}, SpecError, "labels"),
        ("ap", {"objects": torch.zeros(2, 32, 32, dtype=torch.bool)}, ShapeError, "2 entries for 3 images"),
        ("ap", {"objects": torch.zeros(3, 32, 32)}, ShapeError, "whole numbers or booleans"),
        (3, {}, SpecError, "not 'int'"),
        (b"ap", {}, SpecError, "not 'bytes'"),
        (["deletion_aopc", "ap"], {"steps": 4}, SpecError, "written into their specs"),
        ("insertion(preset='tiss')", {}, SpecError, "preset='tiss'"),
        ("pointing_game(tolerance=-3)", {"boxes": [[1, 2, 3, 4]] * 3}, SpecError, "tolerance=-3"),
        ("insertion(steps=0)", {}, SpecError, "steps=0"),
        ("max_sensitivity(samples=0)", {}, SpecError, "samples=0"),
        ("parameter_randomisation(order='cascade', stages=-1)", {}, SpecError, "stages=-1"),
        ("ap", {"objects": torch.full((3, 32, 32), 255, dtype=torch.uint8)}, ShapeError, "the number 255"),
        ("pointing_game", {"boxes": [[1, 2, 3]] * 3}, ShapeError, "x0 y0 x1 y1"),
        ("pointing_game", {"boxes": [[9, 9, 2, 2]] * 3}, ShapeError, "x0 y0 x1 y1"),
        ("deletion_accuracy", {"labels": [[1, 2]] * 3}, ShapeError, "labels are one class per image"),
        ("deletion_accuracy", {"labels": [1, 2]}, ShapeError, "labels has 2 entries for 3 images"),
        ("deletion_accuracy", {"labels": [1, 2, 7]}, ShapeError, "label 7 is not a class"),
        ("deletion_aopc", {"batch_size": 0}, SpecError, "batch_size=0"),
    ],
)
def test_unsupported_evaluations_are_refused_with_a_message(vit, images, metric, given, error, sentence):
    found = vitreous.explain(vit, images, method="ixg")
    with pytest.raises(error, match=sentence.replace("(", r"\(")):
        vitreous.evaluate(vit, images, found, metric, **given)


def test_maps_without_a_target_or_of_a_wrong_size_are_refused(vit, images):
    with pytest.raises(ShapeError, match="target="):
        vitreous.evaluate(vit, images, torch.rand(3, 16), "deletion_aopc")
    with pytest.raises(ShapeError, match="16 patches"):
        vitreous.evaluate(vit, images, torch.rand(3, 15), "deletion_aopc", target=0)


def test_an_unknown_label_is_nan_where_the_label_counts(vit, images):
    found = vitreous.explain(vit, images, target=[1, 2, 3], method="ixg")
    metrics = [
        "deletion_accuracy",
        "insertion(track='label', steps=4)",
        "idsds(track='label', cells=2)",
        "deletion_aopc",
    ]
    whole = vitreous.evaluate(vit, images, found, metrics, labels=[1, 2, 3])
    some = vitreous.evaluate(vit, images, found, metrics, labels=torch.tensor([1, -1, 3]))

    for metric, a, b in zip(metrics, whole, some, strict=True):
        assert bool(b.scores[1].isnan()) == (metric != "deletion_aopc"), metric
        torch.testing.assert_close(a.scores[[0, 2]], b.scores[[0, 2]])


def test_a_map_without_method_is_not_compared_with_a_recomputed_map(vit, images):
    own = vitreous.explain(vit, images, target=1, method="ixg", question=lambda logits: 100 * logits[:, 1])
    part = vitreous.inside(vit, images, 1, "tokentm").at("necc", 2)

    with pytest.raises(SpecError, match="a question of your own"):
        vitreous.evaluate(vit, images, own, "max_sensitivity", samples=2)
    with pytest.raises(SpecError, match="a part, 'necc'"):
        vitreous.evaluate(vit, images, part, "parameter_randomisation")
    assert vitreous.evaluate(vit, images, own, "deletion_aopc").scores.isfinite().all()


def test_non_finite_numbers_are_refused_with_a_message():
    for levels in ("abc", None, (), (0.5, 0.5), (0.1, "x"), (-0.1,), float("nan")):
        with pytest.raises(SpecError, match=r"levels=.* shares must grow"):
            check_levels("levels", levels)
    assert check_levels("levels", [0.0, 0.5, 1.0]) == (0.0, 0.5, 1.0)


def test_a_map_of_another_grid_is_refused(vit, images):
    found = vitreous.explain(vit, images, method="ixg")
    with pytest.raises(ShapeError, match="the map has 16 patches"):
        vitreous.evaluate(vitreous.load("scenes"), torch.randn(3, 3, 112, 112), found, "deletion_aopc")


def test_the_error_for_an_unsupported_classifier_says_how_to_evaluate_it():
    recurrent = Recurrent(width=16).eval()
    with pytest.raises(vitreous.ModelError, match="black_box=True"):
        vitreous.evaluate(recurrent, torch.randn(2, 3, 16, 16), torch.rand(2, 16, 16), "deletion", target=1)


def test_the_maps_of_a_score_are_measured_on_the_model_that_was_explained(vit, images):
    score = vitreous.scores.value(1)
    for model in (vit, vit.module):
        attribution = vitreous.explain(model, images, method="ixg+plus", score=score)
        result = vitreous.evaluate(model, images, attribution, "max_sensitivity(samples=1)", score=score)
        assert result.scores.isfinite().all()


def test_images_that_are_not_finite_are_refused_as_explain_does(vit, images):
    broken = images.clone()
    broken[1, 0, 0, 0] = torch.nan
    with pytest.raises(ShapeError, match="image 1 holds NaN"):
        vitreous.evaluate(vit, broken, torch.rand(3, 16), "deletion_aopc", target=1)


def test_every_metric_is_listed_with_its_facts():
    listed = {one["name"]: one for one in vitreous.list_metrics()}

    assert set(listed) == set(METRICS)
    assert listed["deletion_aopc"]["higher_is_better"] is True
    assert listed["pixel_accuracy"]["pooled"] is True
    assert all(one["title"] for one in listed.values())


def test_an_attribution_without_images_is_measured_on_given_ones_only(vit, images, tmp_path):
    vitreous.explain(vit, images, method="ixg").save(tmp_path / "maps.safetensors")
    loaded = vitreous.Attribution.load(tmp_path / "maps.safetensors")

    with pytest.raises(ShapeError, match=r"the attribution holds none.*save\(images=True\)"):
        vitreous.evaluate(vit, None, loaded, "sparseness")
    assert vitreous.evaluate(vit, images, loaded, "sparseness").scores.isfinite().all()
