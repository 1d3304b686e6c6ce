"""Gradients averaged over points: around the image (SmoothGrad) or on a path to it (integrated gradients)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.layer import Layer
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.path_gradients import at_once, check_start, gradients_at, score_at
from vitreous.core.progress import Tally
from vitreous.methods.method import Method
from vitreous.methods.options import Count, Number, Positive, Seed, Steps
from vitreous.methods.pass_counts import ModelSizes, passes_from_layers
from vitreous.methods.random_control import fill_from_sources, generators
from vitreous.methods.register_method import method
from vitreous.methods.run import score_and_logits
from vitreous.models.tensor_types import PatchScores, PixelScores, TokenScores

Noise = Float[Tensor, "b s *point"]
Fields = dict[str, Any]  # of `Attribution`
Channels = Literal["sum", "max"]
Rule = Literal["gausslegendre", "trapezoid"]


def count_points(option: str, method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Passes for the points around, or on a path to, the input of every layer that is read; each runs the blocks above.

    The gradients at the points of one layer say nothing about those of another, so they cannot share passes.
    """
    return {option: passes_from_layers(method, sizes) * method.settings[option]}


def count_samples(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Noisy copies, at every layer that a fold reads."""
    return {} if method.fold is None else count_points("samples", method, sizes)


# ── SmoothGrad ───────────────────────────────────────────────────────────────────────────────────


def smoothgrad_of_layer(
    layer: Layer,
    probe: BlackBoxProbe,
    linearisation: Linearisation,
    samples: Count = 50,
    sigma: Positive = 1.0,
    seed: Seed = 0,
) -> TokenScores:
    """Mean absolute gradient at noisy copies of a layer's tokens, summed over channels; layers get the same noise."""
    tokens = probe.states[layer.index]
    noise = draw_noise(probe, tokens, samples, sigma, seed)
    return layer.full(mean_gradient(probe, tokens, noise, samples, True, layer.index, linearisation)).sum(-1)


@method(
    "smoothgrad",
    family="Gradients",
    formula="s = Σ_rgb mean_ε |∂t/∂x (x + ε)|, ε ~ N(0, σ²)",
    native="pixel",
    signed=False,
    class_specific=True,
    black_box={},
    trial={"samples": 6},
    forwards="samples + 1",
    backwards="samples",
    counts=count_samples,
    shares_forward=True,
    layered=smoothgrad_of_layer,
    own_pass=True,
    presets={"tis": {}, "original": {"rel_sigma": 0.15, "abs": False}},
    paper="smilkov2017smoothgrad",
    precision="tf32",
)
def smoothgrad(
    probe: BlackBoxProbe,
    samples: Count = 50,
    sigma: Positive = 1.0,
    rel_sigma: Positive | None = None,
    abs: bool = True,  # noqa: A002 - captum's name
    channels: Channels = "sum",
    seed: Seed = 0,
) -> tuple[PixelScores, Fields]:
    """Gradient at the pixels, averaged over noisy copies of the image.

    Noise depends on the image and the seed, not on the position in a batch. Under a fold (`smoothgrad+plus`) noise is
    added to the tokens that enter each layer, and absolute gradients are summed over channels.

    Parameters
    ----------
    samples
        Number of noisy copies.
    sigma
        Standard deviation of the noise in units of the normalised image (1 in captum and therefore in TIS).
    rel_sigma
        Standard deviation as a share of the image's value range (the paper: 0.1 to 0.2); replaces `sigma`.
    abs
        Whether to take absolute values before the mean.
    channels
        Reduction over colour channels after the mean: "sum" or "max".
    seed
        Seed of the noise.
    """
    images = probe.images
    span = (images.flatten(1).amax(1) - images.flatten(1).amin(1))[:, None, None, None, None]
    deviation = torch.full_like(span, sigma) if rel_sigma is None else span * rel_sigma
    noise = draw_noise(probe, images, samples, deviation, seed)
    mean = mean_gradient(probe, images, noise, samples, abs)
    return mean.sum(1) if channels == "sum" else mean.amax(1), {"signed": not abs}


def draw_noise(
    probe: BlackBoxProbe, points: Tensor, samples: int, deviation: Tensor | Positive, seed: int
) -> Iterator[Noise]:
    """Noise for the points [b …], in chunks of samples; each sample is a separate draw, so chunk size has no effect."""
    sources, chunk = generators(probe.originals, seed), at_once(probe)
    for first in range(0, samples, chunk):
        count = min(chunk, samples - first)
        # not in a variable, which would be held as long as the part is used
        yield draw_gaussians(points.shape[1:], sources, count, points.device).to(points) * deviation


def draw_gaussians(
    shape: torch.Size, sources: list[torch.Generator], count: int, device: torch.device
) -> Float[Tensor, "b s *shape"]:
    """`count` Gaussian draws of every source."""

    def fill(places: Float[Tensor, "s *shape"], source: torch.Generator) -> None:
        for place in places:
            place.normal_(generator=source)

    return fill_from_sources(fill, sources, (count, *shape), device)


def mean_gradient(
    probe: BlackBoxProbe,
    points: Tensor,
    noise: Iterable[Noise],
    samples: int,
    absolute: bool,
    start: int | None = None,
    lin: Linearisation = PLAIN,
) -> Tensor:
    """(1/S) Σ |∂t/∂x (x + ε)| for points x [b …], as in `gradients_at`; without | · | if not `absolute`."""
    total, tally = torch.zeros(()), Tally(len(points) * samples)
    for part in noise:
        noisy_points = points[:, None] + part
        del part  # frees memory before the graph is built
        gradients = gradients_at(probe, noisy_points, start, lin, tally)
        total = total + (gradients.abs() if absolute else gradients).sum(1)
        del noisy_points, gradients
    return total / samples


# ── integrated gradients ─────────────────────────────────────────────────────────────────────────


def quadrature(rule: Rule, steps: int, rounded: bool) -> list[tuple[float, float]]:
    """Nodes in [0, 1] and their weights.

    "trapezoid" is captum's rule: weights 1/steps, halved at both ends, which add up to 1 − 1/steps. `rounded` rounds
    the weights, and the nodes of this rule, to single precision.
    """
    if rule == "gausslegendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        nodes, weights = (nodes + 1) / 2, weights / 2
    else:
        nodes = torch.linspace(0, 1, steps, dtype=torch.float32 if rounded else torch.float64).numpy()
        weights = np.full(steps, 1 / steps)
        weights[[0, -1]] /= 2
    weights = weights.astype(np.float32) if rounded else weights
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


def mean_path_gradient(
    probe: BlackBoxProbe,
    end: Tensor,
    baseline: Number,
    nodes: list[tuple[float, float]],
    start: int | None,
    lin: Linearisation,
) -> Tensor:
    """Mean gradient on the straight line from the baseline to `end` [b …]: images, or tokens entering block `start`."""
    total, chunk, tally = torch.zeros(()), at_once(probe), Tally(len(end) * len(nodes))
    weights = end.new_tensor([weight for _, weight in nodes])  # one transfer: each waits for the GPU
    for first in range(0, len(nodes), chunk):
        points = torch.stack([baseline + (end - baseline) * alpha for alpha, _ in nodes[first : first + chunk]], 1)
        gradients = gradients_at(probe, points, start, lin, tally)
        total = total + torch.einsum("s,rs...->r...", weights[first : first + chunk], gradients)
        del points, gradients  # frees memory before the next graph is built
    return total


def ig_of_layer(
    layer: Layer,
    probe: BlackBoxProbe,
    linearisation: Linearisation,
    steps: Steps = 50,
    rule: Rule = "gausslegendre",
    baseline: Number = 0.0,
    rounded: bool = False,
) -> TokenScores:
    """Integrated gradient of each token of a layer, summed over channels; every layer has a path of its own."""
    nodes = quadrature(rule, steps, rounded)
    mean = mean_path_gradient(probe, probe.states[layer.index], baseline, nodes, layer.index, linearisation)
    return layer.full((layer.hidden - baseline) * mean).sum(-1)


def count_steps(method: Method, sizes: ModelSizes) -> dict[str, float | str]:
    """Steps at every layer that a fold reads, where no score of the baseline is needed; or from block `start` on."""
    if method.fold is not None:
        return {"forwards": "steps + 1", **count_points("steps", method, sizes)}
    if method.settings["space"] == "pixels":
        return {}
    share = 1 - method.settings["start"] / sizes["layers"]
    return {"forwards": f"steps + {1 + share}", "steps": share * method.settings["steps"]}


@method(
    "ig",
    family="Gradients",
    formula="s = Σ_rgb (x − x′) ⊙ ∫₀¹ ∂t/∂x (x′ + α(x − x′)) dα",
    native="pixel",
    signed=True,
    class_specific=True,
    black_box={"space": "pixels"},
    trial={"steps": 6},
    forwards="steps + 2",
    backwards="steps",
    counts=count_steps,
    shares_forward=True,
    layered=ig_of_layer,
    own_pass=True,
    aliases=("integrated-gradients", "integratedgradients", "integrated_gradients"),
    presets={"tis": {"rounded": True}, "captum": {"rounded": True}, "skipplus": {"rounded": True, "space": "tokens"}},
    paper="sundararajan2017axiomatic",
)
def ig(
    probe: BlackBoxProbe,
    steps: Steps = 50,
    rule: Rule = "gausslegendre",
    baseline: Number = 0.0,
    rounded: bool = False,
    space: Literal["pixels", "tokens"] = "pixels",
    start: int = 0,
) -> tuple[PixelScores | PatchScores, Fields]:
    """Integrated gradients: contribution of each pixel along the straight path from a baseline to the image.

    Of the attribution, `bias` is the score of the baseline and `residual` the quadrature error, score − bias − Σ.
    Under a fold (`ig+plus`) the path runs over the tokens that enter each layer.

    Parameters
    ----------
    steps
        Number of quadrature nodes.
    rule
        "gausslegendre", or "trapezoid" as in captum.
    baseline
        Start of the path; 0 in normalised units is the mean colour.
    rounded
        Whether weights and the nodes of the trapezoid rule are rounded to single precision, as in captum.
    space
        Path over "pixels", or over the "tokens" that enter block `start`, from tokens that equal `baseline`.
    start
        Block for `space="tokens"`.
    """
    layer = None if space == "pixels" else check_start(probe, start)
    end = probe.images if layer is None else probe.states[layer]
    mean = mean_path_gradient(probe, end, baseline, quadrature(rule, steps, rounded), layer, PLAIN)
    shares = (end - baseline).repeat_interleave(probe.targets_per_image, 0) * mean
    base = score_at(probe, torch.full_like(end, baseline), layer)
    missing = score_and_logits(probe)["score"] - base - shares.flatten(1).sum(-1)
    fields: Fields = {"bias": base, "residual": missing}
    if layer is None:
        return shares.sum(1), fields
    prefix = probe.layout.prefix
    scores = shares.sum(-1)
    return scores[:, prefix:], {**fields, "prefix": scores[:, :prefix]}
