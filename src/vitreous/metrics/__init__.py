"""Metrics of attributions: one score per row, NaN where undefined, with the settings that produced it."""

from vitreous.core.registry import import_submodules


def load_all() -> None:
    """Import all modules of this package, which registers their metrics."""
    import_submodules(__name__)
