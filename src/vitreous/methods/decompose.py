"""DecompX: every token's share of the score, with biases left out or distributed over the tokens.

D[j, i] is the part of token i that comes from token j of the first layer considered. Without biases, or with biases
assigned to one token or equally to all, the shares need one backward pass. If biases are distributed by similarity,
their weights depend on D, and D is propagated forward: one image at a time, a few sources at a time, with at most
three [n n d] tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.forward import BlockStates, run_block
from vitreous.capture.layer import Layer
from vitreous.capture.linearise import DECOMPX
from vitreous.capture.probe import LayerPass, Probe
from vitreous.capture.relevance import affine, concatenate_heads, logit_gradient
from vitreous.capture.value_vectors import norm_statistic, secant, tangent
from vitreous.core.errors import ModelError
from vitreous.core.progress import Tally
from vitreous.methods.method import Method
from vitreous.methods.pass_counts import ModelSizes, passes_from_layers
from vitreous.methods.token_gradients import DECOMPOSITION, input_x_gradient, token_times_gradient
from vitreous.models.tensor_types import TokenScores
from vitreous.models.vit import Block, LinearPool, MlpBranch

Parts = Float[Tensor, "s n d"]  # of n tokens, per source s
Weights = Float[Tensor, "s n"]

LIKENESS = ("absdot", "norm", "abssim")
Bias = Literal["none", "cls", "equal", "absdot", "norm", "abssim"]
Line = Literal["ratio", "tangent"]
BUDGET = 2**27  # bytes of hidden units in memory at once


def adapt_pass(layer_pass: LayerPass, bias: Bias = "none", activation: Line = "ratio") -> LayerPass:
    """What the pass over the layers has to compute for these options of `shares`."""
    if bias in LIKENESS:
        return replace(layer_pass, gradients=False)
    lin = layer_pass.lin if activation == "ratio" else replace(layer_pass.lin, activation="exact")
    return replace(layer_pass, lin=lin, normed=bias == "equal")


def shares(layer: Layer, probe: BlackBoxProbe, bias: Bias = "none", activation: Line = "ratio") -> TokenScores:
    """Shares of the tokens that enter a layer, biases included according to `bias`.

    Parameters
    ----------
    layer
        The layer, from a pass that `adapt_pass` describes.
    probe
        The probe.
    bias
        Not attributed to tokens ("none"); assigned to the class token ("cls") or equally to all tokens ("equal"); or
        distributed according to the tokens' parts of the vector that the bias is added to: by |part · bias| ("absdot"),
        |cos| ("abssim") or length ("norm").
    activation
        Linear form of the activation: its "ratio" act(z)/z, or its "tangent", whose intercept is treated as a bias.

    Raises
    ------
    ModelError
        For `bias="cls"` if the model has no class token.
    """
    if bias == "none":
        return input_x_gradient(layer)
    assert isinstance(probe, Probe)  # other models are refused by `Method.for_model`
    if bias in LIKENESS:
        return forward_shares(probe, layer.index, BiasSplit(bias, activation))
    if bias == "cls" and probe.layout.prefix == 0:
        raise ModelError("bias='cls' gives biases to the class token, and this model has none; use bias='equal'")
    return with_biases(probe, layer, bias)


def with_biases(probe: Probe, layer: Layer, bias: str) -> TokenScores:
    """Shares with the rest of the score, which is due to biases, given to the class token or equally to all tokens.

    At the first norm of the first block every token is its own only source, so "equal" leaves that norm's shift there.
    """
    shares = input_x_gradient(layer)
    # first-order score Σ_c logit_c · ∂t/∂logit_c; equal to the score if the score function is linear
    logits = probe.head_output.logits.repeat_interleave(probe.targets_per_image, 0)
    rest = (logit_gradient(probe) * logits).sum(-1) - shares.sum(-1)
    if bias == "cls":
        shares[:, 0] += rest
        return shares
    shift = getattr(layer.block.attention.norm, "bias", None)
    with torch.no_grad():
        own = torch.zeros_like(shares) if shift is None else layer.normed_grad @ shift
    return shares + own + ((rest - own.sum(-1)) / shares.shape[-1])[:, None]


def count_parts(method: Method, sizes: ModelSizes) -> dict[str, float]:
    """Biases distributed by similarity: a forward pass for the part of every patch, as the linear maps take that long."""
    if method.settings["bias"] not in LIKENESS:
        return {}
    return {"forwards": 1 + passes_from_layers(method, sizes) * (1 + sizes["patches"]), "backwards": 0}


decompx = token_times_gradient(
    "decompx",
    "Every token's share of the logit, with attention, norm statistics and activation ratios held fixed.",
    formula="sᵢ = Σₖ Xᵢₖ g̃ᵢₖ, g̃ = ∂t/∂X₀ with A, every norm's σ and act(z)/z held fixed",
    signal=shares,
    counts=count_parts,
    adapt=adapt_pass,
    linearisation=DECOMPX,
    paper="modarressi2023decompx",
    **DECOMPOSITION,
)


# ── forward propagation ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BiasSplit:
    """How biases are distributed over sources (`bias`) and how activations are linearised (`activation`)."""

    bias: str
    activation: str

    def weights(self, parts: Iterable[Parts], bias: Tensor) -> Weights:
        """Weight of each source for a bias, per token; sums to 1 over sources. `parts` yields chunks of sources."""
        similarity = torch.cat([self.similarity(chunk, bias) for chunk in parts])
        return similarity / similarity.sum(0).clamp(min=torch.finfo(similarity.dtype).tiny)

    def similarity(self, parts: Parts, bias: Tensor) -> Weights:
        """Similarity of the parts to a bias: their length, |dot product| or |cosine|."""
        if self.bias == "norm":
            return parts.norm(dim=-1)
        dot = (parts @ bias if bias.ndim == 1 else torch.einsum("snd,nd->sn", parts, bias)).abs()
        if self.bias == "absdot":
            return dot
        lengths = parts.norm(dim=-1) * bias.norm(dim=-1)
        return torch.where(lengths == 0, 0, dot / lengths)

    def distribute(self, parts: Parts, bias: Tensor) -> Parts:
        """Distribute a bias over the sources, in place."""
        return parts.addcmul_(self.weights([parts], bias)[:, :, None], bias)

    def norm(self, norm: Any, x: Float[Tensor, "n d"], parts: Parts) -> Parts:
        """Parts of the norm's output, with the standard deviation (or RMS) of the full vectors x held fixed."""
        if isinstance(norm, nn.Identity):
            return parts.clone()
        centred, spread = norm_statistic(norm, x)
        normalised = (parts - parts.mean(-1, keepdim=True) if centred else parts.clone()).div_(spread)
        normalised = normalised if norm.weight is None else normalised.mul_(norm.weight)
        shift = getattr(norm, "bias", None)
        return normalised if shift is None else self.distribute(normalised, shift)

    def activate(self, act: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Slope and intercept (None if zero) of the linear form of the activation."""
        if self.activation == "ratio":
            return secant(act, z), None
        slope = tangent(act, z)
        return slope, act(z) - slope * z


@torch.no_grad()
def forward_shares(probe: Probe, start: int, split: BiasSplit) -> TokenScores:
    """Shares of the tokens entering block `start`; one decomposition per image serves all its targets."""
    logit_gradients = logit_gradient(probe).unflatten(0, (len(probe.images), -1))  # [b k c]
    tally = Tally(len(logit_gradients) * (probe.vit.depth - start))
    return torch.cat([w @ logit_parts(probe, image, start, split, tally).T for image, w in enumerate(logit_gradients)])


def logit_parts(probe: Probe, image: int, start: int, split: BiasSplit, tally: Tally) -> Float[Tensor, "s c"]:
    """Contribution of every source to every logit, for one image."""
    vit, states = probe.vit, [state[image : image + 1] for state in probe.states]
    if not isinstance(vit.pool, LinearPool):
        raise ModelError(f"bias={split.bias!r} is not defined for attention pooling; use bias='none', 'cls' or 'equal'")
    D = torch.diag_embed(states[start][0].T).permute(1, 2, 0).contiguous()
    for block, x in zip(vit.blocks[start:], states[start:-1], strict=True):
        block_states = run_block(block, x, probe.place, attention=True)
        D += attention_parts(block, block_states, split.norm(block.attention.norm, x[0], D))
        split.distribute(D, merged_bias(block, block_states))
        D += mlp_parts(block.mlp, block_states, split.norm(block.mlp.norm, block_states.mid[0], D), split)
        tally.add(1)
    D, tokens = split.norm(vit.norm, states[-1][0], D), vit.norm(states[-1])[0]
    rows = vit.pool.rows(len(tokens)).to(tokens)
    read = split.norm(vit.pooled_norm, rows @ tokens, rows @ D)
    weight, shift = affine(lambda t: vit.classify(t[0].unflatten(-1, read.shape[1:]))[None], read.flatten(1)[None])
    parts = split.distribute((read.flatten(1) @ weight.T)[:, None], shift)[:, 0]
    return parts if vit.length is None else parts / vit.length(vit.pooled_norm(rows @ tokens)[None])


def attention_parts(block: Block, states: BlockStates, D: Parts) -> Parts:
    """Parts of the attention output, with attention held fixed; overwrites `D`."""
    attention_part, attention = block.attention, states.attention
    assert attention is not None
    if not isinstance(attention_part.inner_norm, nn.Identity) or not isinstance(block.mlp.inner_norm, nn.Identity):
        raise ModelError("biases by similarity are not defined for a norm inside attention or MLP; use bias='equal'")
    value, _ = affine(lambda t: concatenate_heads(attention_part.qkv(t)[2]), states.hidden)
    project, _ = affine(attention_part.project, D.new_zeros(1, 1, len(value)))
    for chunk in split_sources(D, len(value)):
        heads = (chunk @ value.T).unflatten(-1, (attention.shape[1], -1)).transpose(1, 2)
        chunk.copy_(concatenate_heads(attention[0] @ heads) @ project.T)
    return D


def merged_bias(block: Block, states: BlockStates) -> Float[Tensor, " d"]:
    """W_o b_v + b_o, one bias as in published code: the value bias passes unchanged because attention rows sum to 1."""
    value = concatenate_heads(block.attention.qkv(torch.zeros_like(states.hidden[:, :1]))[2])
    return block.attention.project(value)[0, 0]


def mlp_parts(mlp: MlpBranch, states: BlockStates, D: Parts, split: BiasSplit) -> Parts:
    """Parts of the MLP output, with an activated gate held fixed; overwrites `D`.

    Hidden units are computed for a few sources at a time, so the weights of every hidden bias need a separate loop
    over all sources.
    """
    *gate, z = (part[0] for part in mlp.expand(mlp.norm(states.mid)))
    slope, intercept = (mlp.act(gate[0]), None) if gate else split.activate(mlp.act, z)
    expand, first = affine(lambda t: mlp.expand(t)[-1], states.mid)
    contract, second = affine(mlp.contract, z[None])
    chunks = split_sources(D, len(expand))
    shares = split.weights((part @ expand.T for part in chunks), first).split(len(chunks[0]))

    def hidden(part: Parts, share: Weights) -> Tensor:
        return (part @ expand.T).addcmul_(share[:, :, None], first).mul_(slope)

    hidden_chunks = partial(map, hidden, chunks, shares)
    if intercept is None:
        for part, units in zip(chunks, hidden_chunks(), strict=True):
            part.copy_(units @ contract.T)
        return split.distribute(D, second)
    extra = split.weights(hidden_chunks(), intercept).split(len(chunks[0]))
    for part, units, share in zip(chunks, hidden_chunks(), extra, strict=True):
        part.copy_(units.addcmul_(share[:, :, None], intercept) @ contract.T)
    return split.distribute(D, second)


def split_sources(D: Parts, width: int) -> tuple[Tensor, ...]:
    """Views of `D` with so many sources that [s n width] stays within `BUDGET`."""
    return D.split(max(1, BUDGET // (D.shape[1] * width * D.element_size())))
