"""The books of biases: what tokens do not hold of the score."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.capture.probe import Probe
from vitreous.models.shapes import TokenScores


class Ledger:
    """Keeps the books of biases while layers go by, last to first.

    FullGrad counts a bias at the token it is added to, once; `repeat` counts it at every layer from which it is reached.
    Other complete methods only need the total, to show what tokens do not hold.
    """

    def __init__(self, probe: Probe, to_tokens: bool, repeat: bool) -> None:
        self.probe, self.to_tokens, self.repeat = probe, to_tokens, repeat
        self.total: TokenScores | None = None
        self.elsewhere: Tensor | None = None
        self.starts, self.held = 0, torch.zeros(())  # layers whose signal was taken, and the biases that go with them

    def watch(self, layers: Iterator[Layer]) -> Iterator[Layer]:
        for layer in layers:
            if self.total is None:
                self.total = self.probe.bias_shares["head"]
                self.elsewhere = self.probe.bias_shares["pooled"]
            self.total = self.total + layer.biases
            yield layer

    def add(self, layer: Layer, signal: Tensor) -> Tensor:
        if self.total is None or self.elsewhere is None:
            return signal
        self.starts, self.held = self.starts + 1, self.held.to(self.elsewhere) + self.elsewhere
        if self.to_tokens and self.repeat:
            return signal + self.total
        self.held = self.held + self.total.sum(-1)
        return signal

    def missing(self, score: Float[Tensor, " r"], tokens: TokenScores) -> Float[Tensor, " r"]:
        """What the tokens of every start and its biases lack of the score, all starts together; `tokens` before `close`."""
        return self.starts * score - tokens.sum(-1) - self.held

    def close(self, tokens: TokenScores) -> TokenScores:
        if self.total is None or self.elsewhere is None:
            return tokens
        if not self.to_tokens:
            self.elsewhere = self.elsewhere + self.total.sum(-1)
            return tokens
        return tokens if self.repeat else tokens + self.total
