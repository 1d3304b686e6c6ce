"""Meaning of a model's outputs: one logit per class, one logit for two classes, or one number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vitreous.core.errors import ModelError
from vitreous.models.model import AnyModel, Outputs


def with_outputs(vit: AnyModel, count: int, classes: Any = None, outputs: str | None = None) -> AnyModel:
    """Return `vit` with `output_type` set and with class names that fit it.

    Parameters
    ----------
    vit
        The model.
    count
        Number of outputs of the model.
    classes
        Class names given by the user. None: the names that came with the model, or no names if their number differs
        from the number of targets (a replaced head leaves the old names behind).
    outputs
        "binary" for a single logit of two classes. None: a single output is binary if there are two class names, and a
        number otherwise; several outputs are classes.

    Raises
    ------
    ModelError
        If the number of names differs from the number of targets, or `outputs` does not fit `count`.
    """
    names = checked_names(classes)
    check_declared(outputs)
    if outputs == "binary" and count != 1:
        raise ModelError(
            f"outputs='binary' is for a model with one output, and {vit.name!r} has {count}; leave it out for {count} classes"
        )
    class_names = names if names is not None else vit.classes
    binary = outputs == "binary" or (count == 1 and class_names is not None and len(class_names) == 2)
    output_type = Outputs("binary" if binary else "scalar" if count == 1 and not vit.embedding else "classes", count)
    if names is not None and len(names) != output_type.targets:
        raise ModelError(
            f"classes has {count_with_noun(len(names), 'name')} for {describe(output_type)} of {vit.name!r}"
        )
    fitting = None if class_names is None or len(class_names) != output_type.targets else class_names
    return replace(vit, classes=fitting, output_type=output_type)


def check_declared(outputs: Any) -> None:
    """Raise `ModelError` unless `outputs` is None or "binary"."""
    if outputs is not None and outputs != "binary":
        raise ModelError(
            f"outputs={outputs!r} is not known; 'binary' says that one output decides between two classes, "
            "and None takes one output for a number and several for classes"
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
