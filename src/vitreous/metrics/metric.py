"""Metrics, their registry and their results.

A metric is a function that maps an attribution to one score per row, with declared properties. Parameters whose names
are in `FIXTURES` are passed by `measure`, as pytest passes fixtures; all other parameters are options of the metric.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import SpecError
from vitreous.core.messages import shorten_repr
from vitreous.core.registry import Registry
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import Option, OptionFunction, choice, defaults, fit_options, written
from vitreous.methods.spec import take_options, take_word, unspaced

FIXTURES = {
    "probe": "the model and the images",
    "labels": "labels=…, the true class of every image, −1 where nobody knows",
    "objects": "objects=…, masks [b H W] in the frame the model sees (1 the object, 0 not, −1 does not count)",
    "rivals": "rivals=…, masks [b H W] of the other class in the same frame",
    "boxes": "boxes=…, for every image [k 4] as x0 y0 x1 y1 in the frame the model sees",
    "method": "an attribution that a method of the registry made, or method=…",
    "memo": "",  # dict shared by the metrics of one batch, to cache common results
}

Parts = Mapping[str, np.ndarray]  # named values per row; rows are the last axis
Figures = np.ndarray | np.floating  # one value per bootstrap draw, or a single one for all rows
Reducer = Callable[[Parts], Figures]


def mean(parts: Parts) -> Figures:
    """Mean over the rows whose score is not NaN; NaN if there are none."""
    scores, defined = parts["score"], ~np.isnan(parts["score"])
    with np.errstate(invalid="ignore"):
        return np.where(defined, scores, 0).sum(-1) / defined.sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Return value of a metric function that has more than scores.

    Parameters
    ----------
    scores
        One score per row, NaN where undefined.
    curve
        The curve whose area is the score, if there is one.
    levels
        Positions of the points of `curve`.
    parts
        Further values per row, for example the counts that a pooling `reduce` needs.
    protocol
        Settings chosen during the computation, as plain values.
    flipped
        Whether the better direction is the opposite of the metric's `higher_is_better`, as for a complement.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> curve = torch.tensor([[1.0, 0.5, 0.0]])
    >>> vitreous.Measured(curve.mean(-1), curve=curve, levels=(0.0, 0.5, 1.0)).scores
    tensor([0.5000])
    """

    scores: Float[Tensor, " r"]
    curve: Float[Tensor, "r s"] | None = None
    levels: Sequence[int | float] | None = None
    parts: Mapping[str, Float[Tensor, " r"]] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    flipped: bool = False


class NoClassesError(SpecError):
    """A metric needs class probabilities and the model has a single output; `Metric` adds the metric's name."""


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
    forwards
        Forward passes of the model per row, as a number or an expression.
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
        return defaults(self.typed_options)

    @property
    def typed_options(self) -> dict[str, Option]:
        options_by_name = {name: option for name, option in self.signature.options.items() if name not in FIXTURES}
        return options_by_name | ({"preset": Option("preset", None)} if self.presets else {})

    @property
    def spec(self) -> str:
        return self.name + written(self.options)

    @property
    def settings(self) -> dict[str, Any]:
        """Value of every option: defaults, overridden by the preset, overridden by the given options."""
        options = dict(self.options)
        preset = options.pop("preset", None)
        own = {key: value for key, value in self.known_options.items() if key != "preset"}
        return {**own, **(self.presets[preset] if preset is not None else {}), **options}

    def with_options(self, /, **options: Any) -> Metric:
        """Copy of the metric with these options set.

        Raises
        ------
        SpecError
            If an option or preset is unknown, or a value does not fit its type.
        """
        options = fit_options(f"metric {self.name!r}", options, self.typed_options)
        options = {**self.options, **options}
        if options.get("preset") is not None:
            choice("preset", options["preset"], tuple(self.presets))
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
            protocol={"metric": self.name, **plain(self.settings), **result.protocol},
            reduce=self.reduce,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MetricResult:
    """Scores of one metric, with the settings that produced them.

    Parameters
    ----------
    metric
        Spec of the metric.
    scores
        One score per row, NaN where undefined.
    higher_is_better
        Direction of these scores; None if they are not ranked.
    curve
        The curve whose area is the score, if there is one.
    levels
        Positions of the points of `curve`.
    parts
        Further values per row.
    protocol
        Name and settings of the metric as plain values.
    reduce
        Function that computes `value` from scores and parts.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="ixg")
    >>> result = vitreous.evaluate(vit, images, attribution, "sparseness")
    >>> 0 <= result.value <= 1
    True
    """

    metric: str
    scores: Float[Tensor, " r"]
    higher_is_better: bool | None
    curve: Float[Tensor, "r s"] | None = None
    levels: tuple[float, ...] | None = None
    parts: Mapping[str, Float[Tensor, " r"]] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    reduce: Reducer = mean

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def undefined(self) -> int:
        """Number of rows whose score is NaN."""
        return int(self.scores.isnan().sum())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Input of `reduce`: "score" and the named parts as float64 arrays."""
        return {name: part.double().cpu().numpy() for name, part in {"score": self.scores, **self.parts}.items()}

    @property
    def value(self) -> float:
        """Value over all rows: the mean of defined scores, or a pooled ratio if the metric pools pixels."""
        return float(self.reduce(self.columns))

    def interval(self, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Percentile bootstrap interval of `value`, resampling rows.

        Parameters
        ----------
        level
            Confidence level.
        draws
            Number of bootstrap samples.
        seed
            Seed of the resampling.

        Returns
        -------
        tuple of float
            Lower and upper end; NaN if no sample has a defined value.
        """
        columns = self.columns
        draw = np.random.default_rng(seed)
        resampled = np.concatenate(
            [
                self.reduce({name: part[index] for name, part in columns.items()})
                for index in (draw.integers(len(self), size=(100, len(self))) for _ in range(-(-draws // 100)))
            ]
        )[:draws]
        finite = resampled[~np.isnan(resampled)]
        if not len(finite):
            return float("nan"), float("nan")
        low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def __repr__(self) -> str:
        arrow = {True: " ↑", False: " ↓", None: ""}[self.higher_is_better]
        missing = f", {self.undefined} undefined" if self.undefined else ""
        return f"MetricResult({self.metric}{arrow} {self.value:.4g} over {len(self)} rows{missing})"


METRICS: Registry[Metric] = Registry("metric")


def metric(
    name: str | None = None,
    *,
    higher_is_better: bool | None,
    aliases: tuple[str, ...] = (),
    **facts: Any,
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
        title = (inspect.getdoc(function) or "").split("\n")[0]
        signature = OptionFunction.of(function)
        registered = Metric(name or function.__name__, signature, higher_is_better, **{"title": title, **facts})
        return METRICS.add(registered.name, registered, function.__module__, aliases)

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
    from vitreous.metrics import load_all

    load_all()
    text = unspaced(spec)
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


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON-compatible values: tuples become lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def join_results(parts: Sequence[MetricResult]) -> MetricResult:
    """Concatenate the results of consecutive batches of one metric."""
    first = parts[0]
    if len(parts) == 1:
        return first
    curve = None if first.curve is None else torch.cat([part.curve for part in parts if part.curve is not None])
    named = {name: torch.cat([part.parts[name] for part in parts]) for name in first.parts}
    return replace(first, scores=torch.cat([part.scores for part in parts]), curve=curve, parts=named)
