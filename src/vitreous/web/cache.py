"""A cache of results or uploads, bounded in bytes; the least recently used entries are dropped first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

from cachetools import LRUCache

ENTRY_BYTES = 512  # overhead counted for every entry
NUMBER_BYTES = 32  # of a Python number and the reference to it, as in a response


def count_bytes(value: Any) -> int:
    """Approximate size of a value: tensors, arrays, strings, numbers, and containers or slotted objects of these."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, int | float):
        return NUMBER_BYTES
    if (size := getattr(value, "nbytes", None)) is not None:
        return int(size)
    if isinstance(value, Mapping):
        return sum(count_bytes(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(count_bytes(item) for item in value)
    slots = getattr(type(value), "__slots__", ())
    return sum(count_bytes(getattr(value, name)) for name in slots)


class Cache:
    """The most recently used entries that fit into `max_bytes`. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[Hashable, Any] = LRUCache(max_bytes, lambda value: ENTRY_BYTES + count_bytes(value))
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        return int(self._entries.currsize)

    def get(self, key: Hashable) -> Any:
        """Return the value and mark it as recently used, or None."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Store a value; one that is larger than the whole cache is not stored."""
        with self._lock, suppress(ValueError):
            self._entries.pop(key, None)
            self._entries[key] = value

    def __len__(self) -> int:
        return len(self._entries)
