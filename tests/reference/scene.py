"""Everything a slow method may look at, of one image: a copy of the timm model, run by its own forward, and hooks.

Nothing here knows the library. Attention is timm's unfused one; what a linearisation holds fixed is done by surgery on the
copy: a norm that divides by a constant, an activation that multiplies by a constant, damped queries, keys and values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from timm.layers import AttentionPoolLatent, GluMlp, RmsNorm, SwiGLU
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tests.models.families import pictures, tiny

NORMS = (nn.LayerNorm, nn.RMSNorm, RmsNorm)
QUESTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "logit": lambda z, c: z[c],
    "probability": lambda z, c: z.softmax(-1)[c],
    "margin": lambda z, c: z[c] - torch.cat([z[:c], z[c + 1 :]]).max(),
}


# ── modified copies ───────────────────────────────────────────────────────────────────────────────


def damped(x: Tensor, factor: float) -> Tensor:
    """The same value, the gradient times `factor`."""
    return factor * x + (1 - factor) * x.detach()


class FixedNorm(nn.Module):
    """LayerNorm or RMSNorm that divides by a constant; with `mean` it takes a constant away, too."""

    def __init__(self, norm: nn.Module, mean: bool) -> None:
        super().__init__()
        self.norm, self.weight, self.bias, self.mean = norm, norm.weight, getattr(norm, "bias", None), mean
        self.eps = torch.finfo(torch.float64).eps if norm.eps is None else norm.eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True) if isinstance(self.norm, nn.LayerNorm) else torch.zeros_like(x[..., :1])
        centred = x - (mean.detach() if self.mean else mean)
        spread = (centred.pow(2).mean(-1, keepdim=True) + self.eps).sqrt().detach()
        y = centred / spread * self.weight
        return y if self.bias is None else y + self.bias


class FixedRatio(nn.Module):
    """An activation that multiplies by a constant."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        assert (x != 0).all()
        return x * (self.act(x) / x).detach()


class Detached(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x).detach()


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return damped(x, 0.5)


class Heated(nn.Module):
    """In place of the dropout behind a softmax: A itself, with the Jacobian of softmax(s / T) and no factor 1 / T.

    log A is s up to a constant per row, which a softmax ignores.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, A: Tensor) -> Tensor:
        p = (A.log() / self.temperature).softmax(-1)
        return A.detach() + self.temperature * (p - p.detach())


def residual_sum(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """a + b as a · c_a + b · c_b with the constants of ResLRP (card T5)."""
    y = (a + b).detach()
    w_a, w_b = (1 + gamma * (u.detach() * y > 0) for u in (a, b))
    below = (w_a * a + w_b * b).detach()
    assert (below != 0).all()
    parts = a * (w_a * y / below) + b * (w_b * y / below)
    return parts + (y - parts).detach()


def with_residual_rule(block: nn.Module, gamma: float) -> Callable[..., Tensor]:
    """The forward of a timm block whose two sums have the rule."""

    def forward(x: Tensor, **options: Any) -> Tensor:
        x = residual_sum(x, block.ls1(block.attn(block.norm1(x), **options)), gamma)
        return residual_sum(x, block.ls2(block.mlp(block.norm2(x))), gamma)

    return forward


def copy_modules(model: nn.Module) -> nn.Module:
    """A copy with modules and hooks of its own; parameters have the same values and no gradients, and buffers are shared.

    `copy.deepcopy` takes ten times as long.
    """
    model = copy.copy(model)
    for name, value in vars(model).items():
        if isinstance(value, dict):
            vars(model)[name] = value.copy()
    for name, parameter in model.named_parameters(recurse=False):
        setattr(model, name, nn.Parameter(parameter.detach(), requires_grad=False))
    for name, child in model.named_children():
        setattr(model, name, copy_modules(child))
    return model


@cache
def operated(
    model: nn.Module,
    qk: float = 1,
    v: float = 1,
    norm: str = "exact",
    activation: str = "exact",
    gate: str = "exact",
    softmax: float = 1,
    residual: float = 0,
) -> nn.Module:
    """A copy whose backward pass holds these parts fixed, with the same forward values. Tests must not modify it."""
    model = copy_modules(model)
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if norm != "exact" and isinstance(child, NORMS) and not isinstance(part, FixedNorm):
                setattr(part, name, FixedNorm(child, mean=norm == "fixed"))
            if name == "act" and not isinstance(part, FixedRatio | Detached):
                act = FixedRatio(child) if activation == "ratio" else child
                gated = isinstance(part, GluMlp | SwiGLU)
                part.act = Detached(act) if gated and gate == "frozen" else act
        if isinstance(part, GluMlp | SwiGLU) and gate == "halved":
            part.drop1 = Halved()  # right behind the product

    for block in model.blocks:
        if softmax != 1:
            block.attn.attn_drop = Heated(softmax)
        if residual:
            block.forward = with_residual_rule(block, residual)

    def damp(module: nn.Module, factor: float, share: int = 1) -> None:
        """Damp the last of `share` equal parts of what comes out of a module."""

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            *others, last = output.chunk(share, dim=-1)
            return torch.cat([*others, damped(last, factor)], dim=-1)

        module.register_forward_hook(hook)

    for part in list(model.modules()):
        if not hasattr(part, "fused_attn"):
            continue
        part.fused_attn = False
        if qk != 1:
            damp(part.q_norm, qk)  # the last operation on queries and keys, possibly the identity
            damp(part.k_norm, qk)
        if v == 1:
            continue
        if isinstance(part, AttentionPoolLatent):
            damp(part.kv, v, share=2)
        elif part.qkv is None:
            damp(part.v_proj, v)
        else:
            assert getattr(part, "q_bias", None) is None, "timm adds these biases out of any hook's sight"
            damp(part.qkv, v, share=3)
    return model


# ── a scene ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Scene:
    """One image, one class. Lists run over blocks; N tokens, d channels, H heads."""

    model: nn.Module
    target: int
    X: list[Tensor] = field(default_factory=list)  # [N d] input of each block, and the output of the encoder
    g: list[Tensor] = field(default_factory=list)  # dt/dX
    U: list[Tensor] = field(default_factory=list)  # [N d] first norm's output
    u: list[Tensor] = field(default_factory=list)  # dt/dU
    Y: list[Tensor] = field(default_factory=list)  # [N d] after attention
    A: list[Tensor] = field(default_factory=list)  # [H N N]
    G: list[Tensor] = field(default_factory=list)  # dt/dA
    m: list[Tensor] = field(default_factory=list)  # [N] biases of each block, each at its token, and at last the head's
    logits: Tensor | None = None
    t: float = 0.0
    rho: Tensor | None = None  # [N] what the head reads
    image_grad: Tensor | None = None

    @property
    def L(self) -> int:
        return len(self.A)

    @property
    def N(self) -> int:
        return len(self.X[0])

    @property
    def P(self) -> int:
        return self.model.num_prefix_tokens


def watched(part: nn.Module, into: list[Tensor]) -> RemovableHandle:
    """Record the output of a module, and its gradient."""

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:  # not the query of a pooler, which does not depend on the image
            output.retain_grad()
            into.append(output)

    return part.register_forward_hook(keep, prepend=True)  # before the surgery's own hooks


def watched_input(part: nn.Module, into: list[Tensor]) -> RemovableHandle:
    def keep(module: nn.Module, args: Any) -> None:
        if not args[0].requires_grad:
            args[0].requires_grad_()
        args[0].retain_grad()
        into.append(args[0])

    return part.register_forward_pre_hook(keep)


def gradient(tensor: Tensor) -> Tensor:
    """Gradient of one image; zero if there is none."""
    return (torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)[0]


def look(model: nn.Module, image: Tensor, target: int, question: str = "logit", **held: Any) -> Scene:
    """Run one image [3 H W] forward and backward, and record all activations and gradients."""
    scene, model = Scene(model, target), operated(model, **held)
    X, U, Y, A = [], [], [], []
    handles: list[RemovableHandle] = []
    for block in model.blocks:
        handles.append(watched_input(block, X))
        handles.append(watched(block.norm1, U))
        handles.append(watched_input(block.norm2, Y))
        handles.append(watched(block.attn.attn_drop, A))  # the output of the softmax is unchanged
    handles.append(watched_input(model.norm, X))
    biased: list[tuple[int, Tensor, list[Tensor]]] = []  # where, the bias, what it was added to
    last = len(model.blocks)
    for where, parent in [*enumerate(model.blocks), (last, model.norm), (last, getattr(model, "attn_pool", None))]:
        for part in parent.modules() if parent is not None else ():
            bias = getattr(part, "bias", None)
            if isinstance(bias, Tensor):
                biased.append((where, bias, []))
                handles.append(watched(part, biased[-1][2]))

    image = image[None].clone().requires_grad_()
    logits = model(image)[0]
    scene.t = QUESTIONS[question](logits, target)
    scene.t.backward()
    for handle in handles:
        handle.remove()

    scene.logits, scene.t = logits.detach(), scene.t.item()
    for found, values, grads in ((X, scene.X, scene.g), (U, scene.U, scene.u), (A, scene.A, scene.G)):
        values.extend(t.detach()[0] for t in found)
        grads.extend(map(gradient, found))
    scene.Y = [t.detach()[0] for t in Y]
    scene.image_grad = image.grad[0]
    scene.rho = read_out(scene.model, scene)
    scene.m = [torch.zeros(scene.N, dtype=torch.float64) for _ in range(last + 1)]
    for where, bias, outputs in biased:
        for output in outputs:
            add_shares(scene.m[where], gradient(output) * bias.detach(), scene)
    return scene


def add_shares(m: Tensor, shares: Tensor, scene: Scene) -> None:
    """Shares of biases at the tokens that they are added to; others are left out."""
    if shares.ndim == 3:  # [H N dh] queries or keys, [H N N] never
        shares = shares.movedim(1, 0).flatten(1)
    if shares.shape[0] == scene.N:
        m += shares.sum(-1)
    elif shares.shape[0] == scene.N - scene.P:  # a pooler that does not see prefix tokens
        m[scene.P :] += shares.sum(-1)


def read_out(model: nn.Module, scene: Scene) -> Tensor:
    """rho: the weight of every token in what the head reads."""
    rho = torch.zeros(scene.N, dtype=torch.float64)
    if isinstance(model, VisionTransformerDistilled):
        rho[:2] = 0.5
    elif model.global_pool == "token":
        rho[0] = 1
    elif model.global_pool == "avg":
        first = 0 if getattr(model, "pool_include_prefix", False) else scene.P
        rho[first:] = 1 / (scene.N - first)
    else:
        first = 0 if model.pool_include_prefix else scene.P
        attention = pooler_attention(model, scene.X[-1][first:])
        for head in attention:
            rho[first:] += head / len(attention)
    return rho


@torch.no_grad()
def pooler_attention(model: nn.Module, x: Tensor) -> list[Tensor]:
    """One row per head: attention of the latent query of a `map` head to the tokens."""
    pool, rows = model.attn_pool, []
    q = pool.q(pool.latent[0, :1])[0]
    k = (model.norm(x) @ pool.kv.weight.T + pool.kv.bias)[:, : len(q)]
    width = len(q) // pool.num_heads
    for h in range(pool.num_heads):
        part = slice(h * width, (h + 1) * width)
        rows.append(((k[:, part] @ q[part]) / width**0.5).softmax(-1))
    return rows


TARGETS = (1, 3)


@cache
def scene_of(family: str, image: int, question: str = "logit", **held: Any) -> Scene:
    return look(tiny(family), pictures()[image], TARGETS[image], question, **held)
