"""Check on random images that the adapter's parts reproduce the model's logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from vitreous.capture.forward import adapter_logits
from vitreous.core.errors import ModelError, NotAdaptedError, unexpected_errors_as
from vitreous.models.black_box import refuse_inference_tensors
from vitreous.models.eval_mode import evaluating
from vitreous.models.module_structure import hooks_of, structure_of
from vitreous.models.outputs import with_outputs
from vitreous.models.random_draws import normal_numbers
from vitreous.models.vit import LinearPool, ViT

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of comparing a model with its adapter."""

    gap: float  # largest difference of the logits, relative to the largest logit
    count: int  # number of outputs of the model
    affine: bool  # whether the classifier is affine


def check_adapter(vit: ViT, classes: Any = None, outputs: str | None = None) -> ViT:
    """Compare the parts with the model and return `vit` with its outputs set; `classes` and `outputs` as for `vitreous.wrap`."""
    return with_agreement(vit, compare_with_model(vit), classes, outputs)


def with_agreement(vit: ViT, agreement: Agreement, classes: Any = None, outputs: str | None = None) -> ViT:
    """Return `vit` with its outputs set from the result of an earlier comparison of the same module."""
    vit = replace(vit, affine=agreement.affine, structure=structure_of(vit.module))
    return with_outputs(vit, agreement.count, classes, outputs)


def compare_with_model(vit: ViT, seed: int = 0) -> Agreement:
    """Run model and adapter on a random batch and compare their logits.

    Parameters
    ----------
    vit
        The adapted model.
    seed
        Seed of the random batch.

    Raises
    ------
    NotAdaptedError
        If the logits differ by more than the tolerance of the model's precision, or the model cannot be run.
    ModelError
        If the logits are not finite, the model has no values (device "meta"), or it returns probabilities.
    """
    if vit.device.type == "meta":
        raise ModelError(f"{vit.name!r} lies on the device 'meta' and has no values; load its weights onto 'cpu' first")
    refuse_inference_tensors(vit.module, vit.name)
    generator = torch.Generator().manual_seed(seed)
    images = normal_numbers(generator, (2, vit.channels, *vit.size)).to(vit.device, vit.dtype)

    def not_run(reason: str) -> NotAdaptedError:
        return NotAdaptedError(
            f"{vit.name!r} cannot be run on a random image of {vit.size[0]}x{vit.size[1]} ({reason}); "
            "a model whose own forward takes such an image would work"
        )

    with unexpected_errors_as(not_run), torch.no_grad(), evaluating(vit.module):
        of_model, of_parts = vit.forward(images), adapter_logits(vit, images)
    if of_model.shape != of_parts.shape:
        raise NotAdaptedError(
            f"{vit.name!r} answers with shape {tuple(of_model.shape)}, its parts with {tuple(of_parts.shape)}"
        )
    if not of_model.isfinite().all():
        raise ModelError(f"{vit.name!r} gives logits that are not finite on a random image; are its weights loaded?")
    gap = ((of_model - of_parts).abs().max() / of_model.abs().max().clamp(min=1e-6)).item()
    if not gap <= TOLERANCE.get(vit.dtype, 1e-3):
        changed = [path for path, part in vit.module.named_modules() if hooks_of(part) or "forward" in vars(part)]
        suspect = (
            f"are hooks attached that change values, such as to {changed[0]!r}"
            if changed
            else "does the adapter describe other parts"
        )
        raise NotAdaptedError(
            f"{vit.name!r} and its parts as Vitreous sees them disagree by {gap:.2g} of the largest logit, "
            f"so any map of it would be wrong; is its forward overridden, or {suspect}?"
        )
    affine = affine_head(vit, generator)
    if not affine and bool(((of_model >= 0) & (of_model <= 1)).all()):
        raise ModelError(
            f"{vit.name!r} seems to answer with probabilities; give it without its last sigmoid or softmax, so that it answers with logits"
        )
    return Agreement(gap, of_model.shape[-1], affine)


@torch.no_grad()
def affine_head(vit: ViT, generator: torch.Generator) -> bool:
    """Whether the classifier is affine, tested on random inputs; shares only add up to the score if it is."""
    tokens = vit.embed(torch.zeros(1, vit.channels, *vit.size, device=vit.device, dtype=vit.dtype))
    reads = vit.pool.rows(tokens.shape[1]).shape[0] if isinstance(vit.pool, LinearPool) else vit.pool.query().shape[2]
    draw = 10 * normal_numbers(generator, (2, 8, reads, tokens.shape[-1]))
    draw = draw.to(vit.device, vit.dtype)
    with evaluating(vit.module):
        first, second, both, none = (vit.classify(x) for x in (*draw, draw.sum(0), torch.zeros_like(draw[0])))
    largest = torch.stack([first, second, both, none]).abs().max().clamp(min=1e-6)
    return bool((first + second - both - none).abs().max() <= TOLERANCE.get(vit.dtype, 1e-3) * 10 * largest)
