"""Cards E1–E3: vectors between tokens, one [N N d] tensor per layer."""

from __future__ import annotations

from functools import cache

import torch
from timm.layers import LayerScale
from torch import Tensor, nn

from tests.reference.attention import layers_of, rolled
from tests.reference.reference import reference_for
from tests.reference.scene import Scene

WITH_RMS = (
    "vit-even",
    "vit-mean",
    "map-skips-prefix",
    "deit-distilled",
    "vit-rmsnorm",
    "vit-torch-rmsnorm",
    "vit-qk-norm",
)


def scale_of(part: nn.Module) -> Tensor | float:
    return part.gamma.detach() if isinstance(part, LayerScale) else 1.0


@torch.no_grad()
def sent(scene: Scene, layer: int, bias: str = "included") -> Tensor:
    """f[h, j] = W_o^h v_j^h [H N d], layer-scale in, output bias out; the value's bias "included", "excluded", or "free" of the norm's shift too."""
    block = scene.model.blocks[layer]
    heads, width = block.attn.num_heads, block.attn.head_dim
    W_v = block.attn.qkv.weight.chunk(3)[2]
    U = scene.U[layer]
    if bias == "free" and getattr(block.norm1, "bias", None) is not None:
        U = U - block.norm1.bias
    v = U @ W_v.T
    if bias == "included" and block.attn.qkv.bias is not None:
        v = v + block.attn.qkv.bias.chunk(3)[2]
    f = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        f.append(v[:, part] @ block.attn.proj.weight[:, part].T * scale_of(block.ls1))
    return torch.stack(f)


@cache  # of a scene, which is cached too; callers do not modify the vectors
@torch.no_grad()
def received(scene: Scene, layer: int, bias: str, residual: bool) -> Tensor:
    """R[i, j] = Σ_h A[h, i, j] f[h, j] (+ X_i where i = j), [N N d], with f of `sent`."""
    N, A, f = scene.N, scene.A[layer], sent(scene, layer, bias)
    R = torch.zeros(N, N, f.shape[-1], dtype=torch.float64)
    for i in range(N):
        for j in range(N):
            R[i, j] = sum(A[h, i, j] * f[h, j] for h in range(len(A)))
        if residual:
            R[i, i] += scene.X[layer][i]
    return R


@torch.no_grad()
def normed(scene: Scene, layer: int, R: Tensor) -> Tensor:
    """K_2(R_ij) / sigma_i: the second norm without its shift, by the true spread of token i."""
    norm, Y = scene.model.blocks[layer].norm2, scene.Y[layer]
    out = torch.zeros_like(R)
    centred = isinstance(norm, nn.LayerNorm)
    for i in range(scene.N):
        y = Y[i] - Y[i].mean() if centred else Y[i]
        sigma = (y.pow(2).mean() + (torch.finfo(torch.float64).eps if norm.eps is None else norm.eps)).sqrt()
        for j in range(scene.N):
            u = R[i, j] - R[i, j].mean() if centred else R[i, j]
            out[i, j] = norm.weight * u / sigma
    return out


@cache
def attin_matrix(scene: Scene, layer: int, part: str, value_bias: bool) -> Tensor:
    R = received(scene, layer, "included" if value_bias else "free", residual=part != "attention")
    return (normed(scene, layer, R) if part == "resln" else R).norm(dim=-1)


@reference_for("attin", models=WITH_RMS)
@reference_for("attin(part='res')", part="res")
@reference_for("attin(part='resln')", part="resln", models=WITH_RMS)
@reference_for("attin(value_bias=False)", value_bias=False)
@reference_for("attin(part='resln', value_bias=False)", part="resln", value_bias=False)
@reference_for("attin+plus", layers="all")
@reference_for("attin+last", layers="last")
@reference_for("attin(part='res')+skipplus", part="res", layers="half")
def attin(scene: Scene, part: str = "attention", value_bias: bool = True, layers: str | None = None) -> Tensor:
    if layers:
        return scene.rho @ sum(attin_matrix(scene, layer, part, value_bias) for layer in layers_of(scene, layers))
    return rolled(scene, [attin_matrix(scene, layer, part, value_bias) for layer in range(scene.L)], "half")


@reference_for("attin(per_head=True)+plus")
def attin_per_head(scene: Scene) -> Tensor:
    """mean_h ‖A[h, i, j] f[h, j]‖."""
    total = torch.zeros(scene.N, scene.N, dtype=torch.float64)
    for layer, A in enumerate(scene.A):
        f = sent(scene, layer)
        for h in range(len(A)):
            for i in range(scene.N):
                for j in range(scene.N):
                    total[i, j] += (A[h, i, j] * f[h, j]).norm() / len(A)
    return scene.rho @ total


@cache
def through_the_block(scene: Scene, layer: int) -> Tensor:
    """V = R + lambda_2 ⊙ K_2(R) / sigma, free of biases."""
    R = received(scene, layer, "free", residual=True)
    return R + scale_of(scene.model.blocks[layer].ls2) * normed(scene, layer, R)


@reference_for("globenc", models=WITH_RMS)
@reference_for("globenc+rollout(form='half')", form="half")
@reference_for("globenc+rollout(form='half-normalised')", form="half-normalised")
@reference_for("globenc+plus", layers="all")
@reference_for("globenc+skipplus", layers="half")
def globenc(scene: Scene, form: str = "none", layers: str | None = None) -> Tensor:
    T = [through_the_block(scene, layer).norm(dim=-1) for layer in range(scene.L)]
    return scene.rho @ sum(T[layer] for layer in layers_of(scene, layers)) if layers else rolled(scene, T, form)


@cache
def alti_proximities(scene: Scene, layer: int, skipplus: bool, shift: float) -> Tensor:
    """relu(‖y_i‖₁ − ‖y_i − v_ij‖₁)."""
    if skipplus:
        V, y = through_the_block(scene, layer), scene.X[layer + 1]
    else:
        V, y = received(scene, layer, "included", residual=True), scene.Y[layer]
    T = torch.zeros(scene.N, scene.N, dtype=torch.float64)
    for i in range(scene.N):
        for j in range(scene.N):
            T[i, j] = (y[i].abs().sum() - (V[i, j] - y[i] + shift).abs().sum()).relu()
    return T


def alti_matrix(
    scene: Scene, layer: int, skipplus: bool, eps: float, shift: float = 0.0, undefined: str = "nan"
) -> Tensor:
    """Proximities of tokens, rows divided by their sums."""
    rows = alti_proximities(scene, layer, skipplus, shift)
    return torch.stack([row if undefined == "zero" and not row.any() else row / (row.sum() + eps) for row in rows])


@reference_for("alti", models=WITH_RMS)
@reference_for("alti+plus", layers="all")
@reference_for("alti+last", layers="last")
@reference_for("alti(skipplus=True)+plus", skipplus=True, layers="all")
@reference_for("alti(skipplus=True, eps=1e-3)", skipplus=True, eps=1e-3)
@reference_for("alti(eps=0.5)+skipplus", eps=0.5, layers="half")
@reference_for("alti(preset='official')", shift=1e-6)  # what torch's pairwise_distance adds
@reference_for("alti(shift=0.1)", shift=0.1)
@reference_for("alti(preset='skipplus')+last", skipplus=True, layers="last")
@reference_for("alti(preset='skipplus-paper')", skipplus=True, undefined="zero")
def alti(
    scene: Scene,
    skipplus: bool = False,
    eps: float = 0.0,
    layers: str | None = None,
    shift: float = 0.0,
    undefined: str = "nan",
) -> Tensor:
    T = [alti_matrix(scene, layer, skipplus, eps, shift, undefined) for layer in range(scene.L)]
    return scene.rho @ sum(T[layer] for layer in layers_of(scene, layers)) if layers else rolled(scene, T, "none")


@reference_for("alti+plus(mode='restart')")
def alti_restarted(scene: Scene) -> Tensor:
    """Σ_l of ALTI run on the blocks from l on: the row carried back to layer l, r ← r T."""
    T = [alti_matrix(scene, layer, False, 0.0) for layer in range(scene.L)]
    return sum(rolled(scene, T[start:], "none") for start in range(scene.L))
