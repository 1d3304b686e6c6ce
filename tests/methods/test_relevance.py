"""TransAtt, partial LRP and LRP, compared with rules written with autograd, one image at a time, and with Chefer's code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.methods.published import agree, agrees, arrays, golden, probe_of  # noqa: F401 - a fixture
from tests.methods.relevance_reference import TARGETS, LayerPass, walked
from tests.models.families import pictures, seen
from vitreous.capture.probe import Probe
from vitreous.capture.relevance import RULES, propagate_relevance
from vitreous.core.errors import Caveat, ModelError, SpecError
from vitreous.methods.spec import resolve
from vitreous.testing import check_method, tiny_vits

FAMILIES = ("vit-even", "vit-mean", "deit-distilled", "vit-no-biases", "vit-no-class-token")


def fast(spec: str, family: str, question: str = "logit"):
    return resolve(spec)(Probe(seen(family), pictures(), torch.tensor(TARGETS), question))


def tokens(found) -> Tensor:
    return torch.cat([found.prefix, found.patches], 1)


def same(found: Tensor, slow: Tensor, tolerance: float = 1e-6) -> None:
    """The rules divide by numbers that may be small, so rounding is visible."""
    assert slow.abs().max() > 0
    torch.testing.assert_close(found, slow, rtol=0, atol=tolerance * slow.abs().max().item())


OURS, ORIG, JOINT = (True, True), (False, False), (True, False)


def both(function, family: str, rules: tuple[bool, bool], *args, question: str = "logit") -> Tensor:
    return torch.stack([function(walked(family, i, *rules, question), *args) for i in range(2)])


def attributed(layer_pass: LayerPass, start: int, weighted: bool = True) -> Tensor:
    """rho^T (I + T_{L-1}) … (I + T_start)."""
    R = torch.eye(layer_pass.scene.N, dtype=torch.float64)
    for layer in range(start, layer_pass.scene.L):
        R = (torch.eye(layer_pass.scene.N, dtype=torch.float64) + layer_map(layer_pass, layer, weighted)) @ R
    return layer_pass.scene.rho @ R


def layer_map(layer_pass: LayerPass, layer: int, weighted: bool = True) -> Tensor:
    return (layer_pass.R_A[layer] * (layer_pass.scene.G[layer] if weighted else 1)).relu().mean(0)


def layers_summed(layer_pass: LayerPass, start: int) -> Tensor:
    return layer_pass.scene.rho @ sum(layer_map(layer_pass, layer) for layer in range(start, layer_pass.scene.L))


# ── agreement ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_transatt_is_its_rules(family):
    middle = (seen(family).depth + 1) // 2

    same(tokens(fast("transatt", family)), both(attributed, family, OURS, 0))
    same(tokens(fast("transatt(preset='experiments')", family)), both(attributed, family, OURS, 1))
    same(tokens(fast("transatt(gradient=False)", family)), both(attributed, family, OURS, 0, False))
    same(tokens(fast("transatt(rules='orig')", family)), both(attributed, family, ORIG, 0))
    same(tokens(fast("transatt+plus", family)), both(layers_summed, family, OURS, 0))
    same(tokens(fast("transatt+skipplus", family)), both(layers_summed, family, OURS, middle))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "rules"), [("orig", ORIG), ("ours", OURS)])
def test_partial_lrp_reads_the_last_block(family, name, rules):
    def last(layer_pass: LayerPass, weighted: bool) -> Tensor:
        return layer_pass.scene.rho @ layer_map(layer_pass, layer_pass.scene.L - 1, weighted)

    same(tokens(fast(f"partiallrp(rules='{name}')", family)), both(last, family, rules, False))
    same(tokens(fast(f"partiallrp(rules='{name}', ablation=True)", family)), both(last, family, rules, True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("options", "rules"), [("", ORIG), ("(joint=True)", JOINT), ("(rules='ours')", OURS)])
def test_lrp_reaches_the_pixels(family, options, rules):
    slow = torch.stack([walked(family, i, *rules).pixels(pictures()[i]) for i in range(2)])

    same(fast(f"lrp{options}", family).native_pixels, slow)
    same(tokens(fast(f"lrp{options}+first", family)), both(lambda w: w.R_X[0].sum(1), family, rules))
    same(tokens(fast(f"lrp{options}+plus", family)), both(lambda w: sum(w.R_X).sum(1), family, rules))
    same(tokens(fast(f"lrp{options}+at(layer=1)", family)), both(lambda w: w.R_X[1].sum(1), family, rules))


def test_a_margin_starts_with_two_classes():
    slow = both(attributed, "vit-even", OURS, 0, question="margin")

    same(tokens(fast("transatt", "vit-even", "margin")), slow)


def test_joint_denominators_conserve_relevance():
    total = {joint: fast(f"lrp(joint={joint})+first", "vit-even") for joint in (True, False)}
    size = {joint: tokens(found).abs().sum() for joint, found in total.items()}

    assert size[False] > 100 * size[True]


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()  # test_contract.py has the methods by their names, and single precision


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "transatt+plus",
        "transatt+plus(mode='restart')",
        "transatt@libra+skipplus",
        "transatt(gradient=False)",
        "partiallrp(rules='ours')",
        "lrp(joint=True)",
        "lrp(rules='ours')",
        "lrp+plus",
    ],
)
def test_variants_keep_the_promises_of_their_method(spec, vits):
    assert check_method(spec, vits)


@pytest.mark.parametrize("spec", ["transatt", "lrp+first", "partiallrp"])
def test_streaming_gives_the_same_map(spec):
    probes = [Probe(seen("vit-mean"), pictures(), torch.tensor(TARGETS), "logit", hold) for hold in (True, False)]
    held, streamed = (resolve(spec)(probe).patches for probe in probes)

    same(streamed, held, 1e-10)


@pytest.mark.parametrize(
    ("spec", "family", "what"),
    [
        ("transatt", "vit-swiglu", "gated MLP"),
        ("transatt", "vit-qk-norm", "queries and keys"),
        ("transatt", "rope", "rotary"),
        ("partiallrp", "beit", "relative"),
        ("partiallrp", "beit-3", "norm inside"),
        ("lrp", "siglip", "attention pooling"),
        ("lrp", "clip", "norm in front"),
        ("lrp(rules='alpha-beta')", "vit", "'ours', 'orig'"),
        ("lrp@libra", "vit", "ixg@libra"),
        ("partiallrp@libra", "vit", "ixg@libra"),
    ],
)
def test_modules_without_a_rule_are_refused_by_name(spec, family, what):
    with pytest.raises((ModelError, SpecError), match=what):
        fast(spec, family)


def test_tokens_of_a_model_with_a_norm_in_front_have_their_relevance():
    assert tokens(fast("lrp+first", "clip")).isfinite().all()


def test_single_precision_comes_with_a_warning():
    vit = tiny_vits(torch.float32)["class token"]
    with pytest.warns(Caveat, match="float64"):
        vitreous.explain(vit, torch.randn(1, 3, 32, 32), 1, "transatt")


@pytest.mark.parametrize("family", ["torchvision", "huggingface"])
@pytest.mark.parametrize("rules", ["orig", "ours"])
def test_other_families_have_their_patch_embedding_and_prefix_found(family, rules):
    model = other(family).double().eval()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    found = vitreous.explain(model, images, 1, f"lrp(rules='{rules}')")

    assert found.native_pixels.isfinite().all()
    assert (found.native_pixels != 0).any()


def other(family: str) -> nn.Module:
    torch.manual_seed(0)
    if family == "torchvision":
        torchvision = pytest.importorskip("torchvision")
        model = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 48, num_classes=5)
    else:
        transformers = pytest.importorskip("transformers")
        small = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        config = transformers.ViTConfig(**small, image_size=32, patch_size=8, num_labels=5)
        model = transformers.ViTForImageClassification(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def test_other_names():
    assert resolve("chefer1").spec == resolve("transformer-attribution").spec == "transatt"
    assert resolve("partial-lrp").spec == "partiallrp"
    assert resolve("lrp(joint=True)+skipplus").spec == "lrp(joint=True)+skipplus"


# ── outputs of Chefer's code ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file", "spec"),
    [
        ("transatt_start0", "transatt"),
        ("transatt_start1", "transatt(preset='experiments')"),
        ("lrp_rollout_start0", "transatt(preset='rollout')"),
        ("partial_lrp", "partiallrp"),
        ("partial_lrp_ours_rules", "partiallrp(rules='ours')"),
        ("lrp_full", "lrp"),
        ("lrp_full_ours_rules", "lrp(rules='ours')"),
    ],
)
def test_published_maps_are_reproduced(golden, file, spec):  # noqa: F811
    agrees(golden, file, spec)


def test_published_relevance_is_reproduced_layer_by_layer(golden):  # noqa: F811
    stored = arrays(golden, "transatt_layers")
    probe = probe_of(golden, "top", 1)
    for layer in propagate_relevance(probe, probe.layers(), RULES["ours"]):
        for found, key in (
            (layer.relevance.attention, "attn_relevance"),
            (layer.attention_grad, "attn_grad"),
            (layer.attention, "attn"),
        ):
            agree(golden, "transatt_layers", found, stored[key][None, layer.index])
