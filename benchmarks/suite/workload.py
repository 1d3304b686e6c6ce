"""Model with random weights, device and images that every module of cases measures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn

import vitreous
from vitreous.capture.precision import Flags
from vitreous.models.vit import ViT

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "ti": ("vit_tiny_patch16_224", {}),
    "b": ("vit_base_patch16_224", {}),
    "l": ("vit_large_patch16_224", {}),
    "eva": ("eva_large_patch14_336", {}),
    "test": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 10},
    ),
}
FEW = {"ti": 8, "b": 8, "l": 4, "eva": 2}
WORDS = {"ti": "ViT-Ti/16", "b": "ViT-B/16", "l": "ViT-L/16", "eva": "EVA-L/14 at 336", "test": "a test model"}


@dataclass(frozen=True)
class Workload:
    """A model on a device, and a batch of images; with `quick` there are fewer and smaller cases."""

    device: str
    size: str
    model: nn.Module  # timm's own, eval, frozen
    vit: ViT
    images: Tensor
    batch: int
    dtype: torch.dtype = torch.float32
    quick: bool = False
    arithmetic: str = ""  # "tf32" or "bf16" in a float32 model
    floor: nn.Module | None = None  # module of the baselines if it is not `model`: in bfloat16, with converted weights

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def few(self) -> Tensor:
        """Images of long rows: on a GPU only as many as keep it busy."""
        return self.images[: FEW.get(self.size, self.batch)] if self.cuda else self.images

    @property
    def precision(self) -> str:
        return self.arithmetic or str(self.dtype).removeprefix("torch.")

    @property
    def one_backward(self) -> Callable[[], Tensor]:
        """The baseline of a gradient method."""
        if self.floor is None:
            return lambda: run_backward(self.model, self.images)
        floor, images = self.floor, self.images.to(torch.bfloat16)
        return lambda: run_backward(floor, images)


def make_workload(
    size: str = "ti",
    device: str = "cpu",
    batch: int = 8,
    dtype: torch.dtype = torch.float32,
    quick: bool = False,
    arithmetic: str = "",
    **changes: Any,
) -> Workload:
    """A workload with random weights; `changes` are arguments of timm (`depth=`, `img_size=`, …).

    `arithmetic` "tf32" is set for the whole process, so that it applies to both sides of every row; in "bf16" the library computes
    products in bfloat16, and baselines run a module whose weights were converted.
    """
    if arithmetic:
        Flags.of(tf32=arithmetic == "tf32").apply()
    name, settings = SIZES[size]
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **{**settings, **changes})
    model = model.eval().requires_grad_(False).to(device, dtype)
    vit = vitreous.wrap(model)
    images = torch.randn(batch, 3, *vit.size, generator=torch.Generator().manual_seed(1))
    floor = copy.deepcopy(model).to(torch.bfloat16) if arithmetic == "bf16" else None
    return Workload(device, size, model, vit, images.to(device, dtype), batch, dtype, quick, arithmetic, floor)


def run_backward(model: nn.Module, images: Tensor) -> Tensor:
    """The baseline of a gradient method: one forward pass, and one backward pass from the largest logit to the pixels."""
    leaf = images.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).amax(-1).sum(), leaf)
    return gradient


@torch.no_grad()
def run_forward(model: nn.Module, images: Tensor, count: int | None = None) -> None:
    """The baseline of a sampling method: `count` images through the model, in batches of the size of `images`."""
    for start in range(0, len(images) if count is None else count, len(images)):
        model(images if count is None else images[: count - start])
