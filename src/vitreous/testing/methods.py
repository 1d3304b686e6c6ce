"""Contract tests of methods: every declared property is checked on tiny ViTs with random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitreous.front import explain
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import Method
from vitreous.methods.spec import resolve
from vitreous.models.vit import ViT
from vitreous.testing.contract import TOLERANCE, Contract, ContractError, Counter, fingerprint, require, tiny_vits


def check_method(
    method: str | Method, vits: dict[str, ViT] | None = None, dtype: torch.dtype = torch.float64, **options: Any
) -> dict[str, str]:
    """Check the declared properties of a method.

    Parameters
    ----------
    method
        A method spec or a `Method`.
    vits
        Models by name; the result of `tiny_vits` by default.
    dtype
        Precision of the default models.
    **options
        Options of the method. Options in the method's `trial` are used where they are not given.

    Returns
    -------
    dict of str to str
        Name and description of every contract test that passed.

    Raises
    ------
    ContractError
        If a test fails; the message names the method, the model and the failure.

    Examples
    --------
    >>> from vitreous.testing import check_method
    >>> "same_twice" in check_method("gradcam")
    True
    """
    tested = resolve(method, **options)
    tested = tested.with_options(**{**tested.facts.trial, **tested.options})
    checked: dict[str, str] = {}
    for name, vit in (vits or tiny_vits(dtype)).items():
        checked |= MethodContract(tested, vit).check(f"{tested.spec} on {name}", vit.dtype)
    return checked


@dataclass(frozen=True)
class MethodContract(Contract):
    """A method and a model, with the images and targets of the test.

    `attribution` and `map_scores` are the result for these images and targets; each result is computed once and compared
    with others by the contract tests.
    """

    method: Method
    vit: ViT

    @cached_property
    def images(self) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        return torch.randn(3, 3, *self.vit.size, generator=draw).to(self.vit.device, self.vit.dtype)

    @property
    def targets(self) -> Tensor:
        return torch.tensor([1, 0, 1]) if self.vit.outputs == 2 else torch.tensor([1, 4, 2]) % self.vit.outputs

    @cached_property
    def counted_run(self) -> tuple[Attribution, Counter]:
        """Attribution of the images and targets, and the passes through blocks that it took."""
        counter = Counter()
        with counter.watching(self.vit) as watched:
            return self.run(vit=watched), counter

    @property
    def attribution(self) -> Attribution:
        return self.counted_run[0]

    @cached_property
    def map_scores(self) -> Tensor:
        return flat_scores(self.attribution)

    @cached_property
    def next_class_scores(self) -> Tensor:
        """Scores of the class after each target."""
        return self.scores(targets=(self.targets + 1) % self.vit.outputs)

    @cached_property
    def second_run(self) -> tuple[Tensor, tuple[Any, ...], bool]:
        """Scores of the same images and targets, computed again, the model's state before, and whether it is unchanged."""
        before = fingerprint(self.vit.module)
        scores = self.scores()
        return scores, before, fingerprint(self.vit.module) == before

    def run(self, images: Tensor | None = None, targets: Tensor | None = None, vit: ViT | None = None) -> Attribution:
        images = self.images if images is None else images
        return explain(vit or self.vit, images, self.targets if targets is None else targets, self.method)

    def scores(self, *args: Any, **kwargs: Any) -> Tensor:
        return flat_scores(self.run(*args, **kwargs))

    def tolerance(self, values: Tensor) -> float:
        """Largest difference from these values that rounding may cause."""
        relative, absolute = TOLERANCE.get(self.vit.dtype, (5e-2, 1e-3))
        return float(relative * values.abs().nan_to_num(0).max() + absolute)

    def same(self, a: Tensor, b: Tensor) -> bool:
        return bool(torch.allclose(a, b, rtol=0, atol=self.tolerance(b), equal_nan=True))

    def test_one_finite_score_per_patch(self) -> None:
        """One finite score per patch, in the model's precision and on its device."""
        attribution = self.attribution
        patches = attribution.patches
        if patches is None:
            raise ContractError("it has no score per patch")
        require(patches.shape == (3, attribution.layout.patches), f"its scores are {list(patches.shape)}")
        require(bool(patches.isfinite().all()), "some scores are not finite")
        require(patches.dtype == self.vit.dtype, f"its scores are {patches.dtype}")
        require(patches.device == self.vit.device, f"its scores are on {patches.device}")

    def test_batch_is_single(self) -> None:
        """An image gets the same map alone, in a batch, and in a batch in another order."""
        together = self.map_scores
        alone = torch.cat([self.scores(self.images[i : i + 1], self.targets[i : i + 1]) for i in range(3)])
        require(self.same(alone, together), "an image alone and in a batch get different maps")
        order = torch.tensor([2, 0, 1])
        require(self.same(self.scores(self.images[order], self.targets[order]), together[order]), "the order matters")

    def test_same_twice(self) -> None:
        """Two calls with the same arguments give the same map."""
        require(self.same(self.second_run[0], self.map_scores), "two runs give different maps")

    def test_several_targets_are_single_ones(self) -> None:
        """Several targets of an image give the maps that each would get alone."""
        pair = torch.stack([self.targets, (self.targets + 1) % self.vit.outputs], 1)
        rows = self.scores(targets=pair).unflatten(0, (3, 2))
        for column, alone in enumerate((self.map_scores, self.next_class_scores)):
            require(self.same(rows[:, column], alone), "a target alone gets another map")

    def test_sign_is_as_stated(self) -> None:
        """`signed=False`: never negative; `signed=True`: sometimes."""
        scores = self.map_scores
        if self.attribution.signed:
            require(
                bool((scores < 0).any() and (scores > 0).any()), "it is declared signed, and one sign does not occur"
            )
        else:
            require(bool((scores >= 0).all()), f"it is declared unsigned, and its least score is {scores.min():.3g}")

    def test_class_is_as_stated(self) -> None:
        """`class_specific=False`: the same map for every class; `True`: another one."""
        if self.vit.outputs == 1:
            return  # a single output has no second target to compare with
        equal = (
            torch.equal(self.next_class_scores, self.map_scores)
            if self.method.class_specific
            else self.same(self.next_class_scores, self.map_scores)
        )
        require(equal != self.method.class_specific, f"two classes get {'the same map' if equal else 'different maps'}")

    def test_parts_add_up(self) -> None:
        """Shares of tokens and biases add up to the score, if the method is declared complete."""
        attribution = self.attribution
        if attribution.residual is not None and attribution.score is not None and self.method.facts.complete:
            missing = float(attribution.residual.abs().max())
            require(missing <= self.tolerance(attribution.score), f"{missing:.2g} of the score is missing")

    def test_model_is_untouched(self) -> None:
        """Parameters, buffers, gradients, hooks and flags are bit-identical afterwards, also after an exception."""
        _, before, unchanged = self.second_run
        require(unchanged, "it changes the model")

        def broken(*_: Any) -> Tensor:
            raise RuntimeError("on purpose")

        blocks = list(self.vit.blocks)
        blocks[1] = replace(blocks[1], mlp=replace(blocks[1].mlp, contract=broken))
        try:
            self.run(vit=replace(self.vit, blocks=tuple(blocks)))
        except RuntimeError:
            require(fingerprint(self.vit.module) == before, "it leaves the model changed after an exception")
        require(torch.is_grad_enabled(), "it leaves gradients switched off")

    def test_cost_is_as_stated(self) -> None:
        """No more forward and backward passes than declared."""
        _, counter = self.counted_run
        image_count, depth = len(self.images), self.vit.depth
        for kind, stated, counted in (
            ("forwards", self.method.facts.forwards, counter.forwards),
            ("backwards", self.method.facts.backwards, counter.backwards),
        ):
            if isinstance(stated, int):
                spent = counted / (image_count * depth)
                require(spent <= stated, f"it declares {stated} {kind} and takes {spent:.2f}")


def flat_scores(attribution: Attribution) -> Tensor:
    """Return the finest scores that a method gives, a row per map."""
    return attribution.native_maps.flatten(1)
