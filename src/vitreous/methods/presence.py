"""Presence, the derivative of the score with respect to the presence of each patch; and fused, its sum with `temper`.

Every token gets a presence m, with attention Aᵢⱼ ∝ mⱼ exp(qᵢ·kⱼ) and mean pooling weighted by mⱼ. At m = 1 the model
is unchanged; at m = 0 the token is removed from every block and from the head. The derivative at m = 1 holds nothing
fixed and is not multiplied by the input: to first order, it is the decrease of the score when the patch is removed,
which is what faithfulness metrics measure.

`temper` is a patch's share of the score. A share distributes the score over the tokens and does not depend on the score
without them. A slope is the derivative of the score as a patch begins to be removed and does not depend on the score
itself. Their errors differ, and on photographs their sum is more faithful than either. Both are in units of probability,
so they are added without weights.
"""

from __future__ import annotations

from typing import Any

from vitreous.capture.layer import Layer
from vitreous.capture.linearise import TEMPERED
from vitreous.methods.folds import plus
from vitreous.methods.register_method import method
from vitreous.methods.token_gradients import input_x_gradient
from vitreous.models.tensor_types import TokenScores

OF_THIS_LIBRARY: dict[str, Any] = {
    "family": "Of this library",
    "signed": True,
    "class_specific": True,
    "question": "probability",
}


@method(
    "presence",
    formula="sⱼ = ∂t/∂mⱼ = Σₗ Σₕᵢ Aₗₕᵢⱼ (Gₗₕᵢⱼ − Σₖ Aₗₕᵢₖ Gₗₕᵢₖ), and the same of the head's pooling",
    fold=plus,
    attention=True,
    presence=True,
    **OF_THIS_LIBRARY,
)
def presence(layer: Layer) -> TokenScores:
    """Derivative of the score in the presence of a patch: its first-order change when the patch is removed."""
    return layer.presence_grad


@method(
    "fuse",
    formula="s = temper / L + presence: the mean share over layers, and the slope ∂t/∂mⱼ of its presence",
    linearisation=TEMPERED,
    fixed_linearisation=True,
    fold=plus,
    fixed_fold="temper+{fold}",
    exact_presence=True,
    forwards=2,
    backwards=2,
    precision="bf16",
    **OF_THIS_LIBRARY,
)
def fuse(layer: Layer) -> TokenScores:
    """A patch's share of the score plus the derivative of the score in that patch's presence."""
    return input_x_gradient(layer) / layer.depth + layer.presence_grad
