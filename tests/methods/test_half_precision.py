"""`Facts.precision`: bfloat16 keeps the ranks of a method, on trained weights and photographs."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import vitreous
from tests.cases import each
from vitreous.core.errors import Caveat
from vitreous.methods.method import METHODS, Method
from vitreous.models.image_input import open_image

ROOT = Path(__file__).parents[2]
IMAGES = 5
FEWER = {"masks": 8, "samples": 48, "steps": 10, "coalitions": 2}  # errors of fewer steps do not average out
PRODUCTS = {getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm")}
CLAIMED = [name for name in METHODS if "bf16" in METHODS[name].facts.precision]


@pytest.fixture(scope="module")
def load(assets):
    (weights,) = (assets / "weights").glob("vit_tiny_patch16_224.*.safetensors")
    return lambda: vitreous.load("timm:vit_tiny_patch16_224", checkpoint=weights)


@pytest.fixture(scope="module")
def models(load):
    single, half = load(), load()
    half.module.bfloat16()
    return single, half


@pytest.fixture(scope="module")
def photographs(assets, models):
    files = sorted((assets / "imagenet-val-1k-256" / "images").iterdir())
    return models[0].preprocess.batch([open_image(file) for file in files[:: len(files) // 8][:IMAGES]])


class Bfloat16Products(TorchDispatchMode):
    """Compute products of bfloat16 tensors in float32, and round the result: what hardware with bfloat16 computes.

    Torch does the same on a CPU without bfloat16, in three times the time of a product in float32.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in PRODUCTS and args[0].dtype == torch.bfloat16:
            return func(*(tensor.float() for tensor in args), **(kwargs or {})).bfloat16()
        return func(*args, **(kwargs or {}))


def ranks(scores):
    """Ranks of each row minus their mean; ties get the mean of their ranks."""
    scores = scores.double()
    places = (scores[:, :, None] > scores[:, None]).sum(-1) + (scores[:, :, None] == scores[:, None]).sum(-1) / 2
    return places - places.mean(-1, keepdim=True)


def correlations(attribution, reference):
    """Spearman's correlation of the patch scores of every row."""
    return F.cosine_similarity(ranks(attribution.patches), ranks(reference.patches), dim=-1)


def with_fewer_draws(name: str) -> Method:
    method = METHODS[name]
    return method.with_options(**{key: value for key, value in FEWER.items() if key in method.known_options})


@pytest.mark.slow
@each("name", CLAIMED)
def test_ranks_agree_as_documented(name, models, photographs):
    single, half = models
    method = with_fewer_draws(name)
    photographs = photographs[:3] if method.facts.trial or name == "alti" else photographs  # these take long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        reference = vitreous.explain(single, photographs, method=method)  # float32 rounds 65,536 times finer
        with Bfloat16Products():
            attributions = [vitreous.explain(single, photographs, reference.targets, method, precision="bf16")]
    assert attributions[0].provenance["precision"] == "bf16"
    if method.facts.precision == "bf16 weights":
        with Bfloat16Products():
            attributions.append(vitreous.explain(half, photographs, reference.targets, method))
    for attribution in attributions:
        found = correlations(attribution, reference)
        assert found.median() >= 0.999, found
        assert found.min() >= 0.98, found


NOT_MEASURED: set[str] = set()  # methods whose ranks were not measured on a GPU yet; they are declared "float32"


def test_documented_precisions_are_those_of_the_measured_ranks():
    """The limits hold for what was measured on a GPU, and no method is kept in float32 that keeps its ranks in TF32."""
    measured = json.loads((ROOT / "benchmarks" / "results" / "h200-precision.json").read_text())["ranks"]
    rows = {row["method"]: row for row in measured if row["method"] in METHODS}
    missing = {method["name"] for method in vitreous.list_methods()} - rows.keys()
    assert missing == NOT_MEASURED, (
        f"measure the ranks of {', '.join(sorted(missing ^ NOT_MEASURED))} (CONTRIBUTING.md, Add a method); without a GPU, "
        'declare precision="float32" and add the name to NOT_MEASURED'
    )
    assert {METHODS[name].facts.precision for name in NOT_MEASURED} <= {"float32"}
    for name, row in rows.items():
        promised = METHODS[name].facts.precision
        assert (promised == "float32") == (row["tf32"]["median"] < 0.9999), name
        for mode in {"bf16": ("bf16",), "bf16 weights": ("bf16", "bf16 weights")}.get(promised, ()):
            assert row[mode]["median"] >= 0.999, (name, mode)
            assert row[mode]["min"] >= 0.98, (name, mode)


def test_methods_without_bf16_are_not_computed_in_bfloat16():
    vit = vitreous.testing.tiny_vits(torch.float32)["class token"]
    images = torch.randn(1, 3, *vit.size, generator=torch.Generator().manual_seed(0))
    for name in ("ixg", "presence", "occlusion", "kernelshap"):
        assert "bf16" not in METHODS[name].facts.precision
        method = with_fewer_draws(name)
        attribution = vitreous.explain(vit, images, 0, method, precision="bf16")
        assert attribution.provenance["precision"] == "float32"


def test_the_table_of_promises_is_up_to_date():
    spec = importlib.util.spec_from_file_location("precision_page", ROOT / "docs" / "precision_page.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.main(["--check"]) == 0
