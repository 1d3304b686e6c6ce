"""Generated specs through every part of the grammar raise only the library's own errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import vitreous
from vitreous.capture.linearise import CHOICES, LINEARISATIONS
from vitreous.core.errors import Caveat, SpecError, VitreousError
from vitreous.core.registry import Registry
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import METHODS
from vitreous.methods.options import defaults, options_of
from vitreous.metrics.metric import METRICS, resolve_metric
from vitreous.models.vit import ViT
from vitreous.testing import tiny_vits

pytestmark = pytest.mark.slow

METHOD_NAMES = sorted(name for name in METHODS if METHODS.owner(name).split(".")[0] == "vitreous")
METRIC_NAMES = sorted(name for name in METRICS if METRICS.owner(name).split(".")[0] == "vitreous")
RESERVED = ["self", "cls", "spec", "name", "given", "options", "method", "function", "fold", "preset", "probe", "layer"]


def words_of(annotation: Any) -> set[str]:
    """Every string that an annotation offers as a choice."""
    inner = [words_of(argument) for argument in get_args(annotation)]
    own = {annotation} if isinstance(annotation, str) else set()
    return own.union(*inner)


WORDS = sorted(
    set().union(
        *(words_of(o.annotation) for reg in (METHODS, METRICS) for n in reg for o in reg[n].typed_options.values())
    )
    | {word for choices in CHOICES.values() for word in choices}
    | {preset for name in METHODS for preset in METHODS[name].presets}
    | {"logit", "probability", "margin", "fuse", "temper+plus", "ixg@libra", ""}
)

numbers = st.one_of(
    st.integers(-3, 20),
    st.integers(),
    st.floats(),
    st.sampled_from([0, 1, 2, 0.5, 1.0, -1, 2.0, 10**30, 1e-9, True, False]),
).map(repr)
texts = st.one_of(st.sampled_from(WORDS), st.text(max_size=8)).map(repr)
odd = st.sampled_from(
    ["...", "None", "1j", "b'x'", "1e999", "-1e999", "0x" + "f" * 4000, "[" * 300 + "]" * 300, "-" * 800 + "1", "x", "{[]: 1}",
     "lambda: 0", "*a", "**a", "f(1)", "'", "'\\d'", "'\\'", "1\x00", "{1, 2}", "()", "nan", "inf", "__import__('os')", "1 if 1 else 2"]
)  # fmt: skip


def collections_of(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, max_size=3).map(", ".join)
    pairs = st.lists(st.tuples(inner, inner).map(": ".join), max_size=2).map(", ".join)
    return st.one_of(several.map("({},)".format), several.map("[{}]".format), pairs.map("{{{}}}".format))


literals = st.recursive(st.one_of(numbers, texts, odd), collections_of, max_leaves=6)


@cache  # hypothesis examines every strategy that it has not seen
def options_in(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Parenthesised options, most of them with names that exist."""
    known = st.sampled_from(names) if names else st.nothing()
    keys = st.one_of(known, known, st.sampled_from(RESERVED), st.text(max_size=6))
    pairs = st.lists(st.tuples(keys, literals).map("=".join), max_size=3).map(", ".join)
    return st.one_of(st.just(""), pairs.map("({})".format), pairs.map("({}".format))


def part(mark: str, names: list[str], options: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """An optional part of a spec: a mark, a name and options."""
    name = st.one_of(st.sampled_from(names), st.sampled_from(names), st.text(max_size=4))
    return st.one_of(st.just(""), st.tuples(name, options).map(lambda pair: mark + "".join(pair)))


FOLD_OPTIONS = sorted({option for name in FOLDS for option in options_of(FOLDS[name].function)})
linearised = part("@", list(LINEARISATIONS), options_in(tuple(CHOICES)))
folded = part("+", list(FOLDS), options_in(tuple(FOLD_OPTIONS)))


@cache
def option_names(known: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.one_of(*[st.sampled_from(known)] * 3 if known else [], st.sampled_from(RESERVED), st.text(max_size=6))


@cache
def names_in(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.one_of(*[st.sampled_from(names)] * 4, st.text(max_size=8))


@cache
def three(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, min_size=3, max_size=3)


@st.composite
def families(draw: st.DrawFn, registry: Registry, names: list[str], endings: st.SearchStrategy[str]) -> list[str]:
    """Ten specs of one name: every pair of three option names and three values, and one of several options."""
    name = draw(names_in(tuple(names)))
    known = tuple(registry[name].known_options) if name in names else ()
    triple, values = (draw(three(each)) for each in (option_names(known), literals))
    ending = draw(endings)
    single = [f"{name}({key}={value}){ending}" for key, value in product(triple, values)]
    return [*single, name + draw(options_in(known)) + ending]


method_specs = families(METHODS, METHOD_NAMES, st.tuples(linearised, folded).map("".join))
metric_specs = families(METRICS, METRIC_NAMES, st.just(""))


@st.composite
def fitting_specs(draw: st.DrawFn) -> str:
    """Specs of which most resolve, with values that cost little."""
    name = draw(st.sampled_from(METHOD_NAMES))
    known = METHODS[name].typed_options
    keys = draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)) if known else []
    chosen = {**METHODS[name].facts.trial, **{key: draw(small_values(known[key].annotation)) for key in keys}}
    chosen = {key: value for key, value in chosen.items() if value is not Ellipsis}
    written = ", ".join(f"{key}={value!r}" for key, value in chosen.items())
    mode = draw(st.sampled_from(["", "", "@libra", "@plain", "@linear(qk=0.5, norm='fixed')"]))
    fold = draw(st.sampled_from(["", "", "+plus", "+skipplus(start=-1)", "+rollout(gain=2)", "+at(layer=1)", "+last"]))
    return f"{name}({written}){mode}{fold}"


def small_values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that an annotation may allow and that are fast on a tiny model."""
    words = sorted(words_of(annotation) - {"quickshift", "felzenszwalb", "watershed"})
    values = [st.sampled_from([1, 2, 3, 0, -1, 0.25, 0.5, 1.0, 4, True, False, None, (0.3, 0.6), (1, 2), Ellipsis])]
    return st.one_of(*values, *([st.sampled_from(words)] * 2 if words else []))


thorough = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # specs are short: shrinking would take longer than reading
    suppress_health_check=list(HealthCheck),
)


@cache
def tiny_vit() -> ViT:
    return tiny_vits()["class token"]


def check_grammar(resolve: Callable[[str], Any], specs: list[str]) -> None:
    """Every spec resolves to something that reads back the same, or is refused by the library's own error."""
    for spec in specs:
        try:
            resolved = resolve(spec)
        except VitreousError as problem:
            str(problem).encode()  # a message that cannot be encoded cannot be sent
        else:
            assert resolve(resolved.spec).spec == resolved.spec


@settings(thorough, max_examples=500)
@given(method_specs)
def test_any_text_resolves_or_is_refused(specs):
    check_grammar(vitreous.resolve, specs)


@settings(thorough, max_examples=150)
@given(metric_specs)
def test_any_text_resolves_to_a_metric_or_is_refused(specs):
    check_grammar(resolve_metric, specs)


@settings(thorough, max_examples=200)
@given(fitting_specs())
def test_resolved_specs_explain_or_are_refused(spec):
    vit = tiny_vit()
    images = torch.randn(1, 3, *vit.size, dtype=vit.dtype, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        try:
            attribution = vitreous.explain(vit, images, 1, spec)
        except VitreousError:
            return
    assert len(attribution) == 1


arguments = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
    st.sets(st.integers(), max_size=2),
    st.just(torch.ones(2)),
    st.just(object()),
)


@settings(thorough, max_examples=150)
@given(
    st.sampled_from(METHOD_NAMES),
    st.dictionaries(st.sampled_from([*RESERVED, "masks", "kept", "start"]), arguments, max_size=2),
)
def test_any_argument_of_the_call_is_taken_or_refused(name, options):
    try:
        vitreous.resolve(name, **options)
    except SpecError:
        return
    assert options.keys() <= METHODS[name].known_options.keys()


@pytest.mark.parametrize("registry", [METHODS, METRICS], ids=["methods", "metrics"])
def test_every_option_documents_its_values(registry):
    for name in registry:
        typed = registry[name].typed_options
        untyped = [option for option in typed.values() if option.annotation is Any and option.name != "preset"]
        assert not untyped, name
        for option in typed.values():
            option.fit(name, option.default)  # the default fits


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("genatt(self=1)", "no option 'self'"),
        ("cat(gain={[]:1})", "Python literals"),
        ("anneal(kept=...)", "kept=Ellipsis; expected float or a tuple of float"),
        ("anneal(kept=2.0)", "kept=2.0; expected less than 1"),
        ("anneal(of='anneal')", "does not bring layers together"),
        ("ixg@linear(name=1)", "no option 'name'"),
        ("ixg@linear(qk=1e999)", "from -100 to 100"),
        ("ixg+plus(self=1)", "no option 'self'"),
        ("ixg+plus(mode=[])", "expected 'layers' or 'restart' or None"),
        ("rise(p=1e999)", "finite"),
        ("rise(masks=0x" + "f" * 4000 + ")", "masks=<int>"),
        ("rise(masks=" + "-" * 3000 + "1)", "Python literals"),
        ("rise(masks=1]", "Python literals"),
        ("rise(" + " " * 5000 + ")", "at most 4096 characters"),
        ("decompx(bias='some')", "known: 'none', 'cls', 'equal'"),
        ("ig(question=3)", "not 'int'"),
        ("tam(steps=10000)", "at most 5000"),
    ],
)
def test_specs_that_once_raised_other_errors_are_refused(spec, sentence):
    with pytest.raises(SpecError, match=sentence):
        vitreous.resolve(spec)


def test_lists_are_read_as_tuples_and_quotes_may_be_escaped():
    assert vitreous.resolve("tis(kept=[0.5, 0.3])").spec == "tis(kept=(0.5, 0.3))"
    nested = vitreous.resolve("anneal(of='ixg@linear(norm=\\'frozen\\')+plus')")
    assert vitreous.resolve(nested.spec).options == nested.options


def test_a_start_beyond_the_depth_is_refused_for_a_model():
    vit = tiny_vit()
    images = torch.zeros(1, 3, *vit.size, dtype=vit.dtype)
    for spec in ("ixg+skipplus(start=99)", "tam(start=99)", "ig(space='tokens', start=99)", "scorecam(layer=99)"):
        with pytest.raises(SpecError, match=r"the model has (layers|blocks) 0 to"):
            vitreous.explain(vit, images, 0, spec)


def test_defaults_are_read_from_the_signature():
    def signal(layer, *, heads: str = "mean", discard=0.5): ...

    assert defaults(options_of(signal)) == {"heads": "mean", "discard": 0.5}
