"""Estimated numbers of passes are those that methods take, for every method, fold and option that changes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import vitreous
from tests.cases import each
from vitreous.bench.cost import count_method_passes, estimate_passes, read_model_sizes
from vitreous.bench.plan import Evaluation
from vitreous.capture.probe import probe_of
from vitreous.core.errors import SpecError
from vitreous.methods import decompose
from vitreous.methods.fold import FOLDS
from vitreous.methods.folds import read_token_scores
from vitreous.methods.method import METHODS
from vitreous.methods.pass_counts import evaluate_passes
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric
from vitreous.models.model import BlackBox
from vitreous.testing import Counter, tiny_vits

UNKNOWN = ("vitcx",)  # depends on the image
FOLDED = ("first", "last", "plus", "skipplus(start=1)", "rollout", "at(layer=2)", "plus(mode='restart')")
FEWER = {"samples": 12, "steps": 12, "masks": 12, "coalitions": 12}
# with options that change the number of passes, or whether they go back
OPTIONS = (
    "anneal(coalitions=12, of='temper')",
    "anneal(coalitions=12, of='ixg@libra+skipplus')",
    "anneal(coalitions=12, complements=False)",
    "bayes(samples=32, prior='none')",
    "bayes(samples=32, prior='temper')",
    "bayes(samples=32, prior='smoothgrad(samples=8)+plus')",
    "bth(steps=12, start=1)",
    "caap(start=2)",
    "caap(start=0, stop=3)",
    "hsic(masks=12, space='tokens')",
    "ig(steps=12, space='tokens', start=2)",
    "ig(steps=12, space='tokens')",
    "ig(steps=12, rule='trapezoid')",
    "kernelshap(samples=13, space='pixels', regions='slic')",
    "legrad(preset='released')",
    "lime(samples=12, space='pixels')",
    "occlusion(space='pixels')",
    "occlusion(space='pixels', window=12, stride=5)",
    "pami",
    "pami(regions='circles', stride=5, radius=4)",
    "pami(regions=('slic', 'circles'), shifts=(8, 4))",
    "partiallrp(ablation=True)",
    "scorecam(layer=1)",
    "tis(masks=12, kept=(0.25, 0.5, 0.75))",
    "tis(masks=12, ablate='pixels', kept=(0.25, 0.5))",
    "tis",  # more masks than channels
    "transatt(gradient=False)",
    "ixg(space='pixels')",
)


def every_fold() -> Iterator[str]:
    """Every method of this library, with few samples, as it is and under every fold that it composes with."""
    for name in METHODS:
        if METHODS.owner(name).split(".")[0] != "vitreous" or name in UNKNOWN:
            continue
        for suffix in ("", *(f"+{fold}" for fold in FOLDED)):
            try:
                method = resolve(name + suffix)
            except SpecError:  # it does not compose
                continue
            trial = {**FEWER, **METHODS[name].facts.trial}
            yield method.with_options(**{k: v for k, v in trial.items() if k in method.typed_options}).spec


@pytest.fixture(scope="module")
def vit():
    return tiny_vits(torch.float32)["class token"]


def count_on(vit, spec: str, metric: str = "", in_benchmark: bool = False) -> tuple[float, float]:
    """Forward and backward passes of an image, a pass through some of the blocks as their share.

    A benchmark computes the logits of the image before the map.
    """
    counter, image = Counter(), torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(1))
    with counter.watching(vit) as watched:
        probe = vitreous.Probe(watched, image, torch.tensor([1]))
        if in_benchmark:
            _ = probe.head_output
        attribution = resolve(spec)(probe)
        if metric:
            resolve_metric(metric)(attribution, probe=probe, labels=torch.tensor([1]))
    return counter.forwards / vit.depth, counter.backwards / vit.depth


def check_estimate(counted: tuple[float, float], estimated: tuple[float, float] | None) -> None:
    """A pass through some of the blocks may be estimated as a whole one."""
    assert estimated is not None
    for count, estimate in zip(counted, estimated, strict=True):
        assert count - 1e-6 <= estimate <= math.ceil(count - 1e-6) + 1e-6, f"{counted} counted, {estimated} estimated"


@each("spec", dict.fromkeys([*every_fold(), *OPTIONS]))
def test_the_estimate_is_what_a_method_takes(spec, vit):
    check_estimate(count_on(vit, spec), evaluate_passes(resolve(spec), read_model_sizes(vit)))


def every_function_of_a_probe() -> Iterator[str]:
    """Every method without a fold, with options, and some with a fold that reads all layers.

    Of `bayes`, only the form without a prior reads nothing but logits; its estimate has a pass more.
    """
    for spec in dict.fromkeys([*every_fold(), *OPTIONS]):
        if resolve(spec).fold is None and "prior='none'" not in spec:
            yield spec
    yield from ("ixg", "rollout", "genatt", "smoothgrad(samples=12)+plus", "ig(steps=12)+plus")


@each("spec", every_function_of_a_probe())
def test_a_benchmark_computes_the_logits_of_an_image_once(spec, vit):
    ahead, back, _ = estimate_passes([spec], Evaluation(metrics=()), vit)
    check_estimate(count_on(vit, spec, in_benchmark=True), (ahead, back))


@each("metric", ["deletion_accuracy", "deletion(steps=8)", "positive_auc", "saco", "idsds"])
def test_metrics_share_the_logits_of_the_image(metric, vit):
    estimated = estimate_passes(["random"], Evaluation(metrics=(metric,)), vit)
    assert estimated == (*count_on(vit, "random", metric, in_benchmark=True), [])


@each("spec", ["smoothgrad", "ig"])
def test_paths_of_every_layer_run_the_blocks_above_it(spec, vit):
    samples = {"smoothgrad": "samples", "ig": "steps"}[spec]
    sizes = {**read_model_sizes(vit), "layers": 12, "depth": 12}
    assert evaluate_passes(resolve(f"{spec}({samples}=50)+plus"), sizes) == pytest.approx((1 + 50 * 6.5, 50 * 6.5))


def test_all_coalitions_of_few_patches_are_counted():
    vit = vitreous.load(
        "timm:vit_tiny_patch16_224", pretrained=False, img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3
    )
    counted = count_on(vit, "kernelshap")
    assert counted == (3 + 14, 0)  # of 2 x 2 patches
    check_estimate(counted, evaluate_passes(resolve("kernelshap"), read_model_sizes(vit)))


def test_biases_by_similarity_take_a_pass_for_the_part_of_every_token(vit, monkeypatch):
    parts = []
    propagate = decompose.attention_parts
    monkeypatch.setattr(decompose, "attention_parts", lambda *given: parts.append(len(given[2])) or propagate(*given))
    for fold in ("", "+last", "+plus"):
        parts.clear()
        _ = count_on(vit, f"decompx(bias='norm'){fold}")
        estimated = evaluate_passes(resolve(f"decompx(bias='norm'){fold}"), read_model_sizes(vit))
        check_estimate((1 + sum(parts) / vit.depth, 0), estimated)


def test_a_fold_of_another_package_is_counted_at_every_layer(vit):
    @vitreous.fold("strongest", reach=lambda depth: 1)
    def strongest(layers, signal):
        return max((read_token_scores(layer, signal(layer)) for layer in layers), key=lambda score: score.max())

    try:
        spec = "smoothgrad(samples=12)+strongest"
        check_estimate(count_on(vit, spec), evaluate_passes(resolve(spec), read_model_sizes(vit)))
    finally:
        FOLDS.discard("strongest")


@each("spec", UNKNOWN)
def test_passes_that_depend_on_the_image_are_not_estimated(spec, vit):
    assert evaluate_passes(resolve(spec), read_model_sizes(vit)) is None


# ── models of which less is known ────────────────────────────────────────────────────────────────


class SmallNetwork(nn.Module):
    """Mean of convolved patches."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 8, 4), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def count_calls(model: BlackBox, spec: str) -> int:
    """Images that the module computes for the map of one."""
    rows = []
    hook = model.module.register_forward_pre_hook(lambda module, given: rows.append(len(given[0])))
    try:
        generator = torch.Generator().manual_seed(1)
        image = torch.randn(1, 3, *read_model_sizes(model)["size"], generator=generator)
        resolve(spec).for_model(model)(probe_of(model, image, torch.tensor([1])))
    finally:
        hook.remove()
    return sum(rows)


IN_PIXELS = (
    "occlusion",
    "occlusion(window=19)",
    "occlusion(window=19, stride=11)",
    "rise(masks=12)",
    "pami",
    "pami(regions='circles', stride=9)",
    "hsic(masks=12)",
    "lime(samples=12)",
    "kernelshap(samples=12, regions='slic')",
    "smoothgrad(samples=12)",
    "ig(steps=12)",
    "random",
)


@each("spec", IN_PIXELS)
def test_the_estimate_of_a_black_box_is_what_a_method_takes(spec):
    model = replace(vitreous.wrap(SmallNetwork().eval(), black_box=True), size=(56, 48))
    estimated = count_method_passes(resolve(spec), model, read_model_sizes(model))
    assert estimated is not None
    check_estimate((count_calls(model, spec), estimated[1]), estimated)
    assert estimate_passes([spec], Evaluation(metrics=()), model) == (*estimated, [])


@each("spec", [*IN_PIXELS, "gradcam", "ixg+plus"])
def test_the_estimate_of_a_network_is_what_a_method_takes(spec, network):
    estimated = count_method_passes(resolve(spec), network, read_model_sizes(network))
    assert estimated is not None
    count_calls(network, spec)  # the first pass of its kind is checked for completeness, by further ones
    check_estimate((count_calls(network, spec), estimated[1]), estimated)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    swin = {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 1), "img_size": 64, "window_size": 2, "num_classes": 5}
    timm = pytest.importorskip("timm")
    return vitreous.wrap(timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, **swin).eval())


def test_a_network_has_the_sizes_that_it_was_examined_at(network):
    network = replace(network, preprocess=vitreous.Preprocess((96, 96)))
    assert read_model_sizes(network)["size"] == (64, 64)


def test_a_method_that_needs_more_than_the_model_has_is_unknown():
    model = vitreous.wrap(SmallNetwork().eval(), black_box=True)
    assert estimate_passes(["genatt"], Evaluation(metrics=()), model) == (1, 0, ["genatt"])
