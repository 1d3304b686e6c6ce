"""Shapley values and removal orders of 16 patches by all subsets, from public implementations, and intervals of estimates."""

from __future__ import annotations

import pytest
import torch

from tests.methods.test_goldens import Golden, golden
from tests.metrics.test_metric_goldens import agrees, probe_of
from tests.metrics.test_removal_orders import map_of, stored
from vitreous.capture.packed import outputs_of_subsets
from vitreous.capture.probe import Probe
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric

__all__ = ["golden"]  # the fixture serves here too

CASES = {"tiny_cls": ("shapley_exact_drop", "tokens", 1), "tiny_reg": ("shapley_exact_zero", "pixels", 64)}


@pytest.fixture(scope="module", params=list(CASES))
def exact(request, goldens):
    """Probe of two images, the space of the case, pixels per score, and exact Shapley values [2 16]."""
    golden = Golden(goldens, request.param, goldens / "models" / f"{request.param}.safetensors")
    file, space, pixels = CASES[request.param]
    probe = Probe(golden.vit, golden.images[:2].to(golden.vit.dtype), golden.targets["top"][:2], "probability")
    return probe, space, pixels, torch.from_numpy(golden.arrays(file)["shapley"])


class SubsetTable:
    """The model's outputs for all subsets of 16 patches of an image, computed together at the first request.

    It stands in for `outputs_of_subsets`, which computes the table.
    """

    def __init__(self) -> None:
        self.tokens = self.outputs = None

    def __call__(self, vit, tokens, layout, keep, room, read=None):
        powers = 2 ** torch.arange(16)
        if self.tokens is None or not torch.equal(self.tokens, tokens):
            subsets = (torch.arange(2**16)[:, None] & powers).bool()
            pieces = subsets[None].split(256, dim=1)  # small chunks stay in the CPU cache
            outputs = [outputs_of_subsets(vit, tokens, layout, piece, room)[0] for piece in pieces]
            self.tokens, self.outputs = tokens, torch.cat(outputs)
        outputs = self.outputs[(keep * powers).sum(-1)]
        if read is None:
            return outputs
        rows = torch.arange(len(keep)).repeat_interleave(keep.shape[1])
        return read(outputs.flatten(0, 1), rows).unflatten(0, keep.shape[:2])


SUBSETS = SubsetTable()


@pytest.mark.slow
@pytest.mark.parametrize("golden", ["tiny_cls"], indirect=True)
def test_exact_limits_agree(golden, monkeypatch):
    """All 65,536 subsets of tokens; of subsets of pixels the search is the same."""
    monkeypatch.setattr("vitreous.capture.probe.outputs_of_subsets", SUBSETS)
    reference, probe = stored(golden, "metric_naopc"), probe_of(golden, 1)
    metric = resolve_metric("naopc(beam=None, remove='tokens')")
    measured = metric(map_of(golden, "ixg_plus", probe), probe=probe)

    agrees(golden, "metric_naopc", measured.parts["upper"], reference["drop_exact_upper"][:1])
    agrees(golden, "metric_naopc", measured.parts["lower"], reference["drop_exact_lower"][:1])


@pytest.mark.slow
def test_all_coalitions_give_the_exact_values(exact, monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.outputs_of_subsets", SUBSETS)
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
def test_intervals_of_bayes_contain_the_value_with_many_samples(exact, monkeypatch):
    monkeypatch.setattr("vitreous.capture.probe.outputs_of_subsets", SUBSETS)
    probe, space, _, _ = exact
    if space == "pixels":
        pytest.skip("bayes removes tokens; the same model class is tested with them")
    probe = probe.for_image(0)  # which the table has
    limit = resolve("bayes(samples=8192, seed=100)")(probe)
    for samples in (64, 256):
        inside = []
        for seed in range(24):
            found = resolve(f"bayes(samples={samples}, seed={seed})")(probe)
            inside.append((found.patches - limit.patches).abs() <= 1.96 * (found.stderr**2 + limit.stderr**2).sqrt())
        assert 0.9 < torch.stack(inside).double().mean() < 0.99
