"""A method layer by layer: what PLUS and SkipPLUS add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vitreous.methods.fold import FOLDS, Fold, read
from vitreous.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.capture.layer import Layer
    from vitreous.methods.fold import Signal
    from vitreous.models.shapes import TokenScores
    from vitreous.models.vit import ViT


def shoot(vit: ViT, images: Tensor, method: Method, target: int, question: str) -> dict[str, Any]:
    """Maps [layers p] of every layer alone, and of SkipPLUS from every layer on."""
    import torch

    alone = [method.folded(FOLDS["at"].with_options(layer=layer)) for layer in range(vit.depth)]
    summed = [method.folded(FOLDS["skipplus"].with_options(start=layer)) for layer in range(vit.depth)]
    if method.biases or method.finish is not None:  # what is added or done at the end is not a sum over layers
        layers = torch.cat([mapped(vit, images, one, target, question) for one in alone])
        totals = torch.cat([mapped(vit, images, one, target, question) for one in summed])
    else:
        layers = in_one_pass(vit, images, method, target, question)
        totals = layers.flip(0).cumsum(0).flip(0)
    starts = [one.spec for one in summed]
    return {"method": method.spec, "signed": method.signed, "layers": layers, "totals": totals, "starts": starts}


def in_one_pass(vit: ViT, images: Tensor, method: Method, target: int, question: str) -> Tensor:
    """Every layer's map, from the first to the last, out of one forward and one backward."""
    import torch

    kept: list[Tensor] = []

    def each(layers: Iterator[Layer], signal: Signal) -> TokenScores:
        kept.extend(read(layer, signal(layer)) for layer in layers)
        return kept[-1]

    mapped(vit, images, method.folded(Fold("each", each, lambda depth: 0)), target, question)
    prefix = vit.layout((images.shape[-2], images.shape[-1])).prefix
    return torch.cat(kept[::-1])[:, prefix:].cpu()


def mapped(vit: ViT, images: Tensor, method: Method, target: int, question: str) -> Tensor:
    import torch

    from vitreous.capture.probe import Probe

    with torch.inference_mode(False):
        found = method(Probe(vit, images, torch.tensor([target]), question))
    assert found.patches is not None
    return found.patches.cpu()
