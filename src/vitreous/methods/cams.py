"""Class activation maps, with tokens in place of the pixels of a feature map.

The defaults are those of SkipPLUS: activations `of` the block's "input", averages over all `tokens`, no ReLU.
`preset="grad-cam"` is the convention of pytorch-grad-cam: the first norm's output ("norm1"), and averages over the
patches without prefix tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.methods.folds import last
from vitreous.methods.method import Method
from vitreous.methods.options import Option, OptionFunction, Share
from vitreous.methods.register_method import method
from vitreous.methods.token_gradients import caution_of_single_norm
from vitreous.models.tensor_types import TokenScores

Of = Literal["input", "norm1"]
Averaged = Literal["all", "patches"]
Activations = Float[Tensor, "r n d"]
ChannelWeights = Float[Tensor, "r 1 d"]

CAM: dict[str, Any] = {
    "family": "Class activation maps",
    "fold": last,
    "normed": True,
    "class_specific": True,
    "presets": {"grad-cam": {"of": "norm1", "tokens": "patches"}, "skipplus": {}},
}
SHARED = {"of": Option("of", "input", Of), "tokens": Option("tokens", "all", Averaged)}


def cam(name: str, *, weighs: bool = True, **facts: Any) -> Callable[[Callable[..., Tensor]], Method]:
    """Decorator that registers a function of activations and gradients, at the block's input or after its first norm.

    Parameters
    ----------
    name
        Name of the method.
    weighs
        Whether the function returns a weight per channel, Σₖ wₖ aᵢₖ being the scores, and gets the tokens that it averages
        over; else it returns scores, and gets all tokens.
    **facts
        As for `method`.
    """

    def register(function: Callable[..., Tensor]) -> Method:
        own = OptionFunction.of(function)

        @wraps(function)
        def signal(layer: Layer, of: Of = "input", tokens: Averaged = "all", **options: Any) -> TokenScores:
            a, g = (layer.hidden, layer.hidden_grad) if of == "input" else (layer.normed, layer.normed_grad)
            if not weighs:
                return function(a, g, **options)
            start = 0 if tokens == "all" else layer.layout.prefix
            return (function(a[:, start:], g[:, start:], **options) * a).sum(-1)

        signature = OptionFunction(signal, ("layer",), {**SHARED, **own.options})
        return method(name, **CAM, **facts)(signature)

    return register


@cam(
    "gradcam",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = meanᵢ gᵢₖ",
    signed=True,
    paper="selvaraju2017grad",
    aliases=("grad-cam",),
    precision="bf16",
)
def gradcam(a: Activations, g: Activations) -> ChannelWeights:
    """Activations weighted by the mean gradient of their channel."""
    return g.mean(1, keepdim=True)


@cam(
    "xgradcam",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ gᵢₖ aᵢₖ / Σᵢ aᵢₖ",
    signed=True,
    paper="fu2020axiom",
    aliases=("xgrad-cam",),
    precision="float32",
)
def xgradcam(a: Activations, g: Activations, eps: Share = 1e-7) -> ChannelWeights:
    """Activations weighted by the activation-weighted gradient of their channel; unstable where activations cancel."""
    return (g * a).sum(1, keepdim=True) / (a.sum(1, keepdim=True) + eps)


@cam(
    "xgradcamplus",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ gᵢₖ |aᵢₖ| / Σᵢ |aᵢₖ|",
    signed=True,
    paper="mehri2024skipplus",
    aliases=("xgradcam+", "xacam"),
    precision="bf16",
)
def xgradcamplus(a: Activations, g: Activations, eps: Share = 1e-7) -> ChannelWeights:
    """XGradCAM weighted by absolute activations, so that the weights stay bounded."""
    return (g * a.abs()).sum(1, keepdim=True) / (a.abs().sum(1, keepdim=True) + eps)


@cam(
    "gradcampp",
    formula="sᵢ = Σₖ wₖ aᵢₖ, wₖ = Σᵢ αᵢₖ relu(gᵢₖ), αᵢₖ = gᵢₖ² / (2 gᵢₖ² + gᵢₖ³ Σⱼ aⱼₖ)",
    signed=True,
    paper="chattopadhay2018grad",
    aliases=("gradcam++", "grad-cam++"),
    precision="float32",
)
def gradcampp(a: Activations, g: Activations, eps: Share = 1e-7, relu: bool = True) -> ChannelWeights:
    """Activations weighted by positive gradients, each by its share of the channel's curvature."""
    alpha = g**2 / (2 * g**2 + a.sum(1, keepdim=True) * g**3 + eps)
    return (alpha * (g.clamp(min=0) if relu else g)).sum(1, keepdim=True)


@cam(
    "hirescam",
    weighs=False,
    formula="sᵢ = Σₖ gᵢₖ aᵢₖ",
    caveat=caution_of_single_norm,
    signed=True,
    paper="draelos2020use",
    precision="float32",
)
def hirescam(a: Activations, g: Activations) -> TokenScores:
    """Activation times gradient, element by element: token times gradient at one layer."""
    return (g * a).sum(-1)


@cam(
    "elementwise",
    weighs=False,
    formula="sᵢ = Σₖ relu(gᵢₖ aᵢₖ)",
    signed=False,
    paper="gildenblat2021pytorch",
    aliases=("gradcamelementwise",),
    precision="bf16",
)
def elementwise(a: Activations, g: Activations) -> TokenScores:
    """The positive part of activation times gradient, element by element."""
    return (g * a).clamp(min=0).sum(-1)


@cam("layercam", weighs=False, formula="sᵢ = relu(Σₖ relu(gᵢₖ) aᵢₖ)", signed=False, paper="jiang2021layercam")
def layercam(a: Activations, g: Activations, relu: bool = True) -> TokenScores:
    """Activations weighted by their own positive gradient; the positive part of the sum."""
    scores = (g.clamp(min=0) * a).sum(-1)
    return scores.clamp(min=0) if relu else scores
