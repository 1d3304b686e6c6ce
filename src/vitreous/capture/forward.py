"""One block, or the head, run from its parts: exact or linearised, fused unless attention is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.models.quiet import evaluating
from vitreous.models.shapes import Images, Logits, Mixing, PerHead, Pooled, Tokens
from vitreous.models.vit import AttentionPool, Block, Feed, LinearPool, Place, ViT


class Tap(TorchFunctionMode):
    """Remembers the output of every affine step that adds a bias, and the bias, without touching the model.

    Linear layers are seen as they call `F.linear`; norms are handed in by `normalise`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []

    def add(self, output: Tensor, bias: Tensor | None) -> None:
        if bias is not None and output.requires_grad:
            self.found.append((output, bias.detach()))

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is F.linear:
            self.add(output, args[2] if len(args) > 2 else (kwargs or {}).get("bias"))
        return output


@dataclass(frozen=True, slots=True)
class Step:
    """What one block held while it ran."""

    hidden: Tokens  # its input
    normed: Tokens | None  # after the first norm; None where the walk back does not need it
    value: PerHead
    attention: Mixing | None
    mid: Tokens  # after attention
    output: Tokens
    taps: tuple[tuple[Tensor, Tensor], ...] = ()


@contextmanager
def tapping(wanted: bool) -> Iterator[Tap | None]:
    tap = Tap() if wanted else None
    with tap or nullcontext():
        yield tap


def normalise(lin: Linearisation, norm: Any, x: Tensor, tap: Tap | None) -> Tensor:
    y = lin.normalise(norm, x)
    if tap is not None:
        tap.add(y, getattr(norm, "bias", None))
    return y


def run_block(
    block: Block, x: Tokens, place: Place, lin: Linearisation = PLAIN, attention: bool = False, biases: bool = False
) -> Step:
    """One block; the attention matrix is built only when asked for."""
    attend = block.attend
    with tapping(biases) as tap:
        normed = normalise(lin, attend.norm, x, tap)
        q, k, value = attend.qkv(normed)
        q = attend.rotate(normalise(lin, attend.q_norm, q, tap), place)
        k = attend.rotate(normalise(lin, attend.k_norm, k, tap), place)
        mixed, weights = mix(*lin.attention(q, k, value), attend.bias(place), attend.scale, attention)
        mixed = normalise(lin, attend.inner_norm, mixed.transpose(1, 2).flatten(2), tap)
        mid = x + attend.project(mixed)
        output = mid + feed(block.feed, mid, lin, tap)
    return Step(x, normed, value, weights, mid, output, tuple(tap.found) if tap else ())


def mix(
    q: Tensor, k: PerHead, v: PerHead, bias: Tensor | None, scale: float, attention: bool
) -> tuple[Tensor, Tensor | None]:
    """Values mixed by attention, and the attention itself when it is wanted."""
    if not attention:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale), None
    scores = (q * scale) @ k.mT
    weights = (scores if bias is None else scores + bias).softmax(-1)
    if torch.is_grad_enabled() and not weights.requires_grad:
        weights.requires_grad_()  # held fixed by the linearisation, still asked for its gradient
    return weights @ v, weights


def feed(part: Feed, x: Tensor, lin: Linearisation, tap: Tap | None = None) -> Tensor:
    gate, *value = part.expand(normalise(lin, part.norm, x, tap))
    hidden = lin.activate(part.act, gate)
    hidden = lin.multiply(hidden, *value) if value else hidden
    return part.contract(normalise(lin, part.inner_norm, hidden, tap))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the head made of the tokens."""

    logits: Logits
    readout: Float[Tensor, "b n"]  # weight of every token in what the head reads
    token_taps: tuple[tuple[Tensor, Tensor], ...] = ()  # biases added token by token
    pooled_taps: tuple[tuple[Tensor, Tensor], ...] = ()  # biases added after pooling


def run_head(
    vit: ViT,
    tokens: Tokens,
    lin: Linearisation = PLAIN,
    biases: bool = False,
    presence: Float[Tensor, "b n"] | None = None,
) -> Reading:
    """`presence`: how far each token is there for the pooling, as a logarithm: 0 wholly, −∞ not at all."""
    pool = vit.pool
    query = key = value = tokens[:0]
    if isinstance(pool, AttentionPool):
        query = pool.query()  # a constant of the model: outside the taps, since no token adds its bias
    with tapping(biases) as token_tap:
        x = normalise(lin, vit.norm, tokens, token_tap)
        if isinstance(pool, AttentionPool):
            key, value = pool.key_value(x[:, pool.skip :])
    with tapping(biases) as pooled_tap:
        if isinstance(pool, LinearPool):
            rows = rows_on(pool, x)
            pooled, readout = present(rows, presence) @ x, rows.mean(0).expand(len(x), -1)
        else:
            seen = None if presence is None else presence[:, None, None, pool.skip :]
            pooled, readout = attention_pool(pool, query, key, value, lin, pooled_tap, seen)
        with evaluating(vit.module):  # a head that somebody trains may drop out
            logits = classified(vit, normalise(lin, vit.pooled_norm, pooled, pooled_tap), lin)
    taps = (tuple(token_tap.found), tuple(pooled_tap.found)) if biases else ((), ())
    return Reading(logits, readout.detach(), *taps)


def rows_on(pool: LinearPool, x: Tokens) -> Float[Tensor, "q n"]:
    """What the head reads of so many tokens, where they are; CUDA is not waited for (other devices read what may be gone)."""
    return pool.rows(x.shape[1]).to(x, non_blocking=x.is_cuda)


def classified(vit: ViT, read: Pooled, lin: Linearisation = PLAIN) -> Logits:
    """Logits of what the head reads; cosines where the model has a length to divide by."""
    logits = vit.classify(read)
    return logits if vit.length is None else logits / lin.length(vit.length, read)


def present(rows: Float[Tensor, "q n"], presence: Float[Tensor, "b n"] | None) -> Tensor:
    """What is read of tokens that are there in part: their shares grow and shrink, and add up to what they did."""
    if presence is None:
        return rows
    shares = rows * presence.exp()[:, None]
    return shares * (rows.sum(-1) / shares.sum(-1))[..., None]


def attention_pool(
    pool: AttentionPool,
    query: Tensor,
    k: PerHead,
    v: PerHead,
    lin: Linearisation,
    tap: Tap | None,
    presence: Float[Tensor, "b 1 1 n"] | None = None,
) -> tuple[Tensor, Float[Tensor, "b all"]]:
    """Pooled tokens, and the head-averaged attention of the pooler as the read-out row."""
    q = normalise(lin, pool.q_norm, query, None).expand(len(k), -1, -1, -1)
    k = normalise(lin, pool.k_norm, k, tap)
    mixed, weights = mix(*lin.attention(q, k, v), presence, pool.scale, attention=True)
    pooled = pool.project(mixed.transpose(1, 2).flatten(2))
    pooled = pooled if pool.feed is None else pooled + feed(pool.feed, pooled, lin, tap)
    return pooled, F.pad(weights.mean((1, 2)), (pool.skip, 0))


def run(vit: ViT, tokens: Tokens, place: Place) -> Logits:
    """The model's answer to these tokens, nothing kept."""
    if tokens.shape[1]:
        for block in vit.blocks:
            tokens = run_block(block, tokens, place).output
    return run_head(vit, tokens).logits


def adapter_logits(vit: ViT, images: Images) -> Logits:
    """The model's logits, by way of the adapter's parts."""
    return run(vit, vit.embed(images), Place(vit.layout((images.shape[-2], images.shape[-1]))))
