"""`BiasAccounting`: the part of the score that is not attributed to tokens."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.layer import Layer
from vitreous.models.tensor_types import TokenScores


class BiasAccounting:
    """Accumulates bias shares while a fold consumes the layers from the last to the first.

    FullGrad counts each bias once, at the token it is added to; with `repeat` it counts at every layer from which it is
    reached. Other complete methods only need the total, the part of the score that is not attributed to tokens.

    Parameters
    ----------
    probe
        The probe whose layers are read.
    to_tokens
        Whether bias shares are added to the token scores.
    repeat
        Whether a bias counts at every layer from which it is reached.
    """

    def __init__(self, probe: BlackBoxProbe, to_tokens: bool, repeat: bool) -> None:
        self.probe, self.to_tokens, self.repeat = probe, to_tokens, repeat
        self.total: TokenScores | None = None
        self.elsewhere: Tensor | None = None
        self.starts = 0  # number of signals read
        self.outside: Tensor = probe.images.new_zeros(())  # bias shares outside of them

    def watch(self, layers: Iterator[Layer]) -> Iterator[Layer]:
        """Yield the layers while adding up their bias shares."""
        for layer in layers:
            if self.total is None:
                assert self.probe.bias_shares is not None
                self.total, self.elsewhere = self.probe.bias_shares.head, self.probe.bias_shares.pooled
            self.total = self.total + layer.biases
            if layer.unplaced is not None:
                self.elsewhere = self.elsewhere + layer.unplaced
            yield layer

    def add(self, layer: Layer, signal: Tensor) -> Tensor:
        """The signal of a layer, plus the bias shares so far if they are repeated at tokens."""
        if self.total is None or self.elsewhere is None:
            return signal
        self.starts, self.outside = self.starts + 1, self.outside + self.elsewhere
        if self.to_tokens and self.repeat:
            return signal + self.total
        self.outside = self.outside + self.total.sum(-1)
        return signal

    def missing(self, score: Float[Tensor, " r"], tokens: TokenScores) -> Float[Tensor, " r"]:
        """Score minus token scores and bias shares, summed over all layers read; `tokens` before `close`."""
        return self.starts * score - tokens.sum(-1) - self.outside

    def close(self, tokens: TokenScores) -> TokenScores:
        """Final token scores; bias shares that are not added to tokens are added to `elsewhere`."""
        if self.total is None or self.elsewhere is None:
            return tokens
        if not self.to_tokens:
            self.elsewhere = self.elsewhere + self.total.sum(-1)
            return tokens
        return tokens if self.repeat else tokens + self.total
