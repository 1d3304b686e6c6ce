"""Methods that read attention matrices: alone, times their gradient, or as weights of token × gradient."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch

from vitreous.capture.layer import Layer
from vitreous.core.errors import SpecError
from vitreous.methods.folds import first, last, plus
from vitreous.methods.folds import rollout as roll
from vitreous.methods.map_arrays import zero_to_one
from vitreous.methods.options import Range
from vitreous.methods.register_method import method
from vitreous.methods.token_gradients import caution_of_single_norm, input_x_gradient
from vitreous.models.tensor_types import PatchScores, TokenMatrix, TokenScores

Heads = Literal["mean", "max", "min"]
Discard = Annotated[float | int, Range(0, 1, below=True)]
Pair = Literal["input", "output"]

# attention alone, which does not depend on the class; and attention with its gradient
OF_ATTENTION: dict[str, Any] = {
    "family": "Attention",
    "attention": True,
    "signed": False,
    "class_specific": False,
    "backwards": 0,
    "precision": "bf16 weights",
}
WITH_GRADIENT: dict[str, Any] = {"family": "Attention", "attention": True, "class_specific": True}


def reduce_heads(layer: Layer, heads: Heads = "mean", discard: Discard = 0.0) -> TokenMatrix:
    """Attention reduced over heads.

    Parameters
    ----------
    layer
        The layer.
    heads
        Reduction over heads: "mean", "max" or "min".
    discard
        Fraction of the smallest entries that are set to 0.
    """
    attention = layer.attention
    reduced = attention.mean(1) if heads == "mean" else attention.amax(1) if heads == "max" else attention.amin(1)
    if discard == 0:
        return reduced
    flat = reduced.flatten(1).clone()
    smallest = flat.topk(int(flat.shape[-1] * discard), dim=-1, largest=False).indices
    corner = flat[:, 0].clone()
    flat.scatter_(1, smallest, 0.0)[:, 0] = corner
    return flat.view_as(reduced)


def divide_by_maximum(patches: PatchScores, divide: bool = False) -> PatchScores:
    """Scores divided by their maximum, if `divide`."""
    return patches / patches.amax(-1, keepdim=True) if divide else patches


rawattention = method(
    "rawattention",
    title="Attention of the token that the head reads to each patch, in the last block.",
    formula="s = ρᵀ meanₕ A, A of the last block",
    fold=last,
    mixing=True,
    aliases=("raw-attention", "rawatt"),
    paper="jain2019attention",
    **OF_ATTENTION,
)(reduce_heads)
rollout = method(
    "rollout",
    title="Attention multiplied through all blocks, with weight one half for the skip connection.",
    formula="s = ρᵀ ∏ₗ (½ I + ½ meanₕ Aₗ)",
    fold=roll.with_options(form="half"),
    fixed_fold="rawattention+{fold}",
    finish=divide_by_maximum,
    mixing=True,
    presets={
        "original": {},
        "chefer": {"start": 1},
        "vit-explain": {"form": "vit-explain", "heads": "mean", "discard": 0.9, "divide": True},
        "tis": {"form": "vit-explain", "heads": "mean", "discard": 0.9, "divide": True},
    },
    aliases=("attentionrollout", "attention-rollout"),
    paper="abnar2020quantifying",
    **OF_ATTENTION,
)(reduce_heads)


@method(
    "attnfrom",
    formula="sⱼ = meanₕᵢ Aₕᵢⱼ, A of the last block",
    fold=last,
    paper="mehri2024skipplus",
    **OF_ATTENTION,
)
def attnfrom(layer: Layer) -> TokenScores:
    """Attention that each token receives, averaged over heads and queries."""
    return layer.attention.mean((1, 2))


@method(
    "attngrad",
    formula="s = ρᵀ meanₕ G, G of the last block",
    fold=last,
    mixing=True,
    signed=True,
    paper="mehri2024skipplus",
    precision="bf16",
    **WITH_GRADIENT,
)
def attngrad(layer: Layer, part: Literal["signed", "abs", "relu"] = "signed") -> TokenMatrix:
    """Gradient of the attention, averaged over heads; `part` "signed", "abs" or "relu"."""
    gradient = layer.attention_grad
    if part != "signed":
        gradient = gradient.abs() if part == "abs" else gradient.clamp(min=0)
    return gradient.mean(1)


@method(
    "genatt",
    formula="s = ρᵀ ∏ₗ (I + meanₕ relu(Gₗ ⊙ Aₗ))",
    fold=roll.with_options(form="add"),
    mixing=True,
    signed=False,
    aliases=("gae", "transformer-mm", "chefer2", "transformermm", "attgrads"),
    paper="chefer2021generic",
    precision="bf16",
    **WITH_GRADIENT,
)
def genatt(layer: Layer, variant: Literal["chefer", "bt", "interpretdl"] = "chefer") -> TokenMatrix:
    """Positive attention × gradient, averaged over heads.

    Parameters
    ----------
    variant
        "chefer" clamps each head's product at 0 before the mean over heads, "bt" clamps after the mean, "interpretdl"
        multiplies the mean attention by the mean gradient and clamps.
    """
    if variant == "chefer":
        return layer.positive_attention()
    attention, gradient = layer.attention, layer.attention_grad
    if variant == "interpretdl":
        return (attention.mean(1) * gradient.mean(1)).clamp(min=0)
    return (attention * gradient).mean(1).clamp(min=0)


@method(
    "gradsam",
    formula="sᵢ = meanₗₕⱼ Aₗₕᵢⱼ relu(Gₗₕᵢⱼ)",
    fold=plus,
    fixed_fold="genatt+{fold}",
    signed=False,
    aliases=("grad-sam",),
    paper="barkan2021grad",
    precision="bf16",
    **WITH_GRADIENT,
)
def gradsam(layer: Layer, reduction: Literal["row_mean", "cls"] = "row_mean") -> TokenScores:
    """Attention × positive gradient, averaged over layers, heads and keys.

    Parameters
    ----------
    reduction
        "row_mean" averages over layers and the tokens looked at. "cls" is SkipPLUS's version: the row that the head
        reads, summed over layers.
    """
    weighted = layer.positive_attention()
    if reduction == "row_mean":
        return weighted.mean(-1) / layer.depth
    return (layer.readout[:, None].to(weighted) @ weighted)[:, 0]


def attention_x_token(layer: Layer, pair: Pair = "input", last_block: bool = True) -> TokenScores:
    """Token × gradient, weighted by the attention the token receives.

    Parameters
    ----------
    layer
        The layer.
    pair
        Combine the block's attention with its "input" (the official code) or its "output" (SkipPLUS's code).
    last_block
        For "output": whether to include the last block. SkipPLUS's code omits it; patches have no gradient there under
        class-token pooling, but all have one under mean pooling.
    """
    received = layer.attention.mean((1, 2))
    if pair == "input":
        return received * input_x_gradient(layer)
    if layer.index + 1 == layer.depth and not last_block:
        return torch.zeros_like(received)
    return received * (layer.output * layer.output_grad).sum(-1)


PAIRS = {"official": {"pair": "input"}, "skipplus": {"pair": "output", "last_block": False}}

attixg = method(
    "attixg",
    title="Token × gradient, weighted by the attention the token receives, at one layer.",
    formula="sⱼ = meanₕᵢ Aₕᵢⱼ · Σₖ Xⱼₖ gⱼₖ, of the first block",
    fold=first,
    signed=True,
    presets=PAIRS,
    caveat=caution_of_single_norm,
    paper="mehri2024skipplus",
    **WITH_GRADIENT,
)(attention_x_token)
attcat = method(
    "attcat",
    title="Token × gradient, weighted by the attention the token receives, summed over all layers.",
    formula="sⱼ = Σₗ meanₕᵢ Aₗₕᵢⱼ · Σₖ Xₗⱼₖ gₗⱼₖ",
    fold=plus,
    fixed_fold="attixg+{fold}",
    signed=True,
    presets=PAIRS,
    paper="qiang2022attcat",
    **WITH_GRADIENT,
)(attention_x_token)


def rectify(patches: PatchScores, relu: bool = False, minmax: bool = False) -> PatchScores:
    """Post-processing of Chefer's code: clamp at 0, then rescale to [0, 1]."""
    patches = patches.clamp(min=0) if relu else patches
    return zero_to_one(patches) if minmax else patches


@method(
    "attcam",
    family="Class activation maps",
    formula="sⱼ = Σᵢ ρᵢ meanₕ wₕᵢ Aₕᵢⱼ, wₕᵢ = meanⱼ Gₕᵢⱼ over patches, A and G of the last block",
    fold=last,
    finish=rectify,
    mixing=True,
    attention=True,
    signed=True,
    class_specific=True,
    presets={"chefer": {"relu": True, "minmax": True, "skip": 1}, "skipplus": {"skip": 1}},
    aliases=("attnwheadgrad", "attention-gradcam"),
    paper="chefer2021transformer",
)
def attcam(layer: Layer, skip: int | None = None) -> TokenMatrix:
    """Attention, each head weighted by its mean gradient over the patches.

    Parameters
    ----------
    skip
        Number of leading tokens to leave out of the mean gradient; by default all prefix tokens, 1 in published code.
    """
    skip = layer.layout.prefix if skip is None else skip
    if not 0 <= skip < layer.layout.tokens:
        raise SpecError(f"skip={skip!r}; the model has {layer.layout.tokens} tokens")
    patches = layer.attention_grad[..., skip:]
    weight = patches.mean(-1, keepdim=True)  # [r h n 1]
    return (weight * layer.attention).mean(1)
