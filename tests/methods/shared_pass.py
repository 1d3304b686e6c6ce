"""A probe whose passes over the layers are shared by the methods that ask for the same one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vitreous.capture.layer import Layer
from vitreous.capture.network_probe import LayerPass
from vitreous.capture.probe import Probe

KEPT = 4  # passes over a batch of images: each holds the states and gradients of all layers


@dataclass(eq=False)
class RunningPass:
    """A pass as far as a method has iterated over it."""

    probe: Probe
    down_to: int
    rest: Iterator[Layer]
    layers: list[Layer] = field(default_factory=list)

    def layer(self, place: int) -> Layer:
        while len(self.layers) <= place:
            self.layers.append(next(self.rest))
        return self.layers[place]


class SharedPassProbe(Probe):
    """Probe that runs every pass once: a pass with equal options, score function and targets gives the same layers.

    It is for comparisons of many methods; methods must not modify layers.
    """

    @cached_property
    def passes(self) -> dict[Any, RunningPass]:
        """Passes by what was asked for, shared by probes with another score function or without targets."""
        return {}

    def with_score_function(self, question: Any) -> SharedPassProbe:
        other = super().with_score_function(question)
        other.passes = self.passes
        return other

    def with_one_target(self) -> SharedPassProbe:
        other = super().with_one_target()
        other.passes = self.passes
        return other

    def _iterate_layers(self, layer_pass: LayerPass, down_to: int) -> Iterator[Layer]:
        passes, targets = self.passes, self._chosen_targets
        key = (layer_pass, self.question.name, None if targets is None else str(targets.tolist()))
        running = passes.pop(key, None)
        if running is None or running.down_to > down_to:
            running = RunningPass(self, down_to, super()._iterate_layers(layer_pass, down_to))
        passes[key] = running  # the last used at the end
        for oldest in list(passes)[:-KEPT]:
            del passes[oldest]
        for place in range(self.vit.depth - down_to):
            layer = running.layer(place)
            self.bias_shares = running.probe.bias_shares
            yield layer
