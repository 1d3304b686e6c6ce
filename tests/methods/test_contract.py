"""Every method of the registry passes the contract tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vitreous
from tests.cases import each
from vitreous.methods.options import OptionFunction
from vitreous.testing import ContractError, check_method, check_model, tiny_vits

NAMES = [facts["name"] for facts in vitreous.list_methods()]
MORE = [
    "decompx+skipplus",
    "fullgrad@libra",
    "fullgrad@libra+plus",
    "genatt@libra+plus",
    "genatt+plus(mode='restart')",
    "tokentm(preset='libragrad')",
    "tokentm+skipplus",
    "gradcam(preset='grad-cam')",
    "ixg@linear(qk=0.5, v=1, norm='frozen', activation='ratio')+plus",
    "ixg(space='pixels')",
    "rollout(preset='vit-explain')",
    "attin(part='resln')+plus",
]


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()


@pytest.fixture(scope="module")
def single_precision_vits():
    return {"class token": tiny_vits(torch.float32)["class token"]}  # pooling does not depend on the precision


@pytest.mark.parametrize("spec", NAMES + MORE)
def test_every_method_keeps_its_promises(spec, vits):
    assert check_method(spec, vits)


@pytest.mark.parametrize("spec", NAMES)
def test_every_method_keeps_its_promises_in_single_precision(spec, single_precision_vits):
    assert check_method(spec, single_precision_vits)


@pytest.mark.shapes
@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@each("spec", NAMES + MORE)
def test_every_method_keeps_the_shapes_that_it_annotates(spec, vits):
    method = vitreous.resolve(spec)
    method = method.with_options(
        **{key: value for key, value in method.facts.trial.items() if key not in method.options}
    )
    for vit in vits.values():
        images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(1), dtype=vit.dtype)

        assert len(vitreous.explain(vit, images, torch.tensor([[1, 4], [2, 0]]), method)) == 4


def test_a_failed_contract_test_is_reported_with_a_message(vits):
    honest = vitreous.resolve("ixg")
    unsigned = replace(honest.facts, signed=False)
    with pytest.raises(ContractError, match="declared unsigned"):
        check_method(replace(honest, facts=unsigned), vits)
    signal = OptionFunction.of(lambda layer: layer.hidden.norm(dim=-1))
    lengths = replace(honest, facts=unsigned, recipe=replace(honest.recipe, signal=signal))
    with pytest.raises(ContractError, match="two classes get the same map"):
        check_method(lengths, vits)
    control = vitreous.resolve("random")
    twice = replace(control, recipe=replace(control.recipe, function=OptionFunction.of(two_forwards)))
    with pytest.raises(ContractError, match="it declares 1 forwards and takes 2"):
        check_method(twice, vits)


def two_forwards(probe):
    probe.with_images(probe.images).full_logits.sum()
    return probe.images.abs().mean(1).unfold(1, 8, 8).unfold(2, 8, 8).mean((-2, -1)).flatten(1)


def test_contract_tests_can_run_on_a_model():
    vit = tiny_vits()["class token"]

    checked = check_model(vit)
    assert "handshake" in checked
    assert {"batch_is_single", "batch_has_the_same_logits"} <= checked.keys()  # of the method, and of the model
