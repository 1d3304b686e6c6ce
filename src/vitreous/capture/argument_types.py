"""Types of the arguments that public functions share: models, images, targets and scores as users may give them.

At run time these are checked where they are read (`vitreous.arguments`, `capture.targets`), with error messages that say
what would work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.capture.score_function import QuestionInput
from vitreous.capture.targets import Target
from vitreous.models.image_decoding import Source
from vitreous.models.model import BlackBox
from vitreous.models.transforms import PreprocessInput

__all__ = [
    "ArrayInput",
    "ClassInput",
    "ClassLabel",
    "ImageInput",
    "ModelInput",
    "OutputScore",
    "PreprocessInput",
    "QuestionInput",
    "TargetInput",
]

# A name for `load`, a module or a function of images for `wrap`, or a described model.
ModelInput: TypeAlias = str | nn.Module | Callable[[Tensor], Any] | BlackBox

# A tensor [b c H W] of prepared images; or one or several paths, files' bytes, PIL images, uint8 arrays or tensors.
ImageInput: TypeAlias = Source | Sequence[Source]

# Index or name of a class; a tensor holds one index.
ClassLabel: TypeAlias = int | str | np.integer[Any] | Tensor

# One class for all images, or one per image.
ClassInput: TypeAlias = ClassLabel | Sequence[ClassLabel] | NDArray[Any]

# What is explained: the predicted class (None), classes, k classes per image [b k], or a target such as `text_target`.
TargetInput: TypeAlias = ClassInput | Sequence[Sequence[ClassLabel]] | Target | None

# A function of whatever a module returns, to one differentiable number per image.
OutputScore: TypeAlias = Callable[[Any], Tensor]

# Numbers as a tensor, an array or (nested) lists of them: embeddings, masks, boxes.
ArrayInput: TypeAlias = Tensor | NDArray[Any] | Sequence[Any]
