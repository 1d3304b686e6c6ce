"""Outputs of published code on three models: token masking, TIS, RISE, Chefer's perturbation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.methods.test_goldens import Golden, golden
from vitreous.capture.probe import Probe
from vitreous.methods.attribution import Attribution
from vitreous.metrics.metric import resolve_metric
from vitreous.metrics.model_outputs import PerturbedModel
from vitreous.metrics.pixel_fills import paint_images
from vitreous.metrics.pixel_removal import output_changes, outputs_with_black_pixels
from vitreous.models.image_input import Preprocess

__all__ = ["golden"]  # the fixture serves here too

HALF = Preprocess(size=(224, 224), mean=(0.5,) * 3, std=(0.5,) * 3)
TOKEN_MAPS = {
    "ixg_plus": ("skipplus_1d_ng", "ixg_plus__top"),
    "libra_ixg_skipplus": ("skipplus_1d_libra", "ixg_skipplus__top"),
}


def probe_of(golden: Golden, count: int, dtype: torch.dtype = torch.float64) -> Probe:
    vit = replace(golden.vit, preprocess=HALF)
    if dtype != torch.float64:  # the reference ran the large model in float32 too
        import copy

        import vitreous

        vit = replace(vitreous.wrap(copy.deepcopy(golden.vit.module).to(dtype)), preprocess=HALF)
    return Probe(vit, golden.images[:count], golden.targets["top"][:count])


def agrees(golden: Golden, file: str, found: torch.Tensor | np.ndarray, reference: np.ndarray) -> None:
    tolerance = golden.entry(file)["tolerance"]
    found = np.asarray(found, dtype=np.float64)

    assert found.shape == reference.shape
    worst = (np.abs(found - reference) - tolerance["rtol"] * np.abs(reference) - tolerance["atol"]).max()
    assert worst <= 0, f"{golden.name} {file}: beyond tolerance by {worst:.2g}"


def pixel_map(golden: Golden, name: str, count: int) -> torch.Tensor:
    """The map of the reference, enlarged, stretched to [0, 1], and with the ramp that leaves no ties."""
    if name == "ixg_plus":
        patches = golden.arrays("skipplus_1d_ng")["ixg_plus__top"]
    elif golden.name == "tiny_reg":
        patches = golden.arrays("genatt_matrix")["top"][:, golden.prefix :, golden.prefix :].mean(1)
    else:
        patches = golden.arrays("genatt")["top"]
    layout = golden.vit.layout(golden.vit.size)
    patches = torch.from_numpy(patches[:count]).double().unflatten(1, layout.grid)
    pixels = F.interpolate(patches[:, None], layout.size, mode="bilinear", align_corners=False)[:, 0]
    low, high = pixels.amin((1, 2), keepdim=True), pixels.amax((1, 2), keepdim=True)
    total = pixels[0].numel()
    ramp = (torch.arange(total) * 7919 % total).double().view(layout.size) / total
    return (pixels - low) / (high - low) + 1e-6 * ramp


def attribution_of(golden: Golden, probe: Probe, pixels: torch.Tensor) -> Attribution:
    patches = torch.zeros(len(pixels), probe.layout.patches, dtype=torch.float64)
    return Attribution(patches, probe.layout, probe.targets, "given", native="pixel", native_pixels=pixels)


@pytest.mark.parametrize("name", TOKEN_MAPS)
def test_token_masking_is_reproduced(golden, name):
    file, key = TOKEN_MAPS[name]
    reference = golden.arrays("metric_token_masking")
    count = reference[f"{name}_nratio_prob_target"].shape[1]
    probe = probe_of(golden, count)
    labels = golden.targets["top"][:count]
    maps = torch.from_numpy(golden.arrays(file)[key][:count]).double()
    attribution = Attribution(maps, probe.layout, probe.targets, "given")
    memo: dict = {}

    for kind, verb, some in (("nratio", "deletion", np.s_[1:]), ("topratio", "insertion", np.s_[:-1])):
        drop = resolve_metric(f"{verb}_aopc")(attribution, probe=probe, labels=labels, memo=memo)
        hits = resolve_metric(f"{verb}_accuracy")(attribution, probe=probe, labels=labels, memo=memo)
        whole = probe.full_logits.softmax(-1).gather(1, labels[:, None])
        agrees(golden, "metric_token_masking", (whole - drop.curve[:, some]).T, reference[f"{name}_{kind}_prob_target"])
        agrees(golden, "metric_token_masking", drop.curve[:, some].mean(0), reference[f"{name}_{kind}_aopc"])
        points = drop.curve.shape[1]
        agrees(
            golden,
            "metric_token_masking",
            (drop.parts["lodds"].mean() * points / (points - 1))[None],
            reference[f"{name}_{kind}_lodds"].mean(keepdims=True),
        )
        right = reference[f"{name}_{kind}_argmax"] == labels.numpy()
        assert (hits.curve[:, some].T.numpy() == right).all()


@pytest.mark.parametrize(
    ("golden", "name"),
    [
        ("tiny_cls", "genatt"),
        ("tiny_cls", "ixg_plus"),
        ("tiny_reg", "genatt"),
        ("tiny_reg", "ixg_plus"),
        ("real", "genatt"),
    ],
    indirect=["golden"],
)
def test_insertion_and_deletion_of_tis_are_reproduced(golden, name):
    file = "metric_tis_insertion_deletion"
    reference = golden.arrays(file)
    keys = [key for key in reference if key.startswith(f"{name}_") and not key.endswith("_order")]
    count, steps = reference[keys[0]].shape
    every = 1
    if golden.name == "real":  # the small models have the batches and all steps
        count, every = 1, 4
        steps //= every
    probe = probe_of(golden, count, torch.float32 if golden.name == "real" else torch.float64)
    attribution = attribution_of(golden, probe, pixel_map(golden, name, count))
    memo: dict = {}

    for key in keys:
        verb, baseline = key.removeprefix(f"{name}_").split("_")
        metric = resolve_metric(verb, preset="tis", steps=steps, baseline=baseline)
        if baseline == "random":
            curve = with_noise(golden, probe, attribution, verb, steps, reference)
        else:
            curve = metric(attribution, probe=probe, labels=golden.targets["top"][:count], memo=memo).curve
        agrees(golden, file, curve, reference[key][:count, every - 1 :: every])


def with_noise(golden, probe, attribution, verb, steps, reference) -> torch.Tensor:
    """Use the noise of the reference instead of ours."""
    noise = []
    for i, picture in enumerate(probe.images):
        torch.manual_seed(2024 + i)
        noise.append(torch.rand_like(picture))
    rest = torch.stack(noise)
    if "random_baseline" in reference:
        assert np.abs(rest.numpy() - reference["random_baseline"][: len(rest)]).max() < 1e-12
    total = rest[0, 0].numel()
    gone = [total // steps * step for step in range(1, steps + 1)]
    counts, side = (gone, "top") if verb == "insertion" else ([total - one for one in gone], "bottom")
    said = PerturbedModel(attribution, probe).outputs_with_pixels(side, counts, paint_images(probe, rest, ("given",)))
    return said.probability("explained")[0]


def test_the_order_of_pixels_is_as_published(golden):
    from vitreous.metrics.order import pixel_ranks

    reference = golden.arrays("metric_tis_insertion_deletion")["genatt_order"].astype(np.int64)
    probe = probe_of(golden, len(reference))
    ranks = pixel_ranks(attribution_of(golden, probe, pixel_map(golden, "genatt", len(reference))), probe)

    places = torch.from_numpy(reference).argsort(-1)
    # the large model's maps are stored in float32: neighbours in the order may have changed places
    allowed, share = (1, 1e-3) if golden.name == "real" else (0, 0.0)
    assert (ranks - places).abs().max() <= allowed
    assert (ranks != places).double().mean() <= share


@pytest.mark.parametrize("name", ["genatt", "ixg_plus"])
def test_insertion_and_deletion_of_rise_are_reproduced(golden, name):
    file = "metric_rise_causal"
    reference = golden.arrays(file)
    if f"{name}_deletion" not in reference:
        pytest.skip(f"no {name} for {golden.name}")
    count, points = reference[f"{name}_deletion"].shape
    count = 1 if golden.name == "real" else count  # the small models have the batches
    probe = probe_of(golden, count, torch.float32 if golden.name == "real" else torch.float64)
    attribution = attribution_of(golden, probe, pixel_map(golden, name, count))

    for verb in ("deletion", "insertion"):
        found = resolve_metric(verb, preset="rise", steps=points - 1)(attribution, probe=probe)
        agrees(golden, file, found.curve, reference[f"{name}_{verb}"][:count])
        agrees(golden, file, found.scores, reference[f"{name}_{verb}_auc"][:count])


@pytest.mark.parametrize("name", ["genatt", "ixg_plus"])
def test_perturbation_of_chefer_is_reproduced(golden, name):
    file = "metric_chefer_perturbation"
    reference = golden.arrays(file)
    if f"{name}_pos_perturbations_hits" not in reference:
        pytest.skip(f"no {name} for {golden.name}")
    levels, count = reference[f"{name}_pos_perturbations_hits"].shape
    probe = probe_of(golden, count, torch.float32 if golden.name == "real" else torch.float64)
    labels = golden.targets["top"][:count]
    attribution = attribution_of(golden, probe, pixel_map(golden, name, count))
    memo: dict = {}

    for short, verb, order in (("pos", "positive_auc", "descending"), ("neg", "negative_auc", "ascending")):
        found = resolve_metric(verb, preset="chefer")(attribution, probe=probe, labels=labels, memo=memo)
        agrees(golden, file, found.curve.T, reference[f"{name}_{short}_perturbations_hits"])
        said = outputs_with_black_pixels(
            PerturbedModel(attribution, probe, labels, memo), tuple(r / 10 for r in range(1, levels + 1)), order
        )
        for key, part in (
            ("prob_diff", "probability_change"),
            ("logit_diff", "logit_change"),
            ("dissimilarities", "lead"),
        ):
            stored = reference[f"{name}_{short}_perturbations_{key}"]
            agrees(golden, file, output_changes(said, "label")[part].T, stored)
            agrees(golden, file, found.parts[part], stored.mean(0))
