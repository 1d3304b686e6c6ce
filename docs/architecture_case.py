"""A small random model with its inputs and a score, on which support of any vision model is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import scores
from vitreous.capture.see_through import see_through
from vitreous.models.model import Network

SECOND_OUTPUT = scores.value(1)


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture: how to build it, the size of its images or (frames, height, width), and what is explained."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    size: tuple[int, ...]
    score: Callable[[Any], Tensor] = SECOND_OUTPUT
    blocks: str | None = None
    others: dict[str, Any] = field(default_factory=dict)
    image: str = "pixel_values"

    def see_through(self) -> Network:
        """The network with random weights in float64, or a `ModelError`."""
        torch.manual_seed(0)
        module = randomise(self.build()).double().eval()
        others = self.others or None
        return see_through(module, self.name, size=self.size, blocks=self.blocks, inputs=others, image=self.image)

    def call(self, module: nn.Module, images: Tensor) -> Any:
        """What the module returns for images."""
        return module(**{self.image: images}, **self.others) if self.others else module(images)

    def random_input(self) -> Tensor:
        """One random image or clip."""
        generator = torch.Generator().manual_seed(1)
        if len(self.size) == 2:
            return torch.randn(1, 3, *self.size, generator=generator).double()
        clip = torch.randn(1, self.size[0], 3, *self.size[1:], generator=generator).double()
        return clip if self.library == "transformers" else clip.transpose(1, 2)


def timm_case(name: str, size: int = 224, **kwargs: Any) -> Case:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=7, **kwargs)

    return Case(name, "timm", build, (size, size))


def torchvision_case(name: str, size: int, **kwargs: Any) -> Case:
    def build() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=7, **kwargs)

    return Case(name, "torchvision", build, (size, size))


def hf_case(
    cls: str,
    config: Callable[[Any], Any],
    score: Callable[[Any], Tensor] = SECOND_OUTPUT,
    size: int | tuple[int, int, int] = 64,
    others: dict[str, Any] | None = None,
    blocks: str | None = None,
    wrapper: Callable[[nn.Module], nn.Module] | None = None,
    image: str = "pixel_values",
) -> Case:
    def build() -> nn.Module:
        import transformers

        model = getattr(transformers, cls)(config(transformers))
        return model if wrapper is None else wrapper(model)

    lengths = (size, size) if isinstance(size, int) else size
    return Case(cls, "transformers", build, lengths, score, blocks, others or {}, image)


def randomise(module: nn.Module) -> nn.Module:
    """Values for parameters that random initialisation leaves at 0, 1 or undefined, as trained models have them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel():
                noise = 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.copy_(parameter.nan_to_num(0, 0, 0).clamp(-4, 4) + noise)
    return module
