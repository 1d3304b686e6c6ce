"""Class activation maps, with tokens in place of the pixels of a feature map.

The defaults are those of SkipPLUS: activations `of` the block's "input", averages over all `tokens`, no ReLU.
`preset="grad-cam"` is the convention of pytorch-grad-cam: the first norm's output ("norm1"), and averages over the
patches without prefix tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.methods.folds import last
from vitreous.methods.options import Share
from vitreous.methods.register_method import method
from vitreous.methods.token_gradients import caution_of_single_norm
from vitreous.models.tensor_types import TokenScores

Of = Literal["input", "norm1"]
Averaged = Literal["all", "patches"]
Activations = Float[Tensor, "r n d"]

CAM: dict[str, Any] = {
    "family": "Class activation maps",
    "fold": last,
    "normed": True,
    "class_specific": True,
    "presets": {"grad-cam": {"of": "norm1", "tokens": "patches"}, "skipplus": {}},
}


def activations_of(layer: Layer, of: Of) -> tuple[Activations, Activations]:
    """Activations and gradients at the block's input or after its first norm."""
    return (layer.hidden, layer.hidden_grad) if of == "input" else (layer.normed, layer.normed_grad)


def weigh_channels(
    layer: Layer, of: Of, tokens: Averaged, weigh: Callable[[Activations, Activations], Float[Tensor, "r 1 d"]]
) -> TokenScores:
    """Σₖ wₖ aᵢₖ with a weight per channel, a function of activations and gradients of the tokens that it averages over."""
    a, g = activations_of(layer, of)
    start = 0 if tokens == "all" else layer.layout.prefix
    return (weigh(a[:, start:], g[:, start:]) * a).sum(-1)


@method(
    "gradcam",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = meanᵢ gᵢₖ",
    signed=True,
    paper="selvaraju2017grad",
    aliases=("grad-cam",),
    **CAM,
    precision="bf16",
)
def gradcam(layer: Layer, of: Of = "input", tokens: Averaged = "all") -> TokenScores:
    """Activations weighted by the mean gradient of their channel."""
    return weigh_channels(layer, of, tokens, lambda a, g: g.mean(1, keepdim=True))


@method(
    "xgradcam",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ gᵢₖ aᵢₖ / Σᵢ aᵢₖ",
    signed=True,
    paper="fu2020axiom",
    aliases=("xgrad-cam",),
    **CAM,
    precision="float32",
)
def xgradcam(layer: Layer, of: Of = "input", tokens: Averaged = "all", eps: Share = 1e-7) -> TokenScores:
    """Activations weighted by the activation-weighted gradient of their channel; unstable where activations cancel."""

    def weigh(a: Activations, g: Activations) -> Float[Tensor, "r 1 d"]:
        return (g * a).sum(1, keepdim=True) / (a.sum(1, keepdim=True) + eps)

    return weigh_channels(layer, of, tokens, weigh)


@method(
    "xgradcamplus",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ gᵢₖ |aᵢₖ| / Σᵢ |aᵢₖ|",
    signed=True,
    paper="mehri2024skipplus",
    aliases=("xgradcam+", "xacam"),
    **CAM,
    precision="bf16",
)
def xgradcamplus(layer: Layer, of: Of = "input", tokens: Averaged = "all", eps: Share = 1e-7) -> TokenScores:
    """XGradCAM weighted by absolute activations, so that the weights stay bounded."""

    def weigh(a: Activations, g: Activations) -> Float[Tensor, "r 1 d"]:
        return (g * a.abs()).sum(1, keepdim=True) / (a.abs().sum(1, keepdim=True) + eps)

    return weigh_channels(layer, of, tokens, weigh)


@method(
    "gradcampp",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ αᵢₖ relu(gᵢₖ), αᵢₖ = gᵢₖ² / (2 gᵢₖ² + gᵢₖ³ Σⱼ aⱼₖ)",
    signed=True,
    paper="chattopadhay2018grad",
    aliases=("gradcam++", "grad-cam++"),
    **CAM,
    precision="float32",
)
def gradcampp(
    layer: Layer, of: Of = "input", tokens: Averaged = "all", eps: Share = 1e-7, relu: bool = True
) -> TokenScores:
    """Activations weighted by positive gradients, each by its share of the channel's curvature."""

    def weigh(a: Activations, g: Activations) -> Float[Tensor, "r 1 d"]:
        alpha = g**2 / (2 * g**2 + a.sum(1, keepdim=True) * g**3 + eps)
        return (alpha * (g.clamp(min=0) if relu else g)).sum(1, keepdim=True)

    return weigh_channels(layer, of, tokens, weigh)


@method(
    "hirescam",
    formula="sᵢ = Σₖ gᵢₖ aᵢₖ",
    caveat=caution_of_single_norm,
    signed=True,
    paper="draelos2020use",
    **CAM,
    precision="float32",
)
def hirescam(layer: Layer, of: Of = "input", tokens: Averaged = "all") -> TokenScores:
    """Activation times gradient, element by element: token times gradient at one layer."""
    a, g = activations_of(layer, of)
    return (g * a).sum(-1)


@method(
    "elementwise",
    formula="sᵢ = Σₖ relu(gᵢₖ aᵢₖ)",
    signed=False,
    paper="gildenblat2021pytorch",
    aliases=("gradcamelementwise",),
    **CAM,
    precision="bf16",
)
def elementwise(layer: Layer, of: Of = "input", tokens: Averaged = "all") -> TokenScores:
    """The positive part of activation times gradient, element by element."""
    a, g = activations_of(layer, of)
    return (g * a).clamp(min=0).sum(-1)


@method(
    "layercam",
    formula="sᵢ = relu(Σₖ relu(gᵢₖ) aᵢₖ)",
    signed=False,
    paper="jiang2021layercam",
    **CAM,
)
def layercam(layer: Layer, of: Of = "input", tokens: Averaged = "all", relu: bool = True) -> TokenScores:
    """Activations weighted by their own positive gradient; the positive part of the sum."""
    a, g = activations_of(layer, of)
    scores = (g.clamp(min=0) * a).sum(-1)
    return scores.clamp(min=0) if relu else scores
