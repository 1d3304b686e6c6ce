"""Scores to explain: functions of whatever a model returns, with one number per image.

Each function here returns such a score function, for `vitreous.explain(model, images, score=...)`. Any callable will do:
it gets what the model returns (a tensor, tuple, dict or Hugging Face output) and returns a differentiable tensor [images].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.capture.argument_types import ArrayInput, OutputScore
from vitreous.core.errors import ShapeError

__all__ = ["box", "cosine", "mask", "pixel", "probability", "token", "value"]


def __dir__() -> list[str]:
    return sorted(__all__)


Score = OutputScore

LOGITS = ("logits", "out", "pred_logits", "class_queries_logits")
MASKS = ("logits", "out", "masks_queries_logits", "pred_masks", "masks", "predicted_depth")
EMBEDDINGS = ("image_embeds", "pooler_output", "embeddings", "last_hidden_state")


def value(index: int = 0) -> Score:
    """One output of a model that returns numbers [images, outputs]: a regression value or the logit of a class.

    Parameters
    ----------
    index
        Number of the output.

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.value(1)(torch.tensor([[0.5, 2.0]]))
    tensor([2.])
    """
    return with_name(f"output {index}", lambda output: logits_of(output, 2)[:, index])


def probability(index: int, multi_label: bool = False) -> Score:
    """The probability of a class.

    Parameters
    ----------
    index
        Number of the class.
    multi_label
        Whether each class has a probability of its own (sigmoid) instead of one softmax over all.

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.probability(0)(torch.zeros(1, 4))
    tensor([0.2500])
    """

    def score(output: Any) -> Tensor:
        logits = logits_of(output, 2)
        return (logits.sigmoid() if multi_label else logits.softmax(-1))[:, index]

    return with_name(f"probability of class {index}", score)


def box(query: int, cls: int) -> Score:
    """The class logit of one box of a detector that returns logits [images, boxes, classes] (DETR, YOLOS).

    Parameters
    ----------
    query
        Number of the box among the model's queries.
    cls
        Number of the class.

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.box(3, 1)({"logits": torch.ones(2, 10, 5)})
    tensor([1., 1.])
    """
    return with_name(f"class {cls} of box {query}", lambda output: logits_of(output, 3)[:, query, cls])


def pixel(row: int, column: int, cls: int = 0) -> Score:
    """The class logit of one pixel of a segmenter that returns maps [images, classes, height, width].

    Parameters
    ----------
    row, column
        The pixel, in the resolution of the returned maps.
    cls
        Number of the class (or of the query, for masks by query).

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.pixel(1, 2, cls=0)(torch.arange(6.0).view(1, 1, 2, 3))
    tensor([5.])
    """
    return with_name(f"class {cls} at pixel ({row}, {column})", lambda output: maps_of(output)[:, cls, row, column])


def mask(region: ArrayInput, cls: int = 0) -> Score:
    """The mean class logit inside a region of a segmenter that returns maps [images, classes, height, width].

    Parameters
    ----------
    region
        Boolean mask [height, width] (or one per image), resized to the returned maps without interpolation.
    cls
        Number of the class (or of the query, for masks by query).

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.mask(torch.tensor([[True, False]]))(torch.tensor([[[[2.0, 7.0]]]]))
    tensor([2.])
    """
    regions = torch.as_tensor(region)
    regions = regions[None] if regions.ndim == 2 else regions
    if regions.ndim != 3 or not regions.bool().flatten(1).any(1).all():
        raise ShapeError(
            f"a region is a mask [height, width] with at least one pixel, not one of shape {list(regions.shape)}"
        )

    def score(output: Any) -> Tensor:
        logits = maps_of(output)[:, cls]
        weights = F.interpolate(regions[:, None].to(logits), size=logits.shape[-2:], mode="nearest")[:, 0]
        if not weights.flatten(1).any(1).all():
            raise ShapeError(
                f"the region has no pixel left at the resolution {list(logits.shape[-2:])} of the model's maps"
            )
        return (logits * weights).flatten(1).sum(1) / weights.flatten(1).sum(1)

    return with_name(f"class {cls} inside the region", score)


def cosine(reference: Tensor, of: str | None = None) -> Score:
    """The cosine between the model's embedding of an image and another embedding.

    Parameters
    ----------
    reference
        Embedding [d], or one per image [images, d].
    of
        Field of the output that holds the embedding; by default the first of image_embeds, pooler_output, embeddings
        and last_hidden_state that there is. Of a sequence [images, tokens, d] the first token is taken.

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.cosine(torch.tensor([0.0, 1.0]))(torch.tensor([[0.0, 3.0]]))
    tensor([1.])
    """

    def score(output: Any) -> Tensor:
        embedding = output_field(output, EMBEDDINGS if of is None else (of,))
        embedding = embedding[:, 0] if embedding.ndim == 3 else with_dimensions(embedding, 2)
        return F.cosine_similarity(embedding, reference.detach().to(embedding), dim=-1)

    return with_name("cosine to the reference", score)


def token(word: int, position: int = -1) -> Score:
    """The logit of one word at a position of the answer of a vision-language model.

    Parameters
    ----------
    word
        Index of the word in the vocabulary.
    position
        Position in the sequence of logits [images, positions, words]; -1 is the word that comes next.

    Returns
    -------
    Callable
        Function of the model's output, for `explain(..., score=...)`.

    Examples
    --------
    >>> import torch
    >>> from vitreous import scores
    >>> scores.token(2)({"logits": torch.eye(3)[None]})
    tensor([1.])
    """
    return with_name(f"word {word} at position {position}", lambda output: logits_of(output, 3)[:, position, word])


def with_name(name: str, score: Score) -> Score:
    """Give a score function the name that captions and provenance show."""
    score.__name__ = name
    return score


def output_field(output: Any, names: Sequence[str]) -> Tensor:
    """The tensor of an output: the output itself, the first field of these names, or the first item of a tuple."""
    if isinstance(output, Tensor):
        return output
    for name in names:
        tensor = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(tensor, Tensor):
            return tensor
    if isinstance(output, list | tuple) and output and isinstance(output[0], Tensor):
        return output[0]
    fields = list(output) if isinstance(output, Mapping) else type(output).__name__
    raise ShapeError(
        f"the model's output has none of {', '.join(names)} ({fields}); a score function of your own would work"
    )


def logits_of(output: Any, dimensions: int) -> Tensor:
    return with_dimensions(output_field(output, LOGITS), dimensions)


def maps_of(output: Any) -> Tensor:
    """Maps [images, classes, height, width]; a dimension of classes is added to maps [images, height, width]."""
    maps = output_field(output, MASKS)
    maps = maps.flatten(1, 2) if maps.ndim == 5 else maps  # SAM: prompts and masks
    return maps[:, None] if maps.ndim == 3 else with_dimensions(maps, 4)


def with_dimensions(tensor: Tensor, dimensions: int) -> Tensor:
    if tensor.ndim != dimensions:
        raise ShapeError(
            f"this score reads an output with {dimensions} dimensions, not one of shape {list(tensor.shape)}"
        )
    return tensor
