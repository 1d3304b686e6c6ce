"""Names kept until their importers change."""

from __future__ import annotations

from vitreous.capture.black_box_probe import BlackBoxProbe as BlackBox
from vitreous.capture.probe import probe_of
from vitreous.models.model import BlackBox as Model
from vitreous.models.model import Network

__all__ = ["BlackBox", "is_black_box", "probe_of"]


def is_black_box(model: Model) -> bool:
    return not isinstance(model, Network)
