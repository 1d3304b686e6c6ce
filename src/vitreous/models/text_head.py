"""Zero-shot classification: an image tower that outputs embeddings becomes a model whose classes are texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitreous.models.model import AnyModel, Outputs
from vitreous.models.tensor_types import Images, Logits, Pooled
from vitreous.models.vit import ViT


def likened(vit: AnyModel, texts: Float[Tensor, "t d"], scale: float) -> AnyModel:
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
        assert isinstance(vit, ViT)
        return vit.classify(pooled) @ rows.T

    def length(pooled: Pooled) -> Float[Tensor, "b 1"]:
        assert isinstance(vit, ViT)
        return vit.classify(pooled).norm(dim=-1, keepdim=True)

    def read(output: Any) -> Logits:
        embedding = vit.read(output)
        return embedding @ rows.T / embedding.norm(dim=-1, keepdim=True)

    def forward(images: Images) -> Logits:
        embedding = vit.forward(images)
        return embedding @ rows.T / embedding.norm(dim=-1, keepdim=True)

    changes: dict[str, Any] = {"forward": forward, "read": read, "output_type": Outputs("classes", len(rows))}
    if isinstance(vit, ViT):
        changes |= {"classify": classify, "length": length}
    return replace(vit, classes=None, **changes)
