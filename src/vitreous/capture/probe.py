"""A batch of images in front of a model, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.embedding import embed
from vitreous.capture.forward import Reading, Step, run, run_block, run_head
from vitreous.capture.layer import Layer, backward, presence_grad, weave
from vitreous.capture.linearise import PLAIN, Linearisation
from vitreous.capture.memory import free_bytes, rows_that_fit, weighing
from vitreous.capture.packed import said_among
from vitreous.capture.pixels import Pictures, Read, said_of
from vitreous.capture.question import Question, ask
from vitreous.capture.top import Top, top_of
from vitreous.core.errors import ShapeError, SpecError
from vitreous.models.shapes import Images, Keep, Logits, Tokens
from vitreous.models.vit import Place, ViT


@dataclass(frozen=True, slots=True)
class Walk:
    """How blocks are run, and what is read on the way back."""

    lin: Linearisation
    attention: bool
    gradients: bool
    biases: bool
    normed: bool
    presence: bool


@dataclass(slots=True, eq=False)
class Seen:
    """What has been computed of a batch of images, whatever is asked of them."""

    states: list[Tokens] | None = None
    reading: Reading | None = None


class Probe:
    """Answers two questions exactly: what does each layer hold (`layers`), and what does the model say
    when only these patches enter (`logits`, `score`)? The model is read, never changed."""

    black_box = False  # nothing is known of the model but its answers

    def __init__(
        self,
        vit: ViT,
        images: Images,
        targets: Int[Tensor, "b k"] | Int[Tensor, " b"] | None = None,
        question: str | Question | Any = "logit",
        hold: bool | None = None,
    ) -> None:
        """`targets` None explains the arg-max class. `hold` keeps the whole graph (True), recomputes it block
        by block (False), or keeps it while it fits (None); the numbers are the same."""
        self.vit, self.hold, self.question = vit, hold, ask(question)
        self.originals = images.detach()  # in their own precision: what random draws are seeded with
        self.images = self.originals.to(vit.device, vit.dtype)
        self.layout = vit.layout((images.shape[-2], images.shape[-1]))
        self.place = Place(self.layout)
        self._given = None if targets is None else targets.to(vit.device).reshape(len(images), -1)
        self._seen = Seen()
        self.bias_shares: dict[str, Tensor] = {}

    def on(self, images: Images) -> Probe:
        """The same questions, asked of other images, as many as these."""
        if len(images) != len(self.images):
            raise ShapeError(f"the probe asks about {len(self.images)} pictures, not {len(images)}; make a new Probe")
        return type(self)(self.vit, images, self.targets.view(len(self.images), -1), self.question, self.hold)

    def asking(self, question: str | Question | Any) -> Probe:
        """Another question of the same images; what was computed, and will be, is shared."""
        other = type(self)(self.vit, self.originals, self._given, question, self.hold)
        other._seen = self._seen
        return other

    def once(self) -> Probe:
        """The same images with one target each, for what does not depend on it; what is computed is shared."""
        other = type(self)(self.vit, self.originals, None, self.question, self.hold)
        other._seen = self._seen
        return other

    def alone(self, image: int, picture: Float[Tensor, "3 H W"] | None = None) -> Probe:
        """One image of the batch by itself, or another picture in its place; what was computed of it is shared."""
        one = slice(image, image + 1)
        pixels = self.originals[one] if picture is None else picture[None]
        targets = self.targets.view(len(self.images), -1)[one]
        other = type(self)(self.vit, pixels, targets, self.question, self.hold)
        if picture is None:
            states, reading = self._seen.states, self._seen.reading
            other._seen = Seen(
                None if states is None else [state[one] for state in states],
                None if reading is None else Reading(reading.logits[one], reading.readout[one]),
            )
        return other

    # ── what the model says ──────────────────────────────────────────────────────────────────────

    @cached_property
    def tokens(self) -> Tokens:
        """What enters the first block."""
        with torch.no_grad():
            return self.vit.embed(self.images)

    @property
    def states(self) -> list[Tokens]:
        """Input of every block, then the encoder's output: depth + 1 tensors, no graph."""
        if self._seen.states is None:
            self._seen.states = self._carried([self.tokens], self.vit.depth)
        return self._seen.states

    @torch.no_grad()
    def _carried(self, states: list[Tokens], depth: int) -> list[Tokens]:
        """The states up to the input of block `depth`, from those at hand on."""
        while len(states) <= depth:
            states.append(run_block(self.vit.blocks[len(states) - 1], states[-1], self.place).output)
        return states

    @property
    def reading(self) -> Reading:
        if self._seen.reading is None:
            with torch.no_grad():
                self._seen.reading = run_head(self.vit, self.states[-1])
        return self._seen.reading

    @property
    def full_logits(self) -> Float[Tensor, "b c"]:
        """Logits of the whole pictures; a binary output z is seen as the two classes [0, z]."""
        return self.sides(self.reading.logits)

    def sides(self, logits: Float[Tensor, "b c"]) -> Float[Tensor, "b c2"]:
        """The model's own logits, one column per target: a binary output z as [0, z]."""
        return two_sided(logits) if self.vit.binary else logits

    @cached_property
    def targets(self) -> Int[Tensor, " r"]:
        """The class asked about in every row."""
        if self._given is None:
            return self.full_logits.argmax(-1)
        return self._given.flatten()

    @property
    def targets_per_image(self) -> int:
        return 1 if self._given is None else self._given.shape[1]

    @property
    def rows(self) -> int:
        return len(self.images) * self.targets_per_image

    def answer(self, logits: Float[Tensor, "r c"], targets: Int[Tensor, " r"]) -> Float[Tensor, " r"]:
        """The question, put to the model's own logits. Of a binary output a class's own logit is z or −z."""
        if self.vit.binary:
            sides = two_sided(logits)
            return self.question(sides - sides.flip(-1) if self.question.own else sides, targets)
        if self.question.compares and logits.shape[-1] == 1:
            raise SpecError(
                f"question {self.question.name!r} compares classes, and {self.vit.name!r} answers with one number; 'logit' asks "
                "for its value, and wrap(model, outputs='binary') says that it is the logit of a binary classifier"
            )
        return self.question(logits, targets)

    # ── layers ───────────────────────────────────────────────────────────────────────────────────

    def layers(
        self,
        lin: Linearisation = PLAIN,
        attention: bool = True,
        *,
        gradients: bool = True,
        biases: bool = False,
        normed: bool = False,
        presence: bool = False,
        down_to: int = 0,
    ) -> Iterator[Layer]:
        """Blocks from the last to `down_to`, each with what the score says of it.

        One forward and one backward per target. A block's graph ends at its input, so the backward pass runs
        only as far as the consumer pulls, and what was seen can be freed at once.
        """
        walk = Walk(lin, attention, gradients, biases, normed, presence)
        steps = self._forward(walk, down_to)
        top = self._top(walk) if gradients else None
        readout = self.reading.readout.repeat_interleave(self.targets_per_image, 0)
        upstream = top.grads if top is not None else []
        for index in reversed(range(down_to, self.vit.depth)):
            step = steps.pop() if steps else self._run(index, self.states[index], walk)
            common = (index, self.vit.depth, self.layout, self.place, self.vit.blocks[index], step)
            if not gradients:
                yield Layer(*common, self.targets_per_image, readout)
                continue
            found = [backward(step, g, normed, keep=g is not upstream[-1]) for g in upstream]
            grads = {key: weave([part[key] for part in found]) for key in found[0]}
            if biases and "biases" not in grads:  # a block that adds none
                grads["biases"] = torch.zeros_like(grads["hidden"][..., 0])
            if presence and step.attention is not None:
                matrix = step.attention.detach().repeat_interleave(len(found), 0)
                grads["presence"] = presence_grad(matrix, grads["attention"])
                if top is not None and top.presence is not None and index == self.vit.depth - 1:
                    grads["presence"] = grads["presence"] + top.presence
            yield Layer(*common, self.targets_per_image, readout, {**grads, "output": weave(upstream)})
            upstream = [part["hidden"] for part in found]

    def _top(self, walk: Walk) -> Top:
        top = top_of(self.vit, self.states[-1], self._scores, walk.lin, walk.biases, walk.presence)
        if walk.biases:
            self.bias_shares = {"head": top.biases, "pooled": top.pooled_biases}
        return top

    def _scores(self, reading: Reading) -> list[Float[Tensor, " b"]]:
        """What is explained, with its graph; whose arg-max that is needs no forward of its own."""
        if self._seen.reading is None:
            self._seen.reading = Reading(reading.logits.detach(), reading.readout)
        return [self.answer(reading.logits, one) for one in self.targets.view(len(self.images), -1).unbind(1)]

    def _forward(self, walk: Walk, down_to: int) -> list[Step]:
        """Run the encoder, keeping every step from `down_to` on; keep none when they would not fit."""
        if self.hold is False:
            _ = self.states
            return []
        known = self._seen.states
        states = self._carried([self.tokens], down_to) if known is None else known[: down_to + 1]
        steps: list[Step] = []
        for index in range(down_to, self.vit.depth):
            with weighing(walk.gradients and not steps and self.hold is None) as kept:
                steps.append(self._run(index, states[-1], walk))
            if index == down_to and self.hold is None and not self._fits(kept(), steps[0], self.vit.depth - down_to):
                steps.clear()  # before the rest is run: they did not fit
                self._seen.states = known or self._carried(states, self.vit.depth)
                return []
            states.append(steps[-1].output.detach())
        if known is None:
            self._seen.states = states
        return steps

    def _fits(self, kept: int, step: Step, blocks: int) -> bool:
        matrix = 0 if step.attention is None else step.attention.nbytes
        return (max(kept, matrix) + step.output.nbytes) * blocks + matrix * 2 < free_bytes(self.images.device) / 2

    def _run(self, index: int, x: Tokens, walk: Walk) -> Step:
        with torch.set_grad_enabled(walk.gradients):
            leaf = x.detach().requires_grad_(walk.gradients)
            step = run_block(self.vit.blocks[index], leaf, self.place, walk.lin, walk.attention, walk.biases)
        needless = walk.gradients and not walk.normed  # weights are frozen: no backward reads it
        return replace(step, normed=None) if needless else step

    def biases(self, lin: Linearisation = PLAIN) -> Iterator[Float[Tensor, "r n"]]:
        """Share of every bias at the token it is added to: the head's, then block by block from the last to the first."""
        layers = self.layers(lin, attention=False, biases=True)
        first = next(layers)
        yield self.bias_shares["head"]
        yield first.biases
        yield from (layer.biases for layer in layers)

    def embedded(self) -> tuple[Images, Tokens]:
        """The pixels, and the tokens made of them with their graph; what is embedded here is not embedded again."""
        images = self.images.detach().requires_grad_()
        with torch.enable_grad():
            tokens = embed(self.vit, images)
        self.__dict__.setdefault("tokens", tokens.detach())
        return images, tokens

    def pixel_grad(
        self, hidden_grad: Float[Tensor, "r n d"], embedded: tuple[Images, Tokens] | None = None
    ) -> Float[Tensor, "r 3 H W"]:
        """The gradient at the first block's input, carried on to the pixels."""
        images, tokens = embedded or self.embedded()
        columns = hidden_grad.view(len(images), -1, *hidden_grad.shape[1:]).unbind(1)
        last = len(columns) - 1
        return weave([torch.autograd.grad(tokens, images, g, retain_graph=i < last)[0] for i, g in enumerate(columns)])

    # ── what the model says when only these patches enter ────────────────────────────────────────

    def logits(self, keep: Keep) -> Float[Tensor, "b s c"]:
        """Logits when only the kept patches enter the encoder (a binary output z is seen as [0, z])."""
        return self.sides(self._masked(keep).flatten(0, 1)).unflatten(0, keep.shape[:2])

    def _masked(self, keep: Keep, read: Read | None = None) -> Float[Tensor, "b s c"]:
        """The model's own logits when only the kept patches enter, or what `read` makes of them; the others truly leave,
        positions stay.

        Less work is less work: attention runs length by length, all else on the tokens that are there. With no patch
        kept, a head that reads the mean of patches reads the zero vector.
        """
        if keep.shape[-1] != self.layout.patches or len(keep) not in (len(self.images), self.rows):
            raise ShapeError(
                f"keep must be [{len(self.images)} s {self.layout.patches}] (pictures, subsets, patches), not {list(keep.shape)}"
            )
        tokens = self.tokens
        room = rows_that_fit(1, tokens.shape[-1], tokens.element_size(), tokens.device)
        return said_among(self.vit, tokens, self.layout, keep, room, read)

    def score(self, keep: Bool[Tensor, "b s p"]) -> Float[Tensor, "r s"]:
        """The question's answer for every subset, per row."""
        return per_row(self._masked(keep, self._reader(len(keep))))

    def _reader(self, rows: int) -> Read:
        """Logits made answers as they come, so that those of thousands of subsets are never held: [m c] of `rows` → [m k]."""

        def read(logits: Logits, row: Int[Tensor, " m"]) -> Float[Tensor, "m k"]:
            asked = self.targets.view(rows, -1)[row]
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).repeat_interleave(asked.shape[1], 0)
            return self.answer(wide, asked.flatten()).view(asked.shape)

        return read

    def answers(self, logits: Float[Tensor, "b s c"]) -> Float[Tensor, "r s"]:
        """The question, put to logits of `s` variants of every image (or row); of a half-precision model, in float32."""
        row = torch.arange(len(logits), device=logits.device).repeat_interleave(logits.shape[1])
        with torch.no_grad():
            return per_row(self._reader(len(logits))(logits.flatten(0, 1), row).unflatten(0, logits.shape[:2]))

    # ── what the model says of other pixels ──────────────────────────────────────────────────────

    def pixel_logits(self, pictures: Pictures | Float[Tensor, "b s 3 H W"]) -> Float[Tensor, "b s c"]:
        """Logits of other pictures, `s` of them for each image (or each row), made and run in pieces that fit."""
        said = self._said(pictures)
        return self.sides(said.flatten(0, 1)).unflatten(0, said.shape[:2])

    def pixel_score(self, pictures: Pictures | Float[Tensor, "b s 3 H W"]) -> Float[Tensor, "r s"]:
        """The question's answer for every such picture, per row."""
        return per_row(self._said(pictures, self._reader))

    def _said(
        self, pictures: Pictures | Float[Tensor, "b s 3 H W"], reader: Callable[[int], Read] | None = None
    ) -> Float[Tensor, "b s c"]:
        pictures = pictures if isinstance(pictures, Pictures) else Pictures.of(pictures.to(self.images))
        if pictures.rows not in (len(self.images), self.rows):
            raise ShapeError(f"pictures are asked about for {len(self.images)} images, not for {pictures.rows}")
        read = None if reader is None else reader(pictures.rows)
        return said_of(pictures, self.say, self.pictures_that_fit, self.images.device, read)

    def say(self, images: Images) -> Logits:
        """The model's own logits of pictures of this size."""
        return run(self.vit, embed(self.vit, images), self.place)

    @property
    def pictures_that_fit(self) -> int:
        tokens = self.tokens
        return rows_that_fit(tokens.shape[1], tokens.shape[2], tokens.element_size(), tokens.device)


def as_constant(images: Images) -> Images:
    """The same images without the graph that made them."""
    return images.detach()


def per_row(answers: Float[Tensor, "b s k"]) -> Float[Tensor, "r s"]:
    """Answers about k targets of every variant → rows image by image, target by target."""
    return answers.transpose(1, 2).flatten(0, 1)


def two_sided(logits: Float[Tensor, "b 1"]) -> Float[Tensor, "b 2"]:
    return torch.cat([torch.zeros_like(logits), logits], -1)
