"""Default attribution method."""

from __future__ import annotations

DEFAULT_METHOD = "temper"  # the most faithful method with a single backward pass, on both models of the study
