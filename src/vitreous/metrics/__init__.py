"""Metrics of attributions: one score per row, NaN where undefined, with the settings that produced it."""

from importlib import import_module

ROOMS = ("tokens", "pictures", "perturbation", "removal", "imputation", "localisation", "robustness", "complexity")


def load_all() -> None:
    """Import all metric modules, which registers their metrics."""
    for room in ROOMS:
        import_module(f"vitreous.metrics.{room}")
