"""Pixels painted black, and one cell at a time, compared with reference implementations."""

from __future__ import annotations

import math

import pytest
import torch

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
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric

PIXELS = 24 * 32
TENTHS = [tenth / 10 for tenth in range(1, 10)]
TWENTIETHS = [twentieth / 20 for twentieth in range(21)]


def black(image):
    channels = [(0 - torch.tensor(m).double()) / torch.tensor(s).double() for m, s in zip(MEAN, STD, strict=True)]
    return torch.stack(channels)[:, None, None].expand_as(image).clone()


def blackened(family, image, scores, level, highest):
    order = highest_first(scores)
    removed = int(PIXELS * level)
    kept = order[removed:] if highest else order[: PIXELS - removed]
    return say_pixels(family, revealed(image, black(image), kept, len(kept)))


@pytest.mark.parametrize("family", ["vit", "vit-mean"])
@pytest.mark.parametrize("name", ["positive_auc", "negative_auc"])
def test_accuracies_agree_with_their_reference(family, name):
    asked = probe(family)
    attribution = maps(asked, pixels=True)

    for preset, levels, empty, kind, factor in (
        ("chefer", TENTHS, None, "normalised", 1),
        ("transformerinterp", [0.0, *TENTHS], 0.0, "trapezoid", 1),
        ("tokentm", TWENTIETHS, None, "trapezoid", 100),
    ):
        found = measured(f"{name}(preset='{preset}')", attribution, asked)
        for row, image in enumerate(images()):
            said = [
                blackened(family, image, attribution.native_pixels[row], level, name == "positive_auc")
                for level in levels
            ]
            hits = [float(one.index(max(one)) == int(LABELS[row])) for one in said]
            points, curve = (levels, hits) if empty is None else ([*levels, 1.0], [*hits, empty])
            assert found.curve[row].tolist() == curve
            assert found.levels == pytest.approx(points)
            assert found.scores[row].item() == pytest.approx(factor * area(points, curve, kind), abs=1e-9)
            whole = say_pixels(family, image)
            change = sum(max(softmax(one)) - max(softmax(whole)) for one in said) / len(said)
            assert found.parts["probability_change"][row].item() == pytest.approx(change, abs=1e-9)
            ahead = [math.log(softmax(one)[int(LABELS[row])] / sorted(softmax(one))[-2]) for one in said]
            assert found.parts["lead"][row].item() == pytest.approx(sum(ahead) / len(ahead), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "vit-one-output"])
def test_aopc_and_lodds_agree_with_their_reference(family):
    asked = probe(family)
    attribution, memo = maps(asked, pixels=True), {}

    for which, order in (("predicted", "descending"), ("explained", "ascending")):
        drop = measured(f"aopc(track='{which}', order='{order}')", attribution, asked, memo)
        odds = measured(f"lodds(track='{which}', order='{order}')", attribution, asked, memo)
        for row, image in enumerate(images()):
            whole = say_pixels(family, image)
            track = wanted(which, whole, int(LABELS[row]), int(asked.targets[row]))
            said = [
                blackened(family, image, attribution.native_pixels[row], level, order == "descending")
                for level in TWENTIETHS
            ]
            p = [softmax(one)[track] for one in said]
            falls = [softmax(whole)[track] - one for one in p]
            logs = [math.log(max(one, 1e-12)) - math.log(softmax(whole)[track]) for one in p]
            assert drop.scores[row].item() == pytest.approx(sum(falls) / 21, abs=1e-9)
            assert odds.scores[row].item() == pytest.approx(sum(logs) / 21, abs=1e-8)
    assert drop.higher_is_better is False  # the lowest first: a small drop is good
    assert odds.higher_is_better is True


def test_an_impossible_class_counts_so_much_and_no_more():
    from dataclasses import replace

    vit = model("vit")
    sure = replace(vit, classify=lambda pooled: vit.classify(pooled) * 1e4)
    asked = Probe(sure, images(), torch.tensor([1, 0, 1]))
    found = resolve_metric("lodds(track='predicted')")(maps(asked, pixels=True), probe=asked)

    low, high = resolve_metric("lodds").bounds
    assert found.curve.min() == pytest.approx(math.log(1e-12))
    assert ((found.scores >= low) & (found.scores <= high)).all()


def test_metrics_on_one_grid_share_their_forwards(monkeypatch):
    asked, memo, shown = probe("vit"), {}, []
    attribution = maps(asked)
    run_model = asked.run_model
    monkeypatch.setattr(asked, "run_model", lambda pictures: shown.append(len(pictures)) or run_model(pictures))

    for spec in ("aopc", "lodds(track='label')", "positive_auc", "positive_auc(preset='tokentm')"):
        measured(spec, attribution, asked, memo)
    assert sum(shown) == 20 * COUNT  # the logits of the clean image are cached
    measured("negative_auc", attribution, asked, memo)
    assert sum(shown) == 29 * COUNT


@pytest.mark.parametrize("spec", ["positive_auc", "aopc(levels=(0.0, 0.5, 1.0))", "idsds(cells=4)"])
def test_an_image_scores_the_same_alone_in_a_batch_and_in_chunks(spec, monkeypatch):
    several = probe("vit", share=2)
    attribution = maps(several)
    together = measured(spec, attribution, several)

    for row in range(2 * COUNT):
        one = slice(row // 2, row // 2 + 1)
        alone = Probe(model("vit"), images()[one], attribution.targets[row : row + 1])
        found = resolve_metric(spec)(attribution[row], probe=alone, labels=LABELS[one])
        torch.testing.assert_close(found.curve[0], together.curve[row], rtol=0, atol=1e-11)
        torch.testing.assert_close(found.scores[0], together.scores[row], rtol=0, atol=1e-11)
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 4)
    chunked = measured(spec, attribution, probe("vit", share=2))
    torch.testing.assert_close(chunked.scores, together.scores, rtol=0, atol=1e-11)


# ── one cell at a time ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["vit", "vit-mean"])
def test_single_deletion_agrees_with_its_reference(family):
    stats = pytest.importorskip("scipy.stats")
    asked = probe(family)
    attribution = maps(asked, pixels=True)
    found = measured("idsds", attribution, asked)

    for row, image in enumerate(images()):
        track, drops, sums = int(asked.targets[row]), [], []
        for y in range(4):
            for x in range(4):
                cell = (slice(6 * y, 6 * y + 6), slice(8 * x, 8 * x + 8))
                without = image.clone()
                without[:, cell[0], cell[1]] = 0
                drops.append(say_pixels(family, image)[track] - say_pixels(family, without)[track])
                sums.append(float(attribution.native_pixels[row][cell].sum()))
        assert found.curve[row].tolist() == pytest.approx(drops, abs=1e-9)
        assert found.scores[row].item() == pytest.approx(stats.spearmanr(sums, drops).statistic, abs=1e-9)


def test_the_map_of_drops_is_perfect():
    asked = probe("vit")
    drops = measured("idsds", maps(asked), asked).curve
    perfect = drops.view(COUNT, 4, 4).repeat_interleave(6, 1).repeat_interleave(8, 2)
    zeros = torch.zeros(COUNT, 12, dtype=torch.float64)

    for sign in (1, -1):
        best = Attribution(zeros, asked.layout, asked.targets, "given", "pixel", sign * perfect)
        torch.testing.assert_close(measured("idsds", best, asked).scores, torch.full((COUNT,), float(sign)).double())
    flat = Attribution(zeros, asked.layout, asked.targets, "given", "pixel", torch.zeros_like(perfect))
    assert measured("idsds", flat, asked).scores.isnan().all()  # no opinion, no rank
    with pytest.raises(SpecError, match="must divide"):
        measured("idsds(cells=5)", flat, asked)
