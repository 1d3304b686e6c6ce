"""Triton kernels that read attention A = softmax(Q Kᵀ) and its gradient G = D Vᵀ tile by tile, without writing either.

D is the gradient at the output of the attention. Imported by `fused` only. Sums are in float32.
"""

# The bodies of kernels are compiled by Triton, not by Python.
# pyright: reportOptionalMemberAccess=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from vitreous.capture.triton_kernels import contiguous, empty_float32

TILE = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2}
SMALL_TILE = {"ROWS": 32, "COLUMNS": 32, "num_warps": 4, "num_stages": 1}  # for heads that are wider
WIDTH_OF_TILE = 128


@triton.jit
def _load(base, at, tokens, width, stride, CHANNELS: tl.constexpr):
    """Vectors of some tokens, 0 beyond the last one."""
    channel = tl.arange(0, CHANNELS)[None, :]
    inside = (at < tokens)[:, None] & (channel < width)
    return tl.load(base + at[:, None] * stride + channel, mask=inside, other=0.0)


@triton.jit
def _row_sums(
    q, k, v, upstream, log_sums, means, q_image, q_head, q_token, k_image, k_head, k_token, v_image, v_head, v_token,
    u_row, u_head, u_token, targets, heads, tokens, width, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """log₂ Σⱼ exp of the scores of every row, and its mean Σⱼ A G."""
    tiles = tl.cdiv(tokens, ROWS)
    pair = (tl.program_id(0) // tiles).to(tl.int64)  # row · heads + head
    row, head = pair // heads, pair % heads
    image = row // targets
    at = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    query = _load(q + image * q_image + head * q_head, at, tokens, width, q_token, CHANNELS)
    if means is not None:
        passed = _load(upstream + row * u_row + head * u_head, at, tokens, width, u_token, CHANNELS)
    peak = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    mass = tl.zeros((ROWS,), dtype=tl.float32)
    taken = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, tokens, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        key = _load(k + image * k_image + head * k_head, column, tokens, width, k_token, CHANNELS)
        scores = tl.dot(query, tl.trans(key)) * scale
        scores = tl.where((column < tokens)[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        mass = mass * shrink + tl.sum(weights, axis=1)
        if means is not None:
            value = _load(v + image * v_image + head * v_head, column, tokens, width, v_token, CHANNELS)
            taken = taken * shrink + tl.sum(weights * tl.dot(passed, tl.trans(value)), axis=1)
        peak = higher
    tl.store(log_sums + pair * tokens + at, peak + tl.log2(mass), mask=at < tokens)
    if means is not None:
        tl.store(means + pair * tokens + at, taken / mass, mask=at < tokens)


@triton.jit
def _positive_mean(
    q, k, v, upstream, log_sums, weight, out, q_image, q_head, q_token, k_image, k_head, k_token, v_image, v_head, v_token,
    u_row, u_head, u_token, targets, heads, tokens, width, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    across, down = tl.cdiv(tokens, COLUMNS), tl.cdiv(tokens, ROWS)
    row = (tl.program_id(0) // (across * down)).to(tl.int64)
    image = row // targets
    at = (tl.program_id(0) // across % down) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for head in range(heads):
        query = _load(q + image * q_image + head * q_head, at, tokens, width, q_token, CHANNELS)
        key = _load(k + image * k_image + head * k_head, column, tokens, width, k_token, CHANNELS)
        passed = _load(upstream + row * u_row + head * u_head, at, tokens, width, u_token, CHANNELS)
        value = _load(v + image * v_image + head * v_head, column, tokens, width, v_token, CHANNELS)
        log_sum = tl.load(log_sums + (image * heads + head) * tokens + at, mask=at < tokens, other=0.0)
        weights = tl.exp2(tl.dot(query, tl.trans(key)) * scale - log_sum[:, None])
        gradient = tl.dot(passed, tl.trans(value))
        product = weights * tl.where(gradient < 0, 0.0, gradient)  # NaN stays
        if weight is not None:
            factor = tl.load(weight + (row * heads + head) * tokens + column, mask=column < tokens, other=0.0)
            product *= factor.to(tl.float32)[None, :]
        total += product
    inside = (at < tokens)[:, None] & (column < tokens)[None, :]
    place = (row * tokens + at[:, None]) * tokens + column[None, :]
    tl.store(out + place, total / heads, mask=inside)


@triton.jit
def _presence(
    q, k, v, upstream, log_sums, means, out, q_image, q_head, q_token, k_image, k_head, k_token, v_image, v_head, v_token,
    u_row, u_head, u_token, targets, heads, tokens, width, scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(tokens, COLUMNS)
    pair = (tl.program_id(0) // tiles).to(tl.int64)  # row · heads + head
    row, head = pair // heads, pair % heads
    image = row // targets
    column = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    key = _load(k + image * k_image + head * k_head, column, tokens, width, k_token, CHANNELS)
    value = _load(v + image * v_image + head * v_head, column, tokens, width, v_token, CHANNELS)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for start in range(0, tokens, ROWS):
        at = start + tl.arange(0, ROWS)
        query = _load(q + image * q_image + head * q_head, at, tokens, width, q_token, CHANNELS)
        passed = _load(upstream + row * u_row + head * u_head, at, tokens, width, u_token, CHANNELS)
        log_sum = tl.load(log_sums + pair * tokens + at, mask=at < tokens, other=0.0)
        mean = tl.load(means + pair * tokens + at, mask=at < tokens, other=0.0)
        weights = tl.exp2(tl.dot(query, tl.trans(key)) * scale - log_sum[:, None])
        total += tl.sum(weights * (tl.dot(passed, tl.trans(value)) - mean[:, None]), axis=0)
    tl.store(out + pair * tokens + column, total, mask=column < tokens)


def positive_mean(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    upstream: Tensor,
    weight: Tensor | None,
    tile: dict[str, int] | None = None,
) -> Tensor:
    """mean_h A relu(G) w [r n n] in float32, of q, k, v [b h n e], `upstream` D [r h n e] and `weight` w [r h n]."""
    (rows, heads, tokens, _), launch = upstream.shape, Launch(q, k, v, upstream, scale, tile)
    log_sums, out = empty_float32(q, len(q), heads, tokens), empty_float32(q, rows, tokens, tokens)
    if out.numel():
        launch(_row_sums, launch.row_tiles * len(q) * heads, log_sums, None, targets=1)
        (factors,) = contiguous(weight)
        programs = launch.row_tiles * launch.column_tiles * rows
        launch(_positive_mean, programs, log_sums, factors, out, targets=rows // len(q))
    return out


def presence_grad(
    q: Tensor, k: Tensor, v: Tensor, scale: float, upstream: Tensor, tile: dict[str, int] | None = None
) -> Tensor:
    """Σₕᵢ Aᵢⱼ (Gᵢⱼ − Σₖ Aᵢₖ Gᵢₖ) [r n] in float32; parameters as for `positive_mean`."""
    (rows, heads, tokens, _), launch = upstream.shape, Launch(q, k, v, upstream, scale, tile)
    log_sums, means, out = (empty_float32(q, rows, heads, tokens) for _ in range(3))
    if out.numel():
        targets = rows // len(q)
        launch(_row_sums, launch.row_tiles * rows * heads, log_sums, means, targets=targets)
        launch(_presence, launch.column_tiles * rows * heads, log_sums, means, out, targets=targets)
    return out.sum(1)


class Launch:
    """Arguments that the kernels share."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, scale: float, tile: dict[str, int] | None
    ) -> None:
        tensors = (q, k, v, upstream.to(v.dtype))
        if not q.is_cuda:  # Triton's interpreter does not multiply bfloat16
            tensors = tuple(x.float() for x in tensors)
        self.tensors = [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]
        self.heads, self.tokens, self.width = q.shape[1:]
        self.scale = scale * math.log2(math.e)
        self.tile = tile or (TILE if self.width <= WIDTH_OF_TILE else SMALL_TILE)

    @property
    def row_tiles(self) -> int:
        return triton.cdiv(self.tokens, self.tile["ROWS"])

    @property
    def column_tiles(self) -> int:
        return triton.cdiv(self.tokens, self.tile["COLUMNS"])

    def __call__(self, kernel: Any, programs: int, *buffers: Tensor | None, targets: int) -> None:
        strides = [stride for tensor in self.tensors for stride in tensor.stride()[:3]]
        sizes = (targets, self.heads, self.tokens, self.width, self.scale)
        channels = max(16, triton.next_power_of_2(self.width))  # the smallest product of tiles is 16 wide
        kernel[(programs,)](*self.tensors, *buffers, *strides, *sizes, CHANNELS=channels, **self.tile)
