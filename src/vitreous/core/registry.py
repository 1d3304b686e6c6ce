"""A table of names: claimed once, looked up with a hint, extended by entry points."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from vitreous.core.errors import SpecError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to values of one kind ('method', 'fold', …). Third parties join through the group `vitreous.<kind>s`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._table: dict[str, T] = {}
        self._owner: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._plugins_loaded = False

    def add(self, name: str, value: T, owner: str, aliases: tuple[str, ...] = ()) -> T:
        for claimed in (name, *aliases):
            held = self._owner.get(self._aliases.get(claimed, claimed))
            if held is not None:
                raise SpecError(
                    f"{self.kind} {claimed!r} is already registered by {held}; {owner} must choose another name"
                )
        self._table[name], self._owner[name] = value, owner
        self._aliases.update(dict.fromkeys(aliases, name))
        return value

    def discard(self, name: str) -> None:
        """Forget a name and its aliases (a notebook cell run twice, a test that cleans up)."""
        self._table.pop(name, None)
        self._owner.pop(name, None)
        self._aliases = {alias: target for alias, target in self._aliases.items() if target != name}

    def load_plugins(self) -> None:
        """Import what installed packages offer, once."""
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=f"vitreous.{self.kind}s"):
            point.load()

    def find(self, name: str) -> T | None:
        return self._table.get(self._aliases.get(name, name))

    def __getitem__(self, name: str) -> T:
        self.load_plugins()
        found = self.find(name.lower())
        if found is None:
            raise SpecError(f"no {self.kind} {name!r}; {self.hint(name)}")
        return found

    def hint(self, name: str) -> str:
        near = get_close_matches(name.lower(), [*self._table, *self._aliases], n=1)
        return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._table))}"

    def owner(self, name: str) -> str:
        return self._owner[name]

    def aliases(self, name: str) -> tuple[str, ...]:
        return tuple(alias for alias, target in self._aliases.items() if target == name)

    def __iter__(self) -> Iterator[str]:
        self.load_plugins()
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: str) -> bool:
        return self.find(name.lower()) is not None
