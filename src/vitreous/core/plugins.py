"""Python modules of the user that a command line imports, so that they register methods, metrics, readers or models.

Jobs that are sent to worker processes and to Ray name the modules that are imported here, and import them there as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from vitreous.core.errors import DataError, VitreousError, describe_error

T = TypeVar("T")


class Plugin(NamedTuple):
    """A module as it was named, and the folder that relative names are found in."""

    name: str
    folder: str


LOADED: dict[Plugin, ModuleType] = {}


def load_plugin(name: str, folder: str | None = None) -> ModuleType:
    """Import a module by its name or by the path of its file.

    Parameters
    ----------
    name
        "my_package.methods", or "path/to/methods.py".
    folder
        Folder that relative names are found in; by default the current one.

    Returns
    -------
    ModuleType

    Raises
    ------
    DataError
        If there is no such module, or it stopped with an error.
    """
    plugin = Plugin(name, os.getcwd() if folder is None else folder)
    if plugin not in LOADED:
        try:
            LOADED[plugin] = import_file(plugin) if name.endswith(".py") else import_by_name(plugin)
        except VitreousError:
            raise
        except (Exception, SystemExit) as problem:
            raise DataError(f"{name!r} stopped with {describe_error(problem)}") from problem
    return LOADED[plugin]


def import_file(plugin: Plugin) -> ModuleType:
    """Import a file under the name of its stem, by which other processes import what is defined in it."""
    file = Path(plugin.folder, plugin.name).resolve()
    if not file.is_file():
        raise DataError(f"no Python file {plugin.name!r}")
    imported = sys.modules.get(file.stem)
    if imported is not None and Path(getattr(imported, "__file__", None) or "").resolve() == file:
        return imported
    if imported is not None or (find_spec(file.stem) is not None and not is_at(file.stem, file.parent)):
        raise DataError(
            f"{plugin.name!r} has the name of another module, {file.stem!r}; give the file a name of its own"
        )
    add_to_path(str(file.parent))
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[file.stem] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file.stem]
        raise
    return module


def is_at(name: str, folder: Path) -> bool:
    """Whether the module of this name is a file of a folder."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent == folder


def import_by_name(plugin: Plugin) -> ModuleType:
    """Import a module by name; those of the current folder are found as well."""
    add_to_path(plugin.folder)
    if not is_importable(plugin.name):
        raise DataError(
            f"no Python module {plugin.name!r}; write the name of an installed one or of one in the current folder, or the "
            "path of a file, which ends with .py"
        )
    return import_module(plugin.name)


def is_importable(name: str) -> bool:
    """Whether a module of this name is found; nothing but its packages is imported."""
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # its package does not exist, or is no package
        return False


def add_to_path(folder: str) -> None:
    """Let modules of a folder be imported, after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


def find_plugin(name: str) -> ModuleType | None:
    """The module that was loaded by this name; None if there is none."""
    return next((module for plugin, module in LOADED.items() if plugin.name == name), None)


def restore_with_plugins(plugins: list[Plugin], make: Callable[..., T], *values: Any) -> T:
    """Import plugins and make an object; how jobs are unpickled in other processes."""
    for plugin in plugins:
        load_plugin(*plugin)
    return make(*values)


def reduce_with_plugins(make: Callable[..., T], *values: Any) -> tuple[Any, ...]:
    """What `__reduce__` of a job returns, so that other processes import the plugins of this one first."""
    return restore_with_plugins, ([*LOADED], make, *values)
