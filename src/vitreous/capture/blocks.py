"""Find the blocks of any network.

Blocks are the innermost elements of lists that hold weights (`layers.0.blocks.1`), as far as their inputs depend on the
images and are tokens of a grid, whose places `place_measurement` measures.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.linearise import PLAIN
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.place_measurement import measure_places
from vitreous.capture.token_places import expected_grids, size_of
from vitreous.capture.trace import first_tensor
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import StopForward, evaluating, removing_hooks
from vitreous.models.layout import Clip, NetworkBlock, TokenGrid
from vitreous.models.tensor_types import Images

WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)

Forward = Callable[[Images], Any]


@dataclass(slots=True, eq=False)
class ModuleCall:
    """A call of a submodule: its number among all calls that were observed, its first tensor and what it returned."""

    number: int
    repeat: int  # number of observed calls of the same submodule before it
    name: str
    module: nn.Module
    state: Tensor  # empty if it was called without a tensor of floating-point numbers
    output: Any = None


def find_blocks(
    module: nn.Module,
    forward: Forward,
    images: Images,
    pattern: str | Sequence[str] | None = None,
    clip: Clip | None = None,
) -> tuple[NetworkBlock, ...]:
    """Block calls of a network whose inputs are tokens of the image, in the order of the forward.

    Parameters
    ----------
    module
        The model.
    forward
        Runs the model on images.
    images
        One image [1 c H W] or clip.
    pattern
        Names of blocks such as "layers.*.blocks.*", or several; by default they are found.
    clip
        Form of the clip.

    Returns
    -------
    tuple of NetworkBlock

    Raises
    ------
    ModelError
        If no blocks are found, or the places of their tokens cannot be confirmed.
    """
    if pattern is None:
        candidates = (
            dict(candidate_blocks(module))
            or dict(candidate_blocks(module, least=1))
            or dict(candidate_blocks(module, numbered=True))
        )
    else:
        candidates = dict(named_blocks(module, pattern))
    size = size_of(images, clip)
    calls = dependent_inputs(module, forward, images, candidates)
    shaped = [(call, grids) for call in calls if (grids := expected_grids(call.state, size))]
    if not shaped:
        condition = "were found whose inputs" if pattern is None else f"match {pattern!r} whose inputs"
        raise ModelError(
            f"no blocks of {type(module).__name__!r} {condition} are tokens of the {'image' if clip is None else 'clip'}; name them with "
            "blocks='layers.*.blocks.*', or use black_box=True"
        )
    with evaluating(module):
        confirmed = measure_places(forward, images, [call for call, _ in shaped], clip)
    missed = {call.name for call in calls if call.number not in confirmed}  # all calls of a block are cut, or none
    blocks = innermost([(call, confirmed[call.number]) for call in calls if call.name not in missed])
    if not blocks:
        call, (grid, *_) = shaped[0]
        raise ModelError(
            f"where the {grid.count} tokens at {call.name!r} lie in the image could not be confirmed; "
            "name other blocks with blocks=…, or use black_box=True"
        )
    blocks = blocks if pattern is not None else encoder_part(blocks)
    return tuple(NetworkBlock(call.name, call.module, grid) for call, grid in blocks)


def innermost(blocks: list[tuple[ModuleCall, TokenGrid]]) -> list[tuple[ModuleCall, TokenGrid]]:
    """Blocks without those that hold another one."""
    names = {call.name for call, _ in blocks}
    outer = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    return [(call, grid) for call, grid in blocks if call.name not in outer]


def encoder_part(blocks: list[tuple[ModuleCall, TokenGrid]]) -> list[tuple[ModuleCall, TokenGrid]]:
    """Blocks up to the last one on the coarsest grid: finer grids after it belong to a decoder."""
    coarsest = min(grid.patches for _, grid in blocks)
    last = max(number for number, (_, grid) in enumerate(blocks) if grid.patches == coarsest)
    return blocks[: last + 1]


# ── candidates ───────────────────────────────────────────────────────────────────────────────────


def weight_layers(module: nn.Module) -> int:
    return sum(isinstance(part, WEIGHT_LAYERS) for part in module.modules())


def candidate_blocks(
    module: nn.Module, prefix: str = "", least: int = 2, numbered: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """Elements of lists with at least `least` weight layers: residual blocks, and the stages that hold them.

    `numbered` takes children with a number at the end of their names (s1, s2, …) for elements of a list.
    """
    inside_list = isinstance(module, nn.ModuleList | nn.Sequential)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        is_element = (inside_list and prefix) or (numbered and name[-1].isdigit())
        if is_element and weight_layers(child) >= least and not isinstance(child, nn.ModuleList):
            yield path, child
        yield from candidate_blocks(child, f"{path}.", least, numbered)


def named_blocks(module: nn.Module, pattern: str | Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Modules whose names match a pattern such as "layers.*.blocks.*"; * stands for one part of the name."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern) if isinstance(pattern, Sequence) else []
    if not patterns or not all(isinstance(name, str) for name in patterns):
        raise ModelError(f"blocks={pattern!r}; a name such as 'layers.*.blocks.*', or a list of names would work")
    chosen = [
        (name, part)
        for name, part in module.named_modules()
        if any(matches(name.split("."), name_pattern.split(".")) for name_pattern in patterns)
    ]
    if not chosen:
        example = next((name for name, _ in candidate_blocks(module)), "layers.0")
        raise ModelError(
            f"no module is called {' or '.join(map(repr, patterns))}; {example!r} is one, see model.named_modules()"
        )
    return chosen


def matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(fnmatch.fnmatchcase(a, b) for a, b in zip(name, pattern, strict=True))


def dependent_inputs(
    module: nn.Module, forward: Forward, images: Images, blocks: dict[str, nn.Module]
) -> list[ModuleCall]:
    """Calls of blocks whose inputs depend on the images, in the order of one forward: not those of a text encoder."""
    leaf = images.detach().requires_grad_()
    with torch.enable_grad(), LinearisedForward(PLAIN):  # the mode detaches parameters that require gradients
        calls = observe_calls(module, lambda: forward(leaf), blocks)
    dependent = [call for call in calls if call.state.requires_grad]
    return [replace(call, state=call.state.detach(), output=None) for call in dependent]


def observe_calls(
    module: nn.Module, forward: Callable[[], Any], observed: Mapping[str, nn.Module], most: int | None = None
) -> list[ModuleCall]:
    """Calls of submodules in the order in which they begin in one forward, which ends when there are `most`."""
    calls: list[ModuleCall] = []
    open_calls: list[ModuleCall] = []
    names = {part: name for name, part in observed.items()}
    repeats = dict.fromkeys(names, 0)

    def begin(part: nn.Module, args: Any, kwargs: Any) -> None:
        try:
            state = first_tensor(args, kwargs)[1].clone()  # the module may change it in place
        except ModelError:
            state = torch.empty(0)
        calls.append(ModuleCall(len(calls), repeats[part], names[part], part, state))
        repeats[part] += 1
        open_calls.append(calls[-1])
        if len(calls) == most:
            raise StopForward

    def end(part: nn.Module, args: Any, output: Any) -> None:
        open_calls.pop().output = output

    handles = [part.register_forward_pre_hook(begin, with_kwargs=True) for part in names]
    handles += [part.register_forward_hook(end) for part in names]
    with removing_hooks(handles), evaluating(module), suppress(StopForward):
        forward()
    return calls
