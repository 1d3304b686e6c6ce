"""Registry of named objects, with aliases, spelling hints and plugins from entry points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from threading import get_ident
from typing import Generic, TypeVar

from vitreous.core.errors import SpecError, VitreousError, describe_error

T = TypeVar("T")
NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")  # what specs and commands can name


@cache
def import_submodules(package: str) -> None:
    """Import every module of a package, so that each registers what it contains."""
    for module in iter_modules(import_module(package).__path__):
        import_module(f"{package}.{module.name}")


class Registry(Generic[T]):
    """Mapping from names to objects of one kind.

    Names are unique; lookup is case-insensitive and resolves aliases. What a package of vitreous and the plugins register is
    imported when the registry is first read.

    Parameters
    ----------
    kind
        For example "method" or "fold". Used in error messages.
    package
        Package whose modules register objects; None if they are all where the registry is.
    group
        Entry-point group from which plugins are loaded; `vitreous.<kind>s` by default.
    """

    def __init__(self, kind: str, package: str | None = None, group: str | None = None) -> None:
        self.kind, self.package = kind, package
        self.group = group or f"vitreous.{kind}s"
        self._table: dict[str, T] = {}
        self._owner: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._is_loaded = False
        self._loading_threads: set[int] = set()

    def add(self, name: str, value: T, owner: str | None, aliases: tuple[str, ...] = ()) -> T:
        """Register `value` and return it.

        Parameters
        ----------
        name
            Name under which the value is found.
        value
            The object.
        owner
            Module that registers it, None for code outside of modules; named in the error message if the name is taken.
        aliases
            Further names.

        Raises
        ------
        SpecError
            If the name or an alias is already registered.
        """
        for given_name in (name, *aliases):
            if not NAME.fullmatch(given_name):
                raise SpecError(
                    f"{self.kind} {given_name!r} could not be found by this name: small letters, digits, '_', '-' and '.' would work, such "
                    f"as {re.sub('[^a-z0-9_.-]+', '_', given_name.lower()).strip('_') or 'mine'!r}"
                )
        owner = owner or "__main__"
        if self.package is not None and not owner.startswith("vitreous."):
            import_submodules(self.package)  # its names are taken; plugins may be what is just being imported
        for claimed in (name, *aliases):
            owner_of_name = self._owner.get(self._aliases.get(claimed, claimed))
            if owner_of_name is not None:
                raise SpecError(
                    f"{self.kind} {claimed!r} is already registered by {owner_of_name}; {owner} must choose another name"
                )
        self._table[name], self._owner[name] = value, owner
        self._aliases.update(dict.fromkeys(aliases, name))
        return value

    def discard(self, name: str) -> None:
        """Remove a name and its aliases, if registered (for notebook cells that run twice, and for tests)."""
        self._table.pop(name, None)
        self._owner.pop(name, None)
        self._aliases = {alias: target for alias, target in self._aliases.items() if target != name}

    def load(self) -> None:
        """Import the modules of the package, and the entry points of installed packages; later calls do nothing.

        Raises
        ------
        SpecError
            If a plugin cannot be imported.
        """
        if self._is_loaded or (thread := get_ident()) in self._loading_threads:
            return  # a plugin may read the registry while it is imported
        self._loading_threads.add(thread)  # other threads import the same modules, and so wait for them
        try:
            if self.package is not None:
                import_submodules(self.package)
            for point in entry_points(group=self.group):
                self.load_plugin(point)
            self._is_loaded = True
        finally:
            self._loading_threads.discard(thread)

    def load_plugin(self, point: EntryPoint) -> None:
        try:
            point.load()
        except VitreousError:
            raise
        except Exception as problem:
            reason = describe_error(problem)
            raise SpecError(
                f"the plugin {point.name!r} of {self.group} could not be loaded from {point.value!r} ({reason}); "
                "correct it, or uninstall the package that brings it"
            ) from problem

    def find(self, name: str) -> T | None:
        """Return the object of that name or alias, or None, of those registered so far."""
        return self._table.get(self._aliases.get(name, name))

    def __getitem__(self, name: str) -> T:
        self.load()
        value = self.find(name.lower())
        if value is None:
            raise SpecError(f"no {self.kind} {name!r}; {self.hint(name)}")
        return value

    def hint(self, name: str) -> str:
        """Return a suggestion for an unknown name: the closest known name, or all names."""
        near = get_close_matches(name.lower(), [*self._table, *self._aliases], n=1)
        return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._table))}"

    def owner(self, name: str) -> str:
        """Return the module that registered `name` (not an alias)."""
        self.load()
        return self._owner[name]

    def aliases(self, name: str) -> tuple[str, ...]:
        """Return the aliases of `name`."""
        self.load()
        return tuple(alias for alias, target in self._aliases.items() if target == name)

    def __iter__(self) -> Iterator[str]:
        self.load()
        return iter(list(self._table))  # names may be registered during the iteration

    def __len__(self) -> int:
        self.load()
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        self.load()
        return self.find(name.lower()) is not None
