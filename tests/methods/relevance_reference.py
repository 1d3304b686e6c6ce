"""Relevance propagated through a raw timm model by the rules of card D6, with autograd, one image at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor

from tests.models.families import pictures, tiny
from tests.reference.scene import Scene, look

TARGETS = (1, 3)


def safe(a: Tensor, b: Tensor) -> Tensor:
    below = b.clamp(min=1e-9) + b.clamp(max=1e-9)
    below = below + (below == 0) * 1e-9
    return a / below * (b != 0)


def simply(function, inputs: list[Tensor], R: Tensor) -> list[Tensor]:
    """x ⊙ ∂/∂x ⟨S, f(x)⟩, S = R / f(x)."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    Z = function(*inputs)
    grads = torch.autograd.grad(Z, inputs, safe(R, Z).detach())
    return [(x * g).detach() for x, g in zip(inputs, grads, strict=True)]


@dataclass
class LayerPass:
    """Relevance of one image, propagated back; R of every block's input and attention, from the first block on."""

    scene: Scene
    joint: bool
    rescale: bool
    R_X: list[Tensor] = field(default_factory=list)
    R_A: list[Tensor] = field(default_factory=list)

    def linear(self, R: Tensor, x: Tensor, W: Tensor) -> Tensor:
        px, nx = x.clamp(min=0).requires_grad_(), x.clamp(max=0).requires_grad_()
        Z1, Z2 = px @ W.clamp(min=0).T, nx @ W.clamp(max=0).T
        S1, S2 = (safe(R, Z1 + Z2),) * 2 if self.joint else (safe(R, Z1), safe(R, Z2))
        C1, C2 = torch.autograd.grad(Z1, px, S1.detach())[0], torch.autograd.grad(Z2, nx, S2.detach())[0]
        return (px * C1 + nx * C2).detach()

    def add(self, R: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        Ra, Rb = simply(torch.add, [a, b], R)
        if self.rescale:
            of_a, of_b, total = Ra.sum(), Rb.sum(), R.sum()
            fa, fb = (safe(s.abs(), of_a.abs() + of_b.abs()) * total for s in (of_a, of_b))
            Ra, Rb = Ra * safe(fa, of_a), Rb * safe(fb, of_b)
        return Ra, Rb

    def fork(self, x: Tensor, R1: Tensor, R2: Tensor) -> Tensor:
        return x * (safe(R1, x) + safe(R2, x))

    def head(self, R: Tensor) -> Tensor:
        model = self.scene.model
        x = model.norm(self.scene.X[-1]).detach()
        if isinstance(model, VisionTransformerDistilled):
            W = torch.cat([model.head.weight, model.head_dist.weight], 1).detach() / 2
            R = self.linear(R, x[:2].flatten(), W).view(2, -1)
            out = torch.zeros_like(x)
            out[:2] = x[:2] * safe(R, x[:2])
            return out
        pooled = self.scene.rho @ x
        R = self.linear(R, model.fc_norm(pooled).detach(), model.head.weight.detach())
        return simply(lambda t: self.scene.rho @ t, [x], R)[0]

    def block(self, layer: int, R: Tensor) -> Tensor:
        block, scene = self.scene.model.blocks[layer], self.scene
        attn, mlp = block.attn, block.mlp
        gamma1, gamma2 = (
            getattr(ls, "gamma", torch.ones(R.shape[1]).double()).detach() for ls in (block.ls1, block.ls2)
        )
        X, Y, U, A = scene.X[layer], scene.Y[layer], scene.U[layer], scene.A[layer]
        normed = block.norm2(Y).detach()
        hidden = mlp.act(mlp.fc1(normed)).detach()

        R_skip, R = self.add(R, Y, block.ls2(mlp.fc2(hidden)).detach())
        R = self.linear(R, hidden, gamma2[:, None] * mlp.fc2.weight.detach())
        R = self.linear(R, normed, mlp.fc1.weight.detach())
        R = self.fork(Y, R_skip, R)

        H, width = len(A), attn.head_dim
        q, k, v = attn.qkv(U).detach().view(-1, 3, H, width).permute(1, 2, 0, 3)  # [H N dh] each
        mixed = (A @ v).transpose(0, 1).flatten(1)
        R_skip, R = self.add(R, X, block.ls1(attn.proj(mixed)).detach())
        R = self.linear(R, mixed, gamma1[:, None] * attn.proj.weight.detach()).view(-1, H, width).transpose(0, 1)
        R_A, R_v = (r / 2 for r in simply(torch.matmul, [A, v], R))
        R_q, R_k = (r / 2 for r in simply(lambda q, k: q @ k.mT, [q, k], R_A))
        R = torch.stack([R_q, R_k, R_v]).permute(2, 0, 1, 3).flatten(1)
        R = self.linear(R, U, attn.qkv.weight.detach())
        self.R_A.insert(0, R_A)
        return self.fork(X, R_skip, R)

    def pixels(self, picture: Tensor) -> Tensor:
        model, R, P = self.scene.model, self.R_X[0], self.scene.P
        conv = model.patch_embed.proj
        patches = conv(picture[None]).flatten(2).mT[0].detach()
        front = [getattr(model, n, None) for n in ("cls_token", "dist_token", "reg_token")]
        content = torch.cat([*(t[0].detach() for t in front if t is not None), patches])
        R = self.add(R, content, self.scene.X[0] - content)[0][P:]
        R = R.T.view(1, -1, *model.patch_embed.grid_size)
        W, low, high = conv.weight.detach(), picture.min(), picture.max()
        found, Z = 0, 1e-9
        parts = [(picture[None], W, 1), (torch.full_like(picture[None], low), W.clamp(min=0), -1)]
        parts.append((torch.full_like(picture[None], high), W.clamp(max=0), -1))
        for x, w, sign in parts:
            Z = Z + sign * F.conv2d(x, w, stride=8)
        for x, w, sign in parts:
            x = x.clone().requires_grad_()
            found = found + sign * x * torch.autograd.grad(F.conv2d(x, w, stride=8), x, R / Z)[0]
        return found[0].sum(0).detach()


def walked(family: str, image: int, joint: bool, rescale: bool, question: str = "logit") -> LayerPass:
    scene = look(tiny(family), pictures()[image], TARGETS[image], question)
    layer_pass, R = LayerPass(scene, joint, rescale), torch.zeros_like(scene.logits)
    R[TARGETS[image]] = 1
    if question == "margin":
        others = scene.logits.clone()
        others[TARGETS[image]] = -torch.inf
        R[others.argmax()] = -1
    R = layer_pass.head(R)
    for layer in reversed(range(scene.L)):
        R = layer_pass.block(layer, R)
        layer_pass.R_X.insert(0, R)
    return layer_pass
