"""Keys of rows: hashes of everything that determines a number, and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.core.digests import digest
from vitreous.methods.method import Method
from vitreous.metrics.metric import Metric


def encode_tensor(tensor: Tensor) -> tuple[bytes, bytes]:
    """Data type and shape of a tensor as bytes, and its content as bytes."""
    own = tensor.cpu().contiguous()
    return f"{own.dtype}{list(own.shape)}".encode(), own.view(-1).view(torch.uint8).numpy().tobytes()


def hash_tensor(tensor: Tensor) -> str:
    """Hash of a tensor's data type, shape and content."""
    return digest(*encode_tensor(tensor))


def hash_weights(module: nn.Module) -> str:
    """Hash of the names, data types, shapes and values of all parameters and buffers."""
    state = module.state_dict()
    return digest(*(piece for name in sorted(state) for piece in (name.encode(), *encode_tensor(state[name]))))


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types; functions, classes and other objects become their name."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(inner) for inner in (sorted(value, key=repr) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(getattr(value, "name", None) or getattr(value, "__qualname__", None) or value)


def to_canonical_json(content: Any) -> str:
    """Canonical JSON text of a value, with sorted keys."""
    return json.dumps(to_plain(content), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def hash_identity(method_or_metric: Method | Metric | None) -> str:
    """Hash of a method or metric with the values of all its options; an empty string for None (the map itself)."""
    if method_or_metric is None:
        return ""
    if isinstance(method_or_metric, Metric):
        return digest(
            to_canonical_json({"name": method_or_metric.name, "settings": method_or_metric.settings}).encode()
        )
    fold = method_or_metric.fold
    content = {
        "name": method_or_metric.name,
        "options": method_or_metric.settings,
        "linearisation": asdict(method_or_metric.linearisation),
        "fold": None if fold is None else {"name": fold.name, "options": fold.options},
    }
    return digest(to_canonical_json(content).encode())


def hash_key(**decides: str) -> str:
    """Hash of named values that determine a row."""
    return digest(to_canonical_json(decides).encode())


def hash_entries(entries: Mapping[str, Any]) -> str:
    """Name of a run: hash of entries and of the library's version."""
    import vitreous

    text = json.dumps({**entries, "vitreous": vitreous.__version__}, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()
