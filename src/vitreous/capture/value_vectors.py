"""Head-transformed value vectors f = W_o · v (before attention weights them), and parts of the MLP branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.backward_functions import slope_at_zero
from vitreous.capture.fused import value_products
from vitreous.capture.layer import Layer
from vitreous.capture.linearise import epsilon
from vitreous.core.errors import ModelError

Bias = Literal["included", "excluded", "free"]


@torch.no_grad()
def head_values(layer: Layer, bias: Bias = "included") -> Float[Tensor, "r h n d"]:
    """Return the value vectors of every head after the output projection, with LayerScale and without the output bias.

    Parameters
    ----------
    layer
        Layer of a probe.
    bias
        "included" keeps the bias of the values, "excluded" subtracts it, "free" also subtracts the contribution of the
        first norm's bias.

    Raises
    ------
    ModelError
        If the model normalises the concatenated heads, so that single heads have no vectors.
    """
    value, shift = layer.value, value_shift(layer, bias)
    value = value if shift is None else value - shift[:, None]
    return torch.einsum("rhne,hed->rhnd", value, head_projections(layer))


@torch.no_grad()
def head_value_products(
    layer: Layer, bias: Bias, other: Float[Tensor, "r n d"]
) -> tuple[Float[Tensor, "r h n"], Float[Tensor, "r h n"]]:
    """Return ⟨other, f⟩ and ⟨f, f⟩ of the vectors f of `head_values`, which are not computed.

    With f = Wᵀv: ⟨u, f⟩ = ⟨W u, v⟩ and ⟨f, f⟩ = vᵀ(W Wᵀ)v, so that nothing is larger than the values.
    """
    value, weight = layer.states.value.detach(), head_projections(layer)
    projected = (other @ weight.flatten(0, 1).mT).unflatten(-1, weight.shape[:2])
    return value_products(value, value_shift(layer, bias), projected, weight @ weight.mT)


def head_projections(layer: Layer) -> Float[Tensor, "h e d"]:
    """The rows of the output projection that each head uses."""
    attention_part, value = layer.block.attention, layer.states.value
    if not isinstance(attention_part.inner_norm, nn.Identity):
        raise ModelError("vectors of single heads are not defined: this model normalises the mixed heads together")
    width = value.shape[1] * value.shape[3]
    probe = torch.eye(width, device=value.device, dtype=layer.states.hidden.dtype)[None]
    weight = (attention_part.project(probe) - attention_part.project(torch.zeros_like(probe[:, :1])))[0]  # [h·e d]
    return weight.unflatten(0, (value.shape[1], -1))


def value_shift(layer: Layer, bias: Bias) -> Float[Tensor, "h e"] | None:
    """What `head_values` subtracts from the values."""
    if bias == "included":
        return None
    attention_part, token = layer.block.attention, torch.zeros_like(layer.states.hidden[:1, :1])
    shift = getattr(attention_part.norm, "bias", None)
    token = token + shift if bias == "free" and shift is not None else token
    return attention_part.qkv(token)[2][0, :, 0]


@torch.no_grad()
def second_norm(layer: Layer) -> tuple[Callable[[Tensor], Tensor], Float[Tensor, "r n 1"]]:
    """Return the second norm without its division (centring and gain), and the spread by which it divides each token.

    Raises
    ------
    ModelError
        If the norm is neither LayerNorm nor RMSNorm.
    """
    norm: Any = layer.block.mlp.norm
    centred = isinstance(norm, nn.LayerNorm)
    if not centred and "rms" not in type(norm).__name__.lower():
        raise ModelError(f"a norm of type {type(norm).__name__!r} is not known here; known: LayerNorm, RMSNorm")

    def centre(u: Tensor) -> Tensor:
        return u - u.mean(-1, keepdim=True) if centred else u

    def centre_and_scale(u: Tensor) -> Tensor:
        return centre(u) if norm.weight is None else centre(u) * norm.weight.detach()

    spread = (centre(layer.mid).square().mean(-1, keepdim=True) + epsilon(norm, layer.mid)).sqrt()
    return centre_and_scale, spread


@torch.no_grad()
def feed_scale(layer: Layer) -> Tensor | float:
    """Return the LayerScale of the MLP branch, or 1 if there is none."""
    scale = layer.block.mlp.layer_scale()
    return 1.0 if scale is None else scale.detach()


@torch.no_grad()
def second_normed(layer: Layer) -> Float[Tensor, "r n d"]:
    """Return the output of the second norm, the input of the MLP."""
    return layer.block.mlp.norm(layer.mid)


def secant(act: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """act(z) / z, and act'(0) where z is 0."""
    return (act(z) / z).nan_to_num(nan=slope_at_zero(act), posinf=torch.inf, neginf=-torch.inf)


def tangent(act: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """act'(z)."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(act(z).sum(), z)[0]
