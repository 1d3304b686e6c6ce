"""Find the blocks of any network.

Blocks are the innermost elements of lists that hold weights (`layers.0.blocks.1`) and that the whole image passes on its way to
the next ones (`image_flow`), as far as their inputs are tokens of a grid, whose places `place_measurement` measures.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.call_inputs import entering_tensors
from vitreous.capture.image_flow import ImageFlow, find_trunks, has_skips, is_passed, no_path_to_images, record_flow
from vitreous.capture.place_measurement import measure_places
from vitreous.capture.token_places import expected_grids, size_of
from vitreous.core.errors import ModelError
from vitreous.models.eval_mode import StopForward, evaluating, hooking
from vitreous.models.layout import Clip, NetworkBlock, TokenGrid
from vitreous.models.tensor_types import Images

WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)

SMALL_PART = 0.05  # of a model's weights, below which other candidates for blocks are tried
MANY_TIMES = 10  # more weights, with which the others are taken

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
    place: int = 0  # of the tensor among all floating-point tensors of the call


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Blocks in the order of the forward, and properties of a `Network` with them."""

    blocks: tuple[NetworkBlock, ...]
    outside: bool = False
    skips: bool = False

    @property
    def weights(self) -> int:
        """Number of values of the blocks' parameters."""
        return weights_of(block.module for block in self.blocks)


def weights_of(modules: Iterable[nn.Module]) -> int:
    parameters = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    return sum(parameter.numel() for parameter in parameters.values())


def find_blocks(
    module: nn.Module,
    forward: Forward,
    images: Images,
    pattern: str | Sequence[str] | None = None,
    clip: Clip | None = None,
) -> FoundBlocks:
    """Block calls of a network whose inputs are tokens of the image, in the order of the forward.

    The image separates from the outputs at the first blocks of all trunks together: outputs depend on it through their
    inputs only. Blocks that were named may leave a part of it out.

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
    FoundBlocks

    Raises
    ------
    ModelError
        If no blocks are found, or the places of their tokens cannot be confirmed.
    """
    if pattern is not None:
        named = dict(named_blocks(module, pattern))
        search = BlockSearch(record_flow(module, forward, images, named), images, clip)
        if search.flow.passes(search.candidates):
            around = BlockSearch(record_flow(module, forward, images, named, outside=True), images, clip)
            if trunks := around.find_trunks(module, forward):
                return around.describe(trunks)
        if trunks := search.named_trunks(forward):
            return search.describe(trunks)
        raise search.refusal(module, forward, f"match {pattern!r} whose inputs")
    first: BlockSearch | None = None
    best: FoundBlocks | None = None
    for candidates in candidate_lists(module):
        for outside in (False, True) if candidates else ():
            search = BlockSearch(record_flow(module, forward, images, candidates, outside), images, clip)
            first = first or search
            if trunks := search.find_trunks(module, forward):
                blocks = search.describe(trunks)
                if best is None or blocks.weights > MANY_TIMES * best.weights:
                    best = blocks
                break
        if best is not None and best.weights > SMALL_PART * weights_of([module]):
            break
    if best is not None:
        return best
    if clip is None and (pixels := pixel_block(module, forward, images)):
        return FoundBlocks((pixels,))
    search = first or BlockSearch(record_flow(module, forward, images, {}), images, clip)
    raise search.refusal(module, forward, "were found whose inputs")


@dataclass(slots=True, eq=False)
class BlockSearch:
    """Search for blocks among the observed calls of one forward."""

    flow: ImageFlow
    images: Images
    clip: Clip | None
    shapes: dict[tuple[int, int], list[TokenGrid]] = field(default_factory=dict)  # by call and input
    grids: dict[tuple[int, int], TokenGrid | None] = field(default_factory=dict)  # those that were measured

    def __post_init__(self) -> None:
        size = size_of(self.images, self.clip)
        for number, call in enumerate(self.flow.calls):
            if (
                0 in call.parts
            ):  # what a block carries on is its first tensor; a text decoder looks at the image beside it
                for place in call.parts:
                    self.shapes[number, place] = expected_grids(call.entered[place], size)

    def inputs_of(self, number: int) -> list[tuple[int, int]]:
        return [(number, place) for place in self.flow.calls[number].parts]

    @property
    def candidates(self) -> list[int]:
        """Calls all of whose inputs may be tokens of the image."""
        calls = dict.fromkeys(number for number, _ in self.shapes)
        return [
            number
            for number in calls
            if all(self.shapes[key] and self.grids.get(key, True) for key in self.inputs_of(number))
        ]

    def confirm(self, forward: Forward, calls: Iterable[int]) -> bool:
        """Measure where the tokens of these calls lie; whether all have places."""
        missing = [key for number in sorted(calls) for key in self.inputs_of(number) if key not in self.grids]
        entering = []
        for index, key in enumerate(missing):
            call = self.flow.calls[key[0]]
            state = call.entered[key[1]]
            entering.append(ModuleCall(index, call.repeat, call.name, call.module, state, place=key[1]))
        confirmed = measure_places(forward, self.images, entering, self.clip)
        self.grids |= {key: confirmed.get(index) for index, key in enumerate(missing)}
        return all(self.grids[key] is not None for number in calls for key in self.inputs_of(number))

    def find_trunks(self, module: nn.Module, forward: Forward) -> list[list[int]]:
        """Chains of calls that the whole image passes; none if there are none."""
        while True:
            trunks = find_trunks(self.flow, self.candidates)
            trunks = [self.blocks_of(module, path, trunks) for path in trunks]
            if not all(trunks):
                return []
            if all(
                self.confirm(forward, path) for path in trunks
            ):  # one by one: each may see another part of the image
                break
        trunks = [self.encoder_part(path) for path in trunks]
        if all(self.takes_image(call) for path in trunks for call in path):  # cells of pixels are the better tokens
            return []
        return trunks

    def takes_image(self, call: int) -> bool:
        return self.flow.calls[call].entered[0].shape == self.images.shape

    def named_trunks(self, forward: Forward) -> list[list[int]]:
        """Chains of all observed calls, also of those beside which a part of the image passes."""
        self.confirm(forward, self.candidates)
        calls = self.candidates
        trunks = find_trunks(self.flow, calls)
        if len(trunks) < 2:
            return [self.innermost(calls)] if calls else []
        return [self.innermost(path) for path in trunks]

    def describe(self, trunks: list[list[int]]) -> FoundBlocks:
        """Blocks in the order of the forward; trunks are numbered by their first ones."""
        blocks: dict[int, NetworkBlock] = {}
        for trunk, path in enumerate(sorted(trunks)):
            for number in path:
                call = self.flow.calls[number]
                first, *others = (grid for key in self.inputs_of(number) if (grid := self.grids[key]) is not None)
                blocks[number] = NetworkBlock(
                    call.name, call.module, first, call.parts, tuple(others), call.repeat, trunk
                )
        in_order = tuple(blocks[number] for number in sorted(blocks))
        return FoundBlocks(in_order, self.flow.outside, has_skips(self.flow, trunks))

    def innermost(self, path: list[int]) -> list[int]:
        """Calls without those of modules that hold another one."""
        names = {self.flow.calls[call].name for call in path}
        outer = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
        return [call for call in path if self.flow.calls[call].name not in outer]

    def uniform_blocks(self, module: nn.Module, path: list[int], chosen: set[int]) -> list[int]:
        """The innermost calls of a path; of elements inside others only those whose likes all lie on a path.

        A branch or a gate carries everything here and there (in a block without a skip connection), but not in other
        blocks, and is no block then.
        """
        observed = [call for call, _ in groupby(number for number, _ in self.shapes)]
        patterns = {call: name_pattern(module, self.flow.calls[call].name) for call in {*observed, *path}}
        partial = {patterns[call] for call in observed if call not in chosen}
        names = {self.flow.calls[call].name for call in path}

        def is_inside(call: int) -> bool:
            name = self.flow.calls[call].name
            return any(name.startswith(f"{other}.") for other in names)

        whole = [call for call in path if patterns[call] not in partial]
        if whole and path.index(whole[0]) == 0:
            return self.innermost(whole)
        return self.innermost([call for call in path if patterns[call] not in partial or not is_inside(call)])

    def blocks_of(self, module: nn.Module, path: list[int], trunks: list[list[int]]) -> list[int]:
        """Calls of a path that are blocks; everything that enters the path passes the first one."""
        blocks = self.uniform_blocks(module, path, {call for other in trunks for call in other})
        if not is_passed(self.flow, trunks, blocks[0]):  # it is a branch inside of another call
            blocks = self.outermost(path)
        # inputs that the module uses outside of blocks are read, and the graph is not cut at them
        return [call for call in blocks if is_passed(self.flow, trunks, call)] if self.flow.outside else blocks

    def outermost(self, path: list[int]) -> list[int]:
        """Calls without those of modules inside of another one."""
        names = {self.flow.calls[call].name for call in path}
        inner = {name for name in names if any(name.startswith(f"{other}.") for other in names)}
        return [call for call in path if self.flow.calls[call].name not in inner]

    def encoder_part(self, path: list[int]) -> list[int]:
        """Calls up to the last one on the coarsest grid: finer grids after it belong to a decoder."""
        patches = [grid.patches if (grid := self.grids[self.inputs_of(call)[0]]) else 0 for call in path]
        return path[: len(patches) - patches[::-1].index(min(patches))]

    def refusal(self, module: nn.Module, forward: Forward, condition: str) -> ModelError:
        """Why there are no blocks."""
        kind, name = "image" if self.clip is None else "clip", type(module).__name__
        unplaced = [key for key, grid in self.grids.items() if grid is None]
        if self.flow.calls and self.flow.image is None:
            return no_path_to_images(name)
        if unplaced:
            number, place = unplaced[0]
            return ModelError(
                f"where the {self.shapes[number, place][0].count} tokens at {self.flow.calls[number].name!r} lie in the {kind} could "
                "not be confirmed, as after a crop, a shift or padding inside the model; images prepared before the model, other blocks "
                "with blocks=…, or black_box=True would work"
            )
        if self.candidates:
            whole = record_flow(
                module, forward, self.images, {name: part for name, part in module.named_modules() if name}
            )
            calls = {(self.flow.calls[number].name, self.flow.calls[number].repeat) for number in self.candidates}
            candidates = [number for number, call in enumerate(whole.calls) if (call.name, call.repeat) in calls]
            path = whole.path_beside(candidates)
            way = f" (through {', '.join(map(repr, path[:4]))})" if path else ""
            return ModelError(
                f"no blocks of {name!r} were found that the whole {kind} passes: a part passes by{way}; name "
                "them with blocks='layers.*.blocks.*', or use black_box=True"
            )
        return ModelError(
            f"no blocks of {name!r} {condition} are tokens of the {kind}; name them with "
            "blocks='layers.*.blocks.*', or use black_box=True"
        )


def pixel_block(module: nn.Module, forward: Forward, images: Images) -> NetworkBlock | None:
    """The whole module as a block whose tokens are cells of the image; None if the image enters it otherwise."""
    flow = record_flow(module, forward, images, {"": module})
    calls = [number for number, call in enumerate(flow.calls) if call.parts]
    if len(calls) != 1 or flow.passes(calls):
        return None
    call = flow.calls[calls[0]]
    if len(call.parts) != 1 or call.entered[call.parts[0]].shape != images.shape:
        return None
    height, width = images.shape[-2:]
    shared = math.gcd(height, width)
    side = max(side for side in range(1, shared + 1) if shared % side == 0 and side <= max(1, min(height, width) // 14))
    grid = TokenGrid("pixels", (height // side, width // side))
    return NetworkBlock("", module, grid, call.parts)


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


def name_pattern(module: nn.Module, name: str) -> str:
    """The name of a submodule with * for places in lists and for numbers."""
    parts: list[str] = []
    for part in name.split("."):
        is_element = isinstance(module, nn.ModuleList | nn.Sequential)
        parts.append("*" if is_element else re.sub(r"\d+", "*", part))
        module = module.get_submodule(part)
    return ".".join(parts)


def candidate_lists(module: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Submodules that may be blocks: elements of lists, then those with numbered names, then all that hold weights."""
    yield dict(candidate_blocks(module))
    yield dict(candidate_blocks(module, least=1))
    yield dict(candidate_blocks(module, numbered=True))
    for least in (2, 1):
        yield {name: part for name, part in module.named_modules() if name and weight_layers(part) >= least}


def observe_calls(
    module: nn.Module,
    forward: Callable[[], Any],
    observed: Mapping[str, nn.Module],
    most: int | None = None,
    place: int = 0,
) -> list[ModuleCall]:
    """Calls of submodules in the order in which they begin in one forward, which ends when there are `most`.

    `place` is that of the tensor to note among the floating-point tensors of a call.
    """
    calls: list[ModuleCall] = []
    open_calls: list[ModuleCall] = []
    names = {part: name for name, part in observed.items()}
    repeats = dict.fromkeys(names, 0)

    def begin(part: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = entering_tensors(args, kwargs)
        state = tensors[place].clone() if place < len(tensors) else torch.empty(0)  # the module may change it in place
        calls.append(ModuleCall(len(calls), repeats[part], names[part], part, state, place=place))
        repeats[part] += 1
        open_calls.append(calls[-1])
        if len(calls) == most:
            raise StopForward

    def end(part: nn.Module, args: Any, output: Any) -> None:
        open_calls.pop().output = output

    with hooking(names, begin, end), evaluating(module), suppress(StopForward):
        forward()
    return calls
