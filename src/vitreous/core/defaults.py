"""The method that is used where none is named."""

from __future__ import annotations

DEFAULT_METHOD = "temper"  # the most faithful of one backward pass on both models of the study
