"""Wrong arguments of `explain`, `load` and `wrap` end in one sentence of the library's own errors."""

from __future__ import annotations

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
    """The one sentence; anything but the library's own errors fails the test."""
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
        *(lambda logits: 1 / 0, lambda logits: logits[:, 0].detach(), lambda logits: torch.ones(len(logits))),
    ],
)
def test_questions_that_are_no_score_functions(question):
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


@pytest.mark.parametrize("option", [{"hold": "x"}, {"hold": 5}, {"method": None}, {"method": "nope"}, {"foo": 1}])
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
