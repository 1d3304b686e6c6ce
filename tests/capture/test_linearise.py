"""Linearisations hold parts of the backward pass fixed, and do not change the forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import each
from tests.models.families import FAMILIES, pictures, seen, tiny
from tests.reference.scene import TARGETS, scene_of
from vitreous.capture.linearise import (
    ATTNLRP,
    CONSERVATIVE,
    DECOMPX,
    GIM,
    LIBRA,
    LINEARISATIONS,
    PLAIN,
    RESLRP,
    TEMPERED,
    Linearisation,
    linearisation,
)
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError

POINTS = {
    "plain": PLAIN,
    "conservative": CONSERVATIVE,
    "decompx": DECOMPX,
    "libra": LIBRA,
    "tempered": TEMPERED,
    "attnlrp": ATTNLRP,
    "in between": Linearisation(qk=0.5, v=0.75, norm="frozen", activation="ratio", gate="halved"),
    "gim": GIM,
    "reslrp": RESLRP,
    "damped norms exact": Linearisation(qk=0.5, activation="ratio", gate="frozen"),
}


# plain: nothing is changed; in between: every part of a block is. Families whose parts differ meet all points.
FORWARDS = [(family, point) for family in FAMILIES for point in ("plain", "in between")]
FORWARDS += [
    (family, point)
    for family in ("vit-even", "vit-qk-norm", "vit-rmsnorm", "vit-swiglu", "beit-3", "sapiens2")
    for point in POINTS
    if point not in ("plain", "in between")
]


@pytest.mark.parametrize("attention", [True, False], ids=["matrices", "fused"])
@each("family, point", FORWARDS)
def test_the_forward_pass_is_bit_identical(family: str, point: str, attention: bool) -> None:
    own = tiny(family)(pictures())
    probe = Probe(seen(family), pictures(), torch.tensor([0, 0]), hold=True)

    layers = list(probe.layers(POINTS[point], attention=attention))

    torch.testing.assert_close(probe.head_output.logits, own, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layers[0].output, probe.states[-1], rtol=0, atol=0)


HANDMADE = [
    {"qk": 0.5},
    {"qk": 0.5, "v": 0.7},
    {"qk": 2.0, "v": -0.5, "norm": "frozen"},
    {"qk": 0, "v": 0},
    {"qk": 0.5, "v": 1, "norm": "frozen", "activation": "ratio"},
    {"activation": "ratio", "gate": "halved"},
    {"norm": "frozen", "gate": "frozen"},
    {"qk": 0.5, "norm": "fixed"},
    {"qk": 0.25, "v": 0.5, "norm": "frozen", "activation": "ratio", "gate": "halved"},
]


@pytest.mark.parametrize("held", HANDMADE, ids=str)
@each(
    "family",
    ["vit", "vit-mean", "vit-qk-norm", "vit-rmsnorm", "vit-swiglu", "siglip", "deit-distilled", "eva02", "beit-3"],
)
def test_gradients_equal_those_of_an_explicitly_damped_graph(family: str, held: dict[str, Any]) -> None:
    scenes = [scene_of(family, image, **held) for image in range(2)]

    layers = list(Probe(seen(family), pictures(), torch.tensor(TARGETS)).layers(Linearisation(**held)))

    for layer in layers:
        g = torch.stack([scene.g[layer.index] for scene in scenes])
        G = torch.stack([scene.G[layer.index] for scene in scenes])
        assert (layer.hidden_grad - g).abs().max() <= 1e-10 * g.abs().max()
        assert (layer.attention_grad - G).abs().max() <= 1e-10 * G.abs().max().clamp(min=1e-300)


def test_a_half_query_gradient_is_the_mean_of_none_and_all() -> None:
    """Gradients are linear in the factor on one layer's queries and keys, and in that on its values."""

    def last(lin: Linearisation) -> Tensor:
        return next(Probe(seen("vit"), pictures(), torch.tensor(TARGETS)).layers(lin)).hidden_grad

    none, all_of_it = last(Linearisation(qk=0)), last(Linearisation(qk=1))
    torch.testing.assert_close(last(Linearisation(qk=0.5)), (none + all_of_it) / 2, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(last(Linearisation(qk=-1)), 2 * none - all_of_it, rtol=1e-12, atol=1e-14)


def test_named_points_are_members_of_the_family() -> None:
    assert linearisation("linear", qk=0.25, v=0.5, norm="frozen", activation="ratio", gate="halved") == ATTNLRP
    assert linearisation("decompx", gate="halved") == LIBRA
    assert linearisation("libra", qk=0.25) == TEMPERED
    assert linearisation("alilrp") == linearisation("CPLRP") == CONSERVATIVE
    assert linearisation("attnlrp", activation="exact", softmax=2) == linearisation("gim") == GIM
    assert linearisation("attnlrp", residual=1) == linearisation("reslrp") == RESLRP
    named = ["attnlrp", "conservative", "decompx", "gim", "libra", "plain", "reslrp", "tempered"]
    assert sorted(LINEARISATIONS) == named


def test_only_points_that_hold_everything_else_fixed_are_complete() -> None:
    assert [name for name, point in POINTS.items() if point.complete] == ["decompx", "libra"]
    assert linearisation("libra", residual=1).complete  # the rule for skip connections conserves


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm": "half"}, "norm='half'; known: 'exact', 'frozen', 'fixed'"),
        ({"activation": "off"}, "activation='off'"),
        ({"gate": True}, "gate=True"),
        ({"attention": "frozen"}, "no option 'attention'; known: qk, v, norm, activation, gate, softmax, residual"),
        ({"softmax": 0}, "softmax=0 must be a number from 0.01 to 100"),
        ({"softmax": "hot"}, "softmax='hot' must be a number"),
        ({"residual": -0.5}, "residual=-0.5 must be a number from 0 to 100"),
    ],
)
def test_invalid_settings_are_refused_with_valid_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((SpecError, TypeError), match=words):
        linearisation("plain", **changes)


class GELU2(nn.GELU):
    pass


@pytest.mark.parametrize(
    ("act", "slope"), [(nn.GELU(), 0.5), (nn.SiLU(), 0.5), (nn.GELU("tanh"), 0.5), (nn.Identity(), 1.0), (GELU2(), 0.5)]
)
def test_the_ratio_of_an_activation_is_its_slope_at_zero(act: nn.Module, slope: float) -> None:
    x = torch.tensor([0.0, -0.0, 1e-12, -1e-12, 1e-300, 1.0, -30.0], dtype=torch.float64, requires_grad=True)

    y = DECOMPX.activate(act, x)
    y.sum().backward()

    torch.testing.assert_close(y, act(x))
    torch.testing.assert_close(x.grad[:5], torch.full((5,), slope, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(x.grad[5:], (act(x) / x).detach()[5:])


def test_an_unknown_norm_cannot_be_held_fixed() -> None:
    with pytest.raises(ModelError, match="'GroupNorm' cannot be held fixed; known: LayerNorm, RMSNorm"):
        DECOMPX.normalise(nn.GroupNorm(1, 4), torch.randn(2, 4))


@pytest.mark.parametrize("affine", [True, False])
def test_a_norm_without_gain_or_shift_is_held_fixed_too(affine: bool) -> None:
    norm = nn.LayerNorm(6, elementwise_affine=affine, bias=False, dtype=torch.float64)
    x = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    (gradient,) = torch.autograd.grad(DECOMPX.normalise(norm, x)[..., 0].sum(), x)

    spread = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    expected = (torch.eye(6, dtype=torch.float64)[0] - 1 / 6) / spread
    torch.testing.assert_close(gradient, expected.detach())


@pytest.mark.parametrize("lin", [GIM, Linearisation(softmax=0.5), Linearisation(softmax=3, qk=0.5, v=2)], ids=str)
@each("family", ["vit-even", "beit", "beit-3", "rope-mixed", "siglip"])
def test_fused_attention_has_the_gradient_of_the_matrix_at_any_temperature(family: str, lin: Linearisation) -> None:
    def gradients(attention: bool) -> list[Tensor]:
        probe = Probe(seen(family), pictures(), torch.tensor(TARGETS))
        return [layer.hidden_grad for layer in probe.layers(lin, attention=attention)]

    for fused, written_out in zip(gradients(False), gradients(True), strict=True):
        assert (fused - written_out).abs().max() <= 1e-12 * written_out.abs().max()


def test_a_sum_of_zero_passes_nothing_to_its_parts_and_zeros_pass_all() -> None:
    """The limits of ResLRP's factors where the rule is 0 / 0."""
    a = torch.tensor([2.0, 0.0, 0.0, 1e-30], requires_grad=True)
    b = torch.tensor([-2.0, 0.0, 3.0, 1e-30], requires_grad=True)

    y = RESLRP.add(a, b)
    y.sum().backward()

    assert y.tolist() == (a + b).tolist()
    assert a.grad.tolist() == [0, 1, 0.5, 1]
    assert b.grad.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("gamma", [0.25, 1.0, 10.0])
def test_the_residual_rule_conserves_within_its_bounds(gamma: float) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, upstream = torch.randn(3, 1000, dtype=torch.float64, generator=draw)
    a, b = a.requires_grad_(), b.requires_grad_()

    y = Linearisation(residual=gamma).add(a, b)
    g_a, g_b = torch.autograd.grad(y, (a, b), upstream)

    of_a, of_b, of_y = (a * g_a).detach(), (b * g_b).detach(), (y * upstream).detach()
    torch.testing.assert_close(of_a + of_b, of_y)
    assert (of_a.abs() + of_b.abs() <= (1 + 2 / gamma) * of_y.abs() + 1e-12).all()
