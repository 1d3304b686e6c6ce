"""Published tables in their original layouts, filled with the values of a run, or with a note on what the run lacks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import nan

from vitreous.bench.scores import ScoreSection
from vitreous.methods.spec import resolve
from vitreous.metrics.protocols import protocol
from vitreous.report.column_match import FilledColumn, PublishedColumn, fill_column, fill_columns
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
from vitreous.report.tables import ReportTable, TableHead, number_cells

Sections = dict[str, ScoreSection]  # by slug
Families = dict[str, Sections]  # sections of one model, or of models that were fine-tuned on different datasets
FEWEST = 3  # smallest number of axes of a radar
Groups = Sequence[tuple[str, Sequence[FilledColumn]]]  # columns with their common title


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A published table, or the reason why it cannot be filled.

    Parameters
    ----------
    title
        Name of the table in its paper.
    table
        The table; None if it cannot be filled.
    missing
        What is missing.
    columns
        Columns of the table by their names in `vitreous.metrics.published`.
    methods
        Method of every row.
    """

    title: str
    table: ReportTable | None
    missing: str = ""
    columns: Mapping[str, FilledColumn] = field(default_factory=dict)
    methods: Sequence[str] = ()


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
    rows = [
        (label_row(slug.split("-", maxsplit=1)[0], method), [column[row] for column in cells])
        for row, method in enumerate(methods)
    ]
    return ReportTable(slug, title, heads, rows, first, widths, notes)


def label_row(paper: str, method: str) -> str:
    """Label of a row: its name in the paper, if it has one, and the method."""
    names = row_names(paper)
    return f"{names[method]}: {method}" if method in names else method


@lru_cache
def row_names(paper: str) -> dict[str, str]:
    """Names of the rows of a paper by canonical spec; of several names, the one in its tables."""
    return {resolve(spec).spec: name for name, spec in reversed(list(protocol(paper).rows.items()))}


def note_missing(names: Sequence[str]) -> list[str]:
    return [f"The run has no {', '.join(names)}."] if names else []


def group_sections(sections: Sections, key: Callable[[ScoreSection], str]) -> Families:
    groups: Families = {}
    for slug, section in sections.items():
        groups.setdefault(key(section), {})[slug] = section
    return groups


def all_methods(sections: Iterable[ScoreSection]) -> list[str]:
    return list(dict.fromkeys(method for section in sections for method in section.methods))


def spread_methods(
    column: FilledColumn, section: ScoreSection, methods: Sequence[str], title: str = ""
) -> FilledColumn:
    """Extend a column of one section to the methods of several; the title may be another one."""
    values = dict(zip(section.methods, column.values, strict=True))
    return replace(column, title=title or column.title, values=[values.get(method, nan) for method in methods])


def fill_spread(
    section: ScoreSection, published: Sequence[PublishedColumn], methods: Sequence[str]
) -> tuple[list[FilledColumn], list[str]]:
    """The columns that a section can fill, extended to `methods`, and the names of those that it cannot."""
    columns, missing = fill_columns(section, published)
    return [spread_methods(column, section, methods) for column in columns], missing


def name_columns(groups: Groups) -> dict[str, FilledColumn]:
    """Columns by group and title."""
    return {f"{name}: {column.title}".removeprefix(": "): column for name, columns in groups for column in columns}


def pair_halves(
    group: Sections, can_fill_left: Collection[str], can_fill_right: Collection[str]
) -> list[tuple[str, str]]:
    """Slugs of the sections that fill the two halves of a table.

    A section that fills both halves makes a table of its own; otherwise every section that fills the left half is joined
    with every one that fills the right half.
    """
    whole = [(slug, slug) for slug in group if slug in can_fill_left and slug in can_fill_right]
    return whole or [(left, right) for left in can_fill_left for right in can_fill_right]


def title_of(*sections: ScoreSection) -> str:
    """Models and datasets of a table."""
    models, datasets = (
        list(dict.fromkeys(getattr(section, name) for section in sections)) for name in ("model", "dataset")
    )
    return f"{', '.join(models)} on {' and '.join(datasets)}"


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def accuracy_tables(families: Families) -> Iterator[PaperTable]:
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
            lacks = ", ".join(missing) or "methods that are the same on both"
            yield PaperTable(title, None, f"{family}: the run lacks {lacks}")
            continue
        datasets = [group[slug].dataset for slug in own]
        notes = [f"In percent; {' / '.join(datasets)}.", *note_missing(missing)]
        heading, methods = f"Impact on accuracy: {family}", group[first].methods
        tables = [
            build_table(f"tokentm-1-{first}", heading, [("", [columns[name] for name in shared])], methods, notes=notes)
            for columns in own.values()
        ]
        rows = [
            (name, [replace(cell, also=tuple(further_cells)) for cell, *further_cells in zip(*cells, strict=True)])
            for name, *cells in (
                (rows[0][0], *(cells for _, cells in rows)) for rows in zip(*(t.rows for t in tables), strict=True)
            )
        ]
        columns = {
            f"{name}: {dataset}": own_columns[name]
            for name in shared
            for dataset, own_columns in zip(datasets, own.values(), strict=True)
        }
        yield PaperTable(title, replace(tables[0], rows=rows), columns=columns, methods=methods)


def localisation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 2: localisation and impact on accuracy, on one dataset or on one for each half."""
    title = "TokenTM, table 2: localisation ability and impact on accuracy"
    for family, group in families.items():
        lefts, no_left = find_fillable(group, SEGMENTATION)
        rights, no_right = find_fillable(group, ACCURACY)
        if not lefts or not rights:
            lacks = ", ".join(no_right if lefts else no_left)
            where = title_of(*group.values()) if len(group) == 1 else family
            yield PaperTable(title, None, f"{where}: the run lacks {lacks}")
            continue
        for left, right in pair_halves(group, lefts, rights):
            halves = (group[left], group[right])
            methods = all_methods(halves)
            first, no_first = fill_spread(group[left], SEGMENTATION, methods)
            second, no_second = fill_spread(group[right], ACCURACY, methods)
            groups = [("Localization Ability", first), ("Impact on Accuracy", second)]
            notes = ["In percent.", *note_missing([*no_first, *no_second])]
            table = build_table(f"tokentm-2-{left}", title_of(*halves), groups, methods, notes=notes)
            yield PaperTable(title, table, columns=name_columns(groups), methods=methods)


def find_fillable(group: Sections, published: Sequence[PublishedColumn]) -> tuple[list[str], list[str]]:
    """Slugs of the sections that can fill at least one of the columns; the names of the columns if there are none."""
    slugs = [slug for slug, section in group.items() if fill_columns(section, published)[0]]
    return slugs, [] if slugs else [column.name for column in published]


def ablation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 4: ablation of TokenTM, with segmentation and perturbation on one dataset or on one each."""
    title = "TokenTM, table 4: ablation"
    for family, group in families.items():
        lefts, no_left = find_fillable(group, SEGMENTATION)
        explained = next(
            (word for word, published in PERTURBATION.items() if find_fillable(group, published)[0]), "Pred."
        )
        rights, no_right = find_fillable(group, PERTURBATION[explained])
        variants = [spec for spec in VARIANTS if spec in all_methods(group.values())]
        if len(variants) < 2 or not (lefts or rights):
            lacks = [spec for spec in VARIANTS if spec not in variants][:3] if len(variants) < 2 else no_left + no_right
            where = title_of(*group.values()) if len(group) == 1 else family
            yield PaperTable(title, None, f"{where}: the run lacks {', '.join(lacks)}")
            continue
        pairs = pair_halves(group, lefts, rights) or [(slug, slug) for slug in (lefts or rights)]
        for left, right in pairs:
            methods = [spec for spec in VARIANTS if spec in all_methods((group[left], group[right]))]
            first, no_first = fill_spread(group[left], SEGMENTATION, methods)
            second, no_second = fill_spread(group[right], PERTURBATION[explained], methods)
            groups = [("Segmentation", first), ("Perturbation Test", second)]
            names = [VARIANTS[spec] for spec in methods]
            absent = [name for name in dict.fromkeys(VARIANTS.values()) if name not in names]
            which = {"Pred.": "predicted class", "GT": "label"}[explained]
            notes = [
                f"In percent; perturbation tests explain the {which}.",
                *note_missing([*absent, *no_first, *no_second]),
            ]
            heading = title_of(group[left], group[right])
            table = build_table(f"tokentm-4-{left}", heading, groups, names, first="", notes=notes)
            yield PaperTable(title, table, columns=name_columns(groups), methods=methods)


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def insertion_tables(families: Families) -> Iterator[PaperTable]:
    """Tables 1–2: insertion, deletion and their difference with four baselines, one table per model and dataset."""
    title = "TIS, tables 1–2: insertion and deletion"
    for slug, section in list_sections(families).items():
        filled = {name: fill_columns(section, published) for name, published in INSERTION.items()}
        groups = [(name, columns) for name, (columns, _) in filled.items() if columns]
        missing = [name for _, names in filled.values() for name in names]
        if len(groups) < 2:
            yield PaperTable(title, None, f"{section.title}: the run lacks {', '.join(missing)}")
            continue
        table = build_table(f"tis-1-{slug}", section.title, groups, section.methods, notes=note_missing(missing))
        yield PaperTable(title, table, columns=name_columns(groups), methods=section.methods)


# ── SkipPLUS ─────────────────────────────────────────────────────────────────────────────────────


def strength_tables(families: Families) -> Iterator[PaperTable]:
    """The radars as a table: faithfulness and AP of one model, each on the first dataset that has it."""
    title = "SkipPLUS, radar figures: faithfulness and AP"
    for family, group in families.items():
        methods = all_methods(group.values())
        groups: dict[str, list[FilledColumn]] = {}
        missing = []
        for published in STRENGTHS:
            filled = ((section, fill_column(section, published)) for section in group.values())
            section, column = next(((section, column) for section, column in filled if column), (None, None))
            if section is None or column is None:
                missing.append(published.name)
            else:
                groups.setdefault(section.dataset, []).append(spread_methods(column, section, methods))
        if sum(map(len, groups.values())) < FEWEST:
            yield PaperTable(title, None, f"{family}: the run lacks {', '.join(missing)}")
            continue
        slug, notes = f"skipplus-3-{next(iter(group))}", ["In percent.", *note_missing(missing)]
        table = build_table(slug, title_of(*group.values()), list(groups.items()), methods, notes=notes)
        yield PaperTable(title, table, columns=name_columns(list(groups.items())), methods=methods)


# ── all papers ───────────────────────────────────────────────────────────────────────────────────


def list_sections(families: Families) -> Sections:
    return {slug: section for group in families.values() for slug, section in group.items()}


def models_side_by_side(
    families: Families, title: str, prefix: str, published: Sequence[PublishedColumn]
) -> Iterator[PaperTable]:
    """One table per dataset, with one column per metric and model."""
    title = f"{title}, models side by side"
    for dataset, group in group_sections(list_sections(families), lambda section: section.dataset).items():
        methods = all_methods(group.values())
        groups, missing = [], []
        for column in published:
            filled = [(section, fill_column(section, column)) for section in group.values()]
            missing += [f"{column.name} of {section.model}" for section, values in filled if values is None]
            own = [spread_methods(values, section, methods, section.model) for section, values in filled if values]
            groups.append((column.title, own))
        if not any(columns for _, columns in groups):
            yield PaperTable(title, None, f"{dataset}: the run lacks {', '.join(missing)}")
            continue
        slug = f"{prefix}-{next(iter(group))}"
        table = build_table(slug, dataset, groups, methods, 3, notes=note_missing(missing))
        yield PaperTable(title, table, columns=name_columns(groups), methods=methods)


probability_tables = partial(
    models_side_by_side, title="TokenTM, table 3: impact on probability", prefix="tokentm-3", published=PROBABILITY
)
pointing_tables = partial(models_side_by_side, title="TIS, table 3: pointing game", prefix="tis-3", published=POINTING)
sensitivity_tables = partial(
    models_side_by_side, title="TIS, table 4: max sensitivity", prefix="tis-4", published=SENSITIVITY
)
sparseness_tables = partial(
    models_side_by_side, title="TIS, supplement: sparseness", prefix="tis-sparseness", published=SPARSENESS
)

# layout of every reproduction that is a table or a radar
LAYOUTS: dict[str, Callable[[Families], Iterator[PaperTable]]] = {
    "tokentm:table1": accuracy_tables,
    "tokentm:table2": localisation_tables,
    "tokentm:table3": probability_tables,
    "tokentm:table4": ablation_tables,
    "tis:table1": insertion_tables,
    "tis:table2": insertion_tables,
    "tis:table3": pointing_tables,
    "tis:table4": sensitivity_tables,
    "tis:sparseness": sparseness_tables,
    "tis:masks": insertion_tables,
    **{f"skipplus:figure{number}": strength_tables for number in ("3", "4", "7", "7-eva", "8", "9", "10", "11", "12")},
}
