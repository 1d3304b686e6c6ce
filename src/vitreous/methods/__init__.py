"""All attribution methods: either a per-layer signal combined by a fold, or one function of the whole model."""

from vitreous.core.registry import import_submodules


def load_all() -> None:
    """Import all modules of this package, which registers their methods."""
    import_submodules(__name__)
