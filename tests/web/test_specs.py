"""For any spec in a request the response is 200 or 4xx with a message, never 500."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.conftest import SUBJECT, client_of
from vitreous.methods.fold import FOLDS
from vitreous.methods.method import METHODS
from vitreous.web.budget import PassCost
from vitreous.web.service import resolve_untrusted
from vitreous.web.settings import Settings

BOUNDED = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
NAMES = sorted(METHODS)
OPTIONS = sorted({key for name in NAMES for key in METHODS[name].known_options} | {"self", "probe", "layer", "x"})
LITERALS = st.recursive(
    st.sampled_from(
        [
            "0",
            "1",
            "-1",
            "2",
            "64",
            "10**9",
            "1e308",
            "nan",
            "0.5",
            "-0.0",
            "True",
            "None",
            "...",
            "''",
            "'a'",
            "b'a'",
            "1j",
        ]
    )
    | st.sampled_from([repr(value) for name in NAMES for value in METHODS[name].known_options.values()][:200]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(inner, max_size=2).map(lambda items: f"({', '.join(items)})"),
        st.tuples(inner, inner).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}"),
        inner.map(lambda item: f"{{{item}}}"),
    ),
    max_leaves=3,
)


@st.composite
def specs(draw) -> str:
    """Grammatical specs with random option names and nested literals, and now and then noise."""
    name = draw(st.sampled_from(NAMES))
    known = sorted(METHODS[name].known_options)
    option = st.one_of(st.sampled_from(known), st.sampled_from(OPTIONS)) if known else st.sampled_from(OPTIONS)
    pairs = draw(st.lists(st.tuples(option, LITERALS), max_size=2))
    spec = name + (f"({', '.join(f'{key}={value}' for key, value in pairs)})" if pairs else "")
    spec += draw(st.sampled_from(["", "", "", "@", "@libra", "@plain", "@conservative", "@libra(x=1)"]))
    fold = draw(st.sampled_from(["", "", "", "+", *(f"+{key}" for key in sorted(FOLDS))]))
    spec += fold + (draw(st.sampled_from(["", "(start=1)", "(layer=...)", "(x={})"])) if len(fold) > 1 else "")
    return (spec + draw(st.sampled_from(["", "", "", ")", "((", "\x00", "é"])))[:160]


@pytest.fixture(scope="module")
def client():
    with client_of(Settings(seconds=60), lambda vit: PassCost(1.0, 1.0)) as opened:
        yield opened


def check(answer) -> None:
    assert answer.status_code < 500 or answer.status_code == 504, answer.text
    if answer.status_code != 200:
        assert list(answer.json()) == ["error"]
        assert "\n" not in answer.json()["error"]


@pytest.mark.slow
@given(spec=specs())
@BOUNDED
def test_plans(client, spec):
    check(client.get("/api/plan", params={"model": "scenes", "method": spec}))


@pytest.mark.slow
@given(spec=specs())
@settings(BOUNDED, max_examples=25)
def test_explanations(client, spec):
    check(client.post("/api/explain", json={**SUBJECT, "method": spec, "targets": [6]}))


@pytest.mark.slow
@given(spec=specs())
@settings(BOUNDED, max_examples=8)
def test_curves_and_layers(client, spec):
    for path in ("curve", "layers"):
        check(client.post(f"/api/{path}", json={**SUBJECT, "method": spec, "target": 6}))


@pytest.mark.parametrize(
    "spec",
    [
        "genatt(self=1)",
        "cat(gain={[]:1})",
        "anneal(kept=...)",
        "rise(p=nan)",
        "rise(p=0)",
        "rise(cells=0)",
        "ig(steps=True)",
        "pami(shifts=None)",
        "lime(alpha=-1e308)",
        "rollout(form=[])",
        "gradcam+at(layer=...)",
        "genatt@libra(x=1)",
    ],
)
def test_specs_that_once_failed(client, spec):
    check(client.post("/api/explain", json={**SUBJECT, "method": spec, "targets": [6]}))


def test_an_unexpected_error_is_blamed_on_options_that_the_request_chose(client, monkeypatch, caplog):
    def broken(spec):
        raise TypeError("unhashable\nfrom /home/somebody")

    monkeypatch.setattr("vitreous.web.service.resolve_untrusted", broken)
    body = {**SUBJECT, "targets": [6]}
    chosen = client.post("/api/explain", json={**body, "method": "genatt(gain=1.25)"})
    plain = client.post("/api/explain", json={**body, "method": "fullgrad"})

    assert (chosen.status_code, plain.status_code) == (422, 500)
    assert "TypeError" in chosen.json()["error"]
    assert "somebody" not in chosen.text + plain.text
    assert "unhashable" in caplog.text


def test_large_numbers_are_found_however_deep():
    from vitreous.core.errors import SpecError

    with pytest.raises(SpecError, match="up to 64"):
        resolve_untrusted("pami(shifts=(1, 1000))")
