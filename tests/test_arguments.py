"""Wrong arguments of public functions raise the library's own errors with a message."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch

import vitreous
from tests.models.families import pictures, seen, tiny
from vitreous.core.errors import VitreousError

SMALL = {"depth": 1, "embed_dim": 24, "num_heads": 2, "img_size": 32, "num_classes": 5, "pretrained": False}
NAN, INF = float("nan"), float("inf")

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def refused(call) -> str:
    """The error message; other errors than the library's own fail the test."""
    with pytest.raises(VitreousError) as caught:
        call()
    sentence = str(caught.value)
    assert sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    "target",
    [
        *(1.0, NAN, INF, True, np.bool_(True), 1j, 7, -1, "7", "-1", "", "cat", b"cat", 10**30, object(), len),
        *({1, 2}, frozenset({1}), {1: 2}, [], [[]], [[], []], [1], [1, 2, 3], [[1], [2, 3]], [[[1]], [[2]]]),
        *([1, None], [None, None], [1.5, 2], [True, False], [10**30, 1], np.float64(1), np.array(1.5)),
        *(np.array(["a", "b"]), np.array([object()]), torch.tensor(1.0), torch.tensor(True), torch.tensor([1j, 1])),
        *(torch.tensor([[1, 2, 3]]), torch.zeros(0).long(), torch.zeros(2, 0).long(), torch.zeros(2, 1, 1).long()),
        *(torch.tensor([1, 2]).to_sparse(), torch.empty(2, dtype=torch.long, device="meta")),
    ],
    ids=lambda target: f"{type(target).__name__} {str(target)[:30]}".partition(" at 0x")[0].partition("<object")[0],
)
def test_targets_that_are_no_classes(target):
    refused(lambda: vitreous.explain(seen("vit"), pictures(), target, "ixg"))


@pytest.mark.parametrize(
    "question",
    [
        *("nope", "", 5, [], object(), max, torch.sum, lambda: 1, lambda a, b, c: a, lambda logits: logits),
        *(lambda logits: 1.0, lambda logits: None, lambda logits: logits.sum(), lambda logits: (logits[:, 0],)),
        *(lambda logits: logits[:, 0] > 0, lambda logits: logits.argmax(-1), lambda logits: logits[:, 99]),
        *(lambda logits: logits[:, 0] * NAN, lambda logits: logits[:, 0] / 0),
        *(lambda logits: 1 / 0, lambda logits: logits[:, 0].detach(), lambda logits: torch.ones(len(logits))),
    ],
)
def test_invalid_score_functions_are_refused(question):
    refused(lambda: vitreous.explain(seen("vit"), pictures(), method="ixg", question=question))


@pytest.mark.parametrize(
    "images",
    [
        *(None, 5, [], [None], "nofile.png", {}, [torch.tensor(1.0)], [torch.zeros(3, 24, 32), torch.zeros(3, 16, 16)]),
        *(torch.zeros(24, 32), torch.zeros(0, 3, 24, 32), torch.zeros(1, 1, 24, 32), torch.zeros(1, 3, 23, 31)),
        *(torch.zeros(1, 3, 24, 32).int(), torch.zeros(1, 3, 24, 32).bool(), torch.zeros(1, 3, 0, 0)),
        *(torch.full((1, 3, 24, 32), NAN), torch.full((1, 3, 24, 32), INF)),
        *(torch.zeros(1, 3, 24, 32, device="meta"), torch.zeros(1, 3, 24, 32).to_sparse()),
    ],
    ids=lambda images: (
        f"{list(images.shape)} {images.dtype}" if isinstance(images, torch.Tensor) else type(images).__name__
    ),
)
def test_images_that_the_model_cannot_take(images):
    refused(lambda: vitreous.explain(seen("vit"), images, method="ixg"))


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, "2", None, True])
def test_batch_sizes(batch_size):
    assert "from 1 on" in refused(lambda: vitreous.explain(seen("vit"), pictures(), batch_size=batch_size))
    maps = torch.zeros(2, 12).double()
    evaluate = lambda: vitreous.evaluate(seen("vit"), pictures(), maps, target=0, batch_size=batch_size)  # noqa: E731
    assert "from 1 on" in refused(evaluate)


@pytest.mark.parametrize(
    "option",
    [
        *({"hold": "x"}, {"hold": 5}, {"method": None}, {"method": "nope"}, {"foo": 1}),
        *({"differentiable": "x"}, {"cuda_graph": "x"}, {"cuda_graph": 1}),
    ],
)
def test_other_arguments_of_explain(option):
    refused(lambda: vitreous.explain(seen("vit"), pictures(), **option))


@pytest.mark.parametrize("name", ["hf:", "timm:", "torchvision:", "scenes:"])
def test_a_source_without_a_model(name):
    assert f"{name!r} names no model; write it behind the colon" in refused(lambda: vitreous.load(name))


@pytest.mark.parametrize("name", ["", " ", ":", "x:y", "nope", None, 5, object()])
def test_names_of_no_model(name):
    refused(lambda: vitreous.load(name))
    refused(lambda: vitreous.wrap(name))


@pytest.mark.parametrize("device", ["nope", "meta", "cpu:x", -1, 1.5, True, object(), ["cpu"]])
def test_devices(device):
    refused(lambda: vitreous.load("timm:vit_tiny_patch16_224", device=device, **SMALL))


@pytest.mark.parametrize(
    "given",
    [
        *({"img_size": 0}, {"img_size": "x"}, {"embed_dim": 0}, {"patch_size": 0}, {"num_heads": 5}, {"foo": 1}),
        *({"num_classes": "x"}, {"in_chans": 0}, {"checkpoint": 5}, {"checkpoint": b"a"}, {"checkpoint": "nofile"}),
        *({"classes": ["a"]}, {"classes": "abcde"}, {"outputs": "scalar"}, {"outputs": "binary"}),
        {"size": 5},
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's, before timm fails
def test_arguments_of_load(given):
    refused(lambda: vitreous.load("timm:vit_tiny_patch16_224", **{**SMALL, **given}))


@pytest.mark.parametrize(
    "given", [{"name": 5}, {"preprocess": 5}, {"classes": 5}, {"outputs": 5}, {"outputs": []}], ids=str
)
def test_arguments_of_wrap(given):
    refused(lambda: vitreous.wrap(tiny("vit"), **given))


def test_a_model_without_values():
    assert "has no values" in refused(
        lambda: vitreous.wrap(timm.create_model("vit_tiny_patch16_224", **SMALL).to("meta"))
    )


def test_a_list_without_classes_is_called_empty():
    assert "holds no class" in refused(lambda: vitreous.explain(seen("vit"), pictures(), [[], []], "ixg"))


def test_a_number_in_a_string_is_the_class_of_that_name_if_there_is_one():
    vit = vitreous.wrap(tiny("vit"), classes=["4", "3", "2", "1", "0"])

    assert vitreous.explain(vit, pictures(), "3", "ixg").targets.tolist() == [1, 1]
    assert vitreous.explain(seen("vit"), pictures(), "3", "ixg").targets.tolist() == [3, 3]


def test_weights_that_became_nan():
    vit = vitreous.wrap(copy.deepcopy(tiny("vit")))
    with torch.no_grad():
        next(vit.module.parameters()).fill_(NAN)

    for method in ("ixg", "occlusion", "random"):
        assert "logits that are not finite" in refused(lambda: vitreous.explain(vit, pictures(), method=method))


def test_a_model_created_in_inference_mode():
    with torch.inference_mode():
        module = timm.create_model("vit_tiny_patch16_224", **SMALL).eval()

    assert "torch.inference_mode()" in refused(lambda: vitreous.wrap(module))
    assert "torch.inference_mode()" in refused(lambda: vitreous.see_through(module, size=(32, 32)))


@pytest.mark.parametrize("given", [{"blocks": 5}, {"blocks": [5]}, {"blocks": "nope.*"}], ids=str)
def test_arguments_of_see_through(given):
    refused(lambda: vitreous.see_through(None))
    refused(lambda: vitreous.see_through(tiny("vit"), **given))


@pytest.mark.parametrize(
    ("metric", "annotation", "sentence"),
    [
        ("ap", {"objects": "x"}, "objects must be"),
        ("ap", {"objects": ["a", "b"]}, "objects must be"),
        ("ap", {"objects": [[0], [0, 1]]}, "objects must be"),
        ("pointing_game", {"boxes": 3}, "boxes are a list"),
        ("pointing_game", {"boxes": "ab"}, "boxes are a list"),
        ("deletion_aopc", {"labels": ["cat", 1]}, "no class named 'cat'"),
    ],
)
def test_annotations_of_evaluate(metric, annotation, sentence):
    attribution = vitreous.explain(seen("vit"), pictures(), method="ixg")

    assert sentence in refused(lambda: vitreous.evaluate(seen("vit"), pictures(), attribution, metric, **annotation))


def test_maps_that_do_not_belong_to_the_images():
    vit, images = seen("vit"), pictures()
    two_images = vitreous.explain(vit, images, method="ixg")
    two_classes = vitreous.explain(vit, images[:1], [[0, 1]], method="ixg")

    assert "2 maps of 1 images" in refused(lambda: vitreous.evaluate(vit, images[:1], two_images))
    assert len(vitreous.evaluate(vit, images[:1], two_classes).scores) == 2
    complex_maps = torch.zeros(2, two_images.patches.shape[1], dtype=torch.complex64)
    assert "real numbers" in refused(lambda: vitreous.evaluate(vit, images, complex_maps, target=0))


def test_rows_of_an_attribution_by_index_list_and_mask():
    attribution = vitreous.explain(seen("vit"), pictures(), [[0, 1], [2, 3]], method="ixg")

    assert attribution[-1].targets.tolist() == [3]
    assert attribution[1:3].names == attribution.names[1:3]
    assert attribution[[2, 0]].targets.tolist() == [2, 0]
    assert attribution[torch.tensor([True, False, False, True])].names == (attribution.names[0], attribution.names[3])
    assert torch.equal(attribution[np.array([1])].patches, attribution[1].patches)
    for rows in (None, "x", [9], [True], 1.5, [[0, 1]]):
        assert "a list of indices" in refused(lambda: attribution[rows])
    with pytest.raises(IndexError):  # ends a for loop
        attribution[4]


@pytest.mark.parametrize("size", [(0, 0), 5, (5,), "x", (2.5, 3), (-1, 4)], ids=str)
def test_sizes_of_maps(size):
    attribution = vitreous.explain(seen("vit"), pictures(), method="ixg")

    assert "size=" in refused(lambda: attribution.pixels(size))
    assert "size=" in refused(lambda: vitreous.export.masks(attribution, top=0.5, size=size))


@pytest.mark.parametrize("given", [{"top": "x"}, {"threshold": "x"}, {"top": 2}, {}], ids=str)
def test_arguments_of_masks(given):
    refused(lambda: vitreous.export.masks(vitreous.explain(seen("vit"), pictures(), method="ixg"), **given))
    assert "vitreous.explain" in refused(lambda: vitreous.export.masks(torch.zeros(1, 2, 2), top=0.5))


@pytest.mark.parametrize("place", [{"seed": -1}, {"seed": "a"}, {"seed": 0.5}, {"index": -1}, {"index": None}], ids=str)
def test_scenes_that_do_not_exist(place):
    assert "from 0 on" in refused(lambda: vitreous.scenes.draw("pair", **{"seed": 0, "index": 0, **place}))


@pytest.mark.parametrize(
    "given",
    [
        *({"batch_size": 0}, {"batch_size": None}, {"similarity": "x"}, {"start": 99}, {"start": "x"}, {"foo": 1}),
        *(
            {"method": "fixlip", "samples": "x"},
            {"method": "fixlip", "samples": 1.5},
            {"method": "fixlip", "seed": "x"},
        ),
        *({"method": "fixlip", "p": "x"}, {"method": "exclip", "steps": "x"}, {"method": "exclip", "start": 99}),
        *({"embed_a": 5}, {"embed_a": lambda output: None}, {"embed_a": lambda output: 1 / 0}, {"method": "genatt"}),
        *({"a": torch.full((1, 3, 32, 32), NAN)}, {"a": torch.zeros(1, 3, 16, 16)}, {"a": None}, {"model_a": None}),
    ],
    ids=lambda given: str(sorted(given)),
)
def test_arguments_of_explain_pair(given):
    vit = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 0}).eval()
    images = {"model_a": vit, "a": torch.zeros(1, 3, 32, 32), "model_b": vit, "b": torch.ones(1, 3, 32, 32)}

    refused(lambda: vitreous.explain_pair(**{**images, **given}))


def test_a_pair_is_saved_into_a_new_folder(tmp_path):
    vit = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "num_classes": 0}).eval()
    pair = vitreous.explain_pair(vit, torch.zeros(1, 3, 32, 32), vit, torch.ones(1, 3, 32, 32))

    assert pair.save(tmp_path / "new folder" / "pair.npz").exists()
