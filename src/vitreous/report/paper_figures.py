"""Figures of the papers, made from a run: one method over layers, classes × methods, and an image after deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from markupsafe import Markup
from PIL import Image

from vitreous.bench.scores import MetricScores
from vitreous.bench.section_files import ImageTarget
from vitreous.bench.summary import MetricSummary, order_by_rank
from vitreous.core.errors import VitreousError
from vitreous.draw import overlay_image
from vitreous.draw.captions import percent
from vitreous.methods.attribution import Attribution
from vitreous.methods.spec import depends_on_class, resolve
from vitreous.report.chart_groups import group_starts, strip_fold
from vitreous.report.formatting import format_code, format_number, format_score, join_nonempty
from vitreous.report.gallery import MOST, ImageCard, ImageStrip, StripGroup, choose_questions, make_card, outline_class
from vitreous.report.map_loader import MapLoader

GREY = np.array([128, 128, 128], np.uint8)
STEPS = (0.1, 0.25, 0.5)  # fractions that are deleted
# metrics for the figure of deletion, the best suited first; others of a run are used if it has none of these
USUAL = ("deletion_aopc", "deletion", "deletion_accuracy", "aopc", "positive_auc")
PAIRS = 2  # images with several classes


def make_paper_figures(loader: MapLoader, summaries: Sequence[MetricSummary], reproduces: str = "") -> list[StripGroup]:
    """Make figures of the papers; those that the run lacks data for contain the reason.

    Parameters
    ----------
    loader
        Model, images and maps of a section.
    summaries
        One summary per metric of the section.
    reproduces
        Figure to make, such as "tis:figure2"; if it is not a figure of images, the ones that most runs can make.
    """
    if reproduces in IMAGE_FIGURES:
        return [IMAGE_FIGURES[reproduces](loader, summaries)]
    return [
        make_layer_figure(loader, summaries),
        make_class_figure(loader, summaries),
        make_deletion_figure(loader, summaries),
    ]


# ── images × methods (SkipPLUS, figs. 1, 5 and 13–27; TIS, fig. 2; TokenTM, figs. 4–5) ───────────────────────────────


def make_grid_figure(loader: MapLoader, summaries: Sequence[MetricSummary]) -> StripGroup:
    """All images of the section with the map of every method, one row per image."""
    methods = loader.section.methods
    strips = []
    for question in loader.section.questions:
        cards = [make_card(delete_top(loader.attribution(methods[0], question), 0.0), question.target_name)]
        cards += [make_map_card(loader, spec, question) for spec in methods]
        strips.append(ImageStrip(cards, len(cards), question, is_small=True))
    return StripGroup("Images and the maps of all methods", "One row per image.", strips)


# ── TIS, fig. 3 ──────────────────────────────────────────────────────────────────────────────────


def make_disagreement_figure(loader: MapLoader, summaries: Sequence[MetricSummary]) -> StripGroup:
    """Images that the model takes for another class: maps of the label and of the predicted class."""
    title = "Target and predicted class where they disagree"
    wrong = {
        question.image: question for question in loader.section.questions if 0 <= question.label != question.predicted
    }
    if not wrong:
        return StripGroup(title, missing="the model predicts the label of every image")
    strips = []
    # first the images on which the predicted class is most probable, or the label least
    surest = sorted(
        wrong.values(),
        key=lambda question: question.probability if question.target == question.label else -question.probability,
    )
    for question in surest[:PAIRS]:
        targets = [
            replace(question, target=target, target_name=loader.vit.class_name(target), role=role)
            for role, target in (("label", question.label), ("predicted", question.predicted))
        ]
        for method in loader.section.methods:
            cards = [make_card(delete_top(loader.attribution(method, targets[0]), 0.0), "image")]
            cards += [
                make_map_card(loader, method, target, f"{target.role}: {target.target_name}", note=method)
                for target in targets
            ]
            strips.append(ImageStrip(cards, len(cards), question))
    return StripGroup(title, "The label is that of the dataset (TIS, fig. 3).", strips)


# ── SkipPLUS, fig. 2 ─────────────────────────────────────────────────────────────────────────────


def make_layer_figure(loader: MapLoader, summaries: Sequence[MetricSummary]) -> StripGroup:
    """Maps of one method on one image, starting at each layer."""
    title = "One method from different layers"
    picked = choose_questions(loader.section, summaries, 1)
    sweep = find_layer_sweep(loader, summaries)
    if not picked or sweep is None:
        return StripGroup(title, missing="no method of the run scores the tokens of every layer")
    base, specs = sweep
    question = loader.section.questions[picked[0][0]]
    cards = [make_card(delete_top(loader.attribution(specs[0][1], question), 0.0), "image")]
    cards += [make_map_card(loader, spec, question, f"layer {layer}") for layer, spec in specs]
    text = Markup("{} fed with the tokens that enter each layer, first to last (SkipPLUS, fig. 2).").format(
        format_code(base)
    )
    return StripGroup(title, text, [ImageStrip(cards, len(cards), is_small=True)], question)


def find_layer_sweep(loader: MapLoader, summaries: Sequence[MetricSummary]) -> tuple[str, list[tuple[int, str]]] | None:
    """Name of a method, and its spec at every layer.

    This is the run's own sweep over single layers, else the best method that has a signal at every layer; None if there
    is none.
    """
    from vitreous.methods.recipe import LayerSignal
    from vitreous.methods.spec import resolve

    methods = loader.section.methods
    for spec_without_start, starts in group_starts(methods).items():
        if "+at" in spec_without_start:
            return spec_without_start.removesuffix("+at"), [(layer, methods[row]) for layer, row in starts]
    if not loader.vit.depth:  # a black box
        return None
    for row in order_by_rank(summaries):
        base = strip_fold(methods[row])
        specs = [(layer, f"{base}+at(layer={layer})") for layer in range(loader.vit.depth)]
        try:
            method = resolve(specs[0][1])
        except VitreousError:
            continue
        # the score of a token at a layer is then that of the sub-network from that layer on
        if method.class_specific and isinstance(method.recipe, LayerSignal) and not method.recipe.mixing:
            return base, specs
    return None


# ── SkipPLUS, fig. 6 ─────────────────────────────────────────────────────────────────────────────


def make_class_figure(
    loader: MapLoader, summaries: Sequence[MetricSummary], most_images: int | None = PAIRS
) -> StripGroup:
    """Images for which several classes were explained: one row per class, one column per method.

    Methods are in the order of the plan; of more than `MOST`, the ones of best rank are shown.
    """
    title = "Several classes in one image"
    targets: dict[str, dict[int, ImageTarget]] = {}
    for question in loader.section.questions:
        targets.setdefault(question.image, {}).setdefault(question.target, question)
    targets_by_image = [list(questions.values()) for questions in targets.values() if len(questions) > 1]
    ranked = [loader.section.methods[row] for row in order_by_rank(summaries)]
    best = [method for method in ranked if depends_on_class(method)][:MOST]
    methods = [method for method in loader.section.methods if method in best]
    if not targets_by_image:
        reason = 'one class was explained per image; targets = "pair" or "top 2" in the plan explains two'
        return StripGroup(title, missing=reason)
    if not methods:
        return StripGroup(title, missing="no method of the run depends on the class")
    targets_by_image.sort(key=lambda questions: -min(question.probability for question in questions))
    strips = []
    for questions in targets_by_image[:most_images]:
        cards = []
        for question in questions:
            chance = "" if np.isnan(question.probability) else percent(question.probability)
            cards.append(make_card(outline_class(loader, question), question.target_name, note=chance))
            for method in methods:
                image = overlay_image(loader.attribution(method, question), longest=480)
                cards.append(make_card(image, method, is_spec=True, note=name_score(loader, method)))
        strips.append(ImageStrip(cards, 1 + len(methods), remark=questions[0].image))
    text = "The same image, explained for each of its classes (SkipPLUS, fig. 6); class-agnostic methods are left out."
    return StripGroup(title, text, strips)


# ── TIS, fig. 4 ──────────────────────────────────────────────────────────────────────────────────


def make_deletion_figure(
    loader: MapLoader,
    summaries: Sequence[MetricSummary],
    names: tuple[str, str] | None = None,
    steps: Sequence[float] = STEPS,
) -> StripGroup:
    """An image after deleting the highest scores of two methods.

    Parameters
    ----------
    loader, summaries
        The section and its summaries.
    names
        Names of the two methods; None for the best one, and the best one with another name.
    steps
        Fractions to delete.
    """
    title = "The image after deletion"
    methods = loader.section.methods
    curves = {summary.metric.split("(", maxsplit=1)[0]: summary for summary in summaries if is_deletion(summary.scores)}
    summary = next((curves[name] for name in (*USUAL, *curves) if name in curves), None)
    if summary is None or len(methods) < 2:
        return StripGroup(title, missing=f"it needs two methods and one of {', '.join(USUAL)}")
    scores = summary.scores
    if names is None:
        pair = pick_two_methods(methods, order_by_rank([summary]))
    else:
        row_by_name = {spec.split("(")[0]: row for row, spec in reversed([*enumerate(methods)])}
        if not set(names) <= row_by_name.keys():
            return StripGroup(title, missing=f"it needs {' and '.join(names)}")
        pair = (row_by_name[names[0]], row_by_name[names[1]])
    gaps = np.abs(scores.scores[pair[0]] - scores.scores[pair[1]])
    if np.isnan(gaps).all():
        return StripGroup(title, missing=f"{summary.metric} is defined on no image for both methods")
    place = int(np.nanargmax(gaps))
    question = loader.section.questions[place]
    levels = dict.fromkeys(int(np.abs(np.array(scores.levels) - step).argmin()) for step in steps)
    cards = []
    for row in pair:
        score = format_number(float(scores.scores[row, place]))
        cards.append(make_map_card(loader, methods[row], question, note=score))
        for at in levels:
            image = delete_top(loader.attribution(methods[row], question), scores.levels[at])
            note = describe_curve_point(scores, row, place, at)
            cards.append(make_card(image, f"{scores.levels[at]:.0%} deleted", note=note))
    text = Markup(
        "The image on which the two differ most by {}, as its highest scores go (TIS, fig. 4); what is gone is shown grey, and the probability is "
        "that of the {} class. Equal scores of a stored map may go in another order than they did when it was measured."
    ).format(format_code(summary.metric), scores.protocol.get("track", "explained"))
    return StripGroup(title, text, [ImageStrip(cards, 1 + len(levels))], question)


def make_map_card(loader: MapLoader, method: str, question: ImageTarget, title: str = "", note: str = "") -> ImageCard:
    """Card of a map over the part of the image that the model sees; its title is the method by default."""
    attribution = replace(loader.attribution(method, question), originals=None)
    note = join_nonempty(note, name_score(loader, method))
    return make_card(overlay_image(attribution, longest=480), title or method, is_spec=not title, note=note)


def name_score(loader: MapLoader, method: str) -> str:
    """The score that a method explains, if the methods of the figure explain different ones."""
    scores = loader.section.score_by_method
    return f"score: {format_score(scores[method])}" if len(loader.section.scores) > 1 and method in scores else ""


def pick_two_methods(methods: Sequence[str], order: Sequence[int]) -> tuple[int, int]:
    """The best method, and the best one with another name that is not the random control."""
    names = [name_method(spec) for spec in methods]
    other_rows = (row for row in order[1:] if names[row] not in (names[order[0]], "random"))
    return order[0], next(other_rows, order[1])


def name_method(spec: str) -> str:
    """Name of a method without options, fold and linearisation; as written, if the spec can no longer be resolved."""
    try:
        return resolve(spec).name
    except VitreousError:
        return strip_fold(spec).split("(")[0].split("@")[0]


def is_deletion(scores: MetricScores) -> bool:
    """Whether the metric has curves of the accuracy or probability as the highest scores are deleted."""
    axes = scores.axes if scores.levels else None
    return axes is not None and (axes.levels, axes.order) == ("removed", "descending") and axes.values != "other"


def describe_curve_point(scores: MetricScores, row: int, place: int, at: int) -> str:
    assert scores.curve is not None
    assert scores.axes is not None
    value = float(scores.curve[row, place, at])
    if scores.axes.values == "accuracy":
        return {1.0: "still right", 0.0: "no longer right"}.get(value, format_number(value))
    if scores.axes.values == "probability":
        return f"probability {format_number(value, 2)}"
    return f"probability {'falls' if value >= 0 else 'rises'} by {format_number(abs(value), 2)}"


def delete_top(attribution: Attribution, share: float) -> Image.Image:
    """The model's input with the highest scores grey: by patch, or by pixel for maps without patches."""
    assert attribution.images is not None, "the loader explains images"
    assert attribution.preprocess is not None, "images of a run are prepared by the model's preprocessing"
    pixels = attribution.preprocess.denormalise(attribution.images[0].float().cpu())
    image = pixels.permute(1, 2, 0).clamp(0, 255).numpy().astype(np.uint8)
    scores = attribution.maps()[0].cpu().numpy()
    order = np.argsort(-np.nan_to_num(scores.ravel(), nan=-np.inf), kind="stable")
    is_deleted = np.zeros(scores.size, bool)
    is_deleted[order[: int(share * scores.size)]] = True
    size = (image.shape[1], image.shape[0])
    mask = np.asarray(Image.fromarray(is_deleted.reshape(scores.shape)).resize(size, Image.Resampling.NEAREST))
    scale = 2 if max(size) < 200 else 1
    shown = Image.fromarray(np.where(mask[..., None], GREY, image))
    return shown.resize((size[0] * scale, size[1] * scale), Image.Resampling.NEAREST)


IMAGE_FIGURES: dict[str, Callable[[MapLoader, Sequence[MetricSummary]], StripGroup]] = {
    **{f"skipplus:figure{number}": make_grid_figure for number in (1, 5, 18)},
    "skipplus:figure2": make_layer_figure,
    "skipplus:figure6": partial(make_class_figure, most_images=None),
    "tis:figure2": make_grid_figure,
    "tis:figure3": make_disagreement_figure,
    "tis:figure4": partial(make_deletion_figure, names=("tis", "ig"), steps=(50 / 224,)),  # 50 of 224 steps
    "tokentm:figure4": make_grid_figure,
}
