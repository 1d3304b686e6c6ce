"""One tree of errors. Each says what was given and what would work.

VitreousError
├── ModelError  (ValueError)   a model that cannot be seen as a ViT, or a checkpoint that does not fit
├── SpecError   (LookupError)  a method, fold, linearisation or option that does not exist or does not fit
├── ShapeError  (ValueError)   images or targets of the wrong shape or range
└── DataError   (ValueError)   a file that cannot be read as what it should be
"""

from __future__ import annotations


class VitreousError(Exception):
    """Root of everything the library raises on purpose."""


class ModelError(VitreousError, ValueError):
    """The model cannot be seen as a vision transformer, or its weights do not fit."""


class SpecError(VitreousError, LookupError):
    """A name, option or composition that does not exist."""

    def __str__(self) -> str:  # LookupError would show the repr
        return str(self.args[0]) if self.args else ""


class ShapeError(VitreousError, ValueError):
    """Images, targets or masks of a shape or range that does not fit."""


class DataError(VitreousError, ValueError):
    """A file that cannot be read as what it should be."""


class Caveat(UserWarning):
    """The numbers are what was asked for, and something about them must be known."""
