"""What the first blocks of a network must give, by plain autograd on the untouched module.

Only the choice of blocks is read from the `Network`: their calls, which tensors of a call carry the image, and where their tokens
lie. The forward is the module's own, in which nothing is replaced, and the sums below share no code with the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models.layout import Clip, NetworkBlock, TokenGrid
from vitreous.models.model import Network

OWN = 0.25  # share of a token's dependence on the image that must lie in its cell and those around it
TOKENS = 4  # tokens per block whose places are checked

own_batch_norm = F.batch_norm


@dataclass(frozen=True, slots=True)
class Expected:
    """What holds at the first blocks of a network for one image and score.

    Attributes
    ----------
    bypass
        Norm of the image's gradient with the blocks' input tokens held, relative to that of the untouched module.
    tokens
        Tokens × gradient, summed over channels, spread evenly over the finest grid and added over blocks: [*cells].
    misplaced
        Number of examined tokens that depend on pixels that are not in or next to the cell that they are said to lie in.
    """

    bypass: float
    tokens: Tensor
    misplaced: int


def expect(
    network: Network, image: Tensor, call: Callable[[nn.Module, Tensor], Any], score: Callable[[Any], Tensor]
) -> Expected:
    """The bypass, the map of `ixg` and the places of tokens at the first blocks of a network.

    Parameters
    ----------
    network
        Says which blocks are the first ones.
    image
        One image [1 c H W] or clip.
    call
        Runs the untouched module on images.
    score
        One number per image from what the module returns.
    """
    entries = {(block.module, block.repeat): block for block in first_blocks(network)}
    cells = max((grid.grid for block in network.blocks for grid in block.grids), key=math.prod)
    parts: list[Part] = []

    def enter(call: tuple[nn.Module, int], tensors: list[Tensor]) -> None:
        if call in entries:
            block = entries[call]
            parts.extend(Part(tensors[k], grid) for k, grid in zip(block.inputs, block.grids, strict=True))

    leaf = image.clone().requires_grad_()
    total = watch(entries, lambda: score(call(network.module, leaf * 1)).sum(), enter)
    whole = gradient_norm(total, leaf)
    with held(parts):
        bypass = gradient_norm(total, leaf) / whole
    tokens = image.new_zeros(cells)
    for part in parts:
        product = part.grid.tokens(part.value * part.gradient).sum((0, -1))[part.grid.others :]
        tokens = tokens + spread_evenly(product.view(part.grid.grid), cells)
    misplaced = sum(count_misplaced(part, leaf, network.clip) for part in parts)
    return Expected(bypass, tokens, misplaced)


class Part:
    """A tensor that a first block was called with: its values then, and the gradient that arrived at it while it was held."""

    def __init__(self, tensor: Tensor, grid: TokenGrid) -> None:
        self.tensor, self.grid = tensor, grid
        self.value = tensor.detach().clone()  # the module may change it in place
        self.gradient = torch.zeros_like(self.value)
        self.held = False
        if tensor.requires_grad:
            tensor.register_hook(self.receive)

    def receive(self, gradient: Tensor) -> Tensor | None:
        """Take what arrives from all that the module computes of the tensor, and send nothing on while it is held."""
        if not self.held:
            return None
        self.gradient = gradient.detach().clone()
        return torch.zeros_like(gradient)


@contextmanager
def held(parts: list[Part]) -> Iterator[None]:
    for part in parts:
        part.held = True
    yield
    for part in parts:
        part.held = False


def first_blocks(network: Network) -> list[NetworkBlock]:
    """The first block of every trunk."""
    return list({block.trunk: block for block in reversed(network.blocks)}.values())


def watch(
    calls: Iterable[tuple[nn.Module, int]],
    forward: Callable[[], Tensor],
    enter: Callable[[tuple[nn.Module, int], list[Tensor]], None],
) -> Tensor:
    """Run a forward and pass on the tensors with which some submodules were called, with the numbers of their calls."""
    counts = dict.fromkeys((module for module, _ in calls), 0)

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        distinct = {id(tensor): tensor for tensor in tensors_in([*args, *kwargs.values()])}
        enter((module, counts[module]), list(distinct.values()))
        counts[module] += 1

    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in counts]
    try:
        with patch.object(F, "batch_norm", batch_norm):
            total = forward()
    finally:
        for handle in handles:
            handle.remove()
    assert all(counts.values()), "a block was not called"
    return total


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in eval mode by its definition: the backward pass of torch's own is wrong for some memory formats."""
    if training or running_mean is None or running_var is None:  # of weights that a model standardises
        return own_batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = (-1, *[1] * (x.ndim - 2))
    y = (x - running_mean.view(shape)) * (running_var + eps).rsqrt().view(shape)
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def gradient_norm(total: Tensor, leaf: Tensor) -> float:
    (gradient,) = torch.autograd.grad(total, leaf, retain_graph=True, allow_unused=True)
    return 0.0 if gradient is None else float(gradient.norm())


def spread_evenly(values: Tensor, cells: tuple[int, ...]) -> Tensor:
    """Values of coarse cells divided evenly among the fine cells that each covers; the last one may cover fewer."""
    for axis, many in enumerate(cells):
        owner = torch.arange(many) // -(-many // values.shape[axis])
        share = 1 / owner.bincount(minlength=values.shape[axis])[owner].to(values)
        values = values.index_select(axis, owner) * share.view(-1, *[1] * (values.ndim - axis - 1))
    return values


def count_misplaced(part: Part, leaf: Tensor, clip: Clip | None) -> int:
    """How many of a few tokens depend on pixels that are not in or next to their cell."""
    misplaced, grid = 0, part.grid.grid
    tokens = part.grid.tokens(part.tensor)[0, part.grid.others :]
    generator = torch.Generator().manual_seed(3)
    for token in torch.linspace(0, len(tokens) - 1, min(TOKENS, len(tokens))).long().tolist():
        direction = torch.randn(tokens.shape[-1], generator=generator).to(tokens)
        (gradient,) = torch.autograd.grad(tokens[token] @ direction, leaf, retain_graph=True, allow_unused=True)
        if gradient is None:
            return len(tokens)
        energy = gradient.square()
        over_colours = energy.sum(1)[0] if clip is None else clip.frames_first(energy).sum(2)[0]
        near = cell_sums(over_colours, grid)
        for axis, index in enumerate(torch.unravel_index(torch.tensor(token), grid)):
            first = max(int(index) - 1, 0)
            near = near.narrow(axis, first, min(int(index) + 2, grid[axis]) - first)
        misplaced += bool(near.sum() < OWN * energy.sum())
    return misplaced


def cell_sums(pixels: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Sums over the pixels of every cell."""
    for axis, cells in enumerate(grid):
        owner = torch.arange(pixels.shape[axis]) // -(-pixels.shape[axis] // cells)
        sums = pixels.new_zeros(*pixels.shape[:axis], cells, *pixels.shape[axis + 1 :])
        pixels = sums.index_add(axis, owner, pixels)
    return pixels
