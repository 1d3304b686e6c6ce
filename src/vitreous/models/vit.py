"""Common description of a vision transformer; an adapter builds it from a library's module without patching that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.models.model import Layout, Network
from vitreous.models.tensor_types import Hidden, Images, Logits, PerHead, Pooled, TokenIndex, Tokens


@dataclass(frozen=True, slots=True)
class TokenPositions:
    """Positions of the current tokens: all positions of `layout`, or those in `index` if tokens were removed."""

    layout: Layout
    index: TokenIndex | None = None

    def gather_pairs(self, table: Float[Tensor, "h all all"]) -> Float[Tensor, "b h n n"]:
        """Entries of a token-to-token table for the current tokens; the batch axis has length 1 if none were removed."""
        if self.index is None:
            return table[None]
        rows, columns = self.index[:, :, None], self.index[:, None, :]
        return table[:, rows, columns].movedim(0, 1)


LayerScaleFactor: TypeAlias = Callable[[], Float[Tensor, " d"] | None]  # factor per channel


def keep_heads(heads: PerHead, place: TokenPositions) -> PerHead:
    return heads


def no_bias(place: TokenPositions) -> None:
    return None


def no_scale() -> None:
    return None


def scaled(owner: nn.Module, name: str, factor: LayerScaleFactor) -> Callable[[Hidden], Tokens]:
    """Return the projection `owner.name` followed by the layer scale, if there is one."""
    return partial(project_scaled, owner, name, factor)


def project_scaled(owner: nn.Module, name: str, factor: LayerScaleFactor, hidden: Hidden) -> Tokens:
    tokens, scale = getattr(owner, name)(hidden), factor()
    return tokens if scale is None else tokens * scale


@dataclass(frozen=True, slots=True)
class MlpBranch:
    """MLP branch of a residual block, in parts, so that a linearisation can hold the steps between them fixed."""

    norm: nn.Module
    expand: Callable[[Tokens], tuple[Hidden, ...]]  # (hidden,), or (gate, value) for a gated MLP
    act: Callable[[Hidden], Hidden]
    contract: Callable[[Hidden], Tokens]  # output projection and layer scale
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # applied to the activated hidden units
    layer_scale: LayerScaleFactor = no_scale  # factor that `contract` applies, if any


@dataclass(frozen=True, slots=True)
class AttentionBranch:
    """Attention branch of a residual block, split into parts."""

    norm: nn.Module
    qkv: Callable[[Tokens], tuple[PerHead, PerHead, PerHead]]
    project: Callable[[Hidden], Tokens]  # concatenated heads [b n h·e] → [b n d], including layer scale
    scale: float
    q_norm: nn.Module = field(default_factory=nn.Identity)
    k_norm: nn.Module = field(default_factory=nn.Identity)
    rotate: Callable[[PerHead, TokenPositions], PerHead] = keep_heads  # rotary position embedding
    bias: Callable[[TokenPositions], Float[Tensor, "b h n n"] | None] = no_bias  # relative position bias
    inner_norm: nn.Module = field(default_factory=nn.Identity)  # applied to the weighted values before `project`
    layer_scale: LayerScaleFactor = no_scale  # factor that `project` applies, if any


@dataclass(frozen=True, slots=True)
class Block:
    """One pre-norm residual block: attention, then MLP."""

    attention: AttentionBranch
    mlp: MlpBranch


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
    mlp: MlpBranch | None = None


def expand_all(mlp: nn.Module, names: tuple[str, ...], x: Tokens) -> tuple[Hidden, ...]:
    """Outputs of the layers of these names, for `MlpBranch.expand`."""
    return tuple(getattr(mlp, name)(x) for name in names)


def token_rows(*positions: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """Return `LinearPool` weights that select the tokens at `positions`, in this order."""
    return partial(select_rows, positions)


def select_rows(positions: tuple[int, ...], n: int) -> Float[Tensor, "q n"]:
    row = torch.zeros(len(positions), n)
    row[range(len(positions)), positions] = 1
    return row


def mean_rows(prefix: int) -> Callable[[int], Float[Tensor, "q n"]]:
    """Return `LinearPool` weights that average the tokens after the first `prefix` ones; zeros if there are none."""
    return partial(average_rows, prefix)


def average_rows(prefix: int, n: int) -> Float[Tensor, "q n"]:
    row = torch.zeros(1, n, dtype=torch.float64)
    row[:, prefix:] = 1 / max(n - prefix, 1)
    return row


def token_and_mean_rows(prefix: int) -> Callable[[int], Float[Tensor, "2 n"]]:
    """Return `LinearPool` weights of the first token, and of the mean of the tokens after the first `prefix` ones."""
    return partial(select_and_average_rows, prefix)


def select_and_average_rows(prefix: int, n: int) -> Float[Tensor, "2 n"]:
    return torch.cat([select_rows((0,), n).double(), average_rows(prefix, n)])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class ViT(Network):
    """A vision transformer split into parts that all supported families share, together with the original module.

    Fields of `BlackBox` (name, module, forward, …) are documented there.

    Parameters
    ----------
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
    affine
        Whether `classify` is affine, as found when the model was loaded.
    length
        For logits that are cosines: the norm of the image embedding, by which the logits are divided at the end.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> vit.depth, vit.outputs, vit.layout(vit.size).grid
    (12, 20, (14, 14))
    """

    embed: Callable[[Images], Tokens]
    blocks: tuple[Block, ...]
    norm: nn.Module
    pool: LinearPool | AttentionPool
    pooled_norm: nn.Module
    classify: Callable[[Pooled], Logits]
    affine: bool = True
    length: Callable[[Pooled], Float[Tensor, "b 1"]] | None = None

    @property
    def trunks(self) -> tuple[int, ...]:
        """Number of blocks, of the only trunk."""
        return (len(self.blocks),)
