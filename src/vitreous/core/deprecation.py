"""Old public names that still work for one release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def rename_warnings(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module that resolves old names, with a `DeprecationWarning`.

    Parameters
    ----------
    module
        Name of the module.
    new_names
        New name by old name: in the same module, or dotted, in another one.
    """

    def get_renamed(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_name = new_names[name] if "." in new_names[name] else f"{module}.{new_names[name]}"
        warnings.warn(f"{module}.{name} is now {new_name}", DeprecationWarning, stacklevel=2)
        home, _, attribute = new_name.rpartition(".")
        return getattr(import_module(home), attribute)

    return get_renamed


def renamed_parameters(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that still accepts keywords under their old names, with a `DeprecationWarning`.

    Parameters
    ----------
    **new_names
        New name of a parameter, by old name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in new_names.keys() & kwargs.keys():
                warn_of_name(function.__qualname__, old, new_names[old], stacklevel=3)
                kwargs[new_names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attributes(**new_names: str) -> Callable[[C], C]:
    """Decorator of a class whose attributes can be read under their old names, with a `DeprecationWarning`.

    A dataclass can also be created with keywords of these names.

    Parameters
    ----------
    **new_names
        New name of an attribute, by old name.
    """

    def decorate(cls: C) -> C:
        for old, new in new_names.items():
            setattr(cls, old, old_attribute(cls.__name__, old, new))
        if hasattr(cls, "__dataclass_fields__"):
            cls.__init__ = renamed_parameters(**new_names)(cls.__init__)
        return cls

    return decorate


def old_attribute(owner: str, old: str, new: str) -> property:
    """A property that warns and reads the attribute `new`."""

    def read(self: Any) -> Any:
        warn_of_name(owner, old, new, stacklevel=3)
        return getattr(self, new)

    return property(read, doc=f"Deprecated: use `{new}`.")


def warn_of_name(owner: str, old: str, new: str, stacklevel: int) -> None:
    warnings.warn(f"{old} of {owner} is now {new}", DeprecationWarning, stacklevel=stacklevel + 1)
