"""Backward rules of attention: fused, written out with a softmax and matrix products, or by sampled positions."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.capture.backward_functions import Damp, attention_at, damp, softmax_at
from vitreous.capture.operation_registry import Call, Role, built_in_rule, depends, give_role, name_of, role_of
from vitreous.core.errors import ModelError

MULTI_HEAD_ARGUMENTS = tuple(inspect.signature(F.multi_head_attention_forward).parameters)


@built_in_rule("scaled_dot_product_attention")
def attention(call: Call) -> Tensor:
    arguments = call.bind("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    if call.differentiable:
        return attention_written_out(call, arguments)
    rules = call.linearisation
    arguments["query"], arguments["key"] = damp_both(arguments["query"], arguments["key"], rules.qk)
    arguments["value"] = damp(arguments["value"], rules.v)
    if depends(mask := arguments.get("attn_mask")):
        arguments["attn_mask"] = damp(mask, rules.qk)
    return attention_at(rules.softmax, **arguments)


def damp_both(first: Tensor, second: Tensor, factor: float | int) -> tuple[Tensor, Tensor]:
    """`damp` of two tensors in one step of the backward pass."""
    if factor in (0, 1) or not (depends(first) and depends(second)):
        return damp(first, factor), damp(second, factor)
    return Damp.apply(factor, None, first, second)


def attention_written_out(call: Call, arguments: dict[str, Any]) -> Tensor:
    """Attention from operations that have a second derivative, which fused kernels do not have."""
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    if arguments.get("enable_gqa"):
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = query.shape[-1] ** -0.5 if arguments.get("scale") is None else arguments["scale"]
    scores = (query * scale) @ key.mT
    mask = arguments.get("attn_mask")
    if arguments.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    scores = call.damp(scores, call.linearisation.qk)
    temperature = call.linearisation.softmax if depends(scores) else 1
    weights = softmax_at(temperature, lambda logits: logits.softmax(-1), scores, call.hold)
    return weights @ call.damp(value, call.linearisation.v)


@built_in_rule("softmax", "_softmax")
def softmax(call: Call) -> Tensor:
    """Attention written out: the gradient to the logits times `qk` is the gradient to queries and keys times `qk`."""
    if not depends(call.input):
        return give_role(call.run(), Role.ATTENTION_WEIGHTS)
    scores = call.damp(call.input, call.linearisation.qk)
    weights = softmax_at(call.linearisation.softmax if depends(scores) else 1, call.run_on, scores, call.hold)
    return give_role(call.hand_out(weights), Role.ATTENTION_WEIGHTS)


@built_in_rule("multi_head_attention_forward")
def multi_head_attention(call: Call) -> tuple[Tensor, Tensor | None]:
    """`nn.MultiheadAttention` from the operations that it consists of, each under its own rule."""
    a = call.bind(*MULTI_HEAD_ARGUMENTS)
    if any(a.get(name) is not None for name in ("bias_k", "bias_v", "static_k", "static_v")) or a.get("add_zero_attn"):
        return call.run()
    query, key, value, heads = a["query"], a["key"], a["value"], a["num_heads"]
    if query.ndim == 2:
        query, key, value = query[:, None], key[:, None], value[:, None]
    separate = a.get("use_separate_proj_weight")
    weights = (a["q_proj_weight"], a["k_proj_weight"], a["v_proj_weight"]) if separate else a["in_proj_weight"].chunk(3)
    biases = (None, None, None) if a["in_proj_bias"] is None else a["in_proj_bias"].chunk(3)
    with call.mode:
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask = merge_masks(a, q, k)
        if a.get("need_weights", True):
            logits = (q * q.shape[-1] ** -0.5) @ k.mT
            attended = (logits if mask is None else logits + mask).softmax(-1)
            mixed = attended @ v
        else:
            attended, mixed = None, F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), a["out_proj_weight"], a["out_proj_bias"])
    if attended is not None and a.get("average_attn_weights", True):
        attended = attended.mean(1)
    if a["query"].ndim == 2:
        return output[:, 0], attended if attended is None else attended[0]
    return output, attended


def merge_masks(a: dict[str, Any], q: Tensor, k: Tensor) -> Tensor | None:
    """Attention and padding masks of `nn.MultiheadAttention` as one additive mask [b h n m]."""
    merged = None
    for mask in (a.get("attn_mask"), a.get("key_padding_mask")):
        if mask is None:
            continue
        if mask is a.get("key_padding_mask"):
            mask = mask[:, None, None, :]
        elif mask.ndim == 3:
            mask = mask.unflatten(0, (q.shape[0], q.shape[1]))
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(mask, -torch.inf)
        merged = mask if merged is None else merged + mask
    return merged


@built_in_rule("matmul", "bmm", "__matmul__", "__rmatmul__", "einsum", "baddbmm")
def matrix_product(call: Call) -> Tensor:
    """Attention weights or kernel features times values: gradient to the weights times `qk`, to the values times `v`.

    Attention weights were damped at their softmax. Of two tensors without a role the product stays exact: queries times
    keys, whose gradient is damped at the softmax behind them.
    """
    name, args = name_of(call.function), list(call.args)
    equation = args[:1] if name == "einsum" else []
    operands = args[len(equation) :]
    if name == "einsum" and len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if name == "baddbmm" or len(operands) != 2 or not all(isinstance(x, Tensor) for x in operands):
        return call.run()
    factors = damping_of_factors(call, operands)
    return call.function(*equation, *map(call.damp, operands, factors), **call.kwargs)


def damping_of_factors(call: Call, operands: list[Tensor]) -> tuple[float | int, float | int]:
    """Factors on the gradients of the two operands of a matrix product."""
    rules, (first, second) = call.linearisation, (role_of(x) for x in operands)
    if first is not second and Role.ATTENTION_WEIGHTS in (first, second):
        return (1, rules.v) if first is Role.ATTENTION_WEIGHTS else (rules.v, 1)
    if not all(depends(x) for x in operands):
        return 1, 1
    features = (Role.ACTIVATION, Role.BOUNDED_GATE)
    if first in features and second is None:
        return rules.qk, rules.v
    if second in features and first is None:
        return rules.v, rules.qk
    # a softmax behind it passes nothing on; without one, each factor has half
    return (0.5, 0.5) if rules.qk == 0 else (1, 1)


@built_in_rule("grid_sample")
def sampling(call: Call) -> Tensor:
    """Values at positions that depend on the input (deformable attention): the positions are like attention weights."""
    if call.differentiable:
        raise ModelError(
            f"the operation {name_of(call.function)!r} has no second derivative in torch, which differentiable=True needs; a model "
            "without it would work"
        )
    arguments = call.bind("input", "grid", "mode", "padding_mode", "align_corners")
    arguments["grid"] = call.damp(arguments["grid"], call.linearisation.qk)
    return call.function(**arguments)
