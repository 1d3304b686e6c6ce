"""Describe any module as a `Network`, after checking that nothing of a score is lost on the way back to its blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitreous.capture.blocks import find_blocks
from vitreous.capture.bypass import measure_bypass, other_image, refuse_bypass
from vitreous.capture.completeness import Completeness, check_completeness
from vitreous.capture.network_probe import mixes_images
from vitreous.capture.precision import without_autocast
from vitreous.capture.token_places import size_of
from vitreous.capture.unseen_operations import refusing_graph_errors, uncompiled
from vitreous.core.errors import ModelError, ShapeError, unexpected_errors_as
from vitreous.core.progress import ProgressDisplay, show_progress
from vitreous.models.black_box import (
    classes_of,
    expected_channels,
    expected_input,
    preprocess_of,
    random_image,
    refuse_inference_tensors,
    refuse_without_parameters,
)
from vitreous.models.eval_mode import evaluating
from vitreous.models.image_input import Preprocess
from vitreous.models.layout import Clip, Layout, NetworkBlock, layout_of
from vitreous.models.model import Inputs, ModuleForward, Network, logits_of, tensors_of
from vitreous.models.module_structure import structure_of
from vitreous.models.outputs import with_outputs
from vitreous.models.tensor_types import Images


@without_autocast()
def see_through(
    module: nn.Module,
    name: str | None = None,
    *,
    size: tuple[int, ...] | None = None,
    blocks: str | Sequence[str] | None = None,
    preprocess: Preprocess | None = None,
    inputs: Mapping[str, Any] | None = None,
    image: str = "pixel_values",
    progress: bool | None = None,
) -> Network:
    """Describe any module as a `Network` and check it.

    Parameters
    ----------
    module
        The model.
    name
        Name of the model; its class name by default.
    size
        Height and width of its images, or (frames, height, width) of its clips; by default those of its configuration,
        or 224 x 224. Clips are [b t c H W] if the configuration has `num_frames`, as in Hugging Face, else [b c t H W].
    blocks
        Names of its blocks such as "layers.*.blocks.*"; by default they are found.
    preprocess
        Conversion of images to tensors. None: that of the module's library, if it is known.
    inputs
        Other arguments of the module's forward, such as `input_ids`; tensors hold one entry [1 ...], which is used for
        every image.
    image
        Name of the argument that receives the images, where there are others.
    progress
        Whether to show a bar on stderr if it takes more than two seconds. None does so in terminals and notebooks.

    Returns
    -------
    Network
        For `vitreous.explain` and `vitreous.evaluate`.

    Raises
    ------
    ModelError
        If the module cannot be run, draws random numbers, no blocks are found, a share of the score is lost, or a share of
        the image passes by the blocks.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> swin = timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4, num_classes=3)
    >>> network = vitreous.see_through(swin.eval(), size=(64, 64))
    >>> vitreous.explain(network, torch.zeros(1, 3, 64, 64), method="decompx+plus").maps().shape
    torch.Size([1, 16, 16])
    """
    name = name or type(module).__name__
    refuse_unsuited(module, name)
    preprocess = preprocess_of(module) if preprocess is None else preprocess
    clip, size = expected_input(module, preprocess, size)
    arguments = None if inputs is None else Inputs(image, inputs)
    model = Network(
        name=name,
        module=module,
        forward=ModuleForward(module, logits_of, arguments),
        layout=unplaced_layout,
        size=size,
        channels=expected_channels(module) if preprocess is None else preprocess.channels,
        preprocess=preprocess,
        classes=classes_of(module),
        embedding="num_classes=0" if getattr(module, "num_classes", None) == 0 else "",
        inputs=arguments,
        blocks=(),
        clip=clip,
    )
    return examine(model, random_image(module, size, clip, model.channels), blocks, progress)


@dataclass(frozen=True, slots=True, eq=False)
class Examination:
    """Findings about a network for one image size; holds no reference to its module."""

    blocks: tuple[NetworkBlock, ...]  # without their modules, in the order of their calls
    layout: Layout
    outside: bool
    skips: bool
    completeness: Completeness
    bypass: float
    outputs: int | None  # number of logits, if there are any
    clip: Clip | None  # form of the clips, if it takes any
    separate: bool = False

    def describe(self, model: Network) -> Network:
        """The network with these findings."""
        model = replace(
            model,
            blocks=tuple(replace(block, module=model.module.get_submodule(block.name)) for block in self.blocks),
            layout=partial(fixed_layout, self.layout, model.name),
            size=self.layout.size,
            outside=self.outside,
            skips=self.skips,
            copy=self.completeness.copy,
            missing=self.completeness.missing,
            bypass=self.bypass,
            varying=self.completeness.varying,
            clip=self.clip,
            separate=self.separate,
            structure=structure_of(model.module),
        )
        if model.output_type is not None or self.outputs is None:
            return model
        return with_outputs(model, self.outputs)


EXAMINATION_STEPS = 3
# Findings per module, by its structure and the kind of image.
EXAMINED: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Examination]] = WeakKeyDictionary()


def examine(
    model: Network, image: Images, blocks: str | Sequence[str] | None = None, progress: bool | None = None
) -> Network:
    """The network with blocks, token places and completeness found on an image [1 c H W] or a clip.

    `blocks` and `progress` as for `see_through`; those that were named before are found again for another image size.
    """
    blocks = blocks or model.named
    if not (blocks is None or isinstance(blocks, str | Sequence)):
        raise ModelError(f"blocks={blocks!r}; a name such as 'layers.*.blocks.*', or a list of names would work")
    model = replace(model, named=blocks if blocks is None or isinstance(blocks, str) else tuple(blocks))
    examinations = EXAMINED.setdefault(model.module, {})
    key = (structure_of(model.module), tuple(image.shape), image.dtype, image.device.type, str(blocks))
    if model.inputs is None and key in examinations:
        return examinations[key].describe(model)
    label = f"examining {model.name!r}"
    # evaluating once for all forwards: a model may have thousands of submodules
    with evaluating(model.module), uncompiled(), show_progress(progress, label, EXAMINATION_STEPS) as display:
        findings = examine_on(model, image, blocks, display)
    if len(examinations) >= 8:  # images of many sizes
        examinations.clear()
    examinations[key] = findings
    return findings.describe(model)


def examine_on(
    model: Network, image: Images, blocks: str | Sequence[str] | None, display: ProgressDisplay
) -> Examination:
    """Findings about a network in eval mode on one image or clip."""

    def not_run(reason: str) -> ModelError:
        return ModelError(
            f"{model.name!r} cannot be run on a random image {list(image.shape[1:])} ({reason}); pass size=(height, width) that "
            "it takes, (frames, height, width) if it takes clips, or inputs={…} to vitreous.see_through if it takes more than images"
        )

    display.begin_step("running it twice")
    with unexpected_errors_as(not_run), torch.no_grad():
        first, second = model.call(image), model.call(image)
    refuse_random(model.name, first, second)
    clip = None if model.clip is None else replace(model.clip, frames=image.shape[model.clip.axis])
    display.end_step()
    display.begin_step("finding its blocks, and where their tokens are in the image")
    with refusing_graph_errors(model.name):
        located = find_blocks(model.module, model.call, image, blocks, clip)
    grids = [grid for block in located.blocks for grid in block.grids]
    fine = max((tokens.grid for tokens in grids), key=math.prod)
    size = size_of(image, clip)
    if any(length % cells for length, cells in zip(size, fine, strict=True)):
        raise ModelError(
            f"images of {join_lengths(size)} do not divide into the {join_lengths(fine)} tokens of {model.name!r}; images whose "
            "sides are multiples of its stride would work"
        )
    uneven = [tokens.grid for tokens in grids if not nests(tokens.grid, fine)]
    if uneven:
        raise ModelError(
            f"the {join_lengths(uneven[0])} tokens of a block of {model.name!r} do not cover whole tokens of its finest grid "
            f"{join_lengths(fine)}; images of another size, or blocks=… of one resolution would work"
        )
    layout = layout_of(fine, size, max(tokens.others for tokens in grids))
    model = replace(model, blocks=located.blocks, outside=located.outside, skips=located.skips, clip=clip)
    count = None
    with suppress(ShapeError):  # no logits: the user's score function reads the outputs
        count = logits.shape[-1] if (logits := logits_of(first)).ndim == 2 else None
    display.end_step()
    display.begin_step("checking that no share of a score is lost")
    with refusing_graph_errors(model.name):
        bypass = measure_bypass(model, image)
    refuse_bypass(model, bypass)
    completeness = check_completeness(model, image, model.call, first, other_image(image, clip))
    unbound = tuple(replace(block, module=nn.Identity()) for block in located.blocks)
    findings = Examination(unbound, layout, located.outside, located.skips, completeness, bypass, count, clip)
    two_images = torch.cat([image, image.flip(-1)])
    return replace(findings, separate=mixes_images(findings.describe(model), two_images))


def join_lengths(lengths: Sequence[int]) -> str:
    return "x".join(map(str, lengths))


def fits(model: Network, images: Images) -> bool:
    """Whether a network was examined on images of this size, or on clips of this size and length."""
    frames = model.clip is None or images.shape[model.clip.axis] == model.clip.frames
    return frames and model.size == (images.shape[-2], images.shape[-1])


def nests(coarse: tuple[int, ...], fine: tuple[int, ...]) -> bool:
    """Whether every cell of a grid covers cells of a finer one; the last row and column may cover fewer."""
    return all((a - 1) * -(-b // a) < b for a, b in zip(coarse, fine, strict=True))


def fixed_layout(layout: Layout, name: str, size: tuple[int, int]) -> Layout:
    """The layout; raise `ModelError` if it is not one for images of this size."""
    if size != layout.size:
        raise ModelError(
            f"{name!r} was examined on images of {layout.size}, not {size}; see_through(module, size={size}) would work"
        )
    return layout


def unplaced_layout(size: tuple[int, int]) -> Layout:
    raise ModelError("the blocks of this network have not been found yet; vitreous.see_through finds them")


def refuse_unsuited(module: nn.Module, name: str) -> None:
    if not isinstance(module, nn.Module):
        raise ModelError(f"a network is an nn.Module, not {type(module).__name__!r}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"{name!r} is a scripted model (torch.jit), whose operations cannot be seen; the model it was made from would work"
        )
    quantised = [path for path, part in module.named_modules() if ".quantized." in f"{type(part).__module__}."]
    if quantised:
        raise ModelError(
            f"{name!r} has quantised layers ({quantised[0]!r}), which pass no gradients on; the model before quantisation would "
            "work, and black_box=True needs no gradients"
        )
    refuse_without_parameters(module, name)
    refuse_inference_tensors(module, name)


def refuse_random(name: str, first: Any, second: Any) -> None:
    pairs = zip(tensors_of(first), tensors_of(second), strict=False)
    if any(a.shape == b.shape and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs):
        raise ModelError(
            f"{name!r} gives different outputs for the same image, so it draws random numbers in its forward; "
            "a model that does not would work"
        )
