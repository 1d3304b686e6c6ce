"""Old public names that still work for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def rename_warnings(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a module that resolves old names, with a `DeprecationWarning`.

    Parameters
    ----------
    module
        Name of the module.
    new_names
        New name in the module, by old name.
    """

    def get_renamed(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{new_names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new_names[name])

    return get_renamed
