"""Shapley values of 16 patches by all coalitions, from a public implementation, and intervals around estimates of them."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_goldens import Golden
from vitreous.capture.probe import Probe
from vitreous.methods.spec import resolve

CASES = {"tiny_cls": ("shapley_exact_drop", "tokens", 1), "tiny_reg": ("shapley_exact_zero", "pixels", 64)}


@pytest.fixture(scope="module", params=list(CASES))
def exact(request, goldens):
    """Probe of two images, the space of the case, pixels per score, and exact Shapley values [2 16]."""
    golden = Golden(goldens, request.param, goldens / "models" / f"{request.param}.safetensors")
    file, space, pixels = CASES[request.param]
    probe = Probe(golden.vit, golden.images[:2].to(golden.vit.dtype), golden.targets["top"][:2], "probability")
    return probe, space, pixels, torch.from_numpy(golden.arrays(file)["shapley"])


@pytest.mark.slow
def test_all_coalitions_give_the_exact_values(exact):
    probe, space, _, shapley = exact
    if space == "pixels":
        pytest.skip("65,534 images; the solver is the same")
    found = resolve("kernelshap(samples=65536)")(probe.for_image(0))
    torch.testing.assert_close(found.patches, shapley[:1], rtol=1e-7, atol=1e-8 * shapley.abs().max().item())
    assert (found.stderr == 0).all()


@pytest.mark.slow
def test_intervals_of_kernelshap_contain_the_exact_values(exact):
    probe, space, pixels, shapley = exact
    inside = []
    for seed in range(8):
        found = resolve(f"kernelshap(samples=300, space='{space}', seed={seed})")(probe)
        inside.append((found.patches - pixels * shapley).abs() <= 1.96 * found.stderr)
    assert 0.92 < torch.stack(inside).double().mean() < 0.98


@pytest.mark.slow
def test_intervals_of_bayes_contain_what_many_samples_say(exact):
    probe, space, _, _ = exact
    if space == "pixels":
        pytest.skip("bayes removes tokens; the same model class is tested with them")
    limit = resolve("bayes(samples=8192, seed=100)")(probe)
    for samples in (64, 256):
        inside = []
        for seed in range(12):
            found = resolve(f"bayes(samples={samples}, seed={seed})")(probe)
            inside.append((found.patches - limit.patches).abs() <= 1.96 * (found.stderr**2 + limit.stderr**2).sqrt())
        assert 0.9 < torch.stack(inside).double().mean() < 0.99
