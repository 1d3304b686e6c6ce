"""Summarise a run without holding its rows: they are sorted by metric on disk, and one metric is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vitreous.bench.resample import DRAWS, LEVEL
from vitreous.bench.rows import schema
from vitreous.bench.scores import MetricScores, ScoreSection
from vitreous.bench.store import Store
from vitreous.bench.summary import MetricSummary, summarise_metric

if TYPE_CHECKING:
    pass

# what summaries read of a row; curves, protocols and provenance stay on disk
SUMMARISED = (
    "model", "dataset", "picture", "index", "target", "target_name", "role", "label", "predicted", "probability",
    "method", "metric", "value", "higher_is_better", "parts", "seconds", "map_seconds", "peak_mib", "error",
)  # fmt: skip


@dataclass(slots=True)
class SectionFiles:
    """Files of one model on one dataset: the rows of every metric, in the order of the plan.

    Parameters
    ----------
    roles
        Roles of the targets, in order.
    is_read
        Whether any image could be read.
    files
        File of every metric.
    """

    roles: dict[str, None] = field(default_factory=dict)
    is_read: bool = False
    files: dict[str, Path] = field(default_factory=dict)


def summarise_store(
    store: Store, run: str | None = None, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> list[MetricSummary]:
    """As `summarise(store.table(run))`, in memory that holds the rows of one metric of one model and dataset.

    Parameters
    ----------
    store
        The store.
    run
        Name of the run; the last one if None.
    draws, level, seed
        As for `summarise`.

    Returns
    -------
    list of MetricSummary
        Without the rows that they were computed from: `scores` is empty.
    """
    with TemporaryDirectory(prefix="vitreous-") as folder:
        sections = sort_by_metric(store, run, Path(folder))
        return [
            summary
            for (model, dataset), section in sections.items()
            for explained in (section.roles if set(section.roles) == {"predicted", "label"} else [""])
            for scores in read_metrics(model, dataset, section, explained)
            for summary in [without_rows(summarise_metric(scores, draws, level, seed))]
        ]


def sort_by_metric(store: Store, run: str | None, folder: Path) -> dict[tuple[str, str], SectionFiles]:
    """Write the rows of every model, dataset and metric to a file of their own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = pa.schema([schema("scores").field(name) for name in SUMMARISED])
    sections: dict[tuple[str, str], SectionFiles] = {}
    writers: dict[Path, Any] = {}
    try:
        for table in store.scan(run, "scores", SUMMARISED):
            if not len(table):
                continue
            where = (table["model"][0].as_py(), table["dataset"][0].as_py())  # a cell is of one model and dataset
            section = sections.setdefault(where, SectionFiles())
            section.roles |= dict.fromkeys(role for role in table["role"].unique().to_pylist() if role)
            section.is_read |= bool((table["target"].to_numpy() >= 0).any())
            for metric in table["metric"].unique().to_pylist():
                path = section.files.setdefault(metric, folder / f"{len(writers):06d}.arrow")
                if path not in writers:
                    writers[path] = pa.ipc.new_stream(path, fields)
                writers[path].write_table(table.filter(pc.field("metric") == metric))
    finally:
        for writer in writers.values():
            writer.close()
    return sections


def read_metrics(model: str, dataset: str, section: SectionFiles, explained: str) -> Iterator[MetricScores]:
    """Scores of every metric, one after the other; metrics without a row of a readable image are left out."""
    for metric, path in section.files.items():
        rows = read_frame(path)
        own = ScoreSection(model, dataset, "", rows)
        own = own.of_role(explained, explained) if explained else own
        if section.is_read and not (own.rows["target"].to_numpy() >= 0).any():
            continue
        yield MetricScores(own, metric, own.measured)


def read_frame(path: Path) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(path) as stream:
        return stream.read_all().to_pandas(maps_as_pydicts="lossy")


def without_rows(summary: MetricSummary) -> MetricSummary:
    """The summary without its rows, so that they can be freed."""
    scores = summary.scores
    section = replace(scores.section, rows=scores.section.rows.iloc[:0])
    return replace(summary, scores=MetricScores(section, scores.metric, scores.rows.iloc[:0]))
