"""TokenTM (VTranM): attention weighted by the change of each token in length and direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.fused import row_dot, token_products
from vitreous.capture.layer import Layer
from vitreous.capture.value_vectors import head_value_products, second_normed
from vitreous.methods.folds import at, read_token_scores, rollout
from vitreous.methods.register_method import method
from vitreous.models.tensor_types import TokenMatrix, TokenScores

PerHeadMatrix = Float[Tensor, "r h n n"]
Weight = Float[Tensor, "*any n"]
SMALLEST = 1e-8  # length in a cosine, as in torch's cosine_similarity


def transformation(
    products: tuple[Float[Tensor, "r n"], Weight, Weight], length: bool, necc: bool, eps: float = 0.0
) -> tuple[Weight, Weight]:
    """Ratio of lengths, and softmax over tokens of the cosine (NECC), of tokens before and after; 1 if switched off.

    `products` are ⟨before, before⟩ [r n], ⟨before, after⟩ and ⟨after, after⟩, both [r n] or [r h n].
    """
    squared_before, shared, squared = products
    old, new = squared_before.sqrt(), squared.sqrt()
    old = old if new.ndim == old.ndim else old[:, None]
    ratio = new / (old + eps) if length else torch.ones_like(new)
    cosine = shared / (old.clamp(min=SMALLEST) * new.clamp(min=SMALLEST))
    return ratio, cosine.softmax(-1) if necc else torch.ones_like(new)


@dataclass(frozen=True, slots=True)
class Transition:
    """Measures of TokenTM at one block.

    Attributes
    ----------
    layer
        The block.
    averaged
        Whether gradient and attention are averaged over heads before they are multiplied.
    length, necc
        Length ratio and NECC of each head's value vector and the token.
    mlp_length, mlp_necc
        Length ratio and NECC of the MLP's output and the token.
    """

    layer: Layer
    averaged: bool
    length: Float[Tensor, "r h n"]
    necc: Float[Tensor, "r h n"]
    mlp_length: Float[Tensor, "r n"]
    mlp_necc: Float[Tensor, "r n"]

    @property
    def positive(self) -> PerHeadMatrix:
        """Positive part of the score's gradient with respect to the attention."""
        gradient = self.layer.attention_grad.clamp(min=0)
        return gradient.mean(1, keepdim=True) if self.averaged else gradient

    @property
    def attention(self) -> PerHeadMatrix:
        """Attention matrices."""
        return self.layer.attention.mean(1, keepdim=True) if self.averaged else self.layer.attention

    def joined(self) -> TokenMatrix:
        """T = (I + diag(fed)) (I + mixing) − I, so that the fold's step row + row · T applies both branches."""
        moved = self.length * self.necc
        if self.averaged:
            mixing = (self.positive * self.attention * moved[:, :, None]).mean(1)
        else:
            mixing = self.layer.positive_attention(moved)
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
    hidden, mid, output = layer.hidden, layer.mid, layer.output
    if variant == "libragrad":  # residual stream after each sub-layer; head means are multiplied
        moved = transformation(token_products(hidden, mid), length, necc, 1e-8)
        fed = transformation(token_products(mid, output), length, necc, 1e-8)
        return Transition(layer, True, moved[0][:, None], moved[1][:, None], *fed)
    before = hidden if source == "residual" else layer.normed
    sent = head_value_products(layer, "included" if value_bias else "excluded", before)
    moved = transformation((row_dot(before, before), *sent), length, necc)  # [r h n]
    before = mid if source == "residual" else second_normed(layer)
    return Transition(layer, False, *moved, *transformation(token_products(before, output, mid), length, necc))


def measure_transition(layer: Layer, branches: str, length: bool, necc: bool, **options: Any) -> dict[str, TokenScores]:
    """Means over heads, in the row that the head reads; without those that are switched off."""
    if branches == "gradient":
        return {}
    part = transition(layer, length=length, necc=necc, **options)
    measures = {
        "attention": read_token_scores(layer, part.attention.mean(1)),
        "weighted": read_token_scores(layer, (part.positive * part.attention).mean(1)),
        "length": part.length.mean(1),
        "necc": part.necc.mean(1),
        "mlp_length": part.mlp_length,
        "mlp_necc": part.mlp_necc,
    }
    shown = {"length": length, "necc": necc}
    return {name: measure for name, measure in measures.items() if shown.get(name.removeprefix("mlp_"), True)}


@method(
    "tokentm",
    family="Attention",
    formula="s = ρᵀ [∏ₗ (I + diag w)(I + meanₕ relu(Gₕ) ⊙ Aₕ diag(wₕ))] diag‖X₀‖, w = ‖Ẽ‖/‖E‖ · softmax cos(E, Ẽ), E → Ẽ through head h or MLP",
    fold=rollout.with_options(form="add", lengths=True),
    measures=measure_transition,
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
    precision="bf16",
)
def tokentm(
    layer: Layer,
    source: Literal["residual", "norm"] = "residual",
    value_bias: bool = False,
    length: bool = True,
    necc: bool = True,
    branches: Literal["both", "gradient"] = "both",
    variant: Literal["paper", "libragrad"] = "paper",
) -> TokenMatrix:
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
        product = layer.positive_attention()
        return product + torch.eye(
            product.shape[-1], dtype=product.dtype, device=product.device
        )  # eq. 8: C = I + E_h[relu(∇p) ⊙ A]
    return transition(layer, source, value_bias, length, necc, variant).joined()
