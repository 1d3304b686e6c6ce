"""Blocks of a network, and where the tokens at their inputs lie in the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class TokenGrid:
    """Where the tokens of a tensor lie in the image.

    Attributes
    ----------
    form
        "sequence" [b n d], "packed" [(b n) d], "framed" [(b t) n d] (the frames of clips as images), "windows"
        [b windows n d], "channels_last" [b rows columns d] or "channels_first" [b d rows columns]; the latter two in a
        clip with time steps before rows.
    grid
        Rows and columns of the patches, with time steps before them in a clip.
    order
        Positions in a sequence: first of the tokens that belong to no patch, then of the patches, row by row.
    others
        Number of tokens that belong to no patch (class, distillation and detection tokens, registers).
    """

    form: Literal["sequence", "packed", "framed", "windows", "channels_last", "channels_first"]
    grid: tuple[int, ...]
    order: Tensor | None = None
    others: int = 0

    @property
    def patches(self) -> int:
        return math.prod(self.grid)

    @property
    def count(self) -> int:
        """Number of tokens of one image or clip."""
        return self.others + self.patches

    def tokens(self, x: Tensor) -> Tensor:
        """A tensor of this form as [b n d]: tokens that belong to no patch first, then the patches, row by row."""
        match self.form:
            case "channels_last":
                return x.flatten(1, -2)
            case "channels_first":
                return x.flatten(2).mT
            case "packed" | "framed" | "windows":
                x = x.reshape(-1, self.count, x.shape[-1])
        return x if self.order is None else x[:, self.order.to(x.device)]

    def images_in(self, shape: torch.Size | tuple[int, ...]) -> int:
        """Number of images whose tokens a tensor of this shape can hold in this form; 0 if it cannot hold any."""
        match self.form:
            case "channels_last":
                fits = len(shape) == len(self.grid) + 2 and tuple(shape[1:-1]) == self.grid
            case "channels_first":
                fits = len(shape) == len(self.grid) + 2 and tuple(shape[2:]) == self.grid
            case "windows":
                fits = len(shape) == 4 and shape[1] * shape[2] == self.count
            case "packed":
                return shape[0] // self.count if len(shape) == 2 and shape[0] % self.count == 0 else 0
            case "framed":
                fits = len(shape) == 3 and shape[1] * self.grid[0] == self.count and shape[0] % self.grid[0] == 0
                return shape[0] // self.grid[0] if fits else 0
            case _:
                fits = len(shape) == 3 and shape[1] == self.count
        return shape[0] if fits else 0

    def holds(self, shape: torch.Size | tuple[int, ...]) -> bool:
        """Whether a tensor of this shape can hold these tokens in this form."""
        return self.images_in(shape) > 0


@dataclass(frozen=True, slots=True, eq=False)
class NetworkBlock:
    """One call of a block of a network: its module, and where the tokens at its input lie."""

    name: str
    module: nn.Module
    tokens: TokenGrid
