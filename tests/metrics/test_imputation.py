"""ROAD: missing pixels are imputed from their neighbours, compared with a dense system written pixel by pixel."""

from __future__ import annotations

import pytest
import torch

from tests.metrics.slow import COUNT, LABELS, STD, highest_first, images, maps, measured, model, probe, say_pixels
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.metrics import pixel_fills
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.pixel_fills import impute_pixels, paint_imputed

pytest.importorskip("scipy")


def dense(image, visible):
    """One equation per pixel: it keeps its colour, or is the weighted mean of the neighbours that exist."""
    height, width = visible.shape
    matrix = torch.zeros(height * width, height * width, dtype=torch.float64)
    right = torch.zeros(height * width, 3, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            here = y * width + x
            matrix[here, here] = 1
            if visible[y, x]:
                right[here] = image[:, y, x]
                continue
            near = [
                (v, u, 1 / 12 if v != y and u != x else 1 / 6)
                for v in (y - 1, y, y + 1)
                for u in (x - 1, x, x + 1)
                if (v, u) != (y, x) and 0 <= v < height and 0 <= u < width
            ]
            total = sum(weight for *_, weight in near)
            for v, u, weight in near:
                matrix[here, v * width + u] -= weight / total
    return torch.linalg.solve(matrix, right).T.reshape(3, height, width)


def masks(share, seed=0, count=COUNT):
    return torch.rand(count, 24, 32, generator=torch.Generator().manual_seed(seed)) > share


@pytest.mark.parametrize("room", [1, 2 * 24 * 32, 2**17])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_the_sparse_and_the_dense_system_agree(share, room, monkeypatch):
    monkeypatch.setattr(pixel_fills, "PIXELS_AT_ONCE", room)
    visible = masks(share)
    visible[:, 3:20, 5:30] &= torch.rand(COUNT, 1, 1, generator=torch.Generator().manual_seed(2)) > 0.5  # a large hole
    visible[:, 0, 0] = True
    found = impute_pixels(images(), visible)

    for row in range(COUNT):
        torch.testing.assert_close(found[row], dense(images()[row], visible[row]), rtol=0, atol=1e-10)


def test_visible_pixels_are_unchanged_and_a_linear_gradient_is_restored():
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(32.0), indexing="ij")
    slope = torch.stack([y, x, y + 2 * x])[None].double()
    visible = torch.ones(1, 24, 32, dtype=torch.bool)
    visible[:, 5:15, 9:20] = False

    torch.testing.assert_close(impute_pixels(slope, visible), slope)  # linear: in the name of the method
    assert torch.equal(impute_pixels(slope, torch.ones_like(visible)), slope)


def test_noise_is_added_to_imputed_pixels_only():
    asked = probe("vit")
    visible = masks(0.5)
    image = torch.arange(COUNT)
    found = paint_imputed(asked, 0.01, 0).fill(visible, image, torch.tensor([100, 200, 300]))
    difference = found - impute_pixels(asked.images, visible)

    assert difference[visible[:, None].expand_as(difference)].abs().max() == 0
    for channel, std in enumerate(STD):
        spread = difference[:, channel][~visible].std().item() * std
        assert spread == pytest.approx(0.01, rel=0.1)


def test_road_agrees_with_a_reference_without_noise():
    asked = probe("vit")
    attribution = maps(asked, pixels=True)
    found = measured("road(levels=(0.2, 0.5, 0.8), noise=0.0)", attribution, asked)

    for row, image in enumerate(images()):
        order, curve = highest_first(attribution.native_pixels[row]), []
        for level in (0.2, 0.5, 0.8):
            visible = torch.ones(24 * 32, dtype=torch.bool)
            visible[order[: int(level * 24 * 32)]] = False
            said = say_pixels("vit", dense(image, visible.view(24, 32)))
            curve.append(float(said.index(max(said)) == int(LABELS[row])))
        assert found.curve[row].tolist() == curve
        assert found.scores[row].item() == pytest.approx((0.15 * (curve[0] + 2 * curve[1] + curve[2])) / 0.6)


def test_an_image_scores_the_same_alone_in_a_batch_and_in_chunks(monkeypatch):
    spec = "road(levels=(0.3, 0.7), judge='explained')"
    several = probe("vit-mean", share=2)
    attribution = maps(several)
    together = measured(spec, attribution, several)

    for row in range(2 * COUNT):
        one = slice(row // 2, row // 2 + 1)
        alone = Probe(model("vit-mean"), images()[one], attribution.targets[row : row + 1])
        found = resolve_metric(spec)(attribution[row], probe=alone)
        torch.testing.assert_close(found.parts["probability"][0], together.parts["probability"][row])
    monkeypatch.setattr("vitreous.capture.probe.rows_that_fit", lambda *_: 5)
    chunked = measured(spec, attribution, probe("vit-mean", share=2))
    torch.testing.assert_close(chunked.parts["probability"], together.parts["probability"])


def test_an_image_without_visible_pixels_is_refused():
    asked = probe("vit")
    with pytest.raises(SpecError, match="levels end below 1"):
        measured("road(levels=(0.5, 1.0))", maps(asked), asked)
