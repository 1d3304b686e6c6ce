"""What of the image does not pass the blocks of a network.

With the inputs of the first blocks held_inputs, the outputs must not depend on the image. Gradients show what autograd knows of; a
second image shows the rest (indices, `detach`, control flow).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.call_inputs import replace_tensors
from vitreous.capture.completeness import random_score
from vitreous.capture.linearise import PLAIN
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.trace import block_inputs
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import evaluating, hooking
from vitreous.models.layout import Clip, NetworkBlock
from vitreous.models.model import BlackBox, Network, tensors_of
from vitreous.models.tensor_types import Images

SMALL_BYPASS, LARGEST_BYPASS = 1e-4, 0.05  # shares from which there is a caution, and a refusal

Entry = tuple[nn.Module, int]  # module and number of its call


def entry_blocks(model: Network) -> list[NetworkBlock]:
    """The first block of every trunk."""
    first: dict[int, NetworkBlock] = {}
    for block in model.blocks:
        first.setdefault(block.trunk, block)
    return list(first.values())


def other_image(image: Images, clip: Clip | None) -> Images:
    """Another image of the same size: random numbers of another mean and variance than those of `random_image`."""
    return (0.5 + 1.5 * torch.randn(image.shape, generator=torch.Generator().manual_seed(7))).to(image)


def run_with_entries(model: Network, images: Images, held_inputs: Mapping[Entry, list[Tensor]] | None = None) -> Any:
    """What a model returns if the first blocks are given other inputs, and what they were given."""
    entries = {(block.module, block.repeat): block for block in entry_blocks(model)}
    calls = dict.fromkeys((module for module, _ in entries), 0)
    inputs_by_entry: dict[Entry, list[Tensor]] = {}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = module, calls[module]
        calls[module] += 1
        if entry not in entries:
            return None
        tensors = block_inputs(entries[entry], args, kwargs)
        inputs_by_entry[entry] = [tensor.detach().clone() for tensor in tensors]
        if held_inputs is None or entry not in held_inputs:
            return None
        if model.outside:
            with torch.no_grad():
                for tensor, value in zip(tensors, held_inputs[entry], strict=True):
                    tensor.copy_(value)  # as what the module computes of it outside of the block
            return None
        replaced = {id(tensor): value.clone() for tensor, value in zip(tensors, held_inputs[entry], strict=True)}
        return replace_tensors(args, replaced), replace_tensors(kwargs, replaced)

    mode = LinearisedForward(PLAIN)
    mode.active = False  # the module's own operations; parameters are detached
    with hooking(calls, enter, lambda *_: None), evaluating(model.module), mode:
        return model.call(images), inputs_by_entry


def measure_bypass(model: Network, image: Images) -> float:
    """Share of the outputs that depends on the image, but not on the inputs of the first blocks.

    The larger one of two: of the gradient at the image, and of the difference that another image makes.
    """
    with torch.no_grad():
        own, held_inputs = run_with_entries(model, image)
    other = other_image(image, model.clip).requires_grad_()
    with torch.set_grad_enabled(not model.outside):  # where gradients were followed when blocks were chosen
        held_output, _ = run_with_entries(model, other.clone(), held_inputs)
    by_gradient = 0.0
    gradient = image_gradient(held_output, other)
    if gradient is not None:
        with torch.enable_grad():
            whole = image_gradient(run_with_entries(model, other.clone())[0], other)
        by_gradient = 0.0 if whole is None else share_of([gradient], [whole])
    changes = differences(held_output, own)
    if not any(bool(change.any()) for change in changes):
        return by_gradient
    with torch.no_grad():
        output, _ = run_with_entries(model, other.detach())
    return max(by_gradient, share_of(changes, differences(output, own)))


def image_gradient(output: Any, images: Images) -> Tensor | None:
    """Gradient of a random score at the images; None if it does not depend on them."""
    with torch.enable_grad():
        score = random_score(output)
    return None if score is None else torch.autograd.grad(score, images, allow_unused=True)[0]


def differences(first: Any, second: Any) -> list[Tensor]:
    """Differences of the tensors of two outputs; of those that have another shape, infinite ones."""
    pairs = zip(tensors_of(first), tensors_of(second), strict=False)
    return [(a - b).detach().nan_to_num(0, 0, 0) if a.shape == b.shape else a.new_full((), torch.inf) for a, b in pairs]


def share_of(parts: Iterable[Tensor], wholes: Iterable[Tensor]) -> float:
    """Norm of some tensors relative to that of others, at most 1."""
    part, whole = (
        sum(tensor.double().square().sum().item() for tensor in tensors) ** 0.5 for tensors in (parts, wholes)
    )
    return 0.0 if not part else 1.0 if part >= whole else part / whole


def refuse_bypass(model: BlackBox, share: float) -> None:
    """Raise `ModelError` if much of the image passes by the blocks of a network."""
    if share > LARGEST_BYPASS:
        raise ModelError(
            f"{share:.2g} of what {model.name!r} makes of the image passes by {describe_entries(model)}, so a map would leave it out; "
            "see_through without blocks= looks for others, and black_box=True needs none"
        )


def describe_entries(model: BlackBox) -> str:
    names = [repr(block.name) for block in entry_blocks(model)] if isinstance(model, Network) else []
    return f"its first block{'s' * (len(names) > 1)} {' and '.join(names)}"


def network_cautions(model: Network, bypass: float = 0.0) -> list[str]:
    """What a reader of maps of this network has to know; `bypass` is the share of the explained images."""
    cautions = []
    if [block.tokens.form for block in model.blocks] == ["pixels"]:
        cautions.append(
            "no blocks were found that the whole image passes, so the only tokens are cells of the image itself, before anything was "
            "computed of them"
        )
    if (share := max(model.bypass, bypass)) > SMALL_BYPASS:
        cautions.append(
            f"{share:.2g} of what the model makes of the image passes by {describe_entries(model)}, and the map leaves it out"
        )
    if model.varying > SMALL_BYPASS:
        cautions.append(
            f"{model.varying:.2g} of a score is counted as a constant and changes with the image all the same, so the map lacks it"
        )
    return cautions
