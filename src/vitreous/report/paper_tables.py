"""Published tables in their original layouts, filled with the values of a run, or with a note on what the run lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from math import nan

from vitreous.bench.scores import ScoreSection
from vitreous.methods.spec import resolve
from vitreous.metrics.protocols import protocol
from vitreous.metrics.published import published_label
from vitreous.report import paper_columns
from vitreous.report.paper_columns import ACCURACY, SEGMENTATION, VARIANTS, FilledColumn, PublishedColumn, fill_column
from vitreous.report.tables import ReportTable, TableHead, describe_scores, make_number_cells, make_score_column

Sections = dict[str, ScoreSection]  # by slug
Families = dict[str, Sections]  # sections of one model, or of models that were fine-tuned on different datasets
Columns = Sequence[PublishedColumn]
Groups = Mapping[str, Sequence[FilledColumn]]  # columns by their common title
FEWEST = 3  # smallest number of axes of a radar


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
    score_by_method
        Name of the score that each method explains; empty if its maps do not depend on the class.
    """

    title: str
    table: ReportTable | None
    missing: str = ""
    columns: Mapping[str, FilledColumn] = field(default_factory=dict)
    methods: Sequence[str] = ()
    score_by_method: Mapping[str, str] = field(default_factory=dict)

    @property
    def sections(self) -> list[ScoreSection]:
        """Sections that the columns are filled with."""
        return list({id(column.section): column.section for column in self.columns.values() if column.section}.values())


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


def list_sections(families: Families) -> Sections:
    return {slug: section for group in families.values() for slug, section in group.items()}


def list_all_methods(sections: Iterable[ScoreSection]) -> list[str]:
    return list(dict.fromkeys(method for section in sections for method in section.methods))


def format_title(*sections: ScoreSection) -> str:
    """Models and datasets of a table."""
    models, datasets = (
        list(dict.fromkeys(getattr(section, name) for section in sections)) for name in ("model", "dataset")
    )
    return f"{', '.join(models)} on {' and '.join(datasets)}"


# ── filling ──────────────────────────────────────────────────────────────────────────────────────


def fill_groups(
    requests: Mapping[str, Iterable[tuple[ScoreSection, PublishedColumn]]],
) -> tuple[dict[str, list[FilledColumn]], list[tuple[ScoreSection, PublishedColumn]]]:
    """Fill columns that are listed with their sections by common title; return them, and those that are not filled."""
    groups: dict[str, list[FilledColumn]] = {}
    unfilled = []
    for title, columns in requests.items():
        for section, published in columns:
            filled = fill_column(section, published)
            if filled is None:
                unfilled.append((section, published))
            else:
                groups.setdefault(title, []).append(filled)
    return groups, unfilled


def list_fillable(group: Sections, published: Columns) -> list[str]:
    """Slugs of the sections that can fill at least one of the columns."""
    return [slug for slug, section in group.items() if any(fill_column(section, column) for column in published)]


def fill_table(
    title: str,
    slug: str,
    heading: str,
    groups: Groups,
    methods: Sequence[str],
    *,
    digits: int = 2,
    notes: Sequence[str] = (),
    missing: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    joined: bool = False,
) -> PaperTable:
    """Make a table of one row per method; rows are named as in the paper that the slug begins with.

    Parameters
    ----------
    title, slug, heading
        Name of the table in its paper, base name of its files, and models and datasets.
    groups
        Columns by their common title.
    methods
        Methods of the rows.
    digits
        Number of decimals.
    notes, missing
        Notes, and the names of what the run lacks.
    labels
        Names of the rows by method; the paper's by default.
    joined
        Whether the values of a group share one cell.
    """
    heads, columns = [], []
    filled = [column for group in groups.values() for column in group]
    all_scores = {method: score for column in filled for method, score in column.section.score_by_method.items()}
    score_by_method = {method: all_scores.get(method, "") for method in methods}
    own_scores = [*score_by_method.values()]
    for name, group in groups.items():
        cells = [
            make_number_cells([column.values.get(method, nan) for method in methods], digits, column.higher, own_scores)
            for column in group
        ]
        shown = group
        if joined:
            cells = [[replace(first, also=tuple(others)) for first, *others in zip(*cells, strict=True)]]
            shown = [replace(group[0], title=name)]
        heads += [TableHead(column.title, column.higher, True, column.name) for column in shown]
        columns += cells
    score_head, score_cells = make_score_column(own_scores)
    paper = slug.split("-", maxsplit=1)[0]
    names = [label_row(paper, method) if labels is None else labels[method] for method in methods]
    rows = [(name, [*(column[row] for column in columns), score_cells[row]]) for row, name in enumerate(names)]
    widths = [] if joined else [*((name, len(group)) for name, group in groups.items()), ("", 1)]
    notes = [describe_scores(own_scores), *notes, *([f"The run has no {', '.join(missing)}."] if missing else [])]
    table = ReportTable(slug, heading, [*heads, score_head], rows, "method" if labels is None else "", widths, notes)
    named = {
        f"{published_label(name)}: {published_label(column.title)}": column
        for name, group in groups.items()
        for column in group
    }
    return PaperTable(title, table, columns=named, methods=methods, score_by_method=score_by_method)


def report_missing(title: str, where: str, missing: Iterable[str]) -> PaperTable:
    return PaperTable(title, None, f"{where}: the run lacks {', '.join(missing)}")


def label_row(paper: str, method: str) -> str:
    """Label of a row: its name in the paper, if it has one, and the method."""
    names = list_row_names(paper)
    return f"{names[method]}: {method}" if method in names else method


@lru_cache
def list_row_names(paper: str) -> dict[str, str]:
    """Names of the rows of a paper by canonical spec; of several names, the one in its tables."""
    return {resolve(spec).spec: name for name, spec in reversed(list(protocol(paper).rows.items()))}


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def make_accuracy_tables(families: Families) -> Iterator[PaperTable]:
    """Table 1: two datasets in one cell, of one model or of models that were fine-tuned on one of them each."""
    title = "TokenTM, table 1: impact on accuracy, two datasets"
    for family, group in families.items():
        if len(group) < 2:
            yield PaperTable(title, None, f"{family} was measured on one dataset; it needs two")
            continue
        slugs = list_fillable(group, ACCURACY)
        own = [group[slug] for slug in slugs]
        groups, unfilled = fill_groups(
            {
                column.title: [(section, replace(column, title=section.dataset)) for section in group.values()]
                for column in ACCURACY
            }
        )
        shared = {name: columns for name, columns in groups.items() if len(columns) == len(own)}
        missing = sorted({column.name for _, column in unfilled})
        if len(own) < 2 or not shared or len({section.methods for section in own}) > 1:
            yield report_missing(title, family, missing or ["methods that are the same on both"])
            continue
        slug, heading = f"tokentm-1-{slugs[0]}", f"Impact on accuracy: {family}"
        notes = [f"In percent; {' / '.join(section.dataset for section in own)}."]
        yield fill_table(title, slug, heading, shared, own[0].methods, notes=notes, missing=missing, joined=True)


def pair_halves(group: Sections, halves: Mapping[str, Columns]) -> list[tuple[str, str]]:
    """Slugs of the sections that fill the two halves of a table.

    A section that fills both halves makes a table of its own; otherwise every section that fills the left half is joined
    with every one that fills the right half. If no section fills one half, every section that fills the other is used.
    """
    lefts, rights = (list_fillable(group, published) for published in halves.values())
    whole = [(slug, slug) for slug in lefts if slug in rights]
    return whole or [*product(lefts, rights)] or [(slug, slug) for slug in lefts or rights]


def fill_halves(
    sections: Sequence[ScoreSection], halves: Mapping[str, Columns]
) -> tuple[dict[str, list[FilledColumn]], list[str]]:
    """Two groups of columns, each filled with one of two sections, and the names of columns that are not filled."""
    pairs = zip(sections, halves.items(), strict=True)
    groups, unfilled = fill_groups({name: [(section, column) for column in half] for section, (name, half) in pairs})
    return groups, [column.name for _, column in unfilled]


def name_group(family: str, group: Sections) -> str:
    return format_title(*group.values()) if len(group) == 1 else family


def make_localisation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 2: localisation and impact on accuracy, on one dataset or on one for each half."""
    title = "TokenTM, table 2: localisation ability and impact on accuracy"
    halves = {"Localization Ability": SEGMENTATION, "Impact on Accuracy": ACCURACY}
    for family, group in families.items():
        absent = next((columns for columns in halves.values() if not list_fillable(group, columns)), ())
        if absent:
            yield report_missing(title, name_group(family, group), [column.name for column in absent])
            continue
        for left, right in pair_halves(group, halves):
            sections = (group[left], group[right])
            groups, missing = fill_halves(sections, halves)
            slug, heading, methods = f"tokentm-2-{left}", format_title(*sections), list_all_methods(sections)
            yield fill_table(title, slug, heading, groups, methods, notes=["In percent."], missing=missing)


def make_ablation_tables(families: Families) -> Iterator[PaperTable]:
    """Table 4: ablation of TokenTM, with segmentation and perturbation on one dataset or on one each."""
    title = "TokenTM, table 4: ablation"
    for family, group in families.items():
        perturbation = paper_columns.PERTURBATION.items()
        explained = next((word for word, columns in perturbation if list_fillable(group, columns)), "Pred.")
        halves = {"Segmentation": SEGMENTATION, "Perturbation Test": paper_columns.PERTURBATION[explained]}
        pairs = pair_halves(group, halves)
        variants = [spec for spec in VARIANTS if spec in list_all_methods(group.values())]
        if len(variants) < 2 or not pairs:
            absent = [spec for spec in VARIANTS if spec not in variants][:3]
            columns = [column.name for half in halves.values() for column in half]
            yield report_missing(title, name_group(family, group), absent if len(variants) < 2 else columns)
            continue
        which = {"Pred.": "predicted class", "GT": "label"}[explained]
        notes = [f"In percent; perturbation tests explain the {which}."]
        for left, right in pairs:
            sections = (group[left], group[right])
            groups, missing = fill_halves(sections, halves)
            methods = [spec for spec in VARIANTS if spec in list_all_methods(sections)]
            names = {VARIANTS[spec] for spec in methods}
            missing = [*(name for name in dict.fromkeys(VARIANTS.values()) if name not in names), *missing]
            slug, heading = f"tokentm-4-{left}", format_title(*sections)
            yield fill_table(title, slug, heading, groups, methods, notes=notes, missing=missing, labels=VARIANTS)


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def make_insertion_tables(families: Families) -> Iterator[PaperTable]:
    """Tables 1–2: insertion, deletion and their difference with four baselines, one table per model and dataset."""
    title = "TIS, tables 1–2: insertion and deletion"
    for slug, section in list_sections(families).items():
        requests = {
            name: [(section, column) for column in columns] for name, columns in paper_columns.INSERTION.items()
        }
        groups, unfilled = fill_groups(requests)
        missing = [column.name for _, column in unfilled]
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
        for published in paper_columns.STRENGTHS:
            filled = ((section.dataset, fill_column(section, published)) for section in group.values())
            dataset, column = next(((dataset, column) for dataset, column in filled if column), ("", None))
            if column is None:
                missing.append(published.name)
            else:
                groups.setdefault(dataset, []).append(column)
        if sum(map(len, groups.values())) < FEWEST:
            yield report_missing(title, family, missing)
            continue
        sections, slug = group.values(), f"skipplus-3-{next(iter(group))}"
        heading, methods = format_title(*sections), list_all_methods(sections)
        yield fill_table(title, slug, heading, groups, methods, notes=["In percent."], missing=missing)


# ── all papers ───────────────────────────────────────────────────────────────────────────────────


def compare_models(title: str, prefix: str, published: Columns, families: Families) -> Iterator[PaperTable]:
    """One table per dataset, with one column per metric and model."""
    title = f"{title}, models side by side"
    for dataset, group in group_sections(list_sections(families), lambda section: section.dataset).items():
        groups, unfilled = fill_groups(
            {
                column.title: [(section, replace(column, title=section.model)) for section in group.values()]
                for column in published
            }
        )
        missing = [f"{column.name} of {section.model}" for section, column in unfilled]
        if not groups:
            yield report_missing(title, dataset, missing)
            continue
        slug, methods = f"{prefix}-{next(iter(group))}", list_all_methods(group.values())
        yield fill_table(title, slug, dataset, groups, methods, digits=3, missing=missing)


# layout of every reproduction that is a table or a radar
LAYOUTS: dict[str, Callable[[Families], Iterator[PaperTable]]] = {
    "tokentm:table1": make_accuracy_tables,
    "tokentm:table2": make_localisation_tables,
    "tokentm:table3": partial(
        compare_models, "TokenTM, table 3: impact on probability", "tokentm-3", paper_columns.PROBABILITY
    ),
    "tokentm:table4": make_ablation_tables,
    "tis:table1": make_insertion_tables,
    "tis:table2": make_insertion_tables,
    "tis:table3": partial(compare_models, "TIS, table 3: pointing game", "tis-3", paper_columns.POINTING),
    "tis:table4": partial(compare_models, "TIS, table 4: max sensitivity", "tis-4", paper_columns.SENSITIVITY),
    "tis:sparseness": partial(
        compare_models, "TIS, supplement: sparseness", "tis-sparseness", paper_columns.SPARSENESS
    ),
    "tis:masks": make_insertion_tables,
    **{
        f"skipplus:figure{number}": make_strength_tables
        for number in ("3", "4", "7", "7-eva", "8", "9", "10", "11", "12")
    },
}
