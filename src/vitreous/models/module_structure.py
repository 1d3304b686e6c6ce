"""Structure of modules: those inside of PEFT, torch.compile and data-parallel training, and a fingerprint to reuse findings."""

from __future__ import annotations

from typing import Any

from torch import nn


def base_layer(layer: Any) -> Any:
    """Innermost layer of a LoRA layer. Use it to read sizes only; call the outer layer to compute values."""
    while isinstance(inner := getattr(layer, "base_layer", None), nn.Module):
        layer = inner
    return layer


def unwrap(model: Any) -> Any:
    """Return the model inside torch.compile, data-parallel training and PEFT; any other model is returned unchanged."""
    while (inner := unwrap_peft(unwrap_parallel(model))) is not model:
        model = inner
    return model


def unwrap_parallel(model: Any) -> Any:
    """Return the model inside a compiled or data-parallel one.

    Only the types of torch are unwrapped: a module of the user with an attribute `module` may compute more than that.
    """
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) and type(model).__name__ == "OptimizedModule" else model


def unwrap_peft(model: Any) -> Any:
    """Return the model inside a PEFT model, including its adapted layers; any other model is returned unchanged.

    A PEFT model contains a tuner (such as `LoraModel`), which contains the model whose layers it has replaced. Prompt
    tuning has no tuner and changes the input of the model, so such a model is returned unchanged.
    """
    tuner = getattr(model, "base_model", None) if is_from_peft(model) else model
    inner = getattr(tuner, "model", None) if tuner is not None and is_from_peft(tuner) else None
    return inner if isinstance(inner, nn.Module) else model


def is_from_peft(module: Any) -> bool:
    """Whether the module's class, or one of its base classes, is defined in peft."""
    return any(ancestor.__module__.split(".")[0] == "peft" for ancestor in type(module).__mro__)


def structure_of(module: nn.Module) -> tuple[Any, ...]:
    """Submodules, their hooks and replaced forwards: as long as these are equal, the module computes in the same way."""
    return tuple(
        (id(part), len(part._forward_hooks), len(part._forward_pre_hooks), "forward" in vars(part))
        for part in module.modules()
    )
