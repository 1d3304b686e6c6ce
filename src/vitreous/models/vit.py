"""Common description of a vision transformer; an adapter builds it from a library's module without patching that."""

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
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix + self.patches

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels of the image that the grid covers."""
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]


@dataclass(frozen=True, slots=True)
class Place:
    """Positions of the current tokens: all positions of `layout`, or those in `index` if tokens were removed."""

    layout: Layout
    index: TokenIndex | None = None

    def gather(self, table: Float[Tensor, "h all c"]) -> Float[Tensor, "b h n c"]:
        """Entries of a per-token table for the current tokens; the batch axis has length 1 if none were removed."""
        return table[None] if self.index is None else table[:, self.index].movedim(0, 1)

    def gather_pairs(self, table: Float[Tensor, "h all all"]) -> Float[Tensor, "b h n n"]:
        """Entries of a token-to-token table for the current tokens, with a batch axis as in `gather`."""
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
    """MLP branch of a residual block, in parts, so that a linearisation can hold the steps between them fixed."""

    norm: nn.Module
    expand: Callable[[Tokens], tuple[Hidden, ...]]  # (hidden,), or (gate, value) for a gated MLP
    act: Callable[[Hidden], Hidden]
    contract: Callable[[Hidden], Tokens]  # output projection and layer scale
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # applied to the activated hidden units
    layer_scale: Callable[[], Float[Tensor, " d"] | None] = lambda: None  # factor that `contract` applies, if any


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention branch of a residual block, split into parts."""

    norm: nn.Module
    qkv: Callable[[Tokens], tuple[PerHead, PerHead, PerHead]]
    project: Callable[[Hidden], Tokens]  # concatenated heads [b n h·e] → [b n d], including layer scale
    scale: float
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    rotate: Callable[[PerHead, Place], PerHead] = unmoved  # rotary position embedding
    bias: Callable[[Place], Float[Tensor, "b h n n"] | None] = no_bias  # relative position bias
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # applied to the weighted values before `project`
    layer_scale: Callable[[], Float[Tensor, " d"] | None] = lambda: None  # factor that `project` applies, if any


@dataclass(frozen=True, slots=True)
class Block:
    """One pre-norm residual block: attention, then MLP."""

    attend: Attend
    feed: Feed


@dataclass(frozen=True, slots=True)
class LinearPool:
    """Pooling by fixed weights: `rows(n)` is the weight matrix [q n] for n tokens, prefix tokens first."""

    rows: Callable[[int], Float[Tensor, "q n"]]


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """Attention pooling with a learned query (SigLIP's `map` pooling)."""

    query: Callable[[], PerHead]  # [1 h q e]
    key_value: Callable[[Tokens], tuple[PerHead, PerHead]]
    project: Callable[[Hidden], Pooled]
    scale: float
    skip: int  # number of prefix tokens that the pooler leaves out
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    feed: Feed | None = None


def token_rows(*positions: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """Return `LinearPool` weights that select the tokens at `positions`, in this order."""

    def rows(n: int) -> Float[Tensor, "q n"]:
        row = torch.zeros(len(positions), n)
        row[range(len(positions)), positions] = 1
        return row

    return rows


def mean_rows(prefix: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """Return `LinearPool` weights that average the tokens after the first `prefix` ones; zeros if there are none."""

    def rows(n: int) -> Float[Tensor, "q n"]:
        row = torch.zeros(1, n, dtype=torch.float64)
        row[:, prefix:] = 1 / max(n - prefix, 1)
        return row

    return rows


@dataclass(frozen=True, slots=True)
class Outputs:
    """Meaning of a model's outputs.

    Attributes
    ----------
    kind
        "classes": one logit per class, normalised by a softmax. "binary": one logit whose sigmoid is the probability of
        the second of two classes. "scalar": one number, as in regression; its value is explained.
    count
        Number of outputs of the model itself.
    """

    kind: Literal["classes", "binary", "scalar"]
    count: int

    @property
    def targets(self) -> int:
        """Number of targets that can be explained: 2 for a binary output, else `count`."""
        return 2 if self.kind == "binary" else self.count


@dataclass(frozen=True, slots=True, eq=False)
class ViT:
    """A vision transformer split into parts that all supported families share, together with the original module.

    Parameters
    ----------
    name
        Name of the model, used in error messages, captions and files.
    module
        The original module; it is not modified.
    embed
        Images to the tokens that the first block receives.
    blocks
        The residual blocks, first to last.
    norm
        Norm of the tokens after the last block, before pooling.
    pool
        Pooling of the tokens to the vectors that the head reads.
    pooled_norm
        Norm of the pooled vectors.
    classify
        Pooled vectors to logits; affine unless `affine` is False.
    layout
        Token layout for an image of the given (height, width).
    forward
        Logits computed by the module itself. The handshake compares them with those of the parts.
    size
        Height and width of the images that the model was built for.
    preprocess
        Conversion of images to tensors, or None if it is not known.
    classes
        Class names in the order of the outputs, or None if they are not known.
    facts
        Origin of the model; used in provenance records only.
    output_type
        Meaning of the outputs; None until the model has been run on an image.
    affine
        Whether `classify` is affine, as found by the handshake.
    black_box
        Reason why the model has no parts and only `forward` can be used; empty if it has parts.
    embedding
        Reason why the outputs are an embedding and not classes; empty if they are classes.
    length
        For logits that are cosines: the norm of the image embedding, by which the logits are divided at the end.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> vit.depth, vit.outputs, vit.layout(vit.size).grid
    (12, 20, (14, 14))
    """

    name: str
    module: nn.Module
    embed: Callable[[Images], Tokens]
    blocks: tuple[Block, ...]
    norm: nn.Module
    pool: LinearPool | AttentionPool
    pooled_norm: nn.Module
    classify: Callable[[Pooled], Logits]
    layout: Callable[[tuple[int, int]], Layout]
    forward: Callable[[Images], Logits]
    size: tuple[int, int]
    preprocess: Preprocess | None = None
    classes: tuple[str, ...] | None = None
    facts: dict[str, object] = field(default_factory=dict)
    output_type: Outputs | None = None
    affine: bool = True
    black_box: str = ""
    embedding: str = ""
    length: Callable[[Pooled], Float[Tensor, "b 1"]] | None = None

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def parameter(self) -> Tensor:
        """First floating-point parameter; its device and dtype are taken as those of the model."""
        return next(p for p in self.module.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        return self.parameter.device

    @property
    def dtype(self) -> torch.dtype:
        return self.parameter.dtype

    @property
    def outputs(self) -> int:
        """Number of targets that can be explained: the number of classes (2 if binary), or 1 for a scalar output.

        Raises
        ------
        ModelError
            If the number of outputs is not known yet because the model has not been run on an image.
        """
        if self.output_type is None:
            raise ModelError(
                f"how many outputs {self.name!r} has is known once it has answered an image; "
                "vitreous.capture.handshake.confirm(vit) asks it"
            )
        return self.output_type.targets

    @property
    def binary(self) -> bool:
        """Whether the model has a single output that is the logit of the second of two classes."""
        return self.output_type is not None and self.output_type.kind == "binary"

    @property
    def scalar(self) -> bool:
        """Whether the model has a single output whose value is explained, as in regression."""
        return self.output_type is not None and self.output_type.kind == "scalar"

    def class_name(self, index: int) -> str:
        """Name of an output; "class <index>" if it has no name, or "output" for a scalar output."""
        unnamed = "output" if self.scalar else f"class {index}"
        return self.classes[index] if self.classes and index < len(self.classes) else unnamed

    def __repr__(self) -> str:
        height, width = self.size
        return f"ViT({self.name!r}, {self.depth} blocks, {height}x{width}, {self.dtype}, {self.device})"
