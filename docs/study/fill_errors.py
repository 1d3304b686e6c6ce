"""What stands on the page about error bars, ceilings and the default: tables of error_bars.py."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
from study import plots
from study.default_choice import by_method, worst_cases
from study.effects import Effect, Figure, effect, figures, only, save
from study.fill_beyond import cost as passes
from study.names import MODELS
from study.pages import Results, fill, plot
from study.sentences import amount, number
from study.sheets import Sheet, mean
from study.tables import NOTHING, cell, standings, table

from vitreous.core.defaults import DEFAULT_METHOD

PARTS = ("photographs", "clip", "scenes", "ceilings", "coverage", "sensitivity", "choose")
BEFORE = (
    "flat",
    "flat | fuse as two maps",
)  # the form of `bayes` before its shrinkage was chosen; other variants are in `choose` alone
LESS_IS_BETTER = {"object_negative", "max_sensitivity", "insertion_aopc"}
UNJUDGED = {"stamp_above_thing", "coverage", "relative_error"}
FITS = tuple(f"bayes(samples={samples})" for samples in (128, 256, 512, 1024))
RIVALS = ("temper", "fuse", "anneal", "tis(masks=256)", "tis")
BASES = (
    "decompx", "globenc", "alti(preset='skipplus', eps=1e-12)", "attin", "genatt", "transatt", "attngrad", "ixg", "attixg(preset='skipplus')",
    "fullgrad", "gradcam", "xgradcamplus", "elementwise", "attcam(preset='skipplus')",
)  # fmt: skip
FOLDED = {base: base + "+rollout(form='half')" if base.startswith(("globenc", "alti")) else base for base in BASES}
OURS_ON_CLIP = ("temper", "fuse", "anneal", "gim(question='probability')+plus", "reslrp(question='probability')+plus", "decompx(question='probability')+plus")  # fmt: skip
RIVALS_ON_CLIP = ("fullgrad@libra+plus", "attnlrp(question='probability')+plus", "temper", "tis")
LOGIT_FIT = "bayes(samples=1024, prior='decompx+plus', question='logit')"


# ── from rows to results ─────────────────────────────────────────────────────────────────────────


def measure_errors(stores: Path, results: Path) -> list[str]:
    """Write results/error-bars-PART.csv, and pairs, of the tables that are there; returns the parts."""
    done, judged = [], []
    for part in PARTS:
        files = sorted(stores.glob(f"error-bars-{part}*.csv"))
        sheets = [sheet for file in files for sheet in read_sheets(file, every=part == "choose")]
        if not sheets:
            continue
        if part in ("photographs", "clip", "scenes"):
            judged += sheets
        if part == "ceilings":
            sheets += two_orders(sheets)
        save(
            results / f"error-bars-{part}.csv",
            [row for sheet in sheets for same in by_images(sheet) for row in figures(same)],
        )
        pairs = [
            effect(sheet, *pair)
            for sheet in sheets
            if sheet.metric in ("faithfulness", "ap", "pointing_game", "class_discrimination")
            for pair in compared(part, sheet.methods)
        ]
        if pairs:
            save(results / f"error-bars-{part}-pairs.csv", pairs)
        done.append(part)
    if rows := worst_cases(judged, is_candidate, DEFAULT_METHOD):
        save(results / "error-bars-default.csv", rows)
    return done


def two_orders(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Faithfulness of an order for deletion and another one for insertion, each optimised greedily: the ceiling."""
    named = {(sheet.model, sheet.metric): sheet for sheet in sheets}
    made = []
    for (model, metric), sheet in named.items():
        if metric != "faithfulness" or not {"greedy deletion", "greedy insertion"} <= set(sheet.methods):
            continue
        gone = named[model, "deletion_aopc"]
        best = sheet.row("greedy insertion")["score"] - gone.row("greedy insertion")["score"]
        best = best + gone.row("greedy deletion")["score"]
        made.append(replace(sheet, methods=("two greedy orders", "tis"), parts={"score": np.stack([best, sheet.row("tis")["score"]])}))  # fmt: skip
    return made


def compared(part: str, methods: Sequence[str]) -> list[tuple[str, str]]:
    """Every fit against its rivals, and questions of the same method."""
    fits = [method for method in methods if method.startswith("bayes")]
    own = [(fit, rival) for fit in fits for rival in RIVALS if rival in methods]
    own += [(fit, f"{fit} [before]") for fit in fits]
    if part == "choose":
        own = [(fit, rival) for fit in fits for rival in ("fuse", "tis")]  # fmt: skip
    own += [(spec, spec.replace("probability", "logit")) for spec in methods if "'probability'" in spec]
    own += [("temper", "temper(question='logit')"), ("fuse", "fuse(question='logit')"), ("tokentm", "genatt")]
    own += [(reference, "tis") for reference in ("two greedy orders", "converged Shapley")]
    if part == "clip":
        own += [(f"{base}+{fold}", alone) for base, alone in FOLDED.items() for fold in ("plus", "skipplus")]
        own += [(method, rival) for method in OURS_ON_CLIP for rival in RIVALS_ON_CLIP]
    return [pair for pair in dict.fromkeys(own) if set(pair) <= set(methods)]


def read_sheets(path: Path, every: bool = False) -> list[Sheet]:
    """Sheets of a table with columns model, dataset, picture, method, metric and value; NaN where a run ended before a method.

    Of the variants of a fit, only the method's own one and what it was before are kept, unless `every` one is asked for.
    """
    grouped: dict[tuple[str, str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    names: dict[str, str] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row["dataset"], row["metric"])
            spec, _, variant = row["method"].partition(" | ")
            if variant and variant not in BEFORE and not every:
                continue
            method = names.setdefault(spec, spelled_in_short(spec))
            words = variant.replace(" | ", ", ") if every else "before"
            grouped[key][f"{method} [{words}]" if variant else method][row["picture"]] = float(row["value"])
    sheets = []
    for (model, dataset, metric), values in grouped.items():
        methods = tuple(values)
        pictures = tuple(dict.fromkeys(picture for own in values.values() for picture in own))
        scores = np.array([[values[method].get(picture, np.nan) for picture in pictures] for method in methods])
        higher = None if metric in UNJUDGED else metric not in LESS_IS_BETTER
        blank = np.full(len(pictures), np.nan)
        sheets.append(Sheet(model, dataset, "", metric, higher, methods, pictures, {"score": scores}, mean, blank))
    return sheets


def by_images(sheet: Sheet) -> list[Sheet]:
    """Sheets of the methods that were measured on the same images, without the others."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for place, row in enumerate(sheet.scores):
        groups[(~np.isnan(row)).tobytes()].append(place)
    made = []
    for places in groups.values():
        known = np.flatnonzero(~np.isnan(sheet.scores[places[0]]))
        if len(known):
            made.append(
                replace(
                    sheet, methods=tuple(sheet.methods[place] for place in places), pictures=tuple(sheet.pictures[one] for one in known),
                    parts={"score": sheet.scores[np.ix_(places, known)]}, probability=sheet.probability[known],
                )
            )  # fmt: skip
    return made


def spelled_in_short(spec: str) -> str:
    """A spec without the options that the script sets to their defaults, so that one method has one name."""
    from vitreous.core.errors import VitreousError
    from vitreous.methods.spec import resolve

    try:
        question = resolve(spec).facts.question
    except VitreousError:
        return spec  # a ceiling
    for default in (f"question='{question}'", "prior='fuse'"):
        spec = re.sub(rf"(, )?{re.escape(default)}", "", spec)
    return spec.replace("(, ", "(").replace("()", "")


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def cost(method: str) -> float:
    """Forward passes, a backward counted as two; a subset costs half a pass on average."""
    from vitreous.methods.spec import resolve

    made = resolve(method.partition(" [")[0])
    if made.name != "bayes":
        return passes(method)
    prior = made.settings["prior"]
    return (0.0 if prior == "none" else passes(prior)) + 1 + made.settings["samples"] / 2


def datasets(rows: Sequence[Figure] | Sequence[Effect]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.model, row.dataset) for row in rows))


@fill("errors-short")
def short(results: Results) -> str:
    """Whether the targets were met, set by set."""
    rows = only(results.effects("error-bars-photographs-pairs"), metric="faithfulness")
    if not rows:
        return NOTHING
    lines = []
    for samples in (128, 256, 512, 1024):
        method = f"bayes(samples={samples})"
        share = f"{100 * cost(method) / cost('tis'):.0f} % of its cost"
        lines.append(f"- **`{method}` less TIS with 1024 masks**, {share}: {joined(rows, method, 'tis')}")
    lines += [
        f"- **`bayes(samples={n})` less `fuse`**, its prior: {joined(rows, f'bayes(samples={n})', 'fuse')}"
        for n in (128, 256, 1024)
    ]
    ap = only(results.effects("error-bars-photographs-pairs"), metric="ap")
    lines.append(f"- **AP less that of TIS**: `bayes(samples=1024)` {joined(ap, 'bayes(samples=1024)', 'tis')}, asked about the logit with DecompX under PLUS as prior {joined(ap, LOGIT_FIT, 'tis')}")  # fmt: skip
    return "\n".join(lines)


def joined(rows: Sequence[Effect], method: str, against: str) -> str:
    own = only(list(rows), method=method, against=against)
    return "; ".join(f"{row.dataset}, {row.model}, {amount(row)} ({row.n} images)" for row in own)


@fill("errors-against-tis")
def against_tis(results: Results) -> str:
    """Faithfulness of every fit less that of TIS, by cost."""
    rows = only(results.effects("error-bars-photographs-pairs"), metric="faithfulness", against="tis")
    columns = datasets(rows)
    methods = dict.fromkeys(row.method for row in rows)
    lines = []
    for method in sorted(methods, key=cost):
        cells = [
            cell(next(iter(only(rows, method=method, model=model, dataset=dataset)), None))
            for model, dataset in columns
        ]
        lines.append([method, f"{cost(method):.0f}", f"{100 * cost(method) / cost('tis'):.0f} %", *cells])
    return table(
        ["less TIS with 1024 masks", "passes", "of TIS", *(f"{dataset}<br>{model}" for model, dataset in columns)],
        lines,
    )


def wide(results: Results, part: str, dataset: str, metrics: Sequence[str]) -> str:
    rows = only(results.figures(f"error-bars-{part}"), dataset=dataset)
    present = [metric for metric in metrics if only(rows, metric=metric)]
    return with_counts(rows, standings(rows, present, by=present[0])) if present else NOTHING


def with_counts(rows: Sequence[Figure], text: str) -> str:
    """A table, and on how many images it was measured."""
    parts = []
    for model, dataset in datasets(rows):
        counts = sorted({row.n + row.undefined for row in only(list(rows), model=model, dataset=dataset)})
        parts.append(f"{model} {dataset} {counts[-1]}" + (f" ({counts[0]} for methods that a run did not reach)" if len(counts) > 1 else ""))  # fmt: skip
    return f"{text}\n\n*Images:* {'; '.join(parts)}."


@fill("errors-val")
def val(results: Results) -> str:
    return wide(results, "photographs", "val", ["faithfulness", "deletion_aopc", "insertion_aopc"])


@fill("errors-pets")
def pets(results: Results) -> str:
    return wide(results, "photographs", "pets", ["faithfulness", "ap", "pointing_game", "object_negative"])


@fill("errors-scenes")
def scenes(results: Results) -> str:
    parts = []
    for dataset, metrics in (
        ("single", ["faithfulness", "ap", "object_negative"]),
        ("part", ["faithfulness", "ap", "object_negative"]),
        ("pair", ["faithfulness", "ap", "class_discrimination", "object_negative"]),
    ):
        parts.append(f"**`{dataset}`**\n\n{wide(results, 'scenes', dataset, metrics)}")
    return "\n\n".join(parts)


@fill("errors-shortcut")
def shortcut(results: Results) -> str:
    """P(stamp above thing) in the model that uses it, and in the one that does not."""
    rows = only(results.figures("error-bars-scenes"), dataset="shortcut")
    rows = rows or only(results.figures("shortcut"), metric="stamp_above_thing")
    found = {(row.model, row.method): row for row in rows}
    methods = dict.fromkeys(row.method for row in rows)
    lines = [
        [method, *(number(found[model, method].mean, 2) for model in ("scenes-biased", "scenes"))]
        for method in sorted(methods, key=lambda name: -exposure(found, name))
        if all((model, method) in found for model in ("scenes-biased", "scenes"))
    ]
    return table(["P(stamp above thing)", "the model uses it", "it does not"], lines)


def exposure(found: Mapping[tuple[str, str], Figure], method: str) -> float:
    used, unused = (found.get((model, method)) for model in ("scenes-biased", "scenes"))
    return used.mean - unused.mean if used and unused else -1.0


@fill("errors-ceilings")
def ceilings(results: Results) -> str:
    rows = results.figures("error-bars-ceilings")
    if not rows:
        return NOTHING
    return standings(rows, ["faithfulness", "deletion_aopc", "insertion_aopc", "rank_correlation"], by="faithfulness")


@fill("errors-coverage")
def coverage(results: Results) -> str:
    rows = results.figures("error-bars-coverage")
    models = list(dict.fromkeys(row.model for row in rows))
    found = {(row.model, row.method): row for row in rows}
    lines = []
    for method in dict.fromkeys(row.method for row in rows):
        cells = []
        for model in models:
            row = found.get((model, method))
            cells.append("–" if row is None else percent(row))
        lines.append([method, *cells])
    return table(["95 % intervals that contain what 16,384 samples say, in percent", *models], lines)


def percent(row: Figure) -> str:
    """Mean and interval in percent; the mean alone where there are too few images."""
    ends = "" if isnan(row.low) else f" [{100 * row.low:.1f}, {100 * row.high:.1f}]"
    return f"{100 * row.mean:.1f}{ends}"


@fill("errors-sensitivity")
def sensitivity(results: Results) -> str:
    rows = results.figures("error-bars-sensitivity")
    return standings(rows, ["max_sensitivity"], by="max_sensitivity") if rows else NOTHING


# ── what was chosen, the third model, masks ──────────────────────────────────────────────────────


@fill("errors-choose")
def chosen(results: Results) -> str:
    """Variants of the fit less `fuse`, on the images to choose by."""
    rows = only(results.effects("error-bars-choose-pairs"), metric="faithfulness", against="fuse")
    columns = [(model, dataset, samples) for model, dataset in datasets(rows) for samples in (128, 256, 1024)]
    variants = dict.fromkeys(re.sub(r"samples=\d+(, )?", "", row.method).replace("()", "") for row in rows)
    lines = []
    for variant in variants:
        cells = []
        for model, dataset, samples in columns:
            spec, bracket, words = variant.partition(" [")
            inside = spec.removeprefix("bayes").strip("()")
            method = f"bayes({', '.join(filter(None, [f'samples={samples}', inside]))}){bracket}{words}"
            cells.append(cell(next(iter(only(rows, method=method, model=model, dataset=dataset)), None)))
        lines.append([variant, *cells])
    return table(["less `fuse`", *(f"{dataset}, {samples}<br>{model}" for model, dataset, samples in columns)], lines)


@fill("errors-choose-ap")
def chosen_ap(results: Results) -> str:
    """AP and faithfulness of fits with 1024 samples less TIS on pets, on the images to choose by."""
    rows = only(results.effects("error-bars-choose-pairs"), dataset="pets", against="tis")
    columns = [(metric, model) for metric in ("ap", "faithfulness") for model in MODELS]
    methods = [method for method in dict.fromkeys(row.method for row in rows) if "samples=1024" in method]
    lines = [
        [method, *(cell(next(iter(only(rows, method=method, metric=metric, model=model)), None)) for metric, model in columns)]
        for method in methods
    ]  # fmt: skip
    return table(["less TIS with 1024 masks, pets", *(f"{metric}<br>{model}" for metric, model in columns)], lines)


@fill("errors-clip")
def clip(results: Results) -> str:
    rows = results.figures("error-bars-clip")
    parts = []
    for dataset, words in (("pets", "24 breeds of pets"), ("val", "11 groups of animals of val")):
        own = only(rows, dataset=dataset)
        accuracy = only(own, metric="accuracy")
        if not accuracy:
            continue
        said = (
            f"**{words}**: the classifier is right on {100 * accuracy[0].mean:.0f} % of these {accuracy[0].n} images."
        )
        present = [metric for metric in ("faithfulness", "ap", "object_negative") if only(own, metric=metric)]
        own = [row for row in own if row.metric != "accuracy"]
        parts.append(f"{said}\n\n{with_counts(own, standings(own, present, by='faithfulness'))}")
    return "\n\n".join(parts) or NOTHING


@fill("errors-clip-folds")
def clip_folds(results: Results) -> str:
    """PLUS and SkipPLUS less the base alone."""
    rows = results.effects("error-bars-clip-pairs")
    columns = [(metric, dataset) for metric in ("faithfulness", "ap") for dataset in ("pets", "val") if only(rows, metric=metric, dataset=dataset)]  # fmt: skip
    pairs = [(f"{base}+{fold}", alone) for base, alone in FOLDED.items() for fold in ("plus", "skipplus")]
    return differences(rows, [*pairs, ("tokentm", "genatt")], columns)


@fill("errors-clip-ours")
def clip_ours(results: Results) -> str:
    """`temper`, `fuse`, GIM, ResLRP and `bayes` less their rivals."""
    rows = results.effects("error-bars-clip-pairs")
    columns = [(metric, dataset) for metric in ("faithfulness", "ap") for dataset in ("pets", "val") if only(rows, metric=metric, dataset=dataset)]  # fmt: skip
    pairs = [(method, rival) for method in OURS_ON_CLIP for rival in RIVALS_ON_CLIP if method != rival]
    fits = dict.fromkeys(row.method for row in rows if row.method.startswith("bayes") and "'none'" not in row.method)
    pairs += [(fit, rival) for fit in fits for rival in ("tis", "fuse")]
    return differences(rows, pairs, columns)


def differences(rows: Sequence[Effect], pairs: Sequence[tuple[str, str]], columns: Sequence[tuple[str, str]]) -> str:
    lines = []
    for method, against in pairs:
        own = only(list(rows), method=method, against=against)
        if own:
            lines.append([f"{method} − {against}", *(cell(next(iter(only(own, metric=metric, dataset=dataset)), None)) for metric, dataset in columns)])  # fmt: skip
    return table(["", *(f"{metric}, {dataset}" for metric, dataset in columns)], lines)


# ── the default ──────────────────────────────────────────────────────────────────────────────────


def criteria(results: Results) -> dict[str, dict[str, float]]:
    """Columns of the table for the default: 0 is a random map (or the bare share), 1 the best candidate."""
    photographs, drawn = results.figures("error-bars-photographs"), results.figures("error-bars-scenes")
    photographs = photographs + [row for row in results.figures("error-bars-clip") if row.metric != "accuracy"]
    raw: dict[str, dict[str, float]] = {}
    columns: dict[str, dict[str, float]] = {}
    for rows, metric, words in (
        (photographs, "faithfulness", "faithful"), (photographs, "ap", "AP"), (drawn, "faithfulness", "faithful"),
        (drawn, "ap", "AP"), (drawn, "class_discrimination", "classes told apart"),
    ):  # fmt: skip
        for model, dataset in datasets(only(rows, metric=metric)):
            own = only(rows, metric=metric, model=model, dataset=dataset)
            raw[f"{words}, {dataset}<br>{model}"] = {row.method: row.mean for row in own}
    if not raw:
        return {}
    everywhere = {method for method in set.intersection(*(set(own) for own in raw.values())) if is_candidate(method)}
    for name, own in raw.items():
        best, floor = max(own[method] for method in everywhere), own["random"]
        columns[name] = {method: (own[method] - floor) / (best - floor) for method in own if method in everywhere}
    for rows in (photographs, drawn):
        for model, dataset in datasets(only(rows, metric="object_negative")):
            own = only(rows, metric="object_negative", model=model, dataset=dataset)
            columns[f"object not blue, {dataset}<br>{model}"] = {row.method: 1 - row.mean for row in own if row.method in everywhere}  # fmt: skip
    measured = only(drawn, metric="stamp_above_thing") or only(results.figures("shortcut"), metric="stamp_above_thing")
    stamps = {(row.model, row.method): row for row in measured}
    if stamps:
        known = {method for _, method in stamps if method in everywhere}
        columns["shortcut exposed<br>Scenes"] = {method: exposure(stamps, method) for method in columns[next(iter(columns))] if method in known}  # fmt: skip
    return columns


def is_candidate(method: str) -> bool:
    """At most two forward and backward passes, and dependent on the class."""
    from vitreous.methods.spec import resolve

    return "bayes" not in method and resolve(method).class_specific and cost(method) <= 8


@fill("errors-default")
def default(results: Results) -> str:
    columns = criteria(results)
    if len({name.partition(",")[0] for name in columns}) < 4:
        return NOTHING
    methods = [
        method
        for method in dict.fromkeys(method for column in columns.values() for method in column)
        if is_candidate(method) and all(method in column for name, column in columns.items() if "shortcut" not in name)
    ]
    worst = {
        method: min((column[method], name) for name, column in columns.items() if method in column)
        for method in methods
    }
    less = by_method(results.effects("error-bars-default"), "worst_case")
    lines = []
    for method in sorted(methods, key=lambda name: -worst[name][0]):
        value, name = worst[method]
        middle = float(np.mean([column[method] for column in columns.values() if method in column]))
        gap = "" if method == DEFAULT_METHOD else cell(less.get(method))
        lines.append([method, number(value, 2), name.replace("<br>", ", "), gap, number(middle, 2)])
    return table(["candidate", "worst case", "where", f"less that of `{DEFAULT_METHOD}`", "mean"], lines)


@fill("errors-default-all")
def default_all(results: Results) -> str:
    columns = criteria(results)
    if not columns:
        return NOTHING
    methods = [
        method
        for method in dict.fromkeys(method for column in columns.values() for method in column)
        if is_candidate(method)
    ]
    lines = [
        [method, *(number(column.get(method, float("nan")), 2) for column in columns.values())] for method in methods
    ]
    return table(["candidate", *columns], lines)


@plot("errors-cost")
def draw_cost(results: Results) -> Path | None:
    """Faithfulness by what a map costs, on images of val that chose nothing: `bayes` in orange, others in blue, the frontier in grey; dotted: the ceilings, as differences to TIS on the images on which they were searched"""
    rows = only(results.figures("error-bars-photographs"), dataset="val", metric="faithfulness")
    if not rows:
        return None
    panels = {
        model: [
            (row.method, cost(row.method), row)
            for row in only(rows, model=model)
            if row.method != "random" and "[" not in row.method
        ]
        for model in MODELS
        if only(rows, model=model)
    }
    ours = [row.method for row in rows if row.method.startswith("bayes")]
    named = [*FITS, *RIVALS, "genatt", "decompx+plus"]
    return plots.scatter(
        "errors-cost", panels, "cost of a map, forward passes (a backward is two)", "faithfulness  (more is better)",
        log=True, say={name: plots.short(name) for name in named}, orange=ours, levels=ceiling_levels(results, rows), frontier=True,
    )  # fmt: skip


def ceiling_levels(results: Results, rows: Sequence[Figure]) -> dict[str, dict[str, float]]:
    """For every model, the faithfulness of TIS plus what each ceiling has over it."""
    gaps = only(results.effects("error-bars-ceilings-pairs"), metric="faithfulness", against="tis", method=("two greedy orders", "converged Shapley"))  # fmt: skip
    levels: dict[str, dict[str, float]] = {}
    for gap in gaps:
        for tis in only(list(rows), model=gap.model, method="tis"):
            levels.setdefault(gap.model, {})[gap.method] = tis.mean + gap.effect
    return levels
