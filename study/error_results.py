"""Convert tables of error_bars.py to results/error-bars-PART.csv: figures, paired differences, worst cases of candidates."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from study.default_choice import compare_worst_cases
from study.effects import Effect, Figure, compute_effect, compute_figures, load_rows, write_rows
from study.fill_beyond import count_passes as passes
from study.sheets import Sheet, average, get_model_index
from vitreous.core.defaults import DEFAULT_METHOD

PARTS = ("photographs", "clip", "masks", "scenes", "ceilings", "coverage", "sensitivity", "choose")
COMPARED_BY = ("faithfulness", "ap", "pointing_game", "class_discrimination")
LESS_IS_BETTER = {"object_negative", "max_sensitivity", "insertion_aopc"}
UNJUDGED = {"stamp_above_thing", "coverage", "relative_error"}
RIVALS = ("temper", "fuse", "anneal", "tis(masks=256)", "tis")
USUAL_MASKS = "tis(masks=1024)"
BASES = (
    "decompx", "globenc", "alti(preset='skipplus', eps=1e-12)", "attin", "genatt", "transatt", "attngrad", "ixg", "attixg(preset='skipplus')",
    "fullgrad", "gradcam", "xgradcamplus", "elementwise", "attcam(preset='skipplus')",
)  # fmt: skip
FOLDED = {base: base + "+rollout(form='half')" if base.startswith(("globenc", "alti")) else base for base in BASES}
OURS_ON_CLIP = ("temper", "fuse", "anneal", "gim(question='probability')+plus", "reslrp(question='probability')+plus", "decompx(question='probability')+plus")  # fmt: skip
RIVALS_ON_CLIP = ("fullgrad@libra+plus", "attnlrp(question='probability')+plus", "temper", "tis")
Row = TypeVar("Row", Figure, Effect)


def measure_errors(stores: Path, results: Path) -> list[str]:
    """Write results/error-bars-PART.csv and -pairs.csv for the tables that exist; returns the parts.

    Rows of models and datasets that are not in the tables are left unchanged.
    """
    measured_parts, judged = [], []
    for part in PARTS:
        files = sorted(stores.glob(f"error-bars-{part}*.csv"))
        sheets, whole = (
            sorted(read_sheets(files, part == "choose", common), key=get_model_index) for common in (False, True)
        )
        if not sheets:
            continue
        if part in ("photographs", "clip", "scenes"):
            judged += sheets
        if part == "ceilings":
            sheets, whole = sheets + derive_ceilings(sheets), whole + derive_ceilings(whole)
        replace_rows(results / f"error-bars-{part}.csv", [row for sheet in whole for row in compute_figures(sheet)])
        pairs = [
            compute_effect(sheet, *pair)
            for sheet in sheets
            if sheet.metric in COMPARED_BY
            for pair in list_pairs(part, sheet.methods)
        ]
        if pairs:
            replace_rows(results / f"error-bars-{part}-pairs.csv", pairs)
        measured_parts.append(part)
    if rows := compare_worst_cases(judged, is_candidate, DEFAULT_METHOD):
        write_rows(results / "error-bars-default.csv", rows)
    return measured_parts


def replace_rows(path: Path, rows: list[Row]) -> None:
    """Replace the rows of the same models and datasets in a file; other rows stay."""
    measured = {(row.model, row.dataset) for row in rows}
    others = [row for row in load_rows(path, type(rows[0])) if (row.model, row.dataset) not in measured]
    write_rows(path, sorted(others + rows, key=get_model_index))


def derive_ceilings(sheets: Sequence[Sheet]) -> list[Sheet]:
    """Faithfulness of two greedy orders, one for deletion and one for insertion, as an upper bound."""
    named = {(sheet.model, sheet.metric): sheet for sheet in sheets}
    ceilings = []
    for (model, metric), sheet in named.items():
        if metric != "faithfulness" or not {"greedy deletion", "greedy insertion"} <= set(sheet.methods):
            continue
        deletion = named[model, "deletion_aopc"]
        best = sheet.row("greedy insertion")["score"] - deletion.row("greedy insertion")["score"]
        best = best + deletion.row("greedy deletion")["score"]
        ceilings.append(replace(sheet, methods=("two greedy orders", "tis"), parts={"score": np.stack([best, sheet.row("tis")["score"]])}))  # fmt: skip
    return ceilings


def list_pairs(part: str, methods: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs to compare: every fit and its rivals, and both score functions of the same method."""
    fits = [method for method in methods if method.startswith("bayes")]
    own = [(fit, rival) for fit in fits for rival in RIVALS if rival in methods]
    if part == "choose":
        own = [(fit, rival) for fit in fits for rival in ("fuse", "tis")]  # fmt: skip
    own += [(spec, spec.replace("probability", "logit")) for spec in methods if "'probability'" in spec]
    own += [("temper", "temper(question='logit')"), ("fuse", "fuse(question='logit')"), ("tokentm", "genatt")]
    own += [(reference, "tis") for reference in ("two greedy orders", "converged Shapley")]
    if part == "masks":
        own = [(method, USUAL_MASKS) for method in methods if method != USUAL_MASKS]
    if part == "clip":
        own += [(f"{base}+{fold}", alone) for base, alone in FOLDED.items() for fold in ("plus", "skipplus")]
        own += [(method, rival) for method in OURS_ON_CLIP for rival in RIVALS_ON_CLIP]
    return [pair for pair in dict.fromkeys(own) if set(pair) <= set(methods)]


def read_sheets(paths: Sequence[Path], every: bool = False, common: bool = False) -> list[Sheet]:
    """Sheets of tables with columns model, dataset, picture, method, metric and value; NaN where a run ended before a method.

    If several tables have a value, the last is used. Variants of a fit are dropped unless `every` is set. With `common`, only
    images that all methods have are used, so that their means can be compared.
    """
    grouped: dict[tuple[str, str, str], dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    names: dict[str, str] = {}
    for row in (row for path in paths for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())):
        key = (row["model"], row["dataset"], row["metric"])
        spec, _, variant = row["method"].partition(" | ")
        if variant and not every:
            continue
        method = names.setdefault(spec, shorten_spec(spec))
        name = f"{method} [{variant.replace(' | ', ', ')}]" if variant else method
        grouped[key][name][row["picture"]] = float(row["value"])
    sheets = []
    for (model, dataset, metric), values in grouped.items():
        methods = tuple(values)
        images = tuple(dict.fromkeys(image for own in values.values() for image in own))
        if common:
            images = tuple(image for image in images if all(image in own for own in values.values()))
        scores = np.array([[values[method].get(image, np.nan) for image in images] for method in methods])
        higher = None if metric in UNJUDGED else metric not in LESS_IS_BETTER
        blank = np.full(len(images), np.nan)
        sheets.append(Sheet(model, dataset, "", metric, higher, methods, images, {"score": scores}, average, blank))
    return sheets


@cache
def shorten_spec(spec: str) -> str:
    """A spec without options that have their default value, so that one method has one name."""
    from vitreous.core.errors import VitreousError
    from vitreous.methods.spec import resolve

    try:
        question = resolve(spec).facts.question
    except VitreousError:
        return spec  # an upper bound, not a method
    for default in (f"question='{question}'", "prior='fuse'"):
        spec = re.sub(rf"(, )?{re.escape(default)}", "", spec)
    return spec.replace("(, ", "(").replace("()", "")


def count_passes(method: str) -> float:
    """Cost in forward passes; a backward pass counts as two, a subset as half a pass on average."""
    from vitreous.methods.spec import resolve

    resolved = resolve(method.partition(" [")[0])
    if resolved.name != "bayes":
        return passes(method)
    prior = resolved.settings["prior"]
    return (0.0 if prior == "none" else passes(prior)) + 1 + resolved.settings["samples"] / 2


def is_candidate(method: str) -> bool:
    """Whether a method is class-specific and takes at most two forward and backward passes."""
    from vitreous.methods.spec import resolve

    return "bayes" not in method and resolve(method).class_specific and count_passes(method) <= 8
