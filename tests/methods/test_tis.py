"""Transformer Input Sampling: clusters of activations, subsets of tokens, mean scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous
from tests.methods.test_goldens import Golden
from tests.methods.test_sampling import FAMILIES, TARGETS, exact, fast, real, said, said_with, same  # noqa: F401
from tests.models.families import pictures, seen, tiny
from vitreous.capture.probe import Probe
from vitreous.methods import activation_masks as tis
from vitreous.methods.spec import resolve

# ── reference implementation ──────────────────────────────────────────────────────────────────────


def slow_kmeans(samples: Tensor, centroids: Tensor) -> Tensor:
    """Sample by sample, cluster by cluster."""
    for _ in range(100):
        owner = [min(range(len(centroids)), key=lambda m, s=s: ((s - centroids[m]) ** 2).sum().item()) for s in samples]
        apart = [((s - centroids[m]) ** 2).sum().item() for s, m in zip(samples, owner, strict=True)]
        farthest = sorted(range(len(samples)), key=lambda i, apart=apart: -apart[i])
        moved = []
        for m in range(len(centroids)):
            mine = [s for s, o in zip(samples, owner, strict=True) if o == m]
            moved.append(torch.stack(mine).mean(0) if mine else samples[farthest.pop(0)])
        shift = ((torch.stack(moved) - centroids) ** 2).sum()
        centroids = torch.stack(moved)
        if shift <= 1e-4:
            break
    return centroids


@torch.no_grad()
def slow_tis(family: str, image: int, count: int, ratios: tuple[float, ...], pixels: bool = False) -> Tensor:
    from vitreous.methods.random_control import content_seeds, draw_uniform, generators

    model, picture, target = tiny(family), pictures()[image], TARGETS[image]
    tokens, outputs = model.norm_pre(model._pos_embed(model.patch_embed(picture[None]))), []
    for block in model.blocks:
        tokens = block(tokens)
        outputs.append(tokens[0, model.num_prefix_tokens :])
    samples = torch.cat(outputs, 1).T
    first = torch.randperm(len(samples), generator=generators(picture[None], 0)[0])[:count]
    centroids = slow_kmeans(samples, samples[first])
    total, held, draw = [0.0] * 12, [0] * 12, content_seeds(picture[None], 0)[0]
    for place, (ratio, centroid) in enumerate((r, c) for r in ratios for c in centroids):
        kept = sorted(range(12), key=lambda i, c=centroid: -c[i].item())[: int(ratio * 12)]
        if pixels:
            shown = draw_uniform(torch.tensor([draw + place]), picture.shape)[0].to(picture)
            for i in kept:
                y, x = 8 * (i // 4), 8 * (i % 4)
                shown[:, y : y + 8, x : x + 8] = picture[:, y : y + 8, x : x + 8]
            answer = said(model, shown, target, "probability")
        else:
            answer = said_with(model, picture, kept, target, "probability")
        for i in kept:
            total[i] += answer
            held[i] += 1
    means = [t / h if h else None for t, h in zip(total, held, strict=True)]
    return exact([min(m for m in means if m is not None) if m is None else m for m in means])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("spec", "ratios"), [("tis(masks=7)", (0.5,)), ("tis(masks=5, kept=(0.25, 0.6))", (0.25, 0.6))]
)
def test_tis_is_a_loop_over_subsets(family, spec, ratios):
    count = int(spec[10])

    same(fast(spec, family), torch.stack([slow_tis(family, i, count, ratios) for i in range(2)]))


def test_tis_may_paint_over_pixels_instead():
    same(
        fast("tis(masks=6, ablate='pixels')"), torch.stack([slow_tis("vit-even", i, 6, (0.5,), True) for i in range(2)])
    )


# ── clusters ─────────────────────────────────────────────────────────────────────────────────────


def test_images_of_a_batch_are_clustered_as_single_images():
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(3, 60, 9, generator=draw).double()
    samples[1] = samples[1] * 0.01  # this one stops earlier than the others

    together = tis.kmeans(samples, samples[:, :8].clone())

    for one, begun in zip(together, samples, strict=True):
        torch.testing.assert_close(one, tis.kmeans(begun[None], begun[None, :8].clone())[0])
        torch.testing.assert_close(one, slow_kmeans(begun, begun[:8]))


def test_an_empty_cluster_is_moved_to_the_farthest_sample():
    samples = torch.tensor([[[0.0], [0.1], [5.0], [9.0]]])
    centroids = torch.tensor([[[0.0], [100.0], [200.0]]])

    moved = tis.lloyd(samples, centroids)

    assert moved[0, :, 0].tolist() == pytest.approx([3.525, 9.0, 5.0])


@pytest.mark.parametrize("samples", [torch.ones(1, 20, 6), torch.zeros(1, 20, 6)])
def test_samples_that_are_all_the_same_give_no_nan(samples):
    found = tis.cluster_activations(samples, 8, torch.zeros(1, 3, 4, 4), seed=0)

    assert found.isfinite().all()


def test_there_are_no_more_subsets_than_activations():
    assert fast("tis(masks=5000)").isfinite().all()  # 96 of them


def test_a_patch_in_no_subset_gets_the_least_score():
    probe = Probe(seen("vit"), pictures(), torch.tensor(TARGETS), "logit")
    keep = torch.zeros(2, 2, 12, dtype=torch.bool)
    keep[:, 0, :3], keep[:, 1, 3:6] = True, True

    found = tis.tis_of_subsets(probe, keep)[0]

    scores = probe.score(keep)
    assert torch.equal(found[:, 6], scores.amin(-1))
    torch.testing.assert_close(found[:, :6], scores.repeat_interleave(3, -1))
    assert tis.tis_of_subsets(probe, keep, normalise=True)[0].amax(-1).tolist() == [1, 1]


def test_a_constant_map_is_normalised_to_zero():
    probe = Probe(seen("vit"), pictures(), torch.tensor(TARGETS), "probability")

    assert (tis.tis_of_subsets(probe, torch.ones(2, 3, 12, dtype=torch.bool), normalise=True)[0] == 0).all()


@pytest.mark.parametrize("room", [1, 10**9])
def test_the_number_of_images_clustered_at_once_does_not_matter(room, monkeypatch):
    whole = fast("tis(masks=9)")
    monkeypatch.setattr(tis, "DISTANCES_ON_CPU", room)

    same(fast("tis(masks=9)"), whole, 1e-12)


def test_tis_is_the_same_in_any_batch_on_many_images():
    images = pictures(5, seed=7).float()
    model = vitreous.wrap(tiny("vit-mean").__class__(**{**tiny_settings(), "global_pool": "avg"}).eval())
    whole = vitreous.explain(model, images, 1, "tis(masks=12)").patches

    alone = torch.cat([vitreous.explain(model, images[i : i + 1], 1, "tis(masks=12)").patches for i in range(5)])
    backwards = vitreous.explain(model, images.flip(0), 1, "tis(masks=12)", batch_size=2).patches.flip(0)

    torch.testing.assert_close(alone, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(backwards, whole, rtol=1e-4, atol=1e-6)


def tiny_settings() -> dict:
    from tests.models.families import SMALL

    return dict(SMALL)


# ── published outputs ─────────────────────────────────────────────────────────────────────────────


def test_scoring_agrees_with_its_authors(goldens):
    golden = Golden(goldens, "tiny_cls", goldens / "models" / "tiny_cls.safetensors")
    compare(golden, 4)


@pytest.mark.slow
def test_scoring_of_the_real_model_agrees_with_its_authors(real):  # noqa: F811
    compare(real, 1)


def compare(golden: Golden, count: int) -> None:
    arrays, tolerance = golden.arrays("tis"), golden.entry("tis")["tolerance"]
    chosen = torch.from_numpy(arrays["mask_indices"][:count]).long()
    patches = arrays["centroids"].shape[-1]
    keep = torch.zeros(*chosen.shape[:2], patches, dtype=torch.bool).scatter(-1, chosen, True)
    centroids = torch.from_numpy(arrays["centroids"][:count])
    assert torch.equal(tis.keep_largest(centroids, 0.5), keep)

    for which in ("top",) if golden.name == "real" else ("other", "top"):
        images = golden.images[:count].to(golden.vit.dtype)
        probe = Probe(golden.vit, images, golden.targets[which][:count], "probability")
        for key, found in (
            (f"{which}_mask_scores", probe.score(keep)),
            (f"{which}_unnormalised", tis.tis_of_subsets(probe, keep)[0]),
            (which, tis.tis_of_subsets(probe, keep, normalise=True)[0]),
        ):
            reference = arrays[key][:count]
            allowed = tolerance["rtol"] * np.abs(reference)
            allowed = allowed + tolerance["atol_rel_to_max"] * np.abs(reference).max(1, keepdims=True)
            assert (np.abs(found.numpy() - reference) <= allowed).all(), key

    # their centroids do not change in our iteration
    activations = torch.cat(probe.states[1:], -1)[:, probe.layout.prefix :].mT
    shift = (tis.lloyd(activations, centroids.to(activations)) - centroids) ** 2
    assert shift.sum((1, 2)).max() <= 1e-4


def test_presets_are_the_paper_and_its_code():
    """Equation 5 has no rescaling; the released code rescales every map to [0, 1]."""
    paper, released = (resolve(f"tis(preset={name!r}, masks=9)") for name in ("paper", "released"))

    assert paper.question == released.question == "probability"
    mean = vitreous.explain(tiny("vit"), pictures(), method=paper).patches
    rescaled = vitreous.explain(tiny("vit"), pictures(), method=released).patches
    assert (mean > 0).all()
    assert rescaled.amin(-1).tolist() == [0, 0]
    assert rescaled.amax(-1).tolist() == [1, 1]
    low, high = mean.amin(-1, keepdim=True), mean.amax(-1, keepdim=True)
    torch.testing.assert_close(rescaled, (mean - low) / (high - low))
