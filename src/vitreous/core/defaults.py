"""Default attribution method, and the names of the model sources of this package."""

from __future__ import annotations

DEFAULT_METHOD = "temper"  # the most faithful method with a single backward pass, on both models of the study
MODEL_SOURCES = ("hf", "scenes", "timm", "torchvision")  # so that the command line need not import torch to know them
