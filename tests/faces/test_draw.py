"""Figures, sheets and notebook cards say what they show, and show it in the right place."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.faces.maps import GRID, attribution, one_hot, redness, words
from vitreous.core.errors import ShapeError
from vitreous.draw import figure, html, overlay_image, scale_of, sheet


def saved(made) -> Image.Image:
    stream = io.BytesIO()
    made.savefig(stream, format="png")
    return Image.open(stream)


# ── place ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("width", "height"), [(640, 480), (480, 700), (64, 64)])
@pytest.mark.parametrize("place", [(0, 0), (2, 6), (7, 7)])
def test_the_hottest_pixels_lie_in_the_patch_of_the_original_picture(width, height, place):
    row, column = place
    found = attribution(one_hot(row, column), width=width, height=height)

    picture = overlay_image(found, mode="nearest")

    left, top, right, bottom = found.preprocess.window((height, width))
    scale = picture.width / width
    across, down = (right - left) * scale / GRID, (bottom - top) * scale / GRID
    y, x = np.nonzero(redness(picture) > 0.8 * redness(picture).max())
    assert (abs(x + 0.5 - left * scale - (column + 0.5) * across) <= across / 2 + 1).all()
    assert (abs(y + 0.5 - top * scale - (row + 0.5) * down) <= down / 2 + 1).all()
    assert len(x) == pytest.approx(across * down, rel=0.1)


def test_an_overlay_keeps_the_picture_where_a_patch_says_nothing():
    photograph = Image.effect_noise((320, 240), 80).convert("RGB")
    found = attribution(one_hot(4, 4), pictures=(photograph,))

    shown = np.asarray(overlay_image(found, mode="nearest").resize((320, 240)).convert("L"), float)

    corner = slice(10, 80), slice(60, 120)  # seen, and far from the patch
    likeness = np.corrcoef(shown[corner].ravel(), np.asarray(photograph.convert("L"), float)[corner].ravel())[0, 1]
    assert likeness > 0.95


def test_what_the_model_does_not_see_is_faded_and_carries_no_colour():
    found = attribution(torch.ones(GRID, GRID), width=800, height=400)

    picture = overlay_image(found)

    assert redness(picture)[:, :190].max() <= 1
    assert np.asarray(picture)[200, 100].min() > np.asarray(picture)[200, 400].min()


def test_without_the_original_the_model_input_is_shown_and_without_that_the_map():
    seen = attribution(one_hot(1, 1), pictures=None, images=torch.zeros(1, 3, 64, 64))
    unknown = attribution(one_hot(1, 1), pictures=None, preprocess=None, images=torch.rand(1, 3, 64, 64))
    bare = attribution(one_hot(1, 1), pictures=None, preprocess=None)

    sizes = {overlay_image(one).size for one in (seen, unknown, bare)}

    assert sizes == {(480, 480)}
    assert all(saved(figure(one)).width > 300 for one in (seen, unknown, bare))


def test_a_pixel_map_is_drawn_from_its_own_pixels():
    pixels = torch.zeros(1, 64, 64)
    pixels[0, 20, 40] = 1
    found = attribution(torch.zeros(GRID, GRID), width=640, height=640, native="pixel", native_pixels=pixels)

    red = redness(overlay_image(found, mode="nearest"))

    y, x = np.nonzero(red > 0.8 * red.max())
    assert (y.min(), y.max(), x.min(), x.max()) == (200, 209, 400, 409)


# ── colour ───────────────────────────────────────────────────────────────────────────────────────


def test_zero_is_the_middle_of_a_signed_scale():
    scale = scale_of(attribution(torch.linspace(-1, 5, 64)))

    assert scale.low == -scale.high
    assert scale.positions(np.zeros(1)) == 0.5
    assert np.ptp(scale.colours(np.zeros(1))) < 0.02  # white or grey
    assert scale.ticks[1] == 0


def test_signs_are_told_apart_by_colour():
    red = redness(overlay_image(attribution(one_hot(1, 1) - one_hot(6, 6)), mode="nearest"))

    assert red.max() > 60
    assert red.min() < -60


def test_an_unsigned_scale_begins_at_its_least_score():
    scale = scale_of(attribution(torch.linspace(0.2, 1, 64), signed=False), quantile=1)

    assert (scale.low, scale.high) == pytest.approx((0.2, 1))
    assert not scale.signed


def test_negative_scores_are_never_shown_on_an_unsigned_scale():
    assert scale_of(attribution(torch.linspace(-1, 1, 64), signed=False)).signed


def test_outliers_lie_beyond_the_bar_and_are_stated():
    scores = torch.linspace(0, 1, 64)
    scores[5] = 100
    found = attribution(scores, signed=False)

    assert scale_of(found, quantile=0.95).extend == "max"
    text = words(figure(found, quantile=0.95))
    assert "reaching 100" in text
    assert "95 % quantile" in text


def test_a_shared_scale_is_one_for_all_rows():
    found = attribution(torch.stack([one_hot(0, 0, 1.0), one_hot(0, 0, 8.0)]))

    assert words(figure(found, shared_scale=True)).count("8") == 4
    assert words(figure(found)).count("8") == 2


@pytest.mark.parametrize("value", [0.0, 2.5, -1e-9])
@pytest.mark.parametrize("signed", [True, False])
def test_a_constant_map_is_called_one(value, signed):
    found = attribution(torch.full((GRID, GRID), value), signed=signed)

    assert "constant map" in words(figure(found))
    saved(figure(found))


def test_an_infinite_score_is_drawn_at_the_end_of_the_scale():
    scores = one_hot(3, 3, float("inf")) + torch.linspace(-1, 1, 64).reshape(GRID, GRID)

    text = words(figure(attribution(scores)))

    assert "∞" in text
    assert "constant" not in text


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_missing_scores_are_hatched_and_counted(mode):
    scores = torch.zeros(GRID, GRID)
    scores[:, :4] = torch.nan
    found = attribution(scores, width=640, height=640)

    picture = np.asarray(overlay_image(found, mode=mode)).astype(int)

    assert len(np.unique(picture[:, :310])) == 2  # two greys of the hatching
    assert len(np.unique(picture[:, 330:].reshape(-1, 3), axis=0)) == 1
    assert "32 of 64 scores missing" in words(figure(found))


def test_a_map_of_nothing_but_missing_scores_can_be_drawn():
    found = attribution(torch.full((GRID, GRID), torch.nan))

    assert "64 of 64 scores missing" in words(figure(found))
    saved(figure(found))


@pytest.mark.parametrize("size", [1e-30, 1e-5, 0.02, 3.0, 5e3, 7e12])
def test_numbers_on_the_bar_are_short(size):
    scale = scale_of(attribution(one_hot(0, 0, size)))

    assert all(len(scale.written(tick)) <= 6 for tick in scale.ticks)
    assert float(scale.written(scale.high)) * 10.0**scale.exponent == pytest.approx(size, rel=0.01)


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def test_a_figure_names_method_class_probability_and_question():
    found = attribution(one_hot(1, 1), logits=torch.tensor([[0.75, 0.25]]).log(), names=("zebra",))

    text = words(figure(found))

    assert "made(by='hand')+plus" in text
    assert "zebra · 75.0 %" in text
    assert "score (logit)" in text


@pytest.mark.parametrize("name", ["$x_1$ \\frac{", "<b>&", "斑马", "a" * 200, ""])
def test_any_name_can_be_drawn_without_a_warning(name):
    found = attribution(one_hot(1, 1), names=(name,))

    assert saved(figure(found)).width == saved(figure(attribution(one_hot(1, 1)))).width
    saved(sheet([found, found]))


@pytest.mark.slow
def test_many_rows_are_capped_and_the_figure_says_so():
    found = attribution(torch.rand(40, 64), pictures=None, preprocess=None)

    made = figure(found)

    assert "16 more rows not shown" in words(made)
    assert max(made.get_size_inches()) < 40
    assert "38 more lines not shown" in words(sheet([found], limit=2))


def test_a_sheet_names_methods_above_and_classes_on_the_left():
    rows = torch.stack([one_hot(1, 1), one_hot(6, 6)])
    found = attribution(rows)
    other = attribution(rows, method="rollout", signed=False)

    text = words(sheet([found, other]))

    for expected in (
        "made(by='hand')+plus",
        "rollout",
        "the same for every class",
        "thing 0",
        "thing 1",
        "class 1",
        "rank",
    ):
        assert expected in text


def test_a_sheet_of_different_subjects_is_refused():
    with pytest.raises(ShapeError, match="different classes"):
        sheet([attribution(one_hot(1, 1)), attribution(torch.rand(2, 64))])
    with pytest.raises(ShapeError, match="at least one"):
        sheet([])


def test_texts_of_a_sheet_stay_on_the_page_and_apart():
    found = attribution(torch.rand(2, 64), names=("a rather long name of a class", "b"))

    made = sheet([found] * 5)
    saved(made)
    boxes = [text.get_window_extent() for text in made.texts if text.get_text()]

    page = made.bbox
    assert all(box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1 for box in boxes)
    overlaps = [
        (a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :] if a.shrunk(0.9, 0.6).overlaps(b.shrunk(0.9, 0.6))
    ]
    assert not overlaps


def test_impossible_wishes_are_refused():
    found = attribution(one_hot(1, 1))

    with pytest.raises(ShapeError, match="opacity"):
        overlay_image(found, opacity=2.0)
    with pytest.raises(ShapeError, match="quantile"):
        figure(found, quantile=0.0)
    with pytest.raises(ShapeError, match="nothing to draw"):
        figure(found, columns=0)


# ── notebooks ────────────────────────────────────────────────────────────────────────────────────


def test_html_is_self_contained_escaped_and_capped():
    found = attribution(torch.rand(9, 64), names=("<script>x</script>",) * 9)

    page = html(found)

    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)='(?!data:)", page)
    assert page.count("<img") == 4
    assert "5 more rows" in page
    for picture in re.findall(r"base64,([^']+)", page):
        Image.open(io.BytesIO(base64.b64decode(picture))).verify()


def test_an_attribution_shows_itself():
    found = attribution(torch.rand(2, 64))

    assert "<img" in found._repr_html_()
    assert found.plot(1)._repr_png_().startswith(b"\x89PNG")


def test_drawing_leaves_no_global_state():
    import sys

    saved(figure(attribution(one_hot(1, 1))))

    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
