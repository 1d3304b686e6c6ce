"""Probe of a network of any architecture: states and gradients at the inputs of its blocks, by its own forward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BiasShares, BlackBoxProbe, refuse_other_rows
from vitreous.capture.bypass import share_of
from vitreous.capture.completeness import LARGEST_MISSING, with_gradient
from vitreous.capture.forward import HeadOutput
from vitreous.capture.layer import BlockLayer, Gradients, Layer, interleave_targets, or_zeros
from vitreous.capture.linearise import LINEARISATIONS, PLAIN, Linearisation
from vitreous.capture.operations import Added, LinearisedForward
from vitreous.capture.other_ways import check_way
from vitreous.capture.trace import Backward, Segment, backward, share, trace
from vitreous.capture.unseen_operations import following_operations
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.models.layout import Layout, TokenGrid, layout_of
from vitreous.models.model import Network, tensors_of
from vitreous.models.tensor_types import Images

if TYPE_CHECKING:
    from vitreous.capture.relevance import Rules


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NetworkLayer(BlockLayer):
    """States of one block of a network, and gradients of the score.

    Tensors have one row per image and target (r), ordered image by image, then target by target; they are detached
    unless `has_graph`. The tokens of a block are those at its own resolution; `to_grid` brings scores to the resolution
    of the map.

    Attributes
    ----------
    index, depth
        Number of this block call, and number of all block calls.
    layout
        Grid of this block's tokens.
    trunk
        Number of the chain of blocks that it belongs to; `index` and `depth` count the blocks of this chain.
    map_layout
        Grid of the map, the finest of all blocks.
    hidden, hidden_grad
        Input of the block and gradient there, [r n d].
    biases
        Shares of the constants that were added from this block's input to that of the next, on the grid of the map.
    unplaced
        Shares of constants at tensors whose place in the image is not known (windows, pooled vectors), [r].
    beside
        Other inputs of the block, and inputs of earlier blocks with the gradients on the ways that lead past this one: what
        the score depends on besides the input of this block, if that is held.
    """

    map_layout: Layout
    segment: Segment
    unplaced: Float[Tensor, " r"] | None = None
    beside: tuple[NetworkLayer, ...] = ()

    @property
    def trunk(self) -> int:
        return self.segment.block.trunk

    @property
    def tokens(self) -> TokenGrid:
        """Where the tokens lie."""
        return self.segment.tokens

    def to_grid(self, scores: Float[Tensor, "r n"]) -> Float[Tensor, "r m"]:
        """Scores of this block's tokens on the grid of the map; sums are preserved."""
        return spread(scores, self.layout, self.map_layout)

    def state(self, tensor: Tensor) -> Float[Tensor, "r n d"]:
        """A state of the forward pass as tokens, one row per image and target."""
        return self.rows(self.tokens.tokens(tensor if self.has_graph else tensor.detach()))

    @property
    def hidden(self) -> Float[Tensor, "r n d"]:
        return self.state(self.segment.leaf)

    @property
    def output(self) -> Float[Tensor, "r n d"]:
        if self.segment.output is None or not self.tokens.holds(self.segment.output.shape):
            raise SpecError(
                "the output of a block has other tokens than its input in this model; of='input' would work"
            )
        return self.state(self.segment.output)

    @property
    def normed(self) -> NoReturn:
        raise SpecError("the output of a block's first norm is not known in a network; of='input' would work")

    def describe_missing(self, name: str, fact: str) -> str:
        return f"this layer of a network holds no {name} gradient; the method needs a ViT with an adapter"


Layer.register(NetworkLayer)


def spread(scores: Float[Tensor, "r n"], coarse: Layout, fine: Layout) -> Float[Tensor, "r m"]:
    """Scores on a coarse grid divided evenly among the cells of a finer grid that each coarse cell covers."""
    if coarse.cells == fine.cells and coarse.prefix == fine.prefix:
        return scores
    others = scores.new_zeros(len(scores), fine.prefix)
    others[:, : coarse.prefix] = scores[:, : coarse.prefix]
    maps = scores[:, coarse.prefix :].unflatten(-1, coarse.cells)
    factors = [many // few for few, many in zip(coarse.cells, fine.cells, strict=True)]
    if all(few * factor == many for few, factor, many in zip(coarse.cells, factors, fine.cells, strict=True)):
        maps = maps / math.prod(factors)
        for axis, factor in enumerate(factors):
            maps = maps.unsqueeze(2 * axis + 2).expand(*maps.shape[: 2 * axis + 2], factor, *maps.shape[2 * axis + 2 :])
        return torch.cat([others, maps.reshape(len(maps), -1)], 1) if fine.prefix else maps.reshape(len(maps), -1)
    for axis, (few, many) in enumerate(zip(coarse.cells, fine.cells, strict=True), start=1):
        factor = -(-many // few)
        maps = maps.repeat_interleave(factor, axis).narrow(axis, 0, many) / factor
        cut = many - factor * (many // factor)  # the last cell covers fewer cells of the fine grid
        if cut:
            last = maps.narrow(axis, many - cut, cut)
            maps = torch.cat([maps.narrow(axis, 0, many - cut), last * (factor / cut)], axis)
    return torch.cat([others, maps.flatten(1)], 1)


@dataclass(frozen=True, slots=True)
class LayerPass:
    """Options of one pass over the blocks: the arguments of `NetworkProbe.layers`, and the rules to propagate relevance by."""

    lin: Linearisation
    attention: bool
    gradients: bool
    biases: bool
    normed: bool
    presence: bool
    relevance: Rules | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `NetworkProbe.layers`, which does not propagate relevance."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "relevance"}


class NetworkProbe(BlackBoxProbe):
    """A network applied to a batch of images, with targets and a score function.

    `layers` iterates over the blocks with their states and gradients; `pixel_logits` and `pixel_score` evaluate the
    network on other images. Parameters as for `BlackBoxProbe`.
    """

    black_box = False
    has_attention = False  # whether layers have attention matrices
    keeps_graph = False  # whether layers keep the graph of parameters and images
    model: Network
    bypass: float = (
        0.0  # share of the gradient that reached the images beside the first blocks in the last pass to them
    )

    def layers(
        self,
        lin: Linearisation = PLAIN,
        attention: bool | None = None,
        *,
        gradients: bool = True,
        biases: bool = False,
        normed: bool = False,
        presence: bool = False,
        down_to: int | Sequence[int] = 0,
    ) -> Iterator[Layer]:
        """Iterate over the blocks from the last to `down_to`, with their states and the gradients of the score.

        Takes one forward pass and one backward pass per target, which runs only as far as the caller iterates.

        Parameters
        ----------
        lin
            Which factors the backward pass treats as constants.
        attention
            Whether attention matrices (and their gradients) are computed; otherwise fused attention is used. None: they
            are for a `ViT`. A network without an adapter has none, as it has neither `normed` nor `presence`.
        gradients
            Whether gradients are computed; otherwise layers hold forward states only.
        biases
            Whether the shares of biases and other constants are computed (`Layer.biases`).
        normed
            Whether the gradient at the output of the first norm is computed (`Layer.normed_grad`).
        presence
            Whether the gradient in the presence of each token is computed (`Layer.presence_grad`); needs `attention`.
        down_to
            Index of the lowest block to visit; of a network with several trunks, one index per trunk.

        Yields
        ------
        Layer

        Examples
        --------
        >>> import torch
        >>> import vitreous
        >>> probe = vitreous.Probe(vitreous.load("scenes"), torch.zeros(1, 3, 112, 112))
        >>> [layer.index for layer in probe.layers(attention=False, down_to=10)]
        [11, 10]
        """
        attention = self.has_attention if attention is None else attention
        return self._iterate_layers(LayerPass(lin, attention, gradients, biases, normed, presence), down_to)

    def _iterate_layers(self, layer_pass: LayerPass, down_to: Any) -> Iterator[Any]:
        """Yield the layers of `layers`."""
        down_to = [down_to] * len(self.model.trunks) if isinstance(down_to, int) else list(down_to)
        if layer_pass.attention or layer_pass.presence:
            raise ModelError(needs_vit(self.model, "attention matrices"))
        mode = self._mode(layer_pass)
        lowest, down_to = (
            down_to,
            [0] * len(down_to) if self.model.skips else down_to,
        )  # ways past a block begin below it
        images, watched = self.images if mode.differentiable else self.images.detach(), None
        if not mode.differentiable and (self.model.outside or (layer_pass.gradients and not any(down_to))):
            watched = images.requires_grad_()
            with torch.enable_grad():
                images = watched.clone()  # a model may change what it is given in place
        traced = trace(
            self.model.module,
            lambda: self.model.call(images),
            self.model.blocks,
            mode,
            down_to=down_to,
            cut=self.model.skips,
            outside=self.model.outside,
            watched=None if self.model.outside else watched,
        )
        check_way(self.model, self.images.detach(), traced)
        with torch.enable_grad():
            # outside of the linearised forward: the gradient of logits and score is exact
            logits = self.model.read(traced.output)
            refuse_other_rows(self.model, logits, len(self.images))
            if self._cache.head_output is None:
                self._cache.head_output = HeadOutput(logits.detach(), logits.new_zeros(len(logits), 0))
            totals = [score.sum() for score in self.target_scores(logits)]
        self.bias_shares = BiasShares(
            head=self.images.new_zeros(self.rows, self.layout.tokens), pooled=self.images.new_zeros(self.rows)
        )
        if not layer_pass.gradients:
            for part in reversed(traced.segments):
                if part.part == 0 and part.level >= lowest[part.block.trunk]:
                    yield self._layer(part, Gradients())
            return
        for steps in zip(*(backward(traced, total, outputs=True) for total in totals), strict=True):
            if steps[0].segment.level >= lowest[steps[0].segment.block.trunk]:
                yield self._step_layer(list(steps), layer_pass.biases)
        self.bypass = 0.0 if traced.bypass is None else self._bypass_share(traced.bypass)

    def _bypass_share(self, gradient: Images) -> float:
        """Share that a gradient beside the blocks has in that of the module itself."""
        return share_of([gradient], [self._gradient_through(self.run_model)])

    def _mode(self, layer_pass: LayerPass) -> LinearisedForward:
        """The rules of the backward pass."""
        return LinearisedForward(layer_pass.lin, record_constants=layer_pass.biases, copy_recorded=self.model.copy)

    def _step_layer(self, steps: list[Backward], biases: bool) -> NetworkLayer:
        segment = steps[0].segment
        tokens = segment.tokens
        gradients = Gradients(hidden=interleave_targets([tokens.tokens(step.gradient) for step in steps]))
        if segment.output is not None and tokens.holds(segment.output.shape):
            columns = [tokens.tokens(or_zeros(step.output_gradient, segment.output)) for step in steps]
            gradients = replace(gradients, output=interleave_targets(columns))
        unplaced = None
        if biases:
            shares, elsewhere = zip(*(self._place(step) for step in steps), strict=True)
            unplaced = interleave_targets(list(elsewhere))
            gradients = replace(gradients, biases=interleave_targets(list(shares)))
        beside = dict.fromkeys(other for step in steps for other in step.beside)
        return self._layer(segment, gradients, unplaced, tuple(self._layer_beside(other, steps) for other in beside))

    def _layer_beside(self, segment: Segment, steps: list[Backward]) -> NetworkLayer:
        """An input that the score depends on besides that of a block."""
        columns = [segment.tokens.tokens(or_zeros(step.beside.get(segment), segment.leaf)) for step in steps]
        gradient = interleave_targets(columns)
        return self._layer(replace(segment, output=segment.leaf), Gradients(hidden=gradient, output=gradient))

    def _place(self, step: Backward) -> tuple[Float[Tensor, "b m"], Float[Tensor, " b"]]:
        """Shares of the constants of one segment: on the grid of the map where they are at tokens, else in total."""
        b = len(self.images)
        constants: dict[TokenGrid, list[tuple[Added, Tensor]]] = {step.segment.tokens: step.added}
        for tokens, added, gradient in step.added_beside:
            constants.setdefault(tokens, []).append((added, gradient))
        total = self.images.new_zeros(b, self.layout.tokens)
        elsewhere = self.images.new_zeros(b)
        for tokens, added_there in constants.items():
            placed = self.images.new_zeros(b, tokens.count)
            for added, gradient in added_there:
                part = share(added.constant, gradient)
                if tokens.images_in(part.shape) == b:
                    placed = placed + tokens.tokens(part).sum(-1)
                elif (
                    tokens.form == "sequence" and part.ndim == 4 and part.shape[2] == placed.shape[1] and len(part) == b
                ):
                    placed = placed + tokens.tokens(part.sum(1)).sum(-1)  # [b h n e]: a norm of queries or keys
                elif len(part) % b:
                    raise MixedImagesError(
                        f"{self.model.name!r} sorts the tokens of a batch ({len(part)} rows of {b} images), so the shares of its "
                        "constants cannot be told apart; images one by one would work"
                    )
                else:
                    elsewhere = elsewhere + part.reshape(b, -1).sum(-1)
            total = total + spread(placed, self._own_layout(tokens), self.layout)
        return total, elsewhere

    def _own_layout(self, tokens: TokenGrid) -> Layout:
        size = (self.images.shape[-2], self.images.shape[-1])
        clip = self.model.clip
        return layout_of(tokens.grid, size if clip is None else (clip.frames, *size), tokens.others)

    def _layer(
        self,
        segment: Segment,
        gradients: Gradients,
        unplaced: Tensor | None = None,
        beside: tuple[NetworkLayer, ...] = (),
    ) -> NetworkLayer:
        layout = self._own_layout(segment.tokens)
        return NetworkLayer(
            index=segment.level,
            depth=self.model.trunks[segment.block.trunk],
            layout=layout,
            targets=self.targets_per_image,
            readout=self.images.new_zeros(self.rows, layout.tokens),
            gradients=gradients,
            has_graph=self.keeps_graph,
            map_layout=self.layout,
            segment=segment,
            unplaced=unplaced,
            beside=beside,
        )

    def pixel_gradient(self, lin: Linearisation = PLAIN) -> Float[Tensor, "r c H W"]:
        """Gradient of the score in the pixels, under a linearisation of the whole network."""

        def logits(images: Images) -> Tensor:
            with evaluating(self.model.module), following_operations(self.model.name) as follow, LinearisedForward(lin):
                follow()
                output = self.model.call(images)
            return self.model.read(output)

        return self._gradient_through(logits)

    def _refuse(self, part: str) -> NoReturn:
        raise ModelError(needs_vit(self.model, part))


class MixedImagesError(ModelError):
    """The constants of a network are not in the order of the images of a batch, as in a mixture of experts."""


def mixes_images(model: Network, images: Images) -> bool:
    """Whether a model cannot take two images, or the first depends on the second or is not in the order of the images."""

    def run(images: Images) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of the model, and of its operations that add constants."""
        mode = LinearisedForward(LINEARISATIONS["decompx"], record_constants=True, copy_recorded=model.copy)
        given = with_gradient(images, model)
        traced = trace(model.module, lambda: model.call(given), model.blocks, mode, cut=False, outside=model.outside)
        return tensors_of(traced.output), [added.output for segment in traced.segments for added in segment.added]

    def first_differs(together: list[Tensor], alone: list[Tensor]) -> bool:
        return len(together) != len(alone) or any(
            len(pair) != 2 * len(single) or pair.shape[1:] != single.shape[1:] or differ(pair[: len(single)], single)
            for pair, single in zip(together, alone, strict=True)
        )

    try:
        (outputs, states), (own_outputs, own_states) = run(images), run(images[:1])
    except Exception:  # noqa: BLE001 - of any kind: the model may take one image at a time, or have no memory for two
        return True
    if model.output_type is not None and first_differs(outputs[:1], own_outputs[:1]):
        return True
    if not first_differs(states, own_states):
        return False
    try:  # states may be in another order although every share is at its image
        return model.output_type is None or differ(
            constant_shares(model, images)[:1], constant_shares(model, images[:1])
        )
    except MixedImagesError:
        return True


def differ(together: Tensor, alone: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    if not alone.numel():  # an expert that no token chose
        return bool(together.numel())
    tolerance = LARGEST_MISSING.get(alone.dtype, 1e-3)
    gap = (together - alone).nan_to_num().abs().max()
    return bool(gap > tolerance * alone.nan_to_num().abs().max())


def constant_shares(model: Network, images: Images) -> Float[Tensor, "b shares"]:
    """Shares of the constants of every block in the score of the first class."""
    probe = NetworkProbe(model, images, torch.zeros(len(images), dtype=torch.long))
    layers = list(probe.layers(LINEARISATIONS["decompx"], biases=True))
    shares = [(layer.biases.sum(-1), layer.unplaced) for layer in layers]
    return torch.stack([part for pair in shares for part in pair if part is not None], 1)


def needs_vit(model: Network, parts: str) -> str:
    """Message for something that only a `ViT` with an adapter has."""
    why = f" ({model.reason})" if model.reason else ""
    return (
        f"{parts} need a ViT, and {model.name!r} is a network without an adapter{why}; methods and metrics that use states, "
        "gradients or pixels only would work"
    )
