"""Layer-wise relevance propagation for vision transformers: TransAtt (Chefer 1), partial LRP, LRP.

LRP is covered by patents, see docs/lrp-patent.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Literal

import torch

from vitreous.capture.layer import Layer
from vitreous.capture.probe import LayerPass, Probe
from vitreous.capture.relevance import RULES, Rules, propagate_relevance, propagate_to_pixels
from vitreous.methods.folds import last
from vitreous.methods.folds import rollout as roll
from vitreous.methods.method import Method
from vitreous.methods.register_method import method
from vitreous.models.tensor_types import PixelScores, TokenMatrix, TokenScores
from vitreous.models.vit import ViT

RuleSet = Literal["ours", "orig"]  # keys of RULES

RELEVANCE: dict[str, Any] = {
    "family": "Relevance and decomposition",
    "attention": True,
    "class_specific": True,
    "forwards": 2,
    "precision": "float32",
}


def choose_rules(rules: RuleSet, joint: bool = False) -> Rules:
    """The named rules; `joint` adds joint denominators."""
    return Rules(joint or RULES[rules].joint, RULES[rules].rescale)


def single_precision(method: Method, vit: ViT) -> str:
    """Warning that the map is sensitive to rounding, unless the model is in float64.

    Measured on ViT-Tiny: the rank correlation of the same map in float32 and float64 is 0.79 to 1.00 for transatt and
    −1.00 to 0.16 for lrp(rules='ours').
    """
    if vit.dtype == torch.float64:
        return ""
    return (
        "relevance divides by sums that come near 0, so rounding moves this map; run the model in float64 to rely on it"
    )


def half_precision(method: Method, vit: ViT) -> str:
    """Warning as in `single_precision`, for half precision only.

    Measured on ViT-Tiny: the relevance of one block has the same ranks in float32 on two devices, but different ones in
    bfloat16.
    """
    return single_precision(method, vit) if vit.dtype.itemsize < 4 else ""


def positive_relevance(layer: Layer, weighted: bool) -> TokenMatrix:
    """mean_h relu(R_A), or mean_h relu(∂t/∂A ⊙ R_A)."""
    assert layer.relevance is not None  # the pass of these methods propagates it
    relevance = layer.full(layer.relevance.attention)
    return (layer.attention_grad * relevance if weighted else relevance).clamp(min=0).mean(1)


def transatt_pass(layer_pass: LayerPass, rules: RuleSet = "ours", gradient: bool = True) -> LayerPass:
    """The pass of `transatt`: relevance, and gradients if they weight it."""
    return replace(layer_pass, gradients=gradient, relevance=choose_rules(rules))


@method(
    "transatt",
    formula="s = ρᵀ ∏ₗ (I + meanₕ relu(Gₗ ⊙ R_{A,l})), R_A the attention's relevance",
    fold=roll.with_options(form="add"),
    counts=lambda method, sizes: {"backwards": int(method.settings["gradient"])},
    adapt=transatt_pass,
    caveat=single_precision,
    mixing=True,
    signed=False,
    presets={"experiments": {"start": 1}, "tis": {}, "rollout": {"gradient": False}},
    aliases=("chefer1", "transformer-attribution", "transformerattribution", "ta"),
    paper="chefer2021transformer",
    **RELEVANCE,
)
def transatt(layer: Layer, gradient: bool = True) -> TokenMatrix:
    """Transformer attribution: positive relevance × gradient of the attention, averaged over heads, multiplied through.

    The published experiments start at block 1.

    Parameters
    ----------
    gradient
        Whether to weight the relevance of the attention by its gradient.
    """
    return positive_relevance(layer, gradient)


def partiallrp_pass(layer_pass: LayerPass, rules: RuleSet = "orig", ablation: bool = False) -> LayerPass:
    """The pass of `partiallrp`: relevance, and gradients if they weight it."""
    return replace(layer_pass, gradients=ablation, relevance=choose_rules(rules))


@method(
    "partiallrp",
    formula="s = ρᵀ meanₕ relu(R_A), R_A the relevance of the last block's attention",
    fold=last,
    counts=lambda method, sizes: {"backwards": int(method.settings["ablation"])},
    adapt=partiallrp_pass,
    caveat=half_precision,
    fixed_linearisation=True,
    mixing=True,
    signed=False,
    backwards=0,
    aliases=("partial-lrp", "partial_lrp"),
    paper="voita2019analyzing",
    **RELEVANCE,
)
def partiallrp(layer: Layer, ablation: bool = False) -> TokenMatrix:
    """Positive relevance of the last block's attention, averaged over heads; `ablation` weighs it by its gradient."""
    return positive_relevance(layer, ablation)


def lrp_pass(layer_pass: LayerPass, rules: RuleSet = "orig", joint: bool = False) -> LayerPass:
    """The pass of `lrp` under a fold: relevance alone."""
    return replace(layer_pass, gradients=False, relevance=choose_rules(rules, joint))


def token_relevance(layer: Layer) -> TokenScores:
    """Relevance of each token entering the block."""
    assert layer.relevance is not None  # the pass of `lrp` propagates it
    return layer.full(layer.relevance.tokens).sum(-1)


@method(
    "lrp",
    formula="s = Σ_rgb R(x), relevance propagated back from the class by R_in = x⁺⊙(S₁W⁺) + x⁻⊙(S₂W⁻), S₁ = R/(x⁺W⁺ᵀ), S₂ = R/(x⁻W⁻ᵀ)",
    adapt=lrp_pass,
    caveat=single_precision,
    layered=token_relevance,
    fixed_linearisation=True,
    native="pixel",
    signed=True,
    backwards=0,
    aliases=("full-lrp", "full_lrp", "fulllrp"),
    paper="binder2016layer",
    **RELEVANCE,
)
def lrp(probe: Probe, rules: RuleSet = "orig", joint: bool = False) -> PixelScores:
    """Relevance propagated back to the pixels, summed over colours.

    Under a fold (`lrp+first`, `lrp+plus`) relevance is read at the tokens.

    Parameters
    ----------
    rules
        "orig" as in the published baselines, where relevance doubles at every linear layer and grows without bound, or
        "ours", Chefer's rules.
    joint
        Whether positive and negative parts share one denominator.
    """
    layers = propagate_relevance(probe, probe.layers(gradients=False), choose_rules(rules, joint))
    relevance = deque(layers, maxlen=1)[0].relevance  # of the first block, which comes last
    assert relevance is not None
    return propagate_to_pixels(probe, relevance.tokens, choose_rules(rules, joint)).sum(1)
