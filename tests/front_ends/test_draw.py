"""Figures, sheets and notebook cards have correct captions, and draw maps at the correct place."""

from __future__ import annotations

import base64
import io
import re
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from tests.front_ends.maps import GRID, attribution, check_texts_fit, joined, one_hot, redness, words
from vitreous.core.errors import ShapeError
from vitreous.draw import figure, html, overlay_image, scale_of, sheet
from vitreous.draw.captions import describe_target, explain_range
from vitreous.draw.figure_layout import text_width, wrap_text
from vitreous.methods.fold import FOLDS


def saved(made) -> Image.Image:
    stream = io.BytesIO()
    made.savefig(stream, format="png")
    return Image.open(stream)


# ── place ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("width", "height"), [(640, 480), (480, 700), (64, 64)])
@pytest.mark.parametrize("place", [(0, 0), (2, 6), (7, 7)])
def test_the_hottest_pixels_lie_in_the_patch_of_the_original_image(width, height, place):
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


def test_an_overlay_shows_the_image_where_scores_are_zero():
    photograph = Image.effect_noise((320, 240), 80).convert("RGB")
    found = attribution(one_hot(4, 4), originals=(photograph,))

    shown = np.asarray(overlay_image(found, mode="nearest").resize((320, 240)).convert("L"), float)

    corner = slice(10, 80), slice(60, 120)  # inside the crop, and far from the patch
    likeness = np.corrcoef(shown[corner].ravel(), np.asarray(photograph.convert("L"), float)[corner].ravel())[0, 1]
    assert likeness > 0.95


def test_the_part_outside_of_the_crop_is_faded():
    found = attribution(torch.ones(GRID, GRID), width=800, height=400)

    picture = overlay_image(found)

    assert redness(picture)[:, :190].max() <= 1
    assert np.asarray(picture)[200, 100].min() > np.asarray(picture)[200, 400].min()


@pytest.mark.slow
def test_without_the_original_the_model_input_is_shown_and_without_that_the_map():
    seen = attribution(one_hot(1, 1), originals=None, images=torch.zeros(1, 3, 64, 64))
    unknown = attribution(one_hot(1, 1), originals=None, preprocess=None, images=torch.rand(1, 3, 64, 64))
    bare = attribution(one_hot(1, 1), originals=None, preprocess=None)

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


def test_signs_have_different_colours():
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


def colour_strength(figure) -> list[float]:
    """Strongest colour of every map that is drawn over a grey image, in drawing order."""
    drawn = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()]
    return [float(np.abs(redness(Image.fromarray(np.asarray(image)))).max()) for image in drawn]


def test_classes_of_one_image_share_a_scale_by_default():
    image = torch.zeros(1, 3, 64, 64)
    weak_and_strong = attribution(
        torch.stack([one_hot(2, 2, 1e-3), one_hot(5, 5, 1.0)]), originals=None, images=image.expand(2, -1, -1, -1)
    )

    shared, own = figure(weak_and_strong), figure(weak_and_strong, shared_scale=False)

    assert colour_strength(shared)[0] < 5 < 60 < colour_strength(shared)[1]
    assert min(colour_strength(own)) > 60
    assert "one colour scale for all classes of an image" in words(shared)
    assert "own colour scale per map" in words(own)


def test_one_sparse_strong_map_sets_the_scale_of_many_weak_ones():
    maps = torch.stack([one_hot(1, 1, 1.4), *(one_hot(4, 4, 8e-4) for _ in range(4))])

    strengths = colour_strength(figure(attribution(maps)))

    assert strengths[0] > 60
    assert max(strengths[1:]) < 5


@pytest.mark.slow
def test_each_method_of_a_sheet_has_one_scale_per_image():
    images = torch.stack([torch.zeros(3, 64, 64), torch.zeros(3, 64, 64), torch.ones(3, 64, 64)])
    sizes = torch.tensor([1e-3, 1.0, 1e-3])
    maps = one_hot(3, 3).flatten() * sizes[:, None]
    small, large = (attribution(maps * unit, originals=None, images=images) for unit in (1.0, 1e3))

    drawn = sheet([small, large])

    strengths = np.array(colour_strength(drawn)).reshape(3, 3)[:, 1:]  # without the images themselves
    assert (strengths[0] < 5).all()  # weak compared with the other class of its image
    assert (strengths[1:] > 60).all()  # the third row is alone with its image
    assert "one colour scale for all classes of an image, per method" in words(drawn)
    assert "own colour scale per map" in words(sheet([small, large], shared_scale=False))


def test_a_row_drawn_alone_keeps_the_scale_of_its_image():
    rows = attribution(torch.stack([one_hot(2, 2, 1e-3), one_hot(5, 5, 1.0)]))

    assert colour_strength(figure(rows, rows=[0]))[0] < 5
    assert "more row" not in words(figure(rows, rows=[0]))


def test_images_with_one_class_each_keep_their_own_scales():
    images = torch.arange(2.0)[:, None, None, None].expand(2, 3, 64, 64)
    rows = attribution(torch.stack([one_hot(2, 2, 1e-3), one_hot(5, 5, 1.0)]), originals=None, images=images)

    assert min(colour_strength(figure(rows))) > 60
    assert "colour scale" not in words(figure(rows))


@pytest.mark.parametrize("signed", [True, False])
def test_a_negligible_map_is_drawn_neutral_and_labelled(signed):
    noise = torch.rand(64, generator=torch.Generator().manual_seed(0)) * 1e-28
    score = torch.tensor([60.0])
    strong = attribution(one_hot(1, 1), score=score)

    drawn = figure(attribution(noise, score=score, signed=signed))

    if signed:
        assert "negligiblemap:scoresupto9.9" in joined(drawn).replace("9.8", "9.9")
        assert "besideavalueof60" in joined(drawn)
        assert colour_strength(drawn)[0] <= 2
    else:  # in units of its own: a product of attention matrices may be small and informative
        assert "negligible" not in words(drawn)
    assert "negligible" not in words(figure(strong))


def test_a_negligible_map_does_not_take_the_scale_of_a_smaller_one():
    maps = torch.stack([torch.rand(64) * 1e-9, one_hot(1, 1, 1e-10).flatten()])
    rows = attribution(maps, score=torch.tensor([0.9, 1e-10]))

    drawn = figure(rows)

    assert colour_strength(drawn)[0] <= 2
    assert colour_strength(drawn)[1] > 60
    assert words(drawn).count("negligible map") == 1


@pytest.mark.parametrize("value", [0.0, 2.5, -1e-9])
@pytest.mark.parametrize("signed", [True, False])
def test_a_constant_map_is_labelled_as_constant(value, signed):
    found = attribution(torch.full((GRID, GRID), value), signed=signed)

    drawn = figure(found)

    assert "constant map" in words(drawn)
    saved(drawn)


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
    assert (picture[:, 330:] == picture[0, 330]).all()  # one colour
    assert "32 of 64 scores missing" in words(figure(found))


def test_a_map_of_missing_scores_only_can_be_drawn():
    found = attribution(torch.full((GRID, GRID), torch.nan))

    drawn = figure(found)

    assert "64 of 64 scores missing" in words(drawn)
    saved(drawn)


@pytest.mark.parametrize("size", [1e-30, 1e-5, 0.02, 3.0, 5e3, 7e12])
def test_numbers_on_the_bar_are_short(size):
    scale = scale_of(attribution(one_hot(0, 0, size)))

    assert all(len(scale.written(tick)) <= 6 for tick in scale.ticks)
    assert float(scale.written(scale.high)) * 10.0**scale.exponent == pytest.approx(size, rel=0.01)


# ── captions ──────────────────────────────────────────────────────────────────────────────────────


def test_a_figure_names_method_class_probability_and_score_function():
    found = attribution(one_hot(1, 1), logits=torch.tensor([[0.75, 0.25]]).log(), names=("zebra",))

    text = words(figure(found))

    assert "made(by='hand')+plus" in text
    assert "zebra · 75.0 %" in text
    assert "score (logit)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["$x_1$ \\frac{", "<b>&", "斑马", "a" * 200, ""])
def test_any_name_can_be_drawn_without_a_warning(name):
    found = attribution(one_hot(1, 1), names=(name,))

    assert saved(figure(found)).width == width_of_a_plain_figure()
    saved(sheet([found, found]))


@cache
def width_of_a_plain_figure() -> int:
    return saved(figure(attribution(one_hot(1, 1)))).width


@pytest.mark.slow
def test_many_rows_are_capped_with_a_note():
    found = attribution(torch.rand(40, 64), originals=None, preprocess=None)

    made = figure(found)

    assert "16 more rows not shown" in " ".join(words(made).split())
    assert max(made.get_size_inches()) < 40
    assert "38 more lines not shown" in words(sheet([found], limit=2))


@pytest.mark.slow
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


LONG_METHOD = "anneal(of='fuse(share=temper)',samples=16,kept=0.5,seed=1234567)@libra+skipplus(start=7)"


@pytest.mark.parametrize(
    "name",
    [
        "a rather long name of a class, with (several) parts/of speech",
        "W" * 90,
        "i" * 60 + "M" * 60,
        "斑马" * 30,
        "жираф " * 12,
    ],
    ids=["words", "wide", "uneven", "boxes", "cyrillic"],
)
@pytest.mark.parametrize("methods", [1, 7])
def test_captions_of_a_sheet_are_complete_and_do_not_overlap(name, methods):
    maps = torch.rand(2, 64, generator=torch.Generator().manual_seed(1)) ** 9
    rows = attribution(
        maps, names=(name, "b"), method=LONG_METHOD, provenance={"model": "m" * 300, "question": "margin"}
    )

    drawn = sheet([rows] * methods, quantile=0.9)
    check_texts_fit(drawn)

    text = joined(drawn)
    assert ("▯" * 60 if "斑" in name else "".join(name.split())) in text
    assert LONG_METHOD in text
    assert "m" * 300 in text
    assert text.count("arrowsmarkwhatliesbeyond") == 1
    assert not any(line.get_text().endswith("…") for line in drawn.texts)


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "signed"), [(1e-12, True), (1e-3, False), (1.0, True), (1e9, False)])
def test_captions_of_any_unit_are_whole_in_narrow_panels(unit, signed):
    maps = torch.linspace(0.1, 1, 64).repeat(5, 1)
    maps[:, 5] = -7 if signed else 7
    rows = attribution(
        maps * unit,
        names=("name of a class that does not fit into one line of a panel",) * 5,
        method=LONG_METHOD,
        signed=signed,
        provenance={"model": "timm:made_by_hand", "question": "log-probability"},
    )

    for drawn in (
        figure(rows, columns=5, quantile=0.9),
        figure(rows[0], quantile=0.9),
        sheet([rows[:1]] * 6, quantile=0.9),
    ):
        check_texts_fit(drawn)
        text = joined(drawn)
        assert "score(log-probability)" in text
        assert f"reaching{'−' * signed}7" in text


@pytest.mark.parametrize("dpi", [60, 72, 90, 150])
def test_margins_stay_empty_at_any_resolution(dpi):
    noted = attribution(one_hot(1, 1), provenance={"model": "a footnote of many words " * 20, "question": "logit"})
    stream = io.BytesIO()

    figure(noted).savefig(stream, format="png", dpi=dpi)

    pixels = np.asarray(Image.open(stream).convert("L"))
    margin = int(0.15 * dpi)
    assert pixels[:, -margin:].min() == 255
    assert pixels[:, :margin].min() == 255


def test_options_of_pillow_are_kept():
    made, files = figure(attribution(one_hot(1, 1))), []
    for options in ({}, {"pil_kwargs": {"compress_level": 9}}, {"pil_kwargs": {"compress_level": 0}}):
        made.savefig(stream := io.BytesIO(), format="png", **options)
        files.append(stream)

    sizes = [stream.getbuffer().nbytes for stream in files]
    assert sizes[1] < sizes[0] < sizes[2] / 2
    first, *others = [np.asarray(Image.open(stream)) for stream in files]
    assert all(np.array_equal(first, other) for other in others)


PLAIN_BACKEND = """
from matplotlib.backends.backend_agg import FigureCanvasAgg

class FigureCanvas(FigureCanvasAgg):
    def print_png(self, file, dpi=None, facecolor=None, edgecolor=None, orientation=None, bbox_inches_restore=None):
        super().print_png(file)
"""


def test_other_backends_are_given_no_options_of_pillow(tmp_path, monkeypatch):
    (tmp_path / "plain_backend.py").write_text(PLAIN_BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    figure(attribution(one_hot(1, 1))).savefig(tmp_path / "map.png", backend="module://plain_backend")

    with Image.open(tmp_path / "map.png") as shown:
        assert shown.format == "PNG"


def test_a_narrow_range_far_from_zero_has_distinct_tick_labels():
    check_texts_fit(sheet([attribution(torch.linspace(9999, 9999.04, 64), signed=False)] * 5))


def test_line_breaks_keep_units_together_and_all_letters():
    text = "score (probability) ×\N{NO-BREAK SPACE}10⁻³, reaching " + "x" * 80

    lines = wrap_text(text, 1.0, 7)

    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(text_width(line, 7) <= 1.0 for line in lines)
    assert any("×\N{NO-BREAK SPACE}10⁻³" in line for line in lines)


def test_a_class_whose_name_the_font_cannot_draw_is_shown_by_its_index():
    assert "class0" in joined(figure(attribution(one_hot(1, 1), names=("斑马",))))


# ── probabilities and values ─────────────────────────────────────────────────────────────────────

TEMPERED = {"fold": "plus", "linearisation": {"qk": 0.25, "norm": "frozen"}, "question": "probability"}
PLAIN = {"fold": "first", "linearisation": {"qk": 1.0, "norm": "exact"}, "question": "probability"}
RULES = {"fold": None, "linearisation": {"qk": 1.0, "norm": "exact"}, "question": "probability"}


@pytest.mark.parametrize(
    ("provenance", "phrase"),
    [
        (TEMPERED, "contributions in the linearised model follow the probability’s tangent"),
        (PLAIN, "first-order terms follow the probability’s tangent"),
        (RULES, "scores weigh patches and are not probabilities"),
    ],
)
def test_a_score_of_a_probability_beyond_one_is_explained_at_the_colour_bar(provenance, phrase):
    beyond = attribution(one_hot(1, 1, 1.3), provenance=provenance)
    within = attribution(one_hot(1, 1, 0.9), provenance=provenance)
    logit = attribution(one_hot(1, 1, 1.3), provenance={**provenance, "question": "logit"})

    assert "".join(phrase.split()) in joined(figure(beyond))
    assert "".join(phrase.split()) in joined(sheet([beyond]))
    assert phrase in html(beyond)
    assert "beyond" not in words(figure(within))
    assert "beyond" not in words(figure(logit))
    assert ("added over layers" in explain_range(beyond)) == (provenance is TEMPERED)


def test_scores_of_a_fold_that_states_nothing_about_its_sums_are_not_called_terms():
    @vitreous.fold("squares", reach=lambda depth: 0)
    def squares(layers, signal):
        return sum(signal(layer) ** 2 for layer in layers)

    try:
        beyond = attribution(one_hot(1, 1, 1.3), provenance={**PLAIN, "fold": "squares"})
        assert explain_range(beyond) == "scores weigh patches and are not probabilities"
    finally:
        FOLDS.discard("squares")


def test_patches_that_add_up_to_more_than_a_probability_are_explained_in_a_footnote():
    many = attribution(torch.full((8, 8), 0.1) + one_hot(1, 1, 0.1), provenance=TEMPERED)

    assert "patchesadduptoasmuchas6.5;contributionsinthelinearisedmodel" in joined(figure(many))
    assert "add up" not in words(figure(attribution(one_hot(1, 1, 0.9), provenance=TEMPERED)))


def test_scores_of_class_agnostic_methods_have_no_unit():
    rollout = attribution(one_hot(1, 1), method="rollout", signed=False, provenance={"question": "probability"})

    assert "probability" not in words(figure(rollout))


def test_a_class_explained_by_its_own_sigmoid_is_captioned_with_that_probability():
    label = attribution(one_hot(1, 1), logits=torch.tensor([[2.0, 5.0]]), provenance={"question": "sigmoid"})

    assert describe_target(label) == "thing 0 · 88.1 %"


@pytest.mark.parametrize(("value", "written"), [(61.25, "61.25"), (-3.0, "−3"), (1.5e9, "1.5\xa0×\xa010⁹")])
def test_a_single_output_is_a_value_and_no_class(value, written):
    age = attribution(one_hot(1, 1), logits=torch.tensor([[value]]), names=("age",))

    figure_text, sheet_text = words(figure(age)), words(sheet([age]))

    assert describe_target(age) == f"age = {written}"
    assert "%" not in figure_text
    assert "score (value)" in figure_text
    assert f"= {written}" in sheet_text
    assert "rank" not in sheet_text
    assert f"<b>age</b> = {written}" in html(age)


def test_invalid_arguments_are_refused():
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


def test_an_attribution_has_a_rich_display():
    found = attribution(torch.rand(2, 64))

    assert "<img" in found._repr_html_()
    assert found.plot(1)._repr_png_().startswith(b"\x89PNG")


def test_drawing_does_not_change_global_state():
    import sys

    saved(figure(attribution(one_hot(1, 1))))

    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
