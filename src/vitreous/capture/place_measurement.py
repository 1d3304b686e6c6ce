"""Where the tokens at the input of every block call lie: the first is measured in the image, the others are followed from it.

The input of every call is replaced by the same tokens plus noise, and the change that arrives at a later call says which of
its tokens come from which. Along a residual path a token carries its own noise, by which it is recognised in any order.
Where tokens are merged or mixed, noise that grows along an axis of the image shows where what arrives comes from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitreous.capture.call_inputs import entering_tensors, replace_tensors
from vitreous.capture.token_places import (
    IN_ANY_ORDER,
    agrees,
    covers_image,
    expected_grids,
    measure_grid,
    same_order,
    size_of,
    sort_grid,
)
from vitreous.core.progress import Tally
from vitreous.models.eval_mode import StopForward, hooking
from vitreous.models.layout import Clip, TokenGrid
from vitreous.models.tensor_types import Images

if TYPE_CHECKING:
    from vitreous.capture.blocks import ModuleCall

Forward = Callable[[Images], Any]

AMPLITUDE = (
    0.02  # of the noise, relative to the mean deviation of a channel over tokens: small, so that layers are linear
)
AMPLITUDE_HALF = 0.5  # in half precision, where smaller noise would be rounded
SMALLEST = 0.01  # deviation of a channel relative to the size of all values, where its tokens are equal
RECOGNISED = 0.5  # squared correlation with a token's noise, above which none with another's can be higher
BEYOND_CHANCE = 1.2  # highest correlation relative to that of independent noise
FRACTION = 0.8  # fraction of tokens that must be recognised
HALF = 0.5  # fraction that is enough if all of them are recognised at their own positions
SAMPLE = 64  # tokens that are searched for among the others before all are
AT_ONCE = 1024  # tokens that are compared with all others at once
FEW = 100  # tokens of a call up to which further noise is drawn where they are not recognised
DRAWS = 8
EARLIER = 3  # calls of the same shape whose noise is searched for, from the latest
REACHED = 8  # change of a token relative to rounding, from which noise has reached it
STEEPNESS = 0.15  # of measured over expected places: tokens that are mixed have their centres nearer to the middle
FINE = 32  # cells of a grid for which a centre may be one cell further away
AGREEING = 0.5  # fraction of tokens whose centre must be at their cell or next to it
FEWEST_SORTED = 16  # patches below which an order of centres may be chance


@dataclass(slots=True, eq=False)
class BlockInput:
    """The input of one block call on the image: [1 ...], and the grids that it may have by its shape."""

    call: ModuleCall
    state: Tensor
    expected: list[TokenGrid]

    @property
    def count(self) -> int:
        """Number of tokens."""
        return self.expected[0].count

    def rows(self, state: Tensor) -> Tensor:
        """Tokens [n d] of a tensor of this shape as they lie in it."""
        return self.expected[0].tokens(state)[0]

    def spread(self, values: Tensor, channels: bool = False) -> Tensor:
        """One value per token (or per channel), to be multiplied with a tensor of this shape."""
        channel = 1 if self.expected[0].form == "channels_first" else self.state.ndim - 1
        shape = [length if (axis == channel) == channels else 1 for axis, length in enumerate(self.state.shape)]
        return values.to(self.state).view(shape)

    def scale(self) -> Tensor:
        """Size of the noise per channel [d]."""
        rows = self.rows(self.state)
        least = SMALLEST * rows.square().mean().sqrt()
        amplitude = AMPLITUDE if rows.dtype.itemsize > 2 else AMPLITUDE_HALF
        return amplitude * (rows - rows.mean(0)).abs().mean(0).clamp(min=max(float(least), 1e-30))

    def change(self, state: Tensor) -> Tensor:
        """Change of tokens [n d] from those of the image, relative to the size of noise."""
        return self.rows(state - self.state) / self.scale()

    def rounding(self) -> float:
        """Squared change by rounding."""
        size = torch.finfo(self.state.dtype).eps * self.rows(self.state).square().mean().sqrt()
        return float((size / self.scale().mean()).square())


@dataclass(slots=True, eq=False)
class Link:
    """The tokens of a call come one by one from those of an earlier call: `positions` [n] there, None if in the same order."""

    source: BlockInput
    positions: Tensor | None


def measure_places(
    forward: Forward, image: Images, calls: Sequence[ModuleCall], clip: Clip | None = None
) -> dict[int, TokenGrid]:
    """Grids with the order of their tokens by number of the call; those whose tokens cannot be placed are left out.

    Parameters
    ----------
    forward
        Runs the model, in eval mode, on images.
    image
        One image [1 c H W] or clip.
    calls
        Block calls on this image in the order of the forward, each with its first tensor.
    clip
        Form of the clip.
    """
    size = size_of(image, clip)
    grids = [(call, expected_grids(call.state, size)) for call in calls]
    inputs = [BlockInput(call, call.state, expected) for call, expected in grids if expected]
    if not inputs:
        return {}
    measurement = Measurement(forward, image, inputs, clip)
    places = measurement.follow()
    return {entry.call.number: grid for entry in inputs if (grid := places[entry]) is not None}


Places = dict[BlockInput, TokenGrid | None]
Changes = dict[BlockInput, Tensor]  # of every token [n], relative to the size of noise


@dataclass(slots=True, eq=False)
class Measurement:
    """Block inputs of one image, whose tokens are followed from call to call."""

    forward: Forward
    image: Images
    inputs: list[BlockInput]
    clip: Clip | None
    noise: Tensor = field(init=False)

    def __post_init__(self) -> None:
        longest = max(self.image.numel(), *(entry.state.numel() for entry in self.inputs))
        self.noise = torch.randn(2 * longest, generator=torch.Generator().manual_seed(1))

    @property
    def size(self) -> tuple[int, ...]:
        return size_of(self.image, self.clip)

    def noise_of(self, entry: BlockInput, draw: int = 0) -> Tensor:
        """Noise of the shape of an input: another part of the drawn values for every call and draw."""
        start = (entry.call.number * 7919 + draw * 104729) % (len(self.noise) // 2)
        return self.noise[start : start + entry.state.numel()].view(entry.state.shape).to(entry.state)

    def follow(self) -> Places:
        links, reached = self.recognise()
        roots = [entry for entry in self.inputs if entry not in links]
        places: Places = {roots[0]: self.place_in_image(roots[0])}
        while undecided := [entry for entry in roots if entry not in places]:
            assumed = self.complete(links, places, guess=True)
            if None in assumed.values():
                reached = self.changes(assumed)
            ramps = [self.changes(assumed, axis) for axis in range(len(self.size))]
            for entry in undecided:
                places[entry] = self.place_by_centres(entry, assumed[entry], reached, ramps) or self.place_in_image(
                    entry
                )
                if not same_place(places[entry], assumed[entry]):
                    break  # what was assumed has moved the noise that arrived at later calls
        return self.complete(links, places)

    def complete(self, links: dict[BlockInput, Link], places: Places, guess: bool = False) -> Places:
        """Places of all inputs by those that are known; those that are neither known nor follow from them are guessed."""
        complete: Places = {}
        for entry in self.inputs:
            if entry in links:
                complete[entry] = linked_grid(entry, links[entry], complete[links[entry].source])
            elif entry in places or not guess:
                complete[entry] = places.get(entry)
            else:
                same = (grid for grid in complete.values() if grid is not None and grid.count == entry.count)
                complete[entry] = next(
                    (fit for grid in same if (fit := with_order(entry, grid, grid.order))), entry.expected[0]
                )
        return complete

    # ── forwards with noise ──────────────────────────────────────────────────────────────────────

    def run(self, enter: Callable[[BlockInput, Tensor], Tensor | None]) -> None:
        """Run the model on the image; `enter` is given the tensor of every call and may replace it."""
        by_call: dict[tuple[nn.Module, int], list[BlockInput]] = {}
        for entry in self.inputs:
            by_call.setdefault((entry.call.module, entry.call.repeat), []).append(entry)
        repeats, tally = Counter[nn.Module](), Tally(len(self.inputs))

        def before(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            entries = by_call.get((part, repeats[part]), [])
            repeats[part] += 1
            tensors, replacements = entering_tensors(args, kwargs), {}
            for entry in entries:
                tally.add(1)
                x = tensors[entry.call.place]
                if x.shape != entry.state.shape:
                    raise StopForward  # the shape of the input depends on the image
                new = enter(entry, x)
                if new is not None:
                    replacements[id(x)] = new
            if self.inputs[-1] in entries:
                raise StopForward
            return replace_tensors(args, replacements), replace_tensors(kwargs, replacements)

        modules = [entry.call.module for entry in self.inputs]
        with hooking(modules, before), torch.no_grad(), suppress(StopForward):
            self.forward(self.image)

    def disturbed(self, entry: BlockInput, amplitude: Tensor | None = None, draw: int = 0) -> Tensor:
        """The input plus noise, whose amplitude may differ between tokens."""
        noise = self.noise_of(entry, draw) * entry.spread(entry.scale(), channels=True)
        return entry.state + (noise if amplitude is None else noise * entry.spread(amplitude))

    def recognise(self) -> tuple[dict[BlockInput, Link], Changes]:
        """Links between calls, and the squared changes of tokens by noise in earlier calls."""
        links: dict[BlockInput, Link] = {}
        reached: Changes = {}

        def enter(entry: BlockInput, x: Tensor) -> Tensor:
            change = entry.change(x)
            reached[entry] = change.square().mean(1)
            self.link(links, entry, change, draws=[0])
            return self.disturbed(entry)

        self.run(enter)
        draws = list(range(1, DRAWS + 1))
        few = {entry: list[Tensor]() for entry in reached if entry.count <= FEW and entry not in links}
        few = {entry: changes for entry, changes in few.items() if self.alike(entry)}
        for draw in draws if few else []:

            def enter_again(entry: BlockInput, x: Tensor, draw: int = draw) -> Tensor:
                if entry in few:
                    few[entry].append(entry.change(x))
                return self.disturbed(entry, draw=draw)

            self.run(enter_again)
        for entry, changes in few.items():
            self.link(links, entry, torch.cat(changes, 1), draws[: len(changes)])
        return links, reached

    def alike(self, entry: BlockInput) -> list[BlockInput]:
        """Earlier calls with as many tokens and channels, the latest first."""
        earlier = reversed(self.inputs[: self.inputs.index(entry)])
        shape = entry.rows(entry.state).shape
        return [other for other in earlier if other.rows(other.state).shape == shape][:EARLIER]

    def link(self, links: dict[BlockInput, Link], entry: BlockInput, change: Tensor, draws: list[int]) -> None:
        """Add the link from a call whose noise the change of tokens in these draws resembles, if there is one."""
        for source in self.alike(entry):
            noise = torch.cat([source.rows(self.noise_of(source, draw)) for draw in draws], 1)
            matched, positions = match_tokens(change, noise)
            if matched:
                links[entry] = Link(source, positions)
                return

    def changes(self, assumed: Places, axis: int | None = None) -> Changes:
        """Squared changes of tokens by noise in earlier calls, which grows along an axis of the image if one is given.

        There is no noise where the places of tokens are not known: it would hide where those of later calls come from.
        """
        changes: Changes = {}

        def enter(entry: BlockInput, x: Tensor) -> Tensor | None:
            changes[entry] = entry.change(x).square().mean(1)
            grid = assumed[entry]
            return None if grid is None else self.disturbed(entry, None if axis is None else ramp(grid, axis))

        self.run(enter)
        return changes

    # ── places of the calls whose tokens are not recognised ──────────────────────────────────────

    def place_in_image(self, entry: BlockInput, assumed: TokenGrid | None = None) -> TokenGrid | None:
        """The grid measured by patterns in the image, if its tokens cover the whole image; `assumed` is tried first."""

        def input_of(images: Images) -> Tensor:
            read: list[Tensor] = []
            run_to(entry.call, lambda: self.forward(images), read)
            return read[0] if read else torch.empty(0)

        if assumed is not None and assumed.order is not None:
            grid = measure_grid(assumed, self.image, input_of, self.clip, any_order=False)
            if grid is not None and grid.order is None and covers_image(assumed, self.image, input_of, self.clip):
                return assumed
        for expected in entry.expected:
            any_order = expected is entry.expected[-1] or expected.form in IN_ANY_ORDER
            grid = measure_grid(expected, self.image, input_of, self.clip, any_order)
            if grid is not None:
                return grid if covers_image(grid, self.image, input_of, self.clip) else None
        return None

    def place_by_centres(
        self, entry: BlockInput, assumed: TokenGrid | None, reached: Changes, ramps: list[Changes]
    ) -> TokenGrid | None:
        """The grid at whose cells the centres of what arrives are; None if they are at those of none."""
        if any(entry not in changes for changes in (reached, *ramps)):
            return None
        strength = reached[entry].double().cpu()
        if not most(strength > REACHED**2 * entry.rounding()):
            return None
        centres = torch.stack([changes[entry].double().cpu() / strength.clamp(min=1e-300) for changes in ramps])
        for grid in (*([] if assumed is None else [assumed]), *entry.expected):
            if lies_at(grid, centres):
                return grid
        last = entry.expected[-1]
        if entry.count <= FEW and leans_to(own := assumed or entry.expected[0], centres):
            return own
        if self.clip is not None or last.patches < FEWEST_SORTED:
            return None
        turned = [with_order(entry, last, order) for order in turned_orders(last)]
        if len(fitting := [grid for grid in turned if grid is not None and lies_at(grid, centres)]) == 1:
            return fitting[0]
        row, column = (centre * length for centre, length in zip(centres, self.size, strict=True))
        return sort_grid(last, self.size, row, column, strength)


def run_to(call: ModuleCall, forward: Callable[[], Any], read: list[Tensor]) -> None:
    """Run a forward up to a call, whose first tensor is added to `read`."""
    repeats = 0

    def before(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal repeats
        repeats += 1
        if repeats > call.repeat:
            read.extend(entering_tensors(args, kwargs)[call.place : call.place + 1])
            raise StopForward

    with hooking([call.module], before), torch.no_grad(), suppress(StopForward):
        forward()


def match_tokens(change: Tensor, noise: Tensor) -> tuple[bool, Tensor | None]:
    """Whether the change of most tokens [n d] resembles the noise [n d] of one token, and of which; None if of the same."""
    count, channels = change.shape
    active = change != 0  # a ReLU leaves no change where it is closed
    length = change.norm(dim=1)
    own = (change * noise).sum(1) / (length * (noise * active).norm(dim=1)).clamp(min=1e-30)
    if most(own > math.sqrt(RECOGNISED)):
        return True, None

    def best_match(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = (active[rows].to(noise) @ noise.square().T).sqrt() * length[rows, None]
        return (change[rows] @ noise.T / scale.clamp(min=1e-30)).max(1)

    sample = torch.linspace(0, count - 1, min(count, SAMPLE)).long()
    cosine, positions = best_match(sample)
    by_chance = math.sqrt(2 * math.log(count) / channels)  # the highest of so many, on average
    clear = (cosine > BEYOND_CHANCE * by_chance).cpu()
    if not most(clear):  # those that are recognised may still say that all are where they were
        return bool(clear.double().mean() >= HALF and (positions.cpu() == sample)[clear].all()), None
    if most(positions.cpu() == sample):
        return True, None
    positions = torch.cat([best_match(rows)[1] for rows in torch.arange(count).split(AT_ONCE)]).cpu()
    distinct = len(positions.unique()) == count
    return distinct, positions if distinct else None


def most(conditions: Tensor) -> bool:
    return bool(conditions.double().mean() >= FRACTION)


def linked_grid(entry: BlockInput, link: Link, source: TokenGrid | None) -> TokenGrid | None:
    """The grid of an input whose tokens come one by one from those of another with a known grid."""
    if source is None:
        return None
    order = source.order
    if link.positions is not None:
        order = link.positions.argsort()[torch.arange(source.count) if order is None else order]
    return with_order(entry, source, order)


def with_order(entry: BlockInput, grid: TokenGrid, order: Tensor | None) -> TokenGrid | None:
    """An expected grid of an input with the cells of another grid and an order, or None if it has no such cells."""
    order = None if order is not None and torch.equal(order, torch.arange(len(order))) else order
    fitting = [own for own in entry.expected if own.grid == grid.grid and own.others == grid.others]
    return replace(fitting[0 if order is None else -1], order=order) if fitting else None


def same_place(first: TokenGrid | None, second: TokenGrid | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.grid == second.grid and first.others == second.others and same_order(first, second)


def turned_orders(grid: TokenGrid) -> list[Tensor]:
    """Orders of the tokens of an image that is flipped, turned or transposed."""
    places = torch.arange(grid.patches).view(grid.grid)
    square = grid.grid[0] == grid.grid[1]
    turned = [
        view.flip(axes) for view in ((places, places.T) if square else (places,)) for axes in ((), (0,), (1,), (0, 1))
    ]
    return [torch.cat([torch.arange(grid.others), view.flatten() + grid.others]) for view in turned[1:]]


def ramp(grid: TokenGrid, axis: int) -> Tensor:
    """Amplitude of noise at every token [n], whose square grows from 0 to 1 along an axis of the image."""
    cells = grid.grid[axis]
    along = ((torch.arange(cells) + 0.5) / cells).view(-1, *[1] * (len(grid.grid) - axis - 1)).expand(grid.grid)
    values = torch.cat([torch.full((grid.others,), 0.5), along.flatten()]).sqrt()
    return values if grid.order is None else torch.empty_like(values).index_copy(0, grid.order, values)


def leans_to(grid: TokenGrid, centres: Tensor) -> bool:
    """Whether centres [axes n] of the tokens of a small map follow its rows and columns rather than those of a turned one.

    A convolution that mixes all cells of a small map leaves the centres in the middle; how they deviate from it still
    says which way round the map is. Time steps are too few to say more than that they are not reversed.
    """
    if grid.form in IN_ANY_ORDER or min(grid.grid[-2:]) < 2:
        return False
    own = (centres if grid.order is None else centres[:, grid.order])[:, grid.others :]
    places = torch.stack([place.double() for place in torch.unravel_index(torch.arange(grid.patches), grid.grid)])
    correlation = torch.corrcoef(torch.cat([own, places]))[: len(own), len(own) :]
    along = correlation.diagonal()[-2:]
    across = correlation.flip(1).diagonal()[-2:] if len(grid.grid) == 2 else torch.zeros(2)
    in_time = len(grid.grid) == 2 or grid.grid[0] == 1 or bool(correlation[0, 0] > -0.3)
    return in_time and bool(along.min() > 0.2) and bool(along.sum() > across.sum())


def lies_at(grid: TokenGrid, centres: Tensor) -> bool:
    """Whether tokens have their centres [axes n], from 0 to 1 along the image, at the cells of a grid."""
    own = (centres if grid.order is None else centres[:, grid.order])[:, grid.others :]
    distances = []
    for centre, place, cells in zip(
        own, torch.unravel_index(torch.arange(grid.patches), grid.grid), grid.grid, strict=True
    ):
        expected, measured = place - (cells - 1) / 2, centre.clamp(0, 1) * cells - cells / 2
        spread = measured - measured.mean()
        if cells == 1:
            distances.append(torch.zeros_like(spread))
            continue
        slope = (expected * spread).mean() / expected.square().mean()
        if slope < STEEPNESS or abs(measured.mean()) > 1:
            return False
        distances.append((spread / slope - expected) / (1 + cells / FINE))
    return agrees(torch.stack(distances), grid.grid, AGREEING)
