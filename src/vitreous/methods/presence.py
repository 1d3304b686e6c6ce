"""Presence: the slope of the very question that faithfulness asks, what does the model say as a patch leaves?

Give every token a presence m: attention weighs it by Aᵢⱼ ∝ mⱼ exp(qᵢ·kⱼ), and a mean by mⱼ. At 1 the model is as it was, at 0 the token
has truly left, for every block and for the head. The derivative at 1 needs nothing held fixed and nothing multiplied by its
input: it is what the score loses, to first order, as the patch fades.
"""

from __future__ import annotations

from vitreous.capture.layer import Layer
from vitreous.methods.fold import plus
from vitreous.methods.method import method
from vitreous.models.shapes import TokenScores


@method(
    "presence",
    formula="sⱼ = ∂t/∂mⱼ = Σₗ Σₕᵢ Aₗₕᵢⱼ (Gₗₕᵢⱼ − Σₖ Aₗₕᵢₖ Gₗₕᵢₖ), and the same of the head's pooling",
    fold=plus,
    attention=True,
    presence=True,
    signed=True,
    class_specific=True,
    question="probability",
)
def presence(layer: Layer) -> TokenScores:
    """How much of the score fades with a patch that begins to leave."""
    return layer.presence_grad
