"""Annealed: a map averaged over random coalitions of patches.

Averaged over random halves of the patches, share and slope estimate the contribution of a patch to a coalition that it
joins.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.capture.coalitions import in_coalitions
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.method import Method
from vitreous.methods.options import Range, Seed
from vitreous.methods.presence import OF_THIS_LIBRARY
from vitreous.methods.random_control import generators
from vitreous.methods.recipe import LayerSignal
from vitreous.methods.register_method import method
from vitreous.methods.spec import resolve
from vitreous.models.tensor_types import Images, Keep, PatchScores

Part = Annotated[float | int, Range(0, 1, above=True, below=True)]


def averaged_method(spec: str) -> Method:
    """The method that `spec` names, if its map can be computed for a subset of the patches.

    Raises
    ------
    SpecError
        If it has no fold, computes its own passes or pixel space, sets its own score function, or ignores the target.
    """
    candidate = resolve(spec)
    recipe, space = candidate.recipe, candidate.options.get("space", "tokens")
    # nothing but layers of one pass (or, as `fuse`, of two)
    folds_layers = isinstance(recipe, LayerSignal) and recipe.adapt is None and not recipe.needs.own_pass
    if not folds_layers or space != "tokens":
        raise SpecError(
            f"of={spec!r} does not bring layers together; use one that does, such as 'fuse' or 'ixg@libra+plus'"
        )
    if "question" in candidate.options:
        raise SpecError(f"of={spec!r} says what it asks; say it of the whole: anneal(of=…, question=…)")
    if not candidate.class_specific:
        raise SpecError(f"of={spec!r} is the same whatever is asked; use one that is not, such as 'fuse'")
    return candidate


@method(
    "anneal",
    formula="sⱼ = mean over coalitions S ∋ j of fuseⱼ(S), S random halves of the patches with their complements, and all of them",
    trial={"coalitions": 4},
    forwards="2 + 2 * coalitions",
    backwards="2 + 2 * coalitions",
    **OF_THIS_LIBRARY,
)
def anneal(
    probe: Probe,
    coalitions: Annotated[int, Range(high=10_000_000)] = 16,
    kept: Part | tuple[Part, ...] = 0.5,
    complements: bool = True,
    of: Annotated[str, averaged_method] = "fuse",
    seed: Seed = 0,
) -> tuple[PatchScores, dict[str, Any]]:
    """Fused maps averaged over random halves of the patches, and their complements.

    Parameters
    ----------
    coalitions
        Number of coalitions; even, if complements are used.
    kept
        Share of the patches in the first coalition of a pair; of several shares, pairs use one after the other.
    complements
        Whether to draw pairs of a coalition and its complement instead of independent coalitions.
    of
        Spec of the method that is averaged, any sum or roll-out over layers; "temper" takes half the time.
    seed
        Seed of the coalitions, combined with the image's content.
    """
    averaged = averaged_method(of)
    keep = draw_coalitions(probe.originals, probe.layout.patches, coalitions, kept, complements, seed).to(
        probe.images.device
    )
    whole = averaged.token_scores(probe)[:, probe.layout.prefix :]  # the coalition of all patches
    scores = in_coalitions(probe, keep, averaged.token_scores)
    count = keep.sum(1).repeat_interleave(probe.targets_per_image, 0)
    inside = keep.repeat_interleave(probe.targets_per_image, 0)
    # the coalition of all patches is not random: the error is that of the other terms of the mean
    stderr = error_of_means(scores, inside) * count / (1 + count)
    return (whole + scores.sum(1)) / (1 + count), {"signed": averaged.signed, "stderr": stderr}


def error_of_means(values: Float[Tensor, "r s p"], inside: Bool[Tensor, "r s p"]) -> Float[Tensor, "r p"]:
    """Standard error of the mean over s of the values that are `inside`; NaN for fewer than two of them."""
    count = inside.sum(1)
    mean = values.where(inside, 0).sum(1) / count.clamp(min=1)
    squares = (values - mean[:, None]).square().where(inside, 0).sum(1)
    return (squares / (count * (count - 1)).clamp(min=1)).sqrt().where(count > 1, torch.nan)


def draw_coalitions(
    images: Images, patches: int, coalitions: int, share_kept: Part | tuple[Part, ...], complements: bool, seed: int
) -> Keep:
    """Random coalitions per image, each followed by its complement if `complements`; seeded by the image's content."""
    if coalitions < 1 or (complements and coalitions % 2):
        raise SpecError(
            f"coalitions={coalitions}; they come in pairs, a coalition and its complement: give an even number"
        )
    shares = share_kept if isinstance(share_kept, tuple) else (share_kept,)
    if not shares or not all(0 < round(share * patches) < patches for share in shares):
        raise SpecError(f"kept={share_kept}; give a share of the {patches} patches that leaves some in and some out")
    draws = coalitions // 2 if complements else coalitions
    sizes = torch.tensor([round(shares[draw % len(shares)] * patches) for draw in range(draws)])[:, None]

    def drawn(source: torch.Generator) -> Bool[Tensor, "s p"]:
        ranks = torch.stack([torch.randperm(patches, generator=source) for _ in sizes])
        keep = ranks < sizes
        return torch.stack([keep, ~keep], 1).flatten(0, 1) if complements else keep

    return torch.stack([drawn(source) for source in generators(images, seed)])
