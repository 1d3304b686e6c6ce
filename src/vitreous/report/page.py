"""The report of a run: one self-contained HTML page, and its tables as files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from vitreous.bench.scores import ScoreSection
from vitreous.bench.summary import MetricSummary, order_by_rank, summarise_metric
from vitreous.core.errors import DataError, VitreousError
from vitreous.core.sealed_files import put_whole
from vitreous.metrics.published import published_orders, published_table
from vitreous.report.chart_groups import ChartGroup, draw_charts, draw_joined_radars
from vitreous.report.formatting import format_count
from vitreous.report.gallery import MOST, ImageStrip, StripGroup, describe_metrics, make_gallery
from vitreous.report.main_table import make_main_table, tabulate_all
from vitreous.report.map_loader import MapLoader, open_maps
from vitreous.report.paper_comparison import compare_with_orders, compare_with_paper
from vitreous.report.paper_figures import IMAGE_FIGURES, make_paper_figures
from vitreous.report.paper_tables import PaperTable, make_paper_tables
from vitreous.report.rendering import render_page
from vitreous.report.stored_run import StoredRun, read_run
from vitreous.report.tables import ReportTable, to_csv, to_latex, to_markdown


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Files of a report.

    Parameters
    ----------
    page
        The HTML page.
    tables
        Table files.
    unreached
        Reasons why images are not shown.
    papers, comparisons, orders
        Tables of the papers, their numbers beside those of the run, and agreement with orders that they state.
    """

    page: Path
    tables: tuple[Path, ...]
    unreached: tuple[str, ...] = ()
    papers: tuple[ReportTable, ...] = ()
    comparisons: tuple[ReportTable, ...] = ()
    orders: tuple[ReportTable, ...] = ()


@dataclass(frozen=True, slots=True)
class PageImages:
    """Gallery and figures of a section."""

    best: str  # method with the best mean rank
    metrics: str
    note: str
    strips: Sequence[ImageStrip]
    figures: Sequence[StripGroup]
    remade: Sequence[str]  # methods whose maps were computed again


@dataclass(slots=True)
class PageSection:
    """Tables, charts and images of a section."""

    section: ScoreSection
    slug: str
    summaries: Sequence[MetricSummary]
    table: ReportTable
    tables_by_role: dict[str, ReportTable] = field(default_factory=dict)
    charts: Sequence[ChartGroup] = ()
    images: PageImages | None = None
    unreached: str = ""


def write_report(
    folder: str | Path,
    out: str | Path,
    *,
    gallery: int = 6,
    run: str | None = None,
) -> WrittenReport:
    """Write one self-contained HTML page about a run, and its tables as Markdown, LaTeX and CSV beside it.

    Parameters
    ----------
    folder
        The folder that `vitreous bench` wrote.
    out
        Path of the page; the tables are written to `tables/` beside it.
    gallery
        Number of images shown per model and dataset; with 0, neither model nor dataset is loaded.
    run
        Name of the run; the last one if None.

    Returns
    -------
    WrittenReport

    Raises
    ------
    DataError
        If the run cannot be read, or the page cannot be written.
    """
    stored, out = read_run(folder, run), Path(out)
    parts = []
    for slug, section in name_sections(stored.sections).items():
        parts.append(make_part(stored, section, slug, gallery))
    reproduces = str(stored.entries.get("reproduces", ""))
    papers = [
        paper
        if paper.table is None
        else replace(paper, table=replace(paper.table, about=stored.describe(*paper.sections)))
        for paper in make_paper_tables(name_sections(stored.whole_sections), stored.families, reproduces)
    ]
    comparisons = [table for paper in papers for table in compare_with_paper(paper, published_table(reproduces))]
    stated = published_orders().get(reproduces, ())
    orders = [table for paper in papers for table in compare_with_orders(paper, stated)]
    filled = tuple(paper.table for paper in papers if paper.table)
    tables = [*(part.table for part in parts), *filled, *comparisons, *orders]
    abouts = [part.table.about for part in parts]
    everything = tabulate_all([(part.section, part.summaries) for part in parts], abouts)
    paths = [write_text(out.parent / "tables" / "all.csv", everything), *write_tables(tables, out.parent / "tables")]
    write_text(out, make_page(stored, parts, papers, comparisons, orders))
    unreached = dict.fromkeys(part.unreached for part in parts if part.unreached)
    return WrittenReport(out, tuple(paths), tuple(unreached), filled, tuple(comparisons), tuple(orders))


def make_part(stored: StoredRun, section: ScoreSection, slug: str, gallery: int) -> PageSection:
    """Make the tables, charts and images of one section."""
    summaries = [summarise_metric(scores) for scores in section.metrics]
    loader, unreached, images = None, "", None
    if gallery > 0:
        try:
            loader = open_maps(stored, section)
            images = show_images(stored, loader, summaries, gallery)
        except (VitreousError, OSError) as error:
            unreached = " ".join(str(error).split())
    model = None if loader is None else loader.vit
    by_role, about = {}, stored.describe(section)
    for role in section.roles if len(section.roles) > 1 else ():
        own = section.of_role(role)
        by_role[role] = make_main_table(own, [summarise_metric(scores) for scores in own.metrics], slug, about=about)
    table = make_main_table(section, summaries, slug, model, about)
    charts = draw_charts(section, summaries, None if model is None else model.depth)
    return PageSection(section, slug, summaries, table, by_role, charts, images, unreached)


def show_images(stored: StoredRun, loader: MapLoader, summaries: Sequence[MetricSummary], count: int) -> PageImages:
    order, methods = order_by_rank(summaries), loader.section.methods
    hidden = len(order) - MOST
    note = f" The {MOST} methods of best mean rank are shown; {hidden} more are in the table." if hidden > 0 else ""
    strips = make_gallery(loader, summaries, count)
    reproduces, whole = str(stored.entries.get("reproduces", "")), loader.section.of_score("")
    if reproduces in IMAGE_FIGURES and loader.section.score:  # a published figure has the methods of all scores
        own_loader = replace(loader, section=whole)
        is_first = loader.section.score == whole.scores[0]
        own_summaries = [summarise_metric(scores) for scores in whole.metrics] if is_first else []
        figures = make_paper_figures(own_loader, own_summaries, reproduces) if is_first else []
    else:
        figures = make_paper_figures(loader, summaries, reproduces)
    remade = list(dict.fromkeys(re.sub(r"layer=\d+", "layer=…", name) for name in loader.remade))
    return PageImages(methods[order[0]], describe_metrics(summaries), note, strips, figures, remade)


def make_page(
    stored: StoredRun,
    parts: Sequence[PageSection],
    papers: Sequence[PaperTable],
    comparisons: Sequence[ReportTable],
    orders: Sequence[ReportTable],
) -> str:
    sections = [part.section for part in parts]
    counts = {
        "model": len({section.model for section in sections}),
        "dataset": len({section.dataset for section in sections}),
        "method": len({method for section in sections for method in section.methods}),
        "metric": len({scores.metric for section in sections for scores in section.metrics}),
    }
    images = len({question.image for section in sections for question in section.questions})
    scope = " × ".join(format_count(count, noun) for noun, count in counts.items())
    protocols = {scores.metric: scores.protocol for section in reversed(sections) for scores in section.metrics}
    metrics = dict.fromkeys(scores.metric for section in sections for scores in section.metrics)
    return render_page(
        "report.html",
        scope=f"{scope}, {format_count(images, 'image')}",
        run=stored,
        made=f"{datetime.fromtimestamp(stored.made, UTC):%Y-%m-%d %H:%M}",
        parts=parts,
        joined=draw_joined_radars([(part.section, part.summaries) for part in parts], stored.families),
        papers=papers,
        comparisons=comparisons,
        orders=orders,
        reproduces=stored.entries.get("reproduces", ""),
        reduced=stored.entries.get("reduced", ""),
        facts={"folder": stored.folder, "run": stored.name, **stored.about},
        protocols={metric: json.dumps(protocols[metric], ensure_ascii=False) for metric in metrics},
    )


def name_sections(sections: Sequence[ScoreSection]) -> dict[str, ScoreSection]:
    """Sections by a unique name that is safe in file names and links."""
    named: dict[str, ScoreSection] = {}
    for section in sections:
        text = "-".join(filter(None, (section.model, section.dataset, section.explained, section.score)))
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-") or "block"
        named[slug if slug not in named else f"{slug}-{sha256(text.encode()).hexdigest()[:8]}"] = section
    return named


def write_tables(tables: Sequence[ReportTable], folder: Path) -> list[Path]:
    """Write every table as Markdown, LaTeX and CSV, and return the paths."""
    return [
        write_text(folder / f"{table.slug}.{suffix}", to_text(table))
        for table in tables
        for suffix, to_text in (("md", to_markdown), ("tex", to_latex), ("csv", to_csv))
    ]


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"'{path}' cannot be written: {error.strerror}") from None
    put_whole(path, text.encode())
    return path
