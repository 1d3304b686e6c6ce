"""One forward pass and one backward pass per target, as far as the fold iterates; held and recomputed graphs agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from torch import nn

from tests.cases import each
from tests.models.families import build, pictures, seen, tiny
from vitreous.capture import probe as probing
from vitreous.capture.linearise import LIBRA
from vitreous.capture.probe import Probe
from vitreous.core.errors import ShapeError
from vitreous.methods.spec import resolve
from vitreous.models.timm import from_timm

SPECS = [
    "ixg",
    "decompx+skipplus",
    "fullgrad@libra+plus",
    "fullgrad+skipplus(biases='repeat')",
    "gradcam(preset='grad-cam')",
    "genatt",
    "genatt@attnlrp+plus",
    "attcat(pair='output')",
    "tokentm",
    "rollout",
    "alti+plus",
    "vanillagrad(space='pixels')",
]
FAMILIES = ("vit", "vit-mean", "siglip", "beit", "eva02", "dinov3")
SOME = each("family", FAMILIES)
# a sum over layers and a roll-out of every family; every other method of two families
PAIRS = [(family, spec) for spec in ("decompx+skipplus", "genatt") for family in FAMILIES]
PAIRS += [
    (FAMILIES[(place + shift) % 6], spec)
    for place, spec in enumerate(SPECS)
    for shift in (0, 3)
    if spec not in ("decompx+skipplus", "genatt")
]


# ── kept or recomputed ───────────────────────────────────────────────────────────────────────────


@each("family, spec", PAIRS)
def test_held_recomputed_and_automatic_graphs_agree(family: str, spec: str) -> None:
    targets = torch.tensor([[1, 4], [3, 0]])

    kept, streamed, chosen = (
        resolve(spec)(Probe(seen(family), pictures(), targets, hold=hold)) for hold in (True, False, None)
    )

    torch.testing.assert_close(streamed.patches, kept.patches, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(chosen.patches, kept.patches, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("spec", SPECS)
def test_without_memory_it_streams_with_the_same_numbers(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = resolve(spec)(Probe(seen("vit-even"), pictures(), hold=True))
    monkeypatch.setattr(probing, "free_bytes", lambda device: 0.0)

    streamed = resolve(spec)(Probe(seen("vit-even"), pictures()))

    torch.testing.assert_close(streamed.patches, kept.patches, rtol=1e-13, atol=1e-15)


# ── number of passes ──────────────────────────────────────────────────────────────────────────────


@contextmanager
def counting(model: nn.Module) -> Iterator[tuple[Counter[str], Counter[str]]]:
    """Forward and backward passes through each block (by its MLP's first layer) and through the head."""
    forwards, backwards, handles = Counter[str](), Counter[str](), []
    parts = {f"block {i}": block.mlp.fc1 for i, block in enumerate(model.blocks)} | {"head": model.head}
    for name, part in parts.items():
        handles.append(part.register_forward_hook(lambda *_, name=name: forwards.update([name])))
        handles.append(part.register_full_backward_hook(lambda *_, name=name: backwards.update([name])))
    yield forwards, backwards
    for handle in handles:
        handle.remove()


ONCE = {"block 0": 1, "block 1": 1, "block 2": 1, "block 3": 1, "head": 1}


@pytest.mark.parametrize("spec", ["ixg", "decompx+plus", "genatt", "fullgrad+plus", "tokentm"])
def test_several_targets_share_the_forward(spec: str) -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (forwards, backwards):
        resolve(spec)(Probe(vit, pictures(), torch.tensor([[0, 1, 2], [3, 4, 0]]), hold=True))

    assert forwards == ONCE
    assert backwards == dict.fromkeys(ONCE, 3)


@pytest.mark.parametrize("hold", [True, None])
def test_the_predicted_class_needs_no_extra_forward(hold: bool | None) -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (forwards, backwards):
        resolve("genatt")(Probe(vit, pictures(), hold=hold))

    assert forwards == backwards == ONCE


def test_streaming_runs_every_block_once_more() -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (forwards, backwards):
        resolve("genatt")(Probe(vit, pictures(), torch.tensor([0, 1]), hold=False))

    assert {name: n for name, n in forwards.items() if name != "head"} == {f"block {i}": 2 for i in range(4)}
    assert backwards == ONCE


@pytest.mark.parametrize("hold", [True, False, None])
@pytest.mark.parametrize(
    ("spec", "lowest"),
    [("decompx+skipplus", 2), ("genatt+last", 3), ("ixg+at(layer=1)", 1), ("genatt(start=1)", 1), ("gradcam", 3)],
)
def test_the_backward_pass_stops_where_the_fold_does(spec: str, lowest: int, hold: bool | None) -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (_, backwards):
        resolve(spec)(Probe(vit, pictures(), torch.tensor([0, 1]), hold=hold))

    assert backwards == {"head": 1} | {f"block {i}": 1 for i in range(lowest, 4)}


def test_the_backward_pass_runs_only_as_far_as_the_fold_iterates() -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (_, backwards):
        layers = Probe(vit, pictures(), torch.tensor([0, 1])).layers()
        next(layers)
        next(layers)

    assert backwards == {"head": 1, "block 3": 1, "block 2": 1}


@pytest.mark.parametrize("spec", ["rawattention", "rollout", "attin", "globenc", "alti", "attnfrom"])
def test_class_agnostic_methods_run_no_backward(spec: str) -> None:
    model = build("vit-even")
    vit = from_timm(model)

    with counting(model) as (forwards, backwards):
        found = resolve(spec)(Probe(vit, pictures(), torch.tensor([[0, 1], [2, 3]]), hold=True))

    assert forwards == ONCE
    assert not backwards
    torch.testing.assert_close(found.patches[0], found.patches[1], rtol=0, atol=0)  # one map, for both classes
    assert found.targets.tolist() == [0, 1, 2, 3]


def test_no_attention_matrix_is_built_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("softmax")

    monkeypatch.setattr(torch.Tensor, "softmax", forbidden)

    assert resolve("decompx+plus")(Probe(seen("vit"), pictures())).patches.isfinite().all()
    with pytest.raises(AssertionError, match="softmax"):
        resolve("genatt")(Probe(seen("vit"), pictures()))


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


@each("family, spec", PAIRS)
def test_several_targets_are_several_runs(family: str, spec: str) -> None:
    targets = torch.tensor([[1, 4, 1], [3, 0, 2]])
    together = resolve(spec)(Probe(seen(family), pictures(), targets))

    alone = [resolve(spec)(Probe(seen(family), pictures(), column.contiguous())) for column in targets.T]

    for image in range(2):
        for k, one in enumerate(alone):
            row = together[3 * image + k]
            torch.testing.assert_close(row.patches[0], one.patches[image], rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(row.score[0], one.score[image], rtol=1e-12, atol=1e-15)
            assert row.targets.item() == targets[image, k]


@each("family, spec", PAIRS)
def test_an_image_is_explained_alone_as_in_company(family: str, spec: str) -> None:
    targets = torch.tensor([1, 3, 0])
    together = resolve(spec)(Probe(seen(family), pictures(3), targets))

    alone = [resolve(spec)(Probe(seen(family), pictures(3)[i : i + 1], targets[i : i + 1])).patches for i in (2, 0, 1)]

    torch.testing.assert_close(together.patches[torch.tensor([2, 0, 1])], torch.cat(alone), rtol=1e-10, atol=1e-13)


def test_without_targets_the_predicted_class_is_explained() -> None:
    predicted = tiny("vit")(pictures()).argmax(-1)

    found = resolve("ixg")(Probe(seen("vit"), pictures()))

    assert torch.equal(found.targets, predicted)
    torch.testing.assert_close(found.patches, resolve("ixg")(Probe(seen("vit"), pictures(), predicted)).patches)


# ── states ────────────────────────────────────────────────────────────────────────────────────────


@SOME
def test_states_are_the_inputs_of_all_blocks_and_the_last_output(family: str) -> None:
    model, entered = build(family), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    model.norm.register_forward_pre_hook(lambda module, args: entered.append(args[0]))
    model(pictures())

    states = Probe(seen(family), pictures()).states

    assert len(states) == 4
    for state, own in zip(states, entered, strict=True):
        torch.testing.assert_close(state, own, rtol=1e-12, atol=1e-12)
        assert not state.requires_grad


@SOME
def test_layers_come_from_the_last_to_the_first_and_fit_together(family: str) -> None:
    layers = list(Probe(seen(family), pictures()).layers(LIBRA, normed=True))

    assert [layer.index for layer in layers] == [2, 1, 0]
    for upper, lower in pairwise(layers):
        torch.testing.assert_close(lower.output, upper.hidden)
        torch.testing.assert_close(lower.output_grad, upper.hidden_grad)
    for layer in layers:
        torch.testing.assert_close(layer.attention.sum(-1), torch.ones_like(layer.attention[..., 0]))
        assert not any(
            t.requires_grad for t in (layer.hidden, layer.normed, layer.mid, layer.output, layer.value, layer.attention)
        )


def test_results_are_shared_by_later_methods() -> None:
    model = build("vit-even")
    probe = Probe(from_timm(model), pictures())
    resolve("genatt")(probe)

    with counting(model) as (forwards, _):
        _ = probe.states, probe.full_logits, probe.head_output
        asked_again = probe.with_score_function("probability")
        _ = asked_again.full_logits

    assert not forwards


def test_a_probe_can_be_moved_to_other_images() -> None:
    probe, others = Probe(seen("vit"), pictures(), question="margin"), pictures(2, seed=9)

    moved = probe.with_images(others)

    expected = Probe(seen("vit"), others, probe.targets, "margin")
    assert torch.equal(moved.targets, probe.targets)  # the classes of the first images, not of the others
    torch.testing.assert_close(resolve("ixg")(moved).patches, resolve("ixg")(expected).patches)


def test_on_keeps_several_targets_per_image() -> None:
    targets = torch.tensor([[0, 1], [2, 3]])

    moved = Probe(seen("vit"), pictures(), targets).with_images(pictures(2, seed=9))

    assert moved.targets.tolist() == [0, 1, 2, 3]
    assert moved.targets_per_image == 2


def test_on_takes_as_many_images_as_there_were() -> None:
    probe = Probe(seen("vit"), pictures(), torch.tensor([[0, 1], [2, 3]]))

    with pytest.raises(ShapeError, match="2 images, not 4"):  # whose classes would the others' be?
        probe.with_images(pictures(4))


def test_images_that_require_gradients_are_not_modified() -> None:
    images = pictures().clone().requires_grad_()

    found = resolve("vanillagrad_norm(space='pixels')")(Probe(seen("vit"), images))

    assert images.grad is None
    assert not found.patches.requires_grad


@pytest.mark.parametrize("spec", ["ixg", "genatt", "fullgrad@libra", "attnlrp"])
def test_explaining_works_where_gradients_are_switched_off(spec: str) -> None:
    switched_on = resolve(spec)(Probe(seen("vit"), pictures()))

    with torch.no_grad():
        switched_off = resolve(spec)(Probe(seen("vit"), pictures()))

    torch.testing.assert_close(switched_off.patches, switched_on.patches, rtol=0, atol=0)
