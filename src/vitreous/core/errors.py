"""Error classes. Messages state what was given and what would be accepted.

VitreousError
├── ModelError  (ValueError)   a model that is not a supported ViT, or a checkpoint that does not fit
├── SpecError   (LookupError)  a method, fold, linearisation or option that does not exist or does not fit
├── ShapeError  (ValueError)   images or targets of the wrong shape or range
└── DataError   (ValueError)   a file that cannot be read in the expected format
"""

from __future__ import annotations


class VitreousError(Exception):
    """Base class of the errors that the library raises."""


class ModelError(VitreousError, ValueError):
    """The model is not a supported vision transformer, or its weights do not fit."""


class SpecError(VitreousError, LookupError):
    """A name, option or composition does not exist or is not valid."""

    def __str__(self) -> str:  # the message alone, also with further arguments
        return str(self.args[0]) if self.args else ""


class ShapeError(VitreousError, ValueError):
    """Images, targets or masks have a wrong shape or range."""


class DataError(VitreousError, ValueError):
    """A file cannot be read in the expected format."""


class Caveat(UserWarning):
    """Warning: the result is as requested, but its interpretation is limited as the message describes."""
