"""Functions and modules without parameters as black boxes, outputs that are probabilities, and models without gradients."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.cases import each
from vitreous.core.errors import ModelError, NoGradientError, SpecError
from vitreous.draw.captions import probability
from vitreous.methods.capability_lists import black_box_methods, gradient_free_methods
from vitreous.methods.method import METHODS

WEIGHTS = torch.randn(3 * 16 * 16, 4, generator=torch.Generator().manual_seed(0)) / 10
RISE = "rise(masks=16)"


def images(count: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(count, channels, 16, 16, generator=torch.Generator().manual_seed(1))


def logits(images: Tensor) -> Tensor:
    return images.flatten(1) @ WEIGHTS


def arrays(images: Tensor) -> np.ndarray:
    return images.numpy().reshape(len(images), -1) @ WEIGHTS.numpy()


def probabilities(images: Tensor) -> Tensor:
    return logits(images).softmax(-1)


def box(function, **options) -> vitreous.BlackBox:
    return vitreous.wrap(function, **options)


# ── functions ────────────────────────────────────────────────────────────────────────────────────


def test_a_function_is_explained_as_a_module_that_computes_the_same():
    layer = nn.Linear(768, 4, bias=False)
    layer.weight.data = WEIGHTS.T.clone()
    module = vitreous.wrap(nn.Sequential(nn.Flatten(), layer), black_box=True)

    for method in (RISE, "occlusion(window=8, stride=8)"):
        own = vitreous.explain(module, images(), [1, 3], method)
        for function in (logits, arrays, lambda x: [arrays(x)], lambda x: logits(x).double().numpy()):
            found = vitreous.explain(function, images(), [1, 3], method)
            torch.testing.assert_close(found.pixels(), own.pixels(), rtol=1e-4, atol=1e-5)
    gradient = vitreous.explain(logits, images(), 2, "ig(steps=4)").pixels()
    torch.testing.assert_close(gradient, vitreous.explain(module, images(), 2, "ig(steps=4)").pixels())


def test_what_a_function_is_called_and_takes_is_known():
    found = vitreous.wrap(arrays, classes=list("abcd"), size=(16, 16))
    copy = pickle.loads(pickle.dumps(found))

    assert (type(found), found.name, found.size) == (vitreous.BlackBox, "arrays", (16, 16))
    assert (found.device.type, found.dtype) == ("cpu", torch.float32)
    assert vitreous.wrap(lambda x: x).name == "function"
    assert torch.equal(copy.forward(images()), found.forward(images()))
    assert vitreous.explain(found, images(), "c", RISE).names == ("c", "c")
    assert (
        vitreous.explain(found, images(), method=RISE).provenance["black_box"] == "treated as a black box: a function"
    )
    single = vitreous.explain(lambda x: x.mean((1, 2, 3)), images(5, 1), method=RISE)
    torch.testing.assert_close(single.score, images(5, 1).mean((1, 2, 3)))


def test_a_module_without_parameters_is_a_black_box():
    with pytest.raises(
        ModelError, match=r"'Flatten' has no parameters.*; wrap\(model, black_box=True\) uses its outputs"
    ):
        vitreous.wrap(nn.Flatten())

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x):
            return self.scale * torch.stack([x[..., :8].mean((1, 2, 3)), x[..., 8:].mean((1, 2, 3))], 1)

    found = vitreous.explain(vitreous.wrap(Halves(), black_box=True), images(), 0, "occlusion(window=8, stride=8)")

    assert found.pixels().dtype == torch.float64
    assert (found.pixels()[..., 8:] == 0).all()


@each(
    "model, sentence",
    [
        ({}, "a function of images or a name .*not 'dict'"),
        (nn.Linear, "a function of images or a name .*not 'type'"),
        (
            type("Estimator", (), {"predict_proba": None})(),
            r"scikit-learn classifier: wrap\(lambda x: .*probabilities'\)",
        ),
        (type("Session", (), {"get_inputs": None})(), r"ONNX Runtime session: wrap\(lambda x: session.run"),
    ],
)
def test_what_is_no_function_is_refused_with_a_recipe(model, sentence):
    with pytest.raises(ModelError, match=sentence):
        vitreous.wrap(model)


def test_outputs_that_cannot_be_explained_are_refused():
    with pytest.raises(ModelError, match=r"'function' answers with torch.int64 numbers, such as class labels"):
        vitreous.explain(lambda x: logits(x).argmax(1), images(), method=RISE)
    with pytest.raises(ModelError, match=r"'logits' cannot be run on an image \[1, 16, 16\]"):
        vitreous.explain(logits, images(channels=1), method=RISE)
    with pytest.raises(SpecError, match=r"'temper' looks inside the model; of a black box ask one of: .*rise"):
        vitreous.explain(logits, images())


def test_sessions_of_onnx_runtime_are_explained():
    onnxruntime, helper = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx.helper")
    nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["logits"])]
    kinds = [
        helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("pixels", ["b", 3, 16, 16]), ("logits", ["b", 4]))
    ]
    weights = helper.make_tensor("w", 1, WEIGHTS.shape, WEIGHTS.flatten().tolist())
    graph = helper.make_graph(nodes, "linear", kinds[:1], kinds[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    found = vitreous.explain(lambda x: session.run(None, {"pixels": x.numpy()})[0], images(), [0, 1], RISE)
    own = vitreous.explain(logits, images(), [0, 1], RISE)

    torch.testing.assert_close(found.pixels(), own.pixels(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ModelError, match="ONNX Runtime session: wrap"):
        vitreous.wrap(session)


def test_classifiers_of_scikit_learn_are_explained_by_their_own_probabilities():
    linear_model = pytest.importorskip("sklearn.linear_model")
    many = images(30)
    classifier = linear_model.LogisticRegression().fit(many.flatten(1).numpy(), np.arange(30) % 3)
    found = vitreous.wrap(
        lambda x: classifier.predict_proba(x.flatten(1)), classes=list("abc"), outputs="probabilities"
    )

    attribution = vitreous.explain(found, many[:2], [0, 2], RISE, "probability")

    own = torch.from_numpy(classifier.predict_proba(many[:2].flatten(1).numpy())).float()
    torch.testing.assert_close(attribution.score, own[[0, 1], [0, 2]])
    assert probability(attribution[0]) == pytest.approx(float(own[0, 0]), rel=1e-5)
    with pytest.raises(ModelError, match="scikit-learn classifier: wrap"):
        vitreous.wrap(classifier)


# ── probabilities ────────────────────────────────────────────────────────────────────────────────


@each(
    "function",
    [
        probabilities,
        lambda x: nn.functional.one_hot(logits(x).argmax(1), 4).float(),
        nn.Sequential(nn.Flatten(), nn.Linear(768, 4), nn.Softmax(-1)),
    ],
)
def test_outputs_that_are_probabilities_are_refused_until_they_are_declared(function):
    for model in (function, vitreous.wrap(function, black_box=True)):
        with pytest.raises(
            ModelError, match=r"from 0 to 1 that add up to 1, .*outputs='probabilities'\) explains them"
        ):
            vitreous.explain(model, images(), method=RISE)
    declared = vitreous.wrap(function, black_box=True, outputs="logits")

    assert vitreous.explain(declared, images(), method=RISE).provenance["declared_outputs"] == "logits"


def test_declared_probabilities_are_not_softmaxed_again():
    declared, own = box(probabilities, outputs="probabilities"), box(logits)
    certain = box(lambda x: torch.eye(4)[[1] * len(x)], outputs="probabilities")

    for question in ("probability", "margin", "log-probability"):
        found, expected = (vitreous.explain(model, images(), [0, 3], RISE, question) for model in (declared, own))
        torch.testing.assert_close(found.score, expected.score, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.pixels(), expected.pixels(), rtol=1e-3, atol=1e-5)
    logit = vitreous.explain(declared, images(), [0, 3], RISE, "logit")
    torch.testing.assert_close(logit.score, probabilities(images()).log()[[0, 1], [0, 3]])
    assert logit.provenance["declared_outputs"] == "probabilities"
    assert vitreous.explain(certain, images(), 1, RISE, "probability").score.tolist() == [1, 1]
    scores = [
        vitreous.evaluate(model, images(), vitreous.explain(model, images(), 1, RISE), ["insertion", "deletion"])
        for model in (declared, own)
    ]
    torch.testing.assert_close(scores[0][0].scores, scores[1][0].scores, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(scores[0][1].scores, scores[1][1].scores, rtol=1e-3, atol=1e-4)


def test_one_probability_is_that_of_the_second_of_two_classes():
    declared = box(lambda x: logits(x)[:, :1].sigmoid(), outputs="probabilities", classes=["healthy", "ill"])

    ill = vitreous.explain(declared, images(), "ill", RISE, "probability")
    odds = vitreous.explain(declared, images(), "ill", RISE, "logit")

    torch.testing.assert_close(ill.score, logits(images())[:, 0].sigmoid())
    torch.testing.assert_close(odds.score, logits(images())[:, 0], rtol=1e-4, atol=1e-4)


@each("function", [lambda x: logits(x).sigmoid(), logits, lambda x: 100 * probabilities(x)])
def test_rows_that_are_no_distribution_are_refused(function):
    with pytest.raises(
        ModelError, match=r"'function' answers with|'logits' answers with .* add up to .*several labels"
    ):
        vitreous.explain(box(function, outputs="probabilities"), images(), method=RISE)


def test_probabilities_are_declared_of_black_boxes_only():
    module = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ModelError, match=r"of black boxes, and 'Sequential' is looked into; .* add black_box=True"):
        vitreous.wrap(module, outputs="probabilities", size=(16, 16))
    with pytest.raises(ModelError, match=r"outputs='softmax' is not known; 'binary' .*'probabilities'"):
        vitreous.wrap(module, outputs="softmax", black_box=True)


# ── no gradients ─────────────────────────────────────────────────────────────────────────────────


@each("function", [arrays, lambda x: logits(x.detach()), lambda x: WEIGHTS[: len(x), :4].clone().requires_grad_()])
def test_gradients_of_a_model_without_any_are_refused_with_methods_that_work(function):
    for method in ("ig(steps=2)", "smoothgrad(samples=2)"):
        with pytest.raises(
            NoGradientError, match=rf"no gradient on to its images, and '{method[:2]}.* evaluate it work: .*rise$"
        ):
            vitreous.explain(function, images(), 1, method)


def test_methods_that_work_without_gradients_are_listed_first():
    evaluating, _, differentiating = black_box_methods(METHODS).partition(
        "; if it passes gradients on to its images, also: "
    )

    assert evaluating == gradient_free_methods(METHODS)
    assert differentiating.split(", ") == ["ig", "smoothgrad"]
    for name in evaluating.split(", "):
        assert METHODS[name].black_box is not None
        vitreous.explain(arrays, images(1), 1, METHODS[name].with_options(**METHODS[name].facts.trial))
