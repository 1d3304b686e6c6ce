"""A linearised backward pass that can itself be differentiated, for models of any architecture.

Backward rules are made of two operations, both the identity in the forward pass. `hold(x)` is a constant of the linearised
backward pass, and `damp(x, factor)` multiplies its gradient there. A map is the result of one such pass, recorded by autograd.
In every later backward pass, that of a loss on the map, both are the identity again: what was held fixed is differentiated
as the function of parameters and images that it is.

`DifferentiableForward` is `LinearisedForward` with parameters in the graph. A tensor of parameters alone, or one that is held,
is marked as a constant, so that rules see the same tensors depend on the image as they do without a graph of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from vitreous.capture import operation_rules
from vitreous.capture.linearise import Linearisation, slope_at_zero
from vitreous.capture.operation_registry import (
    CONSTANT,
    RULES,
    Call,
    Role,
    Rule,
    depends,
    give_role,
    keeps_role,
    name_of,
)
from vitreous.capture.operations import Handler, LinearisedForward, run, run_and_pass_role, run_rule
from vitreous.core.errors import ModelError


class Phase:
    """Whether the linearised backward pass of one explanation is running."""

    __slots__ = ("linearised",)

    def __init__(self) -> None:
        self.linearised = False


class Held(Function):
    """Identity whose gradient is multiplied by `factor` in the linearised backward pass only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float | int, phase: Phase) -> Tensor:
        ctx.factor, ctx.phase = factor, phase
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor | None, None, None]:
        (upstream,) = upstreams
        if not ctx.phase.linearised:
            return upstream, None, None
        return None if ctx.factor == 0 else upstream * ctx.factor, None, None


class HeldResidualSum(Function):
    """Sum of the residual stream and an update, with ResLRP's rule in the linearised backward pass only."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, update: Tensor, gamma: float | int, phase: Phase) -> Tensor:
        ctx.gamma, ctx.phase = gamma, phase
        ctx.save_for_backward(stream, update)
        return stream + update

    @staticmethod
    def backward(ctx: Any, *upstreams: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (upstream,) = upstreams
        if not ctx.phase.linearised:
            return upstream, upstream, None, None
        stream, update = ctx.saved_tensors
        total = stream + update
        weights = [1 + ctx.gamma * (part.sign() * total.sign() > 0) for part in (stream, update)]
        divisor = weights[0] * stream + weights[1] * update
        nothing = (stream == 0) & (update == 0)
        share = torch.where(total == 0, nothing.to(total), total / torch.where(divisor == 0, 1, divisor))
        return upstream * share * weights[0], upstream * share * weights[1], None, None


def mark_constant(value: Any) -> None:
    """Mark tensors with a graph of parameters alone."""
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, Tensor) and part.requires_grad:
            setattr(part, CONSTANT, True)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def changes_in_place(function: Callable[..., Any]) -> bool:
    name = name_of(function)
    in_place_operators = name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
    return name == "__setitem__" or in_place_operators or (name.endswith("_") and not name.endswith("__"))


def propagate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function; what it makes of constants alone is a constant."""
    dependent = any(depends(x) for x in tensors_in((*args, *kwargs.values())))
    output = function(*args, **kwargs)
    if not dependent:
        mark_constant(output)
    elif changes_in_place(function) and hasattr(args[0], CONSTANT):
        delattr(args[0], CONSTANT)
    return output


class PropagateConstants(TorchFunctionMode):
    """Passes on which tensors are constants, while a rule computes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return propagate(func, args, kwargs or {})


class DifferentiableForward(LinearisedForward):
    """Runs torch functions with backward rules of a linearisation that can be differentiated.

    Parameters
    ----------
    linearisation
        Which rules apply.
    copy_recorded
        As for `LinearisedForward`.
    active
        Whether rules apply from the first operation on; otherwise from the first block on (`Tracer` sets it).

    Raises
    ------
    SpecError
        If the linearisation has a rule for skip connections.
    """

    keeps_parameters = True

    def __init__(self, linearisation: Linearisation, *, copy_recorded: bool = False, active: bool = True) -> None:
        super().__init__(linearisation, copy_recorded=copy_recorded)
        self.phase = Phase()
        self.active = active
        self.attention_weights: list[Tensor] = []  # outputs of softmaxes, in the order of the forward

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.active:  # before the first block, everything is a constant of the linearised pass
            output = func(*args, **kwargs)
            mark_constant(output)
            return output
        try:
            handler = self.handlers[func]
        except KeyError:
            handler = self.handlers[func] = self.handler_of(func)
        if handler is None or not any(depends(x) for x in tensors_in((*args, *kwargs.values()))):
            return propagate(func, args, kwargs)
        with PropagateConstants():
            return handler(self, func, args, kwargs)

    def handler_of(self, function: Callable[..., Any]) -> Handler | None:
        rule = RULES.get(name_of(function))
        if rule is None:
            return run_and_pass_role if keeps_role(function) else run
        if rule not in BUILT_IN and not getattr(rule, "differentiable", False):
            raise ModelError(
                f"the rule {getattr(rule, '__name__', rule)!r} of the operation {name_of(function)!r} is not known to be "
                "differentiable; write it with call.hold and call.damp, and register it by "
                "operation_rule(…, differentiable=True)"
            )
        if rule is operation_rules.sampling:
            raise ModelError(
                f"the operation {name_of(function)!r} has no second derivative in torch, which differentiable=True needs; a model "
                "without it would work"
            )
        return partial(run_rule, REPLACED.get(rule, rule))

    def hold(self, x: Tensor) -> Tensor:
        return self.damp(x, 0)

    def damp(self, x: Tensor, factor: float | int) -> Tensor:
        if factor == 1 or not depends(x):
            return x
        constant = Held.apply(x, factor, self.phase)
        if factor == 0:
            mark_constant(constant)
        return constant

    def gradients(self, score: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of one number under the linearisation, with a graph; zeros where it does not depend on an input."""
        self.phase.linearised = True
        try:
            gradients = torch.autograd.grad(score, inputs, create_graph=True, allow_unused=True)
        except RuntimeError as problem:
            raise ModelError(
                f"the backward pass cannot be recorded, and differentiable=True needs that: {first_line(problem)}"
            ) from None
        finally:
            self.phase.linearised = False
        return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs, gradients, strict=True)]

    @contextmanager
    def marking(self, module: nn.Module) -> Iterator[None]:
        """Mark the parameters of a module as constants."""
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in parameters:
            setattr(parameter, CONSTANT, True)
        try:
            yield
        finally:
            for parameter in parameters:
                if hasattr(parameter, CONSTANT):
                    delattr(parameter, CONSTANT)


def first_line(problem: Exception) -> str:
    return str(problem).split("\n", maxsplit=1)[0]


# ── rules whose own backward function cannot be differentiated, in operations that can ───────────


def layer_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "bias", "eps")
    if call.linearisation.norm == "exact":
        return call.run()
    axes = tuple(range(-len(tuple(arguments["normalized_shape"])), 0))
    y = standardise(call, arguments["input"], axes, arguments.get("eps", 1e-5))
    return scale_and_shift(y, arguments.get("weight"), arguments.get("bias"))


def standardise(call: Call, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x less its mean, divided by its standard deviation, which is held; so is the mean if `norm` is "fixed"."""
    mean = x.mean(axes, keepdim=True)
    rstd = call.hold((x.var(axes, correction=0, keepdim=True) + eps).rsqrt())
    return (x - (mean if call.linearisation.norm == "frozen" else call.hold(mean))) * rstd


def scale_and_shift(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "normalized_shape", "weight", "eps")
    x, eps = arguments["input"], arguments.get("eps")
    if call.linearisation.norm == "exact" or len(tuple(arguments["normalized_shape"])) > 1:
        return call.run()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * call.hold((x.square().mean(-1, keepdim=True) + eps).rsqrt())
    return scale_and_shift(y, arguments.get("weight"), None)


def group_norm(call: Call) -> Tensor:
    arguments = call.bind("input", "num_groups", "weight", "bias", "eps")
    x = arguments["input"]
    if call.linearisation.norm == "exact":
        return call.run()
    grouped = x.flatten(2).unflatten(1, (arguments["num_groups"], -1)).flatten(2)
    y = standardise(call, grouped, (-1,), arguments.get("eps", 1e-5)).reshape(x.shape)
    weight, bias = (
        None if value is None else operation_rules.per_channel(value, x)
        for value in (arguments.get("weight"), arguments.get("bias"))
    )
    return scale_and_shift(y, weight, bias)


def batch_norm(call: Call) -> Tensor:
    """By its formula: see `operation_rules.KnownScale` for why torch's own backward is not used."""
    arguments = call.bind("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance = arguments["input"], arguments["running_mean"], arguments["running_var"]
    if mean is None or arguments.get("training"):
        return call.run()
    scale = (variance + arguments.get("eps", 1e-5)).rsqrt()
    scale = scale if arguments.get("weight") is None else scale * arguments["weight"]
    shift = -mean * scale if arguments.get("bias") is None else arguments["bias"] - mean * scale
    return x * operation_rules.per_channel(scale, x) + operation_rules.per_channel(shift, x)


def attention(call: Call) -> Tensor:
    """Attention written out: fused kernels have no second derivative."""
    a = call.bind("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    query, key, value = a["query"], a["key"], a["value"]
    if a.get("enable_gqa"):
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = query.shape[-1] ** -0.5 if a.get("scale") is None else a["scale"]
    scores = (query * scale) @ key.mT
    mask = a.get("attn_mask")
    if a.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = tempered_softmax(call, lambda logits: logits.softmax(-1), scores)
    return weights @ call.damp(value, call.linearisation.v)


def softmax(call: Call) -> Tensor:
    def normalise(logits: Tensor) -> Tensor:
        if call.args:
            return call.function(logits, *call.args[1:], **call.kwargs)
        return call.function(**{**call.kwargs, "input": logits})

    weights = tempered_softmax(call, normalise, call.args[0] if call.args else call.kwargs["input"])
    assert isinstance(call.mode, DifferentiableForward)
    call.mode.attention_weights.append(weights)
    return give_role(call.hand_out(weights), Role.ATTENTION_WEIGHTS)


def tempered_softmax(call: Call, normalise: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Softmax whose linearised backward pass has the Jacobian at another temperature; see `linearise.softmax_at`."""
    temperature, scores = call.linearisation.softmax, call.damp(scores, call.linearisation.qk)
    weights = normalise(scores)
    if temperature == 1 or not depends(scores):
        return weights
    heated = temperature * normalise(scores / temperature)
    return heated + call.hold(weights - heated)


def ratio_activation(call: Call) -> Tensor:
    x = call.args[0] if call.args else call.kwargs["input"]
    in_place = name_of(call.function).endswith("_") or operation_rules.writes_in_place(call)
    function = operation_rules.OUT_OF_PLACE.get(name_of(call.function), call.function)
    rest = tuple(call.args[1:]) if not (len(call.args) > 1 and isinstance(call.args[1], bool)) else ()
    options = {key: value for key, value in call.kwargs.items() if key not in ("input", "inplace")}
    act = operation_rules.activation_of(function, rest, options)
    entered = x.clone() if in_place else x
    y = act(entered)
    if call.linearisation.activation == "ratio":
        zero = entered == 0
        ratio = torch.where(zero, slope_at_zero(act), y / torch.where(zero, 1, entered))
        y = entered * call.hold(ratio)
    if in_place:  # the caller may go on with x itself
        y = x.copy_(y)
    return give_role(call.hand_out(y), Role.ACTIVATION)


def bounded_gate(call: Call) -> Tensor:
    x = call.args[0] if call.args else call.kwargs["input"]
    if operation_rules.is_exact_gate(call):
        return operation_rules.bounded_gate(call)
    act = operation_rules.gate_function(call)
    start = act(x.new_zeros(()))
    near = x.abs() < torch.finfo(x.dtype).eps ** 0.5  # as in `linearise.RatioFromZero`
    ratio = torch.where(near, slope_at_zero(act), (act(x) - start) / torch.where(near, 1, x))
    source = getattr(x, "_vitreous_scaled", x)
    return give_role(call.hand_out(start + x * call.hold(ratio)), Role.BOUNDED_GATE, source)


REPLACED: dict[Rule, Rule] = {
    operation_rules.layer_norm: layer_norm,
    operation_rules.rms_norm: rms_norm,
    operation_rules.group_norm: group_norm,
    operation_rules.batch_norm: batch_norm,
    operation_rules.attention: attention,
    operation_rules.softmax: softmax,
    operation_rules.ratio_activation: ratio_activation,
    operation_rules.bounded_gate: bounded_gate,
}
BUILT_IN = frozenset(rule for rule in RULES.values() if rule.__module__ == operation_rules.__name__)
