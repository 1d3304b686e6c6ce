"""SRG, SaCo and NAOPC: the stored reference outputs, and slow forms of their formulas."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from tests.methods.test_goldens import Golden, golden
from tests.metrics.test_metric_goldens import TOKEN_MAPS, agrees, pixel_map, probe_of
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric
from vitreous.testing.synthetic_models import make_additive_batch

__all__ = ["golden"]  # the fixture serves here too


def map_of(golden: Golden, name: str, probe: Probe) -> Attribution:
    file, key = TOKEN_MAPS[name]
    patches = torch.from_numpy(golden.arrays(file)[key][: probe.rows]).double()
    return Attribution(patches=patches, layout=probe.layout, targets=probe.targets, method=name, signed=True)


def stored(golden: Golden, file: str) -> dict[str, np.ndarray]:
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    return golden.arrays(file)


@pytest.mark.parametrize("name", TOKEN_MAPS)
def test_srg_agrees_with_pixel_flipping(golden, name):
    reference, probe = stored(golden, "metric_srg"), probe_of(golden, 4)
    for grid in ("linear", "log"):
        levels = tuple(reference[f"fraction_{grid}"].tolist())
        for of, end in (("probability", ""), ("logit", "_logit")):
            measured = resolve_metric("srg").with_options(levels=levels, of=of)(
                map_of(golden, name, probe), probe=probe
            )
            agrees(golden, "metric_srg", measured.scores, reference[f"{name}_{grid}_srg{end}"])
            difference = reference[f"{name}_{grid}_lif{end}"] - reference[f"{name}_{grid}_mif{end}"]
            agrees(golden, "metric_srg", measured.curve, difference)
    whole = resolve_metric("srg")(map_of(golden, name, probe), probe=probe)
    agrees(golden, "metric_srg", whole.scores, reference[f"{name}_linear_srg"])


@pytest.mark.parametrize("name", TOKEN_MAPS)
def test_saco_agrees_with_its_authors_loop(golden, name):
    reference, probe = stored(golden, "metric_saco"), probe_of(golden, 4)
    fills = {"mean": {"baseline": "mean", "space": "pixels"}, "zero": {"baseline": "black", "space": "normalised"}}
    for fill, options in fills.items():
        for groups in (4, 10):
            metric = resolve_metric("saco").with_options(groups=groups, **options)
            measured = metric(map_of(golden, name, probe), probe=probe)
            agrees(golden, "metric_saco", measured.scores, reference[f"{name}_patch_K{groups}_{fill}"])
            agrees(golden, "metric_saco", measured.curve, reference[f"{name}_patch_K{groups}_{fill}_drop"])


def test_saco_of_pixels_agrees_too(golden):
    reference, probe = stored(golden, "metric_saco"), probe_of(golden, 4)
    pixels = pixel_map(golden, "ixg_plus", 4)
    whole = replace(map_of(golden, "ixg_plus", probe), native="pixel", native_pixels=pixels)
    metric = resolve_metric("saco").with_options(unit="pixels", baseline="black", space="normalised")

    agrees(golden, "metric_saco", metric(whole, probe=probe).scores, reference["ixg_plus_pixel_K10_zero"])


@pytest.mark.slow
@pytest.mark.parametrize(("remove", "key"), [("pixels", "zero"), ("tokens", "drop")])
def test_naopc_agrees_and_its_beam_is_no_worse(golden, remove, key):
    """The limits do not depend on the map: they are searched with the whole beam once, with one order for other maps."""
    reference = {name: values[:2] for name, values in stored(golden, "metric_naopc").items()}
    probe = probe_of(golden, 2)
    if f"{key}_beam5_upper" not in reference:
        pytest.skip(f"no {key} for {golden.name}")
    cases = [(name, order) for name in TOKEN_MAPS for order in ("descending", "ascending")]
    for number, (name, order) in enumerate(cases):
        metric = resolve_metric("naopc" if number == 0 else "naopc(beam=1)").with_options(order=order, remove=remove)
        measured = metric(map_of(golden, name, probe), probe=probe)
        title = "comprehensiveness" if order == "descending" else "sufficiency"
        agrees(golden, "metric_naopc", measured.parts["aopc"], reference[f"{key}_{name}_{title}"])
        if number == 0:
            assert (measured.parts["upper"].numpy() >= reference[f"{key}_beam5_upper"] - 1e-9).all()
            assert (measured.parts["lower"].numpy() <= reference[f"{key}_beam5_lower"] + 1e-9).all()


@pytest.fixture
def world():
    return make_additive_batch()


def test_limits_are_those_of_all_orders(world):
    """Four blocks of patches have 24 orders."""
    probe = Probe(world.vit, world.images, world.targets)
    block = torch.arange(16) // 8 * 2 + torch.arange(16) % 4 // 2
    whole = probe.full_logits.softmax(-1).gather(1, world.targets[:, None])

    def aopc(order: tuple[int, ...]) -> torch.Tensor:
        keep = torch.stack([~torch.isin(block, torch.tensor(order[:k])) for k in range(1, 5)])
        left = probe.logits(keep.expand(len(world), -1, -1)).softmax(-1)
        return (whole - left.gather(2, world.targets[:, None, None].expand(-1, 4, 1))[..., 0]).mean(1)

    every = torch.stack([aopc(order) for order in permutations(range(4))])
    for beam in (None, 5):
        metric = resolve_metric("naopc").with_options(beam=beam, cells=2, remove="tokens")
        measured = metric(world.maps, probe=probe)
        torch.testing.assert_close(measured.parts["upper"], every.amax(0))
        torch.testing.assert_close(measured.parts["lower"], every.amin(0))
        assert ((measured.scores >= 0) & (measured.scores <= 1)).all()


def test_saco_is_the_pair_loop(world):
    probe = Probe(world.vit, world.images, world.targets)
    metric = resolve_metric("saco").with_options(groups=4, baseline="black", space="normalised")
    measured = metric(world.maps, probe=probe)

    for row in range(len(world)):
        scores = world.maps.patches[row].sort(descending=True).values.view(4, 4).sum(1).tolist()
        drop, above, below = measured.curve[row].tolist(), 0.0, 0.0
        for i in range(4):
            for j in range(i + 1, 4):
                above += (scores[i] - scores[j]) * (1 if drop[i] >= drop[j] else -1)
                below += abs(scores[i] - scores[j])
        assert measured.scores[row].item() == pytest.approx(above / below)


def test_maps_without_order_and_impossible_settings_are_refused(world):
    probe = Probe(world.vit, world.images, world.targets)
    flat = replace(world.maps, patches=torch.ones_like(world.maps.patches))
    undefined = replace(world.maps, patches=torch.full_like(world.maps.patches, torch.nan))

    assert resolve_metric("saco(groups=4)")(flat, probe=probe).scores.isnan().all()
    assert resolve_metric("srg")(undefined, probe=probe).scores.isnan().all()
    for spec, words in (
        ("saco(groups=17)", "groups=17; the map has 16 patches"),
        ("naopc(cells=3)", "3 x 3 blocks do not divide the 4 x 4 patches"),
    ):
        with pytest.raises(SpecError, match=words):
            resolve_metric(spec)(world.maps, probe=probe)
