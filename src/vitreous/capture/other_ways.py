"""Images that take another way through a network than those that it was examined on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.blocks import ModuleCall
from vitreous.capture.call_inputs import entering_tensors
from vitreous.capture.completeness import COMPLETE, PLACED, check_completeness, names_of, way_of, with_gradient
from vitreous.capture.linearise import PLAIN
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.place_measurement import measure_places, same_place
from vitreous.capture.trace import Trace, trace
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import evaluating, hooking
from vitreous.models.model import Network
from vitreous.models.tensor_types import Images


def check_way(model: Network, images: Images, traced: Trace) -> None:
    """Check completeness again if a forward took another way than those that were checked.

    Control flow that depends on the values of an image shows in the operations that are called.

    Raises
    ------
    ModelError
        If blocks are called more or less often than in the forward that was examined, or a share of a score is lost.
    """
    if traced.entered != len(model.blocks):
        raise ModelError(
            f"{model.name!r} calls its blocks {traced.entered} times for these images and {len(model.blocks)} times for the image that it was "
            "examined on; a model that takes one way for all images would work, and black_box=True needs none"
        )
    if way_of(model, traced.mode) not in COMPLETE.get(model.module, ()):
        with torch.no_grad():
            output = model.call(images)
        try:
            check_completeness(model, images, model.call, output)
        except ModelError as problem:
            raise ModelError(
                f"these images take another way through {model.name!r} than those that it was examined on: {problem}"
            ) from problem
        COMPLETE[model.module].add(way_of(model, traced.mode))  # it may differ under another linearisation
    placed, names = PLACED.get(model.module), names_of(model)  # None of a text, which has no places
    if placed and (names, traced.mode.functions) not in placed:
        # a pass that begins at a later block, or can be differentiated, may call other functions on the same way
        functions = operations_for(model, images).mode.functions
        if (names, functions) not in placed:
            refuse_moved_tokens(model, images, functions)
        placed |= {(names, functions), (names, traced.mode.functions)}


def operations_for(model: Network, images: Images) -> Trace:
    """A forward in which only its operations are noted."""
    return trace(
        model.module,
        lambda: model.call(with_gradient(images, model)),
        model.blocks,
        LinearisedForward(PLAIN),
        outside=model.outside,
    )


def refuse_moved_tokens(model: Network, images: Images, functions: int) -> None:
    """Raise `ModelError` unless the tokens of images that take another way lie where they were found."""
    moved = ModelError(
        f"these images take another way through {model.name!r} than those that it was examined on, and its tokens may lie elsewhere "
        "then; a model that takes one way for all images would work, and black_box=True needs none"
    )
    for image in images.split(1):
        traced = operations_for(model, image)
        if traced.mode.functions == functions and traced.entered == len(model.blocks):
            if not all_at_their_places(model, image):
                raise moved
            return
    raise moved  # no image takes this way alone


def all_at_their_places(model: Network, image: Images) -> bool:
    """Whether the tokens at all inputs of blocks are measured where the network has them, for this image."""
    if any(grid.form == "pixels" for block in model.blocks for grid in block.grids):
        return True
    calls, grids = [], []
    for block, states in zip(model.blocks, entering_states(model, image), strict=True):
        for place, grid in zip(block.inputs, block.grids, strict=True):
            calls.append(ModuleCall(len(calls), block.repeat, block.name, block.module, states[place], place=place))
            grids.append(grid)
    with evaluating(model.module):
        measured = measure_places(model.call, image, calls, model.clip)
    return all(same_place(measured.get(number), grid) for number, grid in enumerate(grids))


def entering_states(model: Network, image: Images) -> list[list[Tensor]]:
    """Floating-point tensors that every block call of the network is given for an image."""
    repeats, states = Counter[nn.Module](), dict[tuple[nn.Module, int], list[Tensor]]()

    def enter(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states[part, repeats[part]] = [tensor.detach().clone() for tensor in entering_tensors(args, kwargs)]
        repeats[part] += 1

    with hooking([block.module for block in model.blocks], enter), evaluating(model.module), torch.no_grad():
        model.call(image)
    return [states[block.module, block.repeat] for block in model.blocks]
