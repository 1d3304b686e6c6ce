"""Every metric of the registry passes the contract tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vitreous
from tests.cases import each
from vitreous.capture.probe import Probe
from vitreous.metrics.metric import METRICS, resolve_metric
from vitreous.testing import ContractError, check_metric
from vitreous.testing.synthetic_models import additive_vit, make_additive_batch, make_reexplained_batch

NAMES = [facts["name"] for facts in vitreous.list_metrics()]
MORE = [
    "pointing_game(tolerance=3)",
    "pointing_game(of='boxes')",
    "energy_pointing(of='boxes')",
    "ap(preset='skipplus')",
    "class_discrimination(by='mass')",
    "sparseness(of='native')",
    "entropy(normalised=False)",
    "completeness_error(relative=True)",
    "parameter_randomisation(order='cascade', stages=3, sign='abs')",
]


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        *((spec, torch.float64) for spec in NAMES + MORE),
        *((spec, torch.float32) for spec in NAMES),
    ],
)
def test_every_metric_keeps_its_promises(spec, dtype):
    metric = resolve_metric(spec)
    if spec == "class_discrimination(by='mass')":
        metric = replace(metric, affine_invariant=False)  # the fact is of its own setting

    assert len(check_metric(metric, dtype)) >= 7


@pytest.mark.shapes
@each("spec", NAMES + MORE)
def test_every_metric_keeps_the_shapes_that_it_annotates(spec):
    metric = resolve_metric(spec)
    metric = metric.with_options(**{key: value for key, value in metric.trial.items() if key not in metric.options})
    world = make_reexplained_batch() if "method" in metric.needs else make_additive_batch()

    assert world.measured(metric).scores.shape == (len(world),)


def test_the_adder_model_adds_its_inputs():
    world = make_additive_batch()
    probe = Probe(world.vit, world.images, world.targets)
    shares = 2 * world.maps.patches
    keep = torch.rand(len(world), 5, 16, generator=torch.Generator().manual_seed(0)) > 0.5
    signs = torch.where(world.targets == 1, 1.0, -1.0)

    torch.testing.assert_close(probe.full_logits, world.vit.forward(world.images))
    kept = (shares[:, None] * keep).sum(-1) * signs[:, None]
    torch.testing.assert_close(probe.logits(keep).diff(dim=-1)[..., 0], kept)
    assert (probe.full_logits.argmax(-1) == world.targets).all()
    assert (world.maps.residual.abs() < 1e-12).all()
    assert additive_vit(torch.float32).dtype == torch.float32


def break_with(sentence: str, function, **facts) -> None:
    """A metric that violates its contract is reported with these words."""
    made = vitreous.metric("broken", **{"higher_is_better": True, **facts})(function)
    try:
        with pytest.raises(ContractError, match=sentence):
            check_metric(made)
    finally:
        METRICS.discard("broken")


def test_each_contract_test_can_fail():
    def total(attribution):
        return attribution.patches.sum(-1)

    break_with(r"it promises \[0, 1\] and gives", total, bounds=(0, 1))
    break_with("its scores are", lambda attribution: total(attribution)[:2])
    break_with("it has no number for any map", lambda attribution: total(attribution) * torch.nan)
    break_with("score differently", lambda attribution: total(attribution) + len(attribution))
    break_with("two runs give", lambda attribution: total(attribution) + torch.rand(()))
    break_with("scores 0", lambda attribution: total(attribution).nan_to_num(0))
    break_with("the wrong map scores as well", lambda attribution: attribution.patches.norm(dim=-1))
    break_with("shuffled map scores better", lambda attribution: attribution.patches[:, 12] + total(attribution))
    break_with(r"4·map \+ 1 scores differently", mass_on, affine_invariant=True)


def mass_on(attribution, objects):
    inside = objects.flatten(1).to(attribution.patches)
    found = (attribution.pixels().flatten(1) * inside).sum(-1)
    return found.where(inside.any(-1), torch.nan)


def test_a_metric_that_reads_ties_in_the_order_of_the_patches_is_caught():
    def first_removed(attribution, probe):
        order = attribution.patches.argsort(dim=-1, descending=True, stable=True)
        gone = torch.zeros_like(attribution.patches, dtype=torch.bool).scatter(1, order[:, :4], True)
        left = probe.score(~gone[:, None])[:, 0]
        return (-left).where(~attribution.patches.isnan().any(-1), torch.nan)

    break_with("with the evidence first", first_removed)


def test_a_metric_that_changes_its_map_or_its_model_is_caught():
    def paints(attribution):
        found = attribution.patches.sum(-1)
        attribution.patches.mul_(2)
        return found

    def meddles(attribution, probe):
        probe.vit.module.weight.data += 1
        return attribution.patches.sum(-1)

    def depends_on_pieces(attribution, probe):
        return attribution.patches.sum(-1) + probe.images_that_fit

    break_with("it changes the map", paints)
    break_with("it changes the model", meddles)
    break_with("size of the pieces", depends_on_pieces)


def test_a_row_without_its_object_must_be_undefined():
    def counts_nothing(attribution, objects):
        return mass_on(attribution, objects).nan_to_num(0) + 0 * attribution.patches.sum(-1)

    break_with("an image without objects scores 0", counts_nothing)
