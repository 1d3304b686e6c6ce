"""Gradients, token × gradient under several linearisations, and FullGrad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.fused import row_dot
from vitreous.capture.layer import Layer
from vitreous.capture.linearise import ATTNLRP, CONSERVATIVE, GIM, RESLRP, TEMPERED
from vitreous.methods.folds import first, plus
from vitreous.methods.method import Method
from vitreous.methods.register_method import method, register_alias
from vitreous.models.tensor_types import PixelScores, TokenScores
from vitreous.models.vit import LinearPool, ViT

Pixels = Float[Tensor, "r colours H W"]

GRADIENTS: dict[str, Any] = {"family": "Gradients", "class_specific": True}
DECOMPOSITION: dict[str, Any] = {
    "family": "Relevance and decomposition",
    "fixed_linearisation": True,
    "precision": "bf16",
}


def gradient_of_pixels(images: Pixels, gradient: Pixels, channels: Literal["sum", "abs", "max"] = "sum") -> PixelScores:
    """Gradient reduced over colours: signed "sum", sum of absolute values ("abs": captum, TIS), or their "max"."""
    if channels == "sum":
        return gradient.sum(1)
    return gradient.abs().sum(1) if channels == "abs" else gradient.abs().amax(1)


def norm_of_pixels(images: Pixels, gradient: Pixels) -> PixelScores:
    """L2 norm of the gradient over colour channels."""
    return gradient.norm(dim=1)


def product_of_pixels(images: Pixels, gradient: Pixels) -> PixelScores:
    """Pixel times gradient, summed over colour channels."""
    return (images * gradient).sum(1)


def caution_of_zero_sum(method: Method, vit: ViT) -> str:
    """Warning for token gradients summed over channels in models with LayerNorm.

    LayerNorm ignores a constant added to all channels, so the gradient's sum over channels is 0 for every image.
    """
    if method.options.get("space") == "pixels" or not all(
        isinstance(b.attention.norm, nn.LayerNorm) for b in vit.blocks
    ):
        return ""
    return (
        "the channels of a token's gradient add up to 0 in a model with LayerNorm, so this map is rounding noise; "
        "use 'vanillagrad_norm' or \"vanillagrad(space='pixels')\""
    )


def caution_of_single_norm(method: Method, vit: ViT) -> str:
    """Warning for token times gradient at the last block, alone or rescaled, if the head reads no patch.

    A norm ignores the length of a token, so x · ∂t/∂x = 0 for a token that enters the score through one norm only.
    Measured on the scenes model: 5e-9 of Σ|xₖ gₖ| in float64, due to the norm's ε, and rounding errors in float32.
    """
    last = method.fold is not None and method.fold.first_layer(vit.depth) == vit.depth - 1
    rescales = method.fold is not None and method.fold.options.get("normalise", "none") != "none"
    if not (last or rescales) or method.linearisation.norm != "exact" or method.options.get("of", "input") != "input":
        return ""
    layout = vit.layout(vit.size)
    if isinstance(vit.blocks[-1].attention.norm, nn.Identity) or not isinstance(vit.pool, LinearPool):
        return ""
    if bool(vit.pool.rows(layout.tokens)[:, layout.prefix :].any()):
        return ""
    enlarged = ", which normalise enlarges" if rescales else ""
    return (
        "where the head reads no patch, patches of the last block enter the score through one norm, which ignores their "
        f"length, so token times gradient is 0 there but for rounding{enlarged}; use '{method.name}@libra'"
    )


@method(
    "vanillagrad",
    formula="sᵢ = Σₖ gᵢₖ, g = ∂t/∂X₀",
    fold=first,
    pixel=gradient_of_pixels,
    caveat=caution_of_zero_sum,
    signed=True,
    paper="simonyan2014deep",
    precision="float32",
    aliases=("patchgrad", "gradient", "saliency"),
    **GRADIENTS,
)
def vanillagrad(layer: Layer) -> TokenScores:
    """Gradient of the score, summed over a token's channels."""
    return layer.hidden_grad.sum(-1)


@method(
    "vanillagrad_norm",
    formula="sᵢ = ‖gᵢ‖₂, g = ∂t/∂X₀",
    fold=first,
    pixel=norm_of_pixels,
    signed=False,
    paper="simonyan2014deep",
    aliases=("vanillagrad:norm2", "vanillagrad-norm"),
    precision="bf16",
    **GRADIENTS,
)
def vanillagrad_norm(layer: Layer) -> TokenScores:
    """Length of the gradient at a token."""
    return layer.hidden_grad.norm(dim=-1)


def input_x_gradient(layer: Layer) -> TokenScores:
    """Token times gradient, the first-order contribution of each token to the score."""
    return row_dot(layer.hidden, layer.hidden_grad)


def token_times_gradient(
    name: str, title: str, signal: Callable[..., TokenScores] = input_x_gradient, **facts: Any
) -> Method:
    """Register a variant of token times gradient; `facts` are fields of `Method` that differ from the defaults here."""
    defaults: dict[str, Any] = {
        "fold": first,
        "pixel": product_of_pixels,
        "signed": True,
        "class_specific": True,
        "complete": True,
    }
    return method(name, title=title, **{**defaults, **facts})(signal)


ixg = token_times_gradient(
    "ixg",
    "Token times gradient: contribution of each token to the score, to first order.",
    family="Gradients",
    formula="sᵢ = Σₖ Xᵢₖ gᵢₖ, X = X₀, g = ∂t/∂X₀",
    caveat=caution_of_single_norm,
    paper="shrikumar2017learning",
    aliases=("inputxgradient", "input-x-gradient", "gradientxinput"),
)
conservativelrp = token_times_gradient(
    "conservativelrp",
    "Conservative LRP: token times gradient with attention and norm statistics held fixed.",
    formula="sᵢ = Σₖ Xᵢₖ g̃ᵢₖ, g̃ = ∂t/∂X₀ with A and every norm's σ held fixed",
    linearisation=CONSERVATIVE,
    paper="ali2022xai",
    aliases=("cp-lrp", "cplrp", "alilrp", "conservative-lrp"),
    **DECOMPOSITION,
)
attnlrp = token_times_gradient(
    "attnlrp",
    "AttnLRP: token times gradient, each product passing half of the relevance to each factor.",
    formula="sᵢ = Σₖ Xᵢₖ g̃ᵢₖ, g̃ = ∂t/∂X₀ with every norm's σ and act(z)/z held fixed, half of it to each factor of AV and QKᵀ",
    linearisation=ATTNLRP,
    paper="achtibat2024attnlrp",
    **DECOMPOSITION,
)
gim = token_times_gradient(
    "gim",
    "GIM: token times gradient, the softmax differentiated at temperature 2, half of the relevance to each factor of a product.",
    formula="sᵢ = Σₖ Xᵢₖ g̃ᵢₖ, g̃ = ∂t/∂X₀ with every norm's σ held fixed, softmax′ at s/2, half of it to each factor of AV and QKᵀ",
    linearisation=GIM,
    paper="edin2025gim",
    **DECOMPOSITION,
)
reslrp = token_times_gradient(
    "reslrp",
    "ResLRP: AttnLRP whose skip connections pass more of the relevance to the branch that has the sign of the sum.",
    formula="sᵢ = Σₖ Xᵢₖ g̃ᵢₖ, g̃ as in AttnLRP; of y = a + b, a gets g̃ · w(a)y / (w(a)a + w(b)b), w(u) = 1 + [uy > 0]",
    linearisation=RESLRP,
    paper="berend2026reslrp",
    **DECOMPOSITION,
)
temper = token_times_gradient(
    "temper",
    "Tempered: token times gradient at every layer, a quarter of the gradient through queries and keys.",
    family="Of this library",
    formula="sᵢ = Σₗ Σₖ Xₗᵢₖ g̃ₗᵢₖ, g̃ = ∂t/∂Xₗ with every norm's σ and act(z)/z held fixed, a quarter of it through Q and K",
    linearisation=TEMPERED,
    fixed_linearisation=True,
    fold=plus,
    pixel=None,
    complete=False,
    question="probability",
    precision="bf16",
)


@method(
    "cat",
    formula="sᵢ = Σₗ Σₖ Xₗᵢₖ gₗᵢₖ",
    fold=plus,
    fixed_fold="ixg+{fold}",
    signed=True,
    paper="qiang2022attcat",
    **GRADIENTS,
)
def cat(layer: Layer, of: Literal["input", "output"] = "input") -> TokenScores:
    """Token times gradient, summed over all layers.

    Parameters
    ----------
    of
        Whether tokens are the "input" (SkipPLUS) or the "output" (paper) of each block.
    """
    if of == "input":
        return input_x_gradient(layer)
    return (layer.output * layer.output_grad).sum(-1)


@method(
    "fullgrad",
    formula="sᵢ = Σₖ Xᵢₖ gᵢₖ + Σ_b b · ∂t/∂O_bᵢ, b the bias of every layer, O_b that layer's output",
    fold=first,
    biases=True,
    complete=True,
    signed=True,
    paper="srinivas2019full",
    **GRADIENTS,
)
def fullgrad(layer: Layer) -> TokenScores:
    """Token times gradient, and the share of every bias at the token it is added to."""
    return input_x_gradient(layer)


register_alias("fullgrad+", "fullgrad+plus")
register_alias("fullgradplus", "fullgrad+plus")
