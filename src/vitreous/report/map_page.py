"""The page about a folder of maps: counts, errors, predictions, maps on their images, and metrics if requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.bench.model_options import load_cached
from vitreous.bench.section_files import ImageTarget
from vitreous.core.errors import DataError, VitreousError
from vitreous.data import Sample
from vitreous.draw import overlay_image
from vitreous.maps import MapFolder, StoredMap, read
from vitreous.methods.spec import depends_on_class
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.model import BlackBox
from vitreous.report.chart_groups import ChartCard, LegendEntry
from vitreous.report.charts import ChartLine, draw_lines
from vitreous.report.formatting import format_count, format_number
from vitreous.report.gallery import MOST, ImageStrip, StripGroup, make_card
from vitreous.report.map_summary import BINS, FolderSummary, Mean, summarise_folder
from vitreous.report.page import WrittenReport, write_tables, write_text
from vitreous.report.rendering import render_page
from vitreous.report.tables import (
    ReportTable,
    TableCell,
    TableHead,
    describe_scores,
    make_number_cells,
    make_score_column,
)

CLASSES = 20  # predicted classes in the table
IMAGES_MEASURED = 256
MapScores = dict[str, dict[str, Mean]]  # of every metric, by method
METHOD_HEADS = {
    "maps": "",
    "flat": "maps whose scores are all 0 or not finite",
    "negative": "share of the sum of absolute scores that is negative",
    "strongest tenth": "share of the sum of absolute scores in a tenth of the patches",
}
ROLE_HEADS = ("images", "mean probability", "with a label", "are the label")
CLASS_HEADS = ("images", "share", "with a label", "right")


def write_map_report(
    folder: str | Path,
    out: str | Path,
    *,
    gallery: int = 6,
    metrics: Sequence[str] = (),
    images: int | None = IMAGES_MEASURED,
    dataset: str | None = None,
    model: BlackBox | None = None,
    device: str | None = None,
    step: Callable[[str], object] = lambda _: None,
) -> WrittenReport:
    """Write one self-contained HTML page about the maps in a folder, and its tables as files beside it.

    The files are read batch by batch, so that memory does not grow with their number.

    Parameters
    ----------
    folder
        The folder that `vitreous map` wrote.
    out
        Path of the page; the tables are written to `tables/` beside it.
    gallery
        Number of images shown, and of mistakes shown; 0 for none.
    metrics
        Specs of metrics; the model, and the images again, are loaded only for them.
    images
        Largest number of images that are measured, the first ones of the folder; None for all.
    dataset
        Spec of the dataset, if its images are no longer where they were explained.
    model
        The model for the metrics; by default it is loaded as it was for the maps.
    device
        Device of that model.
    step
        Called with the name of each step before it begins.

    Returns
    -------
    WrittenReport

    Raises
    ------
    DataError
        If there are no maps in the folder, the page cannot be written, or a metric cannot be computed since images or
        model are not found.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from vitreous.bench.plan import ModelSpec
    >>> from vitreous.mapping.job import MapJob
    >>> from vitreous.mapping.run import run_map
    >>> job = MapJob(ModelSpec("scenes", "scenes"), "scenes:single?count=3", ("gradcam",))
    >>> with TemporaryDirectory() as folder:
    ...     progress = run_map(job, Path(folder), device="cpu")
    ...     written = write_map_report(folder, Path(folder) / "report.html", gallery=1)
    ...     "3 images" in written.page.read_text()
    True
    """
    chosen = [resolve_metric(metric) for metric in metrics]
    stored, out = read(folder), Path(out)
    step("reading")
    summary = summarise_folder(stored, gallery)
    scores: MapScores = {}
    if chosen:
        step("measuring")
        vit = model or load_explained_model(stored, device)
        scores = {metric.spec: measure_folder(stored, vit, metric, images, dataset) for metric in chosen}
    step("images")
    galleries, unreached = make_galleries(summary, dataset)
    tables = make_tables(summary, scores, read_scores(stored))
    paths = write_tables(tables, out.parent / "tables")
    write_text(out, make_page(stored, summary, tables, galleries, unreached, images if scores else None))
    return WrittenReport(out, tuple(paths), (unreached,) if unreached else ())


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def load_explained_model(folder: MapFolder, device: str | None) -> BlackBox:
    """Load the model that the maps explain; a DataError if it has other weights now."""
    from vitreous.bench.plan import ModelSpec  # needs pydantic, and `vitreous demo` does not

    about = folder.about
    if "model" not in about:
        raise DataError(f"'{folder.files[0]}' does not name its model; metrics need it")
    described = dict(about.get("model_spec") or {"name": about["model"], "label": about["model"]})
    arguments = tuple((name, value) for name, value in described.pop("arguments", ()))
    loaded = load_cached(ModelSpec(**described, arguments=arguments), "float32", device)
    if about.get("weights") not in (None, loaded.weights):
        raise DataError(f"model {about['model']!r} has other weights than the one that was explained")
    return loaded.vit


def measure_folder(
    folder: MapFolder, model: BlackBox, metric: Metric, images: int | None, dataset: str | None
) -> dict[str, Mean]:
    """Scores of the maps of the first images, by method."""
    scores: dict[str, Mean] = {}
    by_image = groupby(folder.evaluate(model, metric, dataset=dataset), key=lambda scored: scored[0].key)
    for _, rows in islice(by_image, images):
        for row, score in rows:
            scores.setdefault(row.attribution.method, Mean()).add(np.array([score]))
    return scores


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def make_galleries(summary: FolderSummary, dataset: str | None) -> tuple[list[StripGroup], str]:
    """Strips of the chosen images, and why the images themselves are not shown, if they are not."""
    unreached = ""
    galleries = []
    for title, text, chosen in (
        ("Some images", "Chosen by a hash of their names.", summary.sample),
        ("Most certain mistakes", "The predicted class is not the label; the most probable first.", summary.mistakes),
    ):
        strips: list[ImageStrip] = []
        for image in chosen:
            stored = MapFolder((image.file,))
            own_rows: dict[str, Any] = {"key": image.key}
            try:
                pairs = list(stored.samples(dataset, **own_rows))
            except (VitreousError, OSError) as error:
                unreached = unreached or " ".join(str(error).split())
                pairs = [(row, None) for row in stored.rows(**own_rows)]
            strips += make_strips(pairs)
        if strips:
            galleries.append(StripGroup(title, text, strips))
    return galleries, unreached


def make_strips(pairs: Sequence[tuple[StoredMap, Sample | None]]) -> Iterator[ImageStrip]:
    """A strip per explained class of an image: the image, then the map of every method."""
    for _, rows in groupby(pairs, key=lambda pair: (pair[0].target, pair[0].role)):
        own = list(rows)
        first, sample = own[0]
        image = None if sample is None else sample.image
        cards = [] if image is None else [make_card(image, "image")]
        for row, _ in own[:MOST]:
            attribution = row.attribution if image is None else replace(row.attribution, originals=(image,))
            cards.append(make_card(overlay_image(attribution, longest=480), row.attribution.method, is_spec=True))
        target = ImageTarget(
            first.key, first.index, first.target, first.target_name, first.role, first.label, first.predicted, first.probability
        )  # fmt: skip
        yield ImageStrip(cards, len(cards), target, f" · {first.role}" if first.role != "predicted" else "")


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def read_scores(folder: MapFolder) -> dict[str, str]:
    """Name of the score that each method explains; empty if its maps do not depend on the class."""
    provenance = folder.about.get("provenance", {})
    return {
        method: str(entries.get("question", "")) if depends_on_class(method) else ""
        for method, entries in provenance.items()
    }


def make_tables(
    summary: FolderSummary, scores: MapScores, score_by_method: Mapping[str, str] | None = None
) -> list[ReportTable]:
    """Tables of methods, of explained and predicted classes, and of errors if there are any."""
    roles = [
        (role, [own.probability.count + own.probability.undefined, own.probability.mean, own.labelled, own.right_share])
        for role, own in summary.roles.items()
    ]
    ordered = sorted(summary.classes.items(), key=lambda item: (-item[1].images, item[0]))
    classes = [
        (own.name or f"class {number}", [own.images, own.images / summary.images, own.labelled, own.right_share])
        for number, own in ordered[:CLASSES]
    ]
    hidden = len(ordered) - CLASSES
    notes = [f"less frequent predicted classes that are left out: {hidden}"] if hidden > 0 else []
    errors = [(message, [count, summary.examples[message]]) for message, count in summary.errors.most_common()]
    tables = [
        tabulate_methods(summary, scores, score_by_method or {}),
        tabulate("maps-classes-explained", "Explained classes", "explained class", ROLE_HEADS, roles),
        tabulate("maps-predictions", "Predicted classes", "predicted class", CLASS_HEADS, classes, notes),
        tabulate("maps-errors", "Images without maps", "error", ("rows", "for example"), errors),
    ]
    return tables if errors else tables[:-1]


def tabulate(
    slug: str,
    title: str,
    first: str,
    heads: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | int | str]]],
    notes: Sequence[str] = (),
) -> ReportTable:
    """Table of texts, counts, and numbers with three decimals."""
    cells = [(name, [make_cell(value) for value in values]) for name, values in rows]
    return ReportTable(slug, title, [TableHead(head) for head in heads], cells, first, notes=notes)


def tabulate_methods(summary: FolderSummary, scores: MapScores, score_by_method: Mapping[str, str]) -> ReportTable:
    """Maps of every method, what they are like, and their scores."""
    heads = [TableHead(name, hint=hint) for name, hint in METHOD_HEADS.items()]
    rows = {
        name: [make_cell(value) for value in (own.maps, own.flat, own.negative.mean, own.strongest.mean)]
        for name, own in summary.methods.items()
    }
    own_scores = [score_by_method.get(method, "") for method in rows]
    score_head, score_cells = make_score_column(own_scores)
    heads.append(score_head)
    for row, cell in zip(rows.values(), score_cells, strict=True):
        row.append(cell)
    notes = [describe_scores(own_scores)]
    for spec, by_method in scores.items():
        higher = resolve_metric(spec).higher_is_better
        heads.append(TableHead(spec, higher, judged=True))
        means = [by_method.get(method, Mean()) for method in rows]
        cells = make_number_cells([mean.mean for mean in means], 3, higher, own_scores)
        for row, cell, mean in zip(rows.values(), cells, means, strict=True):
            row.append(replace(cell, span=f"± {format_number(mean.stderr, 3)}"))
        undefined = sum(mean.undefined for mean in means)
        measured = max((mean.count for mean in means), default=0)
        note = f"{spec}: mean and standard error over {format_count(measured, 'map')} of each method"
        notes.append(note + (f"; undefined for {format_count(undefined, 'map')}" if undefined else ""))
    return ReportTable("maps-methods", "Maps by method", heads, [*rows.items()], notes=notes)


def make_cell(value: float | int | str) -> TableCell:
    """Cell of a text, a count, or a number with three decimals."""
    if isinstance(value, str):
        return TableCell(value)
    return TableCell(f"{value:,}".replace(",", " ") if isinstance(value, int) else format_number(value, 3), value)


# ── page ─────────────────────────────────────────────────────────────────────────────────────────


def make_page(
    folder: MapFolder,
    summary: FolderSummary,
    tables: Sequence[ReportTable],
    galleries: Sequence[StripGroup],
    unreached: str,
    measured: int | None,
) -> str:
    about = folder.about
    scope = [format_count(summary.images, "image"), format_count(len(summary.methods), "method")]
    scope.append(format_count(summary.maps, "map"))
    failed = f"{format_count(summary.failed, 'image')} without a map" if summary.failed else "no errors"
    facts = {name: about.get(name) for name in ("model", "dataset", "weights", "run", "format")}
    return render_page(
        "maps.html",
        title=f"Maps of {about.get('dataset', folder.files[0].parent)}",
        scope=f"{', '.join(scope)}; {failed}",
        model=about.get("model", ""),
        tables={table.slug: table for table in tables},
        chart=draw_probabilities(summary),
        galleries=galleries,
        unreached=unreached,
        measured=measured,
        facts={"folder": folder.files[0].parent, "files": len(folder.files), **facts},
        provenance=about.get("provenance", {}),
    )


def draw_probabilities(summary: FolderSummary) -> ChartCard | None:
    """Histogram of the probabilities of explained classes; None without probabilities."""
    lines = []
    for style, (role, statistics) in enumerate(summary.roles.items()):
        if statistics.histogram.sum():
            share = statistics.histogram / statistics.histogram.sum()
            lines.append(ChartLine(role, style, ((np.arange(BINS) + 0.5) / BINS).tolist(), share))
    if not lines:
        return None
    legend = [LegendEntry(line.name, line.style) for line in lines]
    chart = draw_lines(lines, "probability of the explained class", "share of the images")
    return ChartCard("Probability of the explained class", chart, "Share of the images, in steps of 0.05.", legend)
