"""A cache of results or uploads, bounded in bytes; the least recently used entries are dropped first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Any

ENTRY_BYTES = 512  # overhead counted for every entry


def count_bytes(value: Any) -> int:
    """Approximate size of a value: tensors, arrays, strings, and containers or slotted objects of these."""
    if isinstance(value, bytes | str):
        return len(value)
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
        self.max_bytes, self.used_bytes = max_bytes, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return the value and mark it as recently used, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: Any) -> None:
        """Store a value; one that is larger than the whole cache is not stored."""
        size = ENTRY_BYTES + count_bytes(value)
        with self._lock:
            self.used_bytes -= self._entries.pop(key, (None, 0))[1]
            if size > self.max_bytes:
                return
            self._entries[key] = (value, size)
            self.used_bytes += size
            while self.used_bytes > self.max_bytes:
                self.used_bytes -= self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)
