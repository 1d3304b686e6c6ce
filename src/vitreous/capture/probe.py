"""`Probe`: a model, a batch of images, and the score to explain for each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BiasShares, BlackBoxProbe
from vitreous.capture.forward import BiasTerms, BlockStates, HeadOutput, embed, run, run_block, run_head
from vitreous.capture.fused import at_least_float32, fuses_attention, row_dot
from vitreous.capture.layer import Gradients, Layer, interleave_targets, or_zeros, slope_in_presence
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.memory import free_bytes, rows_that_fit, weighing
from vitreous.capture.network_probe import LayerPass, NetworkProbe
from vitreous.capture.packed import outputs_of_subsets
from vitreous.capture.pixels import LogitReader
from vitreous.capture.score_function import QuestionInput, per_row
from vitreous.capture.unseen_operations import refusing_graph_errors
from vitreous.core.errors import ShapeError
from vitreous.models.model import BlackBox, Network
from vitreous.models.tensor_types import Images, Keep, Logits, Tokens
from vitreous.models.vit import TokenPositions, ViT

# Share of biases in the score: of their terms, the gradients at the terms, and the tokens.
BiasShare: TypeAlias = Callable[[BiasTerms, Iterable[Tensor | None], Tokens], Tensor]


class Probe(NetworkProbe):
    """A model applied to a batch of images, with targets and a score function.

    `layers` iterates over the blocks with their states and gradients; `logits` and `score` evaluate the model with only
    some patches present; `pixel_logits` and `pixel_score` evaluate it on other images. The model is not modified.

    Axis names: b images, k targets per image, r = b·k rows (image by image, then target by target), s subsets or
    variants per image, n tokens, p patches, c classes.

    Parameters
    ----------
    model
        The model.
    images
        Preprocessed images [b 3 H W]; converted to the device and precision of the model.
    targets
        Class indices, [b] or [b k]. None explains the predicted class.
    question
        Score function: a name, a `ScoreFunction`, or a callable of the logits, or of logits and targets.
    hold
        True keeps the whole autograd graph, False recomputes it block by block, None keeps it if it fits into memory.
        The results are the same.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> probe = vitreous.Probe(vit, images)
    >>> keep = probe.images.new_ones(1, 1, 196).bool()
    >>> keep[..., :98] = False  # only the lower half of the image
    >>> probe.logits(keep).shape
    torch.Size([1, 1, 20])
    >>> probe.score(keep).shape, probe.run_model(images).shape
    (torch.Size([1, 1]), torch.Size([1, 20]))
    >>> probe.pixel_gradient().shape, probe.token_gradient().shape, len(list(probe.biases()))
    (torch.Size([1, 3, 112, 112]), torch.Size([1, 197, 144]), 13)
    """

    has_attention = True
    model: ViT  # pyright: ignore[reportIncompatibleVariableOverride] - a probe of a ViT holds a ViT

    @property
    def vit(self) -> ViT:
        """The model."""
        return self.model

    @cached_property
    def place(self) -> TokenPositions:
        """Positions of all tokens."""
        return TokenPositions(self.layout)

    # ── logits and scores ────────────────────────────────────────────────────────────────────────

    @cached_property
    def tokens(self) -> Tokens:  # pyright: ignore[reportIncompatibleMethodOverride] - a property that refuses
        """Input of the first block."""
        with torch.no_grad():
            return self.vit.embed(self.images)

    @property
    def states(self) -> list[Tokens]:
        """Input of every block, then the encoder's output: depth + 1 tensors without graph."""
        if self._cache.states is None:
            self._cache.states = self._carried([self.tokens], self.vit.depth)
        return self._cache.states

    @torch.no_grad()
    def _carried(self, states: list[Tokens], depth: int) -> list[Tokens]:
        """Extend `states` (in place) up to the input of block `depth`."""
        while len(states) <= depth:
            states.append(run_block(self.vit.blocks[len(states) - 1], states[-1], self.place).output)
        return states

    @property
    def head_output(self) -> HeadOutput:
        """Output of the head for the unmodified images, without graph."""
        if self._cache.head_output is None:
            with torch.no_grad():
                self._cache.head_output = run_head(self.vit, self.states[-1])
        return self._cache.head_output

    # ── layers ───────────────────────────────────────────────────────────────────────────────────

    def _iterate_layers(self, layer_pass: LayerPass, down_to: int) -> Iterator[Layer]:
        """Yield the layers of `layers`. The graph of a block ends at its input, so each block can be freed after use."""
        block_states = self._forward(layer_pass, down_to)
        upstreams, head_slope = self._backpropagate_head(layer_pass) if layer_pass.gradients else ([], None)
        readout = self.head_output.readout.repeat_interleave(self.targets_per_image, 0)
        for index in reversed(range(down_to, self.vit.depth)):
            states = block_states.pop() if block_states else self._run(index, self.states[index], layer_pass)
            gradients = Gradients()
            if layer_pass.gradients:
                with refusing_graph_errors(self.vit.name, [states.output]):  # an activation without a backward pass
                    gradients, upstreams = backward(states, upstreams, layer_pass.normed)
                if layer_pass.presence and layer_pass.attention:
                    slope = slope_in_presence(states, gradients)
                    slope = slope if head_slope is None else slope + head_slope
                    gradients, head_slope = replace(gradients, presence=slope), None
            yield self._layer_of_states(index, states, readout, gradients)

    def _layer_of_states(
        self, index: int, states: BlockStates, readout: Float[Tensor, "r n"], gradients: Gradients
    ) -> Layer:
        return Layer(
            index=index,
            depth=self.vit.depth,
            layout=self.layout,
            targets=self.targets_per_image,
            readout=readout,
            gradients=gradients,
            has_graph=self.keeps_graph,
            place=self.place,
            block=self.vit.blocks[index],
            states=states,
        )

    def _backpropagate_head(self, layer_pass: LayerPass) -> tuple[list[Tokens], Float[Tensor, "r n"] | None]:
        """Run the head forward once, and backward once per target.

        Returns the gradients at the encoder's output, one tensor per target, and the gradient in the presence of each
        token in the pooling if it is needed. Shares of the head's biases become `bias_shares`.
        """
        leaf = self.states[-1].detach().requires_grad_()
        presence = torch.zeros_like(leaf[..., 0]).requires_grad_() if layer_pass.presence else None
        with torch.enable_grad():
            head_output = run_head(self.vit, leaf, layer_pass.lin, layer_pass.biases, presence)
            if self._cache.head_output is None:  # so that the predicted class needs no forward of its own
                self._cache.head_output = HeadOutput(head_output.logits.detach(), head_output.readout)
            totals = [score.sum() for score in self.target_scores(head_output.logits)]
        tensors = {"hidden": leaf} if presence is None else {"hidden": leaf, "presence": presence}
        bias_terms: dict[str, tuple[BiasTerms, BiasShare]] = {}
        if layer_pass.biases:  # an attention pooler may skip prefix tokens; they add no biases, and their share is 0
            bias_terms["head"] = head_output.token_bias_terms, bias_map
            bias_terms["pooled"] = head_output.pooled_bias_terms, bias_total
        columns = backpropagate(totals, [None] * len(totals), tensors, bias_terms)
        upstreams = [column.pop("hidden") for column in columns]
        rows = interleave_columns(columns)
        if layer_pass.biases:
            self.bias_shares = BiasShares(rows["head"], rows["pooled"])
        return upstreams, rows.get("presence")

    def _forward(self, layer_pass: LayerPass, down_to: int) -> list[BlockStates]:
        """Run the encoder; return the states of the blocks from `down_to` on, or none if they would not fit into memory."""
        if self.hold is False:
            _ = self.states
            return []
        cached = self._cache.states
        states = self._carried([self.tokens], down_to) if cached is None else cached[: down_to + 1]
        block_states: list[BlockStates] = []
        for index in range(down_to, self.vit.depth):
            is_weighed = self.hold is None and index == down_to  # the first block shows what a graph takes
            with weighing(layer_pass.gradients and is_weighed) as saved_bytes:
                block_states.append(self._run(index, states[-1], layer_pass))
            if is_weighed and not self._fits(saved_bytes(), block_states[0], self.vit.depth - down_to):
                block_states.clear()  # free the graph before the remaining blocks run
                self._cache.states = cached or self._carried(states, self.vit.depth)
                return []
            states.append(block_states[-1].output.detach())
        if cached is None:
            self._cache.states = states
        return block_states

    def _fits(self, saved_bytes: int, states: BlockStates, blocks: int) -> bool:
        matrix = 0 if states.attention is None else states.attention.nbytes
        needed = (max(saved_bytes, matrix) + states.output.nbytes) * blocks + matrix * 2
        return needed < free_bytes(self.images.device) / 2

    def _run(self, index: int, x: Tokens, layer_pass: LayerPass) -> BlockStates:
        with torch.set_grad_enabled(layer_pass.gradients):
            leaf = x.detach().requires_grad_(layer_pass.gradients)
            fused = layer_pass.attention and layer_pass.gradients and fuses_attention(leaf)
            states = run_block(
                self.vit.blocks[index], leaf, self.place, layer_pass.lin, layer_pass.attention, layer_pass.biases, fused
            )
        needless = layer_pass.gradients and not layer_pass.normed  # parameters get no gradient, so it is not read
        return replace(states, normed=None) if needless else states

    def biases(self, lin: Linearisation = PLAIN) -> Iterator[Float[Tensor, "r n"]]:
        """Yield bias shares at the tokens they are added to: of the head, then of each block, from last to first.

        Parameters
        ----------
        lin
            Which factors the backward pass treats as constants.

        Yields
        ------
        Tensor
            Shares [r n].
        """
        layers = self.layers(lin, attention=False, biases=True)
        first = next(layers)
        assert self.bias_shares is not None
        yield self.bias_shares.head
        yield first.biases
        yield from (layer.biases for layer in layers)

    def pixel_gradient(self, lin: Linearisation = PLAIN) -> Float[Tensor, "r colours H W"]:
        """Gradient of the score in the pixels, under a linearisation of the blocks and the head.

        Parameters
        ----------
        lin
            Which factors the backward pass treats as constants.

        Returns
        -------
        Tensor
            One gradient per row.
        """
        images = self.images.detach().requires_grad_()
        with torch.enable_grad():
            tokens = embed(self.vit, images)
        self.__dict__.setdefault("tokens", tokens.detach())  # the layers use them
        columns = self.token_gradient(lin).unflatten(0, (len(images), -1)).unbind(1)
        last = len(columns) - 1
        return interleave_targets(
            [torch.autograd.grad(tokens, images, g, retain_graph=i < last)[0] for i, g in enumerate(columns)]
        )

    def token_gradient(self, lin: Linearisation = PLAIN) -> Float[Tensor, "r n d"]:
        """Gradient of the score at the input of the first block.

        Parameters
        ----------
        lin
            Which factors the backward pass treats as constants.

        Returns
        -------
        Tensor
            One gradient per row.
        """
        layer = deque(self.layers(lin, attention=False), maxlen=1)[0]  # the first block comes last
        return layer.hidden_grad

    # ── logits and scores with patches removed ───────────────────────────────────────────────────

    def logits(self, keep: Keep) -> Float[Tensor, "b s c"]:
        """Return the logits when only the kept patches enter the encoder.

        The other patches are removed from the token sequence (not replaced); positions stay the same.

        Parameters
        ----------
        keep
            Boolean masks of patches, True for those that stay: [b s p], or [r s p] for other subsets per row.

        Returns
        -------
        Tensor
            Logits [b s c] (or [r s c]); a binary output z is returned as two columns [0, z].

        Raises
        ------
        ShapeError
            If the shape of `keep` does not fit.
        """
        return self.class_logits(self._masked(keep).flatten(0, 1)).unflatten(0, keep.shape[:2])

    def _masked(self, keep: Keep, read: LogitReader | None = None) -> Float[Tensor, "b s c"]:
        """The model's logits when only the kept patches enter, after `read` if given.

        Attention runs once per sequence length, everything else once on all remaining tokens. If no patch is kept, a
        head that averages patches reads the zero vector.
        """
        if keep.shape[-1] != self.layout.patches or len(keep) not in (len(self.images), self.rows):
            raise ShapeError(
                f"keep must be [{len(self.images)} s {self.layout.patches}] (images, subsets, patches), not {list(keep.shape)}"
            )
        tokens = self.tokens
        room = rows_that_fit(1, tokens.shape[-1], tokens.element_size(), tokens.device)
        return outputs_of_subsets(self.vit, tokens, self.layout, keep, room, read)

    def score(self, keep: Bool[Tensor, "b s p"]) -> Float[Tensor, "r s"]:
        """Return the score of every subset of patches; `keep` as for `logits`.

        Parameters
        ----------
        keep
            As for `logits`.

        Returns
        -------
        Tensor
            Scores [r s].
        """
        return per_row(self._masked(keep, self._reader(*keep.shape[:2])))

    def run_model(self, images: Images) -> Logits:
        """Return the model's logits for images of the same size as the probe's.

        Parameters
        ----------
        images
            Images [b 3 H W] of the model's size.

        Returns
        -------
        Tensor
            Logits [b c].
        """
        return run(self.vit, embed(self.vit, images), self.place)

    @property
    def images_that_fit(self) -> int:
        """Number of images to run at once."""
        tokens = self.tokens
        return rows_that_fit(tokens.shape[1], tokens.shape[2], tokens.element_size(), tokens.device)


def probe_of(
    model: BlackBox,
    images: Images,
    targets: Int[Tensor, "b k"] | Int[Tensor, " b"] | None = None,
    question: QuestionInput = "logit",
    hold: bool | None = None,
    *,
    differentiable: bool = False,
) -> BlackBoxProbe:
    """Return the probe for this kind of model: `Probe`, `NetworkProbe` or `BlackBoxProbe`; parameters as for `Probe`.

    With `differentiable`, the layers of the probe keep a graph to parameters and images.
    """
    if differentiable:
        from vitreous.capture.differentiable import differentiable_probe

        return differentiable_probe(model, images, targets, question, hold)
    kind = Probe if isinstance(model, ViT) else NetworkProbe if isinstance(model, Network) else BlackBoxProbe
    return kind(model, images, targets, question, hold)


# ── backward passes ──────────────────────────────────────────────────────────────────────────────


def backward(states: BlockStates, upstreams: list[Tokens], normed: bool) -> tuple[Gradients, list[Tokens]]:
    """Backpropagate from a block's output to its input, attention, first norm and biases, once per target.

    Returns the gradients of all rows, and those at the block's input, one tensor per target like `upstreams`.
    """
    tensors = {"hidden": states.hidden}
    if states.attention is not None:
        tensors["attention"] = states.attention
    if states.fused is not None:
        tensors["mixed"] = states.fused.mixed
    if normed:
        assert states.normed is not None
        tensors["normed"] = states.normed
    bias_terms = {} if states.bias_terms is None else {"biases": (states.bias_terms, bias_map)}
    columns = backpropagate([states.output] * len(upstreams), upstreams, tensors, bias_terms)
    gradients = Gradients(**interleave_columns(columns), output=interleave_targets(upstreams))
    return gradients, [column["hidden"] for column in columns]


def backpropagate(
    outputs: Sequence[Tensor],
    upstreams: Sequence[Tensor | None],
    tensors: Mapping[str, Tensor],
    bias_terms: Mapping[str, tuple[BiasTerms, BiasShare]],
) -> list[dict[str, Tensor]]:
    """Gradients of outputs times upstreams at named tensors, and named shares of biases: one dict per target."""
    inputs = [*tensors.values(), *(output for terms, _ in bias_terms.values() for output, _ in terms)]
    columns = []
    for index, (output, upstream) in enumerate(zip(outputs, upstreams, strict=True)):
        is_last = index == len(outputs) - 1
        grads = iter(torch.autograd.grad(output, inputs, upstream, allow_unused=True, retain_graph=not is_last))
        column = {name: or_zeros(next(grads), x) for name, x in tensors.items()}
        for name, (terms, share) in bias_terms.items():
            column[name] = share(terms, islice(grads, len(terms)), tensors["hidden"])
        columns.append(column)
    return columns


def interleave_columns(columns: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the tensors of every target by name, as `interleave_targets` does."""
    return {name: interleave_targets([column[name] for column in columns]) for name in columns[0]}


def bias_map(bias_terms: BiasTerms, grads: Iterable[Tensor | None], tokens: Tokens) -> Float[Tensor, "b n"]:
    """Contribution of biases to the score, at the tokens they are added to."""
    total = tokens.new_zeros(tokens.shape[:2])
    for (_, bias), grad in zip(bias_terms, grads, strict=True):  # [b n k], or [b h n e] for a norm on queries or keys
        if grad is not None:
            share = row_dot(grad, bias)
            share = share if share.ndim == 2 else share.sum(1)
            total[:, -share.shape[1] :] += share
    return total


def bias_total(bias_terms: BiasTerms, grads: Iterable[Tensor | None], tokens: Tokens) -> Float[Tensor, " b"]:
    """Contribution of biases that are added after pooling."""
    total = tokens.new_zeros(len(tokens))
    for (_, bias), grad in zip(bias_terms, grads, strict=True):
        if grad is not None:
            total = total + (at_least_float32(grad) * bias).flatten(1).sum(-1)
    return total
