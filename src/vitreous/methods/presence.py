"""Presence: the derivative of the score with respect to the presence of each patch.

Every token gets a presence m, with attention Aᵢⱼ ∝ mⱼ exp(qᵢ·kⱼ) and mean pooling weighted by mⱼ. At m = 1 the model
is unchanged; at m = 0 the token is removed from every block and from the head. The derivative at m = 1 holds nothing
fixed and is not multiplied by the input: to first order, it is the decrease of the score when the patch is removed,
which is what faithfulness metrics measure.
"""

from __future__ import annotations

from vitreous.capture.layer import Layer
from vitreous.methods.folds import plus
from vitreous.methods.register_method import method
from vitreous.models.tensor_types import TokenScores


@method(
    "presence",
    family="Of this library",
    formula="sⱼ = ∂t/∂mⱼ = Σₗ Σₕᵢ Aₗₕᵢⱼ (Gₗₕᵢⱼ − Σₖ Aₗₕᵢₖ Gₗₕᵢₖ), and the same of the head's pooling",
    fold=plus,
    attention=True,
    presence=True,
    signed=True,
    class_specific=True,
    question="probability",
)
def presence(layer: Layer) -> TokenScores:
    """Derivative of the score in the presence of a patch: its first-order change when the patch is removed."""
    return layer.presence_grad
