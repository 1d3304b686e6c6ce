"""Main entry points: load, wrap, explain, inside, list_methods, list_models."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from vitreous.capture.black_box_probe import as_constant
from vitreous.capture.handshake import Agreement, agreed, compare_with_model, confirm
from vitreous.capture.score_function import PROBABILITIES, Question, ask
from vitreous.capture.see_through import examined, fits
from vitreous.capture.targets import ClassTarget, Target
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import Caveat, ModelError, ShapeError, SpecError
from vitreous.explanation import cautions, choose_score_function, explain_batch, precision_of
from vitreous.methods.attribution import TENSORS, Attribution
from vitreous.methods.inside import Inside, watch
from vitreous.methods.method import METHODS, Method, black_box_methods
from vitreous.methods.spec import resolve
from vitreous.models.black_box import greet, opaque
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import open_picture
from vitreous.models.load import adapt, build
from vitreous.models.model import BlackBox, Network
from vitreous.models.outputs import check_declared, checked_names
from vitreous.models.scored import scored
from vitreous.models.tensor_types import Images
from vitreous.models.transforms import as_preprocess
from vitreous.models.vit import ViT

# Cached handshake result per module, with the module's structure and hooks at that time (checked before reuse).
WRAPPED: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], Agreement]] = WeakKeyDictionary()


def load(
    name: str,
    checkpoint: str | Path | None = None,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    *,
    preprocess: Any = None,
    classes: Sequence[str] | None = None,
    outputs: Literal["binary"] | None = None,
    **kwargs: Any,
) -> ViT:
    """Load a model by name and check that the adapter reproduces its logits.

    Parameters
    ----------
    name
        For example "timm:vit_base_patch16_224", "hf:google/vit-base-patch16-224", "torchvision:vit_b_16" or "scenes".
    checkpoint
        Path of a local safetensors or torch file with the weights. Torch files are read with `weights_only=True`.
    pretrained
        Whether to download pretrained weights if no checkpoint is given. If False, weights are random.
    device
        For example "cpu" or "cuda". If None, the builder's default device.
    preprocess
        Replaces the preprocessing of the model's own library; accepts the same values as in `wrap`.
    classes
        Class names, one per output. Two names for a single output declare it as binary.
    outputs
        "binary": the model has a single output, the logit of a binary classifier (sigmoid). None: a single output is a
        regression value, which is explained as it is; several outputs are classes.
    **kwargs
        Passed to the builder: `img_size=`, `num_classes=`, …

    Returns
    -------
    ViT
        The adapted model.

    Raises
    ------
    ModelError
        If the model does not exist, the weights do not fit, the adapter's logits differ from the model's, or `classes`
        and `outputs` do not fit its outputs.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.load("scenes")
    ViT('scenes', 12 blocks, 112x112, torch.float32, cpu)
    >>> vitreous.load("timm:vit_tiny_patch16_224", pretrained=False, num_classes=5).outputs
    5
    """
    check_declared(outputs)
    classes = checked_names(classes)  # fail before weights are downloaded
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    vit = confirm(build(name, checkpoint=checkpoint, pretrained=pretrained, device=device, **kwargs), classes, outputs)
    return vit if preprocess is None else replace(vit, preprocess=preprocess)


def wrap(
    model: Any,
    name: str | None = None,
    *,
    preprocess: Any = None,
    classes: Sequence[str] | None = None,
    outputs: Literal["binary"] | None = None,
    black_box: bool = False,
) -> BlackBox:
    """Adapt an existing module to a `ViT` and check that the adapter reproduces its logits.

    The module is not modified.

    Parameters
    ----------
    model
        A timm, Hugging Face or torchvision transformer, optionally with LoRA layers or inside a PEFT model.
    name
        Name of the model in captions and files.
    preprocess
        Converts images to tensors: a `Preprocess`, a torchvision transform (or weights), a timm transform, a Hugging
        Face image processor, or any callable from an RGB PIL image to a float tensor [3, H, W]. If the geometry of the
        transform is known, maps are projected back onto the original image; otherwise a `Caveat` is issued. None uses
        the model's own configuration: timm's data config, or the processor in the folder that a Hugging Face model was
        loaded from.
    classes
        Class names, one per output. Two names for a single output declare it as binary.
    outputs
        "binary": the model has a single output, the logit of a binary classifier (sigmoid). None: a single output is a
        regression value, which is explained as it is; several outputs are classes.
    black_box
        Use the model only as a function from images to logits. The number of class names is then checked when the
        first image is run.

    Returns
    -------
    ViT
        The adapted model.

    Raises
    ------
    ModelError
        If the architecture is not supported, the adapter's logits differ from the model's, or `classes` and `outputs`
        do not fit its outputs.

    Examples
    --------
    >>> import timm
    >>> import vitreous
    >>> model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=2)
    >>> vit = vitreous.wrap(model, classes=["cat", "dog"])
    >>> vit.class_name(1)
    'dog'
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"a model is an nn.Module, a ViT or a name such as 'timm:vit_base_patch16_224', not {type(model).__name__!r}"
        )
    if name is not None and not isinstance(name, str):
        raise ModelError(f"name is text, what the model is called in captions, not {name!r}")
    preprocess = None if preprocess is None else as_preprocess(preprocess)
    if black_box:
        return opaque(model, name=name, preprocess=preprocess, classes=classes, outputs=outputs)
    parts = tuple(
        (id(part), len(part._forward_hooks), len(part._forward_pre_hooks), "forward" in vars(part))
        for part in model.modules()
    )
    vit, known = adapt(model), WRAPPED.get(model)
    if known is not None and known[0] == parts:
        agreement = known[1]
    else:
        agreement = compare_with_model(vit)
        WRAPPED[model] = (parts, agreement)
    changes: dict[str, Any] = {"name": name} if name else {}
    changes |= {"preprocess": preprocess} if preprocess is not None else {}
    return agreed(replace(vit, **changes), agreement, classes, outputs)


def explain(
    model: Any,
    images: Any,
    target: Any = None,
    method: str | Method = DEFAULT_METHOD,
    question: str | Question | Any | None = None,
    *,
    score: Any = None,
    batch_size: int = 32,
    hold: bool | None = None,
    precision: str | None = None,
    **options: Any,
) -> Attribution:
    """Compute attribution maps: the contribution of each patch (or pixel) to a score of the model.

    Parameters
    ----------
    model
        A `ViT` from `load` or `wrap`, an `nn.Module`, or a model name.
    images
        A preprocessed float tensor [b 3 H W]; or a path, a PIL image, a uint8 array [H W 3] (also [H W], [H W 4], or a
        tensor [3 H W]), or a list of these, which are preprocessed here.
    target
        None for the predicted class; a class index or name; one per image; [b k] for k classes per image (returned as
        b·k rows in that order); or a `text_target`. A model with a single regression output has only target 0.
    method
        Method spec, such as "temper" or "decompx+plus".
    question
        Score function that is explained: "logit", "probability" (softmax), "log-probability", "margin", "sigmoid"
        (for multi-label heads), or a callable of the logits, or of logits and targets. None uses the score function of
        the method's paper, except for text targets (the cosine) and regression models (the output value). A score
        function named in the method spec takes precedence.
    score
        For a `Network` or a black box: a function of whatever the model returns, with one number per image, which is
        explained instead of a class; `vitreous.scores` has the common ones.
    batch_size
        Number of images explained at once.
    hold
        True keeps the whole autograd graph, False recomputes it block by block, None decides by the free memory. The
        results are the same.
    precision
        Precision of the products in a float32 model: "float32"; "tf32" (on GPUs that have it); "bf16", bfloat16 in the
        blocks with residual stream, norms, sums and head in float32, for methods that keep their ranks with it, and
        "tf32" for others; "auto", which is "tf32". None leaves torch's settings as they are. The provenance says which
        one was used.
    **options
        Options of the method.

    Returns
    -------
    Attribution
        One row per image and target.

    Raises
    ------
    VitreousError
        If model, images, target, question or method do not fit together; the message names valid alternatives.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, method="decompx+skipplus")
    >>> attribution.patches.shape
    torch.Size([1, 196])
    >>> attribution.pixels().shape
    torch.Size([1, 112, 112])
    """
    check_batch_size(batch_size)
    if hold not in (None, True, False):
        raise SpecError(f"hold={hold!r}; True, False or None would work")
    chosen = resolve(method, **options)
    vit = model if isinstance(model, BlackBox) else load(model) if isinstance(model, str) else looked_at(model, chosen)
    vit = vit if score is None else scored(vit, score)
    chosen, wanted = chosen.for_model(vit), as_target(target)
    precision_of(chosen, vit, precision)  # fail before images are read
    if question is not None:
        ask(question)  # fail before images are read
    with torch.inference_mode(False), evaluating(vit.module):
        pictures, tensor = as_images(vit, images)
        tensor = as_constant(tensor)
        refuse_not_finite(tensor)
        vit = answered(vit, tensor)
        score_function = choose_score_function(vit, wanted, chosen, question)
        wanted = wanted.fit(vit, len(tensor))
        if caution := cautions(chosen, vit):
            warnings.warn(f"{chosen.spec} on {vit.name}: {caution}", Caveat, stacklevel=2)
        starts = range(0, len(tensor), batch_size)
        batches = [slice(start, min(start + batch_size, len(tensor))) for start in starts]
        parts = [
            explain_batch(vit, tensor[rows], wanted.batch(rows), chosen, score_function, hold=hold, precision=precision)
            for rows in batches
        ]
    attribution = with_faint_caution(join(parts), score_function)
    targets_per_image = len(attribution) // len(tensor)
    shown = vit.clip.frames_first(tensor) if isinstance(vit, Network) and vit.clip is not None else tensor
    return replace(
        attribution,
        images=shown if targets_per_image == 1 else shown.repeat_interleave(targets_per_image, 0),
        pictures=None if pictures is None else tuple(p for p in pictures for _ in range(targets_per_image)),
        preprocess=vit.preprocess,
    )


def as_target(target: Any) -> Target:
    """Return the `target` of `explain` as a `Target`: everything but a target is taken as classes."""
    return target if isinstance(target, Target) else ClassTarget(target)


def with_faint_caution(attribution: Attribution, score_function: Question) -> Attribution:
    """Add a caveat to the provenance if a map is negligible compared with the score that it explains."""
    if not attribution.negligible.any():
        return attribution
    faint = "a map adds up to less than a ten-thousandth of the number that it explains, so its colours show next to nothing"
    remedy = "; question='logit' may have more to show" if score_function.name in PROBABILITIES else ""
    caution = attribution.provenance.get("caveat", "")
    caveat = f"{caution}; {faint}{remedy}" if caution else faint + remedy
    return replace(attribution, provenance={**attribution.provenance, "caveat": caveat})


def inside(
    model: Any,
    images: Any,
    target: Any = None,
    method: str | Method = "decompx+plus",
    question: str | Question | Any | None = None,
    *,
    batch_size: int = 32,
    hold: bool | None = None,
    precision: str | None = None,
    **options: Any,
) -> Inside:
    """Compute an attribution map and the intermediate maps of every layer.

    Sums over layers ("decompx+plus", "gradcam+skipplus") record `signal` and `sum`, roll-outs ("genatt") record `taken`
    and `carried`, and "tokentm" also records `attention`, `length` and `necc`.

    Parameters
    ----------
    model, images, target, question, batch_size, hold, precision, **options
        As for `explain`.
    method
        Method spec with a fold over all layers: "plus", "skipplus" or "rollout".

    Returns
    -------
    Inside
        The attribution and the per-layer maps.

    Raises
    ------
    SpecError
        If the method has no fold or reads a single layer.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> layers = vitreous.inside(vit, images, method="decompx+plus")
    >>> layers.maps("signal").shape  # one map per layer, on the grid of patches
    torch.Size([1, 12, 14, 14])
    """
    heard = watch(resolve(method, **options))
    how = {"batch_size": batch_size, "hold": hold, "precision": precision}
    return heard.told(explain(model, images, target, heard.watched(), question, **how))


def looked_at(model: Any, method: Method) -> BlackBox:
    """Wrap a model; if its architecture is not supported, treat it as a black box where the method allows it."""
    try:
        return wrap(model)
    except ModelError as problem:
        if not isinstance(model, nn.Module):
            raise
        if method.black_box is None:
            raise ModelError(
                f"{problem}. {method.name!r} looks inside the model; as a black box it can be explained by: {black_box_methods()}"
            ) from None
        return opaque(model, str(problem))


def answered(vit: BlackBox, images: Images) -> BlackBox:
    """Return `vit` with known outputs: run a black box on the first image, do the handshake of a hand-made `ViT`."""
    if isinstance(vit, ViT):
        return vit if vit.output_type is not None else confirm(vit)
    if isinstance(vit, Network) and not fits(vit, images):
        vit = examined(vit, images[:1].to(vit.device, vit.dtype))
    return vit if isinstance(vit, Network) and vit.output_type is not None else greet(vit, images)


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


def as_images(vit: BlackBox, images: Any) -> tuple[tuple[Any, ...] | None, Images]:
    """Return the original images (None for float tensors) and the model's input batch.

    Float tensors are used unchanged. Paths, bytes, PIL images and 8-bit arrays or tensors go through the model's
    preprocessing.
    """
    if isinstance(vit, Network) and vit.clip is not None:
        return None, vit.clip.checked(images, vit.name)
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4 and is_eight_bit(images):
        images = list(images)  # one array per image
    if isinstance(images, Tensor) and not is_eight_bit(images):
        batch = images[None] if images.ndim == 3 else images
        if batch.ndim != 4 or batch.shape[1] != 3 or not len(batch):
            raise ShapeError(f"images must be [b 3 H W] with at least one image, not {list(images.shape)}")
        if not batch.is_floating_point():
            raise ShapeError(
                f"images must be normalised floats, or uint8 colours from 0 to 255 to have them prepared, not {batch.dtype}"
            )
        return None, batch.clone() if batch.is_inference() else batch
    sources: list[Any] = list(images) if isinstance(images, list | tuple) else [images]
    if not sources:
        raise ShapeError("no images were given")
    for source in sources:
        if not isinstance(source, Tensor | np.ndarray | str | bytes | PathLike | Image):
            raise ShapeError(
                f"an image is a path, a PIL image, a uint8 array [H, W, 3] or a tensor, not {type(source).__name__!r}"
            )
    prepared = [isinstance(source, Tensor) and not is_eight_bit(source) for source in sources]
    if any(prepared) and not all(prepared):
        raise ShapeError("tensors and images cannot be mixed in one list")
    if all(prepared):
        shapes = {tuple(source.shape) for source in sources}
        if len(shapes) > 1:
            raise ShapeError(f"images of one batch must have one shape, not {sorted(shapes)}")
        return as_images(vit, torch.stack([t[0] if t.ndim == 4 and len(t) == 1 else t for t in sources]))
    if vit.preprocess is None:
        wrapped = f"wrap(model, {'' if isinstance(vit, Network) else 'black_box=True, '}preprocess=…)"
        raise ModelError(f"{vit.name!r} does not say how images are prepared; pass tensors, or {wrapped}")
    pictures = tuple(open_picture(source) for source in sources)
    return pictures, vit.preprocess.batch(list(pictures))


def is_eight_bit(array: np.ndarray | Tensor) -> bool:
    return array.dtype in (torch.uint8, np.uint8)


def join(parts: list[Attribution]) -> Attribution:
    """Concatenate the attributions of consecutive batches."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: [getattr(part, name) for part in parts] for name in TENSORS}
    joined = {name: None if c[0] is None else torch.cat(c) for name, c in columns.items()}
    names = None if parts[0].names is None else tuple(name for part in parts for name in part.names or ())
    return replace(parts[0], **joined, names=names, signed=any(part.signed for part in parts))


def list_methods() -> list[dict[str, Any]]:
    """List all registered methods.

    Returns
    -------
    list of dict
        One entry per method, sorted by name: title, formula, options, paper and properties (see `catalogue.facts`).

    Examples
    --------
    >>> import vitreous
    >>> [method["name"] for method in vitreous.list_methods() if method["family"] == "Vector norms"]
    ['alti', 'attin', 'globenc']
    """
    from vitreous.catalogue import facts
    from vitreous.methods import load_all

    load_all()
    return [facts(METHODS[name]) for name in sorted(METHODS)]


def list_models() -> list[dict[str, Any]]:
    """List the supported model families.

    Returns
    -------
    list of dict
        Entries with `family`, `example` (a name for `load`), `notes` and `origin` (the package that registered it).

    Examples
    --------
    >>> import vitreous
    >>> [model["example"] for model in vitreous.list_models() if model["family"] == "BEiT"]
    ['timm:beit_base_patch16_224']
    """
    from vitreous.models.model_registry import SOURCES, load_all

    load_all()
    return [
        {**family._asdict(), "origin": SOURCES.owner(name).split(".")[0]}
        for name in sorted(SOURCES)
        for family in SOURCES[name].families
    ]
