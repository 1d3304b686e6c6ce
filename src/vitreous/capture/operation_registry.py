"""Registry of backward rules per torch function, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor
from torch.nn import Parameter

from vitreous.capture.linearise import Linearisation

if TYPE_CHECKING:
    from vitreous.capture.operations import LinearisedForward


class Role(Enum):
    """What a tensor is in the product that it may enter next."""

    ATTENTION_WEIGHTS = "attention weights"  # the output of a softmax
    ACTIVATION = "activation"  # act(x) with act(0) = 0, which has a ratio act(x) / x
    BOUNDED_GATE = "bounded gate"  # sigmoid and the like: no ratio at 0


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """A constant that an operation added: its share of a score is `constant * d(score)/d(output)`, summed."""

    output: Tensor
    constant: Tensor
    operation: str
    version: int  # of `output` when it was recorded; another one later means that it was changed in place


@dataclass(slots=True, eq=False)  # not frozen: it is made for every call, and frozen fields take longer to set
class Call:
    """One call of a torch function: the argument of a rule.

    Attributes
    ----------
    function, args, kwargs
        The torch function and its arguments, as the model called it.
    mode
        The pass that the call belongs to.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: LinearisedForward

    @property
    def linearisation(self) -> Linearisation:
        return self.mode.linearisation

    @property
    def differentiable(self) -> bool:
        """Whether the backward pass is recorded: the rule needs a second derivative."""
        return self.mode.differentiable

    @property
    def input(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs["input"]

    @property
    def operands(self) -> tuple[Any, Any]:
        """The two arguments of an arithmetic operation."""
        return self.args[0], self.args[1] if len(self.args) > 1 else self.kwargs["other"]

    def bind(self, *names: str) -> dict[str, Any]:
        """Positional and keyword arguments by name."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def run(self) -> Any:
        """The function as the model called it."""
        return self.function(*self.args, **self.kwargs)

    def run_on(self, x: Tensor) -> Any:
        """The function with `x` in place of its first argument."""
        if self.args:
            return self.function(x, *self.args[1:], **self.kwargs)
        return self.function(**{**self.kwargs, "input": x})

    def hold(self, x: Tensor) -> Tensor:
        """The tensor as a constant of the linearised backward pass."""
        return self.mode.hold(x)

    def damp(self, x: Tensor, factor: float | int) -> Tensor:
        """The tensor with its gradient in the linearised backward pass multiplied by `factor`."""
        return self.mode.damp(x, factor)

    def hand_out(self, output: Tensor) -> Tensor:
        """An output that the backward pass needs again; a copy for models that change what they are given in place."""
        copies = self.mode.copy_recorded and output.requires_grad and not name_of(self.function).endswith("_")
        return output.clone() if copies else output

    def add(self, output: Tensor, constant: Tensor | None) -> Tensor:
        """Record that `constant`, which broadcasts to `output`, was added; returns `output`."""
        return self.mode.record(output, constant, name_of(self.function))


CONSTANT = "_vitreous_constant"  # attribute of tensors of parameters alone, where parameters are part of the graph
Rule = Callable[[Call], Any]
RULES: dict[str, Rule] = {}


def operation_rule(*functions: Callable[..., Any] | str, differentiable: bool = False) -> Callable[[Rule], Rule]:
    """Register the backward rule of torch functions, by function or by name.

    Parameters
    ----------
    *functions
        Torch functions such as `torch.nn.functional.mish`, or their names.
    differentiable
        Whether `explain(..., differentiable=True)` may use the rule: it treats factors as constants by `call.hold` and
        scales gradients by `call.damp`, and has no backward function of its own.

    Returns
    -------
    callable
        A decorator for the rule: a function of a `Call` that returns what the torch function returns.

    Notes
    -----
    A `Call` has the arguments that the model passed (`args`, `kwargs`, `input` for the first one, `operands` for two), the
    `linearisation` of the pass, `run()`, which calls the torch function unchanged, `hold(x)`, which returns `x` as a constant
    of the backward pass, `damp(x, factor)`, which multiplies its gradient, and `add(output, constant)`, which records a
    constant that the operation added, so that shares add up.

    Examples
    --------
    >>> import vitreous
    >>> @vitreous.operation_rule("normalise_rows", differentiable=True)
    ... def normalise_rows(call):
    ...     x = call.args[0]
    ...     return x / call.hold(x.norm(dim=-1, keepdim=True))  # the norm is a constant of the backward pass

    A rule of the library may serve another function:

    >>> from vitreous.capture.gate_rules import ratio_activation
    >>> _ = vitreous.operation_rule("my_activation")(ratio_activation)
    """

    def register(rule: Rule) -> Rule:
        if differentiable:
            rule.differentiable = True  # type: ignore[attr-defined]
        for function in functions:
            RULES[function if isinstance(function, str) else name_of(function)] = rule
        return rule

    return register


built_in_rule = partial(operation_rule, differentiable=True)

TENSOR_ATTRIBUTES = frozenset(["T", "mT", "H", "mH", "data"])  # other attributes of a tensor are no tensors


def find_rule(function: Callable[..., Any]) -> Rule | None:
    """The rule of a torch function, or of reading an attribute of a tensor; None if it has none."""
    name = name_of(function)
    if name == "__get__":
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        return keep_role if attribute in TENSOR_ATTRIBUTES else None
    return RULES.get(name)


def without_parameters(value: Any) -> Any:
    if isinstance(value, Parameter):
        return value.detach() if value.requires_grad else value
    if isinstance(value, list | tuple) and any(isinstance(x, Parameter) and x.requires_grad for x in value):
        return type(value)(map(without_parameters, value))
    return value


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def depends(value: Any) -> TypeGuard[Tensor]:
    """Whether a value depends on what is explained."""
    return isinstance(value, Tensor) and value.requires_grad and not hasattr(value, CONSTANT)


def role_of(value: Any) -> Role | None:
    return getattr(value, "_vitreous_role", None)


def give_role(value: Tensor, role: Role | None, source: Tensor | None = None) -> Tensor:
    """`source`: what a gate was computed from, to distinguish x * sigmoid(x), an activation, from a gate."""
    if role is not None:
        value._vitreous_role = role  # type: ignore[attr-defined]
    if source is not None:
        value._vitreous_source = source  # type: ignore[attr-defined]
    return value


@built_in_rule(
    "__getitem__", "bfloat16", "chunk", "clone", "contiguous", "double", "dropout", "expand", "expand_as", "flatten",
    "float", "half", "movedim", "narrow", "permute", "repeat", "repeat_interleave", "reshape", "roll", "select",
    "split", "squeeze", "swapaxes", "to", "transpose", "type", "type_as", "unbind", "unflatten", "unsqueeze", "view",
    "view_as", "masked_fill_",
)  # fmt: skip
def keep_role(call: Call) -> Any:
    """The function as the model called it; what it returns has the role of its first argument."""
    output = call.function(*call.args, **call.kwargs)
    if call.args and role_of(call.args[0]) is not None:
        pass_role(call.args[0], output)
    return output


def pass_role(source: Any, outputs: Any) -> None:
    role = role_of(source[0] if isinstance(source, list | tuple) and source else source)
    if role is None:
        return
    for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
        if isinstance(output, Tensor):
            give_role(output, role)
