"""Cards B1, B2, B5, B6, D9, D11, T1, T2: gradients, token × gradient, FullGrad."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.models.families import pictures
from tests.reference.reference import HELD, MODELS, POSITIONS, half, reference_for
from tests.reference.scene import TARGETS, Scene

POOLED = ("vit-even", "vit-mean", "deit-distilled")  # without attention pooling, whose softmax no hook reaches
RMS = ("vit-rmsnorm", "vit-rmsnorm-class-token")
GATED = ("vit-swiglu", "dinov2-giant", "eva02")


def token_x_gradient(scene: Scene, layer: int) -> Tensor:
    tokens, gradients = scene.X[layer].tolist(), scene.g[layer].tolist()  # sums of floats are faster than of tensors
    scores = [sum(x * g for x, g in zip(*rows, strict=True)) for rows in zip(tokens, gradients, strict=True)]
    return torch.tensor(scores, dtype=torch.float64)


@reference_for("vanillagrad", models=RMS)
@reference_for("vanillagrad+plus", models=RMS, layers="all")
@reference_for("vanillagrad+skipplus", models=RMS, layers="half")
def vanillagrad(scene: Scene, layers: str = "first") -> Tensor:
    chosen = {"first": [0], "all": range(scene.L), "half": range(half(scene), scene.L)}[layers]
    return sum(torch.tensor([row.sum() for row in scene.g[layer]]) for layer in chosen)


@reference_for("vanillagrad_norm")
@reference_for("vanillagrad_norm+plus", layers="all")
def vanillagrad_norm(scene: Scene, layers: str = "first") -> Tensor:
    chosen = [0] if layers == "first" else range(scene.L)
    return sum(torch.tensor([row.pow(2).sum().sqrt() for row in scene.g[layer]]) for layer in chosen)


@reference_for("ixg", models=(*MODELS, *RMS, *POSITIONS, "clip", "eva-large", "eva-giant"))
@reference_for("ixg+first")
@reference_for("ixg+at(layer=1)", layer=1)
@reference_for("ixg+at(layer=-2)", layer=-2)
@reference_for("ixg+last", layer=-1)
@reference_for("conservativelrp", held="conservative", models=(*MODELS, *GATED))
@reference_for("conservativelrp+last", held="conservative", layer=-1)
@reference_for("attnlrp", held="attnlrp", models=(*MODELS, *RMS, *GATED, "clip", "rope-mixed", "dinov3"))
@reference_for("gim", held="gim", models=(*POOLED, *RMS, *GATED, "rope-mixed"))
@reference_for("gim+last", held="gim", layer=-1, models=POOLED)
@reference_for("ixg@linear(softmax=4)", held={"softmax": 4}, models=(*POOLED, *POSITIONS))
@reference_for("ixg@linear(softmax=0.5, qk=0.5)", held={"softmax": 0.5, "qk": 0.5}, models=POOLED)
@reference_for("reslrp", held="reslrp", models=(*MODELS, *RMS))
@reference_for("ixg@attnlrp(residual=0.25)", held=HELD["reslrp"] | {"residual": 0.25})
@reference_for("ixg@linear(residual=5)", held={"residual": 5})
@reference_for("ixg@conservative", held="conservative")
@reference_for(
    "ixg@conservative(norm='fixed')", held={"qk": 0, "norm": "fixed"}, models=(*MODELS, *RMS)
)  # `detach_mean` of card D9
@reference_for("ixg@libra", held="libra", models=(*MODELS, *GATED))
@reference_for("ixg@attnlrp+at(layer=1)", held="attnlrp", layer=1)
def input_x_gradient(scene: Scene, layer: int = 0) -> Tensor:
    return token_x_gradient(scene, layer % scene.L)


MIDWAY = {"qk": 0.5, "norm": "frozen", "activation": "ratio"}


@reference_for("ixg+plus")
@reference_for("cat")
@reference_for("cat(of='output')", outputs=True)
@reference_for("ixg+skipplus", start=None)
@reference_for("ixg+skipplus(start=1)", start=1)
@reference_for("attnlrp+plus", held="attnlrp")
@reference_for("gim+plus", held="gim", models=POOLED)
@reference_for("reslrp+plus", held="reslrp")
@reference_for("reslrp+skipplus", held="reslrp", start=None)
@reference_for(
    "temper", held="tempered", question="probability", models=(*MODELS, *RMS, *GATED, "clip", "rope-mixed", "dinov3")
)
@reference_for("temper+skipplus", held="tempered", question="probability", start=None)
@reference_for("ixg(question='probability')@tempered+plus", held="tempered", question="probability")
@reference_for("ixg+plus(mode='restart')")  # a restart of token × gradient is the layer's own map
@reference_for("ixg@linear(qk=0.5, v=1, norm='frozen', activation='ratio')+plus", held=MIDWAY)
@reference_for("ixg@decompx(qk=0.5, v=0.75)+skipplus", held=HELD["decompx"] | {"qk": 0.5, "v": 0.75}, start=None)
def summed(scene: Scene, outputs: bool = False, start: int | None = 0) -> Tensor:
    first = half(scene) if start is None else start
    return sum(token_x_gradient(scene, layer + outputs) for layer in range(first, scene.L))


@reference_for("fullgrad", models=(*MODELS, *RMS, "vit-qk-norm", "beit-3"))
@reference_for("fullgrad+at(layer=1)", layer=1)
@reference_for("fullgrad+last", layer=-1)
@reference_for("fullgrad@libra", held="libra", models=(*MODELS, *GATED, "vit-qk-norm", "beit-3"))
@reference_for("fullgrad@decompx", held="decompx", models=(*MODELS, *GATED))
def fullgrad(scene: Scene, layer: int = 0) -> Tensor:
    """Token × gradient, and the biases of this block, of those behind it and of the final norm."""
    layer %= scene.L
    return token_x_gradient(scene, layer) + sum(scene.m[layer:])


@reference_for("fullgrad+plus")
@reference_for("FullGrad+")
@reference_for("fullgrad+skipplus", start=None)
@reference_for("fullgrad@libra+plus", held="libra", models=(*MODELS, *GATED))
@reference_for("fullgrad@libra+skipplus(start=1)", held="libra", start=1)
def fullgrad_plus(scene: Scene, start: int | None = 0) -> Tensor:
    """Every layer's token × gradient, every bias once."""
    first = half(scene) if start is None else start
    return sum(token_x_gradient(scene, layer) for layer in range(first, scene.L)) + sum(scene.m[first:])


@reference_for("fullgrad+plus(biases='repeat')")
@reference_for("fullgrad+skipplus(biases='repeat')", start=None)
def fullgrad_again_and_again(scene: Scene, start: int | None = 0) -> Tensor:
    """The sum of FullGrads restarted at every layer."""
    first = half(scene) if start is None else start
    return sum(fullgrad(scene, layer) for layer in range(first, scene.L))


# ── pixels ───────────────────────────────────────────────────────────────────────────────────────


@reference_for("vanillagrad(space='pixels')")
@reference_for("vanillagrad(space='pixels', channels='abs')", channels="abs")
@reference_for("vanillagrad(space='pixels', channels='max')", channels="max")
@reference_for("vanillagrad_norm(space='pixels')", channels="norm")
@reference_for("vanillagrad_norm(space='pixels')@attnlrp", channels="norm", held="attnlrp")
def image_gradient(scene: Scene, channels: str = "sum") -> Tensor:
    red, green, blue = scene.image_grad
    if channels == "sum":
        return red + green + blue
    if channels == "abs":
        return red.abs() + green.abs() + blue.abs()
    if channels == "max":
        return torch.maximum(torch.maximum(red.abs(), green.abs()), blue.abs())
    return (red**2 + green**2 + blue**2) ** 0.5


@reference_for("ixg(space='pixels')")
@reference_for("decompx(space='pixels')", held="decompx")
def image_x_gradient(scene: Scene) -> Tensor:
    image = pictures()[TARGETS.index(scene.target)]
    return sum(colour * gradient for colour, gradient in zip(image, scene.image_grad, strict=True))
