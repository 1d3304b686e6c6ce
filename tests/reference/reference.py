"""A slow reference implementation of every method, registered by spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tests.reference.scene import Scene, scene_of

CLASS_TOKEN, MEAN, MAP, DISTILLED = "vit-even", "vit-mean", "map-skips-prefix", "deit-distilled"
MODELS = (CLASS_TOKEN, MEAN, MAP, DISTILLED)  # of depth 4, 3, 3, 3; the second with registers and LayerScale
POSITIONS = ("beit", "beit-shared", "eva02", "rope-mixed", "dinov3", "sapiens2")  # relative and rotary ones

HELD: dict[str, dict[str, Any]] = {  # what a named linearisation holds fixed (cards D9, E4, T1, T2, T4, T5)
    "plain": {},
    "conservative": {"qk": 0, "norm": "frozen"},
    "decompx": {"qk": 0, "norm": "frozen", "activation": "ratio", "gate": "frozen"},
    "libra": {"qk": 0, "norm": "frozen", "activation": "ratio", "gate": "halved"},
    "attnlrp": {"qk": 0.25, "v": 0.5, "norm": "frozen", "activation": "ratio", "gate": "halved"},
    "tempered": {"qk": 0.25, "norm": "frozen", "activation": "ratio", "gate": "halved"},
    "gim": {"qk": 0.25, "v": 0.5, "norm": "frozen", "gate": "halved", "softmax": 2},
    "reslrp": {"qk": 0.25, "v": 0.5, "norm": "frozen", "activation": "ratio", "gate": "halved", "residual": 1},
}


@dataclass(frozen=True)
class Reference:
    """`function` of a scene gives token scores [N], patch scores [n] or a pixel map [H W]."""

    spec: str
    function: Callable[..., Tensor]
    models: tuple[str, ...]
    question: str
    held: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def slowly(self, family: str, image: int) -> Tensor:
        return self.function(scene_of(family, image, self.question, **self.held), **self.options)


REFERENCES: dict[str, Reference] = {}


def reference_for(
    spec: str,
    *,
    models: tuple[str, ...] = MODELS,
    question: str = "logit",
    held: str | dict[str, Any] = "plain",
    **options: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register the decorated function as the slow reference of `spec`; `options` are passed on to it."""

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        assert spec not in REFERENCES, f"{spec} has a reference implementation already"
        fixed = HELD[held] if isinstance(held, str) else held
        REFERENCES[spec] = Reference(spec, function, models, question, fixed, options)
        return function

    return register


def half(scene: Scene) -> int:
    """Where SkipPLUS starts: ceil(L / 2)."""
    return (scene.L + 1) // 2


twin_of = reference_for  # old name
