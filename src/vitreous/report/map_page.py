"""The page about a folder of maps: counts, errors, predictions, maps on their images, and metrics if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.bench.model_options import load_cached
from vitreous.bench.plan import ModelSpec
from vitreous.bench.scores import ImageTarget
from vitreous.core.errors import DataError, VitreousError
from vitreous.data import Sample
from vitreous.draw import overlay_image
from vitreous.maps import MapFolder, StoredMap, read
from vitreous.metrics.metric import Metric, resolve_metric
from vitreous.models.model import BlackBox
from vitreous.report.chart_groups import ChartCard, LegendEntry
from vitreous.report.charts import ChartLine, draw_lines
from vitreous.report.formatting import format_count, format_number
from vitreous.report.gallery import MOST, ImageStrip, make_card
from vitreous.report.map_summary import BINS, ChosenImage, FolderSummary, Mean, summarise_folder
from vitreous.report.page import WrittenReport, write_tables, write_text
from vitreous.report.rendering import render_page
from vitreous.report.tables import ReportTable, TableCell, TableHead, make_number_cells

CLASSES = 20  # predicted classes in the table
IMAGES_MEASURED = 256
MapScores = dict[str, dict[str, Mean]]  # of every metric, by method


@dataclass(frozen=True, slots=True)
class MapGallery:
    """Strips of images with their maps."""

    title: str
    text: str
    strips: Sequence[ImageStrip]


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
    tables = make_tables(summary, scores)
    paths = write_tables(tables, out.parent / "tables")
    write_text(out, make_page(stored, summary, tables, galleries, unreached, images if scores else None))
    return WrittenReport(out, tuple(paths), (unreached,) if unreached else ())


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────


def load_explained_model(folder: MapFolder, device: str | None) -> BlackBox:
    """Load the model that the maps explain; a DataError if it has other weights now."""
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
    folder: MapFolder, vit: BlackBox, metric: Metric, images: int | None, dataset: str | None
) -> dict[str, Mean]:
    """Scores of the maps of the first images, by method."""
    scores: dict[str, Mean] = {}
    by_image = groupby(folder.evaluate(vit, metric, dataset=dataset), key=lambda scored: scored[0].key)
    for _, rows in islice(by_image, images):
        for row, score in rows:
            scores.setdefault(row.attribution.method, Mean()).add(np.array([score]))
    return scores


# ── images ───────────────────────────────────────────────────────────────────────────────────────


def make_galleries(summary: FolderSummary, dataset: str | None) -> tuple[list[MapGallery], str]:
    """Strips of the chosen images, and why the images themselves are not shown, if they are not."""
    unreached = ""
    galleries = []
    for title, text, chosen in (
        ("Some images", "Chosen by a hash of their names.", summary.sample),
        ("Most certain mistakes", "The predicted class is not the label; the most probable first.", summary.mistakes),
    ):
        strips: list[ImageStrip] = []
        for image in chosen:
            try:
                pairs = list(MapFolder((image.file,)).samples(dataset, **make_key_filter(image)))
            except (VitreousError, OSError) as error:
                unreached = unreached or " ".join(str(error).split())
                pairs = [(row, None) for row in MapFolder((image.file,)).rows(**make_key_filter(image))]
            strips += make_strips(pairs)
        if strips:
            galleries.append(MapGallery(title, text, strips))
    return galleries, unreached


def make_key_filter(image: ChosenImage) -> dict[str, Any]:
    return {MapFolder((image.file,)).key_column: image.key}


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


def make_tables(summary: FolderSummary, scores: MapScores) -> list[ReportTable]:
    tables = [tabulate_methods(summary, scores), tabulate_roles(summary), tabulate_classes(summary)]
    if summary.errors:
        tables.append(tabulate_errors(summary))
    return tables


def tabulate_methods(summary: FolderSummary, scores: MapScores) -> ReportTable:
    """Maps of every method, what they are like, and their scores."""
    heads = [
        TableHead("maps"),
        TableHead("flat", hint="maps whose scores are all 0 or not finite"),
        TableHead("negative", hint="share of the sum of absolute scores that is negative"),
        TableHead("strongest tenth", hint="share of the sum of absolute scores in a tenth of the patches"),
    ]
    statistics = summary.methods.values()
    columns = [
        [make_count_cell(method.maps) for method in statistics],
        [make_count_cell(method.flat) for method in statistics],
        [make_share_cell(method.negative.mean) for method in statistics],
        [make_share_cell(method.strongest.mean) for method in statistics],
    ]
    notes = []
    for spec, by_method in scores.items():
        metric = resolve_metric(spec)
        heads.append(TableHead(spec, metric.higher_is_better, judged=True))
        means = [by_method.get(method, Mean()) for method in summary.methods]
        cells = make_number_cells([mean.mean for mean in means], 3, metric.higher_is_better)
        columns.append(
            [replace(cell, span=f"± {format_number(mean.stderr, 3)}") for cell, mean in zip(cells, means, strict=True)]
        )
        undefined = sum(mean.undefined for mean in means)
        measured = max((mean.count for mean in means), default=0)
        note = f"{spec}: mean and standard error over {format_count(measured, 'map')} of each method"
        notes.append(note + (f"; undefined for {format_count(undefined, 'map')}" if undefined else ""))
    rows = [(method, list(cells)) for method, cells in zip(summary.methods, zip(*columns, strict=True), strict=True)]
    return ReportTable("maps-methods", "Maps by method", heads, rows, notes=notes)


def tabulate_roles(summary: FolderSummary) -> ReportTable:
    """Explained classes: their probability, and how many are the label."""
    heads = [TableHead("images"), TableHead("mean probability"), TableHead("with a label"), TableHead("are the label")]
    rows = []
    for role, statistics in summary.roles.items():
        right = statistics.right / statistics.labelled if statistics.labelled else float("nan")
        probability = statistics.probability
        cells = [make_count_cell(probability.count + probability.undefined), make_share_cell(probability.mean)]
        rows.append((role, [*cells, make_count_cell(statistics.labelled), make_share_cell(right)]))
    return ReportTable("maps-classes-explained", "Explained classes", heads, rows, first="explained class")


def tabulate_classes(summary: FolderSummary) -> ReportTable:
    """The most frequent predicted classes."""
    heads = [TableHead("images"), TableHead("share"), TableHead("with a label"), TableHead("right")]
    ordered = sorted(summary.classes.items(), key=lambda item: (-item[1].images, item[0]))
    rows = []
    for number, statistics in ordered[:CLASSES]:
        right = statistics.right / statistics.labelled if statistics.labelled else float("nan")
        cells = [make_count_cell(statistics.images), make_share_cell(statistics.images / summary.images)]
        rows.append(
            (
                statistics.name or f"class {number}",
                [*cells, make_count_cell(statistics.labelled), make_share_cell(right)],
            )
        )
    hidden = len(ordered) - CLASSES
    notes = [f"less frequent predicted classes that are left out: {hidden}"] if hidden > 0 else []
    return ReportTable("maps-predictions", "Predicted classes", heads, rows, first="predicted class", notes=notes)


def tabulate_errors(summary: FolderSummary) -> ReportTable:
    """Messages of failed rows."""
    heads = [TableHead("rows"), TableHead("for example")]
    rows = [
        (message, [make_count_cell(count), TableCell(summary.examples[message])])
        for message, count in summary.errors.most_common()
    ]
    return ReportTable("maps-errors", "Images without maps", heads, rows, first="error")


def make_count_cell(count: int) -> TableCell:
    return TableCell(f"{count:,}".replace(",", " "), count)


def make_share_cell(share: float) -> TableCell:
    return TableCell(format_number(share, 3), share)


# ── page ─────────────────────────────────────────────────────────────────────────────────────────


def make_page(
    folder: MapFolder,
    summary: FolderSummary,
    tables: Sequence[ReportTable],
    galleries: Sequence[MapGallery],
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
