"""The layers that `inside` returns add up or multiply to the map of the method."""

from __future__ import annotations

import pytest
import torch

import vitreous
from tests.cases import each
from vitreous.capture.linearise import LIBRA
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import METHODS
from vitreous.methods.transition import transition
from vitreous.pairs.contributions import layers_added
from vitreous.testing import tiny_vits

TARGETS = torch.tensor([[1, 4], [2, 0], [3, 1]])


@pytest.fixture(scope="module", params=["class token", "mean pool, registers, LayerScale"])
def vit(request):
    return tiny_vits()[request.param]


@pytest.fixture(scope="module")
def class_token_vit():
    return tiny_vits()["class token"]


@pytest.fixture(scope="module")
def images(vit):
    return random_images(vit)


def random_images(vit):
    return torch.randn(3, 3, *vit.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def composes(name: str) -> bool:
    try:
        vitreous.resolve(f"{name}+plus")
    except SpecError:
        return False
    return True


COMPOSING = sorted(name for name in METHODS if composes(name))


def test_many_methods_compose():
    assert len(COMPOSING) > 25
    assert {"decompx", "tokentm", "gradcam", "fullgrad", "rawattention"} <= set(COMPOSING)


@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@each("name", COMPOSING)
def test_signals_add_up_to_the_map(vit, images, name):
    compare_signals_with_map(vit, images, name, "plus")


@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@pytest.mark.parametrize("fold", ["skipplus", "plus(mode='restart')"])
@each("name", COMPOSING)
def test_signals_of_other_folds_add_up_to_the_map(name, fold, class_token_vit):
    compare_signals_with_map(class_token_vit, random_images(class_token_vit), name, fold)


def compare_signals_with_map(vit, images, name, fold):
    method = vitreous.resolve(f"{name}+{fold}")
    few = {
        key: value for key, value in method.facts.trial.items() if key in method.known_options
    }  # of samples and steps

    seen = vitreous.inside(vit, images, TARGETS, method.spec, **few)
    found = vitreous.explain(vit, images, TARGETS, method.spec, **few)

    recipe = method.recipe
    signals, rest = seen.parts["signal"], 0 if seen.rest is None else seen.rest
    assert signals.shape == (6, len(seen.layers), found.layout.patches)
    assert torch.equal(seen.whole.patches, found.patches)
    size = float(found.patches.abs().max()) + 1e-12
    if recipe.finish is None:
        torch.testing.assert_close(signals.sum(1) + rest, found.patches, atol=1e-9 * size, rtol=1e-9)
    assert (seen.rest is not None) == (recipe.needs.biases and "restart" not in fold)
    sums = signals.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(seen.parts["sum"], sums, atol=1e-9 * size, rtol=1e-9)
    first = -(-vit.depth // 2) if fold == "skipplus" else 0
    assert seen.layers == tuple(range(first, vit.depth))


def test_a_signal_is_the_map_of_its_layer_alone(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "decompx+plus")

    for place, layer in enumerate(seen.layers):
        alone = vitreous.explain(vit, images, TARGETS, f"decompx+at(layer={layer})")
        torch.testing.assert_close(seen.parts["signal"][:, place], alone.patches)


def test_the_rest_of_fullgrad_is_the_biases_of_every_layer_and_of_the_head(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "fullgrad@libra+plus")
    probe = vitreous.Probe(vit, images, TARGETS)

    total = torch.stack(list(probe.biases(LIBRA))).sum(0)[:, seen.whole.layout.prefix :]

    torch.testing.assert_close(seen.rest, total, atol=1e-10, rtol=1e-9)
    assert seen.rest.abs().max() > 1e-3


@pytest.mark.parametrize(
    "spec", ["genatt", "rollout", "rollout(form='vit-explain')", "tokentm", "alti", "attngrad+rollout"]
)
def test_the_rollout_of_the_first_layer_is_the_map(vit, images, spec):
    seen = vitreous.inside(vit, images, TARGETS, spec)

    torch.testing.assert_close(seen.parts["carried"][:, 0], vitreous.explain(vit, images, TARGETS, spec).patches)
    assert len(seen) == 6


def test_a_published_last_step_is_done_to_the_map_alone(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "rollout(preset='vit-explain')")

    carried = seen.parts["carried"][:, 0]
    torch.testing.assert_close(seen.whole.patches, carried / carried.amax(-1, keepdim=True))
    assert not torch.allclose(seen.whole.patches, carried)


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def by_hand(vit, images, question: str = "probability", **options) -> torch.Tensor:
    """C ← U_mlp U_att C from diag‖X₀‖, block after block, N × N; heads one at a time."""
    probe = vitreous.Probe(vit, images, TARGETS, question)
    layers = list(probe.layers(attention=True))[::-1]
    n = layers[0].hidden.shape[1]
    maps = []
    for row in range(len(layers[0].hidden)):
        C = torch.diag(layers[0].hidden[row].norm(dim=-1))
        for layer in layers:
            part = transition(layer, **options)
            heads = part.attention.shape[1]
            U = torch.eye(n, dtype=C.dtype)
            for h in range(heads):
                W = torch.diag(part.length[row, h] * part.necc[row, h])
                U = U + part.positive[row, h] * (part.attention[row, h] @ W) / heads
            C = (torch.eye(n, dtype=C.dtype) + torch.diag(part.mlp_length[row] * part.mlp_necc[row])) @ U @ C
        maps.append(layers[0].readout[row] @ C)
    return torch.stack(maps)[:, probe.layout.prefix :]


@pytest.mark.parametrize("options", [{}, {"necc": False}, {"source": "norm"}, {"variant": "libragrad"}])
def test_the_parts_of_tokentm_recompose_to_its_map(vit, images, options):
    found = vitreous.explain(vit, images, TARGETS, "tokentm", **options)

    torch.testing.assert_close(found.patches, by_hand(vit, images, **options), atol=1e-14, rtol=1e-9)


def test_the_measures_of_tokentm_are_means_over_heads_at_the_row_that_the_head_reads(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "tokentm")
    prefix = seen.whole.layout.prefix

    assert list(seen.parts) == ["attention", "weighted", "length", "necc", "mlp_length", "mlp_necc", "carried"]
    for layer in vitreous.Probe(vit, images, TARGETS, "probability").layers(attention=True):
        part = transition(layer)
        row = torch.einsum("rn,rhnm->rhm", layer.readout.to(part.attention), part.attention)
        weighted = torch.einsum("rn,rhnm->rhm", layer.readout.to(part.attention), part.attention * part.positive)
        expected = {
            "attention": row.mean(1),
            "weighted": weighted.mean(1),
            "length": part.length.mean(1),
            "necc": part.necc.mean(1),
            "mlp_length": part.mlp_length,
            "mlp_necc": part.mlp_necc,
        }
        for name, value in expected.items():
            torch.testing.assert_close(seen.parts[name][:, layer.index], value[:, prefix:])
        torch.testing.assert_close(part.necc.sum(-1), torch.ones_like(part.necc[..., 0]))


def test_a_measure_that_is_switched_off_is_not_shown(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "tokentm", preset="af+l")

    assert "length" in seen.parts
    assert not {"necc", "mlp_necc"} & set(seen.parts)
    assert seen.whole.method == "tokentm(preset='af+l')"


# ── folds and measures of other packages ─────────────────────────────────────────────────────────


@pytest.fixture
def last_three():
    """A sum over the last three layers."""
    fold = vitreous.fold("last_three", reach=lambda depth: depth - 3, accumulates="sum")
    yield fold(vitreous.plus.function)
    FOLDS.discard("last_three")


def test_a_fold_of_another_package_shows_every_layer(vit, images, last_three):
    seen = vitreous.inside(vit, images, TARGETS, "decompx+last_three")

    assert (list(seen.parts), seen.layers) == (["signal", "sum"], (vit.depth - 3, vit.depth - 2, vit.depth - 1))
    torch.testing.assert_close(seen.parts["sum"][:, 0], seen.whole.patches)
    assert layers_added(vitreous.resolve("decompx+last_three"), vit) == 3


def test_measures_of_a_method_of_another_package_are_shown(vit, images):
    def norm_of_tokens(layer, power: int = 1):
        return layer.hidden.norm(dim=-1) ** power

    facts = {"signed": False, "class_specific": False, "backwards": 0}
    measures = {"measures": lambda layer, power: {"length": layer.hidden.norm(dim=-1)}}
    try:
        vitreous.method("lengths", fold=vitreous.plus, **measures, **facts)(norm_of_tokens)
        seen = vitreous.inside(vit, images, TARGETS, "lengths(power=2)")
    finally:
        METHODS.discard("lengths")

    assert list(seen.parts) == ["length", "signal", "sum"]
    torch.testing.assert_close(seen.parts["length"] ** 2, seen.parts["signal"])


# ── rows and refusals ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("spec", ["decompx+plus", "tokentm", "rawattention+plus"])
def test_batches_rows_and_texts_change_nothing(vit, images, spec):
    whole = vitreous.inside(vit, images, TARGETS, spec)
    pieces = vitreous.inside(vit, images, TARGETS, spec, batch_size=2, hold=False)
    alone = vitreous.inside(vit, images[2:], TARGETS[2:], spec)

    for name, part in whole.parts.items():
        torch.testing.assert_close(pieces.parts[name], part)
        torch.testing.assert_close(alone.parts[name], part[4:])
        torch.testing.assert_close(whole[5].parts[name], part[5:])
    text = vitreous.text_target(torch.randn(vit.outputs, dtype=torch.float64), names="a text")
    assert vitreous.inside(vit, images, text, spec).whole.names == ("a text",) * 3


def test_a_part_of_one_layer_is_an_attribution(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "tokentm")

    one = seen.at("necc", 1)

    assert torch.equal(one.patches, seen.parts["necc"][:, 1])
    assert torch.equal(one.maps(), seen.maps("necc")[:, 1])
    assert one.provenance["part"] == "necc"
    assert one.provenance["layer"] == 1
    assert not one.signed
    assert vitreous.inside(vit, images, TARGETS, "decompx+plus").at("signal", 0).signed


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("decompx", r"reads a single layer; .*'decompx\+plus'"),
        ("rawattention", "reads a single layer"),
        ("rise", "no signal per layer"),
        ("tokentm(preset='baseline')", "reads a single layer"),
        ("genat", "did you mean"),
    ],
)
def test_a_method_without_layers_to_look_at_is_refused(vit, images, spec, sentence):
    with pytest.raises(SpecError, match=sentence):
        vitreous.inside(vit, images, TARGETS, spec)


def test_parts_and_layers_that_are_not_there_are_named(vit, images):
    seen = vitreous.inside(vit, images, TARGETS, "genatt+skipplus")

    with pytest.raises(SpecError, match="no part 'necc'; known: signal, sum"):
        seen.maps("necc")
    with pytest.raises(SpecError, match="layer 0 was not visited"):
        seen.at("signal", 0)


def test_a_black_box_has_no_inside():
    model = vitreous.wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)), black_box=True)

    with pytest.raises((ModelError, SpecError), match="looks inside"):
        vitreous.inside(model, torch.zeros(1, 3, 8, 8), 0, "decompx+plus")
