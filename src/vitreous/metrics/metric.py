"""A metric: a function from an attribution, and what else it names, to one number per row, with the facts it is held to.

As pytest passes fixtures, `measure` passes what the signature names (`FIXTURES`); the other parameters are options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.core.errors import SpecError
from vitreous.core.messages import shown
from vitreous.core.registry import Registry
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import Option, choice, defaults, fit_options, options_of, written
from vitreous.methods.spec import take_options, take_word, unspaced

FIXTURES = {
    "probe": "the model and the pictures",
    "labels": "labels=…, the true class of every picture, −1 where nobody knows",
    "objects": "objects=…, masks [b H W] in the frame the model sees (1 the object, 0 not, −1 does not count)",
    "rivals": "rivals=…, masks [b H W] of the other class in the same frame",
    "boxes": "boxes=…, for every picture [k 4] as x0 y0 x1 y1 in the frame the model sees",
    "method": "an attribution that a method of the registry made, or method=…",
    "memo": "",  # a dict that lives as long as one attribution is measured: what several metrics share
}

Parts = Mapping[str, np.ndarray]  # named numbers per row, rows last
Figures = np.ndarray | np.floating  # one for every draw of rows, or the one of all rows
Reducer = Callable[[Parts], Figures]


def mean(parts: Parts) -> Figures:
    """The mean over rows on which the metric is defined; NaN where it is on none."""
    scores, known = parts["score"], ~np.isnan(parts["score"])
    with np.errstate(invalid="ignore"):
        return np.where(known, scores, 0).sum(-1) / known.sum(-1)


@lru_cache(maxsize=256)
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Behind the attribution; read once, since every row of a benchmark asks."""
    return tuple(inspect.signature(function).parameters.values())[1:]


@lru_cache(maxsize=256)
def taken_by(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(p.name for p in parameters_of(function) if p.name in FIXTURES)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a metric returns when it has more to say than one number per row."""

    scores: Float[Tensor, " r"]
    curve: Float[Tensor, "r s"] | None = None
    levels: Sequence[int | float] | None = None  # where the points of the curve lie
    parts: Mapping[str, Float[Tensor, " r"]] = field(default_factory=dict)  # for a reducer that pools
    protocol: Mapping[str, Any] = field(default_factory=dict)  # what was decided on the way, as plain values
    flipped: bool = False  # shown as its complement: the better direction turns round


class NoClassesError(SpecError):
    """A metric read the probability of a class, and the model has no classes; `Metric` adds which metric it was."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A named way to measure explanations. Facts are promises; `vitreous.testing.check_metric` tries to break them."""

    name: str
    function: Callable[..., Float[Tensor, " r"] | Measured]
    higher_is_better: bool | None  # None: it describes and does not judge
    bounds: tuple[int | float, int | float] | None = None
    affine_invariant: bool = False  # a·map + b, a > 0, scores as the map does
    reduce: Reducer = mean
    forwards: int | str = 0  # of the model, per row
    family: str = ""
    paper: str = ""
    title: str = ""
    formula: str = ""  # in one line, in the letters of docs/metrics.md
    trial: Mapping[str, Any] = field(default_factory=dict)  # options under which the law tries it
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        return parameters_of(self.function)

    @property
    def needs(self) -> tuple[str, ...]:
        """What it cannot do without."""
        return tuple(p.name for p in self._parameters if p.name in FIXTURES and p.default is p.empty)

    @property
    def takes(self) -> tuple[str, ...]:
        """What is passed to it, if it is there."""
        return taken_by(self.function)

    @property
    def known_options(self) -> dict[str, Any]:
        return defaults(self.typed_options)

    @property
    def typed_options(self) -> dict[str, Option]:
        known = {name: option for name, option in options_of(self.function).items() if name not in FIXTURES}
        return known | ({"preset": Option("preset", None)} if self.presets else {})

    @property
    def spec(self) -> str:
        return self.name + written(self.options)

    @property
    def settings(self) -> dict[str, Any]:
        """Every option with the value it has now: a preset's, then the user's."""
        given = dict(self.options)
        preset = given.pop("preset", None)
        own = {key: value for key, value in self.known_options.items() if key != "preset"}
        return {**own, **(self.presets[preset] if preset is not None else {}), **given}

    def with_options(self, /, **given: Any) -> Metric:
        given = fit_options(f"metric {self.name!r}", given, self.typed_options)
        given = {**self.options, **given}
        if given.get("preset") is not None:
            choice("preset", given["preset"], tuple(self.presets))
        return replace(self, options={key: value for key, value in given.items() if key != "preset" or value})

    def __call__(self, attribution: Attribution, **given: Any) -> MetricResult:
        """One attribution measured; `given` are fixtures."""
        for name in self.needs:
            if given.get(name) is None:
                raise SpecError(f"metric {self.name!r} needs {FIXTURES[name]}")
        passed = {name: given[name] for name in self.takes if given.get(name) is not None}
        try:
            found = self.function(attribution, **passed, **self.settings)
        except NoClassesError as problem:
            raise SpecError(
                f"metric {self.name!r} reads class probabilities, and {problem}; metrics of masks, of the map alone and of its "
                "robustness work ('ap', 'sparseness', 'max_sensitivity'), and wrap(model, outputs='binary') makes it two classes"
            ) from None
        found = found if isinstance(found, Measured) else Measured(found)
        better = self.higher_is_better
        return MetricResult(
            metric=self.spec,
            scores=found.scores,
            higher_is_better=better if better is None or not found.flipped else not better,
            curve=found.curve,
            levels=None if found.levels is None else tuple(float(level) for level in found.levels),
            parts=dict(found.parts),
            protocol={"metric": self.name, **plain(self.settings), **found.protocol},
            reduce=self.reduce,
        )


@dataclass(frozen=True, slots=True, eq=False)
class MetricResult:
    """One number per row, NaN where it is undefined, and the protocol that made it."""

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
        """Rows without a number."""
        return int(self.scores.isnan().sum())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """What the reducer reads: the scores and the named parts."""
        return {name: part.double().cpu().numpy() for name, part in {"score": self.scores, **self.parts}.items()}

    @property
    def value(self) -> float:
        """The figure of the whole set: the mean over rows, or pooled where the protocol pools."""
        return float(self.reduce(self.columns))

    def interval(self, level: float = 0.95, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Bootstrap interval of `value` over rows."""
        columns = self.columns
        draw = np.random.default_rng(seed)
        found = np.concatenate(
            [
                self.reduce({name: part[index] for name, part in columns.items()})
                for index in (draw.integers(len(self), size=(100, len(self))) for _ in range(-(-draws // 100)))
            ]
        )[:draws]
        known = found[~np.isnan(found)]
        if not len(known):
            return float("nan"), float("nan")
        low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
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
    """Register a function `(attribution, fixtures…, options…) -> [r]` or `-> Measured`; its docstring is its title."""

    def register(function: Callable[..., Any]) -> Metric:
        title = (inspect.getdoc(function) or "").split("\n")[0]
        made = Metric(
            name or function.__name__, function, higher_is_better=higher_is_better, **{"title": title, **facts}
        )
        return METRICS.add(made.name, made, function.__module__, aliases)

    return register


def resolve_metric(spec: str | Metric, /, **options: Any) -> Metric:
    """`"insertion(baseline='blur', steps=28)"` → the metric with these options."""
    if isinstance(spec, Metric):
        return spec.with_options(**options) if options else spec
    if not isinstance(spec, str):
        raise SpecError(f"a metric is a spec such as 'deletion_aopc', not {type(spec).__name__!r}")
    from vitreous.metrics import load_all

    load_all()
    text = unspaced(spec)
    name, rest = take_word(text)
    found = METRICS[name.replace("-", "_")]
    given, rest = take_options(rest, text)
    if rest:
        raise SpecError(
            f"{shown(text)} is not understood from {shown(rest)} on; a metric is written name(option=value, …)"
        )
    if twice := sorted(given.keys() & options.keys()):
        raise SpecError(f"option {twice[0]!r} of {shown(text)} is given twice")
    return found.with_options(**given, **options)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def join_results(parts: Sequence[MetricResult]) -> MetricResult:
    """Batches one after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    curve = None if first.curve is None else torch.cat([part.curve for part in parts if part.curve is not None])
    named = {name: torch.cat([part.parts[name] for part in parts]) for name in first.parts}
    return replace(first, scores=torch.cat([part.scores for part in parts]), curve=curve, parts=named)
