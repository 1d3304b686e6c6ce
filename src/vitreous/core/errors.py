"""Error classes. Messages state what was given and what would be accepted.

VitreousError
├── ModelError  (ValueError)   a model that cannot be described or run, or a checkpoint that does not fit
├── SpecError   (LookupError)  a method, fold, linearisation or option that does not exist or does not fit
├── ShapeError  (ValueError)   images or targets of the wrong shape or range
└── DataError   (ValueError)   a file that cannot be read in the expected format
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class VitreousError(Exception):
    """Base class of the errors that the library raises.

    Examples
    --------
    >>> import vitreous
    >>> try:
    ...     vitreous.resolve("grdcam")
    ... except vitreous.VitreousError as error:
    ...     print(error)
    no method 'grdcam'; did you mean 'gradcam'?
    """

    row_errors: Mapping[int, VitreousError] = {}  # errors of single rows of a batch, whose other rows have none


class ModelError(VitreousError, ValueError):
    """The model cannot be described or run, or its weights do not fit.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.load("timm:vit_tiny_patch61")
    Traceback (most recent call last):
    ...
    vitreous.core.errors.ModelError: timm has no model 'vit_tiny_patch61'; did you mean 'vit_tiny_patch16_384'?
    """


class NotAdaptedError(ModelError):
    """No adapter describes the parts of a module, or the adapter's logits differ from the module's.

    The module may still be described as a `Network`.
    """


class SpecError(VitreousError, LookupError):
    """A name, option or composition does not exist or is not valid.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.resolve("gradcam(layer=3)")
    Traceback (most recent call last):
    ...
    vitreous.core.errors.SpecError: ...
    """

    def __str__(self) -> str:  # the message alone, also with further arguments
        return str(self.args[0]) if self.args else ""


class ShapeError(VitreousError, ValueError):
    """Images, targets or masks have a wrong shape or range.

    Examples
    --------
    >>> import torch
    >>> import vitreous
    >>> vitreous.explain(vitreous.load("scenes"), torch.zeros(1, 4, 112, 112))
    Traceback (most recent call last):
    ...
    vitreous.core.errors.ShapeError: images must be [b 3 H W] with at least one image, not [1, 4, 112, 112]
    """


class DataError(VitreousError, ValueError):
    """A file cannot be read in the expected format.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.load("scenes", checkpoint="nowhere.pth")
    Traceback (most recent call last):
    ...
    vitreous.core.errors.DataError: no checkpoint at 'nowhere.pth'; give the path of a local .safetensors or .pth file
    """


class Caveat(UserWarning):
    """Warning: the result is as requested, but its interpretation is limited as the message describes.

    Examples
    --------
    >>> import warnings
    >>> import vitreous
    >>> warnings.simplefilter("ignore", vitreous.Caveat)  # once the limits of a map are known
    """


def describe_error(problem: BaseException) -> str:
    """Type and message of an unexpected error on one line, for the text of one of our own errors."""
    return f"{type(problem).__name__}: {message_of(problem)}"


def message_of(problem: BaseException) -> str:
    """Message of an error on one line."""
    return " ".join(str(problem).split())[:200]


@contextmanager
def unexpected_errors_as(
    error: Callable[[str], VitreousError],
    *kinds: type[Exception],
    describe: Callable[[BaseException], str] = describe_error,
) -> Iterator[None]:
    """Context that raises unexpected errors, of these kinds or of all, as `error(describe(problem))`.

    Errors of the library pass as they are.
    """
    caught = kinds or (Exception,)
    try:
        yield
    except VitreousError:
        raise
    except caught as problem:
        raise error(describe(problem)) from problem
