"""Figures of layers have correct captions, and draw every map at the correct place."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.front_ends.maps import GRID, attribution, one_hot, redness, words
from vitreous.core.errors import ShapeError, SpecError
from vitreous.draw import strips
from vitreous.draw.overlay import MapStyle, backdrop
from vitreous.draw.strips import make_strip
from vitreous.methods.inside import Inside

LAYERS = 3


def made(rows: int = 1, **changes) -> Inside:
    """The signal of layer l is patch (l, l); the sum starts at the last layer."""
    signal = torch.stack([one_hot(layer, layer, layer + 1.0).flatten() for layer in range(LAYERS)])
    signal = signal.expand(rows, -1, -1)
    parts = {"signal": signal, "sum": signal.flip(1).cumsum(1).flip(1), "length": signal + 0.5}
    whole = attribution(signal.sum(1), width=640, height=640, method="decompx+plus", **changes)
    return Inside(whole, (4, 5, 6), parts)


def saved(board) -> Image.Image:
    stream = io.BytesIO()
    board.savefig(stream, format="png")
    return Image.open(stream).convert("RGB")


def panels(board) -> list[np.ndarray]:
    """All images of the figure, in drawing order."""
    return [np.asarray(axes.get_images()[0].get_array()) for axes in board.axes if axes.get_images()]


@pytest.mark.slow
def test_parts_layers_classes_and_scales_are_written():
    text = words(made(2).plot())

    for word in ("decompx+plus", "thing 0", "thing 1", "image", "all layers together", "signal", "sum", "length"):
        assert word in text
    assert [line for line in text.splitlines() if line.startswith("layer")][:3] == ["layer 6", "layer 5", "layer 4"]
    assert "what this layer adds to the map" in " ".join(text.split())
    assert "value" in text  # a measure is not counted in units of the score
    assert "timm:made_by_hand" in text


def test_maps_are_ordered_from_the_last_layer_to_the_first():
    drawn = panels(strips(made(), parts=["signal"], mode="nearest"))

    assert len(drawn) == 2 + LAYERS  # the image, the whole map, and a strip
    for layer, shown in zip((2, 1, 0), drawn[2:], strict=True):
        red = redness(Image.fromarray(shown))
        y, x = np.unravel_index(red.argmax(), red.shape)
        side = red.shape[0] / GRID
        assert (int(y // side), int(x // side)) == (layer, layer)


def test_one_scale_for_a_strip_unless_every_layer_has_its_own():
    together, apart = (strips(made(), parts=["signal"], shared_scale=shared) for shared in (True, False))

    shared = [redness(Image.fromarray(p)).max() for p in panels(together)[2:]]
    own = [redness(Image.fromarray(p)).max() for p in panels(apart)[2:]]
    assert shared[0] > shared[2] + 20  # scores of layer 6 are three times those of layer 4
    assert abs(own[0] - own[2]) <= 2
    assert "−1 … 1" in words(apart)
    assert "−3 … 3" in words(apart)


def test_signals_have_the_sign_of_the_map_and_measures_have_none():
    one = made()

    assert make_strip(one, "signal", True, 1).scales[0].signed
    assert not make_strip(one, "length", True, 1).scales[0].signed
    assert make_strip(one, "length", True, 1).scales[0].high == pytest.approx(3.5)


@pytest.mark.slow
def test_a_class_agnostic_method_is_labelled():
    one = made()

    assert "the same for every class" in words(strips(replace(one, whole=replace(one.whole, method="rollout"))))
    assert "the same for every class" not in words(strips(one))


@pytest.mark.slow
def test_without_an_image_only_maps_are_drawn_and_missing_scores_are_hatched():
    one = made(originals=None, preprocess=None)
    parts = {**one.parts, "signal": one.parts["signal"].clone()}
    parts["signal"][:, 0, 5] = torch.nan

    board = strips(replace(one, parts=parts), parts=["signal"])

    assert len(panels(board)) == 1 + LAYERS
    assert saved(board).width > 600
    scale, framed_image = make_strip(one, "sum", True, 1).scales[0], backdrop(one.whole, 320)
    assert MapStyle(longest=320).draw(one.at("sum", 4), scale, framed_image).size == (480, 480)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 3, 24])
def test_strips_are_inside_the_figure_and_do_not_overlap(layers):
    signal = torch.rand(1, layers, GRID * GRID, generator=torch.Generator().manual_seed(0))
    whole = attribution(signal.sum(1), method="decompx+plus")
    board = Inside(whole, tuple(range(layers)), {"signal": signal, "sum": signal, "necc": signal}).plot()

    board.canvas.draw()
    boxes = [axes.get_position() for axes in board.axes if axes.get_images()]
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= 1 and b.y1 <= 1 for b in boxes)
    for i, a in enumerate(boxes):
        assert not any(a.overlaps(b) for b in boxes[i + 1 :])
    for text in board.texts:
        box = text.get_window_extent()
        assert box.x0 >= -1
        assert box.x1 <= board.bbox.x1 + 1


@pytest.mark.slow
def test_rows_beyond_the_limit_are_counted():
    text = words(strips(made(4), limit=3))

    assert "1 more row not shown" in text
    assert "thing 3" not in text


def test_invalid_drawings_are_refused():
    with pytest.raises(SpecError, match="no part 'necc'"):
        strips(made(), parts=["necc"])
    with pytest.raises(SpecError, match="parts is a list"):
        strips(made(), parts="signal")
    with pytest.raises(SpecError, match="parts is a list"):
        strips(made(), parts=[])
    with pytest.raises(ShapeError, match="nothing to draw"):
        strips(made(), limit=0)
