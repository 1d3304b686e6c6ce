"""All attribution methods: either a per-layer signal combined by a fold, or one function of the whole model."""

from importlib import import_module

ROOMS = (
    "tokens",
    "decompose",
    "cams",
    "attention",
    "vectors",
    "transition",
    "controls",
    "paths",
    "heads",
    "relevance",
    "sampling",
    "shapley",
    "tis",
    "activations",
    "suppression",
    "presence",
    "fuse",
    "anneal",
)


def load_all() -> None:
    """Import every module in `ROOMS`, which registers its methods."""
    for room in ROOMS:
        import_module(f"vitreous.methods.{room}")
