"""Metrics and their registry.

A metric is a function that maps an attribution to one score per row, with declared properties. Parameters whose names
are in `FIXTURES` are passed by `measure`, as pytest passes fixtures; all other parameters are options of the metric.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack

from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import SpecError
from vitreous.core.messages import shorten_repr
from vitreous.core.registry import Registry
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import Option, OptionFunction, check_choice, defaults, fit_options, write_options
from vitreous.methods.spec import remove_spaces, take_options, take_word
from vitreous.metrics.metric_result import Measured, MetricResult, Reducer, mean

FIXTURES = {
    "probe": "the model and the images",
    "labels": "labels=…, the true class of every image, −1 where nobody knows",
    "objects": "objects=…, masks [b H W] in the frame the model sees (1 the object, 0 not, −1 does not count)",
    "rivals": "rivals=…, masks [b H W] of the other class in the same frame",
    "boxes": "boxes=…, for every image [k 4] as x0 y0 x1 y1 in the frame the model sees",
    "method": "an attribution that a method of the registry made, or method=…",
    "memo": "",  # dict shared by the metrics of one batch, to cache common results
}


class NoClassesError(SpecError):
    """A metric needs class probabilities and the model has a single output; `Metric` adds the metric's name."""


@dataclass(frozen=True, slots=True)
class CurveAxes:
    """What levels and values of a metric's curve are; reports label charts by it.

    Parameters
    ----------
    levels
        Shares of the image that are "removed" or "shown".
    values
        The "probability" of a class; its "drop", p(x) − p; the "accuracy", 1 where a class is right, else 0; or "other".
    order
        Scores that come first: "descending" for the highest, "ascending" for the lowest, None for both in turn. An option
        `order` of the metric with one of these values replaces it.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve_metric("deletion_aopc(order='ascending')").chosen_axes.label
    'share removed, lowest scores first'
    """

    levels: Literal["removed", "shown"]
    values: Literal["probability", "drop", "accuracy", "other"] = "other"
    order: Literal["descending", "ascending"] | None = "descending"

    @property
    def label(self) -> str:
        """Label of the axis of levels."""
        first = {"descending": ", highest scores first", "ascending": ", lowest scores first", None: ""}
        return f"share {self.levels}{first[self.order]}"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A metric with its declared properties, which `vitreous.testing.check_metric` verifies.

    Parameters
    ----------
    name
        Name in the registry.
    signature
        The function with its fixtures and options, read when the metric is registered.
    higher_is_better
        Direction of the metric; None if it describes maps without ranking them.
    bounds
        Smallest and largest possible score.
    affine_invariant
        Whether a·map + b with a > 0 has the same score as the map.
    reduce
        Function that computes the value of a dataset from scores and parts; the mean by default.
    axes
        What levels and values of its curve are; None if it has none, or one over something else than shares of the image.
    forwards
        Forward passes of the model per row, as a number or an expression, with that of the unchanged image.
    family
        "faithfulness", "localisation", "robustness" or "complexity".
    paper
        Key in `docs/references.bib`.
    title
        First line of the function's docstring.
    formula
        One-line formula in the notation of `docs/metrics.md`.
    trial
        Options under which the contract tests run it.
    presets
        Named sets of options, usually those of a paper.
    options
        Options that were given, and override presets and defaults.

    Examples
    --------
    >>> import vitreous
    >>> metric = vitreous.resolve_metric("deletion_aopc")
    >>> metric.family, metric.higher_is_better
    ('faithfulness', True)
    """

    name: str
    signature: OptionFunction
    higher_is_better: bool | None
    bounds: tuple[int | float, int | float] | None = None
    affine_invariant: bool = False
    reduce: Reducer = mean
    axes: CurveAxes | None = None
    forwards: int | str = 0
    family: str = ""
    paper: str = ""
    title: str = ""
    formula: str = ""
    trial: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., Float[Tensor, " r"] | Measured]:
        """The function `(attribution, fixtures…, options…)`, which returns scores [r] or `Measured`."""
        return self.signature.call

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the fixtures that must be given."""
        return tuple(name for name in self.signature.inputs if name in FIXTURES)

    @property
    def takes(self) -> tuple[str, ...]:
        """Names of all fixtures it accepts, required or optional."""
        return (*self.needs, *(name for name in self.signature.options if name in FIXTURES))

    @property
    def known_options(self) -> dict[str, Any]:
        """Default of every option, by name."""
        return defaults(self.typed_options)

    @property
    def typed_options(self) -> dict[str, Option]:
        """Every option by name."""
        options_by_name = {name: option for name, option in self.signature.options.items() if name not in FIXTURES}
        return options_by_name | ({"preset": Option("preset", None)} if self.presets else {})

    @property
    def spec(self) -> str:
        """The metric as a string; `resolve_metric` makes the same metric of it."""
        return self.name + write_options(self.options)

    @property
    def settings(self) -> dict[str, Any]:
        """Value of every option: defaults, overridden by the preset, overridden by the given options."""
        options = dict(self.options)
        preset = options.pop("preset", None)
        own = {key: value for key, value in self.known_options.items() if key != "preset"}
        return {**own, **(self.presets[preset] if preset is not None else {}), **options}

    @property
    def chosen_axes(self) -> CurveAxes | None:
        """`axes`, with the order that is set by an option."""
        order = self.settings.get("order")
        return replace(self.axes, order=order) if self.axes and order in ("descending", "ascending") else self.axes

    def with_options(self, /, **options: Any) -> Metric:
        """Copy of the metric with these options set.

        Parameters
        ----------
        **options
            Options by name. With `preset`, its settings are used for options that are not given.

        Returns
        -------
        Metric
            The copy.

        Raises
        ------
        SpecError
            If an option or preset is unknown, or a value does not fit its type.

        Examples
        --------
        >>> import vitreous
        >>> vitreous.resolve_metric("insertion").with_options(steps=28).spec
        'insertion(steps=28)'
        """
        options = fit_options(f"metric {self.name!r}", options, self.typed_options)
        options = {**self.options, **options}
        if options.get("preset") is not None:
            check_choice("preset", options["preset"], tuple(self.presets))
        return replace(self, options={key: value for key, value in options.items() if key != "preset" or value})

    def __call__(self, attribution: Attribution, **inputs: Any) -> MetricResult:
        """Measure one attribution.

        Parameters
        ----------
        attribution
            Maps to measure, one per row.
        **inputs
            Fixtures by name; those that the metric does not take are ignored.

        Returns
        -------
        MetricResult

        Raises
        ------
        SpecError
            If a required fixture is missing, or the metric reads class probabilities and the model has none.
        """
        for name in self.needs:
            if inputs.get(name) is None:
                raise SpecError(f"metric {self.name!r} needs {FIXTURES[name]}")
        passed = {name: inputs[name] for name in self.takes if inputs.get(name) is not None}
        try:
            result = self.function(attribution, **passed, **self.settings)
        except NoClassesError as problem:
            raise SpecError(
                f"metric {self.name!r} reads class probabilities, and {problem}; metrics of masks, of the map alone and of its "
                "robustness work ('ap', 'sparseness', 'max_sensitivity'), and wrap(model, outputs='binary') makes it two classes"
            ) from None
        result = result if isinstance(result, Measured) else Measured(result)
        better = self.higher_is_better
        return MetricResult(
            metric=self.spec,
            scores=result.scores,
            higher_is_better=better if better is None or not result.flipped else not better,
            curve=result.curve,
            levels=None if result.levels is None else tuple(float(level) for level in result.levels),
            parts=dict(result.parts),
            protocol={"metric": self.name, **as_json_values(self.settings), **result.protocol},
            reduce=self.reduce,
        )


METRICS: Registry[Metric] = Registry("metric", "vitreous.metrics")


class MetricKeywords(TypedDict, total=False):
    """Keywords of the decorator `metric`: the attributes of `Metric` that may be left out."""

    bounds: tuple[int | float, int | float] | None
    affine_invariant: bool
    reduce: Reducer
    axes: CurveAxes | None
    forwards: int | str
    family: str
    paper: str
    title: str
    formula: str
    trial: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Any]


def metric(
    name: str | None = None,
    *,
    higher_is_better: bool | None,
    aliases: tuple[str, ...] = (),
    **facts: Unpack[MetricKeywords],
) -> Callable[[Callable[..., Any]], Metric]:
    """Decorator that registers a metric function.

    The function has the signature `(attribution, fixtures…, options…)` and returns scores [r] or `Measured`. The first
    line of its docstring becomes the metric's title.

    Parameters
    ----------
    name
        Name in the registry; the function's name by default.
    higher_is_better
        Direction of the metric; None if it describes maps without ranking them.
    aliases
        Other names under which the metric is found.
    **facts
        Other fields of `Metric`, such as `bounds` or `family`.

    Returns
    -------
    callable
        A decorator that replaces the function by its `Metric`.

    Examples
    --------
    >>> import vitreous
    >>> @vitreous.metric("top_score", higher_is_better=None)
    ... def top_score(attribution):
    ...     '''Highest score of a patch.'''
    ...     return attribution.patches.amax(-1)
    >>> vitreous.resolve_metric("top_score").title
    'Highest score of a patch.'
    """

    def register(function: Callable[..., Any]) -> Metric:
        signature = OptionFunction.of(function)
        hint = f", and inputs are called {', '.join(FIXTURES)}"
        signature.check_inputs(f"the metric {signature.call.__name__!r}", FIXTURES, hint)
        title = (inspect.getdoc(signature.call) or "").split("\n")[0]
        own_name = name or signature.call.__name__
        registered = Metric(own_name, signature, higher_is_better, **{"title": title, **facts})
        return METRICS.add(own_name, registered, signature.call.__module__, aliases)

    return register


def resolve_metric(spec: str | Metric, /, **options: Any) -> Metric:
    """Parse a metric spec such as `"insertion(baseline='blur', steps=28)"`.

    Parameters
    ----------
    spec
        Spec of a registered metric, or a `Metric`.
    **options
        Further options; an option may not also be part of a spec.

    Returns
    -------
    Metric
        The metric with these options.

    Raises
    ------
    SpecError
        If the spec cannot be parsed, an option does not fit, or an option is given twice.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve_metric("insertion(steps=28)").options
    {'steps': 28}
    """
    if isinstance(spec, Metric):
        return spec.with_options(**options) if options else spec
    if not isinstance(spec, str):
        raise SpecError(f"a metric is a spec such as 'deletion_aopc', not {type(spec).__name__!r}")
    text = remove_spaces(spec)
    name, rest = take_word(text)
    chosen = METRICS[name.replace("-", "_")]
    spec_options, rest = take_options(rest, text)
    if rest:
        raise SpecError(
            f"{shorten_repr(text)} is not understood from {shorten_repr(rest)} on; a metric is written name(option=value, …)"
        )
    if twice := sorted(spec_options.keys() & options.keys()):
        raise SpecError(f"option {twice[0]!r} of {shorten_repr(text)} is given twice")
    return chosen.with_options(**spec_options, **options)


def as_json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON-compatible values: tuples become lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
