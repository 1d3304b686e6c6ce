"""Logits with only some of the patches in the encoder."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.capture.masked import logits_with_masked_keys
from tests.cases import each
from tests.models.families import FAMILIES, pictures, seen, tiny
from vitreous.capture import packed
from vitreous.capture import probe as probing
from vitreous.capture.packed import run_packed
from vitreous.capture.probe import Probe
from vitreous.core.errors import ShapeError

EVERY = each("family", FAMILIES)


def subsets(count: int = 5, patches: int = 12, images: int = 2, seed: int = 3) -> Tensor:
    """Subsets of many sizes, at least one patch in each."""
    draws = torch.rand(images, count, patches, generator=torch.Generator().manual_seed(seed))
    threshold = torch.linspace(0.15, 0.95, count)[:, None]
    return (draws < threshold) | (draws == draws.amin(-1, keepdim=True))


def own_two_sides(logits: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(logits), logits], -1) if logits.shape[-1] == 1 else logits


def masked(family: str, images: Tensor, keep: Tensor) -> Tensor:
    rows = [[logits_with_masked_keys(tiny(family), i, k) for k in ks] for i, ks in zip(images, keep, strict=True)]
    return own_two_sides(torch.stack([torch.stack(row) for row in rows]))


@EVERY
def test_a_removed_patch_equals_a_masked_patch(family: str) -> None:
    keep = subsets()

    said = Probe(seen(family), pictures()).logits(keep)

    assert len(keep.sum(-1).unique()) > 3  # of different sizes, in one call
    torch.testing.assert_close(said, masked(family, pictures(), keep), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("family", ["vit-dynamic", "dinov3", "sapiens2"])
def test_patches_of_another_grid_keep_their_positions(family: str) -> None:
    images, keep = pictures(2, (40, 24)), subsets(patches=15)

    said = Probe(seen(family), images).logits(keep)

    torch.testing.assert_close(said, masked(family, images, keep), rtol=1e-11, atol=1e-11)


@EVERY
def test_keeping_every_patch_gives_the_original_logits(family: str) -> None:
    probe = Probe(seen(family), pictures())

    said = probe.logits(torch.ones(2, 3, 12, dtype=torch.bool))

    torch.testing.assert_close(said, probe.full_logits[:, None].expand(-1, 3, -1), rtol=1e-12, atol=1e-12)


@EVERY
def test_with_no_patch_at_all_there_is_still_an_answer(family: str) -> None:
    model, keep = tiny(family), torch.zeros(2, 1, 12, dtype=torch.bool)

    said = Probe(seen(family), pictures()).logits(keep)

    assert said.isfinite().all()
    torch.testing.assert_close(said[0], said[1])  # nothing of the images is left
    if model.global_pool == "avg" and not getattr(model, "pool_include_prefix", False):  # reads the zero vector
        nothing = model.head(model.fc_norm(torch.zeros(1, model.embed_dim, dtype=torch.float64)))
        torch.testing.assert_close(said[0], nothing, rtol=1e-12, atol=1e-12)
    elif model.num_prefix_tokens and family != "map-skips-prefix":  # reads its prefix tokens
        torch.testing.assert_close(said, masked(family, pictures(), keep), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("family", ["vit", "vit-mean", "siglip", "beit", "eva02"])
def test_the_order_of_subsets_is_the_order_of_answers(family: str) -> None:
    probe, keep = Probe(seen(family), pictures()), subsets(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    torch.testing.assert_close(probe.logits(keep[:, order]), probe.logits(keep)[:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", ["vit", "dinov3", "beit-both-tables"])
def test_subsets_answer_the_same_alone_and_together(family: str) -> None:
    probe, keep = Probe(seen(family), pictures()), subsets(4)

    alone = torch.stack([probe.logits(keep[:, s : s + 1])[:, 0] for s in range(4)], dim=1)

    torch.testing.assert_close(probe.logits(keep), alone, rtol=1e-12, atol=1e-12)


@EVERY
def test_no_patch_at_all_answers_the_same_among_others(family: str) -> None:
    probe, keep = Probe(seen(family), pictures()), subsets(4)
    keep[:, 2] = False

    alone = torch.stack([probe.logits(keep[:, s : s + 1])[:, 0] for s in range(4)], dim=1)

    torch.testing.assert_close(probe.logits(keep), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", ["vit", "rope-mixed"])
@pytest.mark.parametrize("room", [2, 15, 40])
def test_subsets_run_in_chunks_that_fit(family: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, held = Probe(seen(family), pictures()), []
    keep = subsets(4).repeat(1, 3, 1)
    together = probe.logits(keep)

    def watched(vit, tokens, layout, indices):
        held.append((tokens.shape[1], sum(len(index) for index in indices)))
        return run_packed(vit, tokens, layout, indices)

    monkeypatch.setattr(probing, "rows_that_fit", lambda *sizes: room)  # of one token each
    monkeypatch.setattr(packed, "run_packed", watched)

    torch.testing.assert_close(probe.logits(keep), together, rtol=1e-12, atol=1e-12)
    assert sum(rows for _, rows in held) == 24
    assert all(tokens <= room or rows == 1 for tokens, rows in held)
    assert (max(rows for _, rows in held) > 1) == (room > 2)


def test_a_score_is_its_targets_logit() -> None:
    targets = torch.tensor([[0, 3], [4, 1]])
    probe, keep = Probe(seen("vit"), pictures(), targets), subsets()

    score, logits = probe.score(keep), probe.logits(keep)

    expected = [logits[i, :, t] for i in range(2) for t in targets[i]]
    torch.testing.assert_close(score, torch.stack(expected))


def test_every_row_may_have_its_own_subsets() -> None:
    targets = torch.tensor([[0, 3], [4, 1]])
    probe, keep = Probe(seen("vit"), pictures(), targets), subsets(images=4)

    score = probe.score(keep)

    alone = [
        Probe(seen("vit"), pictures()[i : i + 1], targets[i, k].view(1)).score(keep[2 * i + k][None])[0]
        for i in range(2)
        for k in range(2)
    ]
    torch.testing.assert_close(score, torch.stack(alone), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("question", ["probability", "margin"])
def test_a_score_is_the_score_function_of_the_logits(question: str) -> None:
    targets, keep = torch.tensor([2, 4]), subsets()
    probe = Probe(seen("vit-mean"), pictures(), targets, question)

    score, logits = probe.score(keep), probe.logits(keep)

    for image, target in enumerate(targets.tolist()):
        for subset, z in enumerate(logits[image]):
            others = torch.cat([z[:target], z[target + 1 :]])
            expected = z.softmax(-1)[target] if question == "probability" else z[target] - others.max()
            torch.testing.assert_close(score[image, subset], expected)


@pytest.mark.parametrize("shape", [(2, 3, 13), (3, 1, 12), (1, 1, 12)])
def test_subsets_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"keep must be \[2 s 12\]"):
        Probe(seen("vit"), pictures()).logits(torch.ones(shape, dtype=torch.bool))
