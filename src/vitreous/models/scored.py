"""Models whose score is a function of whatever they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitreous.core.errors import ShapeError, SpecError, VitreousError
from vitreous.models.model import BlackBox, Outputs, forward_of
from vitreous.models.shapes import Logits
from vitreous.models.vit import ViT

Model = TypeVar("Model", bound=BlackBox)


def scored(model: Model, score: Any) -> Model:
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
            f"score= is a function of whatever a model returns, and the parts of {model.name!r} give logits; question= takes "
            "a function of the logits, and vitreous.see_through(module) a module of any kind"
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
    try:
        found = score(output)
    except VitreousError:
        raise
    except Exception as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
        raise ShapeError(
            f"score {name!r} failed on the model's output {type(output).__name__!r} ({reason})"
        ) from problem
    if not isinstance(found, Tensor) or found.ndim != 1 or not found.is_floating_point():
        given = f"{found.dtype} of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"score {name!r} must give one number per image [images], not {given}")
    if torch.is_grad_enabled() and not found.requires_grad and depends_on_images(output):
        raise ShapeError(
            f"score {name!r} has no gradient path to the images; a differentiable function of the model's output would work"
        )
    return found[:, None]


def depends_on_images(output: Any) -> bool:
    """Whether some tensor of an output carries a graph."""
    if isinstance(output, Tensor):
        return output.requires_grad
    values = output.values() if hasattr(output, "values") else output if isinstance(output, list | tuple) else ()
    return any(depends_on_images(value) for value in values)
