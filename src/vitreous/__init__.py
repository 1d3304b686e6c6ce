"""Vitreous: attribution methods for Vision Transformers, and metrics to evaluate them.

    import vitreous

    vit = vitreous.load("timm:vit_tiny_patch16_224")
    attribution = vitreous.explain(vit, "zebra.jpg", target=340, method="decompx+skipplus")
    attribution.plot()

Public names are those that `__init__.pyi` imports. They are imported lazily on first access (PEP 562), so `import vitreous` does
not import torch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

HOME_OF = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
MODULES = tuple(name for name, home in HOME_OF.items() if home == "vitreous")

__all__ = ["__version__", *HOME_OF]  # noqa: PLE0604 # pyright: ignore[reportUnsupportedDunderAll] - names are in the stub


def __getattr__(name: str) -> Any:
    if name not in HOME_OF:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    if name in MODULES:
        return import_module(f"vitreous.{name}")
    value = getattr(import_module(HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
