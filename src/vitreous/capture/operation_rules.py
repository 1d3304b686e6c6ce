"""Backward rules of torch functions: norms, attention, products, activations and affine operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from vitreous.capture.linearise import (
    FrozenLayerNorm,
    FrozenScale,
    RatioActivation,
    RatioFromZero,
    attention_at,
    damp,
    softmax_at,
)
from vitreous.capture.operation_registry import (
    Call,
    Role,
    depends,
    give_role,
    name_of,
    operation_rule,
    pass_role,
    role_of,
)

# ── norms and statistics ─────────────────────────────────────────────────────────────────────────


@operation_rule("layer_norm")
def layer_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, bias = arguments["input"], tuple(arguments["normalized_shape"]), arguments.get("bias")
    if not depends(x):
        return call.run()
    if call.linearisation.norm == "exact":
        return call.add(call.run(), bias)
    if len(shape) > 1:  # the custom backward normalises one axis
        weight = arguments.get("weight")
        flat = FrozenLayerNorm.apply(
            x.flatten(-len(shape)),
            None if weight is None else weight.flatten(),
            None if bias is None else bias.flatten(),
            arguments.get("eps", 1e-5),
            call.linearisation.norm == "frozen",
        )
        return call.add(flat.unflatten(-1, shape), bias)
    y = FrozenLayerNorm.apply(
        x, arguments.get("weight"), bias, arguments.get("eps", 1e-5), call.linearisation.norm == "frozen"
    )
    return call.add(y, bias)


@operation_rule("rms_norm")
def rms_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "eps")
    x, eps = arguments["input"], arguments.get("eps")
    if not depends(x) or call.linearisation.norm == "exact" or len(tuple(arguments["normalized_shape"])) > 1:
        return call.run()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    with torch.no_grad():
        y = call.run()
    return FrozenScale.apply(x, y, arguments.get("weight"), eps)


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
        grouped = passed.flatten(2).unflatten(1, (ctx.groups, -1)).flatten(2) * rstd[..., None]
        if ctx.centre:
            grouped = grouped - grouped.mean(-1, keepdim=True)
        return grouped.view(upstream.shape).to(upstream.dtype), None, None, None, None, None


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 2))


@operation_rule("group_norm")
def group_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "num_groups", "weight", "bias", "eps")
    x, bias = arguments["input"], arguments.get("bias")
    if not depends(x):
        return call.run()
    shift = None if bias is None else per_channel(bias, x)
    if call.linearisation.norm == "exact":
        return call.add(call.run(), shift)
    y = FrozenGroupNorm.apply(
        x,
        arguments["num_groups"],
        arguments.get("weight"),
        bias,
        arguments.get("eps", 1e-5),
        call.linearisation.norm == "frozen",
    )
    return call.add(y, shift)


@operation_rule("batch_norm")
def batch_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance = arguments["input"], arguments["running_mean"], arguments["running_var"]
    if not depends(x) or mean is None or arguments.get("training"):
        return call.run()
    scale = (variance + arguments.get("eps", 1e-5)).rsqrt()
    scale = scale if arguments.get("weight") is None else scale * arguments["weight"]
    shift = -mean * scale if arguments.get("bias") is None else arguments["bias"] - mean * scale
    return call.add(KnownScale.apply(x, call.run, per_channel(scale, x)), per_channel(shift, x))


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


@operation_rule(
    "rsqrt", "sqrt", "norm", "linalg_vector_norm", "vector_norm", "std", "var", "reciprocal", "std_mean", "var_mean"
)
def statistic(call: Call) -> Any:
    """A norm, a deviation or its inverse is a constant of the backward pass; a mean that comes with it is not."""
    if call.linearisation.norm == "exact":
        return call.run()
    output = call.run()
    if isinstance(output, Tensor):
        return call.hold(output)
    spread, mean = output
    spread = call.hold(spread)
    return type(output)((spread, mean)) if hasattr(output, "_fields") else (spread, mean)


@operation_rule("normalize")
def l2_normalise(call: Call) -> Tensor:
    arguments = call.bind("input", "p", "dim", "eps", "out")
    x = arguments["input"]
    if call.linearisation.norm == "exact" or not depends(x):
        return call.run()
    length = x.norm(arguments.get("p", 2.0), arguments.get("dim", 1), keepdim=True)
    return x / call.hold(length.clamp_min(arguments.get("eps", 1e-12)))


@operation_rule("div", "true_divide", "__truediv__", "__rtruediv__", "divide", "__rdiv__", "div_", "__itruediv__")
def divide(call: Call) -> Tensor:
    """A divisor that depends on the input is a statistic."""
    if name_of(call.function) in ("__rtruediv__", "__rdiv__"):
        divisor, dividend = call.args[0], call.args[1]
        constant = call.hold(divisor) if depends(divisor) and call.linearisation.norm != "exact" else divisor
        return dividend / constant
    dividend, divisor = call.args[0], call.args[1] if len(call.args) > 1 else call.kwargs["other"]
    if depends(divisor) and call.linearisation.norm != "exact":
        output = call.function(dividend, call.hold(divisor), **{k: v for k, v in call.kwargs.items() if k != "other"})
    else:
        output = call.run()
    pass_role(dividend, output)
    return output


# ── attention ────────────────────────────────────────────────────────────────────────────────────


@operation_rule("scaled_dot_product_attention")
def attention(call: Call) -> Tensor:
    arguments = call.bind("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    rules = call.linearisation
    arguments["query"], arguments["key"] = damp_both(arguments["query"], arguments["key"], rules.qk)
    arguments["value"] = damp(arguments["value"], rules.v)
    if depends(mask := arguments.get("attn_mask")):
        arguments["attn_mask"] = damp(mask, rules.qk)
    return attention_at(rules.softmax, **arguments)


def damp_both(first: Tensor, second: Tensor, factor: float | int) -> tuple[Tensor, Tensor]:
    """`damp` of two tensors in one step of the backward pass."""
    if factor in (0, 1) or not (depends(first) and depends(second)):
        return damp(first, factor), damp(second, factor)
    return DampBoth.apply(first, second, factor)


class DampBoth(Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, factor: float | int) -> tuple[Tensor, Tensor]:
        ctx.factor = factor
        return first.view_as(first), second.view_as(second)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, Tensor, None]:
        first, second = upstreams
        return first * ctx.factor, second * ctx.factor, None


@operation_rule("softmax", "_softmax")
def softmax(call: Call) -> Tensor:
    """Attention written out: the gradient to the logits times `qk` is the gradient to queries and keys times `qk`."""
    x = call.args[0] if call.args else call.kwargs["input"]
    if not depends(x):
        return give_role(call.run(), Role.ATTENTION_WEIGHTS)

    def normalise(logits: Tensor) -> Tensor:
        if call.args:
            return call.function(logits, *call.args[1:], **call.kwargs)
        return call.function(**{**call.kwargs, "input": logits})

    weights = softmax_at(call.linearisation.softmax, normalise, damp(x, call.linearisation.qk))
    return give_role(call.hand_out(weights), Role.ATTENTION_WEIGHTS)


@operation_rule("multi_head_attention_forward")
def multi_head_attention(call: Call) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention` from the operations that it consists of, each under its own rule."""
    names = [
        "query",
        "key",
        "value",
        "embed_dim_to_check",
        "num_heads",
        "in_proj_weight",
        "in_proj_bias",
        "bias_k",
        "bias_v",
        "add_zero_attn",
        "dropout_p",
        "out_proj_weight",
        "out_proj_bias",
        "training",
        "key_padding_mask",
        "need_weights",
        "attn_mask",
        "use_separate_proj_weight",
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "static_k",
        "static_v",
        "average_attn_weights",
        "is_causal",
    ]
    a = call.bind(*names)
    if any(a.get(name) is not None for name in ("bias_k", "bias_v", "static_k", "static_v")) or a.get("add_zero_attn"):
        return call.run()
    query, key, value, heads = a["query"], a["key"], a["value"], a["num_heads"]
    if query.ndim == 2:
        query, key, value = query[:, None], key[:, None], value[:, None]
    separate = a.get("use_separate_proj_weight")
    weights = (a["q_proj_weight"], a["k_proj_weight"], a["v_proj_weight"]) if separate else a["in_proj_weight"].chunk(3)
    biases = (None, None, None) if a["in_proj_bias"] is None else a["in_proj_bias"].chunk(3)
    with call.mode:
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask = merge_masks(a, q, k)
        if a.get("need_weights", True):
            logits = (q * q.shape[-1] ** -0.5) @ k.mT
            attended = (logits if mask is None else logits + mask).softmax(-1)
            mixed = attended @ v
        else:
            attended, mixed = None, F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), a["out_proj_weight"], a["out_proj_bias"])
    if attended is not None and a.get("average_attn_weights", True):
        attended = attended.mean(1)
    if a["query"].ndim == 2:
        return output[:, 0], attended if attended is None else attended[0]
    return output, attended


def merge_masks(a: dict[str, Any], q: Tensor, k: Tensor) -> Tensor | None:
    """Attention and padding masks of `nn.MultiheadAttention` as one additive mask [b h n m]."""
    merged = None
    for mask in (a.get("attn_mask"), a.get("key_padding_mask")):
        if mask is None:
            continue
        if mask is a.get("key_padding_mask"):
            mask = mask[:, None, None, :]
        elif mask.ndim == 3:
            mask = mask.unflatten(0, (q.shape[0], q.shape[1]))
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, -torch.inf)
        merged = mask if merged is None else merged + mask
    return merged


# ── products ─────────────────────────────────────────────────────────────────────────────────────


@operation_rule("matmul", "bmm", "__matmul__", "__rmatmul__", "einsum", "baddbmm")
def matrix_product(call: Call) -> Tensor:
    """Attention weights or kernel features times values: gradient to the weights times `qk`, to the values times `v`.

    Attention weights were damped at their softmax. Of two tensors without a role the product stays exact: queries times
    keys, whose gradient is damped at the softmax behind them.
    """
    name, args = name_of(call.function), list(call.args)
    equation = args[:1] if name == "einsum" else []
    operands = args[len(equation) :]
    if name == "einsum" and len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if name == "baddbmm" or len(operands) != 2 or not all(isinstance(x, Tensor) for x in operands):
        return call.run()
    rules, roles = call.linearisation, [role_of(x) for x in operands]
    for index, other in ((0, 1), (1, 0)):
        if roles[index] is Role.ATTENTION_WEIGHTS and roles[other] is not Role.ATTENTION_WEIGHTS:
            operands[other] = call.damp(operands[other], rules.v)
            break
    else:
        if all(depends(x) for x in operands):
            for index, other in ((0, 1), (1, 0)):
                if roles[index] in (Role.ACTIVATION, Role.BOUNDED_GATE) and roles[other] is None:
                    operands[index] = call.damp(operands[index], rules.qk)
                    operands[other] = call.damp(operands[other], rules.v)
                    break
            else:
                if rules.qk == 0:  # a softmax behind it passes nothing on; without one, each factor has half
                    operands = [call.damp(x, 0.5) for x in operands]
    return call.function(*equation, *operands, **call.kwargs)


@operation_rule("grid_sample")
def sampling(call: Call) -> Tensor:
    """Values at positions that depend on the input (deformable attention): the positions are like attention weights."""
    arguments = call.bind("input", "grid", "mode", "padding_mode", "align_corners")
    arguments["grid"] = call.damp(arguments["grid"], call.linearisation.qk)
    return call.function(**arguments)


@operation_rule("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__")
def product(call: Call) -> Tensor:
    a, b = call.args[0], call.args[1] if len(call.args) > 1 else call.kwargs["other"]
    rules = call.linearisation
    both = depends(a) and depends(b)
    if not both:
        if getattr(a, "_vitreous_role", None) is None and getattr(b, "_vitreous_role", None) is None:
            output = call.run()
            if not isinstance(b, Tensor) and output.requires_grad:
                output._vitreous_scaled = a  # type: ignore[attr-defined]  # x * 1.702 inside a quick GELU
            return output
        for weights, value in ((a, b), (b, a)):
            if role_of(weights) is Role.ATTENTION_WEIGHTS and depends(value):
                return call.function(weights, call.damp(value, rules.v))
        output = call.run()
        for factor in (a, b):
            if isinstance(factor, Tensor) and role_of(factor) is not None:
                give_role(output, role_of(factor), getattr(factor, "_vitreous_source", None))
        return output
    for gate, value in ((a, b), (b, a)):
        if role_of(gate) is Role.ATTENTION_WEIGHTS and role_of(value) is not Role.ATTENTION_WEIGHTS:
            return call.function(gate, call.damp(value, rules.v))
    for gate, value in ((a, b), (b, a)):
        if getattr(gate, "_vitreous_source", None) is value:  # x * sigmoid(x): an activation written out
            constant = call.hold(gate) if rules.activation == "ratio" else gate
            return give_role(constant * value, Role.ACTIVATION)
    if rules.gate == "exact":
        return call.run()
    for gate, value in ((a, b), (b, a)):
        if role_of(gate) is Role.BOUNDED_GATE:
            return call.hold(gate) * value
    for gate, value in ((a, b), (b, a)):
        if role_of(gate) is Role.ACTIVATION and role_of(value) is None and rules.gate == "frozen":
            return call.hold(gate) * value
    return call.damp(a * b, 0.5)


@operation_rule("pow", "__pow__", "square", "float_power")
def power(call: Call) -> Tensor:
    """x^p is homogeneous of degree p: a p-th of the gradient makes input times gradient the output."""
    x, exponent = call.args[0], 2 if name_of(call.function) == "square" else call.args[1]
    if not depends(x) or call.linearisation.gate == "exact" or not isinstance(exponent, int | float) or exponent <= 0:
        return call.run()
    return call.damp(call.run(), 1 / exponent)


# ── activations ──────────────────────────────────────────────────────────────────────────────────


@operation_rule(
    "gelu", "silu", "relu", "relu_", "relu6", "hardswish", "mish", "leaky_relu", "leaky_relu_", "elu", "selu", "celu", "tanh",
    "silu_", "hardswish_", "elu_", "tanh_", "prelu",
)  # fmt: skip
def ratio_activation(call: Call) -> Tensor:
    """An activation with act(0) = 0 as x times the constant act(x) / x."""
    x = call.args[0] if call.args else call.kwargs["input"]
    if not depends(x) or (call.linearisation.activation == "exact" and not writes_in_place(call)):
        return give_role(call.hand_out(call.run()), Role.ACTIVATION) if depends(x) else call.run()
    function = OUT_OF_PLACE.get(name_of(call.function), call.function)
    rest = tuple(call.args[1:]) if not (len(call.args) > 1 and isinstance(call.args[1], bool)) else ()
    options = {key: value for key, value in call.kwargs.items() if key not in ("input", "inplace")}
    act = activation_of(function, rest, options)
    if call.linearisation.activation == "exact":
        y = act(x)
    elif name_of(call.function).endswith("_"):  # the caller may go on with x itself
        y = RatioActivation.apply(x.clone(), act)
        return give_role(x.copy_(y), Role.ACTIVATION)
    else:
        y = RatioActivation.apply(x, act)
    return give_role(call.hand_out(y), Role.ACTIVATION)


def activation_of(
    function: Callable[..., Tensor], rest: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[Tensor], Tensor]:
    """The activation as a function of one tensor: the same object for the same settings, so that its slope is known."""
    if any(isinstance(value, Tensor) for value in (*rest, *options.values())):  # PReLU
        return lambda z: function(z, *rest, **options)
    return activation_with(function, rest, tuple(options.items()))


@lru_cache(maxsize=64)
def activation_with(
    function: Callable[..., Tensor], rest: tuple[Any, ...], options: tuple[tuple[str, Any], ...]
) -> Callable[[Tensor], Tensor]:
    named = dict(options)
    return lambda z: function(z, *rest, **named)


OUT_OF_PLACE: dict[str, Callable[..., Tensor]] = {
    "relu_": F.relu,
    "leaky_relu_": F.leaky_relu,
    "silu_": F.silu,
    "hardswish_": F.hardswish,
    "elu_": F.elu,
    "tanh_": torch.tanh,
}


def writes_in_place(call: Call) -> bool:
    return bool(call.kwargs.get("inplace")) or (len(call.args) > 1 and call.args[1] is True)


@operation_rule("sigmoid", "hardsigmoid", "softplus", "exp", "sigmoid_", "hardtanh", "hardsigmoid_")
def bounded_gate(call: Call) -> Tensor:
    """A function without act(0) = 0; in a product it is the gate, elsewhere the constant act(0) and a multiple of x."""
    x = call.args[0] if call.args else call.kwargs["input"]
    source = getattr(x, "_vitreous_scaled", x)
    if not depends(x):
        return call.run()
    if is_exact_gate(call):
        return give_role(call.hand_out(call.run()), Role.BOUNDED_GATE, source)
    act = gate_function(call)
    output = RatioFromZero.apply(x, act)
    output = call.add(output, act(output.new_zeros(())) if call.mode.record_constants else None)
    return give_role(call.hand_out(output), Role.BOUNDED_GATE, source)


def is_exact_gate(call: Call) -> bool:
    """Whether a function without act(0) = 0 has its own gradient under this linearisation."""
    rules = call.linearisation
    has_rule = name_of(call.function) in ("sigmoid", "hardsigmoid", "softplus")
    return not has_rule or rules.activation == "exact" or rules.gate == "exact"


def gate_function(call: Call) -> Callable[[Tensor], Tensor]:
    """A function without act(0) = 0, as a function of one tensor."""
    options = {key: value for key, value in call.kwargs.items() if key not in ("input", "inplace")}
    # the only other argument of hardsigmoid is whether it works in place
    rest = () if name_of(call.function) == "hardsigmoid" else call.args[1:]
    return activation_of(call.function, tuple(rest), options)


@operation_rule("glu")
def gated_linear_unit(call: Call) -> Tensor:
    arguments = call.bind("input", "dim")
    value, gate = arguments["input"].chunk(2, arguments.get("dim", -1))
    with call.mode:
        return value * gate.sigmoid()


# ── affine operations ────────────────────────────────────────────────────────────────────────────


@operation_rule("linear")
def linear(call: Call) -> Tensor:
    arguments = call.bind("input", "weight", "bias")
    return call.add(call.run(), arguments.get("bias"))


@operation_rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(call: Call) -> Tensor:
    bias = call.bind("input", "weight", "bias").get("bias")
    output = call.run()
    return call.add(output, None if bias is None else per_channel(bias, output))


NUMBERS_ADDED = frozenset(
    {"add", "__add__", "__radd__", "sub", "subtract", "__sub__", "__rsub__", "rsub", "where", "masked_fill", "pad", "add_",
     "__iadd__", "sub_"}
)  # fmt: skip


@operation_rule(
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
    values = [*flatten(call.args), *flatten(call.kwargs.values())]
    tensors = [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    constants = [x for x in tensors if not depends(x)]
    name = name_of(call.function)
    if name not in NUMBERS_ADDED:
        numbers = []
    if not constants and not any(numbers):
        return output
    if not any(depends(x) for x in tensors):
        return output
    with torch.no_grad():
        functional = getattr(torch.Tensor, name.rstrip("_")) if name in ("add_", "sub_") else call.function
        if name == "__iadd__":
            functional = torch.Tensor.add
        constant = functional(
            *zero_dependent(call.args), **dict(zip(call.kwargs, zero_dependent(call.kwargs.values()), strict=True))
        )
    return call.add(output, constant)


def assign_role(call: Call, output: Any) -> None:
    """The role of a sum or selection."""
    if name_of(call.function) in ("add", "__add__", "__radd__", "add_") and depends(output):
        mark_shifted_gate(call, output)
    elif call.args:
        pass_role(call.args[0], output)


def mark_shifted_gate(call: Call, output: Tensor) -> None:
    """1 + gate has no ratio at 0, whatever the gate."""
    operands = [x for x in call.args[:2] if isinstance(x, Tensor)]
    dependent = [x for x in operands if depends(x)]
    roles = [role_of(x) for x in dependent]
    if len(dependent) == 1 and roles[0] in (Role.ACTIVATION, Role.BOUNDED_GATE):
        give_role(output, Role.BOUNDED_GATE)
    elif dependent and all(role is Role.ATTENTION_WEIGHTS for role in roles):  # mixtures of attention maps
        give_role(output, Role.ATTENTION_WEIGHTS)


def flatten(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def zero_dependent(values: Iterable[Any]) -> list[Any]:
    """Arguments with zeros in place of every tensor that depends on what is explained."""
    replaced: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple) and any(isinstance(x, Tensor) for x in value):
            replaced.append(type(value)(zero_dependent(value)))
        else:
            replaced.append(torch.zeros_like(value) if depends(value) else value)
    return replaced
