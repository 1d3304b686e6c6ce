"""Backward pass through the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.forward import HeadOutput, run_head
from vitreous.capture.layer import bias_map, interleave_targets
from vitreous.capture.linearise import Linearisation
from vitreous.models.tensor_types import Tokens
from vitreous.models.vit import ViT

Scores = Callable[[HeadOutput], list[Float[Tensor, " b"]]]  # scores to explain, one tensor per target


@dataclass(frozen=True, slots=True, eq=False)
class HeadGradients:
    """Gradients of the score at the encoder's output. Rows r: image by image, then target by target."""

    grads: list[Tokens]  # one tensor per target
    biases: Float[Tensor, "r n"] | None = None
    pooled_biases: Float[Tensor, " r"] | None = None
    presence: Float[Tensor, "r n"] | None = None


def backpropagate_head(
    vit: ViT, tokens: Tokens, scores: Scores, lin: Linearisation, biases: bool, presence: bool
) -> HeadGradients:
    """Run the head forward once, and backward once per target."""
    leaf = tokens.detach().requires_grad_()
    there = torch.zeros_like(leaf[..., 0]).requires_grad_() if presence else None
    with torch.enable_grad():
        head_output = run_head(vit, leaf, lin, biases, there)
        totals = [score.sum() for score in scores(head_output)]
    bias_terms = (*head_output.token_bias_terms, *head_output.pooled_bias_terms)
    inputs = [leaf, *(output for output, _ in bias_terms), *([] if there is None else [there])]
    grads, token_biases, pooled_biases, presences = [], [], [], []
    for place, total in enumerate(totals):
        gradients = torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=place + 1 < len(totals))
        grads.append(torch.zeros_like(leaf) if gradients[0] is None else gradients[0])
        if there is not None:
            gradients, slope = gradients[:-1], gradients[-1]
            presences.append(torch.zeros_like(there) if slope is None else slope)
        if biases:
            split = 1 + len(head_output.token_bias_terms)
            # an attention pooler may skip prefix tokens; they add no biases, and their share is 0
            token_biases.append(bias_map(head_output.token_bias_terms, gradients[1:split], leaf))
            pooled = bias_map(head_output.pooled_bias_terms, gradients[split:], None)
            pooled_biases.append(leaf.new_zeros(len(leaf)) if pooled is None else pooled)
    return HeadGradients(
        grads,
        interleave_targets(token_biases) if biases else None,
        interleave_targets(pooled_biases) if biases else None,
        interleave_targets(presences) if presence else None,
    )
