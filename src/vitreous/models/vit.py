"""What every family of vision transformers shares. An adapter fills this in; it reads the model and never patches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.core.errors import ModelError
from vitreous.models.shapes import Hidden, Images, Logits, PerHead, Pooled, TokenIndex, Tokens

if TYPE_CHECKING:
    from vitreous.models.picture import Preprocess


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tokens live: `prefix` tokens first (class, distillation, registers), then the patch grid, row by row."""

    grid: tuple[int, int]
    patch: tuple[int, int]
    prefix: int

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture that the grid covers."""
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]


@dataclass(frozen=True, slots=True)
class Place:
    """Which positions the tokens at hand hold: all of them, or those in `index` when others have left."""

    layout: Layout
    index: TokenIndex | None = None

    def gather(self, table: Float[Tensor, "h all c"]) -> Float[Tensor, "b h n c"]:
        """A per-token table for the tokens at hand."""
        return table[None] if self.index is None else table[:, self.index].movedim(0, 1)

    def gather_pairs(self, table: Float[Tensor, "h all all"]) -> Float[Tensor, "b h n n"]:
        """A token-to-token table for the tokens at hand."""
        if self.index is None:
            return table[None]
        rows, columns = self.index[:, :, None], self.index[:, None, :]
        return table[:, rows, columns].movedim(0, 1)


def unmoved(heads: PerHead, place: Place) -> PerHead:
    return heads


def no_bias(place: Place) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Feed:
    """A residual MLP branch, as its parts; between them lie the steps a linearisation may hold fixed."""

    norm: nn.Module
    expand: Callable[[Tokens], tuple[Hidden, ...]]  # (hidden,), or (gate, value) when the MLP is gated
    act: Callable[[Hidden], Hidden]
    contract: Callable[[Hidden], Tokens]  # project, layer-scale
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # on the activated hidden units
    layer_scale: Callable[[], Float[Tensor, " d"] | None] = lambda: None  # the factor inside `contract`, if any


@dataclass(frozen=True, slots=True)
class Attend:
    """A residual attention branch, as its parts."""

    norm: nn.Module
    qkv: Callable[[Tokens], tuple[PerHead, PerHead, PerHead]]
    project: Callable[[Hidden], Tokens]  # heads side by side [b n h·e] → [b n d], layer-scale included
    scale: float
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    rotate: Callable[[PerHead, Place], PerHead] = unmoved  # rotary positions
    bias: Callable[[Place], Float[Tensor, "b h n n"] | None] = no_bias  # relative positions
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # on the mixed values, before `project`
    layer_scale: Callable[[], Float[Tensor, " d"] | None] = lambda: None  # the factor inside `project`, if any


@dataclass(frozen=True, slots=True)
class Block:
    """One pre-norm residual block: attention, then MLP."""

    attend: Attend
    feed: Feed


@dataclass(frozen=True, slots=True)
class LinearPool:
    """The head reads fixed mixtures of tokens: `rows(n)` [q n] for n tokens, prefix tokens first."""

    rows: Callable[[int], Float[Tensor, "q n"]]


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """The head reads tokens through a learned query (SigLIP's `map` pooling)."""

    query: Callable[[], PerHead]  # [1 h q e]
    key_value: Callable[[Tokens], tuple[PerHead, PerHead]]
    project: Callable[[Hidden], Pooled]
    scale: float
    skip: int  # prefix tokens the pooler does not see
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    feed: Feed | None = None


def token_rows(*positions: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """The head reads the tokens at these positions, one after the other."""

    def rows(n: int) -> Float[Tensor, "q n"]:
        row = torch.zeros(len(positions), n)
        row[range(len(positions)), positions] = 1
        return row

    return rows


def mean_rows(prefix: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """The head reads the mean of the tokens behind `prefix`; of no token, the zero vector."""

    def rows(n: int) -> Float[Tensor, "q n"]:
        row = torch.zeros(1, n, dtype=torch.float64)
        row[:, prefix:] = 1 / max(n - prefix, 1)
        return row

    return rows


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the numbers mean that a model answers an image with.

    Attributes
    ----------
    kind
        "classes": one logit per class, compared by a softmax. "binary": one logit that decides between two classes by its
        sigmoid. "scalar": one number, as a regression gives it; its value is what is explained.
    count
        How many numbers the model itself answers with.
    """

    kind: Literal["classes", "binary", "scalar"]
    count: int

    @property
    def targets(self) -> int:
        """How many different targets can be explained."""
        return 2 if self.kind == "binary" else self.count


@dataclass(frozen=True, slots=True, eq=False)
class ViT:
    """A vision transformer in the pieces every family shares, beside the module they were read from."""

    name: str
    module: nn.Module
    embed: Callable[[Images], Tokens]
    blocks: tuple[Block, ...]
    norm: nn.Module
    pool: LinearPool | AttentionPool
    pooled_norm: nn.Module
    classify: Callable[[Pooled], Logits]  # affine
    layout: Callable[[tuple[int, int]], Layout]  # of a picture of this height and width
    forward: Callable[[Images], Logits]  # the model's own way, for the handshake
    size: tuple[int, int]  # the picture size it was built for
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    facts: dict[str, object] = field(default_factory=dict)  # where it came from, for the provenance alone
    output_type: Outputs | None = None  # None: not known before the model has answered an image
    affine: bool = True  # whether `classify` is, as the handshake found
    black_box: str = ""  # why nothing but the model's answers is known; empty: its parts are
    embedding: str = ""  # why its outputs are no classes but an embedding; empty: they are classes
    # what the logits are divided by at last: the length of the picture's embedding, where they are cosines
    length: Callable[[Pooled], Float[Tensor, "b 1"]] | None = None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def parameter(self) -> Tensor:
        """Any floating-point parameter: the model's device and precision."""
        return next(p for p in self.module.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        return self.parameter.device

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    @property
    def outputs(self) -> int:
        """Number of targets that can be explained: the classes (two of a binary output), or 1 of a scalar output."""
        if self.output_type is None:
            raise ModelError(
                f"how many outputs {self.name!r} has is known once it has answered an image; "
                "vitreous.capture.handshake.confirm(vit) asks it"
            )
        return self.output_type.targets

    @property
    def binary(self) -> bool:
        """Whether the model's one output is the logit of the second of two classes."""
        return self.output_type is not None and self.output_type.kind == "binary"

    @property
    def scalar(self) -> bool:
        """Whether the model's one output is a number that is explained as it is."""
        return self.output_type is not None and self.output_type.kind == "scalar"

    def class_name(self, index: int) -> str:
        unnamed = "output" if self.scalar else f"class {index}"
        return self.classes[index] if self.classes and index < len(self.classes) else unnamed

    def __repr__(self) -> str:
        height, width = self.size
        return f"ViT({self.name!r}, {self.depth} blocks, {height}x{width}, {self.dtype}, {self.device})"
