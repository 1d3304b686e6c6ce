"""Annealed: a map averaged over coalitions of the patches.

Averaged over random halves of the patches, a share and a slope estimate what a patch adds to a coalition that it joins.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from jaxtyping import Bool
from torch import Tensor

from vitreous.capture.coalitions import in_coalitions
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError
from vitreous.methods.controls import generators
from vitreous.methods.fuse import slopes_beside
from vitreous.methods.method import Method, method
from vitreous.methods.options import Range, Seed
from vitreous.methods.spec import resolve
from vitreous.models.shapes import Images, Keep, PatchScores

Part = Annotated[float | int, Range(0, 1, above=True, below=True)]  # neither nothing nor all


def walk_of(spec: str) -> Method:
    """A method whose map can be made of some of the patches."""
    made = resolve(spec)
    if (
        made.fold is None
        or made.through not in (None, slopes_beside)
        or made.options.get("space", "tokens") != "tokens"
    ):
        raise SpecError(
            f"of={spec!r} does not bring layers together; use one that does, such as 'fuse' or 'ixg@libra+plus'"
        )
    if "question" in made.options:
        raise SpecError(f"of={spec!r} says what it asks; say it of the whole: anneal(of=…, question=…)")
    if not made.class_specific:
        raise SpecError(f"of={spec!r} is the same whatever is asked; use one that is not, such as 'fuse'")
    return made


@method(
    "anneal",
    formula="sⱼ = mean over coalitions S ∋ j of fuseⱼ(S), S random halves of the patches with their complements, and all of them",
    signed=True,
    class_specific=True,
    question="probability",
    trial={"coalitions": 4},
    forwards="2 + 2 * coalitions",
    backwards="2 + 2 * coalitions",
)
def anneal(
    probe: Probe,
    coalitions: Annotated[int, Range(high=10_000_000)] = 16,
    kept: Part | tuple[Part, ...] = 0.5,
    complements: bool = True,
    of: Annotated[str, walk_of] = "fuse",
    seed: Seed = 0,
) -> tuple[PatchScores, dict[str, Any]]:
    """Fused maps averaged over random halves of the patches, and their complements.

    `of`: the map that is averaged, any sum or roll-out of layers; "temper" takes half the time. `kept`: the share of patches in the first of a
    pair; with several, pairs take them in turn. `complements=False` draws every coalition by itself.
    """
    averaged = walk_of(of)
    keep = drawn_coalitions(probe.originals, probe.layout.patches, coalitions, kept, complements, seed).to(
        probe.images.device
    )
    whole = averaged.token_scores(probe)[:, probe.layout.prefix :]  # all patches are a coalition too
    found = in_coalitions(probe, keep, averaged.token_scores).sum(1)
    count = keep.sum(1).repeat_interleave(probe.targets_per_image, 0)
    return (whole + found) / (1 + count), {"signed": averaged.signed}


def drawn_coalitions(
    images: Images, patches: int, coalitions: int, kept: Part | tuple[Part, ...], complements: bool, seed: int
) -> Keep:
    """Random coalitions, with their complements, as the picture's content draws them; several sizes take turns."""
    if coalitions < 1 or (complements and coalitions % 2):
        raise SpecError(
            f"coalitions={coalitions}; they come in pairs, a coalition and its complement: give an even number"
        )
    shares = kept if isinstance(kept, tuple) else (kept,)
    if not shares or not all(0 < round(share * patches) < patches for share in shares):
        raise SpecError(f"kept={kept}; give a share of the {patches} patches that leaves some in and some out")
    draws = coalitions // 2 if complements else coalitions
    sizes = torch.tensor([round(shares[draw % len(shares)] * patches) for draw in range(draws)])[:, None]

    def drawn(source: torch.Generator) -> Bool[Tensor, "s p"]:
        ranks = torch.stack([torch.randperm(patches, generator=source) for _ in sizes])
        keep = ranks < sizes
        return torch.stack([keep, ~keep], 1).flatten(0, 1) if complements else keep

    return torch.stack([drawn(source) for source in generators(images, seed)])
