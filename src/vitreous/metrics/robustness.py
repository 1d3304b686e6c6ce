"""Robustness metrics: the map under input noise, under randomised weights, and on the objects of two classes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.inner_vit import find_inner_vit
from vitreous.core.errors import ModelError, ShapeError
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.options import Count, Positive, Seed
from vitreous.methods.random_control import generators
from vitreous.metrics.localisation import Interpolation, Masks, PerRow, frame_map
from vitreous.metrics.metric import metric
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.ranks import outranking, spearman
from vitreous.models.model import BlackBox, with_module
from vitreous.models.model_registry import adapt
from vitreous.models.random_draws import normal_numbers, uniform_numbers
from vitreous.models.vit import ViT

AT_ONCE = 32  # images explained per batch


def native_scores(attribution: Attribution) -> Float[Tensor, "r n"]:
    """The map at the method's own resolution, pixels or patches, flattened, in float64."""
    return attribution.native_maps.flatten(1).double()


def explain_natively(method: Method, probe: BlackBoxProbe) -> Float[Tensor, "r n"]:
    """Native map of the method for this probe."""
    return native_scores(method.for_model(probe.vit)(probe))


def map_of(attribution: Attribution, method: Method, probe: BlackBoxProbe) -> Float[Tensor, "r n"]:
    """The given map if `method` made it, else a new map of `method`, since maps of two methods are not comparable."""
    return native_scores(attribution) if attribution.method == method.spec else explain_natively(method, probe)


# ── input noise ──────────────────────────────────────────────────────────────────────────────────


@metric(
    higher_is_better=False,
    bounds=(0, torch.inf),
    family="robustness",
    paper="yeh2019infidelity",
    forwards="samples explanations",
    formula="max_m ‖S(x + δ_m) − S(x)‖₂ / ‖S(x)‖₂, δ_m ~ U[−radius, radius] per value",
    trial={"samples": 3},
    presets={"tis": {"samples": 10, "radius": 0.02}},
)
def max_sensitivity(
    attribution: Attribution,
    probe: BlackBoxProbe,
    method: Method,
    samples: Count = 10,
    radius: Positive = 0.02,
    seed: Seed = 0,
) -> PerRow:
    """Largest change of the map, relative to its length, among slightly changed images.

    Noise is added to the image as the model takes it and drawn from the seed and the image's content; the explained class
    stays. Lengths are taken at the map's own resolution; a map of length 0 is divided by 1.
    """
    noise = [
        (uniform_numbers(source, (samples, *probe.images.shape[1:])) * 2 - 1) * radius
        for source in generators(probe.originals, seed)
    ]
    return sensitivity_to(torch.stack(noise).to(probe.images), attribution, probe, method)


def sensitivity_to(
    noise: Float[Tensor, "b s colours H W"], attribution: Attribution, probe: BlackBoxProbe, method: Method
) -> PerRow:
    """Largest relative change of the map over the noise samples of every image."""
    before = map_of(attribution, method, probe)
    length = before.norm(dim=-1)
    length = torch.where(length == 0, torch.ones_like(length), length)
    images, share = len(probe.images), probe.targets_per_image
    worst = torch.zeros_like(length)
    at_once = max(1, AT_ONCE // images)
    for noise_piece in noise.split(at_once, dim=1):
        count = noise_piece.shape[1]
        noisy_images = (probe.images[:, None] + noise_piece).flatten(0, 1)
        targets = probe.targets.view(images, share).repeat_interleave(count, 0)
        near = type(probe)(probe.vit, noisy_images, targets, probe.question, probe.hold)
        after = explain_natively(method, near).view(images, count, share, -1).transpose(1, 2).flatten(0, 1)
        change = (after - before[:, None]).norm(dim=-1) / length[:, None]
        worst = torch.maximum(worst, change.amax(-1))  # propagates NaN
    return worst


# ── randomised weights ───────────────────────────────────────────────────────────────────────────


@metric(
    higher_is_better=False,
    bounds=(-1, 1),
    family="robustness",
    paper="adebayo2018sanity",
    forwards="1 explanation, or 1 per stage",
    formula="Spearman ρ of the maps of the model and of one with random weights",
)
def parameter_randomisation(
    attribution: Attribution,
    probe: BlackBoxProbe,
    method: Method,
    order: Literal["all", "cascade"] = "all",
    sign: Literal["signed", "abs"] = "signed",
    stages: Count | None = None,
    seed: Seed = 0,
) -> Measured:
    """Rank correlation of the map with that of the model with random weights; it should be low.

    A copy of the model gets parameters drawn from a normal with each one's own mean and deviation: `order="all"` at once;
    "cascade" from the head down, part by part (or in so many `stages`), the score being the mean over the stages. Equal scores share
    their rank. `sign="abs"` compares magnitudes. NaN for a map that is constant on the model itself; 0 if it becomes
    constant.
    """
    before = map_of(attribution, method, probe)
    copy = deepcopy(probe.vit.module)
    parts = group_parameters(copy)
    count = 1 if order == "all" else min(len(parts), stages or len(parts))
    ends = [round(len(parts) * (stage + 1) / count) for stage in range(count)]
    source, curve = torch.Generator().manual_seed(seed), []
    for first, last in zip([0, *ends], ends, strict=False):
        for name in list(parts)[first:last]:
            randomise_parameters(parts[name], source)
        again = type(probe)(
            wrap_copy(probe.vit, copy), probe.originals, probe.targets.view(len(probe.images), -1), probe.question
        )
        after = explain_natively(method, again)
        a, b = (before, after) if sign == "signed" else (before.abs(), after.abs())
        alike = spearman(a, b)
        lost = (b == b[:, :1]).all(-1) & (a != a[:, :1]).any(-1) & ~a.isnan().any(-1)
        curve.append(alike.where(~lost, 0.0))
    correlations = torch.stack(curve, 1)
    levels = None if order == "all" else [end / len(parts) for end in ends]
    return Measured(correlations.mean(1), curve=None if levels is None else correlations, levels=levels)


def group_parameters(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Floating-point parameters by part ("head", "blocks.11", "encoder_layer_11", …), last registered part first."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            words = name.split(".")
            number = next((i for i, word in enumerate(words) if word.split("_")[-1].isdigit()), None)
            own = (words[:-1][:2] or words) if number is None else words[: number + 1]
            parts.setdefault(".".join(own), []).append(parameter)
    return dict(reversed(parts.items()))


@torch.no_grad()
def randomise_parameters(parameters: list[nn.Parameter], source: torch.Generator) -> None:
    """Replace parameters by normal noise with their own mean and standard deviation."""
    for parameter in parameters:
        spread = parameter.float().std(correction=0)
        drawn = parameter.float().mean().cpu() + spread.cpu() * normal_numbers(source, parameter.shape)
        parameter.copy_(drawn)


def wrap_copy(model: BlackBox, module: nn.Module) -> BlackBox:
    """Wrap another module of the same architecture with the settings of `model`."""
    if not isinstance(model, ViT):
        return with_module(model, module)
    copy = adapt(module) if model.origin.inner_vit is None else find_inner_vit(module)
    if copy is None:
        raise ModelError(f"{model.name!r} with other weights is no longer a head of the ViT in it; wrap the ViT itself")
    same = ("name", "preprocess", "classes", "output_type", "affine", "embedding", "origin")
    return replace(copy, **{field: getattr(model, field) for field in same})


# ── two classes ──────────────────────────────────────────────────────────────────────────────────


@metric(
    higher_is_better=True,
    bounds=(0, 1),
    affine_invariant=True,
    family="robustness",
    formula="P(S(u) > S(v)) + ½ P(S(u) = S(v)), u a pixel of the class's own object, v one of the rival's",
)
def class_discrimination(
    attribution: Attribution,
    objects: Masks,
    rivals: Shaped[Tensor, "r height width"],
    by: Literal["rank", "mass"] = "rank",
    interpolation: Interpolation = "bilinear",
) -> PerRow:
    """Probability that a pixel of the class's own object scores higher than one of the other class's object.

    ½ is chance: a constant map's score, and the mean of a method that gives every class the same map, over both classes.
    `by="mass"`: mean positive score on the own object, as a share of that and of the mean on the rival's. Pixels of both, or that
    do not count, are left out; NaN where one of the two is missing.
    """
    if objects.shape != rivals.shape:
        raise ShapeError(f"objects are {list(objects.shape)} and rivals {list(rivals.shape)}; they must be of one size")
    own, other = frame_map(attribution, objects, interpolation), frame_map(attribution, rivals, interpolation)
    counted = own.counted & other.counted & ~(own.inside & other.inside)
    own_pixels, rival_pixels = (own.inside & counted).flatten(1), (other.inside & counted).flatten(1)
    if by == "rank":
        shares = outranking(own.scores, own_pixels, rival_pixels)
    else:
        mass = own.scores.clamp(min=0)
        a, b = ((mass * side).sum(-1) / side.sum(-1) for side in (own_pixels, rival_pixels))
        shares = a / (a + b)
    return shares.where(own.has_scores & own_pixels.any(-1) & rival_pixels.any(-1), torch.nan)
