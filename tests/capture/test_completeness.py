"""Completeness: the shares of tokens and biases, from any layer on, add up to the score."""

from __future__ import annotations

import pytest
import torch

from tests.cases import each
from tests.models.families import FAMILIES, pictures, seen
from vitreous.capture.linearise import DECOMPX, LIBRA, PLAIN, Linearisation
from vitreous.capture.probe import Probe
from vitreous.methods.spec import resolve

EVERY = each("family", FAMILIES)
COMPLETE = pytest.mark.parametrize("lin", [DECOMPX, LIBRA], ids=["decompx", "libra"])
GATED = [
    f
    for f in FAMILIES
    if any(w in f for w in ("swiglu", "giant", "eva02", "both-tables", "sapiens", "plus")) and f != "eva-giant"
]


def asked(family: str, question: str) -> Probe:
    return Probe(seen(family), pictures(), torch.tensor([1, 0]), question)


# the score function follows the head, so a second one is tested for every kind of read-out, not for every family
HEADS = ("vit", "vit-mean", "vit-mean-of-everything", "vit-one-output", "siglip", "deit-distilled")


@COMPLETE
@each("family, question", [*((f, "logit") for f in FAMILIES), *((f, "margin") for f in HEADS)])
def test_tokens_and_biases_are_the_score_at_every_layer(family: str, question: str, lin: Linearisation) -> None:
    probe = asked(family, question)
    score = probe.compute_scores(probe.head_output.logits, probe.targets)

    biases = None
    for layer in probe.layers(lin, attention=False, biases=True):
        if biases is None:
            biases = probe.bias_shares.head.sum(-1) + probe.bias_shares.pooled
        biases = biases + layer.biases.sum(-1)
        tokens = (layer.hidden * layer.hidden_grad).sum((1, 2))

        assert (tokens + biases - score).abs().max() < 1e-10
        assert tokens.abs().max() > 1e-3


@pytest.mark.parametrize("spec", ["decompx", "ixg@libra", "fullgrad@libra", "fullgrad@decompx"])
@EVERY
def test_an_attribution_has_its_residual(family: str, spec: str) -> None:
    found = resolve(spec)(asked(family, "logit"))

    total = found.patches.sum(-1) + found.prefix.sum(-1) + found.bias
    assert (total - found.score).abs().max() < 1e-10
    assert found.residual.abs().max() < 1e-10


@pytest.mark.parametrize("spec", ["ixg", "fullgrad", "attnlrp", "conservativelrp", "decompx+plus", "ixg@linear(qk=0)"])
def test_incomplete_methods_have_no_residual(spec: str) -> None:
    assert resolve(spec)(asked("vit", "logit")).residual is None


def test_a_probability_is_no_sum_of_shares() -> None:
    assert resolve("decompx")(asked("vit", "probability")).residual is None


@each("family", GATED)
def test_decompx_and_libra_differ_on_gated_models(family: str) -> None:
    decompx, libra = resolve("decompx")(asked(family, "logit")), resolve("ixg@libra")(asked(family, "logit"))

    assert (decompx.patches - libra.patches).abs().max() > 1e-4


def test_models_without_gates_do_not() -> None:
    decompx, libra = resolve("decompx")(asked("vit", "logit")), resolve("ixg@libra")(asked("vit", "logit"))

    torch.testing.assert_close(decompx.patches, libra.patches, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["vit-even", "siglip"])
def test_biases_come_from_the_head_down_to_the_first_block(family: str) -> None:
    probe = asked(family, "logit")
    layers = list(probe.layers(LIBRA, attention=False, biases=True))

    shares = list(probe.biases(LIBRA))

    assert len(shares) == seen(family).depth + 1
    torch.testing.assert_close(shares[0], probe.bias_shares.head)
    for share, layer in zip(shares[1:], layers, strict=True):
        torch.testing.assert_close(share, layer.biases)


def test_a_model_without_biases_has_only_those_of_its_norms_and_head() -> None:
    """qkv, proj and MLP have none, so blocks differ from zero by their norms' shifts alone."""
    probe = asked("vit-rmsnorm-class-token", "logit")  # RMSNorm has no shift

    for layer in probe.layers(PLAIN, attention=False, biases=True):
        assert layer.biases.abs().max() > 0
    assert probe.bias_shares.head.abs().max() == 0  # the final norm has no shift
    head = seen("vit-rmsnorm-class-token").module.head.bias.detach()
    torch.testing.assert_close(probe.bias_shares.pooled, head[torch.tensor([1, 0])])
