"""Meaning of a model's outputs: one logit per class, one logit for two classes, one number, a score, or texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import ModelError, ShapeError, SpecError, unexpected_errors_as
from vitreous.models.model import AnyModel, ModuleForward, Outputs, tensors_of
from vitreous.models.tensor_types import Logits
from vitreous.models.vit import ViT

DECLARED = ("binary", "logits", "probabilities")
SMALLEST = torch.finfo(torch.float32).tiny  # smallest probability whose logarithm is taken
ROUNDING = {torch.float16: 1e-2, torch.bfloat16: 5e-2}  # of a sum of probabilities; 1e-3 in other precisions


def with_outputs(model: AnyModel, count: int, classes: Any = None, outputs: str | None = None) -> AnyModel:
    """Return `model` with `output_type` set and with class names that fit it.

    Parameters
    ----------
    model
        The model.
    count
        Number of outputs of the model.
    classes
        Class names given by the user. None: the names that came with the model, or no names if their number differs
        from the number of targets (a replaced head leaves the old names behind).
    outputs
        "binary" for a single logit of two classes. "probabilities": a single output is the probability of the second of
        two classes. Else a single output is binary if there are two class names, and a number otherwise; several outputs
        are classes.

    Raises
    ------
    ModelError
        If the number of names differs from the number of targets, or `outputs` does not fit `count`.
    """
    names = checked_names(classes)
    check_declared(outputs)
    if outputs == "binary" and count != 1:
        raise ModelError(
            f"outputs='binary' is for a model with one output, and {model.name!r} has {count}; leave it out for {count} classes"
        )
    class_names = names if names is not None else model.classes
    binary = count == 1 and (
        outputs in ("binary", "probabilities") or (class_names is not None and len(class_names) == 2)
    )
    output_type = Outputs("binary" if binary else "scalar" if count == 1 and not model.embedding else "classes", count)
    if names is not None and len(names) != output_type.targets:
        raise ModelError(
            f"classes has {count_with_noun(len(names), 'name')} for {describe(output_type)} of {model.name!r}"
        )
    fitting = None if class_names is None or len(class_names) != output_type.targets else class_names
    return replace(model, classes=fitting, output_type=output_type)


def check_declared(outputs: Any) -> None:
    """Raise `ModelError` unless `outputs` is None or one of `DECLARED`."""
    if outputs is not None and outputs not in DECLARED:
        raise ModelError(
            f"outputs={outputs!r} is not known; 'binary' says that one output decides between two classes, 'probabilities' and "
            "'logits' what the outputs of a black box are, and None takes one output for a number and several for classes"
        )


def checked_names(classes: Any) -> tuple[str, ...] | None:
    """Class names as a tuple, or None; raise `ModelError` unless they are an iterable of strings."""
    if classes is None:
        return None
    if isinstance(classes, str | bytes) or not isinstance(classes, Iterable):
        raise ModelError(f"classes is a list of names such as ['cat', 'dog'], not {classes!r}")
    names = tuple(classes)
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ModelError(f"a class name is a string, not {odd[0]!r}; give classes as a list of names")
    return names


def describe(outputs: Outputs) -> str:
    """How an error message refers to the outputs."""
    match outputs.kind:
        case "binary":
            return "the 2 classes"
        case "scalar":
            return "the 1 output"
    return f"the {count_with_noun(outputs.count, 'output')}"


def count_with_noun(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def with_score(model: AnyModel, score: Callable[[Any], Tensor]) -> AnyModel:
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
    read = partial(one_per_image, score, name=name)
    return with_reader(model, read, output_type=Outputs("scalar", 1), classes=(name,), embedding="")


def with_reader(model: AnyModel, read: Callable[[Any], Tensor], **changes: Any) -> AnyModel:
    """The model whose outputs are read from what its module returns by `read`, with further `changes` of its fields."""
    return replace(model, read=read, forward=ModuleForward(model.module, read, model.inputs), **changes)


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
    with_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_of(output))
    if with_gradient and not values.requires_grad:
        raise ShapeError(
            f"score {name!r} has no gradient path to the images; a differentiable function of the model's output would work"
        )
    return values[:, None]


def compare_with_texts(model: AnyModel, texts: Float[Tensor, "t d"], scale: float) -> AnyModel:
    """Return `model` with logits `scale` · cosine(image embedding, text embedding), one per text.

    Parameters
    ----------
    model
        A model that outputs image embeddings.
    texts
        Text embeddings of unit length, one row per class.
    scale
        Factor of the cosine.

    Returns
    -------
    ViT
        Its `classify` returns the scalar products with the scaled texts, which keeps it affine; the norm of the image
        embedding, by which they are divided, is in `length`.
    """
    rows = (scale * texts).to(model.device, model.dtype)
    parts: dict[str, Any] = {}
    if isinstance(model, ViT):
        parts["classify"] = Chain(model.classify, partial(products, rows))
        parts["length"] = Chain(model.classify, length)
    return transform_outputs(
        model, partial(cosines, rows), output_type=Outputs("classes", len(rows)), classes=None, **parts
    )


def transform_outputs(model: AnyModel, change: Callable[[Tensor], Tensor], **changes: Any) -> AnyModel:
    """The model whose outputs are `change` of those of `model`, with further `changes` of its fields."""
    if isinstance(model, ViT):
        changes.setdefault("classify", Chain(model.classify, change))
    return replace(model, forward=Chain(model.forward, change), read=Chain(model.read, change), **changes)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """`second` of what `first` returns, as a function that can be pickled."""

    first: Callable[[Any], Tensor]
    second: Callable[[Tensor], Tensor]

    def __call__(self, value: Any) -> Tensor:
        return self.second(self.first(value))


def products(rows: Float[Tensor, "t d"], embedding: Tensor) -> Logits:
    return embedding @ rows.T


def length(embedding: Tensor) -> Float[Tensor, "b 1"]:
    return embedding.norm(dim=-1, keepdim=True)


def cosines(rows: Float[Tensor, "t d"], embedding: Tensor) -> Logits:
    return products(rows, embedding) / length(embedding)


# ── probabilities ────────────────────────────────────────────────────────────────────────────────


def are_probabilities(outputs: Tensor) -> bool:
    """Whether every row of outputs [b c] has several numbers from 0 to 1 that add up to 1."""
    error = ROUNDING.get(outputs.dtype, 1e-3)
    inside = (outputs >= -error) & (outputs <= 1 + error)
    return outputs.shape[-1] > 1 and bool(inside.all() and ((outputs.float().sum(-1) - 1).abs() <= error).all())


def logits_of_probabilities(probabilities: Tensor, name: str) -> Logits:
    """Logits [b c] whose softmax (of one output: whose sigmoid) are these probabilities: log p, or log p − log(1 − p).

    Raises
    ------
    ModelError
        If a row is no distribution.
    """
    if probabilities.ndim != 2:
        return probabilities
    if probabilities.shape[-1] == 1 and bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        return (probabilities.clamp_min(SMALLEST)).log() - (1 - probabilities).clamp_min(SMALLEST).log()
    if not are_probabilities(probabilities):
        low, high = probabilities.min().item(), probabilities.max().item()
        raise ModelError(
            f"{name!r} answers with numbers from {low:.4g} to {high:.4g} that add up to {probabilities.sum(-1)[0].item():.4g} for an "
            "image, and outputs='probabilities' says that they are from 0 to 1 and add up to 1; for several labels per image, "
            "wrap a function that returns torch.logit(p), with outputs='logits' and question='sigmoid'"
        )
    return probabilities.clamp_min(SMALLEST).log()
