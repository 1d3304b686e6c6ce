"""Probe of an arbitrary classifier, which is only evaluated on images."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NoReturn

import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.capture.forward import Reading
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.probe import Probe
from vitreous.capture.question import Question
from vitreous.core.errors import ModelError
from vitreous.models.shapes import Images, Keep, Logits
from vitreous.models.vit import ViT


def probe_of(
    vit: ViT,
    images: Images,
    targets: Int[Tensor, "b k"] | Int[Tensor, " b"] | None = None,
    question: str | Question | Any = "logit",
    hold: bool | None = None,
) -> Probe:
    """Return a `BlackBox` probe if the model is treated as a black box, else a `Probe`; parameters as for `Probe`."""
    return (BlackBox if is_black_box(vit) else Probe)(vit, images, targets, question, hold)


def is_black_box(vit: ViT) -> bool:
    return bool(vit.black_box)


class BlackBox(Probe):
    """Probe of a model that is only evaluated on images.

    Its layout has one patch per pixel. Access to tokens, states or layers raises a `ModelError`.
    """

    black_box = True

    @property
    def reading(self) -> Reading:
        if self._seen.reading is None:
            with torch.no_grad():
                said = self.say(self.images)
            self._seen.reading = Reading(said, said.new_zeros(len(said), 0))
        return self._seen.reading

    def say(self, images: Images) -> Logits:
        return self.vit.forward(images)

    @property
    def pictures_that_fit(self) -> int:
        height, width = self.layout.size
        return rows_that_fit(height * width, 3, self.images.element_size(), self.images.device)

    def _refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self.vit.name!r} is treated as a black box: it has no {what}")

    @cached_property
    def tokens(self) -> NoReturn:
        self._refuse("tokens")

    @property
    def states(self) -> NoReturn:
        self._refuse("states")

    def layers(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("layers")

    def _masked(self, keep: Keep, read: Any = None) -> NoReturn:
        self._refuse("patches that could leave")
