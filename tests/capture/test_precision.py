"""Precision of products: scopes and their settings, what is rounded in bfloat16, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from threading import Barrier, Thread

import pytest
import timm
import torch
from torch import Tensor

import vitreous
from vitreous.capture.precision import OPEN, Flags, computing, effective_precision
from vitreous.core.errors import Caveat, SpecError
from vitreous.testing import tiny_vits
from vitreous.testing.contract import SHAPE

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vit():
    return tiny_vits(torch.float32)["class token"]


@pytest.fixture
def images(vit):
    return torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = Flags.read()
    yield
    assert Flags.read() == before
    assert OPEN.counts.total() == 0


def keeping_ranks(spec: str) -> vitreous.Method:
    """The method, with the promise that bfloat16 products keep its ranks."""
    method = vitreous.resolve(spec)
    return replace(method, facts=replace(method.facts, precision="bf16"))


# ── scopes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("precision", "level"), [("float32", "highest"), ("tf32", "high"), ("bf16", "highest"), (None, "medium")]
)
def test_a_scope_sets_torch_and_restores_it(precision, level):
    usual = Flags.read()
    try:
        torch.set_float32_matmul_precision("medium")
        given = Flags.read()
        with computing(precision, CPU):
            assert torch.get_float32_matmul_precision() == level
        assert Flags.read() == given
        with pytest.raises(ZeroDivisionError), computing(precision, CPU):
            _ = 1 / 0
        assert Flags.read() == given
    finally:
        usual.apply()


@pytest.mark.parametrize("other", ["float32", None])
def test_the_most_exact_of_several_threads_decides(other):
    inside, done, levels = Barrier(2, timeout=60), Barrier(2, timeout=60), []

    def work():
        with computing(other, CPU):
            inside.wait()
            done.wait()

    thread = Thread(target=work)
    with computing("tf32", CPU):
        levels.append(torch.get_float32_matmul_precision())
        thread.start()
        inside.wait()
        levels.append(torch.get_float32_matmul_precision())
        done.wait()
        thread.join()
        levels.append(torch.get_float32_matmul_precision())
        with computing("float32", CPU):
            levels.append(torch.get_float32_matmul_precision())

    assert levels == ["high", "highest", "high", "highest"]


def test_bfloat16_belongs_to_one_thread(vit, images):
    method = keeping_ranks("temper")
    attributions = {}

    def work():
        attributions["thread"] = vitreous.explain(vit, images, 0, "temper")

    with computing("bf16", CPU):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    usual = vitreous.explain(vit, images, 0, "temper").patches
    half = vitreous.explain(vit, images, 0, method, precision="bf16").patches

    assert torch.equal(attributions["thread"].patches, usual)
    assert not torch.equal(half, usual)


def test_autocast_does_not_affect_a_requested_precision(vit, images):
    with torch.autocast("cpu", torch.bfloat16):
        exact = vitreous.explain(vit, images, 0, "temper", precision="float32").patches

    assert torch.equal(exact, vitreous.explain(vit, images, 0, "temper").patches)


# ── rounding ──────────────────────────────────────────────────────────────────────────────────────


def test_only_products_of_the_blocks_are_in_bfloat16(vit, images):
    with computing("bf16", CPU):
        probe = vitreous.Probe(vit, images, torch.tensor([0, 1]))
        layer = next(iter(probe.layers(attention=True, normed=True)))

        assert {layer.states.value.dtype, layer.states.attention.dtype} == {torch.bfloat16}
        assert {state.dtype for state in probe.states} == {torch.float32}
        assert probe.head_output.logits.dtype == torch.float32
        assert layer.hidden_grad.dtype == layer.attention.dtype == layer.attention_grad.dtype == torch.float32
        assert layer.value.dtype == layer.normed.dtype == layer.normed_grad.dtype == torch.float32


@pytest.mark.parametrize("spec", ["temper", "decompx", "decompx+skipplus", "genatt", "tokentm", "fullgrad"])
def test_maps_in_bfloat16_are_near_and_of_float32(spec, vit, images):
    exact = vitreous.explain(vit, images, [[0, 1]] * 2, spec, precision="float32")
    half = vitreous.explain(vit, images, [[0, 1]] * 2, keeping_ranks(spec), precision="bf16")

    assert (exact.provenance["precision"], half.provenance["precision"]) == ("float32", "bf16")
    assert half.patches.dtype == torch.float32
    difference = (half.patches - exact.patches).abs().max() / exact.patches.abs().max()
    assert 0 < difference < 0.2


def test_a_method_without_the_promise_is_computed_in_float32(vit, images):
    method = vitreous.resolve("occlusion")
    assert method.facts.precision == "float32"
    attribution = vitreous.explain(vit, images, 0, method, precision="bf16")

    assert attribution.provenance["precision"] == "float32"
    assert torch.equal(attribution.patches, vitreous.explain(vit, images, 0, method).patches)


@pytest.mark.parametrize("spec", ["temper+last", "genatt@libra", "decompx(bias='equal')", "tokentm(length=False)"])
def test_a_form_that_was_not_measured_is_computed_in_float32(spec, vit, images):
    assert vitreous.explain(vit, images, 0, spec, precision="bf16").provenance["precision"] == "float32"


@pytest.mark.parametrize("spec", ["temper+skipplus", "decompx+plus", "genatt(question='probability')"])
def test_a_form_that_was_measured_is_computed_in_bfloat16(spec, vit, images):
    assert vitreous.explain(vit, images, 0, spec, precision="bf16").provenance["precision"] == "bf16"


def test_a_metric_is_not_computed_in_bfloat16(vit, images):
    attribution = vitreous.explain(vit, images, 0, "temper")
    half, exact = (
        vitreous.evaluate(vit, images, attribution, "deletion_aopc", precision=precision).scores
        for precision in ("bf16", "float32")
    )
    assert torch.equal(half, exact)


# ── requested precision ───────────────────────────────────────────────────────────────────────────


def test_a_precision_is_one_of_five(vit, images):
    for precision in ("fp8", "bfloat16", "float64"):
        with pytest.raises(SpecError, match="known: 'float32', 'tf32', 'bf16', 'auto'"):
            vitreous.explain(vit, images, precision=precision)


def test_a_precision_is_named_by_what_the_device_has(vit):
    expected = {None: None, "float32": "float32", "tf32": "float32", "auto": "float32", "bf16": "bf16"}
    assert {asked: effective_precision(asked, vit, "bf16") for asked in expected} == expected
    assert effective_precision("bf16", vit, "tf32") == "float32"


def test_a_model_that_was_converted_keeps_its_precision(vit, images):
    half = vitreous.wrap(copy.deepcopy(vit.module).bfloat16())
    for precision in (None, "auto", "bf16"):
        with pytest.warns(Caveat, match=r"the weights are bfloat16.*module\.float\(\)"):
            attribution = vitreous.explain(half, images, 0, "occlusion", precision=precision)
        assert attribution.provenance["precision"] == "bfloat16"
        assert "bfloat16" in attribution.provenance["caveat"]
    for precision in ("float32", "tf32"):
        with pytest.raises(SpecError, match=r"needs float32 weights.*are bfloat16; convert them by module\.float\(\)"):
            vitreous.explain(half, images, 0, "occlusion", precision=precision)
    double = vitreous.wrap(copy.deepcopy(vit.module).double())
    with pytest.raises(SpecError, match="are float64"):
        vitreous.evaluate(double, images, vitreous.explain(double, images, 0), precision="bf16")


@pytest.mark.slow
def test_an_autocast_of_the_caller_is_switched_off_in_every_entry_point():
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def run() -> list[Tensor]:
        torch.manual_seed(0)
        modules = [timm.create_model("resnet18", num_classes=3), timm.create_model("vit_tiny_patch16_224", **SHAPE)]
        models = [vitreous.see_through(modules[0].eval(), size=(32, 32)), vitreous.wrap(modules[1].eval())]
        maps = [vitreous.explain(model, images, 1, "ixg(space='pixels')") for model in models]
        layers = vitreous.inside(models[1], images, 1, "ixg+plus")
        scores = [vitreous.evaluate(model, images, a, "insertion") for model, a in zip(models, maps, strict=True)]
        pair = vitreous.explain_pair(models[1], images[:1], models[1], images[1:])
        return [*(a.native_maps for a in maps), layers.maps("signal"), *(s.scores for s in scores), pair.matrix]

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = run()
        assert torch.is_autocast_enabled("cpu")

    assert all(torch.equal(a, b) for a, b in zip(under_autocast, expected, strict=True))
