"""Blocks of random small networks, and what is done to images and tokens before them.

All token mixing is weak, so that a token depends most on the pixels of its own place, however many blocks it went through.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.capture.random_networks import Step

SIDE = 32  # pixels
WIDTH = 6
CLASSES = 3
WEAK = 0.05  # of token mixing


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def prepare(kind: str, x: Tensor) -> Tensor:
    """What is done to the image before the stem."""
    match kind:
        case "mirrored":
            return x.flip(-1)
        case "rolled":
            return x.roll((SIDE // 4, SIDE // 2), (-2, -1))
        case "transposed":
            return x.mT
        case "cropped":
            return F.pad(x[..., 8:, 8:], (0, 8, 0, 8))
        case "resized":
            return F.interpolate(x[..., 8:24, 8:24], size=(SIDE, SIDE), mode="bilinear")
        case "smaller":
            return F.interpolate(F.avg_pool2d(x, 2), size=(SIDE, SIDE))
        case "scaled":
            return 2 * x - 0.3
        case "brighter":
            return 1.5 * x + 0.1
        case "standardised":
            return (x - x.mean((-2, -1), keepdim=True)) / x.std((-2, -1), keepdim=True)
    return x


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


class Doubled(torch.autograd.Function):
    """An operation that torch does not know."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Body(nn.Module):
    """What a block computes on tokens, of which the first `others` have no place."""

    def __init__(self, kind: str, form: str = "sequence", others: int = 0) -> None:
        super().__init__()
        self.kind, self.form, self.others = kind, form, others
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH if kind != "swiglu" else WIDTH, WIDTH)
        if kind in ("attention", "parallel", "context", "branches"):
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if kind in ("conv", "branches", "dense"):
            self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        if kind in ("excite", "multiply"):
            self.gates = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, 4), nn.GELU(), nn.Linear(4, WIDTH))])
        if kind == "recurrent":
            self.memory = nn.GRU(WIDTH, WIDTH, batch_first=True)
        if kind == "experts":
            self.router = nn.Linear(WIDTH, 3)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, WIDTH)) for _ in range(3)
            )

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def attend(self, x: Tensor, memory: Tensor) -> Tensor:
        query = self.qkv(x)[..., :WIDTH]
        key, value = self.qkv(memory)[..., WIDTH:].chunk(2, -1)
        return WEAK * self.out(F.scaled_dot_product_attention(query, key, value))

    def convolve(self, x: Tensor) -> Tensor:
        others, patches = x.split([self.others, x.shape[1] - self.others], 1)
        maps = patches.mT.unflatten(-1, (side_of(patches), -1))
        maps = F.gelu(WEAK * self.conv(maps) + maps)
        return torch.cat([others, maps.flatten(2).mT], 1)

    def route(self, x: Tensor) -> Tensor:
        choice = self.router(x).argmax(-1)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = choice == number
            output[mine] = expert(x[mine])
        return output

    def compute(self, x: Tensor, memory: Tensor) -> Tensor:
        y = self.norm(x)
        match self.kind:
            case "attention":
                return self.attend(y, y)
            case "context":
                return self.mlp(y) + self.attend(y, self.norm(memory))
            case "conv":
                return self.convolve(x)
            case "excite":
                return self.mlp(y) * self.gates[0](y.mean(1, keepdim=True)).sigmoid()
            case "multiply":
                return y * self.gates[0](y)
            case "swiglu":
                gate, value = self.up(y).chunk(2, -1)
                return self.down(F.silu(gate) * value)
            case "dense":
                return self.mlp(y + 0.1 * self.convolve(y))
            case "parallel":
                return self.attend(y, y) + self.mlp(y)
            case "branches":
                return x + self.mlp(y) + 0.1 * self.convolve(y) + self.attend(y, y)
            case "experts":
                return self.route(y)
            case "custom":
                return Doubled.apply(self.mlp(y))
            case "checkpointed":
                return checkpoint(self.mlp, y, use_reentrant=False)
            case "recurrent":
                return WEAK * self.memory(y)[0]
        return self.mlp(y)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        tokens = as_tokens(self.form, x)
        y = self.compute(tokens, tokens if memory is None else memory)
        return as_form(self.form, y)


def side_of(patches: Tensor) -> int:
    return math.isqrt(patches.shape[1])


def as_tokens(form: str, x: Tensor) -> Tensor:
    """Tokens [b n d] of a tensor of a form."""
    return x if form == "sequence" else x.flatten(2).mT if form == "channels first" else x.flatten(1, 2)


def as_form(form: str, tokens: Tensor) -> Tensor:
    """A tensor of a form of tokens [b n d]."""
    if form == "sequence":
        return tokens
    side = side_of(tokens)
    return tokens.mT.unflatten(-1, (side, side)) if form == "channels first" else tokens.unflatten(1, (side, side))


class Block(nn.Module):
    """A body joined to its input."""

    def __init__(self, step: Step, form: str, others: int) -> None:
        super().__init__()
        self.join, self.answers_twice = step.join, step.kind == "tuple"
        self.body = Body(step.kind, form, others)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Any:
        y = self.body(x, memory)
        if self.join == "in place":
            y += x
            return y.mul_(0.9)
        y = y if self.join == "plain" else x + (self.gain * y if self.join == "scaled" else y)
        return (y, x) if self.answers_twice else y


def reorder(order: str, x: Tensor, others: int, undo: bool = False) -> Tensor:
    """Patch tokens in another order, or back in their own."""
    prefix, patches = x.split([others, x.shape[1] - others], 1)
    side = side_of(patches)
    maps = patches.unflatten(1, (side, side))
    match order:
        case "flipped":
            patches = patches.flip(1)
        case "rolled":
            patches = patches.roll(-side - 1 if undo else side + 1, 1)
        case "transposed":
            patches = maps.transpose(1, 2).flatten(1, 2)
        case "left flipped":
            patches = maps.flip(2).flatten(1, 2)
        case "permuted":
            index = torch.randperm(side * side, generator=torch.Generator().manual_seed(side))
            patches = patches[:, index.argsort() if undo else index]
    return torch.cat([prefix, patches], 1)


class Wrapped(nn.Module):
    """A module that passes its arguments on."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class ConstantFirst(nn.Module):
    """A block whose first argument does not depend on the image."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, constant: Tensor, x: Tensor, memory: Tensor | None = None) -> Any:
        return self.block(x + constant, memory)
