"""Linearisation by operation: a model's own forward runs, and a few torch functions get another backward pass.

`LinearisedForward` is a `TorchFunctionMode`: while it is active, every torch function that the model calls passes through
`__torch_function__`, where a rule may replace its backward pass. Forward values stay the model's own. Nothing is patched,
and other threads are not affected.

=====================================================  ==========================================================
operation in the model's code                          rule
=====================================================  ==========================================================
layer, group and RMS norm; a division by an            the statistic is a constant of the backward pass
input-dependent tensor; `rsqrt`, `sqrt`, `norm`,       (`norm="frozen"`)
`std` and `var`
`scaled_dot_product_attention`, `softmax`              gradient to queries and keys times `qk`, to values times `v`;
                                                       the softmax at temperature `softmax`
GELU, SiLU, ReLU, hardswish, tanh, ...                 the ratio act(x) / x (`activation="ratio"`)
product of two input-dependent tensors (SwiGLU,        one factor is a constant, or both get half of the gradient
squeeze-excite)                                        (`gate="frozen"` or `"halved"`)
linear, convolution, batch norm in eval mode, sums,    linear already; biases and other added constants are recorded
means, concatenation, reshaping                        where their shares are needed
=====================================================  ==========================================================

Under a complete linearisation (`Linearisation.complete`) the forward is then a linear function of the input and the recorded
constants, so their shares add up to the output. `vitreous.capture.trace.backward` reports what is missing at every block.
The rule for skip connections (`residual`) is refused: a sum of two tensors does not show whether it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.capture import affine_rules, attention_rules, gate_rules  # noqa: F401 - registers the rules
from vitreous.capture.backward_functions import damp
from vitreous.capture.linearise import Linearisation
from vitreous.capture.operation_registry import (
    Added,
    Call,
    Rule,
    find_rule,
    name_of,
    operation_rule,
    without_parameters,
)
from vitreous.core.errors import SpecError
from vitreous.models.eval_mode import parts

__all__ = ["Added", "LinearisedForward", "operation_rule"]


# Nodes that were ever added to the graphs of this thread: TorchScript and extensions add them without torch functions.
count_nodes: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)  # type: ignore[attr-defined]


class LinearisedForward(TorchFunctionMode):
    """Runs torch functions with the backward rules of a linearisation.

    Parameters
    ----------
    linearisation
        Which rules apply.
    record_constants
        Whether added constants (biases, position embeddings, class tokens) are recorded in `added`.
    copy_recorded
        Record a copy of each output, for models that change such outputs in place later.

    Raises
    ------
    SpecError
        If the linearisation has a rule for skip connections.
    """

    differentiable = False  # whether the backward pass is recorded, with parameters in the graph
    active = True  # whether rules apply; `Trace` sets it at the first block

    def __init__(
        self, linearisation: Linearisation, *, record_constants: bool = False, copy_recorded: bool = False
    ) -> None:
        super().__init__()
        if linearisation.residual:
            raise SpecError(
                f"residual={linearisation.residual} is a rule for skip connections, which the operations of a model do not tell from "
                "other sums; use residual=0, or a model whose blocks an adapter reads"
            )
        self.linearisation = linearisation
        self.record_constants = record_constants
        self.copy_recorded = copy_recorded
        self.added: list[Added] = []
        self.path = 0  # hash of the operations that were called so far, and of how many nodes others added to the graph
        self.functions = 0  # hash of the operations that return tensors, the same under every linearisation
        self.nodes = 0  # nodes of this thread's graphs after the last operation
        self.rules: dict[Callable[..., Any], Rule | None] = {}  # by torch function, once it was called
        self.detaches_parameters = True  # False if it is known that no parameter requires gradients

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Called for every operation and every attribute of a tensor: some 1,400 times in a Swin-B, while a GPU is idle.
        self.path = hash((self.path, func, count_nodes() - self.nodes))
        output = self.run(func, args, kwargs)
        if isinstance(output, Tensor):  # what is asked of a tensor, such as its shape, is no step of the way
            self.functions = hash((self.functions, func))
        self.nodes = count_nodes()
        return output

    def __enter__(self) -> Self:
        self.nodes = count_nodes()
        return super().__enter__()

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """What a torch function returns, with the backward pass of its rule."""
        if not torch.is_grad_enabled() or not self.active:
            # a view of a parameter requires gradients even here (a class token that is expanded now and joined later)
            own_args = tuple(map(without_parameters, args)) if self.detaches_parameters else args
            if kwargs and self.detaches_parameters and torch.is_grad_enabled():
                kwargs = {key: without_parameters(value) for key, value in kwargs.items()}
            return func(*own_args, **kwargs) if kwargs else func(*own_args)
        try:
            rule = self.rules[func]
        except KeyError:
            rule = self.rules[func] = self.rule_of(func)
        if rule is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if self.detaches_parameters:
            # parameters that require gradients would look like tensors that depend on the input
            args = tuple(map(without_parameters, args))
            kwargs = {key: without_parameters(value) for key, value in kwargs.items()} if kwargs else kwargs
        return rule(Call(func, args, kwargs or {}, self))

    def rule_of(self, function: Callable[..., Any]) -> Rule | None:
        """Rule for the calls of a torch function; None if it is only called, with parameters as they are."""
        rule = find_rule(function)
        if rule in (affine_rules.linear, affine_rules.convolution) and not self.record_constants:
            rule = None  # they only record the bias
        is_attribute = name_of(function) == "__get__"
        return Call.run if rule is None and self.detaches_parameters and not is_attribute else rule

    def hold(self, x: Tensor) -> Tensor:
        """The tensor as a constant of the backward pass."""
        return x.detach()

    def damp(self, x: Tensor, factor: float | int) -> Tensor:
        """The tensor with its gradient multiplied by `factor`."""
        return damp(x, factor)

    def gradients(
        self, source: Tensor, inputs: Sequence[Tensor], upstream: Tensor | None = None
    ) -> Sequence[Tensor | None]:
        """Gradients of `source` times `upstream` under the linearisation; None where it does not depend on an input."""
        return torch.autograd.grad(source, inputs, upstream, allow_unused=True, retain_graph=True)

    @contextmanager
    def marking(self, module: nn.Module) -> Iterator[None]:
        """Context in which the parameters of a module are constants of the linearised backward pass."""
        self.detaches_parameters = has_trainable_parameters(module)
        yield

    def record(self, output: Tensor, constant: Tensor | None, operation: str) -> Tensor:
        if constant is None or not self.record_constants or not output.requires_grad:
            return output
        recorded = output
        if self.copy_recorded:
            recorded = output.clone() if output._is_view() else output  # `x[:2] += c` writes into the view once more
            output = recorded.clone()
        self.added.append(Added(recorded, constant.detach(), operation, recorded._version))
        return output


def has_trainable_parameters(module: nn.Module) -> bool:
    """Whether a parameter requires gradients. Cheaper than `module.parameters()`; called on every forward."""
    return any(
        parameter is not None and parameter.requires_grad
        for part in parts(module)
        for parameter in part._parameters.values()
    )
