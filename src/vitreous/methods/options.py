"""Typed options of methods and folds: the parameters of a function that have a default.

The annotation of a parameter defines its valid values: plain types, `Literal` choices, unions, tuples, and
`Annotated[…, Range(…)]` for numbers in a range. An invalid value raises a SpecError before anything is computed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from vitreous.core.errors import SpecError
from vitreous.core.messages import shorten_repr

LARGEST = 2**63 - 1  # torch and numpy store integers in 64 bits


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a number, for `Annotated`.

    Attributes
    ----------
    low, high
        Limits; None for no limit.
    above, below
        Whether `low` and `high` themselves are excluded.
    """

    low: float | int | None = None
    high: float | int | None = None
    above: bool = False
    below: bool = False

    def broken_by(self, value: float | int) -> str:
        """Description of the limit that the value violates, or an empty string."""
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return f"{'more than' if self.above else 'at least'} {self.low}"
        if self.high is not None and (value > self.high or (self.below and value == self.high)):
            return f"{'less than' if self.below else 'at most'} {self.high}"
        return ""


# Types of options that several methods share. The upper limits are far above any published setting; they replace
# out-of-memory failures by an error message.
Count = Annotated[int, Range(1, 10_000_000)]
Cells = Annotated[int, Range(1, 256)]  # per side
Steps = Annotated[int, Range(1, 5_000)]  # memory for Gauss-Legendre nodes grows quadratically
Pixels = Annotated[int, Range(1, 65_536)]  # per side
Seed = Annotated[int, Range(-(2**63), LARGEST)]
Number = Annotated[float | int, Range(-10_000, 10_000)]
Positive = Annotated[float | int, Range(0, 10_000)]
Share = Annotated[float | int, Range(0, 1)]
PartialShare = Annotated[float | int, Range(0, 1, above=True)]


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword parameter of a registered function.

    Attributes
    ----------
    name
        Name in a spec.
    default
        Value if none is given.
    annotation
        The evaluated annotation; `Any`, which accepts every value, if there is none.
    """

    name: str
    default: Any
    annotation: Any = Any

    def fit(self, owner: str, value: Any) -> Any:
        """The value if it is valid; a list becomes a tuple if the annotation is a tuple.

        Parameters
        ----------
        owner
            Method or fold, for the error message.
        value
            Value to check.

        Raises
        ------
        SpecError
            If the value does not fit the annotation.
        """
        if isinstance(value, list) and not examine(value, self.annotation)[0]:
            value = tuple(value) if examine(tuple(value), self.annotation)[0] else value
        if expected := examine(value, self.annotation)[1]:
            raise SpecError(f"{owner} cannot take {self.name}={shorten_repr(value)}; {expected}")
        return value


Options = Mapping[str, Option]


@dataclass(frozen=True, slots=True, eq=False)
class OptionFunction:
    """A function with its inputs and options, which are read from its signature once, when it is registered.

    Parameters with a default are options; the others are inputs.

    Attributes
    ----------
    call
        The function.
    inputs
        Names of the parameters without a default.
    options
        Options by name.
    """

    call: Callable[..., Any]
    inputs: tuple[str, ...]
    options: Options

    @classmethod
    def of(cls, function: Callable[..., Any]) -> OptionFunction:
        """Read the signature of a function; an `OptionFunction` is returned as it is.

        Examples
        --------
        >>> def signal(layer, *, heads: Literal["mean", "max"] = "mean"): ...
        >>> OptionFunction.of(signal).inputs
        ('layer',)
        """
        if isinstance(function, OptionFunction):
            return function
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        inputs = tuple(p.name for p in parameters if p.default is p.empty and p.kind not in kinds)
        options = {
            p.name: Option(p.name, p.default, evaluate_annotation(function, p.annotation))
            for p in parameters
            if p.default is not p.empty
        }
        return cls(function, inputs, options)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.call(*inputs, **options)

    def pick(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the settings that are options of this function."""
        return {key: settings[key] for key in self.options if key in settings}

    def check_inputs(self, owner: str, further: Collection[str] = (), hint: str = "") -> None:
        """Raise a TypeError for a parameter without a default that is neither the first one nor one of `further`."""
        if unknown := [name for name in self.inputs[1:] if name not in further]:
            raise TypeError(f"{owner} has the parameter {unknown[0]!r} without a default; options have one{hint}")


def options_of(function: Callable[..., Any] | None) -> Options:
    """Options of a function by name: its parameters that have a default; none for None.

    Examples
    --------
    >>> def signal(layer, *, heads: Literal["mean", "max"] = "mean"): ...
    >>> options_of(signal)["heads"].default
    'mean'
    """
    return {} if function is None else OptionFunction.of(function).options


def evaluate_annotation(function: Callable[..., Any], annotation: Any) -> Any:
    """Evaluate an annotation that is stored as a string; `Any` if there is none or it cannot be evaluated."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # not user input
    except Exception:  # noqa: BLE001 - for example a name imported under TYPE_CHECKING
        return Any


def defaults(options: Options) -> dict[str, Any]:
    """Default of every option by name."""
    return {name: option.default for name, option in options.items()}


def check_names(owner: str, options: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Raise a SpecError for options that do not exist, with the nearest name or the list of names."""
    for key in options:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"
            raise SpecError(f"{owner} has no option {shorten_repr(key)}; {hint}")


def fit_options(owner: str, options: Mapping[str, Any], typed_options: Options) -> dict[str, Any]:
    """The given options after validation (see `Option.fit`).

    Parameters
    ----------
    owner
        Method or fold, for error messages.
    options
        Values by name.
    typed_options
        Options by name.

    Raises
    ------
    SpecError
        If an option does not exist or a value does not fit.
    """
    check_names(owner, options, typed_options)
    return {key: typed_options[key].fit(owner, value) for key, value in options.items()}


def examine(value: Any, annotation: Any) -> tuple[bool, str]:
    """Whether the value has the annotated type, and a description of the expected value; "" if the value fits.

    The type is that without limits. A bool is not accepted as a number.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        has_type, problem = examine(value, arguments[0])
        return has_type, problem or next(
            (text for rule in arguments[1:] if (text := describe_violation(rule, value))), ""
        )
    if origin is Literal:
        fits = any(type(value) is type(choice_value) and value == choice_value for choice_value in arguments)
        has_type = any(type(value) is type(choice_value) for choice_value in arguments)
        return has_type, "" if fits else f"known: {', '.join(map(repr, arguments))}"
    problem = ""
    if origin in (Union, UnionType):
        problems = [problem for has_type, problem in (examine(value, arm) for arm in arguments) if has_type]
        has_type, problem = bool(problems), "" if "" in problems or not problems else problems[0]
    elif origin in (tuple, list, Sequence):
        kinds = {tuple: tuple, list: list, Sequence: (tuple, list, range)}[origin]
        entries = [examine(inner, arguments[0]) for inner in value] if isinstance(value, kinds) else [(False, "")]
        has_type, problem = all(fits for fits, _ in entries), next((text for _, text in entries if text), "")
    elif annotation in (int, float):
        has_type = isinstance(value, int | float if annotation is float else int) and not isinstance(value, bool)
        if isinstance(value, float) and not math.isfinite(value):
            problem = "expected a finite number"
        elif isinstance(value, int) and abs(value) > LARGEST + 1:
            problem = f"expected at most {LARGEST} in size"
    elif annotation in (bool, str):
        has_type = isinstance(value, annotation)
    else:  # None, or a type without literals, such as a function or a model
        has_type = value is None or annotation not in (None, NoneType)
    return has_type, problem if has_type else f"expected {describe_type(annotation)}"


def describe_violation(rule: Any, value: Any) -> str:
    """Description of the violated limit, or ""; a rule is a `Range` or a function that raises if invalid."""
    if isinstance(rule, Range):
        limit = rule.broken_by(value)
        return f"expected {limit}" if limit else ""
    if callable(rule):
        rule(value)
    return ""


NAMES = {int: "int", float: "float", bool: "bool", str: "str", NoneType: "None", None: "None"}


def describe_type(annotation: Any) -> str:
    """The annotation in words, for error messages."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(arguments[0])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(describe_type(arm) for arm in arguments)
        return " or ".join(kind for kind in kinds if kind != "int" or "float" not in kinds)
    if origin in (tuple, list, Sequence):
        return f"a tuple of {describe_type(arguments[0])}"
    return NAMES.get(annotation, str(annotation))


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise a SpecError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise SpecError(f"{name}={shorten_repr(value)}; known: {', '.join(map(repr, allowed))}")


def write_options(options: Mapping[str, Any]) -> str:
    """Options as written in a spec, "(name=value, …)"; an empty string if there are none."""
    return f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else ""
