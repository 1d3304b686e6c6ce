"""Straightforward implementations agree with the library, and baselines run as many sequences of the same lengths as the library."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

import vitreous
from tests.models.families import pictures, seen, tiny

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from suite import image_metrics, research, sampled, standins
from suite import workload as workloads

FAMILIES = ("vit", "vit-even", "vit-mean", "vit-registers-mean", "eva-large")
TARGET = 3


@pytest.fixture(scope="module")
def workload():
    return workloads.make_workload("test", batch=3)


def ours(family: str, spec: str, with_prefix: bool = True) -> Tensor:
    found = vitreous.explain(seen(family), pictures(), TARGET, spec)
    return torch.cat([found.prefix, found.patches], 1) if with_prefix else found.patches


def same(found: list[Tensor], wanted: Tensor) -> None:
    for one, row in zip(found, wanted, strict=True):
        assert (one - row).abs().max() <= 1e-9 * row.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("restart", [True, False])
def test_explicit_decompx_equals_one_backward(family, restart):
    wanted = ours(family, "decompx+skipplus")

    same([research.compute_decompx(tiny(family), one, TARGET, restart=restart) for one in pictures()], wanted)


def test_sources_may_go_a_few_at_a_time():
    model, picture = tiny("vit-even"), pictures()[0]
    whole = research.compute_decompx(model, picture, TARGET)

    some = torch.tensor([7, 0, 3])

    same([research.compute_decompx(model, picture, TARGET, chunk=5)], whole[None])
    same([research.compute_decompx(model, picture, TARGET, sources=some, chunk=2)], whole[None, some])


@pytest.mark.slow
def test_lengths_beyond_float32_are_compared_in_float64():
    deep = workloads.make_workload("test", batch=1, depth=24, embed_dim=192)
    for one in deep.model.blocks:
        one.attn.proj.weight.mul_(1000)

    assert research.compute_globenc(deep.model, deep.images[0]).isinf().all()
    assert standins.compare_globenc(deep) > 0.9999


@pytest.mark.parametrize("family", FAMILIES)
def test_lengths_of_vectors_are_quadratic_forms(family):
    same([research.compute_globenc(tiny(family), one) for one in pictures()], ours(family, "globenc"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at_once", [1, 16])
def test_tis_of_one_image_is_tis(family, at_once):
    wanted = ours(family, "tis(masks=20)", with_prefix=False)

    same([research.compute_tis(tiny(family), one, TARGET, 20, at_once=at_once) for one in pictures()], wanted)


# ── half precision ───────────────────────────────────────────────────────────────────────────────


def test_precisions_are_compared_on_the_same_subsets(workload, monkeypatch):
    monkeypatch.setattr(sampled, "convert_to_bfloat16", lambda vit: vit)

    for work in (*sampled.list_methods(workload, workload.images[:1], 8), *sampled.list_metrics(workload)):
        assert sampled.measure_agreement(work, workload.vit, workload.images) == pytest.approx(1)


def test_without_weights_of_this_size_the_smallest_as_trained_is_compared(workload, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        sampled.vitreous, "load", lambda name, checkpoint, device: asked.append((name, checkpoint.name))
    )
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / "vit_tiny_patch16_224.some.safetensors"
    file.touch()
    monkeypatch.setenv("VITREOUS_ASSETS", str(tmp_path))

    assert sampled.load_trained(workload)[0] == "ti"
    assert asked == [("timm:vit_tiny_patch16_224", file.name)]
    monkeypatch.delenv("VITREOUS_ASSETS")
    assert sampled.load_trained(workload) == ("test", None)


# ── floors ───────────────────────────────────────────────────────────────────────────────────────


class Attended(TorchFunctionMode):
    """Counts the sequences of each length in attention, and the tokens of the first MLP."""

    def __init__(self, first_weight: Tensor) -> None:
        super().__init__()
        self.first_weight = first_weight
        self.sequences: Counter[int] = Counter()
        self.tokens = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.sequences[args[0].shape[2]] += len(args[0])
        if func is F.linear and args[1] is self.first_weight:
            self.tokens += args[0].shape[:-1].numel()
        return func(*args, **(kwargs or {}))


def seen_by(workload: workloads.Workload, work: Callable[[], object]) -> tuple[Counter[int], int]:
    with Attended(workload.model.blocks[0].mlp.fc1.weight) as mode:
        work()
    return mode.sequences, mode.tokens


def test_the_floor_is_the_work_that_is_done(workload, subtests):
    cases = [
        case
        for case in (*sampled.cases(workload), *image_metrics.cases(workload))
        if case.against == "its bare forwards"
    ]

    assert len({case.what for case in cases}) == len(cases) > 10
    for case in cases:
        with subtests.test(case=case.what):
            ours, theirs = seen_by(workload, case.ours), seen_by(workload, case.theirs)

            assert ours == theirs
            assert ours[1] > 0
            assert sum(length * count for length, count in ours[0].items()) == ours[1] * workload.vit.depth
