"""Every method: a signal at each layer and a fold over layers, or one whole function."""

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
    """Import every room, so that its methods are registered."""
    for room in ROOMS:
        import_module(f"vitreous.methods.{room}")
