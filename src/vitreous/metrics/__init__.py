"""One number per row, NaN when undefined, with the protocol beside it."""

from importlib import import_module

ROOMS = ("tokens", "pictures", "perturbation", "imputation", "localisation", "robustness", "complexity")


def load_all() -> None:
    """Import every room, so that its metrics are registered."""
    for room in ROOMS:
        import_module(f"vitreous.metrics.{room}")
