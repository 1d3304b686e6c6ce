"""Probe of a model that is only evaluated on images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.forward import HeadOutput
from vitreous.capture.fused import at_least_float32
from vitreous.capture.layer import interleave_targets
from vitreous.capture.memory import rows_that_fit
from vitreous.capture.pixels import ImageVariants, LogitReader
from vitreous.capture.precision import half_products
from vitreous.capture.progress import run_in_pieces
from vitreous.capture.score_function import (
    QuestionInput,
    per_row,
    resolve_score_function,
    two_class_logits,
)
from vitreous.capture.unseen_operations import describe_runtime_error
from vitreous.core.errors import ModelError, NoGradientError, ShapeError, SpecError
from vitreous.models.model import BlackBox
from vitreous.models.tensor_types import Images, Logits, Tokens

AnyProbe = TypeVar("AnyProbe", bound="BlackBoxProbe")


@dataclass(slots=True, eq=False)
class ForwardCache:
    """Cached forward results of a batch, shared by probes with other targets or score functions."""

    states: list[Tokens] | None = None
    head_output: HeadOutput | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BiasShares:
    """Shares of the head's biases in the score: at the tokens that they are added to, and after pooling."""

    head: Float[Tensor, "r n"]
    pooled: Float[Tensor, " r"]


class BlackBoxProbe:
    """A model applied to a batch of images, with targets and a score function; the model is only evaluated on images.

    `pixel_logits` and `pixel_score` evaluate the model on other images. The model is not modified.

    Axis names: b images, k targets per image, r = b·k rows (image by image, then target by target), s variants per
    image, c classes.

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
        Used by subclasses that compute gradients.
    """

    black_box = True  # False in subclasses that see states and gradients
    accounts_biases = True  # False in a subclass whose layers have no shares of biases

    def __init__(
        self,
        model: BlackBox,
        images: Images,
        targets: Int[Tensor, "b k"] | Int[Tensor, " b"] | None = None,
        question: QuestionInput = "logit",
        hold: bool | None = None,
    ) -> None:
        self.model, self.hold, self.question = model, hold, resolve_score_function(question)
        self.originals = images.detach()  # in the given precision: they seed the random numbers of methods
        self.images = self.originals.to(model.device, model.dtype)
        self.layout = model.layout((images.shape[-2], images.shape[-1]))
        self._chosen_targets = None if targets is None else targets.to(model.device).reshape(len(images), -1)
        self._cache = ForwardCache()
        self.bias_shares: BiasShares | None = None
        self.half_products = half_products()  # whether forward results are those of bfloat16 products

    def with_images(self: AnyProbe, images: Images) -> AnyProbe:
        """Return a probe with the same targets and score function for other images.

        Parameters
        ----------
        images
            As many images as this probe has.

        Raises
        ------
        ShapeError
            If the number of images differs.
        """
        if len(images) != len(self.images):
            raise ShapeError(f"the probe asks about {len(self.images)} images, not {len(images)}; make a new Probe")
        return type(self)(self.model, images, self.target_table, self.question, self.hold)

    def with_score_function(self: AnyProbe, question: QuestionInput) -> AnyProbe:
        """Return a probe with another score function (`question`); forward results are shared in both directions."""
        other = type(self)(self.model, self.originals, self._chosen_targets, question, self.hold)
        other._cache = self._cache
        return other

    def with_one_target(self: AnyProbe) -> AnyProbe:
        """Return a probe with a single target per image, for class-agnostic methods; forward results are shared."""
        other = type(self)(self.model, self.originals, None, self.question, self.hold)
        other._cache = self._cache
        return other

    def for_image(self: AnyProbe, image: int, replacement: Float[Tensor, "colours H W"] | None = None) -> AnyProbe:
        """Return a probe for one image of the batch.

        Parameters
        ----------
        image
            Index in the batch; its targets are kept.
        replacement
            Another image to use instead. If None, the cached forward results of the image are reused.
        """
        entry = slice(image, image + 1)
        pixels = self.originals[entry] if replacement is None else replacement[None]
        targets = self.target_table[entry]
        other = type(self)(self.model, pixels, targets, self.question, self.hold)
        if replacement is None:
            states, head_output = self._cache.states, self._cache.head_output
            other._cache = ForwardCache(
                None if states is None else [state[entry] for state in states],
                None if head_output is None else HeadOutput(head_output.logits[entry], head_output.readout[entry]),
            )
        return other

    @property
    def vit(self) -> Any:
        """The model."""
        return self.model

    # ── logits and scores ────────────────────────────────────────────────────────────────────────

    @property
    def head_output(self) -> HeadOutput:
        """Output of the model for the unmodified images, without graph."""
        if self._cache.head_output is None:
            with torch.no_grad():
                logits = self.run_model(self.images)
            refuse_other_rows(self.model, logits, len(self.images))
            self._cache.head_output = HeadOutput(logits, logits.new_zeros(len(logits), 0))
        return self._cache.head_output

    @property
    def full_logits(self) -> Float[Tensor, "b c"]:
        """Logits of the unmodified images; a binary output z is returned as two columns [0, z]."""
        return self.class_logits(self.head_output.logits)

    def class_logits(self, logits: Float[Tensor, "b c"]) -> Float[Tensor, "b c2"]:
        """Convert the model's logits to one column per class: a binary output z becomes [0, z]."""
        return two_class_logits(logits) if self.model.binary else logits

    @cached_property
    def targets(self) -> Int[Tensor, " r"]:
        """Target class of every row; the predicted class if none was given."""
        if self._chosen_targets is None:
            return self.full_logits.argmax(-1)
        return self._chosen_targets.flatten()

    @property
    def target_table(self) -> Int[Tensor, "b k"]:
        """Target classes, one row per image."""
        return self.targets.view(len(self.images), -1)

    @property
    def targets_per_image(self) -> int:
        return 1 if self._chosen_targets is None else self._chosen_targets.shape[1]

    @property
    def rows(self) -> int:
        """Number of rows: images times targets per image."""
        return len(self.images) * self.targets_per_image

    def compute_scores(self, logits: Float[Tensor, "r c"], targets: Int[Tensor, " r"]) -> Float[Tensor, " r"]:
        """Apply the score function to the model's logits.

        For a binary output z, the two classes have logits [0, z]; score functions that read only the target's logit get
        z for class 1 and −z for class 0.

        Parameters
        ----------
        logits
            As the model returns them: a single column for a binary output.
        targets
            Target class of every row.

        Returns
        -------
        Tensor
            One score per row.

        Raises
        ------
        SpecError
            If the score function compares classes and the model has a single regression output.
        """
        logits = at_least_float32(logits)  # a softmax of half-precision logits would have eight bits
        if self.model.binary:
            sides = two_class_logits(logits)
            return self.question(sides - sides.flip(-1) if self.question.own else sides, targets)
        if self.question.compares and logits.shape[-1] == 1:
            raise SpecError(
                f"question {self.question.name!r} compares classes, and {self.model.name!r} answers with one number; 'logit' asks "
                "for its value, and wrap(model, outputs='binary') says that it is the logit of a binary classifier"
            )
        return self.question(logits, targets)

    def target_scores(self, logits: Logits) -> list[Float[Tensor, " b"]]:
        """Apply the score function for every target of each image: one tensor per target."""
        return [self.compute_scores(logits, targets) for targets in self.target_table.unbind(1)]

    def _reader(self, rows: int, variants: int) -> LogitReader:
        """Return a function from logits [m c] to scores [m k], for inputs that are `variants` of every image (or row).

        Applied to each piece, so that the logits of thousands of subsets are never held at once.
        """

        def read(logits: Logits, index: Int[Tensor, " m"]) -> Float[Tensor, "m k"]:
            row_targets = self.targets.view(rows, -1)[index // variants]
            return self.compute_scores(logits.repeat_interleave(row_targets.shape[1], 0), row_targets.flatten()).view(
                row_targets.shape
            )

        return read

    def compute_variant_scores(self, logits: Float[Tensor, "b s c"]) -> Float[Tensor, "r s"]:
        """Apply the score function to logits of `s` variants of every image (or row).

        Half-precision logits are converted to float32 first.
        """
        flat, read = logits.flatten(0, 1), self._reader(len(logits), logits.shape[1])
        with torch.no_grad():
            return per_row(read(flat, torch.arange(len(flat), device=flat.device)).unflatten(0, logits.shape[:2]))

    # ── logits and scores of other images ────────────────────────────────────────────────────────

    def pixel_logits(self, variants: ImageVariants | Float[Tensor, "b s colours H W"]) -> Float[Tensor, "b s c"]:
        """Return the logits of other images, computed in pieces that fit into memory.

        Parameters
        ----------
        variants
            `s` images for each image (or each row) of the probe: a tensor, or `ImageVariants` that are made on demand.

        Returns
        -------
        Tensor
            Logits [b s c] (or [r s c]); a binary output z is returned as two columns [0, z].

        Raises
        ------
        ShapeError
            If `variants` are neither for every image nor for every row.
        """
        logits = self._pixel_outputs(variants)
        return self.class_logits(logits.flatten(0, 1)).unflatten(0, logits.shape[:2])

    def pixel_score(self, variants: ImageVariants | Float[Tensor, "b s colours H W"]) -> Float[Tensor, "r s"]:
        """Return the score of every image in `variants`, which are given as for `pixel_logits`."""
        return per_row(self._pixel_outputs(variants, self._reader))

    @torch.no_grad()
    def _pixel_outputs(
        self,
        variants: ImageVariants | Float[Tensor, "b s colours H W"],
        reader: Callable[[int, int], LogitReader] | None = None,
    ) -> Float[Tensor, "b s c"]:
        """Logits of all images, in pieces that fit into memory; `reader` makes the function that reduces each piece."""
        variants = variants if isinstance(variants, ImageVariants) else ImageVariants.of(variants.to(self.images))
        rows, subsets = variants.rows, variants.subsets
        if rows not in (len(self.images), self.rows):
            raise ShapeError(f"images are asked about for {len(self.images)} images, not for {rows}")
        order = torch.arange(rows * subsets, device=self.images.device)

        def run_piece(piece: slice) -> Logits:
            return self.run_model(variants.make(order[piece] // subsets, order[piece] % subsets))

        read = None if reader is None else reader(rows, subsets)
        return run_in_pieces(run_piece, order, self.images_that_fit, read).unflatten(0, (rows, subsets))

    def run_model(self, images: Images) -> Logits:
        """Return the model's logits for images of the same size as the probe's."""
        return self.model.forward(images)

    def pixel_gradient(self) -> Float[Tensor, "r c H W"]:
        """Gradient of the score in the pixels, through the model's forward function."""
        return self._gradient_through(self.run_model)

    def _gradient_through(self, logits_of: Callable[[Images], Logits]) -> Float[Tensor, "r c H W"]:
        """Gradient of the score in the pixels, through a function from images to logits."""
        images = self.images.detach().requires_grad_()
        with torch.enable_grad():
            try:
                logits = logits_of(images)
            except RuntimeError as problem:
                if isinstance(problem, NotImplementedError):  # an operation without a backward pass on this device
                    raise self._without_gradient(f" ({describe_runtime_error(problem)})") from problem
                if "requires grad" not in str(problem):  # that of tensors to arrays
                    raise
                raise self._without_gradient() from None
            scores = [score.sum() for score in self.target_scores(logits)]
        if not all(score.requires_grad for score in scores):
            raise self._without_gradient()
        try:
            gradients = [
                torch.autograd.grad(s, images, retain_graph=s is not scores[-1], allow_unused=True)[0] for s in scores
            ]
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # such as an operation without a backward pass
            raise self._without_gradient(f" ({describe_runtime_error(problem, scores)})") from problem
        if any(gradient is None for gradient in gradients):
            raise self._without_gradient()
        return interleave_targets(gradients)

    def _without_gradient(self, reason: str = "") -> NoGradientError:
        return NoGradientError(f"{self.model.name!r} passes no gradient on to its images{reason}")

    # ── what only other kinds of models have ─────────────────────────────────────────────────────

    def _refuse(self, part: str) -> NoReturn:
        raise ModelError(f"{self.model.name!r} is treated as a black box: it has no {part}")

    @property
    def tokens(self) -> Any:
        self._refuse("tokens")

    @property
    def states(self) -> Any:
        self._refuse("states")

    def layers(self, *_: Any, **__: Any) -> Any:
        self._refuse("layers")

    def logits(self, keep: Any) -> Any:
        self._refuse("patches that could leave")

    def score(self, keep: Any) -> Any:
        self._refuse("patches that could leave")

    @property
    def images_that_fit(self) -> int:
        """Number of images to run at once."""
        height, width = self.images.shape[-2:]
        return rows_that_fit(height * width, 3, self.images.element_size(), self.images.device)


def refuse_other_rows(model: BlackBox, logits: Logits, images: int) -> None:
    if len(logits) != images:
        subject = f"score {model.classes[0]!r}" if model.scalar and model.classes else repr(model.name)
        raise ShapeError(f"{subject} must give one number per image [{images}], not {len(logits)}")


def as_constant(images: Images) -> Images:
    """Detach the images from the caller's graph."""
    return images.detach()
