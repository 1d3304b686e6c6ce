"""Attention weighted by gradients: TAM, BT (heads and tokens), LeGrad.

TAM and BT multiply attention through the blocks, then weight the result by the last block's attention gradient,
averaged over images scaled from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.linearise import Linearisation
from vitreous.capture.path_gradients import at_once, early_attention_gradient, last_attention_gradients
from vitreous.capture.probe import Probe
from vitreous.capture.value_vectors import head_values
from vitreous.core.errors import ModelError, SpecError
from vitreous.core.progress import Tally
from vitreous.methods.folds import plus, skipplus
from vitreous.methods.map_arrays import zero_to_one
from vitreous.methods.method import Method
from vitreous.methods.options import Steps
from vitreous.methods.pass_counts import ModelSizes
from vitreous.methods.register_method import method
from vitreous.models.tensor_types import PatchScores, TokenMatrix, TokenScores

Row = Literal["readout", "cls"]
Rows = Float[Tensor, "r q n"]  # rows of a token-to-token matrix that the head reads


def find_rows(probe: Probe, row: Row) -> tuple[Int[Tensor, " q"], Float[Tensor, "r q"]]:
    """Indices and weights of the tokens that the head reads; for `row="cls"` the first token, as in published code."""
    readout = probe.head_output.readout.repeat_interleave(probe.targets_per_image, 0)
    if row == "cls":
        if probe.layout.prefix == 0:
            raise ModelError("row='cls' reads the class token, and this model has none; use row='readout'")
        readout = torch.zeros_like(readout)
        readout[:, 0] = 1
    tokens = (readout != 0).any(0).nonzero()[:, 0]
    return tokens, readout[:, tokens]


def mean_positive_gradient(probe: Probe, steps: int) -> TokenMatrix:
    """mean_h relu((1/S) Σ_α ∂t/∂A) of the last block, at α times the image, with S values of α from 0 to 1."""
    total, tally = torch.zeros(()), Tally(len(probe.images) * steps)
    for scales in torch.linspace(0, 1, steps, dtype=torch.float64).to(probe.images).split(at_once(probe)):
        scaled_images = probe.images[:, None] * scales[:, None, None, None]
        total = total + last_attention_gradients(probe, scaled_images, tally).sum(1)
    return (total / steps).clamp(min=0).mean(1)


def weigh_rows(probe: Probe, rows: Rows, steps: int, row: Row) -> PatchScores:
    """Σ_i ρ_i F_ij P_ij: rows P that the head reads, weighted by the gradient F (`mean_positive_gradient`), summed with weights ρ."""
    tokens, share = find_rows(probe, row)
    scores = (share[:, :, None] * rows * mean_positive_gradient(probe, steps)[:, tokens]).sum(1)
    return scores[:, probe.layout.prefix :]


def count_last_block(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Backward passes of the steps, which reach the last block only; of unknown depth, whole passes are an upper bound."""
    steps = method.settings["steps"]
    return {"forwards": steps + 1, "steps": steps / sizes["depth"]} if "depth" in sizes else {}


def first_block(probe: Probe, start: int | None, default: int, base: int) -> int:
    """Index from 0 of the first block that is read: `start`, or `default` (the last block of a model with fewer).

    `start` and `default` count from `base`.
    """
    depth = probe.vit.depth
    if start is None:
        return min(default - base, depth - 1)
    if not base <= start < depth + base:
        raise SpecError(f"start={start}, but the model has layers {base} to {depth - 1 + base}")
    return start - base


PATH: dict[str, Any] = {
    "family": "Attention",
    "signed": False,
    "class_specific": True,
    "attention": True,
    "forwards": "steps + 1",
    "counts": count_last_block,
    "trial": {"steps": 4},
    "precision": "bf16",
}
BT = {**PATH, "paper": "chen2022beyond"}


@method(
    "tam",
    formula="sⱼ = Σᵢ ρᵢ Fᵢⱼ Pᵢⱼ, P = Ā_{L−1} ∏ₗ (I + Āₗ), Ā = meanₕ A, F = meanₕ relu(mean_α G_{L−1}(αx))",
    presets={"tis": {"start": 0}},
    backwards="steps",
    aliases=("transition-attention-maps", "transitionattentionmaps"),
    paper="yuan2021explaining",
    **PATH,
)
def tam(probe: Probe, start: int | None = None, steps: Steps = 20, row: Row = "readout") -> PatchScores:
    """Attention multiplied from the last block back to block `start`, times the last block's gradient along a path.

    Parameters
    ----------
    start
        First block that is read, counted from 0; by default the authors' block 4. TIS uses block 0.
    steps
        Number of scaled images at which the gradient is averaged.
    row
        "readout" reads the tokens that the head reads, "cls" the first token, as published code does.
    """
    layers = probe.layers(attention=True, gradients=False, down_to=first_block(probe, start, 4, base=0))
    rows = next(layers).attention.mean(1)[:, find_rows(probe, row)[0]]
    for layer in layers:
        rows = rows + rows @ layer.attention.mean(1)
    return weigh_rows(probe, rows, steps, row)


def multiply_through(probe: Probe, mixings: Iterable[TokenMatrix], row: Row) -> Rows:
    """Rows that the head reads of ∏ (I + C), multiplied from the last block's C to the first."""
    rows = None
    for mixing in mixings:
        start = torch.eye(mixing.shape[-1]).to(mixing)[find_rows(probe, row)[0]] if rows is None else rows
        rows = start + start @ mixing
    assert rows is not None
    return rows


@method(
    "bth",
    formula="sⱼ = Σᵢ ρᵢ Fᵢⱼ Pᵢⱼ, P = ∏ₗ (I + Σₕ Iₕ Aₗₕ), Iₕ ∝ mean |AₕᵀGₕ|, F = meanₕ relu(mean_α G_{L−1}(αx))",
    presets={"tis": {"start": 1}},
    backwards="steps + 1",
    aliases=("bt-h", "bt_h", "bt-head"),
    **BT,
)
def bth(probe: Probe, start: int | None = None, steps: Steps = 20, row: Row = "readout") -> PatchScores:
    """Attention multiplied through the blocks, heads weighted by |Aᵀ∂t/∂A|, times the last block's gradient along a path.

    Parameters
    ----------
    start
        First block that is read, counted from 1 as in the paper; by default the authors' block 4. TIS uses block 1.
    steps
        Number of scaled images at which the gradient is averaged.
    row
        "readout" reads the tokens that the head reads, "cls" the first token, as published code does.
    """
    down_to = first_block(probe, start, 4, base=1)
    rows = multiply_through(probe, map(mix_by_heads, probe.layers(attention=True, down_to=down_to)), row)
    return weigh_rows(probe, rows, steps, row)


def mix_by_heads(layer: Layer) -> TokenMatrix:
    """Σ_h I_h A_h, I_h the head's share of mean |A_hᵀ G_h|."""
    importance = (layer.attention.mT @ layer.attention_grad).abs().mean((-2, -1))  # [r h]
    share = importance / importance.sum(-1, keepdim=True).clamp(min=torch.finfo(importance.dtype).tiny)
    return (share[:, :, None, None] * layer.attention).sum(1)


@method(
    "btt",
    formula="sⱼ = Σᵢ ρᵢ Fᵢⱼ Pᵢⱼ, P = ∏ₗ (I + meanₕ Aₗ · diag(‖W_o vⱼ‖/‖Xⱼ‖)), F = meanₕ relu(mean_α G_{L−1}(αx))",
    presets={"tis": {"start": 1}},
    backwards="steps",
    aliases=("bt-t", "bt_t", "bt-token"),
    **BT,
)
def btt(
    probe: Probe, start: int | None = None, steps: Steps = 20, row: Row = "readout", layerscale: bool = True
) -> PatchScores:
    """Attention multiplied through the blocks, tokens weighted by the norm ratio of their values, times the gradient.

    Parameters
    ----------
    start
        First block that is read, counted from 1 as in the paper; by default the authors' block 7. TIS uses block 1.
    steps
        Number of scaled images at which the gradient is averaged.
    row
        "readout" reads the tokens that the head reads, "cls" the first token, as published code does.
    layerscale
        Whether LayerScale, which the authors' models lack, is part of the values whose length is measured.
    """
    layers = probe.layers(attention=True, gradients=False, down_to=first_block(probe, start, 7, base=1))
    rows = multiply_through(probe, (mix_by_lengths(layer, layerscale) for layer in layers), row)
    return weigh_rows(probe, rows, steps, row)


@torch.no_grad()
def mix_by_lengths(layer: Layer, layerscale: bool) -> TokenMatrix:
    """(mean_h A) diag(m), m_j = ‖W_o v_j‖ / ‖x_j‖."""
    sent = head_values(layer).sum(1)
    factor = None if layerscale else layer.block.attention.layer_scale()
    sent = sent / factor if isinstance(factor, Tensor) else sent
    return layer.attention.mean(1) * (sent.norm(dim=-1) / layer.hidden.norm(dim=-1))[:, None]


# ── LeGrad ───────────────────────────────────────────────────────────────────────────────────────


def rescale_optionally(patches: PatchScores, minmax: bool = False) -> PatchScores:
    """Scores rescaled to [0, 1], if `minmax`."""
    return zero_to_one(patches) if minmax else patches


@method(
    "legrad",
    family="Attention",
    formula="sⱼ = Σₗ meanₕᵢ relu(∂tₗ/∂Aₗ)ₕᵢⱼ, tₗ the score of the head applied right after block l",
    fold=plus,
    finish=rescale_optionally,
    attention=True,
    own_pass=True,
    signed=False,
    class_specific=True,
    forwards=2,
    presets={"released": {"fold": skipplus.with_options(start=-2), "pool": "mean", "minmax": True}},
    paper="bousselham2025legrad",
    precision="bf16",
)
def legrad(
    layer: Layer, probe: Probe, linearisation: Linearisation, pool: Literal["head", "mean"] = "head"
) -> TokenScores:
    """Positive gradient of the attention, of the head applied right after the block, averaged over heads and rows.

    Summed over all blocks. The authors' release uses `pool="mean"`, for the last two blocks, and rescales the map to
    [0, 1] (`preset="released"`). Its separate form for models with attention pooling is not implemented; such models are
    read through their pooling layer.

    Parameters
    ----------
    pool
        How the head reads a block's tokens: as it reads the encoder's output ("head", the paper), or their mean with
        prefix tokens included ("mean").
    """
    return early_attention_gradient(probe, layer, linearisation, pool).clamp(min=0).mean((1, 2))
