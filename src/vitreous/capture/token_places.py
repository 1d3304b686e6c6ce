"""Where the tokens at the input of a block lie in the image: by their shape, and by what changes them.

Where each token of a sequence lies is measured: parts of a random image are replaced in patterns that spell the bits of row
and column (and of the time step in a clip), and a token belongs to the cell whose pattern changes it. Sizes and grids are
(height, width) and (rows, columns), with frames and time steps before them in a clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from vitreous.models.layout import Clip, TokenGrid
from vitreous.models.random_draws import normal_numbers
from vitreous.models.tensor_types import Images

MOST_OTHERS = 128  # tokens of a sequence that belong to no patch (YOLOS has 100 detection tokens)
ROUNDS = 4  # draws of noise
FEW = 100  # patches below which a measured order is confirmed by further draws
PIXELS_TOGETHER = 2**22  # values of the images that are run as one batch
SAME = 0.01  # relative difference of an image's tokens in a batch from those of the image alone, by rounding
AGREEING = 0.8  # fraction of tokens whose measured place must be the expected one
IN_LINE = 0.25  # fraction of the tokens of one row or column
EXACT, EXACT_OF_FEW = 0.35, 0.75  # fraction at the very cell in axes of up to 4 cells, and where there are fewer than 9
CLEAR, CLEARLY = 0.1, 0.95  # change by other cells relative to that by the own, and the fraction of changes below it
OUTWARD = 0.2  # distance of centres of tokens from their cells, in cells, towards both ends of the image
BORDER = 0.02  # change by noise in the outer quarter of a border cell, relative to that by noise everywhere

IN_ANY_ORDER = ("sequence", "packed", "framed", "windows")  # forms whose shape does not say where a token lies

Pair = tuple[Tensor, Tensor]  # squared changes per token when the cells with a bit are replaced, and those without


def expected_grids(state: Tensor, size: tuple[int, ...]) -> list[TokenGrid]:
    """The grids that a block input of one image or clip may have by its shape; none if it has none of the known forms.

    Several for a sequence of a clip, whose length does not say how many time steps there are, and for a map whose columns
    may as well be the tokens of square windows.
    """
    if state.ndim == 2:
        return [replace(grid, form="packed") for grid in expected_sequences(len(state), size)]
    if state.ndim == len(size) == 3 and len(state) == size[0] > 1:
        frames = size[0]  # given as images
        of_frame = expected_sequences(state.shape[1], size[1:])
        return [TokenGrid("framed", (frames, *grid.grid), None, frames * grid.others) for grid in of_frame]
    if state.ndim not in (3, len(size) + 2) or len(state) != 1:
        return []
    if state.ndim == 3:
        return list(expected_sequences(state.shape[1], size))
    last, first = covers(state.shape[1:-1], size), covers(state.shape[2:], size)
    if first and not (last and state.shape[1] < state.shape[-1]):
        return [TokenGrid("channels_first", tuple(state.shape[2:]))]
    windows = list(expected_windows(state, size))
    return [TokenGrid("channels_last", tuple(state.shape[1:-1])), *windows] if last else windows


def expected_windows(state: Tensor, size: tuple[int, ...]) -> Iterator[TokenGrid]:
    """Grids of an image whose tokens are given by square windows [1 windows n d]."""
    if len(size) == 2 and 1 < state.shape[2] == math.isqrt(state.shape[2]) ** 2:
        grids = expected_sequences(state.shape[1] * state.shape[2], size)
        yield from (replace(grid, form="windows") for grid in grids if not grid.others)


def covers(grid: Sequence[int], size: Sequence[int]) -> bool:
    """Whether a grid has the proportions of the image, up to rounding of a stride; a single cell has no place."""
    if min(grid[-2:]) < 2 or any(cells > length for cells, length in zip(grid, size, strict=True)):
        return False
    if len(grid) == 3 and grid[0] not in steps_of(size[0]):
        return False
    grid, size = grid[-2:], size[-2:]
    strides = {math.floor(size[0] / grid[0]), math.ceil(size[0] / grid[0])}
    return any(
        all(cells in (length // s, -(-length // s)) for length, cells in zip(size, grid, strict=True)) for s in strides
    )


def steps_of(frames: int) -> list[int]:
    """Numbers of time steps that frames divide into, the largest first."""
    return [frames // tubelet for tubelet in range(1, frames + 1) if frames % tubelet == 0]


def expected_sequences(count: int, size: tuple[int, ...]) -> Iterator[TokenGrid]:
    """Grids of a token sequence: with the smallest number of other tokens that leaves the proportions of the image."""
    *frames, height, width = size
    steps = [(step,) for step in steps_of(frames[0])] if frames else [()]
    for others in range(min(MOST_OTHERS, count // 2) + 1):
        grids = []
        for step in steps:
            patches, rest = divmod(count - others, math.prod(step))
            rows = round(math.sqrt(patches * height / width))
            if rest or rows < 2 or patches % rows:
                continue
            grid = (*step, rows, patches // rows)
            if min(grid[-2:]) >= 2 and covers(grid, size) and height % rows == 0 == width % grid[-1]:
                grids.append(grid)
        yield from (TokenGrid("sequence", grid, None, others) for grid in grids)
        if grids:
            return


def measure_grid(
    expected: TokenGrid,
    image: Images,
    input_of: Callable[[Images], Tensor],
    clip: Clip | None = None,
    any_order: bool = True,
) -> TokenGrid | None:
    """The grid of a block input with the measured order of its tokens, or None if the measurement does not give one.

    Parameters
    ----------
    expected
        The grid that the input has by its shape.
    image
        One image [1 c H W] or clip, parts of which are replaced by noise.
    input_of
        Input of the block for such an image.
    clip
        Form of the clip.
    any_order
        Whether the tokens may be in another order than that of the expected grid.
    """
    size = size_of(image, clip)
    own = expected.tokens(input_of(image))[0].double().cpu()
    together = PIXELS_TOGETHER // image.numel()

    def change(images: list[Images]) -> Tensor:
        """Squared change [k n] of every token when each of k images takes the place of the image."""
        nonlocal together
        changes: list[Tensor] = []
        while len(changes) < len(images):
            batch = images[len(changes) :][: max(together, 1)]
            measured = change_in_batch(batch) if together > 1 else None
            if measured is None:
                together = 1  # the model takes one image at a time, or mixes those of a batch
                measured = [squared_change(expected.tokens(input_of(batch[0]))[0], own)]
            changes += measured
        return torch.stack(changes)

    def change_in_batch(images: list[Images]) -> list[Tensor] | None:
        """The changes in one batch that ends with the image itself; None if its tokens are not the same there."""
        with suppress(Exception):  # of any kind: the model may take one image at a time, or have no memory for more
            state = input_of(torch.cat([*images, image]))
            if expected.images_in(state.shape) == len(images) + 1:
                *changed, repeated = expected.tokens(state)
                repeated = repeated.double().cpu()
                if torch.dist(repeated, own) <= SAME * own.norm():
                    return [squared_change(tokens, repeated) for tokens in changed]
        return None

    def draw(seed: int) -> TokenGrid | None:
        noise = normal_numbers(torch.Generator().manual_seed(seed + 1), image.shape).to(image)
        images = []
        for bit in cell_bits(expected.grid):
            cells = stretch(bit, size).to(image.device)
            cells = cells if clip is None else clip.over_channels(cells)
            images += [torch.where(cells, noise, image), torch.where(cells, image, noise)]
        changes = change(images)
        return decode_grid(expected, list(zip(changes[::2], changes[1::2], strict=True)), any_order)

    try:
        measured = draw(0)
        if measured is not None:  # a few tokens may spell a grid by chance, but not the same one again
            again = range(1, ROUNDS if expected.patches < FEW else 1)
            return measured if all(same_order(measured, draw(seed)) for seed in again) else None
        if not any_order or clip is not None:
            return None
        return sort_grid(expected, size, *measure_centres(image, change))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # the shape of the input depends on the image
        return None


def covers_image(grid: TokenGrid, image: Images, input_of: Callable[[Images], Tensor], clip: Clip | None) -> bool:
    """Whether the patches of a measured grid cover the whole image and no more: a model may crop or pad its images."""
    size = size_of(image, clip)[-2:]
    inner = torch.zeros(size, dtype=torch.bool)
    margins = [max(2, length // cells // 4) for length, cells in zip(size, grid.grid[-2:], strict=True)]
    inner[margins[0] : -margins[0], margins[1] : -margins[1]] = True
    amplitude = 0.02 if image.dtype.itemsize > 2 else 0.1  # small, so that layers are linear
    noise = amplitude * torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(image)
    own = grid.tokens(input_of(image))[0].double().cpu()

    def change(amplitude: Tensor) -> Tensor:
        """Squared change of the patches [*grid] by noise."""
        tokens = grid.tokens(input_of(image + noise * amplitude.to(image)))[0]
        return squared_change(tokens, own)[grid.others :].unflatten(0, grid.grid)

    total = change(torch.ones(size)).clamp(min=1e-300)
    border = change((~inner).double()) / total
    for axis, (cells, length) in enumerate(zip(grid.grid[-2:], size, strict=True), start=-2):
        sides = border.movedim(axis, 0).flatten(1)
        if min(float(sides[end].median()) for end in (0, -1)) < BORDER:
            return False
        ramp = ((torch.arange(length) + 0.5) / length).sqrt().view(-1, *[1] * (-axis - 1))
        centre = (change(ramp.expand(size)) / total).clamp(0, 1).movedim(axis, 0).flatten(1).mean(1) * cells
        beyond = centre - (torch.arange(cells) + 0.5)
        half = cells // 2
        most = OUTWARD * max(1, 4 / cells)  # the centre of a large patch is not quite in its middle
        if -beyond[:half].mean() > most and beyond[half:].mean() > most:
            return False  # the image is padded: its tokens are further apart than their cells
    return True


def squared_change(tokens: Tensor, others: Tensor) -> Tensor:
    return (tokens.double().cpu() - others).square().sum(-1)


def size_of(images: Images, clip: Clip | None) -> tuple[int, ...]:
    """Height and width of images, or frames, height and width of clips."""
    size = (images.shape[-2], images.shape[-1])
    return size if clip is None else (images.shape[clip.axis], *size)


def same_order(first: TokenGrid, second: TokenGrid | None) -> bool:
    if second is None or first.order is None or second.order is None:
        return second is not None and first.order is second.order
    return torch.equal(first.order, second.order)


def measure_centres(image: Images, change: Callable[[list[Images]], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Row and column in pixels of the centre of what each token depends on, and how strongly it depends on the image.

    Noise whose variance grows along an axis changes a token by the mean of that ramp over what the token depends on.
    """
    height, width = image.shape[-2:]
    down = torch.linspace(0, 1, height).sqrt()[:, None].to(image)
    across = torch.linspace(0, 1, width).sqrt().to(image)
    sums = torch.zeros(3, 1, dtype=torch.float64)
    for seed in range(ROUNDS):
        noise = 0.1 * normal_numbers(torch.Generator().manual_seed(seed + 2), image.shape).to(image)
        sums = sums + change([image + noise * ramp for ramp in (torch.ones_like(across), down, across)])
    total = sums[0].clamp(min=1e-300)
    return sums[1] / total * (height - 1), sums[2] / total * (width - 1), sums[0]


def sort_grid(
    expected: TokenGrid, size: tuple[int, ...], row: Tensor, column: Tensor, strength: Tensor
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
    return with_order(expected, prepend_others(order.flatten(), expected.count))


def cell_bits(grid: tuple[int, ...]) -> list[Tensor]:
    """For every bit of the Gray codes of a cell's position along each axis: which cells [*grid] have it.

    Gray codes of neighbours differ in one bit, so a token that depends on two cells is placed at one of the two.
    """
    masks = []
    for axis, cells in enumerate(grid):
        position = torch.arange(cells)
        codes = (position ^ (position >> 1)).view(-1, *[1] * (len(grid) - axis - 1))
        masks += [((codes >> k) & 1).bool().expand(grid) for k in range(bits_of(cells))]
    return masks


def bits_of(cells: int) -> int:
    return (cells - 1).bit_length()


def stretch(mask: Tensor, size: tuple[int, ...]) -> Tensor:
    """A mask of cells at the size of the image."""
    for axis, length in enumerate(size):
        cells = mask.shape[axis]
        mask = mask.index_select(axis, (torch.arange(length) // -(-length // cells)).clamp(max=cells - 1))
    return mask


def decode_grid(expected: TokenGrid, pairs: list[Pair], any_order: bool) -> TokenGrid | None:
    """The grid whose order of tokens is spelled by the measured bits, or None if they do not spell a whole grid."""
    grid, count = expected.grid, expected.count
    bits = (torch.stack([a > b for a, b in pairs]).long()).split([bits_of(cells) for cells in grid])
    position = [decode_positions(own) if len(own) else torch.zeros(count, dtype=torch.long) for own in bits]
    spelled = spelled_order(expected, pairs, position) if any_order else None
    if spelled is not None and spelled[1]:
        return spelled[0]
    places = torch.stack(torch.unravel_index(torch.arange(expected.patches), grid))
    for front in dict.fromkeys((expected.others, *range(expected.others))):
        own = torch.arange(front, front + expected.patches)
        if agrees(torch.stack(position)[:, own] - places, grid):
            return with_order(expected, prepend_others(own, count))
    return None if spelled is None else spelled[0]


def spelled_order(expected: TokenGrid, pairs: list[Pair], position: list[Tensor]) -> tuple[TokenGrid, bool] | None:
    """The grid in the order that its tokens spell, if they spell every cell once, and whether no other cell changes them."""
    first, second = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
    own = (first + second).sum(0).argsort(descending=True)[: expected.patches]
    inside = torch.stack([along[own] < cells for along, cells in zip(position, expected.grid, strict=True)]).all()
    place = torch.zeros(expected.count, dtype=torch.long)
    for along, cells in zip(position, expected.grid, strict=True):
        place = place * cells + along
    if not inside or len(place[own].unique()) < expected.patches:
        return None
    weaker = (torch.minimum(first, second) / torch.maximum(first, second).clamp(min=1e-300))[:, own]
    grid = with_order(expected, prepend_others(own[place[own].argsort()], expected.count))
    return grid, bool((weaker < CLEAR).double().mean() >= CLEARLY)


def with_order(grid: TokenGrid, order: Tensor) -> TokenGrid:
    """The grid with an order, None if it is that of its form."""
    return replace(grid, order=None if torch.equal(order, torch.arange(len(order))) else order)


def agrees(distance: Tensor, grid: tuple[int, ...], most: float = AGREEING) -> bool:
    """Whether distances [axes n] of patches from their expected cells are those of tokens that are blurred, not moved.

    Convolutions that overlap blur a cell with its neighbours. Tokens may be rolled by one cell: then those of one row or
    column are far from it. On a small grid most cells are neighbours, so more of them must be right.
    """
    distance = distance.abs()
    near = (distance <= 1).all(0).double().view(grid)
    lines = [near.movedim(axis, 0).flatten(1).mean(1).min() for axis in range(len(grid))]
    small = [cells <= 4 for cells in grid]
    exact = (distance[small] <= 0.5).all(0).double().mean()
    least = EXACT if math.prod(grid) >= 9 else EXACT_OF_FEW
    return bool(near.mean() >= most and min(lines) >= IN_LINE and exact >= least)


def decode_positions(bits: Tensor) -> Tensor:
    """Whole numbers [n] of the bits [k n] of their Gray codes, the lowest first."""
    plain = bits.flip(0).cumsum(0).flip(0) % 2  # a bit of the number is the parity of the higher bits of its code
    return (plain << torch.arange(len(bits))[:, None]).sum(0)


def prepend_others(own: Tensor, count: int) -> Tensor:
    """Positions of the tokens that belong to no patch, then those of the patches."""
    outside = torch.ones(count, dtype=torch.bool).index_fill(0, own, False)
    return torch.cat([outside.nonzero()[:, 0], own])
