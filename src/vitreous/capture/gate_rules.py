"""Backward rules of activations, of gates such as a sigmoid, and of products and powers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.capture.backward_functions import RatioActivation, RatioFromZero, slope_at_zero
from vitreous.capture.operation_registry import Call, Role, built_in_rule, depends, give_role, name_of, role_of

OUT_OF_PLACE: dict[str, Callable[..., Tensor]] = {
    "relu_": F.relu,
    "leaky_relu_": F.leaky_relu,
    "silu_": F.silu,
    "hardswish_": F.hardswish,
    "elu_": F.elu,
    "tanh_": torch.tanh,
}


@built_in_rule(
    "gelu", "silu", "relu", "relu_", "relu6", "hardswish", "mish", "leaky_relu", "leaky_relu_", "elu", "selu", "celu", "tanh",
    "silu_", "hardswish_", "elu_", "tanh_", "prelu",
)  # fmt: skip
def ratio_activation(call: Call) -> Tensor:
    """An activation with act(0) = 0 as x times the constant act(x) / x."""
    x, is_exact = call.input, call.linearisation.activation == "exact"
    if not depends(x):
        return call.run()
    name = name_of(call.function)
    flag = call.args[1] if len(call.args) > 1 else None  # `inplace` as the second argument, if it is a bool
    in_place = flag is True or bool(call.kwargs.get("inplace"))
    if is_exact and not in_place and not call.differentiable:
        return give_role(call.hand_out(call.run()), Role.ACTIVATION)
    act = function_of_input(
        OUT_OF_PLACE.get(name, call.function), () if isinstance(flag, bool) else call.args[1:], call.kwargs
    )
    overwrites = name.endswith("_") or (call.differentiable and in_place)  # the caller may go on with x itself
    entered = x.clone() if overwrites else x
    if is_exact:
        y = act(entered)
    elif call.differentiable:
        y = entered * call.hold(ratio_to_input(act, entered, entered == 0))
    else:
        y = RatioActivation.apply(entered, act)
    return give_role(call.hand_out(x.copy_(y) if overwrites else y), Role.ACTIVATION)


def ratio_to_input(
    act: Callable[[Tensor], Tensor], x: Tensor, near_zero: Tensor, start: Tensor | float = 0.0
) -> Tensor:
    """(act(x) - start) / x, and act'(0) near 0, with a derivative."""
    return torch.where(near_zero, slope_at_zero(act), (act(x) - start) / torch.where(near_zero, 1, x))


def function_of_input(
    function: Callable[..., Tensor], rest: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    """A function of its input alone: the same object for the same settings, so that its slope is computed once."""
    options = {key: value for key, value in options.items() if key not in ("input", "inplace")}
    if any(isinstance(value, Tensor) for value in (*rest, *options.values())):  # PReLU
        return lambda z: function(z, *rest, **options)
    return function_with(function, rest, tuple(options.items()))


@lru_cache(maxsize=64)
def function_with(
    function: Callable[..., Tensor], rest: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> Callable[[Tensor], Tensor]:
    named = dict(options)
    return lambda z: function(z, *rest, **named)


@built_in_rule("sigmoid", "hardsigmoid", "softplus", "exp", "sigmoid_", "hardtanh", "hardsigmoid_")
def bounded_gate(call: Call) -> Tensor:
    """A function without act(0) = 0; in a product it is the gate, elsewhere the constant act(0) and a multiple of x."""
    x, rules, name = call.input, call.linearisation, name_of(call.function)
    if not depends(x):
        return call.run()
    if name not in ("sigmoid", "hardsigmoid", "softplus") or "exact" in (rules.activation, rules.gate):
        output = call.run()
    else:
        # the only other argument of hardsigmoid is whether it works in place
        act = function_of_input(call.function, () if name == "hardsigmoid" else call.args[1:], call.kwargs)
        if call.differentiable:
            start = act(x.new_zeros(()))
            near_zero = x.abs() < torch.finfo(x.dtype).eps ** 0.5  # as in `RatioFromZero`
            output = start + x * call.hold(ratio_to_input(act, x, near_zero, start))
        else:
            output = RatioFromZero.apply(x, act)
            output = call.add(output, act(output.new_zeros(())) if call.mode.record_constants else None)
    return give_role(call.hand_out(output), Role.BOUNDED_GATE, getattr(x, "_vitreous_scaled", x))


@built_in_rule("glu")
def gated_linear_unit(call: Call) -> Tensor:
    arguments = call.bind("input", "dim")
    value, gate = arguments["input"].chunk(2, arguments.get("dim", -1))
    with call.mode:
        return value * gate.sigmoid()


@built_in_rule("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__")
def product(call: Call) -> Tensor:
    """Of two factors that depend on the input, one is a constant of the backward pass, or both get half of the gradient."""
    a, b = call.operands
    rules, pairs = call.linearisation, ((a, b), (b, a))
    if not (depends(a) and depends(b)):
        if role_of(a) is None and role_of(b) is None:
            output = call.run()
            if not isinstance(b, Tensor) and output.requires_grad:
                output._vitreous_scaled = a  # type: ignore[attr-defined]  # x * 1.702 inside a quick GELU
            return output
        for weights, value in pairs:
            if role_of(weights) is Role.ATTENTION_WEIGHTS and depends(value):
                return call.function(weights, call.damp(value, rules.v))
        output = call.run()
        for factor in (a, b):
            give_role(output, role_of(factor), getattr(factor, "_vitreous_source", None))
        return output
    for weights, value in pairs:
        if role_of(weights) is Role.ATTENTION_WEIGHTS and role_of(value) is not Role.ATTENTION_WEIGHTS:
            return call.function(weights, call.damp(value, rules.v))
    for gate, value in pairs:
        if getattr(gate, "_vitreous_source", None) is value:  # x * sigmoid(x): an activation written out
            constant = call.hold(gate) if rules.activation == "ratio" else gate
            return give_role(constant * value, Role.ACTIVATION)
    if rules.gate == "exact":
        return call.run()
    for gate, value in pairs:
        if role_of(gate) is Role.BOUNDED_GATE:
            return call.hold(gate) * value
    for gate, value in pairs:
        if role_of(gate) is Role.ACTIVATION and role_of(value) is None and rules.gate == "frozen":
            return call.hold(gate) * value
    return call.damp(a * b, 0.5)


@built_in_rule("pow", "__pow__", "square", "float_power")
def power(call: Call) -> Tensor:
    """x^p is homogeneous of degree p: a p-th of the gradient makes input times gradient the output."""
    x, exponent = call.args[0], 2 if name_of(call.function) == "square" else call.args[1]
    if not depends(x) or call.linearisation.gate == "exact" or not isinstance(exponent, int | float) or exponent <= 0:
        return call.run()
    return call.damp(call.run(), 1 / exponent)
