"""Contract tests of metrics: scores of correct, wrong and constant maps.

The model is a sum over patches, so the correct map is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.metrics.metric_result import MetricResult
from vitreous.testing.contract import Contract, fingerprint, require
from vitreous.testing.synthetic_models import GRID, SyntheticBatch, make_additive_batch, make_reexplained_batch

NEAR = {torch.float64: 1e-6, torch.float32: 1e-4}
DRAWS = 6


def check_metric(metric: str | Metric, dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, str]:
    """Check the declared properties of a metric.

    A metric that needs a `method` to explain again is tested on a tiny ViT, all others on an additive model whose
    correct map is known.

    Parameters
    ----------
    metric
        A metric spec or a `Metric`.
    dtype
        Precision of the model.
    **options
        Options of the metric. Options in the metric's `trial` are used where they are not given.

    Returns
    -------
    dict of str to str
        Name and description of every contract test that passed.

    Raises
    ------
    ContractError
        If a test fails; the message names the metric and the failure.

    Examples
    --------
    >>> from vitreous.testing import check_metric
    >>> "same_twice" in check_metric("sparseness")
    True
    """
    tested = resolve_metric(metric, **options)
    tested = tested.with_options(**{**tested.trial, **tested.options})
    if "method" in tested.needs:
        return MetricContract(tested, make_reexplained_batch(dtype)).check(tested.spec, dtype)
    return MapMetricContract(tested, make_additive_batch(dtype)).check(tested.spec, dtype)


@dataclass(frozen=True)
class MetricContract(Contract):
    """A metric and the synthetic data to test it on.

    `result` and `row_scores` are the result for these data; it is computed once and compared with others by the contract
    tests.
    """

    metric: Metric
    batch: SyntheticBatch

    @cached_property
    def result(self) -> MetricResult:
        return self.batch.measured(self.metric)

    @cached_property
    def row_scores(self) -> Tensor:
        return self.result.scores.double().cpu()

    @property
    def better(self) -> bool | None:
        """Direction stated by the result, which is reversed for complements."""
        return self.result.higher_is_better

    def scores(self, batch: SyntheticBatch) -> Tensor:
        return batch.measured(self.metric).scores.double().cpu()

    def goodness(self, batch: SyntheticBatch) -> Tensor:
        """Scores of the maps, negated if lower is better."""
        scores = self.scores(batch)
        return scores if self.better else -scores

    @property
    def right(self) -> Tensor:
        """The correct contributions of the patches."""
        assert self.batch.maps.patches is not None
        return 2 * self.batch.maps.patches

    @property
    def near(self) -> float:
        return NEAR.get(self.batch.vit.dtype, 1e-2)

    def same(self, a: Tensor, b: Tensor) -> bool:
        return bool(torch.allclose(a, b, rtol=self.near, atol=self.near, equal_nan=True))

    def test_one_number_per_row(self) -> None:
        """One number per row, within its bounds, and the protocol as plain values."""
        result = self.result
        require(result.scores.shape == (len(self.batch),), f"its scores are {list(result.scores.shape)}")
        require(result.scores.is_floating_point(), f"its scores are {result.scores.dtype}")
        require(not result.scores.isnan().all(), "it has no number for any map")
        self.require_within_bounds(result.scores)
        for name, part in result.parts.items():
            require(part.shape == result.scores.shape, f"its part {name!r} is {list(part.shape)}")
        plain = (str, int, float, bool, list, tuple, dict, type(None))
        require(all(isinstance(value, plain) for value in result.protocol.values()), "its protocol is not plain values")

    def require_within_bounds(self, scores: Tensor) -> None:
        shown = self.metric.settings.get("show", "fraction") == "fraction"
        low, high = self.metric.bounds if self.metric.bounds and shown else (-math.inf, math.inf)
        finite = scores[~scores.isnan()].double()
        require(
            bool((finite >= low - self.near).all() and (finite <= high + self.near).all()),
            f"it promises [{low:g}, {high:g}] and gives {finite.min():.4g} to {finite.max():.4g}"
            if len(finite)
            else "",
        )

    def test_nothing_is_changed(self) -> None:
        """Model, maps and gradient mode are the same afterwards."""
        module, maps = self.batch.vit.module, self.batch.maps.maps().clone()
        before = fingerprint(module)
        self.scores(self.batch)
        require(fingerprint(module) == before, "it changes the model")
        require(torch.equal(maps, self.batch.maps.maps()), "it changes the map")
        require(torch.is_grad_enabled(), "it leaves gradients switched off")

    def test_same_twice(self) -> None:
        """The same maps get the same scores."""
        require(self.same(self.scores(self.batch), self.row_scores), "two runs give different scores")

    def test_curve_is_as_stated(self) -> None:
        """Levels and values of the curve are those that `axes` state."""
        axes, result = self.metric.axes, self.result
        if axes is None:
            return
        curve, levels = result.curve, result.levels
        require(curve is not None and levels is not None, "it states the axes of a curve and has none")
        assert curve is not None
        require(all(0 <= level <= 1 for level in levels or ()), "the levels of its curve are no shares")
        low, high = {"other": (-math.inf, math.inf), "drop": (-1, 1)}.get(axes.values, (0, 1))
        beyond = (curve < low - self.near) | (curve > high + self.near)
        require(not beyond.any(), f"its curve holds values that are no {axes.values}")

    def test_batch_is_single(self) -> None:
        """A row scores the same alone, in a batch, and in a batch in another order."""
        together, rows = self.row_scores, list(range(len(self.batch)))
        alone = torch.cat([self.scores(self.batch.select([row])) for row in rows])
        require(self.same(alone, together), "a row alone and in a batch score differently")
        require(
            self.same(self.scores(self.batch.select(rows[::-1])), together.flip(0)), "the order of the rows matters"
        )

    def test_pieces_do_not_matter(self) -> None:
        """The scores do not depend on the number of subsets that are computed at once."""
        whole = self.row_scores
        with patch("vitreous.capture.probe.rows_that_fit", lambda tokens, *_: max(1, 40 // tokens)):
            require(self.same(self.scores(self.batch), whole), "the size of the pieces it works in changes its scores")

    def test_unknown_stays_unknown(self) -> None:
        """A map that contains NaN scores NaN, and the scores of other rows do not change."""
        maps, parts = self.batch.maps, {}
        for name in ("patches", "native_pixels", "residual"):
            if (values := getattr(maps, name)) is not None:
                parts[name] = values.clone()
                parts[name].view(len(values), -1)[0, 0] = torch.nan
        scores = self.scores(replace(self.batch, maps=replace(maps, **parts)))
        require(bool(scores[0].isnan()), f"a map with a NaN in it scores {scores[0]:.4g}")
        require(self.same(scores[1:], self.row_scores[1:]), "a map with a NaN in it changes the scores of other rows")

    def test_missing_is_nan(self) -> None:
        """An image without an object, rival or box that the metric needs scores NaN, and the scores of others do not change."""
        taken = [name for name in ("objects", "rivals", "boxes") if name in self.metric.takes]
        optional = [name for name in taken if name not in self.metric.needs]  # any one of them is sufficient
        for names in [[name] for name in taken if name in self.metric.needs] + ([optional] if optional else []):
            batch = self.batch
            for name in names:
                batch = batch.without(name, 1)
            scores, lacking = self.scores(batch), " and ".join(names)
            require(bool(scores[1].isnan()), f"an image without {lacking} scores {scores[1]:.4g}")
            others = torch.arange(len(scores)) != 1
            unchanged = self.same(scores[others], self.row_scores[others])
            require(unchanged, f"an image without {lacking} changes the scores of others")


class MapMetricContract(MetricContract):
    """Contract tests of metrics that do not explain again."""

    def test_right_is_best(self) -> None:
        """The correct map scores better than its opposite, and its shuffles score between the two."""
        if self.better is None:
            return
        right, wrong = (self.goodness(self.batch.with_map(shares)) for shares in (self.right, -self.right))
        draw = torch.Generator().manual_seed(0)
        for _ in range(DRAWS):
            order = torch.rand(self.right.shape, generator=draw).argsort(-1)
            shuffled = self.goodness(self.batch.with_map(self.right.gather(1, order)))
            require_no(shuffled > right + self.near, "a shuffled map scores better than the right one", shuffled, right)
            require_no(shuffled < wrong - self.near, "a shuffled map scores worse than the wrong one", shuffled, wrong)
        require_no(right <= wrong, "the wrong map scores as well as the right one", wrong, right)

    def test_ties_do_not_win(self) -> None:
        """A constant map scores no better than the correct one, and not as well because of the order of its patches."""
        for value in (0.0, 1.0):
            constant = self.batch.with_map(torch.full_like(self.right, value))
            self.require_within_bounds(self.scores(constant))
            if self.better is None:
                continue
            even, right = self.goodness(constant), self.goodness(self.batch.with_map(self.right))
            require_no(even > right + self.near, "a constant map beats the right one", even, right)
            for row in (0, 1):  # the object is in the first patches of row 0 and in the last of row 1
                mean = self.goodness(constant.varied(row)).mean()
                require(
                    not mean >= right[row] - self.near,
                    f"a constant map scores as well as the right one ({abs(mean):.4g}) with the evidence {('first', 'last')[row]}",
                )

    def test_scale_is_as_stated(self) -> None:
        """`affine_invariant=True`: a·map + b has the same score as the map."""
        if not self.metric.affine_invariant:
            return
        draw = torch.rand(self.right.shape, generator=torch.Generator().manual_seed(1)).to(self.right)
        for shares in (self.right, draw):
            plain = self.scores(self.batch.with_map(shares))
            for factor, shift in ((4.0, 1.0), (0.125, -2.0)):
                moved = self.scores(self.batch.with_map(factor * shares + shift))
                require(
                    self.same(moved, plain),
                    f"{factor:g}·map + {shift:g} scores differently: {format_worst_pair(moved, plain)}",
                )

    def test_rows_of_patches_too(self) -> None:
        """A map of patches is measured as well as a map of pixels, and the correct one scores better than its opposite."""
        if self.better is None:
            return
        pixel_batches = (self.batch.with_map(shares) for shares in (self.right, -self.right))
        right, wrong = (
            self.goodness(replace(batch, maps=replace(batch.maps, native="patch", native_pixels=None)))
            for batch in pixel_batches
        )
        require_no(right <= wrong, "of patches, the wrong map scores as well as the right one", wrong, right)


def require_no(failures: Tensor, sentence: str, a: Tensor, b: Tensor) -> None:
    """Raise `ContractError` if there are failures; the message names the pair of scores that differs most."""
    require(not failures.any(), f"{sentence}: {format_worst_pair(a, b)}")


def format_worst_pair(a: Tensor, b: Tensor) -> str:
    """The pair of scores that differs most, for the error message."""
    row = int((a - b).nan_to_num(0).abs().argmax())
    return f"{abs(a[row].item()):.4g} and {abs(b[row].item()):.4g} on image {row} of {GRID}x{GRID} patches"
