"""Main entry points: explain and inside; load and wrap are in `vitreous.wrapping`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from vitreous.arguments import as_target, check_batch_size, describe_model, prepare_images, size_of
from vitreous.capture.argument_types import ImageInput, ModelInput, OutputScore, QuestionInput, TargetInput
from vitreous.capture.black_box_probe import as_constant
from vitreous.capture.cuda_graphs import CALLS_BEFORE_RECORDING, GraphCache, cache_of
from vitreous.capture.precision import without_autocast
from vitreous.capture.score_function import resolve_score_function
from vitreous.core.defaults import DEFAULT_METHOD
from vitreous.core.errors import Caveat, SpecError
from vitreous.core.progress import show_progress
from vitreous.explanation import (
    cautions,
    choose_score_function,
    explain_batch,
    precision_of,
)
from vitreous.map_findings import UNDEFINED, with_cautions
from vitreous.methods.attribution import Attribution, join_attributions
from vitreous.methods.inside import Inside, make_recorder
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.models.eval_mode import evaluating
from vitreous.models.model import BlackBox, Network
from vitreous.models.scenes import caution_of_images
from vitreous.models.tensor_types import Images
from vitreous.wrapping import load, wrap

__all__ = ["explain", "inside", "load", "wrap"]


@without_autocast()
def explain(
    model: ModelInput,
    images: ImageInput,
    target: TargetInput = None,
    method: str | Method = DEFAULT_METHOD,
    question: QuestionInput | None = None,
    *,
    score: OutputScore | None = None,
    batch_size: int = 32,
    hold: bool | None = None,
    precision: str | None = None,
    differentiable: bool = False,
    cuda_graph: bool | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Attribution:
    """Compute attribution maps: the contribution of each patch (or pixel) to a score of the model.

    Parameters
    ----------
    model
        A model from `load`, `wrap` or `see_through`, an `nn.Module`, or a model name.
    images
        A preprocessed float tensor [b c H W]; or a path, a PIL image, a uint8 array [H W 3] (also [H W], [H W 4], or a
        tensor [3 H W]), or a list of these, which are preprocessed here.
    target
        None for the predicted class; a class index or name; one per image; [b k] for k classes per image (returned as
        b·k rows in that order); or a `text_target`. For a whole CLIP or SigLIP model of Hugging Face with a saved
        tokenizer: prompts, compared with each other for every image (`prompt_target` takes another tokenizer). A model
        with a single regression output has only target 0.
    method
        Method spec, such as "decompx+plus"; "temper" by default.
    question
        The score that is explained. "contrast", why this class rather than another: the softmax "probability".
        "support", the evidence for the class, whatever the other classes get: the "logit". Or "log-probability",
        "margin" (to the runner-up), "sigmoid" (for multi-label heads), or a callable of the logits, or of logits and
        targets. None uses the score function of the method's paper, except for text targets (the cosine) and regression
        models (the output value). A score function named in the method spec takes precedence.
    score
        A function of whatever the module returns, with one number per image, which is explained instead of a class;
        `vitreous.scores` has the common ones. A `ViT` is then explained as a `Network`.
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
    differentiable
        Whether maps keep a graph to the parameters and to the images, so that a loss can be put on them (see
        `vitreous.losses`). For methods of one backward pass on a `ViT` or a network; the whole graph is held in memory.
    cuda_graph
        On a GPU, whether the kernels of a batch are recorded as a CUDA graph and replayed for further batches of the same
        shape, which removes the time to launch them one by one. For methods of one pass over the layers; results are those
        of the kernels. None does so within one call, if it has many batches. True keeps the graphs of a model from `load`
        or `wrap` for later calls, with the memory of a pass; weights may change in place, but nothing else in the model.
        False never does.
    progress
        Whether to show a bar on stderr if it takes more than two seconds. None does so in terminals and notebooks.
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
    check_switches(hold=hold, differentiable=differentiable, cuda_graph=cuda_graph, progress=progress)
    resolved = resolve(method, **options)
    described = describe_model(model, size_of(images), score, method=resolved)
    resolved, explained_target = resolved.for_model(described), as_target(model, target)
    precision_of(resolved, described, precision)  # fail before images are read
    if question is not None:
        resolve_score_function(question)  # fail before images are read
    with torch.inference_mode(False), evaluating(described.module):
        described, originals, inputs = prepare_images(described, images)
        inputs = inputs if differentiable else as_constant(inputs)
        score_function = choose_score_function(described, explained_target, resolved, question)
        explained_target = explained_target.fit(described, len(inputs))
        if caution := cautions(resolved, described):
            warnings.warn(f"{resolved.spec} on {described.name}: {caution}", Caveat, stacklevel=2)
        batches = [slice(start, start + batch_size) for start in range(0, len(inputs), batch_size)]
        graphs = cache_of(described) if cuda_graph else None
        is_own_score = score is not None or callable(question)
        if cuda_graph is None and not is_own_score and len(batches) > 2 * CALLS_BEFORE_RECORDING:
            graphs = GraphCache()  # for the batches of this call
        attributions = []
        with show_progress(progress, f"{resolved.spec}, batches", len(batches)) as display:
            for batch in batches:
                display.begin_step(resolved.spec)
                explained = explain_batch(
                    described,
                    inputs[batch],
                    explained_target.batch(batch),
                    resolved,
                    score_function,
                    hold=hold,
                    precision=precision,
                    differentiable=differentiable,
                    graphs=graphs,
                )
                attributions.append(explained)
                display.end_step()
    attribution = join_attributions(attributions)
    if UNDEFINED in attribution.provenance.get("caveat", ""):
        warnings.warn(f"{resolved.spec} on {described.name}: {UNDEFINED}", Caveat, stacklevel=2)
    if caution := caution_of_images(described, inputs):
        if originals is not None:  # a tensor may be anything, so that the caveat is in the provenance alone
            warnings.warn(f"{described.name}: {caution}", Caveat, stacklevel=2)
        attribution = with_cautions(attribution, [caution])
    return with_images(attribution, described, originals, inputs)


def check_switches(**switches: Any) -> None:
    """Raise a SpecError unless every value is True, False or None."""
    for name, value in switches.items():
        if not (value is None or isinstance(value, bool)):
            raise SpecError(f"{name}={value!r}; True, False or None would work")


def with_images(
    attribution: Attribution, model: BlackBox, originals: tuple[Any, ...] | None, inputs: Images
) -> Attribution:
    """The attribution with what its figures are drawn on: the model's input and the original image of every row."""
    targets_per_image = len(attribution) // len(inputs)
    images = model.clip.frames_first(inputs) if isinstance(model, Network) and model.clip is not None else inputs
    return replace(
        attribution,
        images=images if targets_per_image == 1 else images.repeat_interleave(targets_per_image, 0),
        originals=None if originals is None else tuple(image for image in originals for _ in range(targets_per_image)),
        preprocess=model.preprocess,
    )


def inside(
    model: ModelInput,
    images: ImageInput,
    target: TargetInput = None,
    method: str | Method = "decompx+plus",
    question: QuestionInput | None = None,
    *,
    batch_size: int = 32,
    hold: bool | None = None,
    precision: str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Inside:
    """Compute an attribution map and the intermediate maps of every layer.

    Sums over layers ("decompx+plus", "gradcam+skipplus") record `signal` and `sum`, roll-outs ("genatt") record `taken`
    and `carried`, and "tokentm" also records `attention`, `length` and `necc`.

    Parameters
    ----------
    model, images, target, question, batch_size, hold, precision, progress, **options
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
    watcher = make_recorder(resolve(method, **options))
    how = {"batch_size": batch_size, "hold": hold, "precision": precision, "progress": progress}
    return watcher.build_result(explain(model, images, target, watcher.watched(), question, **how))
