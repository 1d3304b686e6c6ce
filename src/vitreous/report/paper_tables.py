"""Published tables in their original layouts, filled with the values of a run, or with a note on what the run lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from vitreous.bench.scores import ScoreSection
from vitreous.report.column_match import FilledColumn, PublishedColumn, fill_column, fill_columns
from vitreous.report.filled_table import PaperTable, fill_table, make_column_cells, report_missing
from vitreous.report.paper_columns import (
    ACCURACY,
    INSERTION,
    PERTURBATION,
    POINTING,
    PROBABILITY,
    SEGMENTATION,
    SENSITIVITY,
    SPARSENESS,
    STRENGTHS,
    VARIANTS,
)

Sections = dict[str, ScoreSection]  # by slug
Families = dict[str, Sections]  # sections of one model, or of models that were fine-tuned on different datasets
FEWEST = 3  # smallest number of axes of a radar


def make_paper_tables(
    sections: Sections, families: Mapping[str, str] | None = None, reproduces: str = ""
) -> list[PaperTable]:
    """Fill published tables with the values of a run.

    Parameters
    ----------
    sections
        Sections by slug, with predicted and true classes together.
    families
        Family by model label, see `ModelSpec`; a model that is not listed is a family of its own.
    reproduces
        Table or figure to fill, such as "tis:table1"; all tables if empty.

    Returns
    -------
    list of PaperTable
    """
    layouts = dict.fromkeys(make for name, make in LAYOUTS.items() if reproduces in ("", name))
    joined = group_sections(sections, lambda section: (families or {}).get(section.model) or section.model)
    return [table for make in layouts for table in make(joined)]


def group_sections(sections: Sections, key: Callable[[ScoreSection], str]) -> Families:
    groups: Families = {}
    for slug, section in sections.items():
        groups.setdefault(key(section), {})[slug] = section
    return groups


def list_all_methods(sections: Iterable[ScoreSection]) -> list[str]:
    return list(dict.fromkeys(method for section in sections for method in section.methods))


def format_title(*sections: ScoreSection) -> str:
    """Models and datasets of a table."""
    models, datasets = (
        list(dict.fromkeys(getattr(section, name) for section in sections)) for name in ("model", "dataset")
    )
    return f"{', '.join(models)} on {' and '.join(datasets)}"


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def make_accuracy_tables(families: Families) -> Iterator[PaperTable]:
    """Table 1: two datasets in one cell, of one model or of models that were fine-tuned on one of them each."""
    title = "TokenTM, table 1: impact on accuracy, two datasets"
    for family, group in families.items():
        if len(group) < 2:
            yield PaperTable(title, None, f"{family} was measured on one dataset; it needs two")
            continue
        filled = {slug: fill_columns(section, ACCURACY) for slug, section in group.items()}
        missing = sorted({name for _, names in filled.values() for name in names})
        own = {slug: {column.title: column for column in columns} for slug, (columns, _) in filled.items() if columns}
        first = next(iter(own), "")
        shared = [name for name in own.get(first, ()) if all(name in columns for columns in own.values())]
        if len(own) < 2 or not shared or any(group[slug].methods != group[first].methods for slug in own):
            yield report_missing(title, family, missing or ["methods that are the same on both"])
            continue
        datasets, methods = [group[slug].dataset for slug in own], group[first].methods
        paper = fill_table(
            title,
            f"tokentm-1-{first}",
            f"Impact on accuracy: {family}",
            [("", [own[first][name] for name in shared])],
            methods,
            notes=[f"In percent; {' / '.join(datasets)}."],
            missing=missing,
        )
        assert paper.table is not None
        cells = [[make_column_cells(columns[name], methods) for columns in own.values()] for name in shared]
        rows = [
            (label, [replace(first[row], also=tuple(cell[row] for cell in others)) for first, *others in cells])
            for row, (label, _) in enumerate(paper.table.rows)
        ]
        by_dataset = list(zip(datasets, own.values(), strict=True))
        columns = {f"{name}: {dataset}": columns[name] for name in shared for dataset, columns in by_dataset}
        yield replace(paper, table=replace(paper.table, rows=rows), columns=columns)


def list_fillable(group: Sections, published: Sequence[PublishedColumn]) -> list[str]:
    """Slugs of the sections that can fill at least one of the columns."""
    return [slug for slug, section in group.items() if fill_columns(section, published)[0]]


def pair_halves(group: Sections, lefts: Collection[str], rights: Collection[str]) -> list[tuple[str, str]]:
    """Slugs of the sections that fill the two halves of a table.

    A section that fills both halves makes a table of its own; otherwise every section that fills the left half is joined
    with every one that fills the right half. If no section fills one half, every section that fills the other is used.
    """
    whole = [(slug, slug) for slug in group if slug in lefts and slug in rights]
    joined = whole or [(left, right) for left in lefts for right in rights]
    return joined or [(slug, slug) for slug in lefts or rights]


def fill_halves(
    title: str,
    slug: str,
    sections: tuple[ScoreSection, ScoreSection],
    halves: Mapping[str, Sequence[PublishedColumn]],
    methods: Sequence[str],
    note: str,
    *,
    labels: Mapping[str, str] | None = None,
    absent: Sequence[str] = (),
) -> PaperTable:
    """A table of two groups of columns, each filled with one of two sections."""
    filled = [fill_columns(*half) for half in zip(sections, halves.values(), strict=True)]
    groups = [(name, columns) for name, (columns, _) in zip(halves, filled, strict=True)]
    missing = [*absent, *(name for _, names in filled for name in names)]
    return fill_table(
        title, slug, format_title(*sections), groups, methods, notes=[note], missing=missing, labels=labels
    )


def make_localisation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 2: localisation and impact on accuracy, on one dataset or on one for each half."""
    title = "TokenTM, table 2: localisation ability and impact on accuracy"
    halves = {"Localization Ability": SEGMENTATION, "Impact on Accuracy": ACCURACY}
    for family, group in families.items():
        lefts, rights = (list_fillable(group, published) for published in halves.values())
        if not lefts or not rights:
            where = format_title(*group.values()) if len(group) == 1 else family
            yield report_missing(title, where, [column.name for column in (ACCURACY if lefts else SEGMENTATION)])
            continue
        for left, right in pair_halves(group, lefts, rights):
            sections = (group[left], group[right])
            yield fill_halves(title, f"tokentm-2-{left}", sections, halves, list_all_methods(sections), "In percent.")


def make_ablation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 4: ablation of TokenTM, with segmentation and perturbation on one dataset or on one each."""
    title = "TokenTM, table 4: ablation"
    for family, group in families.items():
        explained = next((word for word, published in PERTURBATION.items() if list_fillable(group, published)), "Pred.")
        halves = {"Segmentation": SEGMENTATION, "Perturbation Test": PERTURBATION[explained]}
        lefts, rights = (list_fillable(group, published) for published in halves.values())
        variants = [spec for spec in VARIANTS if spec in list_all_methods(group.values())]
        if len(variants) < 2 or not (lefts or rights):
            absent = [spec for spec in VARIANTS if spec not in variants][:3]
            columns = [column.name for published in halves.values() for column in published]
            where = format_title(*group.values()) if len(group) == 1 else family
            yield report_missing(title, where, absent if len(variants) < 2 else columns)
            continue
        for left, right in pair_halves(group, lefts, rights):
            sections = (group[left], group[right])
            methods = [spec for spec in VARIANTS if spec in list_all_methods(sections)]
            names = {VARIANTS[spec] for spec in methods}
            absent = [name for name in dict.fromkeys(VARIANTS.values()) if name not in names]
            which = {"Pred.": "predicted class", "GT": "label"}[explained]
            note = f"In percent; perturbation tests explain the {which}."
            slug = f"tokentm-4-{left}"
            yield fill_halves(title, slug, sections, halves, methods, note, labels=VARIANTS, absent=absent)


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def make_insertion_tables(families: Families) -> Iterator[PaperTable]:
    """Tables 1–2: insertion, deletion and their difference with four baselines, one table per model and dataset."""
    title = "TIS, tables 1–2: insertion and deletion"
    for slug, section in list_sections(families).items():
        filled = {name: fill_columns(section, published) for name, published in INSERTION.items()}
        groups = [(name, columns) for name, (columns, _) in filled.items() if columns]
        missing = [name for _, names in filled.values() for name in names]
        if len(groups) < 2:
            yield report_missing(title, section.title, missing)
        else:
            yield fill_table(title, f"tis-1-{slug}", section.title, groups, section.methods, missing=missing)


# ── SkipPLUS ─────────────────────────────────────────────────────────────────────────────────────


def make_strength_tables(families: Families) -> Iterator[PaperTable]:
    """The radars as a table: faithfulness and AP of one model, each on the first dataset that has it."""
    title = "SkipPLUS, radar figures: faithfulness and AP"
    for family, group in families.items():
        groups: dict[str, list[FilledColumn]] = {}
        missing = []
        for published in STRENGTHS:
            filled = ((section.dataset, fill_column(section, published)) for section in group.values())
            dataset, column = next(((dataset, column) for dataset, column in filled if column), ("", None))
            if column is None:
                missing.append(published.name)
            else:
                groups.setdefault(dataset, []).append(column)
        if sum(map(len, groups.values())) < FEWEST:
            yield report_missing(title, family, missing)
            continue
        sections, slug, notes = group.values(), f"skipplus-3-{next(iter(group))}", ["In percent."]
        columns, methods = list(groups.items()), list_all_methods(sections)
        yield fill_table(title, slug, format_title(*sections), columns, methods, notes=notes, missing=missing)


# ── all papers ───────────────────────────────────────────────────────────────────────────────────


def list_sections(families: Families) -> Sections:
    return {slug: section for group in families.values() for slug, section in group.items()}


def make_side_by_side_tables(
    families: Families, title: str, prefix: str, published: Sequence[PublishedColumn]
) -> Iterator[PaperTable]:
    """One table per dataset, with one column per metric and model."""
    title = f"{title}, models side by side"
    for dataset, group in group_sections(list_sections(families), lambda section: section.dataset).items():
        groups, missing = [], []
        for column in published:
            filled = {section.model: fill_column(section, column) for section in group.values()}
            missing += [f"{column.name} of {model}" for model, values in filled.items() if values is None]
            groups.append((column.title, [replace(values, title=model) for model, values in filled.items() if values]))
        if not any(columns for _, columns in groups):
            yield report_missing(title, dataset, missing)
            continue
        slug, methods = f"{prefix}-{next(iter(group))}", list_all_methods(group.values())
        yield fill_table(title, slug, dataset, groups, methods, digits=3, missing=missing)


probability_tables = partial(
    make_side_by_side_tables, title="TokenTM, table 3: impact on probability", prefix="tokentm-3", published=PROBABILITY
)
pointing_tables = partial(
    make_side_by_side_tables, title="TIS, table 3: pointing game", prefix="tis-3", published=POINTING
)
sensitivity_tables = partial(
    make_side_by_side_tables, title="TIS, table 4: max sensitivity", prefix="tis-4", published=SENSITIVITY
)
sparseness_tables = partial(
    make_side_by_side_tables, title="TIS, supplement: sparseness", prefix="tis-sparseness", published=SPARSENESS
)

# layout of every reproduction that is a table or a radar
LAYOUTS: dict[str, Callable[[Families], Iterator[PaperTable]]] = {
    "tokentm:table1": make_accuracy_tables,
    "tokentm:table2": make_localisation_tables,
    "tokentm:table3": probability_tables,
    "tokentm:table4": make_ablation_tables,
    "tis:table1": make_insertion_tables,
    "tis:table2": make_insertion_tables,
    "tis:table3": pointing_tables,
    "tis:table4": sensitivity_tables,
    "tis:sparseness": sparseness_tables,
    "tis:masks": make_insertion_tables,
    **{
        f"skipplus:figure{number}": make_strength_tables
        for number in ("3", "4", "7", "7-eva", "8", "9", "10", "11", "12")
    },
}
