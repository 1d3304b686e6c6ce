"""Which modules of a network are its blocks, and where the tokens at their inputs lie in the image."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitreous.capture.trace import first_tensor
from vitreous.core.errors import ModelError
from vitreous.models.quiet import evaluating

WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
LARGEST_PREFIX = 16


@dataclass(frozen=True, slots=True)
class TokenGrid:
    """Where the tokens of one tensor lie.

    Attributes
    ----------
    form
        "sequence" [b n d], "channels_last" [b rows columns d] or "channels_first" [b d rows columns].
    grid
        Rows and columns of patches (with the number of frames in front for a video).
    prefix
        Tokens in front of the patches.
    suffix
        Tokens behind the patches.
    """

    form: Literal["sequence", "channels_last", "channels_first"]
    grid: tuple[int, ...]
    prefix: int = 0
    suffix: int = 0

    @property
    def patches(self) -> int:
        return math.prod(self.grid)

    def tokens(self, x: Tensor) -> Tensor:
        """A tensor of this form as [b n d]."""
        if self.form == "sequence":
            return x
        if self.form == "channels_last":
            return x.flatten(1, -2)
        return x.flatten(2).mT


@dataclass(frozen=True, slots=True)
class BlockCall:
    """One call of a block in a forward."""

    name: str
    module: nn.Module
    grid: TokenGrid


def is_heavy(module: nn.Module) -> bool:
    """At least two weight layers: a block, a stage, a network; not a single layer of an MLP."""
    count = 0
    for part in module.modules():
        count += isinstance(part, WEIGHT_LAYERS)
        if count >= 2:
            return True
    return False


def candidate_blocks(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The innermost heavy elements of lists: residual blocks, whatever the stages that hold them."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, nn.ModuleList | nn.Sequential) and any(is_heavy(part) for part in child):
            for key, part in child.named_children():
                if not is_heavy(part):
                    continue
                inner = list(candidate_blocks(part, f"{path}.{key}."))
                if isinstance(part, nn.ModuleList | nn.Sequential) and not inner:
                    inner = [(f"{path}.{key}", part)]
                yield from inner or [(f"{path}.{key}", part)]
        else:
            yield from candidate_blocks(child, f"{path}.")


def named_blocks(module: nn.Module, pattern: str | Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Modules whose names match a pattern such as "layers.*.blocks.*"; * stands for one part of the name."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    chosen = [
        (name, part)
        for name, part in module.named_modules()
        if any(matches(name.split("."), wanted.split(".")) for wanted in patterns)
    ]
    if not chosen:
        raise ModelError(f"no module is called {' or '.join(map(repr, patterns))}; see model.named_modules()")
    return chosen


def matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(fnmatch.fnmatchcase(a, b) for a, b in zip(name, pattern, strict=True))


def observe_inputs(
    module: nn.Module, forward: Callable[[], Any], blocks: Sequence[tuple[str, nn.Module]]
) -> list[tuple[str, nn.Module, torch.Size]]:
    """Shapes of the tensors that enter blocks, in the order of one forward."""
    calls: list[tuple[str, nn.Module, torch.Size]] = []
    handles = []
    for name, block in blocks:

        def note(part: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            try:
                shape = first_tensor(args, kwargs)[1].shape
            except ModelError:
                return
            calls.append((name, part, shape))

        handles.append(block.register_forward_pre_hook(note, with_kwargs=True))
    try:
        with torch.no_grad(), evaluating(module):
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def find_blocks(
    module: nn.Module,
    forward: Callable[[], Any],
    size: tuple[int, ...],
    batch: int,
    pattern: str | Sequence[str] | None = None,
) -> list[BlockCall]:
    """The block calls of a forward whose inputs are tokens of the image.

    Parameters
    ----------
    module, forward
        The model, and a call of it on some images.
    size
        Height and width of those images (frames, height and width of a video).
    batch
        Number of images.
    pattern
        Names of blocks; by default they are found.
    """
    chosen = list(candidate_blocks(module)) if pattern is None else named_blocks(module, pattern)
    calls = observe_inputs(module, forward, chosen)
    located = [(name, part, locate(shape, size, batch)) for name, part, shape in calls]
    finest: TokenGrid | None = None
    blocks: list[BlockCall] = []
    for name, part, grid in located:
        if grid is None or (finest is not None and not is_coarser(grid, finest)):
            continue
        finest = finest or grid
        blocks.append(BlockCall(name, part, grid))
    if not blocks:
        raise ModelError(
            f"no blocks were found in {type(module).__name__!r} whose inputs are tokens of the image; "
            "name them with blocks='layers.*.blocks.*', or use black_box=True"
        )
    return blocks


def is_coarser(grid: TokenGrid, finest: TokenGrid) -> bool:
    """Whether every cell of `grid` covers whole cells of `finest`."""
    same_rank = len(grid.grid) == len(finest.grid)
    return same_rank and all(fine >= rough for rough, fine in zip(grid.grid, finest.grid, strict=True))


def locate(shape: torch.Size, size: tuple[int, ...], batch: int) -> TokenGrid | None:
    """Where the tokens of a tensor of this shape lie in images of that size, or None."""
    if len(shape) < 3 or shape[0] != batch:
        return None
    if len(shape) == 3:
        return locate_sequence(shape[1], size)
    space = shape[1:-1], shape[2:]
    if len(space[0]) != len(size):
        return None
    last, first = (covers(part, size) for part in space)
    if first and not (last and shape[1] < shape[-1]):
        return TokenGrid("channels_first", tuple(space[1]))
    return TokenGrid("channels_last", tuple(space[0])) if last else None


def covers(grid: Sequence[int], size: Sequence[int]) -> bool:
    """Whether a grid has the proportions of the image, up to rounding of a stride."""
    strides = [length / cells for length, cells in zip(size[-2:], grid[-2:], strict=True)]
    if min(strides) < 1:
        return False
    return any(
        all(cells in (length // stride, -(-length // stride)) for length, cells in zip(size[-2:], grid[-2:], strict=True))
        for stride in {math.floor(strides[0]), math.ceil(strides[0])}
    )


def locate_sequence(count: int, size: tuple[int, ...]) -> TokenGrid | None:
    """Rows and columns of a token sequence: the smallest number of prefix tokens that leaves a whole grid."""
    height, width = size[-2:]
    frames = size[:-2]
    for prefix in range(min(LARGEST_PREFIX, count - 1) + 1):
        patches = count - prefix
        for depth in divisors(frames[0]) if frames else (None,):
            if depth is not None and patches % depth:
                continue
            cells = patches // (depth or 1)
            rows = round(math.sqrt(cells * height / width))
            if rows < 1 or cells % rows or height % rows:
                continue
            columns = cells // rows
            if rows * width == columns * height and width % columns == 0:
                return TokenGrid("sequence", (rows, columns) if depth is None else (depth, rows, columns), prefix)
    return None


def divisors(number: int) -> list[int]:
    return [part for part in range(number, 0, -1) if number % part == 0]
