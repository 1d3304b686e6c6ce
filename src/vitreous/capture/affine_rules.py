"""Backward rules of affine operations, which are exact; the constants that they add are recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from vitreous.capture.norm_rules import per_channel
from vitreous.capture.operation_registry import (
    Call,
    Role,
    built_in_rule,
    depends,
    give_role,
    name_of,
    pass_role,
    role_of,
)


@built_in_rule("linear")
def linear(call: Call) -> Tensor:
    arguments = call.bind("input", "weight", "bias")
    return call.add(call.run(), arguments.get("bias"))


@built_in_rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(call: Call) -> Tensor:
    bias = call.bind("input", "weight", "bias").get("bias")
    output = call.run()
    return call.add(output, None if bias is None else per_channel(bias, output))


NUMBERS_ADDED = frozenset(
    {"add", "__add__", "__radd__", "sub", "subtract", "__sub__", "__rsub__", "rsub", "where", "masked_fill", "pad", "add_",
     "__iadd__", "sub_"}
)  # fmt: skip
OUT_OF_PLACE = {"add_": Tensor.add, "__iadd__": Tensor.add, "sub_": Tensor.sub}


@built_in_rule(
    "add", "__add__", "__radd__", "sub", "subtract", "__sub__", "__rsub__", "rsub", "cat", "concat", "concatenate", "stack",
    "where", "masked_fill", "pad", "addcmul", "add_", "__iadd__", "sub_", "masked_scatter", "index_put", "scatter",
    "slice_scatter", "select_scatter", "index_add", "index_copy",
)  # fmt: skip
def affine(call: Call) -> Any:
    """Sums, concatenations and selections: the constant is what the operation returns for zeros in place of the rest."""
    output = call.run()
    assign_role(call, output)
    if not call.mode.record_constants or not depends(output):
        return output
    name = name_of(call.function)
    values = [*flatten(call.args), *flatten(call.kwargs.values())]
    tensors = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    adds_constants = not all(depends(x) for x in tensors)
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    adds_numbers = name in NUMBERS_ADDED and any(numbers)
    if not (adds_constants or adds_numbers) or not any(depends(x) for x in tensors):
        return output
    with torch.no_grad():
        function = OUT_OF_PLACE.get(name, call.function)
        constant = function(*map(zero_dependent, call.args), **{k: zero_dependent(v) for k, v in call.kwargs.items()})
    return call.add(output, constant)


def assign_role(call: Call, output: Any) -> None:
    """The role of a sum or selection."""
    if name_of(call.function) in ("add", "__add__", "__radd__", "add_") and depends(output):
        mark_shifted_gate(call, output)
    elif call.args:
        pass_role(call.args[0], output)


def mark_shifted_gate(call: Call, output: Tensor) -> None:
    """1 + gate has no ratio at 0, whatever the gate."""
    roles = [role_of(x) for x in call.args[:2] if depends(x)]
    if len(roles) == 1 and roles[0] in (Role.ACTIVATION, Role.BOUNDED_GATE):
        give_role(output, Role.BOUNDED_GATE)
    elif roles and all(role is Role.ATTENTION_WEIGHTS for role in roles):  # mixtures of attention maps
        give_role(output, Role.ATTENTION_WEIGHTS)


def flatten(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def zero_dependent(value: Any) -> Any:
    """An argument with zeros in place of every tensor that depends on what is explained."""
    if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
        return type(value)(map(zero_dependent, value))
    return torch.zeros_like(value) if depends(value) else value
