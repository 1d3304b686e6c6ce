"""Tables and answers of the page about error bars, ceilings and masks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path

from study import plots
from study.effects import Effect, Figure, select_rows
from study.error_results import FOLDED, OURS_ON_CLIP, RIVALS, RIVALS_ON_CLIP, count_passes
from study.names import MODELS
from study.pages import Results, fill, plot
from study.sentences import format_effect, format_number
from study.tables import NOTHING, format_cell, format_ranking, format_table

FITS = tuple(f"bayes(samples={samples})" for samples in (128, 256, 512, 1024))
LOGIT_FIT = "bayes(samples=1024, prior='decompx+plus', question='logit')"


def list_datasets(rows: Sequence[Figure] | Sequence[Effect]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.model, row.dataset) for row in rows))


@fill("errors-short")
def write_short(results: Results) -> str:
    """Differences to TIS and to the prior, for every dataset."""
    rows = select_rows(results.effects("error-bars-photographs-pairs"), metric="faithfulness")
    if not rows:
        return NOTHING
    lines = []
    for samples in (128, 256, 512, 1024):
        method = f"bayes(samples={samples})"
        share = f"{100 * count_passes(method) / count_passes('tis'):.0f} % of its cost"
        lines.append(f"- **`{method}` minus TIS with 1024 masks**, {share}: {join_effects(rows, method, 'tis')}")
    lines += [
        f"- **`bayes(samples={n})` minus `fuse`**, its prior: {join_effects(rows, f'bayes(samples={n})', 'fuse')}"
        for n in (128, 256, 1024)
    ]
    ap = select_rows(results.effects("error-bars-photographs-pairs"), metric="ap")
    lines.append(f"- **AP minus that of TIS**: `bayes(samples=1024)` {join_effects(ap, 'bayes(samples=1024)', 'tis')}, explaining the logit with DecompX under PLUS as prior {join_effects(ap, LOGIT_FIT, 'tis')}")  # fmt: skip
    return "\n".join(lines)


def join_effects(rows: Sequence[Effect], method: str, against: str) -> str:
    own = select_rows(list(rows), method=method, against=against)
    return "; ".join(f"{row.dataset}, {row.model}, {format_effect(row)} ({row.n} images)" for row in own)


@fill("errors-against-tis")
def write_against_tis(results: Results) -> str:
    """Faithfulness of every fit minus that of TIS, by cost."""
    rows = select_rows(results.effects("error-bars-photographs-pairs"), metric="faithfulness", against="tis")
    columns = list_datasets(rows)
    methods = dict.fromkeys(row.method for row in rows)
    lines = []
    for method in sorted(methods, key=count_passes):
        cells = [
            format_cell(next(iter(select_rows(rows, method=method, model=model, dataset=dataset)), None))
            for model, dataset in columns
        ]
        lines.append(
            [method, f"{count_passes(method):.0f}", f"{100 * count_passes(method) / count_passes('tis'):.0f} %", *cells]
        )
    return format_table(
        ["minus TIS with 1024 masks", "passes", "of TIS", *(f"{dataset}<br>{model}" for model, dataset in columns)],
        lines,
    )


def format_dataset(results: Results, part: str, dataset: str, metrics: Sequence[str]) -> str:
    rows = select_rows(results.figures(f"error-bars-{part}"), dataset=dataset)
    present = [metric for metric in metrics if select_rows(rows, metric=metric)]
    return append_counts(rows, format_ranking(rows, present, by=present[0])) if present else NOTHING


def append_counts(rows: Sequence[Figure], text: str) -> str:
    """Append the number of images of every dataset to a table."""
    counts = {(row.model, row.dataset): row.n + row.undefined for row in rows}
    return (
        f"{text}\n\n*Images:* {'; '.join(f'{model} {dataset} {count}' for (model, dataset), count in counts.items())}."
    )


@fill("errors-val")
def write_val(results: Results) -> str:
    return format_dataset(results, "photographs", "val", ["faithfulness", "deletion_aopc", "insertion_aopc"])


@fill("errors-pets")
def write_pets(results: Results) -> str:
    return format_dataset(results, "photographs", "pets", ["faithfulness", "ap", "pointing_game", "object_negative"])


@fill("errors-scenes")
def write_scenes(results: Results) -> str:
    parts = []
    for dataset, metrics in (
        ("single", ["faithfulness", "ap", "object_negative"]),
        ("part", ["faithfulness", "ap", "object_negative"]),
        ("pair", ["faithfulness", "ap", "class_discrimination", "object_negative"]),
    ):
        parts.append(f"**`{dataset}`**\n\n{format_dataset(results, 'scenes', dataset, metrics)}")
    return "\n\n".join(parts)


@fill("errors-shortcut")
def write_shortcut(results: Results) -> str:
    """P(stamp above object) in the model that uses the stamp, and in the one that does not."""
    rows = select_rows(results.figures("error-bars-scenes"), dataset="shortcut")
    rows = rows or select_rows(results.figures("shortcut"), metric="stamp_above_thing")
    figures_by_method = {(row.model, row.method): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    lines = [
        [method, *(format_number(figures_by_method[model, method].mean, 2) for model in ("scenes-biased", "scenes"))]
        for method in sorted(methods, key=lambda name: -compute_exposure(figures_by_method, name))
        if all((model, method) in figures_by_method for model in ("scenes-biased", "scenes"))
    ]
    return format_table(["P(stamp above object)", "the model uses it", "it does not"], lines)


def compute_exposure(figures_by_method: Mapping[tuple[str, str], Figure], method: str) -> float:
    used, unused = (figures_by_method.get((model, method)) for model in ("scenes-biased", "scenes"))
    return used.mean - unused.mean if used and unused else -1.0


@fill("errors-ceilings")
def write_ceilings(results: Results) -> str:
    rows = results.figures("error-bars-ceilings")
    if not rows:
        return NOTHING
    metrics = ["faithfulness", "deletion_aopc", "insertion_aopc", "rank_correlation"]
    return append_counts(rows, format_ranking(rows, metrics, by="faithfulness"))


@fill("errors-coverage")
def write_coverage(results: Results) -> str:
    rows = results.figures("error-bars-coverage")
    models = list(dict.fromkeys(row.model for row in rows))
    figures_by_method = {(row.model, row.method): row for row in rows}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        cells = []
        for model in models:
            row = figures_by_method.get((model, method))
            cells.append("–" if row is None else format_percent(row))
        lines.append([method, *cells])
    counts = {row.model: row.n for row in rows}
    text = format_table(["95 % intervals that contain the value with 16,384 samples, in percent", *models], lines)
    return f"{text}\n\n*Images:* {'; '.join(f'{model} {count}' for model, count in counts.items())}."


@fill("errors-coverage-short")
def write_coverage_range(results: Results) -> str:
    """Range of the coverage on photographs, with a prior and without."""
    rows = select_rows([row for row in results.figures("error-bars-coverage") if "bayes" in row.method], model=MODELS)
    groups = {
        "with a prior and fewer than 1024 samples": [row for row in rows if "none" not in row.method and "=1024" not in row.method],
        "with a prior and 1024 samples": [row for row in rows if "none" not in row.method and "=1024" in row.method],
        "without a prior": [row for row in rows if "none" in row.method],
    }  # fmt: skip
    parts = [
        f"{words} {100 * min(row.mean for row in own):.0f} to {100 * max(row.mean for row in own):.0f} %"
        for words, own in groups.items()
        if own
    ]
    return f"On photographs, over both score functions and both models: {', '.join(parts)}." if parts else NOTHING


def format_percent(row: Figure) -> str:
    """Mean and interval in percent; the mean alone where there are too few images."""
    ends = "" if isnan(row.low) else f" [{100 * row.low:.1f}, {100 * row.high:.1f}]"
    return f"{100 * row.mean:.1f}{ends}"


@fill("errors-sensitivity")
def write_sensitivity(results: Results) -> str:
    rows = results.figures("error-bars-sensitivity")
    return append_counts(rows, format_ranking(rows, ["max_sensitivity"], by="max_sensitivity")) if rows else NOTHING


# ── selected variant, third model, masks ──────────────────────────────────────────────────────


@fill("errors-masks")
def write_masks(results: Results) -> str:
    """Faithfulness and AP of TIS by number of masks, each minus those with 1024."""
    rows = results.effects("error-bars-masks-pairs")
    if not rows:
        return NOTHING
    columns = [
        (model, metric) for model in dict.fromkeys(row.model for row in rows) for metric in ("faithfulness", "ap")
    ]
    methods = sorted(dict.fromkeys(row.method for row in rows), key=parse_mask_count)
    lines = [
        [str(parse_mask_count(method)), *(format_cell(next(iter(select_rows(rows, method=method, model=model, metric=metric)), None)) for model, metric in columns)]
        for method in methods
    ]  # fmt: skip
    text = format_table(
        ["masks, minus 1024", *(f"{metric.replace('ap', 'AP')}<br>{model}" for model, metric in columns)], lines
    )
    counts = {row.model: row.n for row in rows}
    return f"{text}\n\n*Images:* {'; '.join(f'{model} pets {count}' for model, count in counts.items())}."


def parse_mask_count(method: str) -> int:
    return int(re.sub(r"\D", "", method))


@fill("errors-choose")
def write_variants(results: Results) -> str:
    """Variants of the fit minus `fuse`, on the selection half."""
    rows = select_rows(results.effects("error-bars-choose-pairs"), metric="faithfulness", against="fuse")
    columns = [(model, dataset, samples) for model, dataset in list_datasets(rows) for samples in (128, 256, 1024)]
    variants = dict.fromkeys(re.sub(r"samples=\d+(, )?", "", row.method).replace("()", "") for row in rows)
    lines = []
    for variant in variants:
        cells = []
        for model, dataset, samples in columns:
            spec, bracket, words = variant.partition(" [")
            inside = spec.removeprefix("bayes").strip("()")
            method = f"bayes({', '.join(filter(None, [f'samples={samples}', inside]))}){bracket}{words}"
            cells.append(format_cell(next(iter(select_rows(rows, method=method, model=model, dataset=dataset)), None)))
        lines.append([variant, *cells])
    return format_table(
        ["minus `fuse`", *(f"{dataset}, {samples}<br>{model}" for model, dataset, samples in columns)], lines
    )


@fill("errors-choose-ap")
def write_variants_ap(results: Results) -> str:
    """AP and faithfulness of fits with 1024 samples minus TIS on pets, on the selection half."""
    rows = select_rows(results.effects("error-bars-choose-pairs"), dataset="pets", against="tis")
    columns = [(metric, model) for metric in ("ap", "faithfulness") for model in MODELS]
    methods = [method for method in dict.fromkeys(row.method for row in rows) if "samples=1024" in method]
    lines = [
        [method, *(format_cell(next(iter(select_rows(rows, method=method, metric=metric, model=model)), None)) for metric, model in columns)]
        for method in methods
    ]  # fmt: skip
    return format_table(
        ["minus TIS with 1024 masks, pets", *(f"{metric}<br>{model}" for metric, model in columns)], lines
    )


@fill("errors-clip")
def write_clip(results: Results) -> str:
    rows = results.figures("error-bars-clip")
    parts = []
    for dataset, words in (("pets", "24 breeds of pets"), ("val", "11 groups of animals of val")):
        own = select_rows(rows, dataset=dataset)
        accuracy = select_rows(own, metric="accuracy")
        if not accuracy:
            continue
        heading = f"**{words}**: the classifier is correct for {100 * accuracy[0].mean:.0f} % of these {accuracy[0].n} images."
        present = [metric for metric in ("faithfulness", "ap", "object_negative") if select_rows(own, metric=metric)]
        own = [row for row in own if row.metric != "accuracy"]
        parts.append(f"{heading}\n\n{append_counts(own, format_ranking(own, present, by='faithfulness'))}")
    return "\n\n".join(parts) or NOTHING


@fill("errors-clip-folds")
def write_clip_folds(results: Results) -> str:
    """PLUS and SkipPLUS minus the base alone."""
    rows = results.effects("error-bars-clip-pairs")
    columns = [(metric, dataset) for metric in ("faithfulness", "ap") for dataset in ("pets", "val") if select_rows(rows, metric=metric, dataset=dataset)]  # fmt: skip
    pairs = [(f"{base}+{fold}", alone) for base, alone in FOLDED.items() for fold in ("plus", "skipplus")]
    return format_pairs(rows, [*pairs, ("tokentm", "genatt")], columns)


@fill("errors-clip-ours")
def write_clip_methods(results: Results) -> str:
    """`temper`, `fuse`, GIM, ResLRP and `bayes` minus the methods that they are compared with."""
    rows = results.effects("error-bars-clip-pairs")
    columns = [(metric, dataset) for metric in ("faithfulness", "ap") for dataset in ("pets", "val") if select_rows(rows, metric=metric, dataset=dataset)]  # fmt: skip
    pairs = [(method, rival) for method in OURS_ON_CLIP for rival in RIVALS_ON_CLIP if method != rival]
    fits = dict.fromkeys(row.method for row in rows if row.method.startswith("bayes") and "'none'" not in row.method)
    pairs += [(fit, rival) for fit in fits for rival in ("tis", "fuse")]
    return format_pairs(rows, pairs, columns)


def format_pairs(rows: Sequence[Effect], pairs: Sequence[tuple[str, str]], columns: Sequence[tuple[str, str]]) -> str:
    lines = []
    for method, against in pairs:
        own = select_rows(list(rows), method=method, against=against)
        if own:
            lines.append([f"{method} − {against}", *(format_cell(next(iter(select_rows(own, metric=metric, dataset=dataset)), None)) for metric, dataset in columns)])  # fmt: skip
    return format_table(["", *(f"{metric}, {dataset}" for metric, dataset in columns)], lines)


@plot("errors-cost")
def draw_cost(results: Results) -> Path | None:
    """Faithfulness by the cost of a map, on images of val that were not used to select anything: `bayes` with 128 to 1024 samples in orange, others in blue, the frontier in grey; dotted: the ceilings, as differences to TIS on the images on which they were searched"""
    rows = select_rows(results.figures("error-bars-photographs"), dataset="val", metric="faithfulness")
    if not rows:
        return None
    panels = {
        model: [
            (row.method, count_passes(row.method), row)
            for row in select_rows(rows, model=model)
            if row.method != "random" and "[" not in row.method
        ]
        for model in MODELS
        if select_rows(rows, model=model)
    }
    fits = [row.method for row in rows if row.method.startswith("bayes")]
    named = [*FITS[1:], *RIVALS, "genatt", "decompx+plus"]
    return plots.draw_scatter(
        "errors-cost", panels, "cost of a map, forward passes (a backward is two)", "faithfulness  (more is better)",
        log=True, names={name: plots.shorten_spec(name) for name in named}, orange=fits, levels=find_ceiling_levels(results, rows), frontier=True,
    )  # fmt: skip


def find_ceiling_levels(results: Results, rows: Sequence[Figure]) -> dict[str, dict[str, float]]:
    """For every model, the faithfulness of TIS plus the difference of each ceiling to it."""
    gaps = select_rows(results.effects("error-bars-ceilings-pairs"), metric="faithfulness", against="tis", method=("two greedy orders", "converged Shapley"))  # fmt: skip
    levels: dict[str, dict[str, float]] = {}
    for gap in gaps:
        for tis in select_rows(list(rows), model=gap.model, method="tis"):
            levels.setdefault(gap.model, {})[gap.method] = tis.mean + gap.effect
    return levels
