"""`Method`: few fields, options read once, and old attribute names that still work."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import vitreous
from vitreous.capture.targets import ClassTarget, Target, text_target
from vitreous.core.errors import ShapeError
from vitreous.explanation import choose_score_function, explain_batch
from vitreous.methods import decompose, options
from vitreous.methods.folds import first
from vitreous.methods.method import Method
from vitreous.methods.recipe import LayerSignal, ProbeFunction
from vitreous.methods.register_method import make_method
from vitreous.methods.spec import resolve
from vitreous.testing import tiny_vits


@pytest.fixture(scope="module")
def vit():
    return next(iter(tiny_vits().values()))


@pytest.fixture(scope="module")
def images(vit):
    return torch.randn(3, 3, *vit.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_method_has_at_most_a_dozen_fields():
    assert len(fields(Method)) <= 12


def test_signatures_are_read_at_registration_only(monkeypatch, vit, images):
    resolve("decompx+plus")  # registers all methods

    monkeypatch.setattr(options, "inspect", None)  # reading a signature fails from here on

    method = resolve("decompx(bias='equal')+skipplus(start=1)").with_options(activation="tangent")
    assert vitreous.explain(vit, images, 1, method).method == method.spec


def test_an_unknown_keyword_is_named():
    with pytest.raises(TypeError, match="unknown keywords: wrong"):
        make_method("x", lambda probe: probe, signed=True, class_specific=True, wrong=1)
    with pytest.raises(TypeError, match="unknown keywords: sined; did you mean 'signed'"):
        make_method("x", lambda probe: probe, sined=True, class_specific=True)


@pytest.mark.parametrize(("wrong", "right"), [("folds", "fold"), ("preset", "presets"), ("alias", "aliases")])
def test_every_keyword_of_the_decorator_is_suggested(wrong, right):
    with pytest.raises(TypeError, match=f"unknown keywords: {wrong}; did you mean '{right}'"):
        vitreous.method("x", signed=True, class_specific=True, **{wrong: None})(lambda probe: probe)


def test_a_missing_keyword_is_named():
    with pytest.raises(TypeError, match="'x' does not state signed=True or False"):
        make_method("x", lambda probe: probe, class_specific=True)


def test_a_parameter_that_is_neither_input_nor_option_is_named():
    with pytest.raises(TypeError, match=r"the parameter 'power' without a default.*probe and linearisation"):
        make_method("x", lambda layer, power: layer, fold=first, signed=True, class_specific=True)
    with pytest.raises(TypeError, match="the parameter 'power' without a default"):
        make_method("x", lambda probe, power: probe, signed=True, class_specific=True)


def test_a_signal_of_another_shape_is_refused(vit, images):
    method = make_method("x", lambda layer: layer.hidden[:, 1:, 0], fold=first, signed=True, class_specific=False)

    with pytest.raises(
        ShapeError, match=r"returns \[3, 16\] for a layer of 17 tokens, 1 of them.*must return \[3, 17\]"
    ):
        vitreous.explain(vit, images, 1, method)


def test_other_attributes_do_not_exist():
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = resolve("ixg").nothing_such


def test_a_function_of_the_probe_becomes_its_signal_under_a_fold():
    alone, folded = resolve("ig"), resolve("ig+first")

    assert isinstance(alone.recipe, ProbeFunction)
    assert isinstance(folded.recipe, LayerSignal)
    assert (alone.facts.native, folded.facts.native) == ("pixel", "patch")
    assert folded.fold == first


def test_decompx_by_likeness_decomposes_the_layer_that_the_fold_reads_only(monkeypatch, vit, images):
    starts = []
    forward_shares = decompose.forward_shares

    def watched(probe, start, split):
        starts.append(start)
        return forward_shares(probe, start, split)

    monkeypatch.setattr(decompose, "forward_shares", watched)

    vitreous.explain(vit, images, 1, "decompx(bias='norm')")
    assert starts == [0]


# ── targets and batches ──────────────────────────────────────────────────────────────────────────


def test_targets_have_one_interface():
    assert isinstance(ClassTarget(), Target)
    assert isinstance(text_target(torch.ones(3)), Target)
    assert not isinstance(torch.ones(3), Target)


def test_explain_joins_batches(vit, images):
    classes = torch.tensor([[0, 1], [2, 3], [1, 4]])
    target, method = ClassTarget(classes).fit(vit, 3), resolve("ixg")
    score_function = choose_score_function(vit, target, method)

    whole = vitreous.explain(vit, images, classes, "ixg", batch_size=2)
    last = explain_batch(vit, images[2:], target.batch(slice(2, 3)), method, score_function)

    torch.testing.assert_close(whole.patches[4:], last.patches)
    assert whole.names[4:] == last.names
    assert whole.provenance == last.provenance


def test_a_black_box_form_is_chosen_for_black_boxes_only(vit):
    opaque = vitreous.wrap(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)), black_box=True)

    assert resolve("occlusion").for_model(vit).spec == "occlusion"
    assert resolve("occlusion").for_model(opaque).spec == "occlusion(space='pixels')"


def test_score_functions_have_plain_names():
    from tests.models.families import pictures, seen

    for plain, name in (("contrast", "probability"), ("support", "logit")):
        maps = [vitreous.explain(seen("vit-even"), pictures(), [3, 1], "ixg", question=q) for q in (plain, name)]
        assert (maps[0].patches == maps[1].patches).all()
        assert maps[0].provenance["question"] == name
        assert (
            vitreous.explain(seen("vit-even"), pictures(), [3, 1], f"ixg(question='{plain}')").patches
            == maps[1].patches
        ).all()
    assert not vitreous.resolve("tis(question='contrast')").signed
    assert vitreous.resolve("tis(question='support')").signed
