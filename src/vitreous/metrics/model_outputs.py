"""Model outputs for partially visible images, cached so that metrics share forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Literal, Unpack, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.pixels import Index
from vitreous.capture.progress import pieces
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import Option, OptionFunction
from vitreous.metrics.metric import FIXTURES, Metric, MetricKeywords, NoClassesError, metric
from vitreous.metrics.metric_result import Measured
from vitreous.metrics.order import Area, Show, count_of, nan_without_order, patch_ranks, pixel_ranks, summarise_curve
from vitreous.models.tensor_types import Images

Class = Literal["predicted", "label", "explained"]
CLASSES = get_args(Class)

Memo = dict[Any, Any]
Labels = Int[Tensor, " r"] | None
# log p of the predicted, true and explained class; log p of the top two classes; log Σ exp; index of the top class
Table = Float[Tensor, "*any seven"]
CurveAndParts = tuple[Float[Tensor, "r s"], Mapping[str, Float[Tensor, "r points"]]]
LISTED_LAST = ("order", "noise", "area", "show", "seed")  # options of curve metrics, in this order


@dataclass(frozen=True, slots=True, eq=False)
class Paint:
    """How pixels that are not visible are filled in.

    Attributes
    ----------
    fill
        `(visible pixels, index of the image, number of visible pixels)` → images with the other pixels replaced.
    key
        What identifies it among the common results of metrics.
    """

    fill: Callable[[Bool[Tensor, "k H W"], Index, Index], Images]
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PerturbedOutputs:
    """Model outputs (see `Table`) of every row at `s` levels of visibility, beside those of the unchanged images.

    `log_p`, `probability` and `logit` return values at every level, and for the unchanged image.
    """

    table: Float[Tensor, "r s 7"]
    model: PerturbedModel
    empty: float | None = None  # assumed accuracy for an image without pixels, a further level of `hits`

    @property
    def whole(self) -> Float[Tensor, "r 7"]:
        """Outputs of the unchanged images."""
        return self.model.whole

    def log_p(self, track: str) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r 1"]]:
        """Log-probability of the class `track`."""
        place = self.place("track", track)
        return self.table[..., place], self.whole[:, None, place]

    def probability(self, track: str) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r 1"]]:
        """Probability of the class `track`."""
        visible, whole = self.log_p(track)
        return visible.exp(), whole.exp()

    def logit(self, track: str) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r 1"]]:
        """Logit of the class `track`."""
        visible, whole = self.log_p(track)
        return visible + self.table[..., 5], whole + self.whole[:, None, 5]

    def hits(self, judge: str) -> Float[Tensor, "r s"]:
        """1 where the top class is the class `judge`, else 0; NaN where that class or the output is unknown."""
        judged_class = self.model.classes[:, None, self.place("judge", judge)]
        hit = (self.table[..., 6] == judged_class).to(self.table)
        hit = hit.where((judged_class >= 0) & ~self.table[..., 3].isnan(), torch.nan)
        return hit if self.empty is None else torch.cat([hit, torch.full_like(hit[:, :1], self.empty)], 1)

    def place(self, name: str, value: str) -> int:
        """Column of a class choice in the table; SpecError if it is "label" and no labels were given."""
        if value == "label" and self.model.labels is None:
            raise SpecError(f"{name}='label' needs {FIXTURES['labels']}; or choose 'predicted' or 'explained'")
        return CLASSES.index(value)


def reduce_logits(logits: Float[Tensor, "k c"], classes: Int[Tensor, "k 3"]) -> Float[Tensor, "k 7"]:
    """Reduce logits to the seven columns of `Table`, at least in float32; log p of class −1 is NaN."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = logits.logsumexp(-1, keepdim=True)
    best = logits.topk(2).values
    top = logits.argmax(-1, keepdim=True).to(logits)
    log_probabilities = (logits.gather(1, classes.clamp(min=0)) - total).where(classes >= 0, torch.nan)
    return torch.cat([log_probabilities, best - total, total, top], 1)


@dataclass(frozen=True, eq=False)
class PerturbedModel:
    """A model whose outputs for partially visible images are compared with an attribution.

    Attributes
    ----------
    attribution
        The maps.
    probe
        The model and the images.
    labels
        True class of every row, −1 where it is not known; None if none is.
    memo
        Common results of the metrics of one batch.
    """

    attribution: Attribution
    probe: BlackBoxProbe
    labels: Labels = None
    memo: Memo = field(default_factory=dict)

    def get_or_compute(self, key: Any, make: Callable[[], Any]) -> Any:
        """The common result of this key; `make` computes it the first time."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    @property
    def patch_ranks(self) -> Int[Tensor, "r p"]:
        """Rank of every patch, 0 for the highest score."""
        return self.get_or_compute("patch ranks", lambda: patch_ranks(self.attribution, self.probe))

    @property
    def pixel_ranks(self) -> Int[Tensor, "r n"]:
        """Rank of every pixel, 0 for the highest score."""
        return self.get_or_compute("pixel ranks", lambda: pixel_ranks(self.attribution, self.probe))

    @cached_property
    def classes(self) -> Int[Tensor, "r 3"]:
        """Predicted class of the unchanged image, true class (−1 if unknown) and explained class of every row."""
        logits = self.probe.full_logits
        if logits.shape[-1] == 1:
            raise NoClassesError(f"{self.probe.vit.name!r} answers with one number")
        predicted = logits.argmax(-1).repeat_interleave(self.probe.targets_per_image, 0)
        explained = self.attribution.targets.to(predicted.device)
        true_classes = torch.full_like(predicted, -1) if self.labels is None else self.labels.to(predicted)
        outside = (true_classes < -1) | (true_classes >= logits.shape[-1])
        if outside.any():
            raise ShapeError(f"there is no class {int(true_classes[outside][0])}; the model has {logits.shape[-1]}")
        return torch.stack([predicted, true_classes, explained], 1)

    @cached_property
    def whole(self) -> Float[Tensor, "r 7"]:
        """Outputs of the unchanged images."""
        return reduce_logits(self.probe.full_logits.repeat_interleave(self.probe.targets_per_image, 0), self.classes)

    def outputs_of_logits(self, logits: Float[Tensor, "r s c"]) -> PerturbedOutputs:
        """Outputs of `s` variants of every row, given their logits."""
        classes = self.classes[:, None].expand(-1, logits.shape[1], -1)
        table = reduce_logits(logits.flatten(0, 1), classes.flatten(0, 1))
        return PerturbedOutputs(table.unflatten(0, logits.shape[:2]), self)

    @torch.no_grad()
    def outputs_of_pixels(
        self, numbers: Int[Tensor, " s"], visible: Callable[[Index, Index], Bool[Tensor, "k H W"]], paint: Paint
    ) -> PerturbedOutputs:
        """Outputs of partially visible images, which are built, run and reduced piece by piece, to limit memory.

        Parameters
        ----------
        numbers
            One number for each of `s` images per row, such as the number of visible pixels.
        visible
            `(rows, numbers)` → visible pixels.
        paint
            Fills in the other pixels.
        """
        probe, classes, count = self.probe, self.classes, len(numbers)

        def run_piece(piece: slice) -> Float[Tensor, "k 7"]:
            index = torch.arange(piece.start, piece.stop, device=classes.device)
            row, number = index // count, numbers[index % count]
            images = paint.fill(visible(row, number), row // probe.targets_per_image, number)
            return reduce_logits(probe.class_logits(probe.run_model(images)), classes[row])

        tables = [table for _, table in pieces(run_piece, len(classes) * count, probe.images_that_fit)]
        return PerturbedOutputs(torch.cat(tables).unflatten(0, (len(classes), count)), self)

    def outputs_with_tokens(self, side: str, counts: Sequence[int]) -> PerturbedOutputs:
        """Model outputs when only the `counts` highest ("top") or lowest ("bottom") patches enter the encoder."""
        rank = self.patch_ranks

        def compute(missing: Index) -> PerturbedOutputs:
            return self.outputs_of_logits(self.probe.logits(find_visible(rank[:, None], missing[:, None], side)))

        return self._outputs_by_count(("tokens", side), counts, rank, compute)

    def outputs_with_pixels(self, side: str, counts: Sequence[int], paint: Paint) -> PerturbedOutputs:
        """Model outputs when only the `counts` highest ("top") or lowest ("bottom") pixels of the image are visible."""
        rank = self.pixel_ranks
        size = tuple(self.probe.images.shape[-2:])

        def visible(row: Index, count: Index) -> Bool[Tensor, "k H W"]:
            return find_visible(rank[row], count[:, None], side).unflatten(1, size)

        def compute(missing: Index) -> PerturbedOutputs:
            return self.outputs_of_pixels(missing, visible, paint)

        return self._outputs_by_count(("pixels", side, *paint.key), counts, rank, compute)

    def outputs_without_pixels(self, levels: Sequence[float], order: str, paint: Paint) -> PerturbedOutputs:
        """Model outputs when these shares of the pixels are removed, the highest ("descending") or the lowest first."""
        pixels = self.probe.images.shape[-2] * self.probe.images.shape[-1]
        counts = [pixels - count_of(level, pixels) for level in levels]
        return self.outputs_with_pixels("bottom" if order == "descending" else "top", counts, paint)

    def _outputs_by_count(
        self,
        key: tuple[Any, ...],
        counts: Sequence[int],
        rank: Int[Tensor, "r n"],
        compute: Callable[[Index], PerturbedOutputs],
    ) -> PerturbedOutputs:
        """Outputs for every count; `compute` computes only the counts that are not in the memo yet."""
        tables = self.get_or_compute(key, lambda: {rank.shape[1]: self.whole})
        if missing := sorted(set(counts) - tables.keys()):
            outputs = compute(torch.tensor(missing, device=rank.device))
            tables.update(zip(missing, outputs.table.unbind(1), strict=True))
        return PerturbedOutputs(torch.stack([tables[count] for count in counts], 1), self)


def perturbation_metric(
    *,
    higher_is_better: bool | None,
    aliases: tuple[str, ...] = (),
    **facts: Unpack[MetricKeywords],
) -> Callable[[Callable[..., Measured]], Metric]:
    """Decorator that registers a function `(model, **options)` of a `PerturbedModel` as a metric.

    Maps with a NaN have no order; their scores, curve and parts are NaN.

    Parameters
    ----------
    higher_is_better, aliases
        As for `metric`.
    **facts
        As for `metric`; the family is "faithfulness" by default, and the metric does not change with a·map + b.
    """

    def register(function: Callable[..., Measured]) -> Metric:
        signature = OptionFunction.of(function)

        @wraps(signature.call)
        def measure(
            attribution: Attribution,
            probe: BlackBoxProbe,
            labels: Labels = None,
            memo: Memo | None = None,
            **options: Any,
        ) -> Measured:
            model = PerturbedModel(attribution, probe, labels, {} if memo is None else memo)
            return nan_without_order(attribution, signature(model, **options))

        measure.__dict__["of_perturbed_model"] = signature  # which `output_counts` calls
        optional_inputs = {name: Option(name, None) for name in ("labels", "memo")}
        facts_with_defaults: MetricKeywords = {"family": "faithfulness", "affine_invariant": True, **facts}
        return metric(higher_is_better=higher_is_better, aliases=aliases, **facts_with_defaults)(
            OptionFunction(measure, ("attribution", "probe"), {**optional_inputs, **signature.options})
        )

    return register


OutputsAndLevels = tuple[PerturbedOutputs, Sequence[float]]


def curve_metric(
    removal: Callable[..., OutputsAndLevels], *, area: Area = "normalised", show: bool = True, **facts: Any
) -> Callable[[Callable[..., CurveAndParts]], Metric]:
    """Decorator that registers the area under a curve of model outputs as a metric.

    It decorates a function `(outputs, **options)` that returns the curve, and named parts beside it.

    Parameters
    ----------
    removal
        `(model, **options)` → model outputs as patches or pixels are removed or added, and the level of each. The metric has
        its options, too.
    area
        Default of the option `area`.
    show
        Whether the metric has the option `show`.
    **facts
        As for `perturbation_metric`.
    """
    removed = OptionFunction.of(removal)
    summary = {"area": Option("area", area, Area)} | ({"show": Option("show", "fraction", Show)} if show else {})

    def register(function: Callable[..., CurveAndParts]) -> Metric:
        values = OptionFunction.of(function)
        options = {**removed.options, **values.options, **summary}
        names = sorted(options, key=lambda name: LISTED_LAST.index(name) if name in LISTED_LAST else -1)

        @wraps(function)
        def measure(model: PerturbedModel, area: Area = area, show: Show = "fraction", **settings: Any) -> Measured:
            outputs, levels = removed(model, **removed.pick(settings))
            curve, parts = function(outputs, **values.pick(settings))
            return summarise_curve(curve, levels, area, show, settings.get("order") == "ascending", parts)

        signature = OptionFunction(measure, ("model",), {name: options[name] for name in names})
        return perturbation_metric(**facts)(signature)

    return register


def find_visible(rank: Int[Tensor, "*any"], count: Int[Tensor, "*some"], side: str) -> Bool[Tensor, "*all"]:
    return rank < count if side == "top" else rank >= rank.shape[-1] - count
