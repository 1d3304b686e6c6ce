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
from torch.overrides import TorchFunctionMode

from vitreous.capture.backward_functions import Damp, Phase
from vitreous.capture.linearise import Linearisation
from vitreous.capture.operation_registry import CONSTANT, RULES, depends, keeps_role, name_of
from vitreous.capture.operations import Handler, LinearisedForward, run, run_and_pass_role, run_rule
from vitreous.core.errors import ModelError


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

    differentiable = True

    def __init__(self, linearisation: Linearisation, *, copy_recorded: bool = False, active: bool = True) -> None:
        super().__init__(linearisation, copy_recorded=copy_recorded)
        self.phase = Phase()
        self.active = active

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
        if not getattr(rule, "differentiable", False):
            raise ModelError(
                f"the rule {getattr(rule, '__name__', rule)!r} of the operation {name_of(function)!r} is not known to be "
                "differentiable; write it with call.hold and call.damp, and register it by "
                "operation_rule(…, differentiable=True)"
            )
        return partial(run_rule, rule)

    def hold(self, x: Tensor) -> Tensor:
        return self.damp(x, 0)

    def damp(self, x: Tensor, factor: float | int) -> Tensor:
        if factor == 1 or not depends(x):
            return x
        (constant,) = Damp.apply(factor, self.phase, x)
        if factor == 0:
            mark_constant(constant)
        return constant

    def gradients(
        self, source: Tensor, inputs: Sequence[Tensor], upstream: Tensor | None = None
    ) -> Sequence[Tensor | None]:
        """As in `LinearisedForward`, with a graph."""
        self.phase.linearised = True
        try:
            return torch.autograd.grad(source, inputs, upstream, create_graph=True, allow_unused=True)
        except RuntimeError as problem:
            raise ModelError(
                f"the backward pass cannot be recorded, and differentiable=True needs that: {str(problem).splitlines()[0]}"
            ) from None
        finally:
            self.phase.linearised = False

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
