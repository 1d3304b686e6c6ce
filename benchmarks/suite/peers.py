"""Methods relative to other tools with the same model, images, steps, baseline and number of images in memory.

Other tools are installed for the benchmark only (`benchmarks/requirements.txt`); one that cannot be imported becomes a row with the error.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.case import Case
from suite.patched import patch_with_lxt
from suite.sides import explain_batch, make_probe, predict_targets, worst_spearman
from suite.workload import Workload
from vitreous.capture.path_gradients import AT_ONCE
from vitreous.capture.probe import Probe
from vitreous.methods.regions import number_rectangles
from vitreous.methods.spec import resolve
from vitreous.metrics.metric import resolve_metric

GROUPS = ("peers",)
DRAWN = "each draws its own {}, so only the amount of work is the same"
AT_MOST = "at most {} images at once on both sides"
PAINTED = 2  # images of rows on a GPU in which one call paints hundreds of variants


def cases(workload: Workload) -> Iterator[Case]:
    """Cases of all tools; in bfloat16 only those with a few passes, on a module with converted weights."""
    targets = predict_targets(workload)
    yield from list_gradient_cases(workload, targets)
    yield make_cam_case(workload, targets)
    yield make_lxt_case(workload, targets)
    if workload.arithmetic != "bf16":
        yield from list_painting_cases(workload, targets)
        yield make_flipping_case(workload, targets)


def get_peer_module(workload: Workload) -> Any:
    """The module that another tool explains."""
    return workload.model if workload.floor is None else workload.floor


def get_peer_images(workload: Workload, images: Tensor | None = None) -> Tensor:
    """Images in the precision of that module."""
    images = workload.images if images is None else images
    return images if workload.floor is None else images.to(torch.bfloat16)


def make_case(
    workload: Workload,
    spec: str,
    peer: str,
    theirs: Callable[[], Tensor],
    read: Callable[[Any], Tensor],
    pictures: int | None = None,
    *,
    is_comparable: bool = True,
    at_most: float | None = None,
    note: str = "",
) -> Case:
    """Our method relative to a peer; `read` converts our result to that of the peer, and with `is_comparable` both are compared."""
    count = len(workload.images[:pictures])
    ours = partial(explain_batch, workload, spec, pictures, question="logit")
    if workload.arithmetic == "bf16":
        ours = partial(ours, precision="bf16")
        if "bf16" not in resolve(spec).facts.precision:
            note = f"{note}; ours is in TF32, since bfloat16 would not keep its ranks".removeprefix("; ")
            at_most = None
    agree = (lambda: worst_spearman(read(ours()), theirs())) if is_comparable else None
    return Case(
        "peers",
        spec,
        peer,
        ours,
        theirs,
        at_most=at_most,
        pictures=(count, count),
        agree=agree,
        agreement=0.999 if is_comparable and workload.arithmetic != "bf16" else None,  # a converted module rounds more
        note=note,
    )


def get_native_pixels(attribution: Any) -> Tensor:
    return attribution.native_pixels


# ── captum ───────────────────────────────────────────────────────────────────────────────────────


def list_gradient_cases(workload: Workload, targets: Tensor) -> Iterator[Case]:
    steps = 8 if workload.quick else 50 if workload.cuda else 16
    images, targets, model = (
        get_peer_images(workload, workload.few),
        targets[: len(workload.few)],
        get_peer_module(workload),
    )
    points = max(1, AT_ONCE // len(images))  # of every image at once

    def ig() -> Tensor:
        from captum.attr import IntegratedGradients

        peer = IntegratedGradients(model)
        gradients, _ = peer.attribute(
            images,
            target=targets,
            n_steps=steps,
            internal_batch_size=points * len(images),
            return_convergence_delta=True,  # as ours always computes
        )
        return gradients.sum(1)

    def smoothgrad() -> Tensor:
        from captum.attr import NoiseTunnel, Saliency

        peer, targets = (
            NoiseTunnel(Saliency(model)),
            predict_targets(workload, workload.few),
        )  # ours also predicts the class first
        return peer.attribute(
            images, nt_samples=steps, nt_samples_batch_size=min(points, steps), stdevs=1.0, target=targets
        ).sum(1)

    def ixg() -> Tensor:
        from captum.attr import InputXGradient

        return InputXGradient(model).attribute(images, target=targets).sum(1)

    note, make_peer_case = (
        f"{points} points of every image at once on both sides",
        partial(make_case, workload, pictures=len(images)),
    )
    yield make_peer_case(
        f"ig(steps={steps}, rounded=True)", "captum IntegratedGradients", ig, get_native_pixels, at_most=1.0, note=note
    )
    spec, note = f"smoothgrad(samples={steps})", f"{note}; {DRAWN.format('noise')}"
    yield make_peer_case(
        spec, "captum NoiseTunnel(Saliency)", smoothgrad, get_native_pixels, is_comparable=False, at_most=1.0, note=note
    )
    yield make_peer_case("ixg(space='pixels')", "captum InputXGradient", ixg, get_native_pixels)


def list_painting_cases(workload: Workload, targets: Tensor) -> Iterator[Case]:
    few = min(PAINTED, workload.batch) if workload.cuda and not workload.quick else 1
    layout = workload.vit.layout(workload.vit.size)
    height, width = layout.patch
    room = min(make_probe(workload).images_that_fit, few * layout.patches)
    samples = 16 if workload.quick else 256 if workload.cuda else 64

    def occlusion() -> Tensor:
        from captum.attr import Occlusion

        window, peer, variants = (3, height, width), Occlusion(workload.model), max(1, room // few)
        return peer.attribute(
            workload.images[:few], window, strides=window, target=targets[:few], perturbations_per_eval=variants
        ).mean(1)

    def fitted(name: str) -> Tensor:
        import captum.attr

        peer, labels = getattr(captum.attr, name)(workload.model), number_patches(workload)
        maps = [
            peer.attribute(
                workload.images[i : i + 1],
                target=targets[i : i + 1],
                feature_mask=labels,
                n_samples=samples,
                perturbations_per_eval=min(room, samples),
            )
            for i in range(few)
        ]
        return torch.cat(maps).mean(1)

    yield make_case(
        workload,
        "occlusion(preset='captum')",
        "captum Occlusion",
        occlusion,
        get_native_pixels,
        few,
        note=AT_MOST.format(room),
    )
    for name in ("KernelShap", "Lime"):
        spec = f"{name.lower()}(preset='captum', samples={samples})"
        note = f"{AT_MOST.format(min(room, samples))}; {DRAWN.format('coalitions')}"
        yield make_case(
            workload,
            spec,
            f"captum {name}",
            partial(fitted, name),
            get_native_pixels,
            few,
            is_comparable=False,
            note=note,
        )


def number_patches(workload: Workload) -> Tensor:
    """Index of the patch of each pixel, as a feature mask of captum."""
    return number_rectangles(workload.vit.size, workload.vit.layout(workload.vit.size).grid).to(workload.device)[
        None, None
    ]


# ── pytorch-grad-cam ─────────────────────────────────────────────────────────────────────────────


def make_cam_case(workload: Workload, targets: Tensor) -> Case:
    model = get_peer_module(workload)
    layout = workload.vit.layout(workload.vit.size)

    def patches(tokens: Tensor) -> Tensor:
        return tokens[:, layout.prefix :].transpose(1, 2).unflatten(2, layout.grid)

    def theirs() -> Tensor:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

        targets_of_peer = [ClassifierOutputTarget(target) for target in targets.tolist()]
        with GradCAM(model, [model.blocks[-1].norm1], reshape_transform=patches) as peer:
            peer.compute_input_gradient = True  # otherwise frozen parameters leave no graph for the backward pass
            return torch.from_numpy(peer(get_peer_images(workload), targets_of_peer))

    def read(attribution: Any) -> Tensor:
        maps = attribution.maps().clamp(min=0)[:, None]
        return F.interpolate(maps, layout.size, mode="bilinear", align_corners=False)[:, 0]

    note = "our backward pass covers the last block only, theirs all; parameters are frozen on both sides"
    return make_case(workload, "gradcam(preset='grad-cam')", "pytorch-grad-cam GradCAM", theirs, read, note=note)


# ── LXT ──────────────────────────────────────────────────────────────────────────────────────────


def make_lxt_case(workload: Workload, targets: Tensor) -> Case:
    @cache
    def patched() -> nn.Module:
        return patch_with_lxt(copy.deepcopy(get_peer_module(workload)))

    def theirs() -> Tensor:
        model: Any = patched()
        with torch.no_grad():
            tokens = model.norm_pre(model._pos_embed(model.patch_embed(get_peer_images(workload))))
        tokens.requires_grad_()
        logits = model.forward_head(model.norm(model.blocks(tokens)))
        (gradient,) = torch.autograd.grad(logits.gather(1, targets[:, None]).sum(), tokens)
        return (tokens * gradient).sum(-1).detach()[:, model.num_prefix_tokens :]

    note = "LXT's rules in a copy of the timm model, which LXT does not support"
    return make_case(workload, "attnlrp", "LXT", theirs, lambda attribution: attribution.patches, note=note)


# ── Quantus ──────────────────────────────────────────────────────────────────────────────────────


def make_flipping_case(workload: Workload, targets: Tensor) -> Case:
    steps = 56 if workload.cuda and not workload.quick else 4 if workload.size == "test" else 14
    count = len(workload.few) if workload.cuda or workload.size in ("test", "ti") else min(2, workload.batch)
    images, image_targets = workload.images[:count], targets[:count]
    maps = explain_batch(workload, "ixg(space='pixels')", count)
    metric = resolve_metric(f"deletion(steps={steps})")
    pixels = images.shape[-2] * images.shape[-1]

    def ours() -> Tensor:
        curve = metric(maps, probe=Probe(workload.vit, images, image_targets)).curve
        assert curve is not None
        return curve

    def theirs() -> Tensor:
        import quantus

        peer = quantus.PixelFlipping(
            features_in_step=3 * (-(-pixels // steps)),  # Quantus counts every channel of a pixel
            perturb_baseline=0.0,
            normalise=False,
            disable_warnings=True,
        )
        peer.custom_preprocess = lambda *_, **__: None  # which requires steps that divide the pixels
        x, y = images.float().cpu().numpy(), image_targets.cpu().numpy()
        scores = maps.native_pixels[:, None].float().cpu().numpy()
        scores = peer(
            workload.model,
            x,
            y,
            a_batch=scores,
            softmax=True,
            device=workload.device,
            batch_size=count,
            channel_first=True,
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
        note="ours also runs the clean image"
        + ("" if workload.cuda else "; on a CPU forward passes are nearly all of both"),
    )
