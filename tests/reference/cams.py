"""Cards C1–C7: class activation maps, tokens in the role of pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.reference import half, reference_for
from tests.reference.scene import Scene

Cam = Callable[..., Tensor]  # of activations [N d], gradients [N d] and the first token that an average runs over


def weighted(a: Tensor, weight: Tensor) -> Tensor:
    return torch.stack([(weight * row).sum() for row in a])


def gradcam(a: Tensor, g: Tensor, first: int) -> Tensor:
    return weighted(a, g[first:].mean(0))


def xgradcam(a: Tensor, g: Tensor, first: int, eps: float = 1e-7) -> Tensor:
    d = a.shape[1]
    weight = [(g[first:, k] * a[first:, k]).sum() / (a[first:, k].sum() + eps) for k in range(d)]
    return weighted(a, torch.stack(weight))


def xgradcamplus(a: Tensor, g: Tensor, first: int, eps: float = 1e-7) -> Tensor:
    d = a.shape[1]
    weight = [(g[first:, k] * a[first:, k].abs()).sum() / (a[first:, k].abs().sum() + eps) for k in range(d)]
    return weighted(a, torch.stack(weight))


def gradcampp(a: Tensor, g: Tensor, first: int, eps: float = 1e-7, relu: bool = True) -> Tensor:
    weight = []
    for activations, gradients in zip(a[first:].T.tolist(), g[first:].T.tolist(), strict=True):  # of each channel
        total = sum(activations)
        alphas = [gradient**2 / (2 * gradient**2 + total * gradient**3 + eps) for gradient in gradients]
        parts = [max(gradient, 0) if relu else gradient for gradient in gradients]
        weight.append(sum(alpha * part for alpha, part in zip(alphas, parts, strict=True)))
    return weighted(a, torch.tensor(weight, dtype=torch.float64))


def hirescam(a: Tensor, g: Tensor, first: int) -> Tensor:
    return torch.stack([a[i] @ g[i] for i in range(len(a))])


def elementwise(a: Tensor, g: Tensor, first: int) -> Tensor:
    return torch.stack([(a[i] * g[i]).relu().sum() for i in range(len(a))])


def layercam(a: Tensor, g: Tensor, first: int, relu: bool = True) -> Tensor:
    scores = torch.stack([(g[i].relu() * a[i]).sum() for i in range(len(a))])
    return scores.relu() if relu else scores


CAMS: dict[str, Cam] = {
    cam.__name__: cam for cam in (gradcam, xgradcam, xgradcamplus, gradcampp, hirescam, elementwise, layercam)
}

for name, cam in CAMS.items():

    @reference_for(name, cam=cam)
    @reference_for(f"{name}+plus", cam=cam, layers="all")
    @reference_for(f"{name}+skipplus", cam=cam, layers="half")
    @reference_for(f"{name}@libra", cam=cam, held="libra")
    @reference_for(f"{name}(of='norm1')", cam=cam, of="norm1")
    @reference_for(f"{name}(preset='grad-cam')", cam=cam, of="norm1", tokens="patches")
    @reference_for(f"{name}(tokens='patches')+first", cam=cam, tokens="patches", layers="first")
    def class_activation(
        scene: Scene, cam: Cam, layers: str = "last", of: str = "input", tokens: str = "all"
    ) -> Tensor:
        chosen = {"last": [scene.L - 1], "first": [0], "all": range(scene.L), "half": range(half(scene), scene.L)}[
            layers
        ]
        a, g = (scene.X, scene.g) if of == "input" else (scene.U, scene.u)
        return sum(cam(a[layer], g[layer], scene.P if tokens == "patches" else 0) for layer in chosen)


def rescaled(scores: Tensor, prefix: int, normalise: str) -> Tensor:
    """A layer's scores, rescaled by the smallest and largest of its patches."""
    patches = scores[prefix:].tolist()
    largest = max(abs(score) for score in patches)
    match normalise:
        case "sum":
            return scores / sum(abs(score) for score in patches)
        case "minmax":
            return (scores - min(patches)) / (max(patches) - min(patches))
        case "tanh":
            return torch.tanh(2 * scores / largest)
    return scores / largest


@reference_for("elementwise+plus(normalise='tanh')", cam=elementwise, normalise="tanh")
@reference_for("elementwise+plus(normalise='minmax')", cam=elementwise, normalise="minmax")
@reference_for("gradcam+plus(normalise='max')", cam=gradcam, normalise="max")
@reference_for("gradcam+skipplus(normalise='sum')", cam=gradcam, normalise="sum", skip=True)
@reference_for("elementwise+plus(normalise='max', mode='restart')", cam=elementwise, normalise="max")
def rescaled_layers(scene: Scene, cam: Cam, normalise: str, skip: bool = False) -> Tensor:
    layers = range(half(scene) if skip else 0, scene.L)
    return sum(rescaled(cam(scene.X[layer], scene.g[layer], 0), scene.P, normalise) for layer in layers)


@reference_for("GradCAM++(eps=1e-6, relu=False)", cam=gradcampp, eps=1e-6, relu=False)
@reference_for("layercam(relu=False)", cam=layercam, relu=False)
@reference_for("XGradCAM+(eps=0.1)", cam=xgradcamplus, eps=0.1)
@reference_for("xgradcam(eps=0.1)", cam=xgradcam, eps=0.1)
def with_options(scene: Scene, cam: Cam, **options: float | bool) -> Tensor:
    return cam(scene.X[-2], scene.g[scene.L - 1], 0, **options)
