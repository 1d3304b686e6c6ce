"""Name the operations of a model that lose a share of the score under a linearisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.linearise import Linearisation
from vitreous.capture.operation_registry import Call, name_of, without_parameters
from vitreous.capture.operations import RULES, LinearisedForward
from vitreous.capture.trace import share, trace

LOST = 1e-4  # fraction of an operation's output that may be missing


class OperationCheck(LinearisedForward):
    """Checks every operation by itself: inputs times their gradients, and added constants, must make up the output."""

    def __init__(self, linearisation: Linearisation) -> None:
        super().__init__(linearisation, record_constants=True)
        self.lost: dict[str, float] = {}
        self.busy = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and not self.busy:
            self.busy = True
            try:
                self.check(func, args, kwargs)
            except (RuntimeError, TypeError, ValueError, IndexError):
                pass  # a call that cannot be repeated on copies of its inputs is not judged
            finally:
                self.busy = False
        return super().__torch_function__(func, types, args, kwargs)

    def check(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves: list[Tensor] = []

        def copied(value: Any) -> Any:
            if isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter):
                leaf = value.detach().clone().requires_grad_()
                if (role := getattr(value, "_vitreous_role", None)) is not None:
                    leaf._vitreous_role = role  # type: ignore[attr-defined]
                leaves.append(leaf)
                return leaf
            if isinstance(value, list | tuple):
                return type(value)(map(copied, value))
            return without_parameters(value)

        given, named = tuple(map(copied, args)), {key: copied(value) for key, value in kwargs.items()}
        name = name_of(func)
        if not leaves or name.endswith("_"):
            return
        before = len(self.added)
        rule = RULES.get(name)
        output = func(*given, **named) if rule is None else rule(Call(func, given, named, self))
        constants, self.added[before:] = self.added[before:], []
        if not isinstance(output, Tensor) or not output.requires_grad or not output.is_floating_point():
            return
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(3)).to(output)
        inputs = [*leaves, *(added.output for added in constants)]
        grads = torch.autograd.grad(output, inputs, weight, allow_unused=True)
        total = (output.detach() * weight).double()
        arrived = sum(
            (
                (leaf.detach() * grad).double().sum()
                for leaf, grad in zip(leaves, grads, strict=False)
                if grad is not None
            ),
            torch.zeros((), dtype=torch.float64, device=total.device),
        )
        for added, grad in zip(constants, grads[len(leaves) :], strict=True):
            if grad is not None:
                arrived = arrived + share(added.constant, grad).double().sum()
        missing = ((total.sum() - arrived).abs() / total.abs().sum().clamp(min=1e-30)).item()
        if missing > LOST:
            self.lost[name] = max(missing, self.lost.get(name, 0.0))


def operations_without_rule(
    module: nn.Module, forward: Callable[[], Any], blocks: Sequence[nn.Module], linearisation: Linearisation
) -> str:
    """Names of the operations that lose most, separated by commas; empty if no single operation does."""
    mode = OperationCheck(linearisation)
    trace(module, forward, blocks, linearisation, mode=mode)
    ranked = sorted(mode.lost.items(), key=lambda item: -item[1])
    return ", ".join(repr(name) for name, _ in ranked[:3])
