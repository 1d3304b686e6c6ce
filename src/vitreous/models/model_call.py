"""How a module is called with images, and the tensors in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitreous.core.errors import ShapeError
from vitreous.models.eval_mode import evaluating
from vitreous.models.tensor_types import Images


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Arguments of a model that takes more than images.

    Attributes
    ----------
    image
        Name of the argument that receives the images.
    others
        The other arguments. Tensors hold one entry [1 ...], which is repeated for every image.
    """

    image: str
    others: Mapping[str, Any]

    def of(self, images: Images) -> dict[str, Any]:
        """The arguments for a batch of images."""
        repeated = {
            key: value.to(images.device).expand(len(images), *value.shape[1:]) if isinstance(value, Tensor) else value
            for key, value in self.others.items()
        }
        return {self.image: images, **repeated}


def tensors_of(output: Any) -> list[Tensor]:
    """All floating-point tensors in what a model returns (a tensor, list, dict or Hugging Face output), in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in tensors_of(value)]
    if isinstance(output, list | tuple):
        return [tensor for value in output for tensor in tensors_of(value)]
    return []


def logits_of(output: Any) -> Tensor:
    """Logits of what a model returns: its field `logits`, the first item of a tuple or list, or the tensor itself."""
    logits = getattr(output, "logits", output)
    logits = logits[0] if isinstance(logits, tuple | list) and len(logits) else logits
    if not isinstance(logits, Tensor):
        raise ShapeError(
            f"the model answers with {type(logits).__name__!r}, in which no logits were found; score=… may say what to explain"
        )
    return logits


def call_module(module: nn.Module, inputs: Inputs | None, images: Images) -> Any:
    """Whatever the module returns for images; `inputs` as for `BlackBox`."""
    return module(images) if inputs is None else module(**inputs.of(images))


def forward_of(
    module: nn.Module, read: Callable[[Any], Tensor], inputs: Inputs | None = None
) -> Callable[[Images], Tensor]:
    """A function from images to logits: the module's own forward in eval mode, then `read`."""

    def forward(images: Images) -> Tensor:
        with evaluating(module):
            return read(call_module(module, inputs, images))

    return forward
