"""Registries of model adapters and of model sources; plugins register theirs by the entry point `vitreous.models`.

An adapter describes modules of one library as a `ViT`. A source builds modules by name: in "timm:vit_tiny_patch16_224",
the source is "timm".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import nn

from vitreous.core.errors import ModelError
from vitreous.core.registry import Registry, import_submodules
from vitreous.models.image_input import Preprocess
from vitreous.models.model import RECORD_KEYS, UNKNOWN, ModelOrigin
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
    facts
        Deprecated: the origin as a dictionary with the keys of a provenance record.

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
    facts: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.facts is not None:
            warnings.warn("facts of NamedModule is now origin", DeprecationWarning, stacklevel=3)
            origin = ModelOrigin(**{RECORD_KEYS.get(key, key): value for key, value in self.facts.items()})
            object.__setattr__(self, "origin", self.origin.updated(origin))


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


ADAPTERS: Registry[Adapter] = Registry("model adapter", group=GROUP)
SOURCES: Registry[Source] = Registry("model source", group=GROUP)

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
    >>> @vitreous.adapter("my models", matches=lambda module: isinstance(module, MyViT))
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


def load_all() -> None:
    """Import the adapters and sources of this package, which registers them, and those of plugins."""
    import_submodules("vitreous.models")
    ADAPTERS.load_plugins()
    SOURCES.load_plugins()


def find_adapter(module: nn.Module) -> Adapter | None:
    """Return the first adapter that matches `module`, or None; plugins come before the adapters of this package."""
    load_all()
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
    load_all()
    prefix, colon, rest = name.partition(":")
    if not colon:
        owner = next((source for source in SOURCES if name in SOURCES[source].unprefixed), "timm")
        return SOURCES[owner], name
    if SOURCES.find(prefix) is None:
        spellings = [repr(f"{source}:…") for source in sorted(SOURCES) if not SOURCES[source].unprefixed]
        bare = [repr(SOURCES[source].unprefixed[0]) for source in sorted(SOURCES) if SOURCES[source].unprefixed]
        *most, last = bare + spellings
        raise ModelError(f"no source {prefix!r}; write {', '.join(most)} or {last}")
    return SOURCES[prefix], rest


def library_of(*names: str) -> Callable[[nn.Module], bool]:
    """Return a test whether the class of a module, or one of its base classes, is defined in one of these packages."""
    return lambda module: any(base.__module__.split(".")[0] in names for base in type(module).__mro__)
