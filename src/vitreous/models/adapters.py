"""Layers and models that a fine-tuning library such as PEFT has put another module around."""

from __future__ import annotations

from typing import Any

from torch import nn


def base_layer(layer: Any) -> Any:
    """The layer inside a LoRA layer, which knows its sizes. Values are computed by the outer layer, never by this one."""
    while isinstance(inner := getattr(layer, "base_layer", None), nn.Module):
        layer = inner
    return layer


def adapted_model(model: Any) -> Any:
    """The model inside a PEFT model, its adapted layers in place; any other model as it is.

    A PEFT model holds a tuner (such as `LoraModel`), and that the model whose layers it has replaced. Prompt tuning has no
    tuner and changes what the model reads, so such a model is not unpacked.
    """
    tuner = getattr(model, "base_model", None) if from_peft(model) else model
    inner = getattr(tuner, "model", None) if tuner is not None and from_peft(tuner) else None
    return inner if isinstance(inner, nn.Module) else model


def from_peft(module: Any) -> bool:
    return any(ancestor.__module__.split(".")[0] == "peft" for ancestor in type(module).__mro__)
