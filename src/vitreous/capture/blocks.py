"""Find the blocks of any network, and where the tokens at their inputs lie in the image.

Blocks are the innermost elements of lists that hold weights (`layers.0.blocks.1`), as far as their inputs depend on the
images and have the shape of a grid of tokens. Where each token of a sequence lies is measured: parts of a random image are
replaced in patterns that spell the bits of row and column, and a token belongs to the cell whose pattern changes it.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.capture.linearise import PLAIN
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.trace import first_tensor
from vitreous.core.errors import ModelError
from vitreous.models.model import NetworkBlock, TokenGrid
from vitreous.models.quiet import evaluating
from vitreous.models.shapes import Images

WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd, nn.MultiheadAttention)
MOST_OTHERS = 128  # tokens of a sequence that belong to no patch (YOLOS has 100 detection tokens)
ROUNDS = 4  # draws of noise
FEW = 100  # patches below which a measured order is confirmed by further draws
AGREEING = 0.8  # fraction of tokens whose measured place must be the expected one

Forward = Callable[[Images], Any]


@dataclass(frozen=True, slots=True, eq=False)
class BlockInput:
    """A call of a candidate block: its number among all such calls, and its input."""

    number: int
    name: str
    module: nn.Module
    state: Tensor


def find_blocks(
    module: nn.Module, forward: Forward, images: Images, pattern: str | Sequence[str] | None = None
) -> tuple[NetworkBlock, ...]:
    """Block calls of a network whose inputs are tokens of the image, in the order of the forward.

    Parameters
    ----------
    module
        The model.
    forward
        Runs the model on images.
    images
        One image [1 c H W].
    pattern
        Names of blocks such as "layers.*.blocks.*", or several; by default they are found.

    Returns
    -------
    tuple of NetworkBlock

    Raises
    ------
    ModelError
        If no blocks are found, or the places of their tokens cannot be confirmed.
    """
    if pattern is None:
        candidates = dict(candidate_blocks(module)) or dict(candidate_blocks(module, least=1))
    else:
        candidates = dict(named_blocks(module, pattern))
    size = (images.shape[-2], images.shape[-1])
    calls = dependent_inputs(module, forward, images, candidates)
    shaped = [(call, grid) for call in calls if (grid := expected_grid(call.state, size)) is not None]
    if not shaped:
        what = "were found whose inputs" if pattern is None else f"match {pattern!r} whose inputs"
        raise ModelError(
            f"no blocks of {type(module).__name__!r} {what} are tokens of the image; name them with "
            "blocks='layers.*.blocks.*', or use black_box=True"
        )
    confirmed = confirm_grids(module, forward, images, candidates, shaped)
    missed = {call.name for call in calls if call.number not in confirmed}  # all calls of a block are cut, or none
    blocks = innermost([(call, confirmed[call.number]) for call in calls if call.name not in missed])
    if not blocks:
        call, grid = shaped[0]
        raise ModelError(
            f"where the {grid.others + grid.patches} tokens at {call.name!r} lie in the image could not be confirmed; "
            "name other blocks with blocks=…, or use black_box=True"
        )
    blocks = blocks if pattern is not None else encoder_part(blocks)
    return tuple(NetworkBlock(call.name, call.module, grid) for call, grid in blocks)


def innermost(blocks: list[tuple[BlockInput, TokenGrid]]) -> list[tuple[BlockInput, TokenGrid]]:
    """Blocks without those that hold another one."""
    names = {call.name for call, _ in blocks}
    outer = {name for name in names if any(other.startswith(f"{name}.") for other in names)}
    return [(call, grid) for call, grid in blocks if call.name not in outer]


def encoder_part(blocks: list[tuple[BlockInput, TokenGrid]]) -> list[tuple[BlockInput, TokenGrid]]:
    """Blocks up to the last one on the coarsest grid: finer grids after it belong to a decoder."""
    coarsest = min(grid.patches for _, grid in blocks)
    last = max(number for number, (_, grid) in enumerate(blocks) if grid.patches == coarsest)
    return blocks[: last + 1]


# ── candidates ───────────────────────────────────────────────────────────────────────────────────


def weight_layers(module: nn.Module) -> int:
    return sum(isinstance(part, WEIGHT_LAYERS) for part in module.modules())


def candidate_blocks(module: nn.Module, prefix: str = "", least: int = 2) -> Iterator[tuple[str, nn.Module]]:
    """Elements of lists with at least `least` weight layers: residual blocks, and the stages that hold them."""
    inside_list = isinstance(module, nn.ModuleList | nn.Sequential)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if inside_list and prefix and weight_layers(child) >= least and not isinstance(child, nn.ModuleList):
            yield path, child
        yield from candidate_blocks(child, f"{path}.", least)


def named_blocks(module: nn.Module, pattern: str | Sequence[str]) -> list[tuple[str, nn.Module]]:
    """Modules whose names match a pattern such as "layers.*.blocks.*"; * stands for one part of the name."""
    patterns = [pattern] if isinstance(pattern, str) else list(pattern)
    chosen = [
        (name, part)
        for name, part in module.named_modules()
        if any(matches(name.split("."), wanted.split(".")) for wanted in patterns)
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
) -> list[BlockInput]:
    """Inputs of blocks that depend on the images, in the order of one forward: not those of a text encoder."""
    leaf = images.detach().requires_grad_()
    with torch.enable_grad(), LinearisedForward(PLAIN):  # the mode detaches parameters that require gradients
        calls = observe_inputs(module, forward, leaf, blocks)
    return [replace(call, state=call.state.detach()) for call in calls if call.state.requires_grad]


class LastCall(Exception):  # noqa: N818 - not an error
    """Ends a forward whose remaining blocks are not needed."""


def observe_inputs(
    module: nn.Module, forward: Forward, images: Images, blocks: dict[str, nn.Module], last: int | None = None
) -> list[BlockInput]:
    """Inputs of all calls of blocks, in the order of one forward, which ends with the call of number `last`."""
    calls: list[BlockInput] = []
    names = {block: name for name, block in blocks.items()}

    def note(block: nn.Module, args: Any, kwargs: Any) -> None:
        try:
            state = first_tensor(args, kwargs)[1]
        except ModelError:
            state = torch.empty(0)  # called without a tensor; counted, but no block
        calls.append(BlockInput(len(calls), names[block], block, state))
        if last is not None and len(calls) > last:
            raise LastCall

    handles = [block.register_forward_pre_hook(note, with_kwargs=True) for block in names]
    try:
        with evaluating(module), suppress(LastCall):
            forward(images)
    finally:
        for handle in handles:
            handle.remove()
    return calls


# ── places of tokens ─────────────────────────────────────────────────────────────────────────────


def expected_grid(state: Tensor, size: tuple[int, int]) -> TokenGrid | None:
    """The grid that a block input of one image has by its shape, or None if it is none of the known forms."""
    if len(state) != 1 or not 3 <= state.ndim <= 4:
        return None
    if state.ndim == 3:
        return expected_sequence(state.shape[1], size)
    last, first = covers(state.shape[1:3], size), covers(state.shape[2:], size)
    if first and not (last and state.shape[1] < state.shape[-1]):
        return TokenGrid("channels_first", (state.shape[2], state.shape[3]))
    return TokenGrid("channels_last", (state.shape[1], state.shape[2])) if last else None


def covers(grid: Sequence[int], size: tuple[int, int]) -> bool:
    """Whether a grid has the proportions of the image, up to rounding of a stride; a single cell has no place."""
    if min(grid) < 2 or any(cells > length for cells, length in zip(grid, size, strict=True)):
        return False
    strides = {math.floor(size[0] / grid[0]), math.ceil(size[0] / grid[0])}
    return any(
        all(cells in (length // s, -(-length // s)) for length, cells in zip(size, grid, strict=True)) for s in strides
    )


def expected_sequence(count: int, size: tuple[int, int]) -> TokenGrid | None:
    """The grid of a token sequence: the smallest number of other tokens that leaves the proportions of the image."""
    height, width = size
    for others in range(min(MOST_OTHERS, count // 2) + 1):
        rows = round(math.sqrt((count - others) * height / width))
        if rows < 2 or (count - others) % rows:
            continue
        columns = (count - others) // rows
        if columns >= 2 and covers((rows, columns), size) and height % rows == 0 == width % columns:
            return TokenGrid("sequence", (rows, columns), None, others)
    return None


Pair = tuple[Tensor, Tensor]  # squared changes per token when the cells with a bit are replaced, and those without


def confirm_grids(
    module: nn.Module,
    forward: Forward,
    image: Images,
    candidates: dict[str, nn.Module],
    shaped: list[tuple[BlockInput, TokenGrid]],
) -> dict[int, TokenGrid]:
    """Grids by number of the call, confirmed or measured once for every shape.

    A map [b d rows columns] has its place by its shape, so only the first of them is measured; sequences may be in any
    order. Calls whose tokens cannot be placed are left out (the words of a language model).
    """
    first: dict[tuple[Any, ...], tuple[BlockInput, TokenGrid]] = {}
    for call, grid in shaped:
        first.setdefault((grid.form, grid.grid, grid.others), (call, grid))
    maps = [key for key in first if key[0] != "sequence"]
    known: dict[tuple[Any, ...], TokenGrid | None] = {
        key: grid if key in maps[1:] else measure_grid(module, forward, image, candidates, call, grid)
        for key, (call, grid) in first.items()
    }
    placed = {call.number: known[(grid.form, grid.grid, grid.others)] for call, grid in shaped}
    return {number: grid for number, grid in placed.items() if grid is not None}


def measure_grid(
    module: nn.Module,
    forward: Forward,
    image: Images,
    candidates: dict[str, nn.Module],
    call: BlockInput,
    expected: TokenGrid,
) -> TokenGrid | None:
    """The grid of a block input with the order of its tokens, or None if the measurement does not give one."""
    plain = replace(expected, order=None)

    def state(images: Images) -> Tensor:
        with torch.no_grad():
            inputs = observe_inputs(module, forward, images, candidates, last=call.number)
        return plain.tokens(inputs[call.number].state).double()[0].cpu()

    own = state(image)

    def change(images: Images) -> Tensor:
        return (state(images) - own).square().sum(-1)

    def draw(seed: int) -> TokenGrid | None:
        noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed + 1)).to(image)
        pairs = []
        for bit in cell_bits(expected.grid):
            cells = stretch(bit, (image.shape[-2], image.shape[-1])).to(image.device)
            pairs.append((change(torch.where(cells, noise, image)), change(torch.where(cells, image, noise))))
        return decoded_grid(expected, pairs)

    try:
        found = draw(0)
        if found is not None:  # a few tokens may spell a grid by chance, but not the same one again
            again = range(1, ROUNDS if expected.patches < FEW else 1)
            return found if all(same_order(found, draw(seed)) for seed in again) else None
        return (
            sorted_grid(expected, (image.shape[-2], image.shape[-1]), *centres(image, change))
            if expected.form == "sequence"
            else None
        )
    except RuntimeError:  # the shape of the input depends on the image
        return None


def same_order(first: TokenGrid, second: TokenGrid | None) -> bool:
    if second is None or first.order is None or second.order is None:
        return second is not None and first.order is second.order
    return torch.equal(first.order, second.order)


def centres(image: Images, change: Callable[[Images], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column in pixels of the centre of what each token depends on, and how strongly it depends on the image.

    Noise whose variance grows along an axis changes a token by the mean of that ramp over what the token depends on.
    """
    height, width = image.shape[-2:]
    down = torch.linspace(0, 1, height).sqrt()[:, None].to(image)
    across = torch.linspace(0, 1, width).sqrt().to(image)
    sums = torch.zeros(3, 1, dtype=torch.float64)
    for seed in range(ROUNDS):
        noise = 0.1 * torch.randn(image.shape, generator=torch.Generator().manual_seed(seed + 2)).to(image)
        sums = sums + torch.stack([change(image + noise * ramp) for ramp in (torch.ones_like(across), down, across)])
    total = sums[0].clamp(min=1e-300)
    return sums[1] / total * (height - 1), sums[2] / total * (width - 1), sums[0]


def sorted_grid(
    expected: TokenGrid, size: tuple[int, int], row: Tensor, column: Tensor, strength: Tensor
) -> TokenGrid | None:
    """The grid with tokens ordered by their centres, or None unless the centres separate into rows and columns."""
    own = strength.argsort(descending=True)[: expected.patches]
    by_row = own[row[own].argsort()].view(expected.grid)
    order = by_row.gather(1, column[by_row].argsort(1))
    rows, columns = row[order], column[order]
    for centre, cells, length in zip((rows, columns), expected.grid, size, strict=True):
        spread = (centre.max() - centre.min()) / length
        if spread < 0.5 * (cells - 1) / cells:  # tokens that depend on the whole image have their centre in the middle
            return None
    apart = rows[1:].amin(1) > rows[:-1].amax(1) if len(rows) > 1 else torch.ones(1, dtype=torch.bool)
    if not apart.all() or not (columns[:, 1:].amin(0) > columns[:, :-1].amax(0)).all():
        return None
    return replace(expected, order=with_others(order.flatten(), expected.others + expected.patches))


def cell_bits(grid: tuple[int, int]) -> list[Tensor]:
    """For every bit of the Gray codes of row and column: which cells [rows columns] have it.

    Gray codes of neighbours differ in one bit, so a token that depends on two cells is placed at one of the two.
    """
    rows, columns = gray(torch.arange(grid[0])), gray(torch.arange(grid[1]))
    by_row = [((rows >> k) & 1).bool()[:, None].expand(grid) for k in range((grid[0] - 1).bit_length())]
    by_column = [((columns >> k) & 1).bool()[None].expand(grid) for k in range((grid[1] - 1).bit_length())]
    return [*by_row, *by_column]


def gray(number: Tensor) -> Tensor:
    return number ^ (number >> 1)


def stretch(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask of cells at the size of the image."""
    rows = (torch.arange(size[0]) // -(-size[0] // mask.shape[0])).clamp(max=mask.shape[0] - 1)
    columns = (torch.arange(size[1]) // -(-size[1] // mask.shape[1])).clamp(max=mask.shape[1] - 1)
    return mask[rows][:, columns]


def decoded_grid(expected: TokenGrid, pairs: list[Pair]) -> TokenGrid | None:
    """The grid whose order of tokens is spelled by the measured bits, or None if they do not spell a whole grid."""
    bits = torch.stack([a > b for a, b in pairs]).long()
    rows, columns = expected.grid
    row_bits = (rows - 1).bit_length()
    row, column = decoded(bits[:row_bits]), decoded(bits[row_bits:])
    place = row * columns + column
    count = expected.others + expected.patches
    wanted = torch.arange(expected.patches)
    near = int(min(expected.grid) > 4)  # convolutions that overlap blur a cell with its neighbour
    for front in dict.fromkeys((expected.others, *range(expected.others))):
        own = torch.arange(front, front + expected.patches)
        distance = torch.maximum((row[own] - wanted // columns).abs(), (column[own] - wanted % columns).abs())
        if (distance <= near).double().mean() >= AGREEING:
            return replace(expected, order=None if front == expected.others else with_others(own, count))
    if expected.form != "sequence":
        return None
    touched = torch.stack([a + b for a, b in pairs]).sum(0)
    own = touched.argsort(descending=True)[: expected.patches]
    if len(place[own].unique()) < expected.patches or place[own].max() >= expected.patches:
        return None
    return replace(expected, order=with_others(own[place[own].argsort()], count))


def decoded(bits: Tensor) -> Tensor:
    """Whole numbers [n] of the bits [k n] of their Gray codes, the lowest first."""
    if not len(bits):
        return torch.zeros(bits.shape[1], dtype=torch.long)
    plain = bits.flip(0).cumsum(0).flip(0) % 2  # a bit of the number is the parity of the higher bits of its code
    return (plain << torch.arange(len(bits))[:, None]).sum(0)


def with_others(own: Tensor, count: int) -> Tensor:
    """Positions of the tokens that belong to no patch, then those of the patches."""
    outside = torch.ones(count, dtype=torch.bool).index_fill(0, own, False)
    return torch.cat([outside.nonzero()[:, 0], own])
