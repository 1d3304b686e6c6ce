"""Cards B1, B2, B5, B6, D9, D11, T1, T2: gradients, token × gradient, FullGrad."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.models.families import pictures
from tests.reference.reference import HELD, MODELS, POSITIONS, half, twin_of
from tests.reference.scene import TARGETS, Scene

POOLED = ("vit-even", "vit-mean", "deit-distilled")  # without attention pooling, whose softmax no hook reaches
RMS = ("vit-rmsnorm", "vit-rmsnorm-class-token")
GATED = ("vit-swiglu", "dinov2-giant", "eva02")


def token_x_gradient(scene: Scene, layer: int) -> Tensor:
    s = torch.zeros(scene.N, dtype=torch.float64)
    for i in range(scene.N):
        for k in range(scene.X[layer].shape[1]):
            s[i] += scene.X[layer][i, k] * scene.g[layer][i, k]
    return s


@twin_of("vanillagrad", models=RMS)
@twin_of("vanillagrad+plus", models=RMS, layers="all")
@twin_of("vanillagrad+skipplus", models=RMS, layers="half")
def vanillagrad(scene: Scene, layers: str = "first") -> Tensor:
    chosen = {"first": [0], "all": range(scene.L), "half": range(half(scene), scene.L)}[layers]
    return sum(torch.tensor([row.sum() for row in scene.g[layer]]) for layer in chosen)


@twin_of("vanillagrad_norm")
@twin_of("vanillagrad_norm+plus", layers="all")
def vanillagrad_norm(scene: Scene, layers: str = "first") -> Tensor:
    chosen = [0] if layers == "first" else range(scene.L)
    return sum(torch.tensor([row.pow(2).sum().sqrt() for row in scene.g[layer]]) for layer in chosen)


@twin_of("ixg", models=(*MODELS, *RMS, *POSITIONS, "clip", "eva-large", "eva-giant"))
@twin_of("ixg+first")
@twin_of("ixg+at(layer=1)", layer=1)
@twin_of("ixg+at(layer=-2)", layer=-2)
@twin_of("ixg+last", layer=-1)
@twin_of("conservativelrp", held="conservative", models=(*MODELS, *GATED))
@twin_of("conservativelrp+last", held="conservative", layer=-1)
@twin_of("attnlrp", held="attnlrp", models=(*MODELS, *RMS, *GATED, "clip", "rope-mixed", "dinov3"))
@twin_of("gim", held="gim", models=(*POOLED, *RMS, *GATED, "rope-mixed"))
@twin_of("gim+last", held="gim", layer=-1, models=POOLED)
@twin_of("ixg@linear(softmax=4)", held={"softmax": 4}, models=(*POOLED, *POSITIONS))
@twin_of("ixg@linear(softmax=0.5, qk=0.5)", held={"softmax": 0.5, "qk": 0.5}, models=POOLED)
@twin_of("reslrp", held="reslrp", models=(*MODELS, *RMS))
@twin_of("ixg@attnlrp(residual=0.25)", held=HELD["reslrp"] | {"residual": 0.25})
@twin_of("ixg@linear(residual=5)", held={"residual": 5})
@twin_of("ixg@conservative", held="conservative")
@twin_of(
    "ixg@conservative(norm='fixed')", held={"qk": 0, "norm": "fixed"}, models=(*MODELS, *RMS)
)  # `detach_mean` of card D9
@twin_of("ixg@libra", held="libra", models=(*MODELS, *GATED))
@twin_of("ixg@attnlrp+at(layer=1)", held="attnlrp", layer=1)
def input_x_gradient(scene: Scene, layer: int = 0) -> Tensor:
    return token_x_gradient(scene, layer % scene.L)


MIDWAY = {"qk": 0.5, "norm": "frozen", "activation": "ratio"}


@twin_of("ixg+plus")
@twin_of("cat")
@twin_of("cat(of='output')", outputs=True)
@twin_of("ixg+skipplus", start=None)
@twin_of("ixg+skipplus(start=1)", start=1)
@twin_of("attnlrp+plus", held="attnlrp")
@twin_of("gim+plus", held="gim", models=POOLED)
@twin_of("reslrp+plus", held="reslrp")
@twin_of("reslrp+skipplus", held="reslrp", start=None)
@twin_of(
    "temper", held="tempered", question="probability", models=(*MODELS, *RMS, *GATED, "clip", "rope-mixed", "dinov3")
)
@twin_of("temper+skipplus", held="tempered", question="probability", start=None)
@twin_of("ixg(question='probability')@tempered+plus", held="tempered", question="probability")
@twin_of("ixg+plus(mode='restart')")  # a restart of token × gradient is the layer's own map
@twin_of("ixg@linear(qk=0.5, v=1, norm='frozen', activation='ratio')+plus", held=MIDWAY)
@twin_of("ixg@decompx(qk=0.5, v=0.75)+skipplus", held=HELD["decompx"] | {"qk": 0.5, "v": 0.75}, start=None)
def summed(scene: Scene, outputs: bool = False, start: int | None = 0) -> Tensor:
    first = half(scene) if start is None else start
    return sum(token_x_gradient(scene, layer + outputs) for layer in range(first, scene.L))


@twin_of("fullgrad", models=(*MODELS, *RMS, "vit-qk-norm", "beit-3"))
@twin_of("fullgrad+at(layer=1)", layer=1)
@twin_of("fullgrad+last", layer=-1)
@twin_of("fullgrad@libra", held="libra", models=(*MODELS, *GATED, "vit-qk-norm", "beit-3"))
@twin_of("fullgrad@decompx", held="decompx", models=(*MODELS, *GATED))
def fullgrad(scene: Scene, layer: int = 0) -> Tensor:
    """Token × gradient, and the biases of this block, of those behind it and of the final norm."""
    layer %= scene.L
    return token_x_gradient(scene, layer) + sum(scene.m[layer:])


@twin_of("fullgrad+plus")
@twin_of("FullGrad+")
@twin_of("fullgrad+skipplus", start=None)
@twin_of("fullgrad@libra+plus", held="libra", models=(*MODELS, *GATED))
@twin_of("fullgrad@libra+skipplus(start=1)", held="libra", start=1)
def fullgrad_plus(scene: Scene, start: int | None = 0) -> Tensor:
    """Every layer's token × gradient, every bias once."""
    first = half(scene) if start is None else start
    return sum(token_x_gradient(scene, layer) for layer in range(first, scene.L)) + sum(scene.m[first:])


@twin_of("fullgrad+plus(biases='repeat')")
@twin_of("fullgrad+skipplus(biases='repeat')", start=None)
def fullgrad_again_and_again(scene: Scene, start: int | None = 0) -> Tensor:
    """The sum of FullGrads restarted at every layer."""
    first = half(scene) if start is None else start
    return sum(fullgrad(scene, layer) for layer in range(first, scene.L))


# ── pixels ───────────────────────────────────────────────────────────────────────────────────────


@twin_of("vanillagrad(space='pixels')")
@twin_of("vanillagrad(space='pixels', channels='abs')", channels="abs")
@twin_of("vanillagrad(space='pixels', channels='max')", channels="max")
@twin_of("vanillagrad_norm(space='pixels')", channels="norm")
@twin_of("vanillagrad_norm(space='pixels')@attnlrp", channels="norm", held="attnlrp")
def image_gradient(scene: Scene, channels: str = "sum") -> Tensor:
    red, green, blue = scene.image_grad
    if channels == "sum":
        return red + green + blue
    if channels == "abs":
        return red.abs() + green.abs() + blue.abs()
    if channels == "max":
        return torch.maximum(torch.maximum(red.abs(), green.abs()), blue.abs())
    return (red**2 + green**2 + blue**2) ** 0.5


@twin_of("ixg(space='pixels')")
@twin_of("decompx(space='pixels')", held="decompx")
def image_x_gradient(scene: Scene) -> Tensor:
    image = pictures()[TARGETS.index(scene.target)]
    return sum(colour * gradient for colour, gradient in zip(image, scene.image_grad, strict=True))
