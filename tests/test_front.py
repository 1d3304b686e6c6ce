"""`explain`, `load` and `wrap`: inputs, results and errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import vitreous
from vitreous.core.errors import Caveat
from vitreous.testing import SHAPE, tiny_vits


@pytest.fixture(scope="module")
def vit():
    return tiny_vits(torch.float32)["class token"]


@pytest.fixture(scope="module")
def picture():
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# ── images ─────────────────────────────────────────────────────────────────────────────────────


def test_tensors_images_paths_and_lists_of_these_are_accepted(vit, picture, images, tmp_path):
    picture.save(tmp_path / "one.png")
    for given, count in (
        (images, 3),
        (images[0], 1),
        (list(images), 3),
        (picture, 1),
        (str(tmp_path / "one.png"), 1),
        ([picture, tmp_path / "one.png"], 2),
    ):
        assert vitreous.explain(vit, given, method="ixg").patches.shape == (count, 16)


def test_an_image_and_its_file_get_the_same_map(vit, picture, tmp_path):
    picture.save(tmp_path / "one.png")

    assert torch.equal(vitreous.explain(vit, picture).patches, vitreous.explain(vit, tmp_path / "one.png").patches)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (torch.zeros(2, 4, 32, 32), "must be \\[b 3 H W\\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.int64), "normalised floats, or uint8"),
        (torch.zeros(0, 3, 32, 32), "at least one image"),
        (torch.zeros(1, 3, 33, 32), "takes 32x32 images"),
        ([], "no images"),
        ([torch.zeros(3, 32, 32), torch.zeros(3, 16, 16)], "one shape"),
        (np.zeros((32, 32, 3)), "float64 does not say which value is white; give uint8"),
        ([np.zeros((32, 32, 3), np.float32)], "float32 does not say which value is white"),
        (np.zeros((32, 32, 2), np.uint8), r"has 2 channels, and the model takes 3; .*\[H, W, 3\]"),
        (np.zeros((2, 2, 32, 32, 3), np.uint8), "not \\[2, 2, 32, 32, 3\\]"),
        (np.zeros((0, 32, 32, 3), np.uint8), "no images"),
        ([np.zeros((32, 32, 3), np.uint8), torch.zeros(3, 32, 32)], "cannot be mixed"),
        (None, "not 'NoneType'"),
        ([torch.zeros(3, 32, 32), "one.png"], "cannot be mixed"),
    ],
)
def test_wrong_images_are_refused(vit, given, sentence):
    with pytest.raises(vitreous.ShapeError, match=sentence):
        vitreous.explain(vit, given)


def test_errors_of_missing_and_invalid_files_name_the_file(vit, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(vitreous.DataError, match=r"text\.png"):
        vitreous.explain(vit, tmp_path / "text.png")
    with pytest.raises(vitreous.DataError, match=r"nothing\.png"):
        vitreous.explain(vit, tmp_path / "nothing.png")


# ── targets ──────────────────────────────────────────────────────────────────────────────────────


def test_no_target_is_the_predicted_class(vit, images):
    found = vitreous.explain(vit, images)

    assert found.targets.tolist() == found.logits.argmax(-1).tolist()


def test_one_target_one_per_image_and_several_per_image(vit, images):
    assert vitreous.explain(vit, images, 2).targets.tolist() == [2, 2, 2]
    assert vitreous.explain(vit, images, [2, 0, 1]).targets.tolist() == [2, 0, 1]
    assert vitreous.explain(vit, images, torch.tensor(4)).targets.tolist() == [4, 4, 4]
    assert vitreous.explain(vit, images, np.int64(4)).targets.tolist() == [4, 4, 4]
    assert vitreous.explain(vit, images, np.array([[1, 2]] * 3)).targets.tolist() == [1, 2] * 3
    several = vitreous.explain(vit, images, [[2, 0], [1, 3], [4, 5]], method="genatt")

    assert several.targets.tolist() == [2, 0, 1, 3, 4, 5]
    assert torch.allclose(several.patches[3:4], vitreous.explain(vit, images[1], 3, "genatt").patches, atol=1e-6)


def test_a_class_may_be_named(vit, images):
    named = replace(vit, classes=tuple("abcdefg"))

    assert vitreous.explain(named, images, "c").targets.tolist() == [2, 2, 2]
    assert vitreous.explain(named, images, "C").names == ("c", "c", "c")
    with pytest.raises(vitreous.ShapeError, match="classes 0, 2"):
        vitreous.explain(replace(vit, classes=tuple("abadefg")), images, "a")
    with pytest.raises(vitreous.ShapeError, match="no class named 'zebra'"):
        vitreous.explain(named, images, "zebra")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (7, "classes 0 to 6"),
        (-1, "classes 0 to 6"),
        ([1, 2], "2 entries for 3 images"),
        (torch.zeros(3), "whole numbers"),
        ([[1, 2], [3], [4, 5]], "target must be"),
        (True, "not True or False"),
        (1.5, "target must be"),
    ],
)
def test_wrong_targets_are_refused(vit, images, target, sentence):
    with pytest.raises(vitreous.ShapeError, match=sentence):
        vitreous.explain(vit, images, target)


def test_a_flat_list_of_classes_for_one_image_gets_a_hint(vit, images):
    with pytest.raises(vitreous.ShapeError, match=r"target=\[\[1, 2\]\]"):
        vitreous.explain(vit, images[0], [1, 2])


# ── score functions ───────────────────────────────────────────────────────────────────────────────


def test_the_default_score_function_is_that_of_the_method(vit, images):
    assert vitreous.explain(vit, images, method="ixg").provenance["question"] == "logit"
    assert vitreous.explain(vit, images, method="tokentm").provenance["question"] == "probability"
    assert vitreous.explain(vit, images, method="tokentm", question="logit").provenance["question"] == "logit"


def test_any_callable_of_the_logits_is_a_score_function(vit, images):
    by_name = vitreous.explain(vit, images, 2, "ixg", "logit").patches
    by_logits = vitreous.explain(vit, images, 2, "ixg", lambda z: z[:, 2]).patches
    by_both = vitreous.explain(vit, images, 2, "ixg", lambda z, t: z.gather(1, t[:, None])[:, 0]).patches

    assert torch.equal(by_logits, by_name)
    assert torch.equal(by_both, by_name)
    with pytest.raises(vitreous.ShapeError, match="one number per row"):
        vitreous.explain(vit, images, 2, "ixg", lambda z: z)
    with pytest.raises(vitreous.SpecError, match="did you mean 'margin'"):
        vitreous.explain(vit, images, 2, "ixg", "margn")


def test_a_margin_is_the_difference_of_two_logits(vit, images):
    logits = vitreous.explain(vit, images, 2).logits
    rival = logits.scatter(1, torch.full((3, 1), 2), -torch.inf).argmax(-1)
    ours = vitreous.explain(vit, images, 2, "decompx", "margin").patches

    parts = (
        vitreous.explain(vit, images, 2, "decompx").patches - vitreous.explain(vit, images, rival, "decompx").patches
    )
    assert torch.allclose(ours, parts, atol=1e-4 * parts.abs().max().item())


# ── results ───────────────────────────────────────────────────────────────────────────────────────


def test_an_attribution_survives_its_file(vit, images, tmp_path):
    found = vitreous.explain(vit, images, 2, "decompx")
    back = vitreous.Attribution.load(found.save(tmp_path / "deep" / "map.safetensors"))

    for name in ("patches", "prefix", "bias", "residual", "score", "logits", "targets"):
        assert torch.equal(getattr(back, name), getattr(found, name)), name
    assert (back.layout, back.method, back.native, back.names) == (
        found.layout,
        found.method,
        found.native,
        found.names,
    )
    assert dict(back.provenance) == dict(found.provenance)


def test_a_file_that_is_no_attribution_is_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("hello")
    for file in ("other.safetensors", "text", "missing"):
        with pytest.raises(vitreous.DataError, match=file):
            vitreous.Attribution.load(tmp_path / file)


def test_maps_and_pixels_have_the_images_shape(vit, images):
    found = vitreous.explain(vit, images)

    assert found.maps().shape == (3, 4, 4)
    assert found.pixels().shape == (3, 32, 32)
    assert found.pixels((50, 70), "nearest").shape == (3, 50, 70)
    assert torch.equal(found.pixels(mode="nearest")[:, ::8, ::8], found.maps())
    with pytest.raises(vitreous.ShapeError, match="bilinear"):
        found.pixels(mode="linear")


def test_pixel_methods_keep_their_own_map(vit, images):
    found = vitreous.explain(vit, images, method="ixg(space='pixels')")

    assert found.native == "pixel"
    assert found.pixels().shape == (3, 32, 32)
    cells = found.pixels().unflatten(1, (4, 8)).unflatten(3, (4, 8)).sum((2, 4)).flatten(1)
    assert torch.allclose(found.patches, cells, atol=1e-5)


def test_shares_of_patches_prefix_and_biases_make_the_score(vit, images):
    found = vitreous.explain(vit, images, 2, "decompx")

    assert torch.allclose(sum(found.shares.values()), found.score, atol=1e-3)
    assert torch.allclose(found.score, found.logits[:, 2], atol=1e-5)


def test_indexing_a_row_returns_an_attribution(vit, images):
    found = vitreous.explain(vit, images, [1, 2, 3])

    assert found[1].targets.tolist() == [2]
    assert torch.equal(found[-1].patches, found.patches[2:])
    assert len(list(found)) == 3


def test_batches_of_any_size_give_the_same_maps(vit, images):
    whole = vitreous.explain(vit, images, [1, 2, 3], "genatt")
    parts = vitreous.explain(vit, images, [1, 2, 3], "genatt", batch_size=2)

    assert torch.allclose(whole.patches, parts.patches, atol=1e-6)
    assert parts.logits.shape == (3, 7)


def test_double_precision_stays_double():
    vit = tiny_vits(torch.float64)["class token"]
    found = vitreous.explain(vit, torch.zeros(1, 3, 32, 32, dtype=torch.float64))

    assert found.patches.dtype == torch.float64


def test_a_map_of_rounding_errors_has_a_caveat(vit, images):
    with pytest.warns(Caveat, match="rounding noise"):
        found = vitreous.explain(vit, images, method="vanillagrad")

    assert "caveat" in found.provenance


def test_explaining_works_inside_no_grad_and_inference_mode(vit, images):
    outside = vitreous.explain(vit, images).patches
    with torch.no_grad():
        assert torch.equal(vitreous.explain(vit, images).patches, outside)
    with torch.inference_mode():
        assert torch.equal(vitreous.explain(vit, images.clone()).patches, outside)


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def test_a_module_is_checked_once_and_again_when_its_parts_change(monkeypatch):
    from vitreous import wrapping

    greeted = []
    compare = wrapping.compare_with_model
    monkeypatch.setattr(wrapping, "compare_with_model", lambda vit: greeted.append(vit.name) or compare(vit))
    model = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    for _ in range(3):
        assert vitreous.wrap(model).outputs == 7

    assert len(greeted) == 1
    model.blocks[1] = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval().blocks[1]
    vitreous.wrap(model)
    assert len(greeted) == 2


def test_a_wrapped_module_is_let_go():
    model = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    vitreous.wrap(model)
    gone = weakref.ref(model)
    del model
    gc.collect()

    assert gone() is None


@pytest.mark.parametrize("last", [torch.nn.Sigmoid(), torch.nn.Softmax(-1)])
def test_a_model_that_answers_with_probabilities_is_refused(last):
    model = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    model.head = torch.nn.Sequential(model.head, last)

    with pytest.raises(vitreous.ModelError, match="without its last sigmoid or softmax"):
        vitreous.wrap(model)


def test_a_hook_that_is_added_later_is_detected():
    model = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    vitreous.wrap(model)
    model.blocks[0].register_forward_hook(lambda module, inputs, output: output * 0.5)

    network = vitreous.wrap(model)
    assert not isinstance(network, vitreous.ViT)
    assert "hooks" in network.reason


def test_a_head_that_is_not_affine_is_reported(images):
    model = timm.create_model("vit_tiny_patch16_224", **SHAPE).eval()
    model.head = torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.GELU(), torch.nn.Linear(32, 7))

    with pytest.warns(Caveat, match="not affine"):
        vitreous.explain(model, images, method="decompx")
    assert vitreous.explain(model, images, method="ixg").patches.shape == (3, 16)


def test_a_checkpoint_determines_classes_and_image_size(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", **{**SHAPE, "num_classes": 5})
    save_file(model.state_dict(), tmp_path / "five.safetensors")
    shape = {key: value for key, value in SHAPE.items() if key != "num_classes"}
    file = tmp_path / "five.safetensors"

    assert vitreous.load("timm:vit_tiny_patch16_224", file, **shape).outputs == 5
    larger = vitreous.load("timm:vit_tiny_patch16_224", file, **{**shape, "img_size": (48, 64)})
    assert vitreous.explain(larger, torch.zeros(1, 3, 48, 64)).maps().shape == (1, 6, 8)


@pytest.mark.parametrize(
    ("name", "kwargs", "sentence"),
    [
        ("timm:vit_tny_patch16_224", {}, "did you mean 'vit_tiny_patch16_224'"),
        ("tim:vit_tiny_patch16_224", {}, "no source 'tim'"),
        ("timm:vit_tiny_patch16_224", {"pretrained": False, "colour": 1}, "colour"),
        ("timm:vit_tiny_patch16_224", {"pretrained": False, "img_size": 100}, "does not divide"),
        ("scenes", {"img_size": 224}, "takes no img_size"),
        ("timm:vit_tiny_patch16_224", {"checkpoint": "nothing.safetensors"}, "no checkpoint"),
        ("timm:vit_tiny_patch16_224", {"pretrained": False, "device": "cuda:99"}, "device"),
    ],
)
def test_the_error_for_an_unavailable_model_gives_the_reason(name, kwargs, sentence):
    with pytest.raises(vitreous.VitreousError, match=sentence):
        vitreous.load(name, **kwargs)


def test_weights_of_another_model_are_refused(tmp_path):
    save_file({"foo": torch.zeros(1)}, tmp_path / "foo.safetensors")

    with pytest.raises(vitreous.ModelError, match="do not fit"):
        vitreous.load("timm:vit_tiny_patch16_224", tmp_path / "foo.safetensors")


def test_objects_that_are_no_models_are_refused(images):
    with pytest.raises(vitreous.ModelError, match=r"nn\.Module"):
        vitreous.explain(42, images)
    with pytest.raises(vitreous.ModelError, match=r"not a timm, Hugging Face or torchvision.*cannot be run"):
        vitreous.explain(torch.nn.Linear(3, 3), images)


# ── listing ──────────────────────────────────────────────────────────────────────────────────────


def test_every_method_is_listed_with_its_facts():
    listed = {facts["name"]: facts for facts in vitreous.list_methods()}

    assert {"decompx", "genatt", "tokentm", "alti", "random"} <= set(listed)
    for facts in listed.values():
        assert {"class_specific", "signed", "complete", "forwards", "backwards", "paper"} <= set(facts)
        assert facts["title"]


def test_importing_the_package_loads_no_torch():
    code = "import vitreous, sys; assert 'torch' not in sys.modules; assert 'explain' in dir(vitreous)"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_mistyped_embedded_model_is_recognised():
    with pytest.raises(vitreous.ModelError, match="did you mean 'scenes'"):
        vitreous.load("scens")


def test_the_docstring_names_the_default_method():
    from vitreous.core.defaults import DEFAULT_METHOD

    assert f'"{DEFAULT_METHOD}" by default' in vitreous.explain.__doc__
