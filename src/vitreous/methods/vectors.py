"""Norm-based maps, which measure how much of each token's vector comes from each other token: AttIN, GlobEnc, ALTI.

‖Σ_h A_ij^h f_j^h‖² is computed as aᵀ Q_j a with the Gram matrix Q_j = F_j F_jᵀ [h h] of each token, without an [n n d]
tensor.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.value_vectors import feed_scale, head_values, second_norm
from vitreous.methods.folds import rollout
from vitreous.methods.options import Share, check_choice
from vitreous.methods.register_method import method, register_alias
from vitreous.models.tensor_types import TokenMatrix

HeadVectors = Float[Tensor, "r h n d"]
Vectors = Float[Tensor, "r n d"]


def quadratic(attention: Float[Tensor, "r h n n"], left: HeadVectors, right: HeadVectors) -> TokenMatrix:
    """(Σ_h A_ij^h left_j^h) · (Σ_g A_ij^g right_j^g) for every i and j."""
    gram = left.transpose(1, 2) @ right.permute(0, 2, 3, 1)  # [r j h h]
    weights = attention.permute(0, 3, 2, 1)  # [r j i h]
    return ((weights @ gram) * weights).sum(-1).transpose(1, 2)


def own_vectors(attention: Float[Tensor, "r h n n"], values: HeadVectors) -> Vectors:
    """Σ_h A_ii^h values_i^h: the vector that each token contributes to itself."""
    return torch.einsum("rhi,rhid->rid", attention.diagonal(dim1=-2, dim2=-1), values)


def with_diagonal(norms: TokenMatrix, diagonal: Float[Tensor, "r n"]) -> TokenMatrix:
    """The matrix with its diagonal replaced."""
    return norms.diagonal_scatter(diagonal, dim1=-2, dim2=-1)


NORM: dict[str, Any] = {
    "family": "Vector norms",
    "mixing": True,
    "attention": True,
    "signed": False,
    "class_specific": False,
    "backwards": 0,
}


@method(
    "attin",
    formula="s = ρᵀ ∏ₗ (½ I + ½ Tₗ), Tᵢⱼ = ‖Σₕ Aₕᵢⱼ fₕⱼ‖₂",
    fold=rollout.with_options(form="half"),
    aliases=("norm-based-attention",),
    paper="kobayashi2020attention",
    **NORM,
    precision="bf16 weights",
)
def attin(
    layer: Layer,
    part: Literal["attention", "res", "resln"] = "attention",
    value_bias: bool = True,
    per_head: bool = False,
) -> TokenMatrix:
    """Norm of the vector that each token contributes to each other token through attention.

    Parameters
    ----------
    part
        "attention" only, with the skip connection ("res"), or also after the second norm ("resln").
    value_bias
        Whether value vectors include their bias and the shift of the norm before it.
    per_head
        Whether to average the lengths over heads instead of taking the length of the sum; for "attention" only.
    """
    attention, values = layer.attention, head_values(layer, "included" if value_bias else "free")
    if per_head:
        check_choice("part", part, ("attention",))  # skip connection and norm apply to the sum over heads
        return (attention * values.norm(dim=-1)[:, :, None]).mean(1)
    if part == "attention":
        return quadratic(attention, values, values).clamp(min=0).sqrt()
    own = own_vectors(attention, values) + layer.hidden
    if part == "res":
        return with_diagonal(quadratic(attention, values, values).clamp(min=0).sqrt(), own.norm(dim=-1))
    norm, spread = second_norm(layer)
    values = norm(values)
    norms = quadratic(attention, values, values).clamp(min=0).sqrt()
    return with_diagonal(norms, norm(own).norm(dim=-1)) / spread


@method(
    "globenc",
    formula="s = ρᵀ ∏ₗ Tₗ, Tᵢⱼ = ‖Rᵢⱼ + K₂(Rᵢⱼ)/σ₂ᵢ‖₂, Rᵢⱼ = Σₕ Aₕᵢⱼ fₕⱼ + δᵢⱼ Xᵢ, K₂ and σ₂ of the second norm",
    fold=rollout.with_options(form="none"),
    paper="modarressi2022globenc",
    **NORM,
    precision="bf16 weights",
)
def globenc(layer: Layer) -> TokenMatrix:
    """Norm of the vector that each token contributes to each other token through the block, without the MLP."""
    attention, values = layer.attention, head_values(layer, "free")
    norm, spread = second_norm(layer)
    scale = feed_scale(layer)
    normed = norm(values) * scale
    squares = (
        quadratic(attention, values, values)
        + 2 * quadratic(attention, values, normed) / spread
        + quadratic(attention, normed, normed) / spread**2
    )
    own = own_vectors(attention, values) + layer.hidden
    own = own + norm(own) * scale / spread
    return with_diagonal(squares.clamp(min=0).sqrt(), own.norm(dim=-1))


@method(
    "alti",
    formula="s = ρᵀ ∏ₗ Tₗ, Tᵢⱼ ∝ relu(‖Yᵢ‖₁ − ‖Yᵢ − Rᵢⱼ‖₁), Rᵢⱼ = Σₕ Aₕᵢⱼ fₕⱼ + δᵢⱼ Xᵢ, every row of T adding up to 1",
    fold=rollout.with_options(form="none"),
    presets={
        "official": {"shift": 1e-6},
        "skipplus": {"skipplus": True},
        "skipplus-paper": {"skipplus": True, "undefined": "zero"},
    },
    paper="ferrando2022measuring",
    **NORM,
    precision="bf16",
)
def alti(
    layer: Layer,
    skipplus: bool = False,
    eps: Share | None = None,
    shift: Share = 0.0,
    undefined: Literal["nan", "zero"] = "nan",
) -> TokenMatrix:
    """How much each token reduces the L1 distance of another token to its output; every row adds up to 1.

    Parameters
    ----------
    skipplus
        As in SkipPLUS's code: vectors through the whole block are compared with the block's output. A row without
        positive entries is then 0 / 0; see `undefined`.
    eps
        Added to the sum of each row before division; by default the dtype's smallest normal number, or 0 with
        `skipplus`.
    shift
        Added to every component of a difference, as torch's `pairwise_distance` and therefore the official code do
        (1e-6).
    undefined
        Value of a row that is 0 / 0: "nan", as SkipPLUS's code computes it, or "zero", as its paper describes such
        maps ("almost all-zero").
    """
    attention, values = layer.attention, head_values(layer, "free" if skipplus else "included")
    goal, after_attention = (layer.output, second_norm(layer)) if skipplus else (layer.mid, None)
    eps = (0.0 if skipplus else torch.finfo(values.dtype).tiny) if eps is None else eps

    def approach_output(part: Int[Tensor, " chunk"]) -> Float[Tensor, "r chunk n"]:
        """relu(‖y_i‖₁ − ‖y_i − v_ij‖₁) for the receiving tokens in `part`."""
        vectors = torch.einsum("rhij,rhjd->rijd", attention[:, :, part], values)
        vectors[:, torch.arange(len(part), device=part.device), part] += layer.hidden[:, part]
        if after_attention is not None:
            norm, spread = after_attention
            vectors = vectors + norm(vectors) * feed_scale(layer) / spread[:, part, None]
        target = goal[:, part]
        vectors -= target[:, :, None]
        distance = (vectors + shift if shift else vectors).abs().sum(-1)
        return (target.abs().sum(-1, keepdim=True) - distance).clamp(min=0)

    receivers = torch.arange(values.shape[2], device=values.device).split(chunk_of(values))
    contribution = torch.cat([approach_output(part) for part in receivers], 1)
    total = contribution.sum(-1, keepdim=True) + eps
    return contribution / (total if undefined == "nan" else torch.where(total == 0, 1, total))


def chunk_of(values: HeadVectors) -> int:
    """Number of receiving tokens for which [r chunk n d] stays within 64 MiB, or 2 MiB on a CPU.

    A CPU has 2 MiB in its cache. It gets a multiple of 8 tokens if they fit into 64 MiB: its matrix products round groups
    of 8 rows alike, so maps do not depend on the size of the chunk.
    """
    r, _, n, d = values.shape
    row_bytes = r * n * d * values.element_size()
    most = max(1, 2**26 // row_bytes)
    return most if values.device.type != "cpu" else min(most, max(8, 2**21 // row_bytes // 8 * 8))


# names of SkipPLUS's released code: roll-outs without the identity, and sums over all layers
register_alias("globenc_norm2_ro", "globenc(row='cls')+rollout(form='none')")
register_alias("globenc_norm2_ro_str50", "globenc(row='cls')+rollout(form='half')")
register_alias("globenc_norm2_sum", "globenc(row='cls')+plus")
register_alias("alti_ro", "alti(preset='skipplus', row='cls')+rollout(form='none')")
register_alias("alti_ro_str50", "alti(preset='skipplus', row='cls')+rollout(form='half')")
register_alias("alti_sum", "alti(preset='skipplus', row='cls')+plus")
