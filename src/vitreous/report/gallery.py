"""The same pictures across methods, with what each map scores there: where they disagree most comes first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from itertools import chain, zip_longest

import numpy as np
from jaxtyping import Float
from PIL import Image

from vitreous.draw import overlay_image
from vitreous.draw.captions import percent
from vitreous.metrics.metric import resolve_metric
from vitreous.report.block import Block, Question
from vitreous.report.easel import Easel
from vitreous.report.stats import Standing, order_of
from vitreous.report.words import ARROWS, brief, code, number

SIDE = 288  # longest side of a picture in the gallery
MOST = 12  # methods in a strip
SCORES = 3  # metrics under a map


def margins(standings: Sequence[Standing], row: int) -> Float[np.ndarray, " q"]:
    """How far a method lies before the median of the others on every question, in deviations of each metric, on average."""
    found = []
    for one in standings:
        if not one.column.sign:
            continue
        good = one.column.scores * one.column.sign
        rest = np.delete(good, row, 0)
        with np.errstate(all="ignore"):
            spread = np.nanstd(good)
            if spread > 0 and len(rest):
                found.append((good[row] - median(rest)) / spread)
    if not found:
        return np.full(standings[0].column.scores.shape[1] if standings else 0, np.nan)
    known = ~np.isnan(np.stack(found))
    with np.errstate(invalid="ignore"):
        return np.where(known, found, 0).sum(0) / known.sum(0)


def median(values: Float[np.ndarray, "m q"]) -> Float[np.ndarray, " q"]:
    """Of what is known in every column; NaN where nothing is."""
    return np.array([np.median(c[~np.isnan(c)]) if (~np.isnan(c)).any() else np.nan for c in values.T])


def chosen(block: Block, standings: Sequence[Standing], count: int) -> list[tuple[int, float]]:
    """Questions where the best method is furthest ahead, and where it is furthest behind, in turn; one per picture."""
    if count < 1 or not block.questions:
        return []
    gap = (
        margins(standings, order_of(standings)[0]) if len(block.methods) > 1 else np.full(len(block.questions), np.nan)
    )
    known = [int(place) for place in np.argsort(-np.nan_to_num(gap), kind="stable") if not np.isnan(gap[place])]
    rest = [place for place in range(len(block.questions)) if np.isnan(gap[place])]
    half = (len(known) + 1) // 2
    turns = chain.from_iterable(zip_longest(known[:half], reversed(known[half:])))
    found: dict[str, int] = {}
    for place in [*(place for place in turns if place is not None), *rest]:
        found.setdefault(block.questions[place].picture, place)
    return [(place, float(gap[place])) for place in list(found.values())[:count]]


def gallery(easel: Easel, standings: Sequence[Standing], count: int) -> str:
    block = easel.block
    order = order_of(standings)
    rows = order[:MOST]
    strips = "".join(strip(easel, standings, rows, place, gap) for place, gap in chosen(block, standings, count))
    best = block.methods[order[0]]
    more = len(order) - len(rows)
    left = f" The {MOST} methods of best mean rank are shown; {more} more are in the table." if more else ""
    said = ", ".join(
        f"{one.column.metric} {ARROWS[one.column.higher]} ({brief(one.column.metric)})" for one in told(standings)
    )
    return (
        f"<h3>Gallery</h3><p>Pictures where {code(best)}, first by mean rank, is furthest before the median of the others, and where it is "
        f"furthest behind them, in turn. Red speaks for the class and blue against it; maps without a sign run from dark to bright; each map has "
        f"its own scale. Under each: {escape(said)} of this picture.{escape(left)}</p>{strips}"
    )


def strip(easel: Easel, standings: Sequence[Standing], rows: Sequence[int], place: int, gap: float) -> str:
    question, methods = easel.block.questions[place], easel.block.methods
    cells = figure(
        outlined(easel, question), "picture", "outline: the class" if easel.mask(question) is not None else ""
    )
    for row in rows:
        shown = overlay_image(easel.attribution(methods[row], question), longest=480)
        cells += figure(shown, methods[row], scores(standings, row, place))
    word = (
        ""
        if np.isnan(gap)
        else f" · {easel.block.methods[order_of(standings)[0]]} is {'ahead' if gap > 0 else 'behind'} by {number(abs(gap), 2)} deviations"
    )
    return (
        f'<p class="ask">{asked(question)}<span class="soft">{escape(word)}</span></p>'
        f'<div class="strip" style="--n:{1 + len(rows)}">{cells}</div>'
    )


def asked(question: Question) -> str:
    chance = "" if np.isnan(question.probability) else f" ({percent(question.probability)})"
    wrong = ", which it is not" if 0 <= question.label != question.target and question.role == "predicted" else ""
    return f"Why “{escape(question.name)}”?{escape(chance)} <span class=soft>{escape(question.picture)}{wrong}</span>"


def told(standings: Sequence[Standing]) -> list[Standing]:
    """The metrics that stand under a map: one of every family that judges, then the next."""
    families: dict[str, Standing] = {}
    judging = [one for one in standings if one.column.sign and np.isfinite(one.values).any()]
    for one in judging:
        families.setdefault(resolve_metric(one.column.metric).family, one)
    kept = [*families.values(), *(one for one in judging if one not in families.values())][:SCORES]
    return [one for one in standings if one in kept]


def scores(standings: Sequence[Standing], row: int, place: int) -> str:
    """What a map scores on this picture; the best in bold."""
    lines = ""
    for one in told(standings):
        column = one.column.scores[:, place]
        known = column[~np.isnan(column)] * one.column.sign
        top = len(known) > 0 and column[row] * one.column.sign == known.max() > known.min()
        text = number(float(column[row]))
        name = escape(brief(one.column.metric))
        hint = escape(one.column.metric, quote=True)
        lines += f'<div class="score" title="{hint}"><span>{name}</span>{f"<b>{text}</b>" if top else text}</div>'
    return lines


def outlined(easel: Easel, question: Question) -> Image.Image:
    """The picture, with the edge of the class that was asked about where it is known."""
    picture = easel.picture(question).convert("RGB")
    share = SIDE / max(picture.size)
    size = max(round(picture.width * share), 1), max(round(picture.height * share), 1)
    small = np.asarray(picture.resize(size, Image.Resampling.BICUBIC)).copy()
    mask = easel.mask(question)
    if mask is not None:
        inside = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        small[edge(inside, 2)] = 255
        small[edge(inside, 1)] = (11, 110, 79)
    return Image.fromarray(small)


def edge(mask: np.ndarray, width: int) -> np.ndarray:
    """Pixels within `width` of the outline, on either side."""
    grown, core = mask, ~mask
    for _ in range(width):
        grown, core = (
            one | wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:]
            for one, wide in ((side, np.pad(side, 1, mode="edge")) for side in (grown, core))
        )
    return grown & core


def figure(picture: Image.Image, title: str, words: str, is_code: bool = True) -> str:
    """A picture with a title; `words` are HTML."""
    small = picture.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    stream = BytesIO()
    small.save(stream, "WEBP", quality=84)
    source = base64.b64encode(stream.getvalue()).decode()
    name = code(title) if is_code and title != "picture" else escape(title)
    return (
        f'<figure><img alt="{escape(title, quote=True)}" width="{small.width}" height="{small.height}" src="data:image/webp;base64,{source}">'
        f"<figcaption><b>{name}</b>{words}</figcaption></figure>"
    )
