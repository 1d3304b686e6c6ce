"""Published tables in their original layouts, filled with the values of a run, or with a note on what the run lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan

from vitreous.bench.scores import ScoreSection
from vitreous.metrics.protocols import protocol
from vitreous.report.column_match import EXPLAINED, FilledColumn, PublishedColumn, fill_column, fill_columns
from vitreous.report.tables import ReportTable, TableHead, number_cells

BASELINES = {"Mean": "mean", "Blur": "blur", "Black": "black", "Rand": "random"}
# TokenTM, table 4
VARIANTS = {
    "tokentm(preset='baseline')": "Baseline",
    "tokentm(preset='af')": "+ AF",
    "tokentm(preset='af+l')": "+ AF + L",
    "tokentm": "+ AF + L + NECC",
    "tokentm(preset='full')": "+ AF + L + NECC",
}
SEGMENTATION = (
    PublishedColumn("Pix. Acc.", "pixel_accuracy", percent=True),
    PublishedColumn("mAP", "map_two_channel", percent=True),
    PublishedColumn("mIoU", "miou", percent=True),
)
ACCURACY = tuple(
    PublishedColumn(f"{word} ({explained})", metric, explained=explained, percent=True)
    for explained in EXPLAINED
    for word, metric in (("Neg.", "negative_auc"), ("Pos.", "positive_auc"))
)
PERTURBATION = (
    PublishedColumn("Neg.", "negative_auc", percent=True),
    PublishedColumn("Pos.", "positive_auc", percent=True),
)
INSERTION = {
    title: [PublishedColumn(word, metric, (("baseline", baseline),)) for word, baseline in BASELINES.items()]
    for title, metric in (
        ("Insertion", "insertion"),
        ("Deletion", "deletion"),
        ("Insertion - Deletion", "insertion_minus_deletion"),
    )
}
PROBABILITY = (PublishedColumn("AOPC", "aopc"), PublishedColumn("LOdds", "lodds"))
POINTING = (PublishedColumn("pointing game", "pointing_game"),)
SENSITIVITY = (PublishedColumn("max sensitivity", "max_sensitivity"),)

Sections = dict[str, ScoreSection]  # by slug
Groups = Sequence[tuple[str, Sequence[FilledColumn]]]  # columns with their common title


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A published table, or the reason why it cannot be filled."""

    title: str
    table: ReportTable | None
    missing: str = ""


def make_paper_tables(sections: Sections) -> list[PaperTable]:
    """Fill all published tables with the values of a run.

    Parameters
    ----------
    sections
        Sections by slug, with predicted and true classes together.

    Returns
    -------
    list of PaperTable
    """
    return [
        *accuracy_tables(sections),
        *localisation_tables(sections),
        *models_side_by_side("TokenTM, table 3: impact on probability", "tokentm-3", PROBABILITY, sections),
        *ablation_tables(sections),
        *insertion_tables(sections),
        *models_side_by_side("TIS, table 3: pointing game", "tis-3", POINTING, sections),
        *models_side_by_side("TIS, table 4: max sensitivity", "tis-4", SENSITIVITY, sections),
    ]


def build_table(
    slug: str,
    title: str,
    groups: Groups,
    methods: Sequence[str],
    digits: int = 2,
    *,
    first: str = "method",
    notes: Sequence[str] = (),
) -> ReportTable:
    """Build a table whose rows are named as in the paper that the slug begins with."""
    columns = [column for _, columns in groups for column in columns]
    cells = [number_cells(column.values, digits, column.higher) for column in columns]
    heads = [TableHead(column.title, column.higher, True, hint=column.name) for column in columns]
    widths = [(name, len(columns)) for name, columns in groups if name and columns]
    names = {spec: name for name, spec in protocol(slug.split("-", maxsplit=1)[0]).rows.items()}
    rows = [
        (f"{names[method]}: {method}" if method in names else method, [column[row] for column in cells])
        for row, method in enumerate(methods)
    ]
    return ReportTable(slug, title, heads, rows, first, widths, notes)


def note_missing(names: Sequence[str]) -> list[str]:
    return [f"The run has no {', '.join(names)}."] if names else []


def group_sections(sections: Sections, key: Callable[[ScoreSection], str]) -> dict[str, Sections]:
    groups: dict[str, Sections] = {}
    for slug, section in sections.items():
        groups.setdefault(key(section), {})[slug] = section
    return groups


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def accuracy_tables(sections: Sections) -> Iterator[PaperTable]:
    """Table 1: two datasets in one cell."""
    title = "TokenTM, table 1: impact on accuracy, two data sets"
    for model, group in group_sections(sections, lambda section: section.model).items():
        if len(group) < 2:
            yield PaperTable(title, None, f"{model} was measured on one data set; it needs two")
            continue
        slug, first = next(iter(group.items()))
        filled = [fill_columns(section, ACCURACY) for section in group.values()]
        missing = sorted({name for _, names in filled for name in names})
        by_title = [{column.title: column for column in columns} for columns, _ in filled]
        shared = [name for name in by_title[0] if all(name in columns for columns in by_title)]
        if not shared or any(section.methods != first.methods for section in group.values()):
            lacks = ", ".join(missing) or "methods that are the same on both"
            yield PaperTable(title, None, f"{model}: the run lacks {lacks}")
            continue
        notes = [f"In percent; {' / '.join(section.dataset for section in group.values())}.", *note_missing(missing)]
        tables = [
            build_table(
                f"tokentm-1-{slug}",
                f"Impact on accuracy: {model}",
                [("", [columns[name] for name in shared])],
                first.methods,
                notes=notes,
            )
            for columns in by_title
        ]
        rows = [
            (name, [replace(cell, also=tuple(others)) for cell, *others in zip(*cells, strict=True)])
            for name, *cells in (
                (rows[0][0], *(cells for _, cells in rows)) for rows in zip(*(t.rows for t in tables), strict=True)
            )
        ]
        yield PaperTable(title, replace(tables[0], rows=rows))


def localisation_tables(sections: Sections) -> Iterator[PaperTable]:
    """Table 2: localisation and impact on accuracy of one dataset."""
    title = "TokenTM, table 2: localisation ability and impact on accuracy"
    for slug, section in sections.items():
        (left, no_left), (right, no_right) = fill_columns(section, SEGMENTATION), fill_columns(section, ACCURACY)
        if not left or not right:
            lacks = ", ".join(no_right if left else no_left)
            yield PaperTable(title, None, f"{section.title}: the run lacks {lacks}")
            continue
        groups = [("Localization Ability", left), ("Impact on Accuracy", right)]
        notes = ["In percent.", *note_missing([*no_left, *no_right])]
        yield PaperTable(title, build_table(f"tokentm-2-{slug}", section.title, groups, section.methods, notes=notes))


def ablation_tables(sections: Sections) -> Iterator[PaperTable]:
    """Table 4: ablation of TokenTM."""
    title = "TokenTM, table 4: ablation"
    for slug, section in sections.items():
        rows = [section.methods.index(spec) for spec in VARIANTS if spec in section.methods]
        (left, no_left), (right, no_right) = fill_columns(section, SEGMENTATION), fill_columns(section, PERTURBATION)
        missing = [*no_left, *no_right]
        if len(rows) < 2 or not (left or right):
            lacks = [spec for spec in VARIANTS if spec not in section.methods][:3] if len(rows) < 2 else missing
            yield PaperTable(title, None, f"{section.title}: the run lacks {', '.join(lacks)}")
            continue
        groups = [
            (name, [replace(column, values=[column.values[row] for row in rows]) for column in columns])
            for name, columns in (("Segmentation", left), ("Perturbation Test", right))
        ]
        variants = [VARIANTS[section.methods[row]] for row in rows]
        absent = [name for name in dict.fromkeys(VARIANTS.values()) if name not in variants]
        notes = ["In percent.", *note_missing([*absent, *missing])]
        table = build_table(f"tokentm-4-{slug}", section.title, groups, variants, first="", notes=notes)
        yield PaperTable(title, table)


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def insertion_tables(sections: Sections) -> Iterator[PaperTable]:
    """Tables 1–2: insertion, deletion and their difference with four baselines, one table per model."""
    title = "TIS, tables 1–2: insertion and deletion"
    for slug, section in sections.items():
        filled = {name: fill_columns(section, wanted) for name, wanted in INSERTION.items()}
        groups = [(name, columns) for name, (columns, _) in filled.items() if columns]
        missing = [name for _, names in filled.values() for name in names]
        if len(groups) < 2:
            yield PaperTable(title, None, f"{section.title}: the run lacks {', '.join(missing)}")
            continue
        notes = note_missing(missing)
        yield PaperTable(title, build_table(f"tis-1-{slug}", section.title, groups, section.methods, notes=notes))


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


def models_side_by_side(
    title: str, prefix: str, wanted: Sequence[PublishedColumn], sections: Sections
) -> Iterator[PaperTable]:
    """One table per dataset, with one column per metric and model."""
    title = f"{title}, models side by side"
    for dataset, group in group_sections(sections, lambda section: section.dataset).items():
        methods = list(dict.fromkeys(method for section in group.values() for method in section.methods))
        groups, missing = [], []
        for column in wanted:
            filled = [(section, fill_column(section, column)) for section in group.values()]
            missing += [f"{column.name} of {section.model}" for section, one in filled if one is None]
            groups.append((column.title, [spread_methods(one, section, methods) for section, one in filled if one]))
        if not any(columns for _, columns in groups):
            yield PaperTable(title, None, f"{dataset}: the run lacks {', '.join(missing)}")
            continue
        slug = f"{prefix}-{next(iter(group))}"
        yield PaperTable(title, build_table(slug, dataset, groups, methods, 3, notes=note_missing(missing)))


def spread_methods(column: FilledColumn, section: ScoreSection, methods: Sequence[str]) -> FilledColumn:
    """Extend a column of one model to the methods of all models."""
    values = dict(zip(section.methods, column.values, strict=True))
    return replace(column, title=section.model, values=[values.get(method, nan) for method in methods])
