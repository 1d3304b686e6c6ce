"""Structure of modules: those inside of PEFT, torch.compile and data-parallel training, and a fingerprint to reuse findings."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitreous.models.eval_mode import OwnHook

LIBRARIES = {"torch", "timm", "torchvision", "transformers", "peft", "open_clip", "vitreous"}


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
    """Submodules, their parameters, hooks and replaced forwards: while these are equal, the module computes in the same way.

    Values of parameters may change in place.
    """
    return tuple(
        (
            id(part),
            *map(id, part._parameters.values()),
            *hooks_of(part),
            id(vars(part)["forward"]) if "forward" in vars(part) else None,
        )
        for part in module.modules()
    )


def hooks_of(module: nn.Module) -> list[int]:
    """Numbers of the hooks of a module, without those that another thread uses to observe it (`eval_mode.hooking`)."""
    hooks = (*module._forward_hooks.items(), *module._forward_pre_hooks.items())
    return [number for number, hook in hooks if not isinstance(hook, OwnHook)]


def is_library_code(module: nn.Module) -> bool:
    """Whether all submodules are classes of known libraries as they are, without hooks and replaced forwards.

    Their forward does not depend on values of the image, so it need not be compared with its parts on every image.
    """
    return all(
        type(part).__module__.partition(".")[0] in LIBRARIES and "forward" not in vars(part) and not hooks_of(part)
        for part in module.modules()
    )
