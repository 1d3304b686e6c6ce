"""Folds, which combine the signals of the layers into one map: first · last · at · plus · skipplus · rollout.

A fold consumes an iterator of layers from the last to the first. `reach` gives the first layer that it needs; earlier
layers are not computed. A token-to-token signal [r n n] is reduced to the row that the head reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from vitreous.capture.layer import Layer
from vitreous.core.deprecation import rename_warnings, renamed_attributes
from vitreous.core.errors import SpecError
from vitreous.core.registry import Registry
from vitreous.methods.layer_sums import Signal, read_token_scores, sum_of_layers, sum_of_restarts
from vitreous.methods.options import Number, OptionFunction, Options, fit_options
from vitreous.methods.rollout_steps import STEPS, Form, Scaling, overflow_factor
from vitreous.models.tensor_types import TokenScores

if TYPE_CHECKING:
    from vitreous.methods.method import Method

Mode = Literal["layers", "restart"]
Biases = Literal["once", "repeat"]


@renamed_attributes(down_to="first_layer")
@dataclass(frozen=True, slots=True)
class Fold:
    """A way to combine the signals of the layers into one map.

    Attributes
    ----------
    name
        Name in specs.
    signature
        The function with its options, read when the fold is registered.
    reach
        `(depth, **options)` → index of the first layer that is read.
    mixing
        Whether the fold accepts token-to-token signals [r n n] only.
    options
        Options that were given.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.skipplus.with_options(start=3).first_layer(12)  # first layer that is read in a model of 12 blocks
    3
    """

    name: str
    signature: OptionFunction
    reach: OptionFunction
    mixing: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Callable[..., TokenScores]:
        """`(layers, signal, **options)` → token scores [r n]. `layers` runs from the last to the first."""
        return self.signature.call

    @property
    def typed_options(self) -> Options:
        """Every option by name."""
        return self.signature.options

    def with_options(self, /, **options: Any) -> Fold:
        """The fold with these options set; a SpecError if one does not exist or does not fit."""
        options = fit_options(f"fold {self.name!r}", options, self.typed_options)
        return replace(self, options={**self.options, **options})

    def first_layer(self, depth: int) -> int:
        """Index of the first layer that is read in a model of this depth; a SpecError if there is no such layer."""
        reach_options = self.reach.pick(self.options)
        for key, value in reach_options.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise SpecError(f"fold {self.name!r} takes a whole number for {key!r}, not {value!r}")
        start = self.reach(depth, **reach_options)
        if not 0 <= start < depth:
            raise SpecError(f"fold {self.name!r} starts at layer {start}, but the model has layers 0 to {depth - 1}")
        return start

    def __call__(self, method: Method | str, /, **options: Any) -> Method:
        """The method with this fold: `skipplus(decompx)`, `skipplus("decompx", start=4)`.

        Parameters
        ----------
        method
            A method or its spec.
        **options
            Options of the fold.

        Raises
        ------
        SpecError
            If the method cannot be combined with this fold, or an option is invalid.
        """
        from vitreous.methods.spec import resolve

        return resolve(method).with_fold(self.with_options(**options))


FOLDS: Registry[Fold] = Registry("fold")


def fold(
    name: str | None = None, *, reach: Callable[..., int], mixing: bool = False
) -> Callable[[Callable[..., TokenScores]], Fold]:
    """Decorator that registers a function `(layers, signal, **options) -> [r n]` as a fold.

    Parameters
    ----------
    name
        Name in specs; by default the function's name.
    reach
        `(depth, **options)` → index of the first layer that is read.
    mixing
        Whether the fold accepts token-to-token signals [r n n] only.

    Returns
    -------
    Callable
        Decorator that returns the `Fold`.

    Examples
    --------
    >>> import vitreous
    >>> from vitreous.methods.layer_sums import read_token_scores
    >>> @vitreous.fold("strongest", reach=lambda depth: 0)
    ... def strongest(layers, signal):
    ...     '''Largest score of every token over all layers.'''
    ...     scores = [read_token_scores(layer, signal(layer)) for layer in layers]
    ...     return max(scores, key=lambda score: score.max())
    >>> vitreous.resolve("gradcam+strongest").fold.name
    'strongest'
    """

    def register(function: Callable[..., TokenScores]) -> Fold:
        registered = Fold(name or function.__name__, OptionFunction.of(function), OptionFunction.of(reach), mixing)
        return FOLDS.add(registered.name, registered, function.__module__)

    return register


def from_the_first(depth: int, start: int | None = None) -> int:
    return counted_from(start or 0, depth)


def from_the_middle(depth: int, start: int | None = None) -> int:
    return -(-depth // 2) if start is None else counted_from(start, depth)


def counted_from(start: int, depth: int) -> int:
    """Layer index from the first layer; a negative `start` counts from the last."""
    return start if start >= 0 else depth + start


@fold(reach=lambda depth: 0)
def first(layers: Iterator[Layer], signal: Signal) -> TokenScores:
    """The first layer alone.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("gradcam+first").fold.first_layer(12)
    0
    """
    layer = deque(layers, maxlen=1)[0]
    return read_token_scores(layer, signal(layer))


@fold(reach=lambda depth: depth - 1)
def last(layers: Iterator[Layer], signal: Signal) -> TokenScores:
    """The last layer alone.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("ixg+last").fold.first_layer(12)
    11
    """
    layer = next(layers)
    return read_token_scores(layer, signal(layer))


@fold(reach=lambda depth, layer=0: layer if layer >= 0 else depth + layer)
def at(layers: Iterator[Layer], signal: Signal, layer: int = 0) -> TokenScores:
    """One layer alone, counted from the first (or, when negative, from the last).

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("gradcam+at(layer=-2)").fold.first_layer(12)
    10
    """
    return first.function(layers, signal)


@fold(reach=lambda depth: 0)
def plus(
    layers: Iterator[Layer],
    signal: Signal,
    mode: Mode | None = None,
    biases: Biases | None = None,
    form: Form = "add",
    gain: Number = 1.0,
    lengths: bool = False,
    normalise: Scaling = "none",
) -> TokenScores:
    """PLUS: the sum over all layers.

    Parameters
    ----------
    mode
        "layers" adds each layer's map, "restart" the roll-out from each layer on; None is "layers". A restart uses the settings of the method's own roll-out where it has one.
    biases
        For methods that add bias shares to tokens: count each bias "once", or at every layer from which it is reached
        ("repeat"). The default is "repeat" for restarts, else "once".
    form, gain, lengths
        As in `rollout`, for restarts.
    normalise
        Rescaling of every layer's map before the sum, by the scores of its patches: "sum" divides by the sum of
        absolute scores, "max" by the largest absolute score, "minmax" maps the range to [0, 1], "tanh" is LayerCAM's
        tanh(2 s / max |s|). Not for methods that add bias shares to tokens.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("decompx+plus").fold.first_layer(12)
    0
    """
    if mode == "restart":
        return sum_of_restarts(layers, signal, form, gain, lengths, normalise)
    return sum_of_layers(layers, signal, normalise)


@fold(reach=from_the_middle)
def skipplus(
    layers: Iterator[Layer],
    signal: Signal,
    mode: Mode | None = None,
    biases: Biases | None = None,
    start: int | None = None,
    form: Form = "add",
    gain: Number = 1.0,
    lengths: bool = False,
    normalise: Scaling = "none",
) -> TokenScores:
    """SkipPLUS: PLUS from the middle layer on; the layers before it are never visited.

    Parameters
    ----------
    start
        First layer of the sum; negative counts from the last layer, None is ⌈depth / 2⌉.
    mode, biases, form, gain, lengths, normalise
        As in `plus`.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("decompx+skipplus").fold.first_layer(12)
    6
    """
    return plus.function(layers, signal, mode, biases, form, gain, lengths, normalise)


@fold(reach=from_the_first, mixing=True)
def rollout(
    layers: Iterator[Layer],
    signal: Signal,
    form: Form = "half",
    gain: Number = 1.0,
    lengths: bool = False,
    start: int | None = 0,
) -> TokenScores:
    """Pull what the head reads back through every layer's mixing T; `form` says how the skip connection joins.

    Parameters
    ----------
    form
        Matrix of a layer: "add" I + T, "half" ½(I + T), "half-normalised" ½(I + T̄) with each row of T divided by its
        sum (equation 2 of SkipPLUS; a row of zeros stays 0), "none" T, "normalised" I + T with each row divided by its
        sum, "vit-explain" ½(I + T) with column j divided by the sum of row j.
    gain
        Factor of T.
    lengths
        Whether to multiply scores by the norms of the tokens that enter the first layer of the roll-out.
    start
        First layer of the roll-out; negative counts from the last layer.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("rawattention+rollout(start=2)").fold.first_layer(12)
    2
    """
    row = first_layer = None  # multiplying from the last layer needs a row [r 1 n] instead of a matrix [r n n]
    for layer in layers:
        mixing = signal(layer) * gain if gain != 1 else signal(layer)
        row = layer.readout[:, None].to(mixing) if row is None else row
        row = STEPS[form](row, mixing)
        row, first_layer = row * overflow_factor(row), layer
    assert row is not None
    assert first_layer is not None
    return row[:, 0] * first_layer.hidden.norm(dim=-1) if lengths else row[:, 0]


__getattr__ = rename_warnings(__name__, {"read": "read_token_scores"})
