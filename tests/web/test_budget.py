"""Sample counts that fit the time limit: maps, messages and previews. Costs are injected."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
import torch
from PIL import Image

import vitreous
from tests.web.conftest import SUBJECT, client_of
from vitreous.bench.cost import estimate_passes, read_model_sizes
from vitreous.bench.plan import Evaluation
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import SpecError
from vitreous.core.progress import Tally
from vitreous.methods.method import METHODS, Method
from vitreous.methods.options import Pixels
from vitreous.methods.pass_counts import ModelSizes, evaluate_passes
from vitreous.methods.spec import resolve
from vitreous.report.main_table import count_passes
from vitreous.web.budget import PassCost, find_sample_option, plan_samples, round_down
from vitreous.web.schemas import SamplingPlan
from vitreous.web.settings import Settings

SIZES = {"patches": 196, "channels": 144, "layers": 12, "depth": 12, "size": (224, 224), "patch": (16, 16)}


def plan(spec: str, forward: float = 0.01, backward: float = 0.02, limit: float = 60) -> SamplingPlan:
    return plan_samples(resolve(spec), lambda: SIZES, lambda: PassCost(forward, backward), limit)


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        ("rise", "masks"),
        ("tis", "masks"),
        ("hsic", "masks"),
        ("lime", "samples"),
        ("kernelshap", "samples"),
        ("smoothgrad", "samples"),
        ("ig", "steps"),
        ("anneal", "coalitions"),
        ("genatt", ""),
        ("occlusion", ""),
        ("pami", ""),
    ],
)
def test_the_option_that_counts_samples_is_read_from_the_cost_formula(spec, option):
    assert find_sample_option(resolve(spec)) == option


def test_all_samples_are_used_where_they_fit():
    chosen = plan("rise(masks=2000)")

    assert (chosen.spec, chosen.used, chosen.asked) == ("rise(masks=2000)", 2000, 2000)
    assert chosen.seconds == pytest.approx(20.01)
    assert chosen.previews == ("rise(masks=120)", "rise(masks=500)")


def test_fewer_are_used_where_all_take_too_long():
    chosen = plan("rise(preset='rise-repo')")

    assert (chosen.asked, chosen.used) == (6000, 2900)  # half of 60 s at 10 ms each, rounded down
    assert resolve(chosen.spec).options["masks"] == 2900
    assert resolve(chosen.spec).options["preset"] == "rise-repo"
    assert chosen.method == "rise(preset='rise-repo')"
    assert chosen.seconds == pytest.approx(60.01)
    assert [resolve(spec).options["masks"] for spec in chosen.previews] == [180, 720]


@pytest.mark.parametrize("limit", [1, 5, 20, 60, 300])
@pytest.mark.parametrize("spec", ["rise", "lime", "kernelshap(samples=100)", "smoothgrad", "ig", "anneal", "tis"])
def test_the_estimate_of_what_is_used_fits_the_limit(spec, limit):
    chosen = plan(spec, limit=limit)
    again = plan(chosen.spec, limit=limit)

    assert again.used == chosen.used  # the number of samples of a spec is not reduced again
    assert chosen.used == chosen.asked or again.seconds <= limit / 2 or chosen.used == 16
    assert all(16 <= resolve(preview).options[chosen.option] < chosen.used for preview in chosen.previews)


def test_gradients_are_counted_for_two_classes():
    assert plan("smoothgrad").seconds == pytest.approx(51 * 0.01 + 2 * 50 * 0.02)


def test_paths_of_every_layer_are_counted():
    chosen = plan("smoothgrad+plus")

    assert (chosen.option, chosen.used) == ("samples", 50)
    assert chosen.seconds == pytest.approx((1 + 50 * 6.5) * 0.01 + 2 * 50 * 6.5 * 0.02)
    assert plan("smoothgrad+plus", limit=20).used == 30


def test_cheap_methods_are_not_timed():
    def fail() -> PassCost:
        raise AssertionError("timed")

    for spec in ("genatt", "temper", "ig(steps=4)", "rise(masks=12)"):
        chosen = plan_samples(resolve(spec), lambda: SIZES, fail, 60)
        assert chosen.spec == resolve(spec).spec
        assert chosen.previews == ()


@pytest.mark.parametrize(
    ("spec", "passes"),
    [
        ("occlusion", 197),
        ("occlusion(space='pixels')", 197),
        ("occlusion(space='pixels', window=64, stride=32)", 1 + 6 * 6),
        ("atman", 197),
        ("scorecam", 145),
        ("scorecam+plus", 1 + 12 * 144),
        ("decompx(bias='norm')", 1 + 197),  # a part of every token
        ("pami", 1 + 9 + 20 + 30 + 42 + 49 + 64 + 72 + 81),
        ("pami(regions='circles', stride=16)", 1 + 14 * 14),
        ("pami(regions=('slic', 'watershed'), shifts=(8,))", 1 + 5 * (367 + 9 + 16 + 25)),
    ],
)
def test_methods_without_samples_are_refused_before_they_start_if_they_cannot_finish(spec, passes):
    forward = 61 / passes
    with pytest.raises(SpecError, match=f"takes {passes:,} passes of this model, about 61 s here") as refusal:
        plan(spec, forward=forward)
    assert "--seconds 92" in str(refusal.value)
    coarser = spec.startswith(("pami", "occlusion"))
    assert f"; {DEFAULT_METHOD!r} fits" in str(refusal.value) or coarser
    allowed = plan(spec, forward=forward, limit=92)
    assert (allowed.spec, allowed.option, allowed.share) == (resolve(spec).spec, "", 1.0)
    assert allowed.seconds == pytest.approx(61)


@pytest.mark.parametrize("spec", ["occlusion", "pami", "occlusion(space='pixels', window=16, stride=4)"])
@pytest.mark.parametrize("forward", [0.5, 2.0])
def test_the_spec_that_a_refusal_offers_fits(spec, forward):
    with pytest.raises(SpecError) as refusal:
        plan(spec, forward=forward)
    offered = re.search(r"s; \"(.+?)\" fits, ", str(refusal.value))
    assert offered
    assert forward * evaluate_passes(resolve(offered[1]), SIZES)[0] <= 30
    assert plan(offered[1], forward=forward).spec == offered[1]


def test_regions_and_windows_are_counted_as_the_methods_make_them():
    from vitreous.methods.masks import Windows
    from vitreous.methods.regions import many_regions

    image = torch.rand(3, 48, 64, generator=torch.Generator().manual_seed(0))
    sizes = {"size": (48, 64), "patch": (16, 16)}
    circles = count_masks("pami(regions='circles', radius=5, stride=7)", sizes)
    assert circles == len(many_regions(image, ["circles"], 5, 7))
    assert count_masks("pami(regions='slic')", sizes) == len(many_regions(image, ["slic"], 5, 7))
    windows = Windows.sliding((48, 64), (10, 10), (6, 6), image.device)
    assert count_masks("occlusion(space='pixels', window=10, stride=6)", sizes) == len(windows)


def test_regions_of_scikit_image_are_counted_as_it_makes_them():
    pytest.importorskip("skimage")
    from vitreous.methods.regions import many_regions

    for size in ((48, 64), (100, 37), (112, 112)):
        image = torch.rand(3, *size, generator=torch.Generator().manual_seed(0))
        sizes = {"size": size, "patch": (16, 16)}
        assert count_masks("pami(regions='watershed')", sizes) == len(many_regions(image, ["watershed"], 5, 7))
        assert count_masks("pami(regions='felzenszwalb')", sizes) >= len(many_regions(image, ["felzenszwalb"], 5, 7))


def count_masks(spec: str, sizes: dict) -> float:
    """Forward passes without that of the whole image."""
    passes = evaluate_passes(resolve(spec), sizes)
    assert passes is not None
    return passes[0] - 1


@pytest.fixture
def tiles():
    """A method of another package, whose passes depend on the size of the image and on an option."""

    def count_tiles(method: Method, sizes: ModelSizes) -> dict[str, int]:
        return {"tiles": (sizes["size"][0] // method.settings["side"]) * (sizes["size"][1] // method.settings["side"])}

    def enlarge(method: Method, sizes: ModelSizes) -> Iterator[dict[str, int]]:
        yield from ({"side": side} for side in (32, 56, 112))

    def score_tiles(probe, side: Pixels = 8):
        return probe.score(torch.ones(1, 1, 1)).expand(1, 1)

    facts = {"signed": True, "class_specific": True, "forwards": "2 tiles", "backwards": "tiles"}
    vitreous.method("tiles", counts=count_tiles, coarser=enlarge, **facts)(score_tiles)
    yield
    METHODS.discard("tiles")


def test_a_method_of_another_package_is_refused_and_made_coarser_as_those_of_this_one(tiles):
    with pytest.raises(SpecError, match="takes 2,352 passes of this model, about 47 s ") as refusal:
        plan("tiles", limit=40)
    assert "; 'tiles(side=32)' fits" in str(refusal.value)
    assert "--seconds 71" in str(refusal.value)
    assert plan("tiles", limit=48).spec == "tiles"
    with pytest.raises(SpecError, match=r"; 'tiles\(side=56\)' fits"):
        plan("tiles", limit=1.2)
    assert plan("tiles(side=56)", limit=1.2).seconds == pytest.approx(16 * (2 * 0.01 + 2 * 0.02))


def test_the_estimate_of_a_plan_and_reports_count_as_the_playground(tiles):
    vit = vitreous.load("scenes")
    sizes = read_model_sizes(vit)
    evaluation = Evaluation(metrics=())
    for spec in ("tiles", "pami", "occlusion(space='pixels', window=64, stride=32)", "scorecam+skipplus"):
        passes = evaluate_passes(resolve(spec), sizes)
        assert passes is not None
        logits = 0 if resolve(spec).facts.shares_forward else 1
        assert estimate_passes([spec], evaluation, vit) == (logits + passes[0], passes[1], [])
    assert count_passes("tiles", vit) == (2 * 14 * 14, 14 * 14)
    assert count_passes("tiles") == ("2 tiles", "tiles")  # the image's size is not known


def test_counts_are_rounded_to_two_digits():
    assert [round_down(count) for count in (-3, 0.5, 99.9, 100, 129, 1999, 12345)] == [0, 0, 99, 100, 120, 1900, 12000]


@pytest.fixture(scope="module")
def slow_client():
    """A server on which a forward pass is said to take one second, so that 60 s allow for 29 of them.

    Estimates are not compared with real times here.
    """
    calls: list[str] = []

    def cost(vit) -> PassCost:
        calls.append(vit.name)
        return PassCost(1.0, 1.0)

    with client_of(Settings(seconds=60), cost) as client:
        client.calls = calls
        client.app.state.service.check_estimate = lambda *_: None
        yield client


@pytest.mark.slow
def test_a_reduced_map_equals_that_of_the_library_and_is_labelled(slow_client):
    body = {**SUBJECT, "method": "rise", "targets": [6]}
    explained = slow_client.post("/api/explain", json=body).json()

    assert explained["method"] == "rise(masks=29)"
    samples = explained["samples"]
    assert (samples["option"], samples["used"], samples["asked"], samples["seconds"]) == ("masks", 29, 4000, 4001.0)
    assert samples["sentence"] == (
        "29 of 4,000 masks; all of them would take about 4001 s here. "
        "To run all: vitreous.explain(vit, image, target, 'rise')"
    )
    scene = vitreous.scenes.draw("pair", seed=1, index=6)
    expected = vitreous.explain("scenes", Image.fromarray(scene.image), [[6]], "rise(masks=29)", "probability")
    scores = torch.tensor(explained["maps"][0]["scores"])
    torch.testing.assert_close(scores, expected.patches[0], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_every_endpoint_uses_the_same_count_and_the_model_is_timed_once(slow_client):
    plan = slow_client.get("/api/plan", params={"model": "scenes", "method": "rise"}).json()
    screen = {**SUBJECT, "methods": ["rise", "genatt"], "targets": [6]}
    maps = slow_client.post("/api/scores", json=screen).json()["maps"]
    code = slow_client.post("/api/python", json=screen).json()["code"]
    curve = slow_client.post("/api/curve", json={**SUBJECT, "method": "rise", "target": 6}).json()

    assert plan == {
        "method": "rise",
        "spec": "rise(masks=29)",
        "option": "masks",
        "used": 29,
        "asked": 4000,
        "seconds": 4001.0,
        "previews": [],
    }
    assert [entry["method"] for entry in maps] == ["rise(masks=29)", "genatt"]
    assert "methods = ['rise(masks=29)', 'genatt']" in code
    assert "# rise(masks=29): 4,000 masks were requested ('rise'), about 4001 s on the server" in code
    assert curve["method"] == "rise(masks=29)"
    assert slow_client.calls == ["scenes"]


def test_methods_without_samples_report_no_samples(slow_client):
    body = {**SUBJECT, "method": "genatt", "targets": [6]}
    assert slow_client.post("/api/explain", json=body).json()["samples"] is None
    plan = slow_client.get("/api/plan", params={"model": "scenes", "method": "GenAtt"}).json()
    assert (plan["spec"], plan["option"], plan["previews"]) == ("genatt", "", [])


def test_a_method_that_cannot_finish_is_refused_by_every_endpoint_before_it_starts(slow_client):
    screen = {**SUBJECT, "methods": ["atman"], "targets": [6]}
    answers = [
        slow_client.get("/api/plan", params={"model": "scenes", "method": "atman"}),
        slow_client.post("/api/explain", json={**SUBJECT, "method": "atman", "targets": [6]}),
        slow_client.post("/api/curve", json={**SUBJECT, "method": "atman", "target": 6}),
        slow_client.post("/api/scores", json=screen),
    ]
    assert [answer.status_code for answer in answers] == [422] * 4
    assert {answer.json()["error"] for answer in answers} == {
        f"'atman' takes 197 passes of this model, about 197 s here, and a request may take 60 s; {DEFAULT_METHOD!r} fits, "
        "vitreous.explain(vit, image, target, 'atman') has no limit, and `vitreous serve --seconds 296` allows it here"
    }


def test_a_computation_is_stopped_when_its_progress_shows_that_it_cannot_finish():
    """As for vitcx, whose number of passes depends on the image: `Tally` reports, and the worker extrapolates."""
    reports = iter(range(0, 10_000, 3))
    with client_of(Settings(seconds=60)) as client:
        service = client.app.state.service
        begun = time.monotonic()
        service.worker.clock = lambda: begun + next(reports)  # every report comes three seconds after the last

        def explain(payloads):
            tally = Tally(1000)
            for _ in range(1000):
                tally.add(1)
            raise AssertionError("not stopped")

        service.explain = explain
        answer = client.post("/api/explain", json={**SUBJECT, "method": "vitcx(threshold=0.2)", "targets": [6]})

    assert answer.status_code == 504
    assert answer.json()["error"].startswith("that needs about 2994 s more, and ")
    assert "it was stopped after 2 of 1,000 passes" in answer.json()["error"]


def test_a_model_is_measured_again_when_an_estimate_was_wrong():
    costs = iter([PassCost(1.0, 0.0), PassCost(0.01, 0.0)])
    with client_of(Settings(), lambda vit: next(costs)) as client:
        service = client.app.state.service
        first = service.plan("scenes", "rise")
        service.check_estimate("scenes", first, 30.0)  # as estimated
        assert service.plan("scenes", "rise") == first
        service.check_estimate("scenes", first, 0.3)
        second = service.plan("scenes", "rise")

    assert (first.used, second.used) == (29, 2900)
    assert service.plan_version == 1
