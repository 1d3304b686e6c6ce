"""TokenTM (VTranM): attention weighted by the change of each token in length and direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.value_vectors import head_values, second_normed
from vitreous.methods.fold import at, rollout
from vitreous.methods.method import method

Matrix = Float[Tensor, "r n n"]
PerHeadMatrix = Float[Tensor, "r h n n"]
Weight = Float[Tensor, "*any n"]


def transformation(
    before: Float[Tensor, "*one n d"], after: Float[Tensor, "*any n d"], length: bool, necc: bool, eps: float = 0.0
) -> tuple[Weight, Weight]:
    """Ratio of lengths, and softmax over tokens of the cosine (NECC), of tokens before and after; 1 if switched off."""
    ratio, likeness = torch.ones_like(after[..., 0]), torch.ones_like(after[..., 0])
    if length:
        ratio = after.norm(dim=-1) / (before.norm(dim=-1) + eps)
    if necc:
        likeness = F.cosine_similarity(before.expand_as(after), after, dim=-1).softmax(-1)
    return ratio, likeness


@dataclass(frozen=True, slots=True)
class Transition:
    """Measures of TokenTM at one block.

    Attributes
    ----------
    positive
        Positive part of the score's gradient with respect to the attention.
    attention
        Attention matrices.
    length, necc
        Length ratio and NECC of each head's value vector and the token.
    mlp_length, mlp_necc
        Length ratio and NECC of the MLP's output and the token.
    """

    positive: PerHeadMatrix
    attention: PerHeadMatrix
    length: Float[Tensor, "r h n"]
    necc: Float[Tensor, "r h n"]
    mlp_length: Float[Tensor, "r n"]
    mlp_necc: Float[Tensor, "r n"]

    def joined(self) -> Matrix:
        """T = (I + diag(fed)) (I + mixing) − I, so that the fold's step row + row · T applies both branches."""
        moved = self.length * self.necc
        mixing = (self.positive * self.attention * moved[:, :, None]).mean(1)
        fed = self.mlp_length * self.mlp_necc
        return (1 + fed)[:, :, None] * mixing + torch.diag_embed(fed)


def transition(
    layer: Layer,
    source: Literal["residual", "norm"] = "residual",
    value_bias: bool = False,
    length: bool = True,
    necc: bool = True,
    variant: Literal["paper", "libragrad"] = "paper",
) -> Transition:
    """The measures of `tokentm` at one block; options as in `tokentm`."""
    positive, attention = layer.attention_grad.clamp(min=0), layer.attention
    if variant == "libragrad":  # residual stream after each sub-layer; head means are multiplied
        positive, attention = positive.mean(1, keepdim=True), attention.mean(1, keepdim=True)
        moved = transformation(layer.hidden[:, None], layer.mid[:, None], length, necc, 1e-8)
        fed = transformation(layer.mid, layer.output, length, necc, 1e-8)
    else:
        values = head_values(layer, "included" if value_bias else "excluded")
        before = layer.hidden if source == "residual" else layer.normed
        moved = transformation(before[:, None], values, length, necc)  # [r h n]
        before = layer.mid if source == "residual" else second_normed(layer)
        fed = transformation(before, layer.output - layer.mid, length, necc)
    return Transition(positive, attention, *moved, *fed)


@method(
    "tokentm",
    family="Attention",
    formula="s = ρᵀ [∏ₗ (I + diag w)(I + meanₕ relu(Gₕ) ⊙ Aₕ diag(wₕ))] diag‖X₀‖, w = ‖Ẽ‖/‖E‖ · softmax cos(E, Ẽ), E → Ẽ through head h or MLP",
    fold=rollout.with_options(form="add", lengths=True),
    mixing=True,
    attention=True,
    signed=False,
    class_specific=True,
    question="probability",
    presets={
        "full": {},
        "af+l": {"necc": False},
        "af": {"length": False, "necc": False, "lengths": False},
        "baseline": {"fold": at.with_options(layer=0), "branches": "gradient"},
        "libragrad": {"variant": "libragrad"},
    },
    aliases=("vtranm", "token-tm"),
    paper="wu2024token",
)
def tokentm(
    layer: Layer,
    source: Literal["residual", "norm"] = "residual",
    value_bias: bool = False,
    length: bool = True,
    necc: bool = True,
    branches: Literal["both", "gradient"] = "both",
    variant: Literal["paper", "libragrad"] = "paper",
) -> Matrix:
    """Gradient-weighted attention × token transformation, through attention and MLP, from the first tokens' lengths on.

    Parameters
    ----------
    source
        Tokens that transformations are compared with: the "residual" stream or the "norm"'s output.
    value_bias
        Whether value vectors include their bias.
    length, necc
        Whether to use the length ratio and the softmax of cosines (NECC).
    branches
        "both" attention and MLP, or "gradient" for positive attention gradients times attention only (the paper's
        baseline).
    variant
        "paper", or "libragrad" for the re-implementation in that repository.
    """
    if branches == "gradient":
        product = (layer.attention_grad.clamp(min=0) * layer.attention).mean(1)
        return product + torch.eye(product.shape[-1]).to(product)  # eq. 8: C = I + E_h[relu(∇p) ⊙ A]
    return transition(layer, source, value_bias, length, necc, variant).joined()
