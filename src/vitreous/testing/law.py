"""What every law needs: a sentence when it is broken, models to try it on, and an eye on what must not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.front import load
from vitreous.models.vit import Block, Place, ViT

TOLERANCE = {torch.float64: (1e-7, 1e-9), torch.float32: (2e-3, 1e-5)}  # relative to the largest score, absolute
SHAPE: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3, "num_classes": 7}


class LawBroken(AssertionError):  # noqa: N818 - a sentence, not a fault
    """A promise of a method or model that does not hold."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise LawBroken(sentence)


def tiny_vits(dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, ViT]:
    """Two transformers in which nothing is zero, uniform or symmetric: class token; mean pool, registers and LayerScale."""
    name = "timm:vit_tiny_patch16_224"
    made = {
        "class token": load(name, pretrained=False, **SHAPE),
        "mean pool, registers, LayerScale": load(
            name, pretrained=False, **SHAPE, global_pool="avg", reg_tokens=2, init_values=0.3
        ),
    }
    for vit in made.values():
        randomise(vit.module, seed)
        vit.module.to(dtype)
    return made


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Every parameter drawn anew, so that biases, gains and prefix tokens all matter."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=draw).to(parameter)
        parameter.data = 0.25 * noise + (1.0 if parameter.ndim == 1 and parameter.data.mean() > 0.5 else 0.0)


class Counter:
    """Counts the block passes of pictures, forward and backward."""

    def __init__(self) -> None:
        self.forwards = self.backwards = 0

    def watch(self, vit: ViT) -> ViT:
        return replace(vit, blocks=tuple(self._watched(block) for block in vit.blocks))

    def _watched(self, block: Block) -> Block:
        def rotate(
            heads: Tensor, place: Place
        ) -> Tensor:  # of queries and of keys, also where rows of several lengths are packed
            self.forwards += len(heads) / 2
            return block.attend.rotate(heads, place)

        def contract(hidden: Tensor) -> Tensor:
            out = block.feed.contract(hidden)
            if out.requires_grad:
                out.register_hook(self._came_back)
            return out

        return Block(replace(block.attend, rotate=rotate), replace(block.feed, contract=contract))

    def _came_back(self, upstream: Tensor) -> None:
        self.backwards += len(upstream)


def fingerprint(module: nn.Module) -> tuple[Any, ...]:
    """Everything about a module that an explanation might disturb."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    values = tuple((name, t.requires_grad, t.grad is None, t._version, hash_of(t)) for name, t in tensors)
    flags = tuple(
        (part.training, *(len(getattr(part, hooks)) for hooks in HOOKS), getattr(part, "fused_attn", None))
        for part in module.modules()
    )
    return values, flags


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hash_of(tensor: Tensor) -> int:
    return hash(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()) if tensor.numel() else 0
