"""Model, target and images as they are given to `explain` and `evaluate`: described, checked and prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from vitreous.capture.adapter_check import check_adapter, compare_with_model
from vitreous.capture.argument_types import ImageInput, ModelInput, OutputScore, TargetInput
from vitreous.capture.black_box_probe import as_constant
from vitreous.capture.see_through import examine, fits
from vitreous.capture.targets import ClassTarget, Target
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.methods.method import Method, black_box_methods
from vitreous.models.black_box import describe_black_box, random_image, with_observed_outputs
from vitreous.models.huggingface import saved_tokenizer
from vitreous.models.image_input import open_image
from vitreous.models.model import BlackBox, Network
from vitreous.models.module_structure import structure_of
from vitreous.models.outputs import with_score
from vitreous.models.tensor_types import Images
from vitreous.models.vit import ViT
from vitreous.wrapping import as_network, load, network_of, wrap


def describe_model(
    model: ModelInput,
    size: tuple[int, int] | None,
    score: OutputScore | None = None,
    *,
    method: Method | None = None,
    black_box: bool = False,
) -> BlackBox:
    """The model to explain or to measure: a `ViT` or a `Network`, else a black box where the method allows that.

    Parameters
    ----------
    model
        As for `explain`.
    size
        Size of the images if it is known.
    score
        A score of whatever the module returns, which the parts of a `ViT` do not compute; None for its logits.
    method
        The method to explain with; None if the model is only measured.
    black_box
        Whether a module is a black box anyway.
    """
    if isinstance(model, str):
        model = load(model)
    try:
        if isinstance(model, BlackBox):
            model = as_it_is(model)
            described = model if score is None else network_of(model, size)
        elif score is not None and not black_box and isinstance(model, nn.Module):
            described = as_network(model, size=size)
        else:
            described = wrap(model, black_box=black_box, size=size)
    except ModelError as problem:
        if not isinstance(model, nn.Module):
            raise
        if method is None:
            raise ModelError(
                f"{problem}; as a black box it is measured after vitreous.wrap(model, black_box=True)"
            ) from None
        if method.black_box is None:
            raise ModelError(
                f"{problem}. {method.name!r} looks inside the model; as a black box it can be explained by: {black_box_methods()}"
            ) from None
        described = describe_black_box(model, str(problem))
    return described if score is None else with_score(described, score)


# Structures that modules of described models had later, and that the description was found to fit as well.
FITTING: WeakKeyDictionary[BlackBox, tuple[Any, ...]] = WeakKeyDictionary()


def as_it_is(model: BlackBox) -> BlackBox:
    """The model if its module is as it was described; a changed network is described anew, and a changed `ViT` compared.

    Raises
    ------
    ModelError
        If the description does not fit any more.
    """
    if model.structure is None or (structure := structure_of(model.module)) in (model.structure, FITTING.get(model)):
        return model
    assert model.output_type is not None or isinstance(model, Network)
    try:
        if isinstance(model, ViT):
            now, count = model, compare_with_model(model).count
        else:
            assert isinstance(model, Network)
            now = examine(replace(model, output_type=None), random_image(model.module, model.size, model.clip))
            count = None if now.output_type is None else now.output_type.count
            now = replace(now, output_type=model.output_type)
        if model.output_type is not None and count != model.output_type.count:
            raise ModelError(f"it has {count} outputs, and not {model.output_type.count}")
    except ModelError as problem:
        raise ModelError(
            f"the module of {model.name!r} has changed since it was described (a replaced part, parameter or forward, or a hook): "
            f"{problem}; vitreous.wrap(module) describes it as it is now"
        ) from problem
    FITTING[now] = structure
    return now


def prepare_images(model: BlackBox, images: ImageInput | None) -> tuple[BlackBox, tuple[Any, ...] | None, Images]:
    """The model with known outputs, the original images (None for float tensors) and its input batch, which is finite."""
    originals, tensor = as_images(model, images)
    refuse_not_finite(tensor)
    return with_known_outputs(model, tensor), originals, tensor


def with_known_outputs(model: BlackBox, images: Images) -> BlackBox:
    """Return `model` with known outputs: run a black box on the first image, compare a hand-made `ViT` with its module."""
    if isinstance(model, ViT):
        return model if model.output_type is not None else check_adapter(model)
    if isinstance(model, Network) and not fits(model, images):
        model = examine(model, as_constant(images[:1]).to(model.device, model.dtype))
    return (
        model if isinstance(model, Network) and model.output_type is not None else with_observed_outputs(model, images)
    )


def as_target(model: ModelInput, target: TargetInput) -> Target:
    """The `target` of `explain` as a `Target`: texts of a whole CLIP or SigLIP model of Hugging Face, or classes.

    Texts are encoded with the tokenizer that was saved with the model; a `ModelError` if it is not at hand.
    """
    texts = [target] if isinstance(target, str) else target
    if are_texts(texts) and isinstance(model, nn.Module) and hasattr(model, "get_text_features"):
        from vitreous.pairs.prompts import prompt_target

        return prompt_target(model, texts, saved_tokenizer(model))
    return target if isinstance(target, Target) else ClassTarget(target)


def are_texts(target: Any) -> TypeGuard[Sequence[str]]:
    return isinstance(target, list | tuple) and bool(target) and all(isinstance(text, str) for text in target)


def check_batch_size(batch_size: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise SpecError(f"batch_size={batch_size!r}; a whole number from 1 on would work")


def refuse_not_finite(images: Images) -> None:
    if images.is_meta or images.layout != torch.strided:
        raise ShapeError(
            f"images must be a dense tensor that holds values, not one on {images.device} of layout {images.layout}"
        )
    bad = ~images.flatten(1).isfinite().all(1)
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        raise ShapeError(f"image {first} holds NaN or infinite values; finite floats would work")


def size_of(images: ImageInput) -> tuple[int, int] | None:
    """Height and width of images that are given as float tensors; None if they are prepared by the model."""
    first = images[0] if isinstance(images, list | tuple) and images else images
    if not is_prepared(first) or first.ndim not in (3, 4) or not first.numel():
        return None
    return first.shape[-2], first.shape[-1]


def as_images(model: BlackBox, images: ImageInput | None) -> tuple[tuple[Any, ...] | None, Images]:
    """Return the original images (None for float tensors) and the model's input batch.

    Float tensors are used unchanged. Paths, bytes, PIL images and 8-bit arrays or tensors go through the model's
    preprocessing.
    """
    if isinstance(model, Network) and model.clip is not None:
        return None, model.clip.checked(images, model.name)
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4 and is_eight_bit(images):
        images = list(images)  # one array per image
    if is_prepared(images):
        return None, checked_batch(model, images)
    sources: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
    check_sources(sources)
    if is_prepared(sources[0]):
        return None, checked_batch(model, torch.stack([t[0] if t.ndim == 4 and len(t) == 1 else t for t in sources]))
    if model.preprocess is None:
        wrapped = f"wrap(model, {'' if isinstance(model, Network) else 'black_box=True, '}preprocess=…)"
        raise ModelError(f"{model.name!r} does not say how images are prepared; pass tensors, or {wrapped}")
    originals = tuple(open_image(source) for source in sources)
    return originals, model.preprocess.batch(list(originals))


def checked_batch(model: BlackBox, images: Tensor) -> Images:
    """A tensor of one or several prepared images as the model's input batch; a ShapeError if it does not fit the model."""
    batch = images[None] if images.ndim == 3 else images
    if batch.ndim != 4 or batch.shape[1] != model.channels or not len(batch):
        raise ShapeError(f"images must be [b {model.channels} H W] with at least one image, not {list(images.shape)}")
    if not batch.is_floating_point():
        raise ShapeError(
            f"images must be normalised floats, or uint8 colours from 0 to 255 to have them prepared, not {batch.dtype}"
        )
    return batch.clone() if batch.is_inference() else batch


def check_sources(sources: list[Any]) -> None:
    """Raise a ShapeError unless all entries of a list are images, or all are prepared tensors of one shape."""
    if not sources:
        raise ShapeError("no images were given")
    for source in sources:
        if not isinstance(source, Tensor | np.ndarray | str | bytes | PathLike | Image):
            raise ShapeError(
                f"an image is a path, a PIL image, a uint8 array [H, W, 3] or a tensor, not {type(source).__name__!r}"
            )
    shapes = {tuple(source.shape) for source in sources if is_prepared(source)}
    if shapes and not all(map(is_prepared, sources)):
        raise ShapeError("tensors and images cannot be mixed in one list")
    if len(shapes) > 1:
        raise ShapeError(f"images of one batch must have one shape, not {sorted(shapes)}")


def is_prepared(image: Any) -> TypeGuard[Tensor]:
    """Whether an image is a tensor of the model's input; 8-bit tensors still have to be preprocessed."""
    return isinstance(image, Tensor) and not is_eight_bit(image)


def is_eight_bit(array: np.ndarray | Tensor) -> bool:
    return array.dtype in (torch.uint8, np.uint8)
