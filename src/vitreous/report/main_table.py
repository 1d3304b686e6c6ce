"""The main table of a section (methods × metrics, with costs), and one CSV file with all values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vitreous.bench.cost import count_method_passes, read_model_sizes
from vitreous.bench.resample import DRAWS, FEW
from vitreous.bench.scores import ScoreSection
from vitreous.bench.summary import MetricSummary, compute_mean_ranks
from vitreous.core.errors import VitreousError
from vitreous.methods.pass_counts import evaluate_passes
from vitreous.methods.spec import resolve
from vitreous.models.model import BlackBox
from vitreous.report.formatting import (
    ARROWS,
    choose_digits,
    format_count,
    format_interval,
    format_number,
    format_score,
    format_seconds,
    join_nonempty,
)
from vitreous.report.tables import (
    ReportTable,
    TableCell,
    TableHead,
    describe_scores,
    make_score_column,
    place_values,
    write_csv,
)

UNSURE = 20  # number of images below which a note says that intervals tend to be too narrow
COST_HINT = "median seconds per map, without the forward pass that methods share; forwards and backwards"
COLUMNS = (
    *("model", "dataset", "explained", "score", "ranked_with", "method", "metric", "direction", "value", "low", "high"),
    *(
        "rank",
        "tied_with_best",
        "questions",
        "undefined",
        "failed",
        "map_seconds",
        "metric_seconds",
        "forwards",
        "backwards",
    ),
)


def make_main_table(
    section: ScoreSection,
    summaries: Sequence[MetricSummary],
    slug: str,
    model: BlackBox | None = None,
    about: Mapping[str, str] | None = None,
) -> ReportTable:
    """Make the table of values, intervals, ranks and ties of all methods by all metrics.

    Parameters
    ----------
    section
        Rows of one model on one dataset.
    summaries
        One summary per metric of the section.
    slug
        Base name of the table's files.
    model
        The model, if it could be loaded; the cost of some methods depends on its sizes.
    about
        As for `ReportTable`.

    Returns
    -------
    ReportTable
    """
    heads = [TableHead(summary.metric, summary.higher_is_better, True) for summary in summaries]
    heads += [TableHead("mean rank", False, hint="over the metrics that judge"), TableHead("cost", hint=COST_HINT)]
    columns = [make_score_cells(summary) for summary in summaries]
    ranks, seconds = compute_mean_ranks(summaries), section.map_seconds
    own_scores = [*section.score_by_method.values()]
    places = place_values(ranks, 2, False, own_scores)
    score_head, score_cells = make_score_column(own_scores)
    heads.append(score_head)
    rows = []
    for row, method in enumerate(section.methods):
        forwards, backwards = count_passes(method, model)
        rank = TableCell(format_number(ranks[row], 2), ranks[row], place=places[row])
        cost = TableCell(format_seconds(seconds[method]), seconds[method], aside=f"{forwards} fwd, {backwards} bwd")
        rows.append((method, [*(column[row] for column in columns), rank, cost, score_cells[row]]))
    return ReportTable(slug, section.title, heads, rows, notes=list_notes(section, summaries), about=about or {})


def make_score_cells(summary: MetricSummary) -> list[TableCell]:
    values = summary.values.tolist()
    digits = choose_digits(values)
    places = place_values(values, digits, summary.higher_is_better, [entry.score for entry in summary.aligned])
    cells = []
    for entry, place in zip(summary.aligned, places, strict=True):
        aside = join_nonempty(
            f"rank {entry.rank}" if entry.rank else "",
            f"{entry.undefined} of {count_used_rows(summary)} undefined" if entry.undefined else "",
            f"{entry.errors} failed" if entry.errors else "",
        )
        tied = entry.tied and entry.rank is not None and entry.rank > 1
        span = format_interval(entry.low, entry.high, digits)
        cells.append(TableCell(format_number(entry.value, digits), entry.value, span, place, tied, aside))
    return cells


def count_used_rows(summary: MetricSummary) -> int:
    return max((entry.rows for entry in summary.entries), default=0)


def list_notes(section: ScoreSection, summaries: Sequence[MetricSummary]) -> list[str]:
    """Notes on how to read the numbers and on their limits."""
    image_count, questions = len(section.clusters), len(section.questions)
    roles = ", ".join(section.roles)
    question_count = (
        f", {format_count(questions, 'question')} (image × class: {roles})" if questions > image_count else ""
    )
    notes = [
        f"{format_count(image_count, 'image')}{question_count}. Best bold, second underlined; in brackets the 95 % interval over {DRAWS} "
        "resamplings of the images, the same for every method; ≈ is not significantly different from the best (the interval of "
        "the paired difference contains 0; not corrected for many comparisons)."
    ]
    own_scores = [*section.score_by_method.values()]
    notes.insert(0, describe_scores(own_scores))
    if section.score:
        others = [name for name in section.of_score("").scores if name != section.score]
        notes.insert(
            1,
            f"Methods of the run that explain {' or '.join(others)} have a table of their own, since maps of different scores are not "
            f"comparable; --question {section.score} explains the same score by all methods.",
        )
    if image_count < FEW:
        notes.append("One image has no interval.")
    elif image_count < UNSURE:
        notes.append(f"Intervals from {format_count(image_count, 'image')} tend to be too narrow.")
    if any(len({entry.undefined for entry in summary.aligned}) > 1 for summary in summaries):
        notes.append(
            "Some methods are undefined on questions on which others are not: every figure is over the questions on which its own "
            "method is defined, and ≈ is decided on those on which both are."
        )
    if any(len({entry.errors > 0 for entry in summary.aligned}) > 1 for summary in summaries):
        notes.append(
            "Images on which a method failed are left out for all of them, so that all figures are over the same ones."
        )
    return notes + [f"{format_count(count, 'row')} failed: {text}" for text, count in section.failures.items()]


def count_passes(spec: str, model: BlackBox | None = None) -> tuple[int | str, int | str]:
    """Forward and backward passes of a method per image, rounded up; the formula itself if it cannot be evaluated."""
    try:
        method = resolve(spec)
    except VitreousError:
        return "?", "?"
    passes = (
        evaluate_passes(method, {}) if model is None else count_method_passes(method, model, read_model_sizes(model))
    )
    if passes is None:
        return method.facts.forwards, method.facts.backwards
    forwards, backwards = (math.ceil(round(count, 6)) for count in passes)
    return forwards, backwards


def tabulate_all(
    parts: Sequence[tuple[ScoreSection, Sequence[MetricSummary]]], abouts: Sequence[Mapping[str, str]] | None = None
) -> str:
    """CSV with one row per model, dataset, score, method and metric, in full precision.

    A method whose maps do not depend on the class has a row for every score that it is ranked with. `abouts` are those of
    `ReportTable`, one for every part.
    """
    rows = []
    names = [*dict.fromkeys(name for about in abouts or () for name in about)]
    for (section, summaries), about in zip(parts, abouts or [{}] * len(parts), strict=True):
        seconds = section.map_seconds
        for method, entries in zip(
            section.methods, zip(*(summary.aligned for summary in summaries), strict=True), strict=True
        ):
            passes = count_passes(method)
            for summary, entry in zip(summaries, entries, strict=True):
                tied = "" if entry.rank is None else int(entry.tied)
                own = (format_score(entry.score), section.score or "any")
                where = (section.model, section.dataset, section.explained, *own, method, summary.metric)
                values = (ARROWS[summary.higher_is_better], entry.value, entry.low, entry.high, entry.rank, tied)
                counts = (count_used_rows(summary), entry.undefined, entry.errors)
                facts = (about.get(name, "") for name in names)
                rows.append([*where, *values, *counts, seconds[method], entry.seconds, *passes, *facts])
    return write_csv([*COLUMNS, *(f"about_{name}" for name in names)], rows)
