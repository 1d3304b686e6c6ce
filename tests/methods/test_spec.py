"""The grammar: name(options)@linearisation(options)+fold(options)."""

from __future__ import annotations

import pytest

import vitreous
from vitreous import SpecError, resolve


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("decompx+skipplus", "decompx+skipplus"),
        ("DecompX+SkipPLUS", "decompx+skipplus"),
        ("genatt@libra+plus", "genatt@libra+plus"),
        ("ixg+skipplus(start=4)", "ixg+skipplus(start=4)"),
        ("GradCAM++", "gradcampp"),
        ("GradCAM+++plus", "gradcampp+plus"),
        ("XGradCAM+", "xgradcamplus"),
        ("XGradCAM++plus", "xgradcamplus+plus"),
        ("FullGrad+", "fullgrad+plus"),
        ("fullgrad+plus(biases='repeat')", "fullgrad+plus(biases='repeat')"),
        ("vtranm", "tokentm"),
        ("gae", "genatt"),
        ("Transformer-MM", "genatt"),
        ("chefer2", "genatt"),
        (" rollout ", "rollout"),
        ("decompx + skipplus", "decompx+skipplus"),
        ("rawattention+plus(mode='restart')", "rawattention+plus(mode='restart')"),
        ("tokentm(preset='af+l')", "tokentm(preset='af+l')"),
        (
            "ixg@linear(qk=0.5, v=1, norm='frozen', activation='ratio')+plus",
            "ixg@linear(qk=0.5, v=1, norm='frozen', activation='ratio')+plus",
        ),
        ("genatt(variant='bt', start=1)", "genatt(variant='bt', start=1)"),
    ],
)
def test_a_spec_reads_as_it_is_written(spec, canonical):
    method = resolve(spec)

    assert method.spec == canonical
    assert resolve(method.spec).spec == canonical


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("genat", "did you mean 'genatt'"),
        ("decompx+rollout", "no token-to-token signal"),
        ("cat+skipplus", "ixg\\+skipplus"),
        ("attcat+plus", "attixg\\+plus"),
        ("gradsam+skipplus", "genatt\\+skipplus"),
        ("rollout+plus", "rawattention\\+plus"),
        ("decompx@libra", "ixg@libra"),
        ("conservativelrp@plain", "ixg@plain"),
        ("libra", "is a linearisation"),
        ("skipplus", "is a fold"),
        ("ixg+plus+plus", "more than one fold"),
        ("rawattention@libra", "takes no gradient"),
        ("random+plus", "no signal per layer"),
        ("ixg(foo=1)", "no option 'foo'"),
        ("ixg+skipplus(strat=3)", "did you mean 'start'"),
        ("genatt(start=1)+plus", "no option 'start'"),
        ("gradcam+plu", "did you mean 'plus'"),
        ("gradcam+", "fold is missing"),
        ("fullgrad++skipplus", "fullgrad\\+skipplus"),
        ("ixg(space=pixels)", "Python literals"),
        ("ixg(1)", "name=value"),
        ("ixg(space='pixels'", "not closed"),
        ("ixg@linear(qk='half')", "must be a number"),
        ("ixg@linear(norm='cold')", "'exact', 'frozen'"),
        ("ixg@libre", "did you mean 'libra'"),
        ("ixg)x", "no method"),
        ("ixg@linear(qk=0.5, qk=1)", "given twice"),
        ("ixg(__import__('os'))", "name=value"),
    ],
)
def test_invalid_arguments_are_refused_with_valid_alternatives(spec, sentence):
    with pytest.raises(SpecError, match=sentence):
        resolve(spec)


def test_folds_compose_in_python_as_in_specs():
    assert vitreous.skipplus("decompx").spec == "decompx+skipplus"
    assert vitreous.skipplus(resolve("ixg"), start=4).spec == "ixg+skipplus(start=4)"


def test_options_of_the_call_are_assigned_to_method_or_fold():
    assert resolve("genatt", variant="bt").spec == "genatt(variant='bt')"
    assert resolve("decompx+skipplus", start=4).spec == "decompx+skipplus(start=4)"
    assert resolve(resolve("decompx+skipplus"), start=4).spec == "decompx+skipplus(start=4)"
    assert resolve("genatt+plus", mode="restart", variant="bt").spec == "genatt(variant='bt')+plus(mode='restart')"
    with pytest.raises(SpecError, match="given twice"):
        resolve("genatt(variant='bt')", variant="bt")


def test_a_method_is_registered_in_three_lines():
    from vitreous.methods.method import METHODS

    @vitreous.method("meanhead", fold=vitreous.last, mixing=True, attention=True, signed=False, class_specific=False)
    def meanhead(layer):
        return layer.attention.mean(dim=1)

    try:
        from vitreous.testing import check_method

        assert check_method("meanhead+plus")
        with pytest.raises(SpecError, match="already registered"):
            vitreous.method("meanhead", signed=False, class_specific=False)(lambda probe: probe)
    finally:
        METHODS.discard("meanhead")


def test_the_catalogue_on_disk_is_the_registry():
    from vitreous import catalogue

    assert catalogue.read_catalogue() == catalogue.build_catalogue(), "run `python -m vitreous.catalogue`"
