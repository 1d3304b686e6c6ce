"""Fused: the sum of `temper` (a patch's share of the score) and `presence` (the slope of the score in its presence).

A share distributes the score over the tokens and does not depend on the score without them. A slope is the derivative
of the score as a patch begins to be removed and does not depend on the score itself. Their errors differ, and on
photographs their sum is more faithful than either. Both are in units of probability, so they are added without
weights.
"""

from __future__ import annotations

from vitreous.capture.layer import Layer
from vitreous.capture.linearise import TEMPERED
from vitreous.methods.folds import plus
from vitreous.methods.register_method import method
from vitreous.methods.token_gradients import input_x_gradient
from vitreous.models.tensor_types import TokenScores


@method(
    "fuse",
    family="Of this library",
    formula="s = temper / L + presence: the mean share over layers, and the slope ∂t/∂mⱼ of its presence",
    linearisation=TEMPERED,
    fixed_linearisation=True,
    fold=plus,
    fixed_fold="temper+{fold}",
    exact_presence=True,
    signed=True,
    class_specific=True,
    question="probability",
    forwards=2,
    backwards=2,
    precision="bf16",
)
def fuse(layer: Layer) -> TokenScores:
    """A patch's share of the score plus the derivative of the score in that patch's presence."""
    return input_x_gradient(layer) / layer.depth + layer.presence_grad
