"""Where patches lie: the layout of maps of images and of clips, the form of clips, and the tokens at a network's blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitreous.core.errors import ShapeError


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of the tokens: `prefix` tokens first (class, distillation, registers), then the patch grid, row by row.

    Parameters
    ----------
    grid
        Number of patches along height and width.
    patch
        Height and width of one patch in pixels.
    prefix
        Number of tokens before the first patch.
    """

    grid: tuple[int, int]
    patch: tuple[int, int]
    prefix: int

    @property
    def cells(self) -> tuple[int, ...]:
        """Shape of the map of one row: rows and columns."""
        return self.grid

    @property
    def patches(self) -> int:
        return math.prod(self.cells)

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of the image that the grid covers."""
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]


@dataclass(frozen=True, slots=True)
class ClipLayout(Layout):
    """Layout of a clip: the patches of the first time step, row by row, then those of the next.

    Parameters
    ----------
    times
        Number of time steps of the map.
    tubelet
        Number of frames that one time step covers.

    Examples
    --------
    >>> from vitreous.models.layout import ClipLayout
    >>> layout = ClipLayout((14, 14), (16, 16), prefix=0, times=8, tubelet=2)
    >>> layout.cells, layout.frames
    ((8, 14, 14), 16)
    """

    times: int
    tubelet: int

    @property
    def cells(self) -> tuple[int, ...]:
        """Shape of the map of one row: time steps, rows and columns."""
        return self.times, *self.grid

    @property
    def frames(self) -> int:
        return self.times * self.tubelet


def layout_of(cells: tuple[int, ...], size: tuple[int, ...], prefix: int) -> Layout:
    """Layout of a map of `cells` for an input of `size`: (rows, columns) and pixels, or with time steps and frames first.

    A patch that does not divide the image evenly is rounded up.
    """
    rows, columns = cells[-2:]
    height, width = size[-2:]
    patch = (-(-height // rows), -(-width // columns))
    if len(cells) == 2:
        return Layout((rows, columns), patch, prefix)
    return ClipLayout((rows, columns), patch, prefix, cells[0], -(-size[0] // cells[0]))


@dataclass(frozen=True, slots=True)
class Clip:
    """Form of the clips that a network takes: videos, or volumes with slices as frames.

    Attributes
    ----------
    frames
        Number of frames.
    axis
        Where the frames are: 1 for [b t c H W] as in Hugging Face, 2 for [b c t H W] as in torchvision.
    """

    frames: int
    axis: Literal[1, 2]

    def shape(self, channels: int, size: tuple[int, int]) -> tuple[int, int, int, int, int]:
        """Shape of one clip as a batch."""
        time_and_channels = (self.frames, channels) if self.axis == 1 else (channels, self.frames)
        return (1, *time_and_channels, *size)

    def frames_first(self, clips: Tensor) -> Tensor:
        """Clips as [b t c H W]."""
        return clips if self.axis == 1 else clips.transpose(1, 2)

    def over_channels(self, mask: Tensor) -> Tensor:
        """A mask [t H W] in the form of a clip, to broadcast over channels."""
        return mask[:, None] if self.axis == 1 else mask

    def checked(self, clips: object, name: str) -> Tensor:
        """Clips as a batch.

        Raises
        ------
        ShapeError
            If they are not a floating-point tensor of this form.
        """
        form = "[b t c H W]" if self.axis == 1 else "[b c t H W]"
        if not isinstance(clips, Tensor):
            raise ShapeError(
                f"{name!r} takes clips as a tensor {form} of normalised floats, not {type(clips).__name__!r}"
            )
        batch = clips[None] if clips.ndim == 4 else clips
        if batch.ndim != 5 or not len(batch) or not batch.is_floating_point():
            raise ShapeError(
                f"{name!r} takes clips {form} of normalised floats, not {list(clips.shape)} of {clips.dtype}"
            )
        return batch.clone() if batch.is_inference() else batch


@dataclass(frozen=True, slots=True, eq=False)
class TokenGrid:
    """Where the tokens of a tensor lie in the image.

    Attributes
    ----------
    form
        "sequence" [b n d], "packed" [(b n) d], "framed" [(b t) n d] (the frames of clips as images), "windows"
        [b windows n d], "channels_last" [b rows columns d] or "channels_first" [b d rows columns]; the latter two in a
        clip with time steps before rows. "pixels": an image [b c H W] whose tokens are the pixels of its cells.
    grid
        Rows and columns of the patches, with time steps before them in a clip.
    order
        Positions in the sequence, or in the map as it lies: first of the tokens that belong to no patch, then of the
        patches, row by row.
    others
        Number of tokens that belong to no patch (class, distillation and detection tokens, registers).
    """

    form: Literal["sequence", "packed", "framed", "windows", "channels_last", "channels_first", "pixels"]
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
                x = x.flatten(1, -2)
            case "channels_first":
                x = x.flatten(2).mT
            case "pixels":
                rows, columns = self.grid
                cells = x.unflatten(-1, (columns, -1)).unflatten(-3, (rows, -1))  # [b c rows height columns width]
                return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
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
            case "pixels":
                fits = len(shape) == 4 and not shape[2] % self.grid[0] and not shape[3] % self.grid[1]
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
    """One call of a block of a network.

    Attributes
    ----------
    name, module
        Of the block.
    tokens
        Where the tokens at its input lie; of its first input, if there are several.
    inputs
        Its inputs, by their places among the floating-point tensors that it is called with.
    others
        Where the tokens of the other inputs lie.
    repeat
        Number of calls of the same module before this one.
    trunk
        Number of the chain of blocks that it belongs to. What passes one chain does not pass another: both models of an
        ensemble, a CNN beside a ViT.
    """

    name: str
    module: nn.Module
    tokens: TokenGrid
    inputs: tuple[int, ...] = (0,)
    others: tuple[TokenGrid, ...] = ()
    repeat: int = 0
    trunk: int = 0

    @property
    def grids(self) -> tuple[TokenGrid, ...]:
        """Where the tokens of every input lie."""
        return self.tokens, *self.others
