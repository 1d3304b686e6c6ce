"""`explain_batch`: the attribution of one batch with its provenance, for `explain`, benchmarks and the playground."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vitreous import __version__
from vitreous.capture.argument_types import QuestionInput
from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.bypass import network_cautions
from vitreous.capture.cuda_graphs import GraphCache, module_state
from vitreous.capture.differentiable import keeps_graph
from vitreous.capture.linearise import PLAIN
from vitreous.capture.network_probe import MixedImagesError
from vitreous.capture.precision import computing, effective_precision, half_products
from vitreous.capture.probe import probe_of
from vitreous.capture.score_function import ScoreFunction, resolve_score_function
from vitreous.capture.targets import ClassTarget, Target
from vitreous.core.errors import SpecError
from vitreous.map_findings import MapFindings, with_cautions
from vitreous.methods.attribution import Attribution, join_attributions
from vitreous.methods.method import Method
from vitreous.methods.recipe import LayerSignal
from vitreous.models.model import BlackBox, Network
from vitreous.models.random_weights import weights_caution
from vitreous.models.tensor_types import Images
from vitreous.models.vit import ViT


def explain_batch(
    model: BlackBox,
    images: Images,
    target: Target,
    method: Method,
    score_function: ScoreFunction,
    *,
    hold: bool | None = None,
    precision: str | None = None,
    probe: BlackBoxProbe | None = None,
    differentiable: bool = False,
    graphs: GraphCache | None = None,
) -> Attribution:
    """Compute the maps of one batch and check them.

    Parameters
    ----------
    model
        The model, with known outputs.
    images
        Preprocessed images [b 3 H W].
    target
        Targets of these images, after `Target.fit`.
    method
        The method, in the form for this model (`Method.for_model`).
    score_function
        Result of `choose_score_function`.
    hold
        As for `Probe`.
    precision
        As for `explain`.
    probe
        A probe of these images, targets and score function whose forward results are reused if they were computed with
        the same products; made here by default.
    differentiable
        Whether the maps keep a graph to the parameters and the images.
    graphs
        CUDA graphs of earlier batches, which are replayed for batches of the same shape; None calls every kernel.

    Returns
    -------
    Attribution
        One row per image and target, with names, cautions and provenance.

    Raises
    ------
    VitreousError
        If a map is undefined or shows something else than the model computes. `row_errors` of the error has the error
        of every such row; the others can be explained.
    """

    effective = precision_of(method, model, precision)

    def compute(batch: slice, probe: BlackBoxProbe | None) -> Attribution:
        part = target.batch(batch)
        attribution = compute_batch(
            model,
            images[batch],
            part,
            method,
            score_function,
            hold=hold,
            precision=precision,
            probe=probe,
            differentiable=differentiable,
            graphs=graphs,
        )
        return part.describe(attribution, model)

    def inspect(attribution: Attribution) -> MapFindings:
        with computing(effective, model.device):
            return MapFindings.of(attribution, model, method, images).on_cpu()

    whole, singles = slice(0, len(images)), [slice(index, index + 1) for index in range(len(images))]
    attribution = compute(whole, probe)
    findings = inspect(attribution)
    if isinstance(model, Network) and len(singles) > 1 and findings.row_errors(model, method, score_function):
        # in a model that sorts its tokens, shares of constants may be those of other images of the batch
        attribution = join_attributions([compute(single, None) for single in singles])
        findings = inspect(attribution)
    if row_errors := findings.row_errors(model, method, score_function):
        error = row_errors[min(row_errors)]
        error.row_errors = row_errors
        raise error
    return with_cautions(attribution, findings.cautions(score_function))


def compute_batch(
    model: BlackBox,
    images: Images,
    target: Target,
    method: Method,
    score_function: ScoreFunction,
    *,
    hold: bool | None = None,
    precision: str | None = None,
    probe: BlackBoxProbe | None = None,
    differentiable: bool = False,
    graphs: GraphCache | None = None,
) -> Attribution:
    """Compute the maps of one batch, without waiting for the device; parameters as for `explain_batch`, which checks them."""
    if isinstance(model, Network) and model.separate and len(images) > 1:
        parts = [slice(index, index + 1) for index in range(len(images))]
        return join_attributions(
            [
                compute_batch(
                    model,
                    images[part],
                    target.batch(part),
                    method,
                    score_function,
                    hold=hold,
                    precision=precision,
                    differentiable=differentiable,
                )
                for part in parts
            ]
        )

    def make_probe(differentiable: bool = False) -> BlackBoxProbe:
        explained, classes = target.outputs(model, len(images))
        return probe_of(explained, images, classes, score_function, hold, differentiable=differentiable)

    def run(effective: str | None) -> Attribution:
        with computing(effective, model.device):
            if differentiable:
                return method(make_probe(differentiable=True))
            if graphs is not None and isinstance(target, ClassTarget) and can_be_recorded(method, model, hold):
                return run_recorded(graphs, model, images, target, method, score_function)
            return method(make_probe() if probe is None or probe.half_products != half_products() else probe)

    effective = precision_of(method, model, precision)
    try:
        attribution = run(effective)
    except MixedImagesError:
        assert isinstance(model, Network)
        return compute_batch(
            replace(model, separate=True),
            images,
            target,
            method,
            score_function,
            hold=hold,
            precision=precision,
            differentiable=differentiable,
        )
    if differentiable and not keeps_graph(attribution.patches):
        raise SpecError(
            f"{method.spec!r} does not keep the graph of its maps; differentiable=True works with methods of one backward pass, "
            "such as 'temper', 'decompx+plus', 'gradcam' and 'genatt'"
        )
    caveats = (cautions(method, model, attribution.provenance.get("bypass", 0.0)), weights_caution(model))
    about = {
        **attribution.provenance,
        **provenance(model, method, score_function, images, "; ".join(filter(None, caveats))),
        **({} if effective is None else {"precision": effective}),
        **target.provenance(score_function, method.linearisation),
    }
    return replace(attribution, provenance=about)


def can_be_recorded(method: Method, model: BlackBox, hold: bool | None = None) -> bool:
    """Whether a map can be computed as one CUDA graph: one pass over the layers, held in the memory of a GPU."""
    return model.device.type == "cuda" and isinstance(method.recipe, LayerSignal) and hold is not False


def run_recorded(
    graphs: GraphCache,
    model: BlackBox,
    images: Images,
    target: ClassTarget,
    method: Method,
    score_function: ScoreFunction,
) -> Attribution:
    """Attribution of a batch, by a replay if batches of this shape were computed before."""

    def compute(images: Images, classes: Int[Tensor, "b k"] | None = None) -> Attribution:
        return method(probe_of(model, images, classes, score_function, hold=True))

    inputs = [images.to(model.device, model.dtype)]
    if target.classes is not None:
        inputs.append(target.classes.to(model.device))
    key = (id(model), method.spec, score_function.name, half_products(), module_state(model.module))
    rounded = half_products() or torch.get_float32_matmul_precision() != "highest" or model.dtype.itemsize < 4
    return graphs.run(key, compute, inputs, 1e-2 if rounded else 1e-4)


def choose_score_function(
    model: BlackBox, target: Target, method: Method, question: QuestionInput | None = None
) -> ScoreFunction:
    """Return the score function to explain.

    Parameters
    ----------
    model
        The model, with known outputs.
    target
        The target.
    method
        The method; a score function in its spec takes precedence.
    question
        Score function of the caller: a name, a `ScoreFunction` or a callable; None for the default.
    """
    return target.score_function(resolve_score_function(method.chosen_question(question, scalar=target.scalar(model))))


def precision_of(method: Method, model: BlackBox, precision: str | None) -> str | None:
    """Return the precision that this method is computed in on this model; see `effective_precision`.

    bfloat16 products are used in models with an adapter, whose residual stream and head can be left in float32, for
    methods that keep their ranks with them.
    """
    lowest = lowest_precision(method)
    return effective_precision(precision, model, lowest if lowest == "float32" or isinstance(model, ViT) else "tf32")


def lowest_precision(method: Method) -> str:
    """Return the lowest precision that keeps the ranks of this method's map: `Facts.precision` where it was measured.

    It was measured with the method's own options, linearisation and fold, and under PLUS and SkipPLUS; other bfloat16
    forms are not promised.
    """
    lowest, own = method.facts.precision, method.registered or method
    if lowest in ("float32", "tf32"):
        return lowest
    folds = {None if own.fold is None else own.fold.name, "plus", "skipplus"}
    fold = None if method.fold is None else method.fold.name
    options = method.options.keys() - {"question", *method.facts.trial}
    measured = fold in folds and not options and method.linearisation == own.linearisation
    return lowest if measured else "tf32"


def cautions(method: Method, model: BlackBox, bypass: float = 0.0) -> str:
    """Return the caveats for this method on this model, separated by semicolons, or an empty string.

    `bypass` is the share of what the model makes of these images that passed by its blocks.
    """
    caveats = network_cautions(model, bypass) if isinstance(model, Network) and not isinstance(model, ViT) else []
    if isinstance(model, ViT) and not model.affine and method.linearisation != PLAIN:
        caveats.append(
            "the model's head is not affine (an MLP?), and nothing in it is held fixed, so shares do not add up to the score"
        )
    elif isinstance(model, ViT) and method.facts.caveat:
        caveats.append(method.facts.caveat(method, model))
    lowest = lowest_precision(method)
    advised = lowest if lowest == "float32" or isinstance(model, ViT) else "tf32"  # as `precision_of` computes it
    if model.dtype.itemsize < 4 and lowest != "bf16 weights":
        rounded = (
            f"the weights are {str(model.dtype).removeprefix('torch.')}, whose rounding moves the ranks of this map"
        )
        caveats.append(f"{rounded}; convert them by module.float() and use precision={advised!r}")
    return "; ".join(filter(None, caveats))


def provenance(
    model: BlackBox, method: Method, question: ScoreFunction, images: Images, caution: str
) -> dict[str, Any]:
    """Return versions, model, method, options and score function as plain values."""
    output_type = model.output_type
    outputs: dict[str, Any] = {} if output_type is None else {"outputs": output_type.count}
    if output_type is not None and output_type.kind != "classes":
        outputs["output_type"] = output_type.kind
    reasons = {"black_box": model.reason, "embedding": model.embedding, "declared_outputs": model.declared}
    return {
        "vitreous": __version__,
        "torch": torch.__version__,
        "model": model.name,
        **model.origin.record,
        **outputs,
        **({"affine": model.affine} if isinstance(model, ViT) else {}),
        **{key: reason for key, reason in reasons.items() if reason},
        "method": method.spec,
        "options": {
            key: value
            for key, value in method.settings.items()
            if key != "question" and (value is None or isinstance(value, str | int | float | bool))
        },
        "linearisation": asdict(method.linearisation),
        "fold": None if method.fold is None else method.fold.name,
        "question": question.name,
        "precision": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "image_size": list(images.shape[-2:]),
        **({"caveat": caution} if caution else {}),
    }
