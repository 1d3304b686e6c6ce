"""What was computed, and what was uploaded: the latest, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Any

LEAST = 512  # bytes that any entry is counted as


def weigh(value: Any) -> int:
    """Roughly how many bytes a value holds: tensors, texts, and whatever they lie in."""
    if isinstance(value, bytes | str):
        return len(value)
    if (held := getattr(value, "nbytes", None)) is not None:
        return int(held)
    if isinstance(value, Mapping):
        return sum(weigh(one) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(weigh(one) for one in value)
    slots = getattr(type(value), "__slots__", ())
    return sum(weigh(getattr(value, name)) for name in slots)


class Cache:
    """The most recently used entries whose bytes fit together. Safe to use from several threads."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """The value, or None; it is then the last to leave."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: Any) -> None:
        size = LEAST + weigh(value)
        with self._lock:
            self.held -= self._entries.pop(key, (None, 0))[1]
            if size > self.most:
                return
            self._entries[key] = (value, size)
            self.held += size
            while self.held > self.most:
                self.held -= self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)
