"""Backward rules of operations that are affine in the linearised pass; the constants that they add are recorded.

Linear layers, convolutions, sums and selections are affine as they are. Norms and divisions are affine where a statistic such
as the standard deviation is a constant of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from vitreous.capture.backward_functions import FrozenLayerNorm, FrozenScale
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
    if call.args and not any(type(x) in (list, tuple) or role_of(x) is not None for x in call.args[:2]):
        return  # most tensors have no role, and this is called for every sum
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


@built_in_rule("layer_norm")
def layer_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, eps = arguments["input"], tuple(arguments["normalized_shape"]), arguments.get("eps", 1e-5)
    weight, bias = arguments.get("weight"), arguments.get("bias")
    if not depends(x):
        return call.run()
    if call.linearisation.norm == "exact":
        return call.add(call.run(), bias)
    if call.differentiable:
        return scale_and_shift(standardise(call, x, tuple(range(-len(shape), 0)), eps), weight, bias)
    # the custom backward normalises one axis
    flat = [None if part is None else part.flatten(-len(shape)) for part in (x, weight, bias)]
    y = FrozenLayerNorm.apply(*flat, eps, call.linearisation.norm == "frozen")
    return call.add(y if len(shape) == 1 else y.unflatten(-1, shape), bias)


def standardise(call: Call, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x less its mean, divided by its standard deviation, which is held; so is the mean if `norm` is "fixed"."""
    mean = x.mean(axes, keepdim=True)
    rstd = call.hold((x.var(axes, correction=0, keepdim=True) + eps).rsqrt())
    return (x - (mean if call.linearisation.norm == "frozen" else call.hold(mean))) * rstd


def scale_and_shift(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@built_in_rule("rms_norm")
def rms_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "eps")
    x, weight, eps = arguments["input"], arguments.get("weight"), arguments.get("eps")
    if not depends(x) or call.linearisation.norm == "exact" or len(tuple(arguments["normalized_shape"])) > 1:
        return call.run()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if call.differentiable:
        return scale_and_shift(x * call.hold((x.square().mean(-1, keepdim=True) + eps).rsqrt()), weight, None)
    with torch.no_grad():
        y = call.run()
    return FrozenScale.apply(x, y, weight, eps)


class FrozenGroupNorm(Function):
    """Group norm whose standard deviation is a constant of the backward pass; the mean is not, if `centre`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, centre: bool
    ) -> Tensor:
        batch, channels = x.shape[:2]
        x = x.contiguous()
        y, _, rstd = torch.native_group_norm(x, weight, bias, batch, channels, x[0, 0].numel(), groups, eps)
        ctx.save_for_backward(rstd, weight)
        ctx.groups, ctx.centre = groups, centre
        return y

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (upstream,) = upstreams
        rstd, weight = ctx.saved_tensors
        passed = upstream if weight is None else upstream * per_channel(weight, upstream)
        grouped = by_group(passed, ctx.groups) * rstd[..., None]
        if ctx.centre:
            grouped = grouped - grouped.mean(-1, keepdim=True)
        return grouped.view(upstream.shape).to(upstream.dtype), None, None, None, None, None


def by_group(x: Tensor, groups: int) -> Tensor:
    """A tensor [b c …] as [b groups elements]."""
    return x.flatten(2).unflatten(1, (groups, -1)).flatten(2)


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, to broadcast over a tensor [b c …]."""
    return values.view(-1, *[1] * (like.ndim - 2))


@built_in_rule("group_norm")
def group_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "num_groups", "weight", "bias", "eps")
    x, groups, eps = arguments["input"], arguments["num_groups"], arguments.get("eps", 1e-5)
    weight, bias = arguments.get("weight"), arguments.get("bias")
    if not depends(x):
        return call.run()
    shift = None if bias is None else per_channel(bias, x)
    if call.linearisation.norm == "exact":
        return call.add(call.run(), shift)
    if call.differentiable:
        y = standardise(call, by_group(x, groups), (-1,), eps).reshape(x.shape)
        return scale_and_shift(y, None if weight is None else per_channel(weight, x), shift)
    return call.add(FrozenGroupNorm.apply(x, groups, weight, bias, eps, call.linearisation.norm == "frozen"), shift)


@built_in_rule("batch_norm")
def batch_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance = arguments["input"], arguments["running_mean"], arguments["running_var"]
    if not depends(x) or mean is None or arguments.get("training"):
        return call.run()
    scale = (variance + arguments.get("eps", 1e-5)).rsqrt()
    scale = scale if arguments.get("weight") is None else scale * arguments["weight"]
    shift = -mean * scale if arguments.get("bias") is None else arguments["bias"] - mean * scale
    scale, shift = per_channel(scale, x), per_channel(shift, x)
    return x * scale + shift if call.differentiable else call.add(KnownScale.apply(x, call.run, scale), shift)


class KnownScale(Function):
    """The result of `run`, whose gradient in `x` is known: `scale`.

    Torch's own backward of batch norm in eval mode is wrong on the CPU for one image in channels-last memory and a
    contiguous gradient (torch 2.11 to 2.15).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[], Tensor], scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return run()

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, None, None]:
        (upstream,) = upstreams
        return upstream * ctx.saved_tensors[0], None, None


@built_in_rule(
    "rsqrt", "sqrt", "norm", "linalg_vector_norm", "vector_norm", "std", "var", "reciprocal", "std_mean", "var_mean"
)
def statistic(call: Call) -> Any:
    """A norm, a deviation or its inverse is a constant of the backward pass; a mean that comes with it is not."""
    output = call.run()
    if call.linearisation.norm == "exact":
        return output
    if isinstance(output, Tensor):
        return call.hold(output)
    spread, mean = call.hold(output[0]), output[1]
    return type(output)((spread, mean)) if hasattr(output, "_fields") else (spread, mean)


@built_in_rule("normalize")
def l2_normalise(call: Call) -> Tensor:
    arguments = call.bind("input", "p", "dim", "eps", "out")
    x = arguments["input"]
    if call.linearisation.norm == "exact" or not depends(x):
        return call.run()
    length = x.norm(arguments.get("p", 2.0), arguments.get("dim", 1), keepdim=True)
    return x / call.hold(length.clamp_min(arguments.get("eps", 1e-12)))


@built_in_rule("div", "true_divide", "__truediv__", "__rtruediv__", "divide", "__rdiv__", "div_", "__itruediv__")
def divide(call: Call) -> Tensor:
    """A divisor that depends on the input is a statistic."""
    dividend, divisor = call.operands
    reflected = name_of(call.function) in ("__rtruediv__", "__rdiv__")
    dividend, divisor = (divisor, dividend) if reflected else (dividend, divisor)
    is_statistic = depends(divisor) and call.linearisation.norm != "exact"
    divisor = call.hold(divisor) if is_statistic else divisor
    if reflected:
        return dividend / divisor
    options = {key: value for key, value in call.kwargs.items() if key != "other"}
    output = call.function(dividend, divisor, **options) if is_statistic else call.run()
    pass_role(dividend, output)
    return output
