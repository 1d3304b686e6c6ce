"""Models whose score is a function of whatever they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.core.errors import ShapeError, SpecError, unexpected_errors_as
from vitreous.models.model import AnyModel, Outputs
from vitreous.models.model_call import forward_of, tensors_of
from vitreous.models.tensor_types import Logits
from vitreous.models.vit import ViT


def with_score(model: AnyModel, score: Any) -> AnyModel:
    """The model with one output per image: a score of whatever its module returns.

    Parameters
    ----------
    model
        A `BlackBox` or a `Network`; the parts of a `ViT` compute logits only.
    score
        Maps what the module returns to one differentiable number per image.

    Raises
    ------
    SpecError
        If `score` is not callable.
    """
    if not callable(score):
        raise SpecError(f"a score is a callable of what the model returns, not {type(score).__name__!r}")
    if isinstance(model, ViT):
        raise SpecError(
            f"score= is a function of whatever a module returns, and the parts of {model.name!r} give logits; question= takes "
            "a function of the logits, and vitreous.explain(model, images, score=…) sees the module as a network"
        )
    name = getattr(score, "__name__", type(score).__name__)

    def read(output: Any) -> Logits:
        return one_per_image(score, output, name)

    return replace(
        model,
        read=read,
        forward=forward_of(model.module, read, model.inputs),
        output_type=Outputs("scalar", 1),
        classes=(name,),
        embedding="",
    )


def one_per_image(score: Callable[..., object], output: Any, name: str) -> Logits:
    """Scores [b 1]; raise a `ShapeError` unless `score` gives one floating-point number per image."""
    kind = type(output).__name__
    with unexpected_errors_as(lambda why: ShapeError(f"score {name!r} failed on the model's output {kind!r} ({why})")):
        values = score(output)
    if not isinstance(values, Tensor) or values.ndim != 1 or not values.is_floating_point():
        description = (
            f"{values.dtype} of shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        )
        raise ShapeError(f"score {name!r} must give one number per image [images], not {description}")
    if (
        torch.is_grad_enabled()
        and not values.requires_grad
        and any(tensor.requires_grad for tensor in tensors_of(output))
    ):
        raise ShapeError(
            f"score {name!r} has no gradient path to the images; a differentiable function of the model's output would work"
        )
    return values[:, None]
