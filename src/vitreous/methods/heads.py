"""Attention weighed by what the score says of it: TAM, BT (heads and tokens), LeGrad.

TAM and BT multiply attention through the blocks, then weigh what arrives by the last block's attention gradient, averaged
on the way from an empty picture to the picture itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.paths import at_once, early_answers, last_attention_gradients
from vitreous.capture.probe import Probe
from vitreous.capture.progress import Tally
from vitreous.capture.values import head_values
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.attribution import zero_to_one
from vitreous.methods.fold import plus, skipplus
from vitreous.methods.method import method
from vitreous.methods.options import Steps
from vitreous.models.shapes import PatchScores, TokenScores

Matrix = Float[Tensor, "r n n"]
Row = Literal["readout", "cls"]
Rows = Float[Tensor, "r q n"]  # of a token-to-token matrix: those that the head reads


def rows_read(probe: Probe, row: Row) -> tuple[Int[Tensor, " q"], Float[Tensor, "r q"]]:
    """Which tokens the head reads, and how much of each; `row="cls"`: the first token, as published code does."""
    readout = probe.reading.readout.repeat_interleave(probe.targets_per_image, 0)
    if row == "cls":
        if probe.layout.prefix == 0:
            raise ModelError("row='cls' reads the class token, and this model has none; use row='readout'")
        readout = torch.zeros_like(readout)
        readout[:, 0] = 1
    tokens = (readout != 0).any(0).nonzero()[:, 0]
    return tokens, readout[:, tokens]


def feedback(probe: Probe, steps: int) -> Matrix:
    """mean_h relu((1/S) Σ_α ∂t/∂A) of the last block, at α times the picture, α from 0 to 1."""
    total, tally = None, Tally(len(probe.images) * steps)
    for scales in torch.linspace(0, 1, steps, dtype=torch.float64).to(probe.images).split(at_once(probe)):
        pictures = probe.images[:, None] * scales[:, None, None, None]
        gradient = last_attention_gradients(probe, pictures, tally).sum(1)
        total = gradient if total is None else total + gradient
    assert total is not None
    return (total / steps).clamp(min=0).mean(1)


def weighed(probe: Probe, rows: Rows, steps: int, row: Row) -> PatchScores:
    """Σ_i ρ_i F_ij P_ij: what arrived at the rows the head reads, weighed by the feedback, summed over these rows."""
    tokens, share = rows_read(probe, row)
    scores = (share[:, :, None] * rows * feedback(probe, steps)[:, tokens]).sum(1)
    return scores[:, probe.layout.prefix :]


def first_block(probe: Probe, start: int | None, authors: int, base: int) -> int:
    """The first block read, counted from 0; the authors' own where none is given, or the last of a shallower model."""
    depth = probe.vit.depth
    if start is None:
        return min(authors - base, depth - 1)
    if not base <= start < depth + base:
        raise SpecError(f"start={start}, but the model has layers {base} to {depth - 1 + base}")
    return start - base


PATH = {"signed": False, "class_specific": True, "attention": True, "forwards": "steps + 1", "trial": {"steps": 4}}
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
    """Attention carried from the last block back to block `start`, times the last block's gradient on the way to the picture.

    `start` counts from 0; the authors read from block 4, TIS from block 0.
    """
    rows = None
    for layer in probe.layers(attention=True, gradients=False, down_to=first_block(probe, start, 4, base=0)):
        mixing = layer.attention.mean(1)
        rows = mixing[:, rows_read(probe, row)[0]] if rows is None else rows + rows @ mixing
    assert rows is not None
    return weighed(probe, rows, steps, row)


def carried(probe: Probe, mixings: Iterable[Matrix], row: Row) -> Rows:
    """P ← P + C P over the blocks: only the rows that the head reads, from the last block to the first."""
    rows = None
    for mixing in mixings:
        start = torch.eye(mixing.shape[-1]).to(mixing)[rows_read(probe, row)[0]] if rows is None else rows
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
    """Attention carried through the blocks, each head by its share of |Aᵀ∂t/∂A|, times the last block's gradient on the way.

    `start` counts from 1, as the authors do; they read from block 4, TIS from block 1.
    """
    down_to = first_block(probe, start, 4, base=1)
    rows = carried(probe, map(by_heads, probe.layers(attention=True, down_to=down_to)), row)
    return weighed(probe, rows, steps, row)


def by_heads(layer: Layer) -> Matrix:
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
    """Attention carried through the blocks, each token by how much longer attention's values make it, times the gradient.

    `start` counts from 1, as the authors do; they read from block 7, TIS from block 1. Their models have no LayerScale:
    here it belongs to what a token sends, unless `layerscale=False`.
    """
    layers = probe.layers(attention=True, gradients=False, down_to=first_block(probe, start, 7, base=1))
    rows = carried(probe, (by_lengths(layer, layerscale) for layer in layers), row)
    return weighed(probe, rows, steps, row)


@torch.no_grad()
def by_lengths(layer: Layer, layerscale: bool) -> Matrix:
    """(mean_h A) diag(m), m_j = ‖W_o v_j‖ / ‖x_j‖."""
    sent = head_values(layer).sum(1)
    factor = None if layerscale else layer.block.attend.layer_scale()
    sent = sent / factor if isinstance(factor, Tensor) else sent
    return layer.attention.mean(1) * (sent.norm(dim=-1) / layer.hidden.norm(dim=-1))[:, None]


# ── LeGrad ───────────────────────────────────────────────────────────────────────────────────────


def stretched(patches: PatchScores, minmax: bool = False) -> PatchScores:
    return zero_to_one(patches) if minmax else patches


@method(
    "legrad",
    formula="sⱼ = Σₗ meanₕᵢ relu(∂tₗ/∂Aₗ)ₕᵢⱼ, tₗ what the head says right after block l",
    fold=plus,
    through=early_answers,
    finish=stretched,
    attention=True,
    signed=False,
    class_specific=True,
    forwards=2,
    presets={"released": {"fold": skipplus.with_options(start=-2), "pool": "mean", "minmax": True}},
    paper="bousselham2025legrad",
)
def legrad(layer: Layer) -> TokenScores:
    """Positive gradient of the attention, from what the head would say right after the block, averaged over heads and rows.

    Summed over all blocks. `pool`: the head reads the block's tokens as it reads the encoder's ("head", the paper), or the
    mean of all of them, prefix included ("mean"); the authors' release does so, for the last two blocks, and shows the map
    stretched to [0, 1]. Its separate form for attention-pooled models is not offered: they are read through their pooler.
    """
    return layer.attention_grad.clamp(min=0).mean((1, 2))
