"""The additive Bayesian model: compared with plain loops in double precision, and its options."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import vitreous
from tests.models.families import pictures, seen
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.additive_model import (
    DEVIATION,
    LENGTH,
    RATIOS,
    RIDGE,
    WeightPosterior,
    weight_covariances,
    weight_posterior,
)
from vitreous.methods.coalition_methods import bit_reversed, draw_pairs
from vitreous.methods.random_control import generators
from vitreous.methods.spec import resolve
from vitreous.testing import check_method

TARGETS = [3, 1]


# ── slow reference implementation ────────────────────────────────────────────────────────────────


def slow_covariances(features: np.ndarray, maps: np.ndarray) -> list[np.ndarray]:
    patches = len(features)
    centred = features - features.mean(0)
    scales = [np.ones(patches)]
    if len(maps):
        sizes = []
        for scores in maps:
            size = abs(scores - scores.mean())
            sizes.append(size / size.mean())
        scales.insert(0, np.array([(1 + sum(size[j] for size in sizes) / len(sizes)) / 2 for j in range(patches)]))
    matrices = []
    for scale in scales:
        matrix = np.zeros((patches, patches))
        for i in range(patches):
            for j in range(patches):
                cosine = centred[i] @ centred[j] / (np.linalg.norm(centred[i]) * np.linalg.norm(centred[j]))
                matrix[i, j] = scale[i] * scale[j] * (math.exp((cosine - 1) / LENGTH) + (RIDGE if i == j else 0))
        matrices.append(matrix)
    return matrices


def slow_posterior(keep: np.ndarray, differences: np.ndarray, maps: np.ndarray, prior_covariances: list[np.ndarray]):
    """The joint Gaussian of data and weights, conditioned; a flat prior is one of variance 10⁶.

    Hypotheses are all pairs of a prior covariance and a ratio of variances.
    """
    pairs, patches = keep.shape
    design = np.array([[float(keep[s, j]) - keep[s].mean() for j in range(patches)] for s in range(pairs)])
    size = keep.mean(1) - 0.5
    maps = np.array([scores - scores.mean() for scores in maps]).reshape(-1, patches)
    basis = np.stack([size, size**3, *(design @ scores for scores in maps)], 1)
    basis = basis / np.where((length := np.linalg.norm(basis, axis=0)) > 0, length, 1)
    # marginal likelihood of what is orthogonal to the basis
    complement = np.linalg.svd(basis)[0][:, np.linalg.matrix_rank(basis) :]
    seen_part = complement.T @ differences
    degrees = len(seen_part)
    evidence, means, covariances = [], [], []
    for covariance, ratio in itertools.product(prior_covariances, RATIOS.numpy()):
        total = np.eye(degrees) + complement.T @ design @ covariance @ design.T @ complement / ratio
        misfit = seen_part @ np.linalg.solve(total, seen_part)
        evidence.append(-degrees / 2 * math.log(misfit) - np.linalg.slogdet(total)[1] / 2 - math.log(ratio) / 2)
        noise = misfit / (degrees - 2)
        flat = 1e6 * noise
        # weights = maps' coefficients + deviations; data = design · weights + size effect + noise
        scaled = [scores / np.linalg.norm(design @ scores) for scores in maps if np.linalg.norm(design @ scores) > 0]
        prior = noise / ratio * covariance + flat * sum(
            (np.outer(scores, scores) for scores in scaled), np.zeros((patches, patches))
        )
        data = design @ prior @ design.T + noise * np.eye(pairs)
        for effect in (basis[:, 0], basis[:, 1]):
            data = data + flat * np.outer(effect, effect)
        gain = np.linalg.solve(data, design @ prior).T
        means.append(gain @ differences)
        covariances.append(prior - gain @ design @ prior)
    flat = np.exp(np.array(evidence) - max(evidence))
    half_cauchy = flat[: len(RATIOS)] / (1 + patches / RATIOS.numpy() / DEVIATION**2)  # of the first covariance
    mean = sum(w * m for w, m in zip(half_cauchy / half_cauchy.sum(), means[: len(RATIOS)], strict=True))
    error = sum(
        w * (c + np.outer(m - mean, m - mean)) for w, m, c in zip(flat / flat.sum(), means, covariances, strict=True)
    )
    centring = np.eye(patches) - 1 / patches
    return centring @ mean, centring @ error @ centring


@pytest.mark.parametrize("prior", ["fuse", "temper", "none"])
def test_agrees_with_conditioning_the_joint_gaussian(prior):
    vit, images = seen("vit-even"), pictures()
    found = vitreous.explain(vit, images, TARGETS, f"bayes(samples=40, prior='{prior}')")
    for image in range(2):
        probe = Probe(vit, images[image : image + 1], torch.tensor(TARGETS[image : image + 1]), "probability")
        keep = draw_pairs(12, 20, generators(images[image : image + 1], 0)[0])
        differences = np.array(
            [(probe.score(one[None, None]) - probe.score(~one[None, None])).item() / 2 for one in keep]
        )
        names = () if prior == "none" else (prior,)
        maps = np.array([resolve(name)(probe).patches[0].numpy() for name in names]).reshape(-1, 12)
        features = probe.states[-1][0, probe.layout.prefix :].numpy()
        mean, covariance = slow_posterior(keep.numpy(), differences, maps, slow_covariances(features, maps))
        whole = probe.score(torch.ones(1, 1, 12, dtype=torch.bool)) - probe.score(
            torch.zeros(1, 1, 12, dtype=torch.bool)
        )
        level = whole.item() / 12
        largest = abs(mean).max()
        np.testing.assert_allclose(found.patches[image].numpy(), mean + level, rtol=0, atol=1e-4 * largest)
        np.testing.assert_allclose(found.stderr[image].numpy(), np.sqrt(covariance.diagonal()), rtol=2e-4)


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_passes_the_contract_tests():
    assert check_method("bayes")
    assert check_method("bayes(until=0.3, prior='temper')", samples=128)


def test_scores_add_up_to_the_score_minus_that_of_no_patch():
    vit, images = seen("vit-even"), pictures()
    found = vitreous.explain(vit, images, TARGETS, "bayes(samples=32)")
    probe = Probe(vit, images, torch.tensor(TARGETS), "probability")
    nothing = probe.score(torch.zeros(2, 1, 12, dtype=torch.bool))[:, 0]
    torch.testing.assert_close(found.patches.sum(1), found.score - nothing)


def test_an_additive_score_is_found_exactly_and_with_certainty():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 20, generator=draw).double()
    keep = draw_pairs(20, 64, draw)
    inside = keep.double()
    differences = (weights @ inside.T - weights @ (1 - inside).T) / 2
    none = torch.zeros(1, 0, 20).double()
    posterior = weight_posterior(
        keep, differences, none, weight_covariances(torch.randn(20, 8, generator=draw).double(), none)
    )
    centred = weights - weights.mean()
    # the size effect takes a share of the sum of the weights, never of their differences
    torch.testing.assert_close(posterior.mean, centred, rtol=0, atol=0.03 * centred.abs().max().item())
    assert (posterior.stderr < 0.1 * centred.std()).all()
    assert posterior.rank_error().item() < 0.02


@pytest.mark.parametrize("drawn_from", [0, 1], ids=["size of the maps", "features alone"])
def test_intervals_have_their_nominal_coverage(drawn_from):
    """Weights drawn from one of the prior covariances, with noise: 95 % intervals of 100 images."""
    draw = torch.Generator().manual_seed(0)
    inside = total = 0
    for _ in range(100):
        maps = torch.randn(1, 1, 24, generator=draw).double()
        covariances = weight_covariances(torch.randn(24, 6, generator=draw).double(), maps)
        deviation = torch.linalg.cholesky(covariances[drawn_from])[0] @ torch.randn(24, generator=draw).double()
        weights = 0.7 * maps[0, 0] + 0.3 * deviation
        keep = draw_pairs(24, 40, draw)
        design = keep.double() - keep.double().mean(1, keepdim=True)
        noise = 0.8 * torch.randn(40, generator=draw).double()
        posterior = weight_posterior(keep, (design @ weights + noise)[None], maps, covariances)
        gap = (posterior.mean[0] - (weights - weights.mean())).abs()
        inside, total = inside + int((gap < 1.96 * posterior.stderr[0]).sum()), total + 24
    assert 0.93 < inside / total < 0.97


def test_useless_maps_are_ignored():
    draw = torch.Generator().manual_seed(0)
    keep = draw_pairs(12, 20, draw)
    differences = torch.randn(1, 20, generator=draw).double()
    features = torch.randn(12, 6, generator=draw).double()
    none, flat = torch.zeros(1, 0, 12).double(), torch.full((1, 2, 12), 3.0).double()
    plain = weight_posterior(keep, differences, none, weight_covariances(features, none))
    scaled, unscaled = weight_covariances(features, flat)
    dead = weight_posterior(keep, differences, flat, [4 * scaled, unscaled])  # half of the scale is left
    torch.testing.assert_close(dead.mean, plain.mean)
    torch.testing.assert_close(dead.covariance, plain.covariance)


def test_a_constant_score_gives_zeros():
    keep = draw_pairs(12, 20, torch.Generator().manual_seed(0))
    none = torch.zeros(1, 0, 12).double()
    posterior = weight_posterior(keep, torch.zeros(1, 20).double(), none, [torch.eye(12).double()[None]])
    assert (posterior.mean == 0).all()
    assert (posterior.stderr < 1e-100).all()


def test_rank_error_is_the_mean_probability_of_a_wrong_order():
    mean = torch.tensor([[0.3, -0.1, -0.2]], dtype=torch.float64)
    covariance = torch.tensor([[[0.04, 0.01, 0.0], [0.01, 0.09, 0.0], [0.0, 0.0, 0.01]]], dtype=torch.float64)
    wrong = [
        0.5 * math.erfc(0.4 / math.sqrt(0.04 + 0.09 - 0.02) / math.sqrt(2)),
        0.5 * math.erfc(0.5 / math.sqrt(0.04 + 0.01) / math.sqrt(2)),
        0.5 * math.erfc(0.1 / math.sqrt(0.09 + 0.01) / math.sqrt(2)),
    ]
    found = WeightPosterior(mean, covariance, torch.zeros(1).double()).rank_error()
    assert found.item() == pytest.approx(sum(wrong) / 3, rel=1e-12)


def test_subsets_spread_over_sizes_and_more_extend_fewer():
    images = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    few, many = (draw_pairs(100, pairs, generators(images, 1)[0]) for pairs in (16, 64))
    assert (many[:16] == few).all()
    assert few.sum(1).sort().values.tolist() == [10, 12, 15, 18, 20, 22, 25, 28, 30, 32, 35, 38, 40, 42, 45, 48]
    assert [bit_reversed(number) for number in range(6)] == [0, 0.5, 0.25, 0.75, 0.125, 0.625]


def test_sampling_stops_when_the_order_is_settled():
    vit, images = seen("vit-even"), pictures()
    asked: list[int] = []
    score = Probe.score

    def counted(probe, keep):
        asked.append(keep.shape[1])
        return score(probe, keep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "score", counted)
        early = vitreous.explain(vit, images, TARGETS, "bayes(samples=1024, until=0.4)")
    assert sum(asked) == 1 + 2 * 64  # nothing at all, and one round per image
    torch.testing.assert_close(early.patches, vitreous.explain(vit, images, TARGETS, "bayes(samples=64)").patches)


def test_never_settled_takes_all_samples():
    vit, images = seen("vit-even"), pictures()
    late = vitreous.explain(vit, images, TARGETS, "bayes(samples=100, until=0.000001)")
    torch.testing.assert_close(late.patches, vitreous.explain(vit, images, TARGETS, "bayes(samples=100)").patches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("samples=17", "give an even number"),
        ("samples=4", "at least 16"),
        ("until=0.7", "less than 0.5"),
        ("prior='rollout'", "the same for every class"),
        ("prior=\"temper(question='logit')\"", "say it of the whole"),
        ("prior='nothing'", "nothing"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        vitreous.explain(seen("vit-even"), pictures(), TARGETS, f"bayes({options})")
