"""Published results are reproduced: single images exactly, means within their interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from study.effects import Figure, compute_figures, load_rows
from study.sheets import read_store
from study.slices import IMAGES_PER_PLAN, SLICES, Single, select_singles
from study.tests.made_up import STUDY, sheet
from vitreous.bench.plan_parser import read_plan
from vitreous.bench.run_plan import execute
from vitreous.bench.store import Store

RESULTS = STUDY / "results"
CLOSE = (
    2e-3  # another device rounds otherwise, and a patch may change places with one that scores the same to seven digits
)


def again(plan: str, folder):
    """All sheets of a slice of a plan, computed here."""
    methods, metrics = SLICES[plan]
    asked = {"images": IMAGES_PER_PLAN, "methods": list(methods), "metrics": list(metrics), "device": "cpu"}
    with Store(folder) as store:
        execute(read_plan(STUDY / "plans" / f"{plan}.toml", **asked), store)
    return read_store(folder)


def compared(plan: str, folder) -> None:
    published = {key(one): one.value for one in load_rows(RESULTS / f"{plan}-slice.csv", Single)}
    sheets = again(plan, folder)
    ours = {key(one): one.value for one in select_singles(plan, sheets)}

    assert published, f"results/{plan}-slice.csv is not there; run study/make.py {plan}"
    assert ours.keys() == published.keys()
    assert ours == pytest.approx(published, abs=CLOSE)
    lies_within(plan, sheets)


def key(one: Single):
    return one.model, one.dataset, one.picture, one.question, one.method, one.metric


def lies_within(plan: str, sheets) -> None:
    """Few images vary more than all: their mean is held to the published interval, widened by √(n / few) and to 99.9 %."""
    said = {(one.model, one.dataset, one.metric, one.method): one for one in load_rows(RESULTS / f"{plan}.csv", Figure)}
    for one in [one for own in sheets for one in compute_figures(own, draws=2)]:
        whole = said[one.model, one.dataset, one.metric, one.method]
        reach = (whole.high - whole.low) / 2 * np.sqrt(whole.n / one.n) * 3.29 / 1.96
        assert abs(one.mean - whole.mean) <= reach, one


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["scenes", "scenes-pair"])
def test_scenes_come_out_as_published(plan, tmp_path):
    compared(plan, tmp_path)


@pytest.mark.slow
def test_photographs_come_out_as_published(tmp_path, assets, monkeypatch):
    """Their results are a GPU's, where torch rounds what a convolution multiplies to TF32; the patch embedding is one."""
    plain, seen = torch.nn.functional.conv2d, []

    def rounded(pixels, weight, *rest):
        seen.append(weight.shape)
        return plain(tf32(pixels), tf32(weight), *rest)

    monkeypatch.setattr(torch.nn.functional, "conv2d", rounded)
    compared("beyond", tmp_path)
    assert seen


def tf32(numbers: torch.Tensor) -> torch.Tensor:
    """The nearest numbers with ten bits after the point."""
    bits = numbers.detach().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_a_slice_has_the_first_images_of_the_selected_methods():
    images = ["a", "a", "b", "b", "c", "c", "d", "d"]
    scores = np.arange(16).reshape(2, 8)
    found = select_singles("scenes-pair", [sheet(scores, metric="ap", images=images, methods=["genatt", "rollout"])])

    assert [(one.picture, one.question, one.value) for one in found] == [
        ("a", 0, 0.0), ("a", 1, 1.0), ("b", 0, 2.0), ("b", 1, 3.0), ("c", 0, 4.0), ("c", 1, 5.0),
    ]  # fmt: skip
    assert {one.method for one in found} == {"genatt"}
    assert select_singles("scenes-pair", [sheet(scores, metric="sparseness", images=images)]) == []
