"""Models with one output: values, declared binary classifiers, and class names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import vitreous
import vitreous.testing
from tests.models.families import build, pictures, seen, tiny
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.draw.captions import describe_rank, describe_target, label, probability
from vitreous.draw.scale import scale_of
from vitreous.methods.attribution import Attribution
from vitreous.models.black_box import with_observed_outputs
from vitreous.models.model import Layout, Outputs
from vitreous.models.timm import from_timm

Z = tiny("vit-one-output")(pictures()).detach()[:, 0]
BY_DEFAULT_A_PROBABILITY = ["rise(masks=4)", "tokentm", "kernelshap(samples=20)"]


def regression(shift: float = 0.0, **given) -> vitreous.ViT:
    """A model with one output, moved by `shift`."""
    model = build("vit-one-output")
    with torch.no_grad():
        model.head.bias += shift
    return vitreous.wrap(model, **given)


class Brightness(nn.Module):
    """A black box whose one output is the sum of all pixels, scaled."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((outputs,), 0.01, dtype=torch.float64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.sum((1, 2, 3))[:, None] * self.gain


# ── one value ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", [None, 0, "age", "AGE", [0, 0], [["age"], ["age"]], torch.tensor([[0], [0]])])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 60.0])
def test_every_name_of_a_single_output_explains_its_value(target, shift):
    vit = regression(shift, classes=["age"])

    found = vitreous.explain(vit, pictures(), target, "ixg")

    assert vit.output_type == Outputs("scalar", 1)
    assert vit.outputs == 1
    torch.testing.assert_close(found.score, Z + shift)
    assert found.targets.tolist() == [0, 0]
    assert found.names == ("age", "age")
    assert found.logits.shape == (2, 1)
    images = pictures().clone().requires_grad_()
    tokens = vit.embed(images).detach().requires_grad_()
    hidden = tokens
    for block in vit.module.blocks:
        hidden = block(hidden)
    value = vit.module.forward_head(vit.module.norm(hidden)).sum()
    gradient = torch.autograd.grad(value, tokens)[0]
    torch.testing.assert_close(found.patches, (tokens * gradient).sum(-1)[:, 1:].detach())


@pytest.mark.parametrize("spec", BY_DEFAULT_A_PROBABILITY)
def test_the_value_is_explained_also_by_methods_of_the_probability(spec):
    vit = regression(60.0)

    found = vitreous.explain(vit, pictures(), method=spec)

    torch.testing.assert_close(found.score, Z + 60)
    assert found.provenance["question"] == "logit"
    assert found.provenance["output_type"] == "scalar"
    assert not found.negligible.any()


@pytest.mark.parametrize("question", ["probability", "log-probability", "margin"])
def test_a_number_has_no_rivals(question):
    with pytest.raises(SpecError, match=rf"question '{question}' compares classes.* answers with one number; 'logit'"):
        vitreous.explain(regression(), pictures(), method="ixg", question=question)
    with pytest.raises(SpecError, match="compares classes"):
        vitreous.explain(regression(), pictures(), method=f"ixg(question='{question}')")


def test_a_number_has_one_target():
    with pytest.raises(ShapeError, match=r"target 1 is not an output: .* one number, target 0; wrap\(model, outputs"):
        vitreous.explain(regression(), pictures(), 1)
    with pytest.raises(ShapeError, match="no class named 'agee'; did you mean 'age'"):
        vitreous.explain(regression(classes=["age"]), pictures(), "agee")


def test_any_function_of_the_number_can_be_explained():
    found = vitreous.explain(regression(), pictures(), method="ixg", question=lambda logits: logits[:, 0].square())
    own = vitreous.explain(regression(), pictures(), method="ixg")

    torch.testing.assert_close(found.score, Z.square())
    torch.testing.assert_close(found.patches, 2 * Z[:, None] * own.patches)


def test_a_black_box_with_one_output_is_a_number_too():
    model, images = Brightness(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    box = vitreous.wrap(model, black_box=True, classes=["light"])

    found = vitreous.explain(box, images, "light", "occlusion(window=4, stride=4)")

    torch.testing.assert_close(found.score, model(images)[:, 0].detach())
    torch.testing.assert_close(found.pixels().sum((1, 2)) / 16, found.score, rtol=1e-9, atol=1e-9)
    assert found.names == ("light", "light")


def test_captions_contain_the_value():
    found = vitreous.explain(regression(60.0, classes=["age"]), pictures(), method="ixg")

    assert describe_target(found[0]) == f"age = {Z[0] + 60:.4g}"
    assert probability(found[0]) is None
    assert describe_rank(found[0]) == [f"= {Z[0] + 60:.4g}"]
    assert label(found[0], scale_of(found[0])).startswith("score (value)")
    assert f"<b>age</b> = {Z[0] + 60:.4g}" in found._repr_html_()
    assert "%" not in describe_target(vitreous.explain(regression(), pictures(), method="ixg")[1])
    assert describe_target(vitreous.explain(regression(), pictures(), method="ixg")[1]).startswith("output = ")


def test_metrics_of_class_probabilities_refuse_a_number_by_name():
    vit = regression()
    found = vitreous.explain(vit, pictures(), method="ixg")

    for metric in ("deletion_aopc", "insertion", "deletion_accuracy", "aopc"):
        with pytest.raises(SpecError, match=rf"metric '{metric}' reads class probabilities, .*one number"):
            vitreous.evaluate(vit, pictures(), found, metric)
    assert vitreous.evaluate(vit, pictures(), found, "sparseness").scores.isfinite().all()
    assert vitreous.evaluate(vit, pictures(), found, "max_sensitivity").scores.isfinite().all()
    own = vitreous.evaluate(vit, pictures(), found.patches, "sparseness")
    torch.testing.assert_close(own.scores, vitreous.evaluate(vit, pictures(), found, "sparseness").scores)


def test_a_model_with_one_number_keeps_the_contract():
    assert vitreous.testing.check_model(regression(name="a regression"), "ixg+first")


# ── a binary classifier ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", [{"outputs": "binary"}, {"classes": ["no", "yes"]}])
def test_a_binary_classifier_is_declared(given):
    vit = vitreous.wrap(tiny("vit-one-output"), **given)

    found = vitreous.explain(vit, pictures(), [[0, 1], [0, 1]], "ixg")

    assert vit.output_type == Outputs("binary", 1)
    torch.testing.assert_close(found.score, torch.stack([-Z[0], Z[0], -Z[1], Z[1]]))
    assert vitreous.explain(vit, pictures(), method="ixg").targets.tolist() == (Z > 0).long().tolist()
    assert describe_target(found[1]).endswith(f"{100 * Z[0].sigmoid():.1f} %")
    assert found.provenance["output_type"] == "binary"


def test_the_own_probability_of_a_binary_class_is_its_sigmoid():
    vit = vitreous.wrap(tiny("vit-one-output"), outputs="binary")

    found = vitreous.explain(vit, pictures(), [[0, 1], [0, 1]], "ixg", "sigmoid")

    torch.testing.assert_close(
        found.score, torch.stack([(-Z[0]).sigmoid(), Z[0].sigmoid(), (-Z[1]).sigmoid(), Z[1].sigmoid()])
    )
    torch.testing.assert_close(found.patches[0::2], -found.patches[1::2])


@pytest.mark.parametrize("given", [{"outputs": "binary"}, {"classes": ["dark", "light"]}])
def test_a_black_box_can_be_binary(given):
    model, images = Brightness(), torch.randn(2, 3, 16, 16, dtype=torch.float64)

    found = vitreous.explain(vitreous.wrap(model, black_box=True, **given), images, 0, "rise(masks=4)")

    torch.testing.assert_close(found.score, 1 - model(images)[:, 0].detach().sigmoid())


def test_binary_is_for_one_output(as_users_run_it):
    with pytest.raises(ModelError, match=r"outputs='binary' is for a model with one output, and .* has 5"):
        vitreous.wrap(tiny("vit"), outputs="binary")
    box = vitreous.wrap(Brightness(3), black_box=True, outputs="binary")
    with pytest.raises(ModelError, match=r"outputs='binary' is for a model with one output, and .* has 3"):
        vitreous.explain(box, torch.zeros(1, 3, 8, 8), method="rise(masks=4)")
    with pytest.raises(ModelError, match="outputs='regression' is not known; 'binary' says"):
        vitreous.wrap(tiny("vit-one-output"), outputs="regression")
    with pytest.raises(ModelError, match="outputs='sigmoid' is not known"):
        vitreous.load("timm:vit_tiny_patch16_224", pretrained=False, outputs="sigmoid")


def test_a_loaded_model_can_be_binary_or_named():
    small = {"depth": 1, "embed_dim": 24, "num_heads": 2, "img_size": 32, "num_classes": 1, "pretrained": False}

    assert vitreous.load("timm:vit_tiny_patch16_224", **small).output_type == Outputs("scalar", 1)
    assert vitreous.load("timm:vit_tiny_patch16_224", **small, outputs="binary").output_type == Outputs("binary", 1)
    assert vitreous.load("timm:vit_tiny_patch16_224", **small, classes=["a", "b"]).classes == ("a", "b")
    with pytest.raises(ModelError, match="classes has 3 names for the 1 output"):
        vitreous.load("timm:vit_tiny_patch16_224", **small, classes=["a", "b", "c"])


# ── names ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"classes": ["a", "b"]}, "classes has 2 names for the 5 outputs of"),
        ({"classes": ["a"]}, "classes has 1 name for the 5 outputs of"),
        ({"classes": []}, "classes has 0 names for the 5 outputs of"),
        ({"classes": "abcde"}, "classes is a list of names such as"),
        ({"classes": 5}, "classes is a list of names such as"),
        ({"classes": [1, 2, 3, 4, 5]}, "a class name is a string, not 1"),
        ({"classes": {i: f"class {i}" for i in range(5)}}, "a class name is a string, not 0"),
    ],
)
@pytest.mark.parametrize("black_box", [False, True])
def test_names_that_do_not_fit_the_outputs_are_refused(given, sentence, black_box, as_users_run_it):
    def wrap_and_explain() -> None:
        vit = vitreous.wrap(tiny("vit"), black_box=black_box, **given)
        vitreous.explain(vit, pictures(), method="rise(masks=2)")

    with pytest.raises(ModelError, match=sentence):
        wrap_and_explain()


def test_names_of_one_output_are_one_or_two():
    with pytest.raises(ModelError, match="classes has 3 names for the 1 output of"):
        vitreous.wrap(tiny("vit-one-output"), classes=["a", "b", "c"])
    for black_box in (False, True):
        with pytest.raises(ModelError, match="classes has 1 name for the 2 classes of"):
            vitreous.wrap(tiny("vit-one-output"), classes=["a"], outputs="binary", black_box=black_box)


def test_class_names_of_a_replaced_head_are_dropped():
    model = build("vit")
    model.num_classes = 1000  # as in a timm model whose head was replaced by hand

    assert vitreous.wrap(model).classes is None
    assert with_observed_outputs(vitreous.wrap(model, black_box=True), pictures()).classes is None


# ── hand-built models ─────────────────────────────────────────────────────────────────────────────


def test_a_hand_built_model_needs_its_outputs_declared():
    by_hand = from_timm(tiny("vit"))

    with pytest.raises(ModelError, match="known once it has answered an image"):
        _ = by_hand.outputs
    found = vitreous.explain(by_hand, pictures(), 3, "ixg")
    torch.testing.assert_close(found.patches, vitreous.explain(seen("vit"), pictures(), 3, "ixg").patches)
    assert vitreous.evaluate(by_hand, pictures(), found, "deletion_aopc").scores.isfinite().all()
    with pytest.raises(ModelError, match="disagree by"):
        vitreous.explain(replace(by_hand, classify=lambda pooled: by_hand.classify(pooled) * 2), pictures())


# ── negligible maps ───────────────────────────────────────────────────────────────────────────────


def map_of(scores: list[float], score: float | None, method: str = "ixg") -> Attribution:
    patches = torch.tensor([scores], dtype=torch.float64)
    explained = None if score is None else torch.tensor([score], dtype=torch.float64)
    return Attribution(patches, Layout((1, len(scores)), (8, 8), 1), torch.tensor([0]), method, score=explained)


@pytest.mark.parametrize(
    ("scores", "score", "method", "negligible"),
    [
        ([0.0, 0.0], 1.0, "ixg", True),
        ([0.0, 0.0], None, "ixg", True),
        ([1e-28, -1e-28], 1.0, "ixg", True),
        ([4e-5, 4e-5], 1.0, "ixg", True),
        ([6e-5, -6e-5], 1.0, "ixg", False),
        ([1e-28, 0.0], 1e-27, "ixg", False),  # small compared with 1, not compared with the score
        ([1e-28, 0.0], 0.0, "ixg", False),
        ([1e-28, 0.0], None, "ixg", False),
        ([1e-3, 2e-3], 1e6, "rollout", False),  # not in units of the score
        ([0.0, 0.0], 1e6, "rollout", True),
        ([1e-28, 0.0], 1.0, "given", True),  # a signed third-party method
        ([float("nan"), 0.0], 1.0, "ixg", True),
        ([float("nan"), 1.0], 1.0, "ixg", False),
        ([float("nan"), float("nan")], 1.0, "ixg", False),
    ],
)
def test_a_negligible_map_has_a_caveat(scores, score, method, negligible):
    assert map_of(scores, score, method).negligible.tolist() == [negligible]


def test_a_saturated_probability_has_a_caveat_and_the_logit_has_none():
    model = build("vit")
    with torch.no_grad():
        model.head.bias[2] += 60
    vit = vitreous.wrap(model)

    found = vitreous.explain(vit, pictures(), method="ixg", question="probability")

    assert found.negligible.tolist() == [True, True]
    assert "less than a ten-thousandth of the number that it explains" in found.provenance["caveat"]
    assert "question='logit' may have more to show" in found.provenance["caveat"]
    assert not vitreous.explain(vit, pictures(), method="ixg", question="logit").negligible.any()
