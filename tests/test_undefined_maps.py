"""A model that is undefined is refused in the same words by explain, bench and map (the playground calls explain), and only itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vitreous
from tests.mapping.images import encoded_images, rows_in, run, write_folder
from vitreous.bench.labelled_batch import LabelledBatch
from vitreous.bench.model_options import LoadedModel
from vitreous.bench.worker import compute
from vitreous.core.errors import ModelError
from vitreous.mapping import explain as map_stage
from vitreous.methods.options import OptionFunction
from vitreous.metrics.metric import resolve_metric
from vitreous.models.vit import ViT

COUNT = 4
IMAGES = torch.stack(
    [vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=1, index=index)) for index in range(COUNT)]
)
OVERFLOWING = 2  # index of the image whose logits overflow
METHOD = vitreous.resolve("gradcam")


@pytest.fixture(scope="module")
def overflowing() -> ViT:
    """The embedded model, whose logits overflow for one image."""
    vit = vitreous.load("scenes")
    assert isinstance(vit, ViT)
    with torch.no_grad():
        expected = vit.forward(IMAGES[OVERFLOWING : OVERFLOWING + 1])

    def classify(pooled: Tensor) -> Tensor:
        logits = vit.classify(pooled)
        overflows = (logits - expected).abs().amax(-1, keepdim=True) < 0.01
        return torch.where(overflows, logits * 1e38 * 1e38, logits)

    return replace(vit, classify=classify)


@pytest.fixture(scope="module")
def undefined() -> ViT:
    """The embedded model with NaN in its head."""
    vit = vitreous.load("scenes")
    assert isinstance(vit, ViT)
    with torch.no_grad():
        vit.module.get_parameter("head.weight")[3] = torch.nan
    return vit


def errors_in_bench(vit: ViT, method: vitreous.Method = METHOD) -> list[list[str | None]]:
    """Errors of a map and of a metric, for two targets of every image."""
    keys, roles = tuple(f"{index:03d}.png" for index in range(COUNT)), ("class 1", "class 2")
    targets, labels = torch.tensor([[1, 2]] * COUNT), torch.zeros(COUNT, dtype=torch.long)
    batch = LabelledBatch(
        vit, keys, tuple(range(COUNT)), IMAGES, targets, roles, labels, torch.zeros(COUNT, 20), given={}
    )
    columns = [*compute(batch, method, [None, resolve_metric("sparseness")], None)]
    return [[row.get("error") for row in rows] for rows in columns]


def errors_in_map(vit: ViT, folder, monkeypatch) -> dict[str, list[str | None]]:
    """Errors of every image."""
    monkeypatch.setattr(map_stage, "load_cached", lambda *_: LoadedModel(vit, "weights", "{}", ()))
    run(write_folder(folder / "images", encoded_images(COUNT)), folder / "maps", batch_size=COUNT, targets=(1, 2))
    errors: dict[str, list[str | None]] = {}
    for row in rows_in(folder / "maps"):
        assert (row["grid"] is None) == (row["error"] is not None)
        errors.setdefault(row["key"], []).append(row["error"])
    return errors


def test_a_model_that_is_undefined_is_refused_by_all_ways_in(undefined, tmp_path, monkeypatch):
    with pytest.raises(ModelError) as refused:
        vitreous.explain(undefined, IMAGES, method=METHOD)
    reason = str(refused.value)
    assert "gives logits that are not finite" in reason
    assert errors_in_bench(undefined) == [[reason] * 2 * COUNT] * 2
    assert errors_in_map(undefined, tmp_path, monkeypatch) == {f"{index:03d}.png": [reason] for index in range(COUNT)}


def test_an_image_whose_logits_overflow_leaves_the_others_of_its_batch_as_they_are(overflowing, tmp_path, monkeypatch):
    with pytest.raises(ModelError) as refused:
        vitreous.explain(overflowing, IMAGES, method=METHOD)
    reason = str(refused.value)

    wrong = [index == OVERFLOWING for index in range(COUNT)]
    assert errors_in_bench(overflowing) == [[reason if bad else None for bad in wrong for _ in range(2)]] * 2
    assert errors_in_map(overflowing, tmp_path, monkeypatch) == {
        f"{index:03d}.png": [reason] if bad else [None, None] for index, bad in enumerate(wrong)
    }


def test_a_map_that_the_method_leaves_undefined_stays_visible_with_a_caution(overflowing):
    recipe = replace(METHOD.recipe, signal=OptionFunction.of(lambda layer: layer.hidden.sum(-1) / 0))
    dividing = replace(METHOD, recipe=recipe)

    with pytest.warns(vitreous.Caveat, match="gradcam on scenes: scores that are NaN or infinite are undefined"):
        attribution = vitreous.explain(overflowing, IMAGES[:1], method=dividing)
    assert not attribution.patches.isfinite().any()
    assert "are undefined" in attribution.provenance["caveat"]
    assert errors_in_bench(overflowing, dividing)[0][0] is None


def test_cautions_of_all_batches_stay_in_the_provenance():
    vit = vitreous.load("scenes")

    def question(logits: Tensor) -> Tensor:  # of which only the last image has a gradient
        return logits[:, 1] * (logits - vit.forward(IMAGES[3:])).abs().amax(-1).lt(0.01).float()

    attribution = vitreous.explain(vit, IMAGES.flip(0), 1, "ixg", question=question, batch_size=1)

    assert attribution.negligible.tolist() == [False, True, True, True]
    assert attribution.provenance["caveat"].count("colours show next to nothing") == 1
