"""Registries of model adapters and of model sources, and their use: to build a module by name, and to describe it.

An adapter describes modules of one library as a `ViT`. A source builds modules by name: in "timm:vit_tiny_patch16_224",
the source is "timm". Plugins register theirs by the entry point `vitreous.models`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import nn

from vitreous.core.errors import ModelError, NotAdaptedError, unexpected_errors_as
from vitreous.core.plugins import find_plugin
from vitreous.core.registry import Registry
from vitreous.models.image_input import Preprocess
from vitreous.models.model import UNKNOWN, AnyModel, BlackBox, ModelOrigin
from vitreous.models.module_structure import unwrap
from vitreous.models.vit import ViT

GROUP = "vitreous.models"


@dataclass(frozen=True, slots=True)
class NamedModule:
    """A module that was built by name, with the preprocessing, class names and origin that its library states.

    Parameters
    ----------
    module
        The module.
    preprocess
        Conversion of images to tensors; None keeps that of the adapter.
    classes
        Class names in the order of the outputs; None keeps those of the adapter.
    origin
        Where the module and its weights come from, for provenance records.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> vitreous.NamedModule(torch.nn.Linear(2, 2), classes=("cat", "dog")).classes
    ('cat', 'dog')
    """

    module: nn.Module
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    origin: ModelOrigin = UNKNOWN


class Family(NamedTuple):
    """An entry of `vitreous.list_models`: a kind of model, a name to load one by, and what is special about it."""

    family: str
    example: str
    notes: str


# Function of an adapter: module and name to a `ViT`; raises `ModelError` if a part is not supported.
Describe: TypeAlias = Callable[[Any, str], ViT]
# Function of a source: builds a module by name; its keywords are `checkpoint`, `pretrained` and the builder's arguments.
Create: TypeAlias = Callable[..., nn.Module | NamedModule]


@dataclass(frozen=True, slots=True)
class Adapter:
    """How modules of one library are described as a `ViT`; see `adapter`."""

    name: str
    matches: Callable[[nn.Module], bool]
    describe: Describe


@dataclass(frozen=True, slots=True)
class Source:
    """How modules are built by name; see `source`."""

    name: str
    create: Create
    families: tuple[Family, ...] = ()
    unprefixed: tuple[str, ...] = ()


ADAPTERS: Registry[Adapter] = Registry("model adapter", "vitreous.models", GROUP)
SOURCES: Registry[Source] = Registry("model source", "vitreous.models", GROUP)

D = TypeVar("D", bound=Describe)
C = TypeVar("C", bound=Create)


def adapter(name: str, *, matches: Callable[[nn.Module], bool]) -> Callable[[D], D]:
    """Decorator that registers a model adapter.

    The decorated function takes a module and its name, and returns a `ViT` without modifying the module. It may raise
    `ModelError` if a part of the module is not supported. `vitreous.testing.check_model` tests the result.

    Parameters
    ----------
    name
        Name of the adapter, usually that of the library.
    matches
        Whether a module is one for this adapter. Adapters of plugins are tried before those of this package.

    Returns
    -------
    Callable
        Decorator that returns the function.

    Raises
    ------
    SpecError
        If the name is already registered.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> from vitreous.models.timm import from_timm
    >>> class MyViT(timm.models.VisionTransformer):
    ...     pass
    >>> @vitreous.adapter("my-models", matches=lambda module: isinstance(module, MyViT))
    ... def describe(model, name):
    ...     return from_timm(model, f"mine: {name}")
    >>> vitreous.wrap(MyViT(depth=2)).name
    'mine: MyViT'
    """

    def add(function: D) -> D:
        ADAPTERS.add(name, Adapter(name, matches, function), f"{function.__module__}.{function.__qualname__}")
        return function

    return add


def source(
    name: str, *, families: Sequence[tuple[str, str, str]] = (), unprefixed: Sequence[str] = ()
) -> Callable[[C], C]:
    """Decorator that registers a source of models, so that `vitreous.load("name:…")` works.

    The decorated function takes the text after the colon, `checkpoint` (a local file or None), `pretrained` and the
    arguments of the library's builder. It returns the module, or a `NamedModule` that also has preprocessing and class
    names.

    Parameters
    ----------
    name
        Prefix of the model names.
    families
        Entries of `vitreous.list_models`: (family, a full name to load it by, notes).
    unprefixed
        Models of this source that need no prefix.

    Returns
    -------
    Callable
        Decorator that returns the function.

    Raises
    ------
    SpecError
        If the name is already registered.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> @vitreous.source("shallow")
    ... def create(name, *, checkpoint=None, pretrained=True, **arguments):
    ...     return timm.create_model(name, pretrained=False, depth=2, **arguments)
    >>> vitreous.load("shallow:vit_tiny_patch16_224", num_classes=5)
    ViT('shallow:vit_tiny_patch16_224', 2 blocks, 224x224, torch.float32, cpu)
    """

    def add(function: C) -> C:
        new = Source(name, function, tuple(Family(*entry) for entry in families), tuple(unprefixed))
        SOURCES.add(name, new, f"{function.__module__}.{function.__qualname__}")
        return function

    return add


def find_adapter(module: nn.Module) -> Adapter | None:
    """Return the first adapter that matches `module`, or None; plugins come before the adapters of this package."""
    return next((ADAPTERS[name] for name in sorted(ADAPTERS, key=is_built_in) if ADAPTERS[name].matches(module)), None)


def is_built_in(name: str) -> bool:
    return ADAPTERS.owner(name).startswith("vitreous.")


def find_source(name: str) -> tuple[Source, str]:
    """Split a model's name into its source and its name there.

    Raises
    ------
    ModelError
        If the text before the colon is no source.
    """
    SOURCES.load()
    prefix, colon, rest = name.partition(":")
    if not colon:
        owner = next((source for source in SOURCES if name in SOURCES[source].unprefixed), "timm")
        return SOURCES[owner], name
    if SOURCES.find(prefix) is None:
        if (module := find_plugin(prefix)) is not None:
            return Source(prefix, partial(build_with, module)), rest
        spellings = [repr(f"{source}:…") for source in sorted(SOURCES) if not SOURCES[source].unprefixed]
        bare = [repr(SOURCES[source].unprefixed[0]) for source in sorted(SOURCES) if SOURCES[source].unprefixed]
        *most, last = bare + spellings
        raise ModelError(
            f"no source {prefix!r}; write {', '.join(most)} or {last}; a module of your own is imported by --plugin {prefix}"
        )
    return SOURCES[prefix], rest


def build_with(
    module: ModuleType,
    name: str,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    **arguments: Any,
) -> NamedModule:
    """Build a model by what a module of the user calls `name`: an `nn.Module`, or a function or class that returns one.

    A function that has a parameter `checkpoint` or `pretrained` gets it; otherwise the checkpoint is loaded into the
    module that it returns.
    """
    from vitreous.models.checkpoint import load_into, read_checkpoint

    where = f"{name!r} of {module.__name__!r}"
    built: Any = getattr(module, name, None)
    if built is None:
        near = get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ModelError(f"the module {module.__name__!r} has no {name!r}{hint}")
    takes: set[str] = set()
    if not isinstance(built, nn.Module | BlackBox):
        if not callable(built):
            raise ModelError(f"{where} is {type(built).__name__!r}; a function, a class or an nn.Module would work")
        takes = {"checkpoint", "pretrained"} & set(inspect.signature(built).parameters)
        loading = {"checkpoint": checkpoint, "pretrained": pretrained}
        with unexpected_errors_as(lambda why: ModelError(f"{where} could not build a model ({why})")):
            built = built(**{key: loading[key] for key in takes}, **arguments)
    elif arguments:
        raise ModelError(f"{where} is a module that is built already, so it takes no {', '.join(arguments)}")
    if isinstance(built, BlackBox):
        built = NamedModule(built.module, built.preprocess, built.classes)
    named: Any = built if isinstance(built, NamedModule) else NamedModule(built)
    if not isinstance(named.module, nn.Module):
        raise ModelError(f"{where} returned {type(built).__name__!r}, not an nn.Module")
    if checkpoint is not None and "checkpoint" not in takes:
        load_into(named.module, read_checkpoint(checkpoint), name)
    return named


def library_of(*names: str) -> Callable[[nn.Module], bool]:
    """Return a test whether the class of a module, or one of its base classes, is defined in one of these packages."""
    return lambda module: any(base.__module__.split(".")[0] in names for base in type(module).__mro__)


# ── use ──────────────────────────────────────────────────────────────────────────────────────────


def build_named(
    name: str,
    *,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    **kwargs: Any,
) -> NamedModule:
    """Build a module by name, in eval mode and with `requires_grad` of its parameters set to False.

    Parameters
    ----------
    name
        "scenes", "scenes-biased", "scenes-swin", "timm:…", "hf:…", "torchvision:…" or the name of another registered source; a name
        without a prefix is one of timm. "module:function" of a plugin that the command line has imported.
    checkpoint
        A local safetensors or torch file with the weights.
    pretrained
        Whether to fetch weights if there is no checkpoint; False gives random weights.
    device
        Where to put the model; None leaves it where it was built.
    **kwargs
        Arguments of the library's builder.

    Raises
    ------
    ModelError
        If the name, checkpoint or device is invalid, the library has no such model, or the weights cannot be fetched or
        do not fit.
    """
    check_device(device)
    if not isinstance(name, str) or not name.strip():
        raise ModelError(f"a model name is text such as 'timm:vit_base_patch16_224', not {name!r}")
    origin, rest = find_source(name)
    if not rest.strip():
        examples = [family.example.removeprefix(f"{origin.name}:") for family in origin.families[:1]]
        hint = "".join(f", as in '{origin.name}:{example}'" for example in examples)
        raise ModelError(f"{name!r} names no model; write it behind the colon{hint}")
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise ModelError(f"checkpoint is the path of a local .safetensors or .pth file, not {checkpoint!r}")
    built = origin.create(rest, checkpoint=checkpoint, pretrained=pretrained, **kwargs)
    named = built if isinstance(built, NamedModule) else NamedModule(built)
    if not isinstance(named.module, nn.Module):
        raise ModelError(f"the source {origin.name!r} returned {type(built).__name__!r} for {rest!r}, not an nn.Module")
    named.module.eval().requires_grad_(False)
    if device is not None:
        try:
            named.module.to(device)
        except (RuntimeError, AssertionError, TypeError) as problem:
            raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    return named


def model_label(name: str) -> str:
    """The full name of a model: its source and its name there."""
    origin, rest = find_source(name)
    return rest if rest in origin.unprefixed else f"{origin.name}:{rest}"


def with_origin(model: AnyModel, named: NamedModule, checkpoint: str | Path | None) -> AnyModel:
    """The model with the preprocessing, class names and origin of the source that built it."""
    return replace(
        model,
        preprocess=named.preprocess or model.preprocess,
        classes=named.classes or model.classes,
        origin=replace(model.origin.updated(named.origin), checkpoint=str(checkpoint) if checkpoint else None),
    )


def check_device(device: Any) -> None:
    if device is None or device == "":  # torch refuses an empty name
        refuse_meta_default()
        return
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise ModelError(f"device is a name such as 'cpu' or 'cuda:0', not {device!r}")
    try:
        kind = torch.device(device).type
    except (RuntimeError, ValueError) as problem:
        raise ModelError(f"device {str(device)!r} is not available here ({str(problem).splitlines()[0]})") from None
    if kind == "meta":
        raise ModelError("a model on the device 'meta' has no values; 'cpu' would work")


def refuse_meta_default() -> None:
    """Raise `ModelError` if new tensors would be created without values."""
    if torch.get_default_device().type == "meta":
        raise ModelError(
            "torch's default device is 'meta', on which tensors have no values; torch.set_default_device('cpu') would work"
        )


def adapt(model: nn.Module, name: str | None = None) -> ViT:
    """Describe an existing module as a `ViT`. The module is not modified.

    Parameters
    ----------
    model
        A module for which an adapter is registered: a timm, Hugging Face or torchvision transformer, or one of a
        plugin. Wrappers of `torch.compile`, data-parallel training and PEFT are removed.
    name
        Name of the model; its class name by default.

    Raises
    ------
    NotAdaptedError
        If there is no adapter for the module, or its adapter does not support it.
    """
    model = unwrap(model)
    adapter = find_adapter(model)
    if adapter is None:
        raise NotAdaptedError(
            f"{type(model).__name__!r} is not a timm, Hugging Face or torchvision transformer, so its parts are not known; "
            "wrap the backbone itself, or register an adapter"
        )
    try:
        vit = adapter.describe(model, name or type(model).__name__)
    except ModelError as problem:
        raise NotAdaptedError(str(problem)) from None
    if not isinstance(vit, ViT):
        raise ModelError(f"the adapter {adapter.name!r} returned {type(vit).__name__!r} for a module, not a ViT")
    return vit
