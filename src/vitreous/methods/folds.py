"""The folds: first · last · at · plus · skipplus · rollout."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal

from vitreous.capture.layer import Layer
from vitreous.methods.fold import fold
from vitreous.methods.layer_sums import Signal, read_token_scores, sum_of_layers, sum_of_restarts
from vitreous.methods.options import Number
from vitreous.methods.rollout_steps import STEPS, Form, Scaling, overflow_factor
from vitreous.models.tensor_types import TokenScores

Mode = Literal["layers", "restart"]
Biases = Literal["once", "repeat"]


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

    Parameters
    ----------
    layers
        Layers from the last to the first.
    signal
        Function of a layer.

    Returns
    -------
    Tensor
        Token scores [r n].

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

    Parameters
    ----------
    layers, signal
        As for `first`.

    Returns
    -------
    Tensor
        Token scores [r n].

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("ixg+last").fold.first_layer(12)
    11
    """
    layer = next(layers)
    return read_token_scores(layer, signal(layer))


@fold(reach=lambda depth, layer=0: counted_from(layer, depth))
def at(layers: Iterator[Layer], signal: Signal, layer: int = 0) -> TokenScores:
    """One layer alone, counted from the first (or, when negative, from the last).

    Parameters
    ----------
    layers, signal
        As for `first`.
    layer
        Index of the layer.

    Returns
    -------
    Tensor
        Token scores [r n].

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
    layers, signal
        As for `first`.

    Returns
    -------
    Tensor
        Token scores [r n].

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
    layers, signal
        As for `first`.

    Returns
    -------
    Tensor
        Token scores [r n].

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
    layers, signal
        As for `first`.

    Returns
    -------
    Tensor
        Token scores [r n].

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
