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
The rule for skip connections (`residual`) is refused: a sum of two tensors does not say whether it is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitreous.capture import operation_rules  # noqa: F401 - registers the rules
from vitreous.capture.linearise import Linearisation
from vitreous.capture.operation_registry import (
    ROLE_PRESERVING,
    RULES,
    Added,
    Call,
    name_of,
    operation_rule,
    pass_role,
    without_parameters,
)
from vitreous.core.errors import SpecError

__all__ = ["Added", "LinearisedForward", "operation_rule"]


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
        self.detaches_parameters = True  # False if it is known that no parameter requires gradients

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if self.detaches_parameters:
            # parameters that ask for gradients would look like tensors that depend on the input
            args = tuple(map(without_parameters, args))
            kwargs = {key: without_parameters(value) for key, value in kwargs.items()}
        name = name_of(func)
        rule = RULES.get(name)
        if rule is not None:
            return rule(Call(func, args, kwargs, self))
        output = func(*args, **kwargs)
        if name in ROLE_PRESERVING and args:
            pass_role(args[0], output)
        return output

    def record(self, output: Tensor, constant: Tensor | None, operation: str) -> Tensor:
        if constant is None or not self.record_constants or not output.requires_grad:
            return output
        recorded = output
        if self.copy_recorded:
            output = output.clone()
        self.added.append(Added(recorded, constant.detach(), operation, recorded._version))
        return output
