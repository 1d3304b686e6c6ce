"""Card E4: DecompX as published, D[i, j] = the part of token i that came from token j, carried forward through every layer.

On a gated MLP the activated gate is held fixed (recipe 4); Libra gives half of the product to each side (card T1).
"""

from __future__ import annotations

from functools import cache

import torch
from timm.layers import GluMlp, SwiGLU
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from tests.reference.reference import MODELS, half, reference_for
from tests.reference.scene import QUESTIONS, Scene, pooler_attention
from tests.reference.vectors import scale_of

PLAIN_MLP = (
    *MODELS,
    "siglip",
    "vit-rmsnorm",
    "vit-torch-rmsnorm",
    "vit-bare",
    "vit-qk-norm",
    "clip",
    "beit-3",
    "vit-no-class-token",
)
GATED = ("vit-swiglu", "dinov2-giant")


def through_norm(norm: nn.Module, x: Tensor, D: Tensor) -> Tensor:
    """(D − mean_d D) / sigma_i ⊙ gamma; x [n d] is the true state, D [n N d] its parts."""
    if isinstance(norm, nn.Identity):
        return D
    if isinstance(norm, nn.LayerNorm):
        sigma = (x.var(-1, unbiased=False) + norm.eps).sqrt()
        return (D - D.mean(-1, keepdim=True)) / sigma[:, None, None] * norm.weight
    eps = torch.finfo(torch.float64).eps if norm.eps is None else norm.eps
    return D / (x.pow(2).mean(-1) + eps).sqrt()[:, None, None] * norm.weight


def through_mlp(norm: nn.Module, mlp: nn.Module, x: Tensor, D: Tensor, gate: str) -> Tensor:
    D, y = through_norm(norm, x, D), norm(x)
    if isinstance(mlp, GluMlp | SwiGLU):
        if isinstance(mlp, SwiGLU):
            (g, u), (Dg, Du) = (mlp.fc1_g(y), mlp.fc1_x(y)), (D @ mlp.fc1_g.weight.T, D @ mlp.fc1_x.weight.T)
        else:  # packed, the gate first
            g, u = mlp.fc1(y).chunk(2, dim=-1)
            Dg, Du = (D @ mlp.fc1.weight.T).chunk(2, dim=-1)
        a = mlp.act(g)
        hidden = a * u
        D = a[:, None] * Du
        if gate == "halved":
            D = D / 2 + (a / g * u)[:, None] * Dg / 2
    else:
        z = mlp.fc1(y)
        hidden = mlp.act(z)
        D = (hidden / z)[:, None] * (D @ mlp.fc1.weight.T)  # GeLU_ZO: the ratio act(z) / z
    return through_norm(mlp.norm, hidden, D) @ mlp.fc2.weight.T


@cache  # of a scene, which is cached too; callers do not modify the vectors
@torch.no_grad()
def decomposed(scene: Scene, start: int, gate: str) -> Tensor:
    """D of what the head reads, [q N d] for its q vectors."""
    model, N = scene.model, scene.N
    D = torch.zeros(N, N, model.embed_dim, dtype=torch.float64)
    for i in range(N):
        D[i, i] = scene.X[start][i]
    for layer in range(start, scene.L):
        block = model.blocks[layer]
        width, W_v = block.attn.head_dim, block.attn.qkv.weight.chunk(3)[2]
        parts, mixed = through_norm(block.norm1, scene.X[layer], D), []
        for h, A in enumerate(scene.A[layer]):
            values = parts @ W_v[h * width : (h + 1) * width].T  # [k j dh]
            mixed.append(torch.stack([sum(A[i, k] * values[k] for k in range(N)) for i in range(N)]))
        mixed = torch.cat(mixed, dim=-1)
        if not isinstance(block.attn.norm, nn.Identity):
            bias = block.attn.qkv.bias.chunk(3)[2]
            v = (scene.U[layer] @ W_v.T + bias).unflatten(-1, (-1, width))
            truth = torch.cat([A @ v[:, h] for h, A in enumerate(scene.A[layer])], dim=-1)
            mixed = through_norm(block.attn.norm, truth, mixed)
        D = D + mixed @ block.attn.proj.weight.T * scale_of(block.ls1)
        D = D + through_mlp(block.norm2, block.mlp, scene.Y[layer], D, gate) * scale_of(block.ls2)
    return pooled(scene, through_norm(model.norm, scene.X[-1], D), gate)


def pooled(scene: Scene, D: Tensor, gate: str) -> Tensor:
    model = scene.model
    if isinstance(model, VisionTransformerDistilled):
        return D[:2]
    tokens = model.norm(scene.X[-1])
    if model.global_pool == "map":
        pool = model.attn_pool
        skip = 0 if model.pool_include_prefix else scene.P
        W_v = pool.kv.weight.chunk(2)[1]
        width, mixed = len(W_v) // pool.num_heads, []
        for h, row in enumerate(pooler_attention(model, scene.X[-1][skip:])):
            values = D[skip:] @ W_v[h * width : (h + 1) * width].T
            mixed.append(sum(row[k] * values[k] for k in range(len(row))))
        D = (torch.cat(mixed, dim=-1) @ pool.proj.weight.T)[None]
        truth = pool.forward(tokens[None, skip:])  # after its MLP; before it:
        before = truth_before_mlp(pool, tokens[skip:])
        D = D + through_mlp(pool.norm, pool.mlp, before, D, gate)
    else:
        D, truth = (scene.rho @ D.flatten(1)).view(1, *D.shape[1:]), (scene.rho @ tokens)[None]
    return through_norm(model.fc_norm, truth, D)


def truth_before_mlp(pool: nn.Module, tokens: Tensor) -> Tensor:
    kept: list[Tensor] = []
    handle = pool.proj.register_forward_hook(lambda module, args, output: kept.append(output[0]))
    pool(tokens[None])
    handle.remove()
    return kept[0]


def shares(scene: Scene, start: int = 0, gate: str = "frozen", question: str = "logit") -> Tensor:
    """Share of each source in the score, to first order in the logits."""
    D = decomposed(scene, start, gate)
    z = scene.logits.clone().requires_grad_()
    QUESTIONS[question](z, scene.target).backward()
    heads = [scene.model.head]
    if isinstance(scene.model, VisionTransformerDistilled):
        heads.append(scene.model.head_dist)
    return sum(D[q] @ head.weight.detach().T @ z.grad for q, head in enumerate(heads)) / len(heads)


@reference_for("decompx", models=(*PLAIN_MLP, *GATED))
@reference_for("decompx+at(layer=1)", start=1)
@reference_for("decompx+at(layer=2)", start=2, models=(*PLAIN_MLP, *GATED))
@reference_for("decompx+last", start=-1)
@reference_for("ixg@decompx+at(layer=-1)", start=-1)
@reference_for("hirescam@decompx", start=-1)
@reference_for("ixg@libra+at(layer=1)", start=1, gate="halved", models=(*MODELS, *GATED))
@reference_for("hirescam@libra+first", gate="halved", models=GATED)
def decompx(scene: Scene, start: int = 0, gate: str = "frozen") -> Tensor:
    return shares(scene, start % scene.L, gate)


@reference_for("decompx+plus", models=(*MODELS, *GATED))
@reference_for("decompx+skipplus", skip=True, models=(*PLAIN_MLP, *GATED))
@reference_for("ixg@libra+plus", gate="halved", models=GATED)
def decompx_plus(scene: Scene, skip: bool = False, gate: str = "frozen") -> Tensor:
    return sum(shares(scene, start, gate) for start in range(half(scene) if skip else 0, scene.L))
