"""Sums of the signals of layers, which the folds PLUS and SkipPLUS compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.methods.options import Number
from vitreous.methods.rollout_steps import STEPS, Form, Scaling, overflow_factor, rescale_scores
from vitreous.models.tensor_types import TokenScores

Signal = Callable[[Layer], Tensor]  # [r n] or [r n n]


def read_token_scores(layer: Layer, signal: Tensor) -> TokenScores:
    """Token scores [r n] unchanged; a token-to-token signal [r n n] is reduced to the row that the head reads."""
    if signal.ndim == 2:
        return signal
    row = layer.readout.to(signal)
    unread = (row == 0)[:, :, None]  # rows that are not read may hold NaN, and 0 · NaN is NaN
    return (row[:, None] @ signal.masked_fill(unread, 0))[:, 0]


def sum_of_layers(layers: Iterator[Layer], signal: Signal, normalise: Scaling = "none") -> TokenScores:
    """Sum of the layers' signals. The read-out is linear, so it can be applied per layer before summing."""
    total: Tensor | None = None
    for layer in layers:
        part = read_token_scores(layer, signal(layer))
        part = part if normalise == "none" else rescale_scores(part, layer.layout.prefix, normalise)
        total = part if total is None else total + part
    assert total is not None
    return total


def sum_of_restarts(
    layers: Iterator[Layer], signal: Signal, form: Form, gain: Number, lengths: bool, normalise: Scaling = "none"
) -> TokenScores:
    """Sum over layers of the roll-out from the last layer back to that layer; token scores [r n] are only summed."""
    row: Tensor | None = None
    total: Tensor | float = 0.0
    for layer in layers:
        part = signal(layer)
        if part.ndim == 2:  # token scores of the network from this layer on: no roll-out needed
            total = total + (part if normalise == "none" else rescale_scores(part, layer.layout.prefix, normalise))
            continue
        row = layer.readout[:, None].to(part) if row is None else row
        row = STEPS[form](row, part * gain if gain != 1 else part)
        scores = row[:, 0] * layer.hidden.norm(dim=-1) if lengths else row[:, 0]
        scale = overflow_factor(row)
        row = row * scale
        if normalise == "none":
            total = (total + scores) * scale[:, 0]
        else:  # each map has a scale of its own, which does not change with the row's
            total = total + rescale_scores(scores, layer.layout.prefix, normalise)
    assert isinstance(total, Tensor)
    return total
