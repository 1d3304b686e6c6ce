"""The folds (first · last · at · plus · skipplus · rollout), and the steps that they take from layer to layer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.methods.fold import fold
from vitreous.methods.options import Number
from vitreous.models.tensor_types import TokenMatrix, TokenScores

Mode = Literal["layers", "restart"]
Biases = Literal["once", "repeat"]
Form = Literal["add", "half", "half-normalised", "none", "normalised", "vit-explain"]  # keys of STEPS
Scaling = Literal["none", "sum", "max", "minmax", "tanh"]
Signal = Callable[[Layer], Tensor]  # [r n] or [r n n]
Row = Float[Tensor, "r 1 n"]


# ── scores of a layer ────────────────────────────────────────────────────────────────────────────


def read_token_scores(layer: Layer, signal: Tensor) -> TokenScores:
    """Token scores [r n] unchanged; a token-to-token signal [r n n] is reduced to the row that the head reads."""
    if signal.ndim == 2:
        return signal
    row = layer.readout.to(signal)
    unread = (row == 0)[:, :, None]  # rows that are not read may hold NaN, and 0 · NaN is NaN
    return (row[:, None] @ signal.masked_fill(unread, 0))[:, 0]


def normalised_step(row: Row, mixing: TokenMatrix) -> Row:
    """row · (T + I), each row of T + I divided by its sum."""
    return (row / (mixing.sum(-1)[:, None] + 1)) @ mixing + row / (mixing.sum(-1)[:, None] + 1)


def half_normalised_step(row: Row, mixing: TokenMatrix) -> Row:
    """row · ½(T̄ + I), each row of T̄ being the row of T divided by its sum."""
    sums = mixing.sum(-1)[:, None]
    return (row + torch.where(sums == 0, 0, row / sums) @ mixing) / 2


def vit_explain_step(row: Row, mixing: TokenMatrix) -> Row:
    """row · ½(T + I) with column j divided by the sum of row j, as published."""
    return (row + row @ mixing) / (mixing.sum(-1)[:, None] + 1)


STEPS: dict[str, Callable[[Row, TokenMatrix], Row]] = {
    "add": lambda row, mixing: row + row @ mixing,
    "half": lambda row, mixing: (row + row @ mixing) / 2,
    "half-normalised": half_normalised_step,
    "none": lambda row, mixing: row @ mixing,
    "normalised": normalised_step,
    "vit-explain": vit_explain_step,
}


def rescale_scores(tokens: TokenScores, prefix: int, normalise: Scaling) -> TokenScores:
    """Scores of a layer, rescaled by the scores of its patches (all but `prefix` tokens); a map of zeros stays 0."""
    patches = tokens[:, prefix:]
    low, size = 0, patches.abs().amax(-1, keepdim=True)
    if normalise == "sum":
        size = patches.abs().sum(-1, keepdim=True)
    elif normalise == "minmax":
        low = patches.amin(-1, keepdim=True)
        size = patches.amax(-1, keepdim=True) - low
    scores = (tokens - low) / torch.where(size > 0, size, 1)
    return (2 * scores).tanh() if normalise == "tanh" else scores


@dataclass(slots=True, eq=False)
class LayerScores:
    """Scores of one layer after the other, from the last to the first, of its signal or of a roll-out back to it.

    Attributes
    ----------
    rolls
        Whether token-to-token signals are rolled out: what the head reads is pulled back through the layers so far.
        Otherwise every layer is read on its own.
    form, gain, lengths
        As in `rollout`.
    normalise
        As in `plus`.
    row
        What the head reads, at the current layer: a row [r 1 n], where a product from the first layer on would need a
        matrix [r n n].
    total
        Sum of the scores of all layers so far.
    """

    rolls: bool
    form: Form
    gain: Number
    lengths: bool
    normalise: Scaling = "none"
    row: Row | None = None
    total: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, layer: Layer, signal: Tensor) -> TokenScores:
        """Scores of the next layer's input tokens, given its signal; they are also added to `total`."""
        if self.rolls and signal.ndim == 3:
            scores, factor = self._pull_back(layer, signal)
        else:  # token scores of the network from this layer on need no roll-out
            scores, factor = read_token_scores(layer, signal), 1.0
        if self.normalise != "none":  # a rescaled map has a scale of its own, which does not change with the row's
            scores, factor = rescale_scores(scores, layer.layout.prefix, self.normalise), 1.0
        self.total = self.total * factor + scores
        return scores

    def _pull_back(self, layer: Layer, mixing: TokenMatrix) -> tuple[TokenScores, Float[Tensor, "r 1"]]:
        """Scores of a roll-out back to this layer, and the factor that puts scores of later layers into their units."""
        mixing = mixing * self.gain if self.gain != 1 else mixing
        row = layer.readout[:, None].to(mixing) if self.row is None else self.row
        row = STEPS[self.form](row, mixing)
        # products of vector norms over many layers can overflow, and the scale of the map carries no information: a
        # power of two keeps a growing row below overflow
        half = math.log2(torch.finfo(row.dtype).max) // 2
        large = row.abs().amax(-1, keepdim=True) > 2.0**half
        factor = torch.where(large, 2.0**-half, 1.0).to(row.dtype)
        self.row = row * factor
        scores = self.row[:, 0] * layer.hidden.norm(dim=-1) if self.lengths else self.row[:, 0]
        return scores, factor[:, 0]


def count_from(start: int, depth: int) -> int:
    """Layer index from the first layer; a negative `start` counts from the last."""
    return start if start >= 0 else depth + start


# ── folds ────────────────────────────────────────────────────────────────────────────────────────


@fold(reach=lambda depth: 0, single_layer=True)
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


@fold(reach=lambda depth: depth - 1, single_layer=True)
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


@fold(reach=lambda depth, layer=0: count_from(layer, depth), single_layer=True)
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


@fold(reach=lambda depth: 0, accumulates="sum")
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
    scores = LayerScores(mode == "restart", form, gain, lengths, normalise)
    for layer in layers:
        scores.add(layer, signal(layer))
    return scores.total


@fold(reach=lambda depth, start=None: -(-depth // 2) if start is None else count_from(start, depth), accumulates="sum")
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


@fold(reach=lambda depth, start=0: count_from(start or 0, depth), mixing=True, accumulates="product")
def rollout(
    layers: Iterator[Layer],
    signal: Signal,
    form: Form = "half",
    gain: Number = 1.0,
    lengths: bool = False,
    start: int | None = 0,
) -> TokenScores:
    """Roll-out: the product of the layers' token-to-token matrices T, in the row that the head reads.

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
    scores = LayerScores(True, form, gain, lengths)
    return deque((scores.add(layer, signal(layer)) for layer in layers), maxlen=1)[0]
