"""Triton kernels for elementwise steps of the backward pass, which are bound by memory traffic.

Imported by `fused` only. Every kernel computes in float32, whatever the precision of its inputs. Tensors that may be left out are
None in a kernel, which is compiled without them.
"""

# The bodies of kernels are compiled by Triton, not by Python.
# pyright: reportOptionalMemberAccess=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 1024  # of one program of an elementwise kernel
MODES = {"exact": 2, "frozen": 1, "fixed": 0}  # what the backward pass of a norm differentiates: + spread, + mean


def contiguous(*tensors: Any) -> list[Any]:
    """The tensors in contiguous memory; those that are left out stay None."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def empty_float32(like: Tensor, *shape: int) -> Tensor:
    """Memory for a result on the device of `like`."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


@triton.jit
def _row_dot(x, y, out, rows, width, y_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (column < width)
    a = tl.load(x + row[:, None] * width + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(y + row[:, None] * y_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(a * b, axis=1), mask=row < rows)


def row_dot(x: Tensor, y: Tensor) -> Tensor:
    """Σ_d x·y in float32; `y` has the shape of `x`, or is one vector for all rows."""
    width = x.shape[-1]
    x, y = contiguous(x, y)
    out = empty_float32(x, *x.shape[:-1])
    rows, block = out.numel(), triton.next_power_of_2(width)
    several = max(1, ELEMENTS // block)  # short rows, such as the values of a head, share a program
    if rows:
        _row_dot[(triton.cdiv(rows, several),)](
            x, y, out, rows, width, width if y.ndim == x.ndim else 0, ROWS=several, BLOCK=block, num_warps=4
        )
    return out


@triton.jit
def _token_products(x, y, less, squared, shared, squared_y, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    if less is not None:
        b -= tl.load(less + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(squared + row, tl.sum(a * a, axis=0))
    tl.store(shared + row, tl.sum(a * b, axis=0))
    tl.store(squared_y + row, tl.sum(b * b, axis=0))


def token_products(x: Tensor, y: Tensor, less: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """⟨x, x⟩, ⟨x, y⟩ and ⟨y, y⟩ in float32, `less` being subtracted from y; all have the same shape."""
    width = x.shape[-1]
    x, y, less = contiguous(x, y, less)
    squared, shared, squared_y = (empty_float32(x, *x.shape[:-1]) for _ in range(3))
    if squared.numel():
        block = triton.next_power_of_2(width)
        _token_products[(squared.numel(),)](x, y, less, squared, shared, squared_y, width, BLOCK=block, num_warps=4)
    return squared, shared, squared_y


@triton.jit
def _value_products(
    value, shift, projected, gram, shared, squared, v_image, v_head, v_token, targets, heads, tokens, width,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(tokens, TOKENS)
    pair = (tl.program_id(0) // tiles).to(tl.int64)  # row · heads + head
    row, head = pair // heads, pair % heads
    at = (tl.program_id(0) % tiles) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, CHANNELS)
    inside = (at < tokens)[:, None] & (channel < width)[None, :]
    place = (row // targets) * v_image + head * v_head + at[:, None] * v_token + channel[None, :]
    v = tl.load(value + place, mask=inside, other=0.0).to(tl.float32)
    if shift is not None:
        v -= tl.load(shift + head * width + channel, mask=channel < width, other=0.0).to(tl.float32)[None, :]
    place = ((row * tokens + at[:, None]) * heads + head) * width + channel[None, :]
    u = tl.load(projected + place, mask=inside, other=0.0).to(tl.float32)
    square = (channel < width)[:, None] & (channel < width)[None, :]
    place = (head * width + channel[:, None]) * width + channel[None, :]
    matrix = tl.load(gram + place, mask=square, other=0.0).to(tl.float32)
    length = tl.sum(tl.dot(v, matrix, input_precision="tf32") * v, axis=1)
    tl.store(shared + pair * tokens + at, tl.sum(u * v, axis=1), mask=at < tokens)
    tl.store(squared + pair * tokens + at, tl.where(length < 0, 0.0, length), mask=at < tokens)


def value_products(value: Tensor, shift: Tensor | None, projected: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """⟨u, v⟩ and vᵀ M v [r h n] in float32, M v in TF32; parameters as for `fused.value_products`."""
    rows, tokens, heads, width = projected.shape
    value = value if value.stride(-1) == 1 else value.contiguous()
    shift, projected, gram = contiguous(shift, projected, gram)
    shared, squared = (empty_float32(value, rows, heads, tokens) for _ in range(2))
    if shared.numel():
        _value_products[(triton.cdiv(tokens, 64) * rows * heads,)](
            value, shift, projected, gram, shared, squared, *value.stride()[:3], rows // len(value), heads, tokens, width,
            TOKENS=64, CHANNELS=max(16, triton.next_power_of_2(width)), num_warps=4,
        )  # fmt: skip
    return shared, squared


@triton.jit
def _ratio_backward(x, y, upstream, out, total, slope, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    a = tl.load(x + at, mask=inside, other=1.0).to(tl.float32)
    b = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(upstream + at, mask=inside, other=0.0).to(tl.float32)
    ratio = b / a
    ratio = tl.where(ratio != ratio, slope, ratio)  # noqa: PLR0124 - 0 / 0 is not a number
    tl.store(out + at, (ratio * g).to(out.dtype.element_ty), mask=inside)


def ratio_backward(x: Tensor, y: Tensor, upstream: Tensor, slope: float) -> Tensor:
    """upstream · y / x, and upstream · slope where x is 0."""
    x, y, upstream = contiguous(x, y, upstream)
    out, total = torch.empty_like(x), x.numel()
    if total:
        _ratio_backward[(triton.cdiv(total, ELEMENTS),)](x, y, upstream, out, total, float(slope), BLOCK=ELEMENTS)
    return out


@triton.jit
def _norm_forward(stream, update, weight, bias, total, normed, mean, rstd, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    x = tl.load(stream + at, mask=inside, other=0.0).to(tl.float32)
    if update is not None:
        x += tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, x.to(total.dtype.element_ty), mask=inside)
    centre = tl.sum(x, axis=0) / width
    deviation = tl.where(inside, x - centre, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=0) / width + eps)
    y = deviation * scale
    if weight is not None:
        y *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, y.to(normed.dtype.element_ty), mask=inside)
    tl.store(mean + row, centre)
    tl.store(rstd + row, scale)


def norm_forward(
    stream: Tensor, update: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return stream + update, its layer norm in `dtype`, and mean and 1 / standard deviation [… 1] in float32."""
    width = stream.shape[-1]
    stream, update = contiguous(stream, update)
    total = stream if update is None else torch.empty_like(stream)
    normed = torch.empty_like(stream, dtype=dtype)
    mean, rstd = (empty_float32(stream, *stream.shape[:-1], 1) for _ in range(2))
    if stream.numel():
        block = triton.next_power_of_2(width)
        _norm_forward[(mean.numel(),)](
            stream, update, weight, bias, total, normed, mean, rstd, width, float(eps), BLOCK=block, num_warps=4
        )
    return total, normed, mean, rstd


@triton.jit
def _norm_backward(upstream, skip, x, weight, mean, rstd, out, second, width, MODE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    scale = tl.load(rstd + row)
    g = tl.load(upstream + at, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        g *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    passed = g
    if MODE >= 1:
        passed = g - tl.sum(g, axis=0) / width
    if MODE == 2:
        normed = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + row)) * scale
        normed = tl.where(inside, normed, 0.0)
        passed -= normed * (tl.sum(g * normed, axis=0) / width)
    passed *= scale
    if skip is not None:
        passed += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, passed.to(out.dtype.element_ty), mask=inside)
    if second is not None:
        tl.store(second + at, passed.to(second.dtype.element_ty), mask=inside)


def norm_backward(
    upstream: Tensor,
    skip: Tensor | None,
    x: Tensor | None,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    mode: str,
    dtype: torch.dtype,
    second: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient at the input of a layer norm, plus `skip`, the gradient that goes round it.

    Parameters
    ----------
    upstream, skip
        Gradients at the norm's output and at the residual stream.
    x, mean
        Input and its mean; read if `mode` is "exact".
    weight, rstd
        Gain of the norm, and 1 / standard deviation.
    mode
        "exact", "frozen" or "fixed", as `Linearisation.norm`.
    dtype, second
        Precision of the two copies that are returned; the first is returned twice if `second` is None.
    """
    width = upstream.shape[-1]
    upstream, skip, x = contiguous(upstream, skip, x)
    out = torch.empty_like(upstream, dtype=dtype)
    copy = None if second is None or second == dtype else torch.empty_like(upstream, dtype=second)
    if upstream.numel():
        block = triton.next_power_of_2(width)
        _norm_backward[(rstd.numel(),)](
            upstream, skip, x, weight, mean, rstd, out, copy, width, MODE=MODES[mode], BLOCK=block, num_warps=4
        )
    return out, out if copy is None else copy


@triton.jit
def _positive_mean(attention, gradient, weight, out, heads, rows, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)  # image · rows + row
    image, row = at // rows, at % rows
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for head in range(heads):
        place = ((image * heads + head) * rows + row) * columns + column
        a = tl.load(attention + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        product = a * tl.where(g < 0, 0.0, g)
        if weight is not None:
            factor = tl.load(weight + (image * heads + head) * columns + column, mask=inside, other=0.0)
            product *= factor.to(tl.float32)
        total += product
    tl.store(out + at * columns + column, total / heads, mask=inside)


def positive_mean(attention: Tensor, gradient: Tensor, weight: Tensor | None) -> Tensor:
    """mean_h A relu(G) w [b n m] in float32, of attention A [b h n m], gradient G and `weight` w [b h m]."""
    attention, gradient, weight = contiguous(attention, gradient, weight)
    images, heads, rows, columns = attention.shape
    out = empty_float32(attention, images, rows, columns)
    if out.numel():
        block = min(triton.next_power_of_2(columns), 256)
        _positive_mean[(images * rows, triton.cdiv(columns, block))](
            attention, gradient, weight, out, heads, rows, columns, BLOCK=block, num_warps=4
        )
    return out
