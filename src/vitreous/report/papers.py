"""The tables of the papers, in their layouts, of a run that has what they need; of one that has not, what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan

from vitreous.report.block import Block
from vitreous.report.filling import EXPLAINED, Wanted, fill, lacking, lines, values_of, where
from vitreous.report.tables import Cell, Head, Table, figure_cell, places

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
    Wanted("Pix. Acc.", "pixel_accuracy", percent=True),
    Wanted("mAP", "map_two_channel", percent=True),
    Wanted("mIoU", "miou", percent=True),
)
ACCURACY = tuple(
    Wanted(f"{word} ({explained})", metric, explained=explained, percent=True)
    for explained in EXPLAINED
    for word, metric in (("Neg.", "negative_auc"), ("Pos.", "positive_auc"))
)
PERTURBATION = (Wanted("Neg.", "negative_auc", percent=True), Wanted("Pos.", "positive_auc", percent=True))


@dataclass(frozen=True, slots=True)
class Told:
    """A table, or why there is none."""

    paper: str
    table: Table | None
    missing: str = ""


def paper_tables(blocks: Sequence[Block], slugs: Sequence[str]) -> list[Told]:
    """Every published layout that the run can fill, then what the others lack."""
    makers: tuple[Callable[..., Iterator[Told]], ...] = (
        accuracies,
        localisation,
        probability,
        ablation,
        insertions,
        by_model,
    )
    return [told for make in makers for told in make(blocks, slugs)]


# ── TokenTM ──────────────────────────────────────────────────────────────────────────────────────


def accuracies(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Table 1: two data sets in one cell."""
    paper = "TokenTM, table 1: impact on accuracy, two data sets"
    for model, several in grouped(blocks, lambda block: block.model).items():
        if len(several) < 2:
            yield Told(paper, None, f"{model} was measured on one data set; it needs two")
            continue
        first = several[0]
        filled = [fill(block, ACCURACY, 2) for block in several]
        missing = sorted({name for _, _, names in filled for name in names})
        titles = [
            head.title for head in filled[0][0] if all(head.title in [h.title for h in heads] for heads, _, _ in filled)
        ]
        if not titles or any(block.methods != first.methods for block in several):
            yield Told(
                paper, None, f"{model}: the run lacks {', '.join(missing) or 'methods that are the same on both'}"
            )
            continue
        heads = [head for head in filled[0][0] if head.title in titles]
        columns = []
        for head in heads:
            at = [next(c for h, c in zip(hs, cs, strict=True) if h.title == head.title) for hs, cs, _ in filled]
            columns.append(
                [Cell(a.text, a.sort, place=a.place, also=tuple(rest)) for a, *rest in zip(*at, strict=True)]
            )
        both = " / ".join(block.dataset for block in several)
        notes = [f"In percent; {both}.", *lacking(missing)]
        slug = f"tokentm-1-{slugs[list(blocks).index(first)]}"
        yield Told(
            paper,
            Table(slug, f"Impact on accuracy: {model}", heads, lines(first.methods, columns, "tokentm"), notes=notes),
        )


def localisation(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Table 2: localisation and impact on accuracy of one data set."""
    paper = "TokenTM, table 2: localisation ability and impact on accuracy"
    for block, slug in zip(blocks, slugs, strict=True):
        left, right = fill(block, SEGMENTATION, 2), fill(block, ACCURACY, 2)
        if not left[0] or not right[0]:
            yield Told(paper, None, f"{where(block)}: the run lacks {', '.join((left if not left[0] else right)[2])}")
            continue
        groups = [("Localization Ability", len(left[0])), ("Impact on Accuracy", len(right[0]))]
        rows = lines(block.methods, [*left[1], *right[1]], "tokentm")
        notes = ["In percent.", *lacking([*left[2], *right[2]])]
        yield Told(
            paper, Table(f"tokentm-2-{slug}", where(block), [*left[0], *right[0]], rows, groups=groups, notes=notes)
        )


def probability(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Table 3: two metrics, models side by side."""
    paper = "TokenTM, table 3: impact on probability, models side by side"
    wanted = (Wanted("AOPC", "aopc"), Wanted("LOdds", "lodds"))
    yield from side_by_side(paper, "tokentm-3", blocks, slugs, wanted, 3)


def ablation(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Table 4: TokenTM, part by part."""
    paper = "TokenTM, table 4: ablation"
    for block, slug in zip(blocks, slugs, strict=True):
        rows = [block.methods.index(spec) for spec in VARIANTS if spec in block.methods]
        left, right = fill(block, SEGMENTATION, 2), fill(block, PERTURBATION, 2)
        if len(rows) < 2 or not (left[0] or right[0]):
            lacks = (
                [spec for spec in VARIANTS if spec not in block.methods][:3] if len(rows) < 2 else [*left[2], *right[2]]
            )
            yield Told(paper, None, f"{where(block)}: the run lacks {', '.join(lacks)}")
            continue
        picked = [
            reranked([column[row] for row in rows], head)
            for head, column in zip([*left[0], *right[0]], [*left[1], *right[1]], strict=True)
        ]
        groups = [
            (title, len(side[0])) for title, side in (("Segmentation", left), ("Perturbation Test", right)) if side[0]
        ]
        named = [VARIANTS[block.methods[row]] for row in rows]
        absent = [name for name in dict.fromkeys(VARIANTS.values()) if name not in named]
        notes = ["In percent.", *lacking([*absent, *left[2], *right[2]])]
        table = Table(f"tokentm-4-{slug}", where(block), [*left[0], *right[0]], lines(named, picked), "", groups, notes)
        yield Told(paper, table)


def reranked(cells: Sequence[Cell], head: Head) -> list[Cell]:
    """Best and second among fewer methods."""
    values = [float(cell.sort) if isinstance(cell.sort, float) else nan for cell in cells]
    best = places([round(value, 2) for value in values], head.higher)
    return [Cell(cell.text, cell.sort, place=place) for cell, place in zip(cells, best, strict=True)]


# ── TIS ──────────────────────────────────────────────────────────────────────────────────────────


def insertions(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Tables 1–2: insertion, deletion and their difference under four baselines, a model each."""
    paper = "TIS, tables 1–2: insertion and deletion"
    for block, slug in zip(blocks, slugs, strict=True):
        heads, columns, groups, missing = [], [], [], []
        for title, metric in (
            ("Insertion", "insertion"),
            ("Deletion", "deletion"),
            ("Insertion - Deletion", "insertion_minus_deletion"),
        ):
            found = fill(block, [Wanted(t, metric, (("baseline", b),)) for t, b in BASELINES.items()], 2)
            heads, columns, missing = [*heads, *found[0]], [*columns, *found[1]], [*missing, *found[2]]
            groups += [(title, len(found[0]))] if found[0] else []
        if len(groups) < 2:
            yield Told(paper, None, f"{where(block)}: the run lacks {', '.join(missing)}")
            continue
        table = Table(
            f"tis-1-{slug}",
            where(block),
            heads,
            lines(block.methods, columns, "tis"),
            groups=groups,
            notes=lacking(missing),
        )
        yield Told(paper, table)


def by_model(blocks: Sequence[Block], slugs: Sequence[str]) -> Iterator[Told]:
    """Tables 3–4: pointing game and max-sensitivity, models side by side."""
    for number, word, metric in ((3, "pointing game", "pointing_game"), (4, "max sensitivity", "max_sensitivity")):
        paper = f"TIS, table {number}: {word}, models side by side"
        yield from side_by_side(paper, f"tis-{number}", blocks, slugs, (Wanted(word, metric),), 3)


def side_by_side(
    paper: str, prefix: str, blocks: Sequence[Block], slugs: Sequence[str], wanted: Sequence[Wanted], digits: int
) -> Iterator[Told]:
    """One data set, the models as columns, metric by metric."""
    for dataset, several in grouped(blocks, lambda block: block.dataset).items():
        methods = list(dict.fromkeys(method for block in several for method in block.methods))
        heads, columns, groups, missing = [], [], [], []
        for one in wanted:
            count = len(heads)
            for block in several:
                found = values_of(block, one)
                if found is None:
                    missing.append(f"{one.name} of {block.model}")
                    continue
                values, higher = found
                held = dict(zip(block.methods, values, strict=True))
                column = [held.get(method, nan) for method in methods]
                best = places([round(value, digits) for value in column], higher)
                heads.append(Head(block.model, higher, True, hint=one.name))
                columns.append([figure_cell(value, digits, place) for value, place in zip(column, best, strict=True)])
            groups += [(one.title, len(heads) - count)] if len(heads) > count else []
        if not heads:
            yield Told(paper, None, f"{dataset}: the run lacks {', '.join(missing)}")
            continue
        slug = f"{prefix}-{slugs[list(blocks).index(several[0])]}"
        yield Told(
            paper,
            Table(
                slug,
                dataset,
                heads,
                lines(methods, columns, prefix.split("-", maxsplit=1)[0]),
                groups=groups,
                notes=lacking(missing),
            ),
        )


def grouped(blocks: Sequence[Block], by: Callable[[Block], str]) -> dict[str, list[Block]]:
    held: dict[str, list[Block]] = {}
    for block in blocks:
        held.setdefault(by(block), []).append(block)
    return held
