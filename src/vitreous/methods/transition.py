"""TokenTM (VTranM): attention weighed by how much each token is transformed, in length and in direction."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.values import head_values, second_normed
from vitreous.methods.fold import at, rollout
from vitreous.methods.method import method
from vitreous.methods.options import choice

Matrix = Float[Tensor, "r n n"]


def transformation(
    before: Float[Tensor, "*one n d"], after: Float[Tensor, "*any n d"], length: bool, necc: bool, eps: float = 0.0
) -> Float[Tensor, "*any n"]:
    """How much a token is changed: ratio of lengths × softmax over tokens of the cosine (NECC)."""
    weight = torch.ones_like(after[..., 0])
    if length:
        weight = weight * after.norm(dim=-1) / (before.norm(dim=-1) + eps)
    if necc:
        weight = weight * F.cosine_similarity(before.expand_as(after), after, dim=-1).softmax(-1)
    return weight


@method(
    "tokentm",
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
    source: str = "residual",
    value_bias: bool = False,
    length: bool = True,
    necc: bool = True,
    branches: str = "both",
    variant: str = "paper",
) -> Matrix:
    """Gradient-weighted attention × token transformation, through attention and MLP, from the first tokens' lengths on.

    `source`: transformations are measured from the "residual" stream or from the "norm"'s output. `length` and `necc`
    switch the two measures; `branches="gradient"` is positive attention gradients alone (the paper's baseline);
    `variant="libragrad"` is that repository's re-implementation.
    """
    choice("source", source, ("residual", "norm"))
    choice("branches", branches, ("both", "gradient"))
    choice("variant", variant, ("paper", "libragrad"))
    positive = layer.attention_grad.clamp(min=0)
    if branches == "gradient":
        product = (positive * layer.attention).mean(1)
        return product + torch.eye(product.shape[-1]).to(product)  # eq. 8: C = I + E_h[relu(∇p) ⊙ A]
    if variant == "libragrad":  # the stream after each sub-layer, no heads, means multiplied
        moved = transformation(layer.hidden, layer.mid, length, necc, 1e-8)
        mixing = positive.mean(1) * layer.attention.mean(1) * moved[:, None]
        fed = transformation(layer.mid, layer.output, length, necc, 1e-8)
    else:
        values = head_values(layer, "included" if value_bias else "excluded")
        before = layer.hidden if source == "residual" else layer.normed
        moved = transformation(before[:, None], values, length, necc)  # [r h n]
        mixing = (positive * layer.attention * moved[:, :, None]).mean(1)
        before = layer.mid if source == "residual" else second_normed(layer)
        fed = transformation(before, layer.output - layer.mid, length, necc)
    # (I + diag(fed)) (I + mixing) − I, so that the fold's row + row · T is the product of both branches
    return (1 + fed)[:, :, None] * mixing + torch.diag_embed(fed)
