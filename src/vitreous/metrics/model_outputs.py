"""Model outputs for partially visible images, cached so that metrics share forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.progress import pieces
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.options import choice
from vitreous.metrics.metric import FIXTURES, NoClassesError
from vitreous.metrics.order import Ranks, patch_ranks, pixel_ranks
from vitreous.models.tensor_types import Images

Class = Literal["predicted", "label", "explained"]
CLASSES = get_args(Class)

Memo = dict[Any, Any]
Index = Int[Tensor, " k"]
Labels = Int[Tensor, " r"] | None
# log p of the predicted, true and explained class; log p of the top two classes; log Σ exp; index of the top class
Table = Float[Tensor, "*any seven"]
# (visible pixels, index of the image, number of visible pixels) -> images with the other pixels replaced
Paint = Callable[[Bool[Tensor, "k H W"], Index, Index], Images]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Model outputs (see `Table`) of every row at `s` levels of visibility, and of the unchanged images."""

    table: Float[Tensor, "r s 7"]
    whole: Float[Tensor, "r 7"]
    labelled: bool

    def log_p(self, track: str) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r 1"]]:
        """Log-probability of the class `track` at every level, and for the unchanged image."""
        place = self.place("track", track)
        return self.table[..., place], self.whole[:, None, place]

    def probability(self, track: str) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r 1"]]:
        """Probability of the class `track` at every level, and for the unchanged image."""
        visible, whole = self.log_p(track)
        return visible.exp(), whole.exp()

    def hits(self, judge: str, classes: Int[Tensor, "r 3"]) -> Float[Tensor, "r s"]:
        """1 where the top class is the class `judge`, else 0; NaN where that class or the output is unknown."""
        judged_class = classes[:, None, self.place("judge", judge)]
        hit = (self.table[..., 6] == judged_class).to(self.table)
        return hit.where((judged_class >= 0) & ~self.table[..., 3].isnan(), torch.nan)

    def place(self, name: str, value: str) -> int:
        """Column of a class choice in the table; SpecError if it is "label" and no labels were given."""
        choice(name, value, CLASSES)
        if value == "label" and not self.labelled:
            raise SpecError(f"{name}='label' needs {FIXTURES['labels']}; or choose 'predicted' or 'explained'")
        return CLASSES.index(value)


def read(logits: Float[Tensor, "k c"], classes: Int[Tensor, "k 3"]) -> Float[Tensor, "k 7"]:
    """Reduce logits to the seven columns of `Table`, at least in float32; log p of class −1 is NaN."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = logits.logsumexp(-1, keepdim=True)
    best = logits.topk(2).values
    top = logits.argmax(-1, keepdim=True).to(logits)
    log_probabilities = (logits.gather(1, classes.clamp(min=0)) - total).where(classes >= 0, torch.nan)
    return torch.cat([log_probabilities, best - total, total, top], 1)


def classes_of(attribution: Attribution, probe: BlackBoxProbe, labels: Labels) -> Int[Tensor, "r 3"]:
    """Predicted class of the unchanged image, true class (−1 if unknown) and explained class of every row."""
    if probe.full_logits.shape[-1] == 1:
        raise NoClassesError(f"{probe.vit.name!r} answers with one number")
    predicted = probe.full_logits.argmax(-1).repeat_interleave(probe.targets_per_image, 0)
    explained = attribution.targets.to(predicted.device)
    true_classes = torch.full_like(predicted, -1) if labels is None else labels.to(predicted)
    outside = (true_classes < -1) | (true_classes >= probe.full_logits.shape[-1])
    if outside.any():
        raise ShapeError(
            f"there is no class {int(true_classes[outside][0])}; the model has {probe.full_logits.shape[-1]}"
        )
    return torch.stack([predicted, true_classes, explained], 1)


def whole_of(probe: BlackBoxProbe, classes: Int[Tensor, "r 3"]) -> Float[Tensor, "r 7"]:
    return read(probe.full_logits.repeat_interleave(probe.targets_per_image, 0), classes)


def shown_tokens(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels,
    memo: Memo | None,
    side: str,
    counts: Sequence[int],
) -> Answers:
    """Model outputs when only the `counts` highest ("top") or lowest ("bottom") patches enter the encoder."""
    memo = {} if memo is None else memo
    rank = once(memo, "patch ranks", lambda: patch_ranks(attribution, probe))
    classes = classes_of(attribution, probe, labels)

    def ask(missing: list[int]) -> Float[Tensor, "r s 7"]:
        keep = visible_of(rank[:, None], torch.tensor(missing, device=rank.device)[:, None], side)
        logits = probe.logits(keep)
        share = classes[:, None].expand(-1, len(missing), -1)
        return read(logits.flatten(0, 1), share.flatten(0, 1)).unflatten(0, logits.shape[:2])

    whole = whole_of(probe, classes)
    table = remembered(memo, ("tokens", side), counts, ask, {rank.shape[1]: whole})
    return Answers(table, whole, labels is not None)


def shown_pixels(
    attribution: Attribution,
    probe: BlackBoxProbe,
    labels: Labels,
    memo: Memo | None,
    side: str,
    counts: Sequence[int],
    paint: Paint,
    key: tuple[Any, ...],
) -> Answers:
    """Model outputs when only the `counts` highest ("top") or lowest ("bottom") pixels of the image are visible.

    `paint` fills in the other pixels; `key` identifies it in the memo.
    """
    memo = {} if memo is None else memo
    rank = once(memo, "pixel ranks", lambda: pixel_ranks(attribution, probe))
    classes = classes_of(attribution, probe, labels)
    ask = partial(painted, probe, rank, classes, side, paint)
    whole = whole_of(probe, classes)
    table = remembered(memo, ("pixels", side, *key), counts, ask, {rank.shape[1]: whole})
    return Answers(table, whole, labels is not None)


@torch.no_grad()
def painted(
    probe: BlackBoxProbe, rank: Ranks, classes: Int[Tensor, "r 3"], side: str, paint: Paint, missing: list[int]
) -> Float[Tensor, "r s 7"]:
    """Build the images, run the model and reduce its logits piece by piece, to limit memory."""
    size, share = probe.images.shape[-2:], probe.targets_per_image
    counts = torch.tensor(missing, device=rank.device)
    tables: list[Tensor] = []

    def run_piece(piece: slice) -> Float[Tensor, "k 7"]:
        index = torch.arange(piece.start, piece.stop, device=rank.device)
        row, count = index // len(counts), counts[index % len(counts)]
        visible = visible_of(rank[row], count[:, None], side).unflatten(1, tuple(size))
        return read(probe.sides(probe.say(paint(visible, row // share, count))), classes[row])

    tables.extend(table for _, table in pieces(run_piece, len(rank) * len(counts), probe.pictures_that_fit))
    return torch.cat(tables).unflatten(0, (len(rank), len(counts)))


def visible_of(rank: Int[Tensor, "*any"], count: Int[Tensor, "*some"], side: str) -> Bool[Tensor, "*all"]:
    return rank < count if side == "top" else rank >= rank.shape[-1] - count


def remembered(
    memo: Memo,
    key: tuple[Any, ...],
    counts: Sequence[int],
    ask: Callable[[list[int]], Float[Tensor, "r s 7"]],
    known_tables: dict[int, Float[Tensor, "r 7"]],
) -> Float[Tensor, "r s 7"]:
    """Outputs for every count; `ask` computes only the counts that are not in the memo yet."""
    tables = memo.setdefault(key, {})
    tables.update({count: table for count, table in known_tables.items() if count not in tables})
    if missing := sorted(set(counts) - tables.keys()):
        tables.update(zip(missing, ask(missing).unbind(1), strict=True))
    return torch.stack([tables[count] for count in counts], 1)


def once(memo: Memo, key: str, make: Callable[[], Tensor]) -> Tensor:
    if key not in memo:
        memo[key] = make()
    return memo[key]
