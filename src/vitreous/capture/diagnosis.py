"""Name the operations of a model that lose a share of the score under a linearisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.linearise import Linearisation
from vitreous.capture.operation_registry import Call, name_of, without_parameters
from vitreous.capture.operations import RULES, LinearisedForward
from vitreous.capture.trace import backward, share, trace


class OperationCheck(LinearisedForward):
    """Repeats every operation on copies of its inputs and checks it by itself in the backward pass.

    Inputs times their gradients, and added constants times theirs, must make up the output times its gradient. `lost`
    holds the difference of every operation by name, summed over its calls.
    """

    def __init__(self, linearisation: Linearisation) -> None:
        super().__init__(linearisation, copy_recorded=True)
        self.lost: dict[str, float] = {}
        self.busy = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        local = None
        if torch.is_grad_enabled() and not self.busy:
            self.busy = True
            try:
                local = self.repeat(func, args, kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                local = None  # a call that cannot be repeated on copies of its inputs is not checked
            finally:
                self.busy = False
        output = super().__torch_function__(func, types, args, kwargs)
        if local is not None and isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda gradient, local=local: self.check(name_of(func), gradient, *local))
        return output

    def repeat(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor], list[Tensor | None]] | None:
        """Output of an operation on copies, the copies and recorded outputs, and the constants of the latter."""
        leaves: list[Tensor] = []

        def copied(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter):
                leaf = value.detach().clone().requires_grad_()
                for name in ("_vitreous_role", "_vitreous_source", "_vitreous_scaled"):
                    if hasattr(value, name):
                        setattr(leaf, name, getattr(value, name))
                leaves.append(leaf)
                return leaf
            if isinstance(value, list | tuple):
                return type(value)(map(copied, value))
            return without_parameters(value)

        name = name_of(func)
        if name.endswith("_"):
            return None
        copied_args, named = tuple(map(copied, args)), {key: copied(value) for key, value in kwargs.items()}
        if not leaves:
            return None
        inner = LinearisedForward(self.linearisation, record_constants=True)
        rule = RULES.get(name)
        output = func(*copied_args, **named) if rule is None else rule(Call(func, copied_args, named, inner))
        if not isinstance(output, Tensor) or not output.requires_grad:
            return None
        constants: list[Tensor | None] = [*([None] * len(leaves)), *(added.constant for added in inner.added)]
        return output, [*leaves, *(added.output for added in inner.added)], constants

    def check(
        self, name: str, gradient: Tensor, output: Tensor, inputs: list[Tensor], constants: list[Tensor | None]
    ) -> None:
        """Add up what is lost of output times gradient."""
        grads = torch.autograd.grad(output, inputs, gradient, allow_unused=True, retain_graph=True)
        missing = (output.detach() * gradient).nan_to_num(0, 0, 0).sum(dtype=torch.float64)
        for x, constant, grad in zip(inputs, constants, grads, strict=True):
            if grad is not None:
                missing = missing - share(x.detach() if constant is None else constant, grad).sum(dtype=torch.float64)
        self.lost[name] = self.lost.get(name, 0.0) + abs(missing.item())


def operations_without_rule(
    module: nn.Module,
    forward: Callable[[], Any],
    blocks: Sequence[nn.Module],
    linearisation: Linearisation,
    score_of: Callable[[Any], Tensor | None],
) -> str:
    """Names of the operations that lose most of a score, separated by commas; empty if none is found.

    Parameters
    ----------
    module, forward, blocks, linearisation
        As for `trace`.
    score_of
        The score of what `forward` returns.
    """
    mode = OperationCheck(linearisation)
    traced = trace(module, forward, blocks, mode)
    with torch.enable_grad():
        score = score_of(traced.output)
    if score is None:
        return ""
    for _ in backward(traced, score):
        pass
    largest = max(mode.lost.values(), default=0.0)
    ranked = sorted((name for name, lost in mode.lost.items() if lost > 0.1 * largest), key=lambda n: -mode.lost[n])
    return ", ".join(repr(name) for name in ranked[:3]) if largest > 1e-6 * abs(score.item()) else ""
