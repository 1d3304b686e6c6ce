"""Number of forward and backward passes of a method or metric, evaluated from the formula that it states.

This module does not import torch.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitreous.core.errors import SpecError

if TYPE_CHECKING:
    from vitreous.methods.method import Method

# sizes of a model: patches, channels, layers and depth, which formulas may name; "size" and "patch" are height and width of
# the image and of a patch in pixels. Channels and layers are known of a `ViT` only.
ModelSizes = Mapping[str, Any]
Counts = Mapping[str, float | str]  # what `Facts.counts` returns

OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluate_passes(method: Method, sizes: ModelSizes) -> tuple[float, float] | None:
    """Forward and backward passes of a method for one image and target.

    Parameters
    ----------
    method
        The method.
    sizes
        Sizes of the model.

    Returns
    -------
    tuple of float or None
        None if the number depends on the image or on a size that is not known, or the method does not fit the model.
    """
    facts = method.facts
    try:
        counts = {} if facts.counts is None else facts.counts(method, sizes)
    except (KeyError, SpecError):
        return None
    stated = {"forwards": facts.forwards, "backwards": facts.backwards, **counts}
    return evaluate_both(stated["forwards"], stated["backwards"], {**sizes, **method.settings, **counts})


def signal_layers(method: Method, sizes: ModelSizes) -> range:
    """Layers at which a method computes its signal; it must have a fold."""
    assert method.fold is not None
    layers = method.read_layers(sizes["layers"])
    return layers[:1] if method.fold.single_layer else layers


def passes_from_layers(method: Method, sizes: ModelSizes) -> float:
    """Passes of a signal that runs the blocks from its layer on: their share of the model, summed over layers."""
    depth = sizes["layers"]
    return sum(depth - layer for layer in signal_layers(method, sizes)) / depth


def evaluate_both(
    forwards: float | str, backwards: float | str, names: Mapping[str, Any]
) -> tuple[float, float] | None:
    """Values of both formulas; None if one of them is not a formula of these names."""
    values = evaluate_cost(forwards, names), evaluate_cost(backwards, names)
    return None if values[0] is None or values[1] is None else (values[0], values[1])


def evaluate_cost(formula: float | str, names: Mapping[str, Any]) -> float | None:
    """Evaluate a cost formula.

    Parameters
    ----------
    formula
        A number or a formula such as `"1 + 2 steps"`; text after a comma is ignored, and a space between two names or
        numbers is a product.
    names
        Values of the names in the formula; a list counts by its length.

    Returns
    -------
    float or None
        None if the text is not a formula of known names, or has no value, as after a division by zero.
    """
    text = re.sub(r"²", "**2", str(formula).split(",")[0])
    text = re.sub(r"(?<=[\w)])\s+(?=[\w(])", "*", text.strip())
    try:
        return evaluate_node(ast.parse(text, mode="eval").body, names)
    except (SyntaxError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def evaluate_node(node: ast.AST, names: Mapping[str, Any]) -> float:
    """Evaluate a parsed arithmetic expression."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name():
            value = names[node.id]
            return float(len(value)) if isinstance(value, list | tuple) else float(value)
        case ast.BinOp() if type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](evaluate_node(node.left, names), evaluate_node(node.right, names))
    raise ValueError(ast.dump(node))
