"""Beside other tools, on the same work: the same model, images, steps and baseline, and as many images in memory at once.

They are installed for the benchmark only (`benchmarks/requirements.txt`); one that does not import is a row that says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.bed import Bed
from suite.case import Case
from suite.patched import with_lxt
from suite.sides import explained, probed, targets_of, worst_spearman
from vitreous.capture.path_gradients import AT_ONCE
from vitreous.capture.probe import Probe
from vitreous.methods.regions import number_rectangles
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric

GROUPS = ("peers",)
DRAWN = "each draws its own {}, so only the work is the same"
AT_MOST = "at most {} images at once on both sides"
PAINTED = 2  # images of a GPU's rows that one call paints hundreds of times: minutes of more would say no more


def cases(bed: Bed) -> Iterator[Case]:
    """Rows of all peers; in bfloat16 of those that need a few passes, on a module whose weights were converted."""
    targets = targets_of(bed)
    yield from gradients(bed, targets)
    yield cam(bed, targets)
    yield relevance(bed, targets)
    if bed.arithmetic != "bf16":
        yield from painted(bed, targets)
        yield flipping(bed, targets)


def module_of(bed: Bed) -> Any:
    """The module that a peer explains."""
    return bed.model if bed.floor is None else bed.floor


def images_for(bed: Bed, images: Tensor | None = None) -> Tensor:
    """Images in the precision of that module."""
    images = bed.images if images is None else images
    return images if bed.floor is None else images.to(torch.bfloat16)


def row(
    bed: Bed,
    spec: str,
    peer: str,
    theirs: Callable[[], Tensor],
    read: Callable[[Any], Tensor],
    pictures: int | None = None,
    *,
    same: bool = True,
    at_most: float | None = None,
    note: str = "",
) -> Case:
    """Our method beside a peer's; `read` takes from ours what the peer returns, and where both are `same` they are compared."""
    count = len(bed.images[:pictures])
    ours = partial(explained, bed, spec, pictures, question="logit")
    if bed.arithmetic == "bf16":
        ours = partial(ours, precision="bf16")
        if "bf16" not in resolve(spec).facts.precision:
            note = f"{note}; ours is in TF32, since bfloat16 would not keep its ranks".removeprefix("; ")
            at_most = None
    agree = (lambda: worst_spearman(read(ours()), theirs())) if same else None
    return Case(
        "peers",
        spec,
        peer,
        ours,
        theirs,
        at_most=at_most,
        pictures=(count, count),
        agree=agree,
        agreement=0.999 if same and bed.arithmetic != "bf16" else None,  # a converted module rounds more
        note=note,
    )


def native(attribution: Any) -> Tensor:
    return attribution.native_pixels


# ── captum ───────────────────────────────────────────────────────────────────────────────────────


def gradients(bed: Bed, targets: Tensor) -> Iterator[Case]:
    steps = 8 if bed.quick else 50 if bed.cuda else 16
    images, targets, model = images_for(bed, bed.few), targets[: len(bed.few)], module_of(bed)
    each = max(1, AT_ONCE // len(images))  # points of every image at once

    def ig() -> Tensor:
        from captum.attr import IntegratedGradients

        peer = IntegratedGradients(model)
        gradients, _ = peer.attribute(
            images,
            target=targets,
            n_steps=steps,
            internal_batch_size=each * len(images),
            return_convergence_delta=True,  # as ours always tells
        )
        return gradients.sum(1)

    def smoothgrad() -> Tensor:
        from captum.attr import NoiseTunnel, Saliency

        peer, targets = NoiseTunnel(Saliency(model)), targets_of(bed, bed.few)  # ours, too, finds the class first
        return peer.attribute(
            images, nt_samples=steps, nt_samples_batch_size=min(each, steps), stdevs=1.0, target=targets
        ).sum(1)

    def ixg() -> Tensor:
        from captum.attr import InputXGradient

        return InputXGradient(model).attribute(images, target=targets).sum(1)

    note, beside = f"{each} points of every image at once on both sides", partial(row, bed, pictures=len(images))
    yield beside(f"ig(steps={steps}, rounded=True)", "captum IntegratedGradients", ig, native, at_most=1.0, note=note)
    spec, note = f"smoothgrad(samples={steps})", f"{note}; {DRAWN.format('noise')}"
    yield beside(spec, "captum NoiseTunnel(Saliency)", smoothgrad, native, same=False, at_most=1.0, note=note)
    yield beside("ixg(space='pixels')", "captum InputXGradient", ixg, native)


def painted(bed: Bed, targets: Tensor) -> Iterator[Case]:
    few = min(PAINTED, bed.batch) if bed.cuda and not bed.quick else 1
    layout = bed.vit.layout(bed.vit.size)
    height, width = layout.patch
    room = min(probed(bed).images_that_fit, few * layout.patches)
    samples = 16 if bed.quick else 256 if bed.cuda else 64

    def occlusion() -> Tensor:
        from captum.attr import Occlusion

        window, peer, each = (3, height, width), Occlusion(bed.model), max(1, room // few)
        return peer.attribute(
            bed.images[:few], window, strides=window, target=targets[:few], perturbations_per_eval=each
        ).mean(1)

    def fitted(name: str) -> Tensor:
        import captum.attr

        peer, labels = getattr(captum.attr, name)(bed.model), parts(bed)
        maps = [
            peer.attribute(
                bed.images[i : i + 1],
                target=targets[i : i + 1],
                feature_mask=labels,
                n_samples=samples,
                perturbations_per_eval=min(room, samples),
            )
            for i in range(few)
        ]
        return torch.cat(maps).mean(1)

    yield row(bed, "occlusion(preset='captum')", "captum Occlusion", occlusion, native, few, note=AT_MOST.format(room))
    for name in ("KernelShap", "Lime"):
        spec = f"{name.lower()}(preset='captum', samples={samples})"
        note = f"{AT_MOST.format(min(room, samples))}; {DRAWN.format('coalitions')}"
        yield row(bed, spec, f"captum {name}", partial(fitted, name), native, few, same=False, note=note)


def parts(bed: Bed) -> Tensor:
    """The number of each pixel's patch, as captum's feature masks are."""
    return number_rectangles(bed.vit.size, bed.vit.layout(bed.vit.size).grid).to(bed.device)[None, None]


# ── pytorch-grad-cam ─────────────────────────────────────────────────────────────────────────────


def cam(bed: Bed, targets: Tensor) -> Case:
    model = module_of(bed)
    layout = bed.vit.layout(bed.vit.size)

    def patches(tokens: Tensor) -> Tensor:
        return tokens[:, layout.prefix :].transpose(1, 2).unflatten(2, layout.grid)

    def theirs() -> Tensor:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        targets_of_peer = [ClassifierOutputTarget(target) for target in targets.tolist()]
        with GradCAM(model, [model.blocks[-1].norm1], reshape_transform=patches) as peer:
            peer.compute_input_gradient = True  # else frozen parameters leave it nothing to walk back from
            return torch.from_numpy(peer(images_for(bed), targets_of_peer))

    def read(attribution: Any) -> Tensor:
        maps = attribution.maps().clamp(min=0)[:, None]
        return F.interpolate(maps, layout.size, mode="bilinear", align_corners=False)[:, 0]

    note = "ours walks back through the last block alone; theirs through all, parameters frozen on both sides"
    return row(bed, "gradcam(preset='grad-cam')", "pytorch-grad-cam GradCAM", theirs, read, note=note)


# ── LXT ──────────────────────────────────────────────────────────────────────────────────────────


def relevance(bed: Bed, targets: Tensor) -> Case:
    @cache
    def patched() -> nn.Module:
        return with_lxt(copy.deepcopy(module_of(bed)))

    def theirs() -> Tensor:
        model: Any = patched()
        with torch.no_grad():
            tokens = model.norm_pre(model._pos_embed(model.patch_embed(images_for(bed))))
        tokens.requires_grad_()
        logits = model.forward_head(model.norm(model.blocks(tokens)))
        (gradient,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), tokens)
        return (tokens * gradient).sum(-1).detach()[:, model.num_prefix_tokens :]

    note = "LXT's rules put into a copy of the timm model, for which it has no patch of its own"
    return row(bed, "attnlrp", "LXT", theirs, lambda attribution: attribution.patches, note=note)


# ── Quantus ──────────────────────────────────────────────────────────────────────────────────────


def flipping(bed: Bed, targets: Tensor) -> Case:
    steps = 56 if bed.cuda and not bed.quick else 4 if bed.size == "test" else 14
    count = len(bed.few) if bed.cuda or bed.size in ("test", "ti") else min(2, bed.batch)
    images, image_targets = bed.images[:count], targets[:count]
    maps = explained(bed, "ixg(space='pixels')", count)
    metric = resolve_metric(f"deletion(steps={steps})")
    pixels = images.shape[-2] * images.shape[-1]

    def ours() -> Tensor:
        curve = metric(maps, probe=Probe(bed.vit, images, image_targets)).curve
        assert curve is not None
        return curve

    def theirs() -> Tensor:
        import quantus

        peer = quantus.PixelFlipping(
            features_in_step=3 * (-(-pixels // steps)),  # Quantus counts every colour of a pixel
            perturb_baseline=0.0,
            normalise=False,
            disable_warnings=True,
        )
        peer.custom_preprocess = lambda *_, **__: None  # which wants steps that divide the pixels
        x, y = images.float().cpu().numpy(), image_targets.cpu().numpy()
        scores = maps.native_pixels[:, None].float().cpu().numpy()
        scores = peer(
            bed.model, x, y, a_batch=scores, softmax=True, device=bed.device, batch_size=count, channel_first=True
        )
        return torch.tensor(scores)

    return Case(
        "peers",
        f"deletion(steps={steps})",
        "Quantus PixelFlipping",
        ours,
        theirs,
        at_least=3,
        pictures=(count, count),
        agree=lambda: worst_spearman(ours(), theirs()),
        agreement=0.999,
        note="ours sees the clean image too" + ("" if bed.cuda else "; on a CPU forwards are nearly all of both"),
    )
