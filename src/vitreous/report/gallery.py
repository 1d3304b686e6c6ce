"""Gallery of images with the maps and scores of all methods; those on which the methods differ most come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np
from jaxtyping import Float
from PIL import Image

from vitreous.bench.scores import ScoreSection
from vitreous.bench.section_files import ImageTarget
from vitreous.bench.summary import MetricSummary, order_by_rank
from vitreous.draw import overlay_image
from vitreous.draw.notebook import to_data_url
from vitreous.metrics.metric import resolve_metric
from vitreous.report.formatting import ARROWS, abbreviate_metric, format_number
from vitreous.report.map_loader import MapLoader
from vitreous.report.tables import place_values

SIDE = 288  # longest side of an image on the page
MOST = 12  # methods in a strip
SCORES = 3  # metrics under a map


@dataclass(frozen=True, slots=True)
class CardScore:
    """A score shown below a map."""

    label: str
    metric: str
    text: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class ImageCard:
    """An image of the page, as a data URI."""

    title: str
    source: str
    width: int
    height: int
    is_spec: bool = False
    note: str = ""
    scores: Sequence[CardScore] = ()

    @property
    def alt(self) -> str:
        return f"map of {self.title}" if self.is_spec else self.title


@dataclass(frozen=True, slots=True)
class ImageStrip:
    """Images side by side, in rows of `columns`; `target` is the image and class that they show."""

    cards: Sequence[ImageCard]
    columns: int
    target: ImageTarget | None = None
    remark: str = ""
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class StripGroup:
    """Strips under a common title, or the reason why they cannot be made; `target` is what all of them show."""

    title: str
    text: str = ""
    strips: Sequence[ImageStrip] = ()
    target: ImageTarget | None = None
    missing: str = ""


def compute_margins(summaries: Sequence[MetricSummary], row: int) -> Float[np.ndarray, " q"]:
    """Margin of a method over the median of the other methods, for every image-target pair.

    Margins are in standard deviations of the scores, averaged over the metrics; positive is better.
    """
    import pandas as pd

    margins = []
    for scores in (summary.scores for summary in summaries if summary.scores.sign):
        good = pd.DataFrame(scores.scores * scores.sign)
        defined = scores.scores[~np.isnan(scores.scores)]
        if len(good) > 1 and len(set(defined.tolist())) > 1:
            margins.append((good.loc[row] - good.drop(index=row).median()) / defined.std())
    count = summaries[0].scores.scores.shape[1] if summaries else 0
    return pd.DataFrame(margins, columns=range(count), dtype=float).mean().to_numpy()


def choose_questions(section: ScoreSection, summaries: Sequence[MetricSummary], count: int) -> list[tuple[int, float]]:
    """Choose at most `count` image-target pairs, one per image, and return their indices and margins.

    Pairs on which the best method is furthest ahead alternate with those on which it is furthest behind.
    """
    if count < 1 or not section.questions:
        return []
    margins = compute_margins(summaries, order_by_rank(summaries)[0])
    order = np.argsort(-margins, kind="stable").tolist()  # NaN last
    ordered_places = [place for place in order if not np.isnan(margins[place])]
    half = (len(ordered_places) + 1) // 2
    turns = chain.from_iterable(zip_longest(ordered_places[:half], reversed(ordered_places[half:])))
    places: dict[str, int] = {}
    for place in [*(place for place in turns if place is not None), *np.flatnonzero(np.isnan(margins)).tolist()]:
        places.setdefault(section.questions[place].image, place)
    return [(place, float(margins[place])) for place in list(places.values())[:count]]


def make_gallery(loader: MapLoader, summaries: Sequence[MetricSummary], count: int) -> list[ImageStrip]:
    """Make a strip per chosen image: the image, then the map of every method.

    Parameters
    ----------
    loader
        Maps and images of a section.
    summaries
        One summary per metric of the section.
    count
        Largest number of images.

    Returns
    -------
    list of ImageStrip
    """
    rows, methods = order_by_rank(summaries)[:MOST], loader.section.methods
    strips = []
    for place, margin in choose_questions(loader.section, summaries, count):
        question = loader.section.questions[place]
        note = "outline: the class" if loader.mask(question) is not None else ""
        cards = [make_card(outline_class(loader, question), "image", note=note)]
        for row in rows:
            image = overlay_image(loader.attribution(methods[row], question), longest=480)
            cards.append(make_card(image, methods[row], is_spec=True, scores=list_map_scores(summaries, row, place)))
        word = "ahead" if margin > 0 else "behind"
        remark = f" · {methods[rows[0]]} is {word} by {format_number(abs(margin), 2)} deviations"
        strips.append(ImageStrip(cards, len(cards), question, "" if np.isnan(margin) else remark))
    return strips


def describe_metrics(summaries: Sequence[MetricSummary]) -> str:
    """The metrics shown below each map, with their abbreviations."""
    return ", ".join(
        f"{summary.metric} {ARROWS[summary.higher_is_better]} ({abbreviate_metric(summary.metric)})"
        for summary in pick_metrics(summaries)
    )


def pick_metrics(summaries: Sequence[MetricSummary]) -> list[MetricSummary]:
    """Choose `SCORES` metrics with a better direction: the first of every family, then others."""
    judging = [summary for summary in summaries if summary.judges]
    families = {resolve_metric(summary.metric).family: summary for summary in reversed(judging)}
    firsts = [summary for summary in judging if summary in families.values()]
    picked = [*firsts, *(summary for summary in judging if summary not in firsts)][:SCORES]
    return [summary for summary in summaries if summary in picked]


def list_map_scores(summaries: Sequence[MetricSummary], row: int, place: int) -> list[CardScore]:
    """Scores of one map; those that are the best of all methods on this image are marked."""
    scores = []
    for summary in pick_metrics(summaries):
        values = summary.scores.scores[:, place].tolist()
        own_scores = [*summary.scores.section.score_by_method.values()]
        is_best = place_values(values, 3, summary.higher_is_better, own_scores)[row] == 1
        scores.append(CardScore(abbreviate_metric(summary.metric), summary.metric, format_number(values[row]), is_best))
    return scores


def outline_class(loader: MapLoader, question: ImageTarget) -> Image.Image:
    """The image, with an outline of the explained class if its mask is known."""
    image = loader.image(question).convert("RGB")
    share = SIDE / max(image.size)
    size = max(round(image.width * share), 1), max(round(image.height * share), 1)
    pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC)).copy()
    mask = loader.mask(question)
    if mask is not None:
        inside = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        pixels[find_mask_edge(inside, 2)] = 255
        pixels[find_mask_edge(inside, 1)] = (11, 110, 79)
    return Image.fromarray(pixels)


def find_mask_edge(mask: np.ndarray, width: int) -> np.ndarray:
    """Mask of the pixels within `width` of the outline, on either side."""
    grown, core = mask, ~mask
    for _ in range(width):
        grown, core = (
            side | wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:]
            for side, wide in ((side, np.pad(side, 1, mode="edge")) for side in (grown, core))
        )
    return grown & core


def make_card(
    image: Image.Image, title: str, *, is_spec: bool = False, note: str = "", scores: Sequence[CardScore] = ()
) -> ImageCard:
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return ImageCard(title, to_data_url(small, "webp", quality=84), small.width, small.height, is_spec, note, scores)
