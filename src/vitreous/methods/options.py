"""Typed options: parameters with a default, read from a function once, when it is registered.

The annotation of a parameter says which values it takes: plain types, `Literal` choices, unions, tuples, and
`Annotated[…, Range(…)]` for numbers in a range. A value that does not fit is refused by name before anything runs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from vitreous.core.errors import SpecError
from vitreous.core.messages import shown

LARGEST = 2**63 - 1  # torch and numpy store whole numbers in 64 bits


@dataclass(frozen=True, slots=True)
class Range:
    """Limits of a number, for `Annotated`; `above` and `below` exclude the limit itself."""

    low: float | int | None = None
    high: float | int | None = None
    above: bool = False
    below: bool = False

    def broken_by(self, value: float | int) -> str:
        """The limit that the value breaks; empty where it breaks none."""
        if self.low is not None and (value < self.low or (self.above and value == self.low)):
            return f"{'more than' if self.above else 'at least'} {self.low}"
        if self.high is not None and (value > self.high or (self.below and value == self.high)):
            return f"{'less than' if self.below else 'at most'} {self.high}"
        return ""


# Options that several methods share. The upper limits are far above any published setting; they turn a request for
# more memory than a machine has into a sentence.
Count = Annotated[int, Range(1, 10_000_000)]
Cells = Annotated[int, Range(1, 256)]  # to a side
Steps = Annotated[int, Range(1, 5_000)]  # Gauss-Legendre nodes take memory that grows with the square
Pixels = Annotated[int, Range(1, 65_536)]  # to a side
Seed = Annotated[int, Range(-(2**63), LARGEST)]
Number = Annotated[float | int, Range(-10_000, 10_000)]
Positive = Annotated[float | int, Range(0, 10_000)]
Share = Annotated[float | int, Range(0, 1)]
PartialShare = Annotated[float | int, Range(0, 1, above=True)]  # more than nothing


@dataclass(frozen=True, slots=True)
class Option:
    """A keyword parameter of a registered function.

    Attributes
    ----------
    name
        As it is written in a spec.
    default
        Its value where none is given.
    annotation
        The evaluated annotation; `Any` where there is none, and then every value is accepted.
    """

    name: str
    default: Any
    annotation: Any = Any

    def fit(self, owner: str, value: Any) -> Any:
        """The value, a list as a tuple where a tuple is annotated; a SpecError if it does not fit."""
        if isinstance(value, list) and has_type(tuple(value), self.annotation):
            value = tuple(value) if not has_type(value, self.annotation) else value
        if expected := mismatch(value, self.annotation):
            raise SpecError(f"{owner} cannot take {self.name}={shown(value)}; {expected}")
        return value


Options = Mapping[str, Option]


@cache
def options_of(function: Callable[..., Any] | None) -> dict[str, Option]:
    """Options of a function by name: its parameters with a default. Parameters without one are its inputs.

    Examples
    --------
    >>> def signal(layer, *, heads: Literal["mean", "max"] = "mean"): ...
    >>> options_of(signal)["heads"].default
    'mean'
    """
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name: Option(p.name, p.default, evaluated(function, p.annotation))
        for p in parameters
        if p.default is not p.empty
    }


def inputs_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters without a default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.default is p.empty and p.kind not in kinds)


def evaluated(function: Callable[..., Any], annotation: Any) -> Any:
    """The annotation itself where a module keeps annotations as strings; `Any` where it cannot be evaluated."""
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # the module's own source
    except Exception:  # noqa: BLE001 - a name for type checkers alone (TYPE_CHECKING)
        return Any


def defaults(options: Options) -> dict[str, Any]:
    return {name: option.default for name, option in options.items()}


def check_names(owner: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Refuse options that do not exist, with the nearest name or the list of names."""
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
            raise SpecError(f"{owner} has no option {shown(key)}; {hint}")


def fit_options(owner: str, given: Mapping[str, Any], known: Options) -> dict[str, Any]:
    """The given options; refused are names that do not exist and values that do not fit."""
    check_names(owner, given, known)
    return {key: known[key].fit(owner, value) for key, value in given.items()}


def mismatch(value: Any, annotation: Any) -> str:
    """What is expected instead of the value; empty where it fits."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return ""
    if origin is Annotated:
        wrong = mismatch(value, arguments[0])
        return wrong or next((text for rule in arguments[1:] if (text := broken(rule, value))), "")
    if origin is Literal:
        fits = any(type(value) is type(known) and value == known for known in arguments)
        return "" if fits else f"known: {', '.join(map(repr, arguments))}"
    if origin in (Union, UnionType):
        alternatives = [arm for arm in arguments if has_type(value, arm)]
        wrong = [mismatch(value, arm) for arm in alternatives]
        return ("" if "" in wrong else wrong[0]) if wrong else f"expected {described_type(annotation)}"
    if not has_type(value, annotation):
        return f"expected {described_type(annotation)}"
    if origin in (tuple, list, Sequence):
        return next((wrong for inner in value if (wrong := mismatch(inner, arguments[0]))), "")
    if annotation in (int, float) and isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"
    if annotation in (int, float) and isinstance(value, int) and abs(value) > LARGEST + 1:
        return f"expected at most {LARGEST} in size"
    return ""


def broken(rule: Any, value: Any) -> str:
    """The limit that a value breaks. A rule is a `Range`, or a function that raises for a value it refuses."""
    if isinstance(rule, Range):
        limit = rule.broken_by(value)
        return f"expected {limit}" if limit else ""
    if callable(rule):
        rule(value)
    return ""


def has_type(value: Any, annotation: Any) -> bool:
    """Whether the value has the annotated type, whatever its limits. True and False are no numbers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return has_type(value, arguments[0])
    if origin is Literal:
        return any(type(value) is type(known) for known in arguments)
    if origin in (Union, UnionType):
        return any(has_type(value, arm) for arm in arguments)
    if annotation is None or annotation is NoneType:
        return value is None
    if annotation in (int, float):
        return isinstance(value, int | float if annotation is float else int) and not isinstance(value, bool)
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if origin in (tuple, list, Sequence):
        kinds = {tuple: tuple, list: list, Sequence: (tuple, list, range)}[origin]
        return isinstance(value, kinds) and all(has_type(inner, arguments[0]) for inner in value)
    return True  # a type that specs cannot write: a function, a model


NAMES = {int: "int", float: "float", bool: "bool", str: "str", NoneType: "None", None: "None"}


def described_type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return described_type(arguments[0])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(described_type(arm) for arm in arguments)
        return " or ".join(kind for kind in kinds if kind != "int" or "float" not in kinds)
    if origin in (tuple, list, Sequence):
        return f"a tuple of {described_type(arguments[0])}"
    return NAMES.get(annotation, str(annotation))


def choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise SpecError(f"{name}={shown(value)}; known: {', '.join(map(repr, allowed))}")


def written(options: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else ""
