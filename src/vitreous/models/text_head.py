"""Zero-shot classification: an image tower that outputs embeddings becomes a model whose classes are texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitreous.models.model import AnyModel, Outputs
from vitreous.models.tensor_types import Logits
from vitreous.models.vit import ViT


def compare_with_texts(vit: AnyModel, texts: Float[Tensor, "t d"], scale: float) -> AnyModel:
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

    def cosines(embedding: Tensor) -> Logits:
        return embedding @ rows.T / embedding.norm(dim=-1, keepdim=True)

    changes: dict[str, Any] = {
        "forward": lambda images: cosines(vit.forward(images)),
        "read": lambda output: cosines(vit.read(output)),
        "output_type": Outputs("classes", len(rows)),
    }
    if isinstance(vit, ViT):
        changes["classify"] = lambda pooled: vit.classify(pooled) @ rows.T
        changes["length"] = lambda pooled: vit.classify(pooled).norm(dim=-1, keepdim=True)
    return replace(vit, classes=None, **changes)
