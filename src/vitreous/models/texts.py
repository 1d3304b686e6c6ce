"""A tower that answers with embeddings, seen as a model whose classes are texts."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from vitreous.models.shapes import Images, Logits, Pooled
from vitreous.models.vit import ViT

KEY = "embedding"  # in the facts of a tower: why its outputs are no classes


def likened(vit: ViT, texts: Float[Tensor, "t d"], scale: float) -> ViT:
    """The tower whose logits are scale · cosine with every text (of unit length); its own embedding stays affine."""
    rows = (scale * texts).to(vit.device, vit.dtype)
    rows = (
        rows.expand(2, -1) if len(rows) == 1 else rows
    )  # a single logit would be taken for one sigmoid of two classes

    def classify(pooled: Pooled) -> Logits:
        return vit.classify(pooled) @ rows.T

    def length(pooled: Pooled) -> Float[Tensor, "b 1"]:
        return vit.classify(pooled).norm(dim=-1, keepdim=True)

    def forward(images: Images) -> Logits:
        said = vit.forward(images)
        return said @ rows.T / said.norm(dim=-1, keepdim=True)

    facts = {**vit.facts, "outputs": len(rows)}
    return replace(vit, classify=classify, length=length, forward=forward, classes=None, facts=facts)
