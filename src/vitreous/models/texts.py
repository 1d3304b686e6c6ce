"""Zero-shot classification: an image tower that outputs embeddings becomes a model whose classes are texts."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from vitreous.models.model import Outputs
from vitreous.models.shapes import Images, Logits, Pooled
from vitreous.models.vit import ViT


def likened(vit: ViT, texts: Float[Tensor, "t d"], scale: float) -> ViT:
    """Return `vit` with logits `scale` · cosine(image embedding, text embedding), one per text.

    Parameters
    ----------
    vit
        A model that outputs image embeddings.
    texts
        Text embeddings of unit length, one row per class.
    scale
        Factor of the cosine.

    Returns
    -------
    ViT
        Its `classify` returns the scalar products with the scaled texts, which keeps it affine; the norm of the image
        embedding, by which they are divided, is in `length`.
    """
    rows = (scale * texts).to(vit.device, vit.dtype)

    def classify(pooled: Pooled) -> Logits:
        return vit.classify(pooled) @ rows.T

    def length(pooled: Pooled) -> Float[Tensor, "b 1"]:
        return vit.classify(pooled).norm(dim=-1, keepdim=True)

    def forward(images: Images) -> Logits:
        said = vit.forward(images)
        return said @ rows.T / said.norm(dim=-1, keepdim=True)

    answers = Outputs("classes", len(rows))
    return replace(vit, classify=classify, length=length, forward=forward, classes=None, output_type=answers)
