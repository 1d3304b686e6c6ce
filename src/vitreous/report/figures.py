"""The figures of the papers, of this run: a strip over layers, targets × methods, and what deletion leaves of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import numpy as np
from PIL import Image

from vitreous.core.errors import VitreousError
from vitreous.draw import overlay_image
from vitreous.draw.captions import percent
from vitreous.methods.attribution import Attribution
from vitreous.report.block import Column, Question
from vitreous.report.easel import Easel, class_specific
from vitreous.report.gallery import MOST, asked, chosen, figure, outlined
from vitreous.report.plots import sweep_families, unfolded
from vitreous.report.stats import Standing, order_of
from vitreous.report.words import code, number

GREY = np.array([128, 128, 128], np.uint8)
STEPS = (0.1, 0.25, 0.5)  # shares that are deleted
DELETE = ("deletion_aopc", "deletion", "deletion_accuracy", "aopc", "positive_auc")
PAIRS = 2  # pictures with several classes


def figures(easel: Easel, standings: Sequence[Standing]) -> str:
    """Every figure that can be drawn; a line for one that cannot."""
    drawn = [layers(easel, standings), targets(easel, standings), deletions(easel, standings)]
    return f"<h3>Figures of the papers</h3>{''.join(drawn)}"


def absent(title: str, why: str) -> str:
    return f'<p class="soft"><b>{escape(title)}</b> is left out: {escape(why)}.</p>'


def titled(title: str, words: str, body: str) -> str:
    return f'<h4>{escape(title)}</h4><p class="soft">{words}</p>{body}'


# ── SkipPLUS, fig. 2 ─────────────────────────────────────────────────────────────────────────────


def layers(easel: Easel, standings: Sequence[Standing]) -> str:
    """One picture, one method, started at every layer."""
    title = "One method from different layers"
    picked = chosen(easel.block, standings, 1)
    found = started(easel, standings)
    if not picked or found is None:
        return absent(title, "no method of the run scores the tokens of every layer")
    base, specs = found
    question = easel.block.questions[picked[0][0]]
    cells = figure(without(easel.attribution(specs[0][1], question), 0.0), "picture", "")
    for layer, spec in specs:
        shown = seen(easel.attribution(spec, question))
        cells += figure(shown, f"layer {layer}", "", is_code=False)
    words = (
        f"{code(base)} fed with the tokens that enter each layer, first to last (SkipPLUS, fig. 2). {asked(question)}"
    )
    return titled(title, words, f'<div class="strip small" style="--n:{1 + len(specs)}">{cells}</div>')


def started(easel: Easel, standings: Sequence[Standing]) -> tuple[str, list[tuple[int, str]]] | None:
    """The run's own sweep of single layers, else the best method that has a signal at every layer."""
    from vitreous.methods.spec import resolve

    methods = easel.block.methods
    for rest, starts in sweep_families(methods).items():
        if "+at" in rest:
            return rest.removesuffix("+at"), [(layer, methods[row]) for layer, row in starts]
    for row in order_of(standings):
        base = unfolded(methods[row])
        specs = [(layer, f"{base}+at(layer={layer})") for layer in range(easel.vit.depth)]
        try:
            found = resolve(specs[0][1])
        except VitreousError:
            continue
        if found.class_specific and not found.mixing:  # a token's score is that of the sub-network from there on
            return base, specs
    return None


# ── SkipPLUS, fig. 6 ─────────────────────────────────────────────────────────────────────────────


def targets(easel: Easel, standings: Sequence[Standing]) -> str:
    """Pictures about which several classes were asked: a row per class, a column per method."""
    title = "Several classes in one picture"
    held: dict[str, dict[int, Question]] = {}
    for question in easel.block.questions:
        held.setdefault(question.picture, {}).setdefault(question.target, question)
    several = [list(asked.values()) for asked in held.values() if len(asked) > 1]
    if not several:
        return absent(
            title,
            'every picture was asked about one class; targets = "pair" or "top 2" in the plan would ask about two',
        )
    several.sort(key=lambda asked: -min(question.probability for question in asked))
    ranked = [easel.block.methods[row] for row in order_of(standings)]
    methods = class_specific(ranked)[:MOST]
    if not methods:
        return absent(title, "no method of the run depends on the class")
    grids = ""
    for questions in several[:PAIRS]:
        cells = ""
        for question in questions:
            chance = "" if np.isnan(question.probability) else percent(question.probability)
            cells += figure(outlined(easel, question), question.name, escape(chance), is_code=False)
            cells += "".join(figure(overlay_image(easel.attribution(m, question), longest=480), m, "") for m in methods)
        grids += f'<p class="ask soft">{escape(questions[0].picture)}</p><div class="strip" style="--n:{1 + len(methods)}">{cells}</div>'
    words = "The same picture, asked about each of its classes in turn (SkipPLUS, fig. 6); methods that do not know the class are left out."
    return titled(title, words, grids)


# ── TIS, fig. 4 ──────────────────────────────────────────────────────────────────────────────────


def deletions(easel: Easel, standings: Sequence[Standing]) -> str:
    """What is left of a picture when two methods say what to delete first."""
    title = "The picture after deletion"
    held = {one.column.metric.split("(", maxsplit=1)[0]: one for one in standings if one.column.curve is not None}
    one = next((held[name] for name in DELETE if name in held), None)
    if one is None or len(easel.block.methods) < 2:
        return absent(title, f"it needs two methods and one of {', '.join(DELETE)}")
    pair = two_methods(easel.block.methods, order_of([one]))
    place = furthest(one.column, *pair)
    if place is None:
        return absent(title, f"{one.column.metric} is defined on no picture for both methods")
    question = easel.block.questions[place]
    levels = nearest(one.column.levels)
    rows = ""
    for row in pair:
        found = easel.attribution(easel.block.methods[row], question)
        cells = figure(
            seen(found),
            easel.block.methods[row],
            f"{number(float(one.column.scores[row, place]))}",
        )
        for at, level in levels:
            share = f"{level:.0%} deleted"
            cells += figure(without(found, level), share, curve_words(one.column, row, place, at), is_code=False)
        rows += cells
    words = (
        f"{asked(question)} The picture on which the two differ most by {code(one.column.metric)}, as its highest scores go (TIS, fig. 4); what is gone is shown "
        f"grey, and the probability is that of the {escape(str(one.column.protocol.get('track', 'explained')))} class. Equal scores of a stored map may go in another order than they did when it was measured."
    )
    return titled(title, words, f'<div class="strip" style="--n:{1 + len(levels)}">{rows}</div>')


def seen(found: Attribution) -> Image.Image:
    """A map over what the model sees of the picture."""
    return overlay_image(replace(found, pictures=None), longest=480)


def two_methods(methods: Sequence[str], order: Sequence[int]) -> tuple[int, int]:
    """The best, and the best of another name."""
    first = order[0]
    name = unfolded(methods[first]).split("(")[0].split("@")[0]
    other = next((row for row in order[1:] if not methods[row].startswith(name) and methods[row] != "random"), order[1])
    return first, other


def furthest(column: Column, first: int, second: int) -> int | None:
    gap = np.abs(column.scores[first] - column.scores[second])
    return None if np.isnan(gap).all() else int(np.nanargmax(gap))


def nearest(levels: Sequence[float]) -> list[tuple[int, float]]:
    places = dict.fromkeys(int(np.abs(np.array(levels) - step).argmin()) for step in STEPS)
    return [(place, levels[place]) for place in places]


def curve_words(column: Column, row: int, place: int, at: int) -> str:
    assert column.curve is not None
    value = float(column.curve[row, place, at])
    name = column.metric.split("(", maxsplit=1)[0]
    if name in ("deletion_accuracy", "positive_auc"):
        return "still right" if value == 1 else "no longer right" if value == 0 else number(value)
    if "aopc" not in name:
        return f"probability {number(value, 2)}"
    return f"probability {'falls' if value >= 0 else 'rises'} by {number(abs(value), 2)}"


def without(found: Attribution, share: float) -> Image.Image:
    """What the model sees, its highest-scored share in grey: by patches, or by pixels for maps that have them."""
    image = (
        found.preprocess.denormalise(found.images[0].float().cpu())
        .permute(1, 2, 0)
        .clamp(0, 255)
        .numpy()
        .astype(np.uint8)
    )
    scores = found.maps()[0].cpu().numpy()
    order = np.argsort(-np.nan_to_num(scores.ravel(), nan=-np.inf), kind="stable")
    gone = np.zeros(scores.size, bool)
    gone[order[: int(share * scores.size)]] = True
    mask = np.asarray(
        Image.fromarray(gone.reshape(scores.shape)).resize((image.shape[1], image.shape[0]), Image.Resampling.NEAREST)
    )
    shown = np.where(mask[..., None], GREY, image)
    size = (image.shape[1] * 2, image.shape[0] * 2) if max(image.shape) < 200 else (image.shape[1], image.shape[0])
    return Image.fromarray(shown).resize(size, Image.Resampling.NEAREST)
