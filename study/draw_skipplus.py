"""The plots of the page about SkipPLUS."""

from __future__ import annotations

from pathlib import Path

from study import plots
from study.effects import select_rows
from study.fill_skipplus import AOPC, AP, FOUR, HALF
from study.names import ALTI, FAMILIES, MIDDLE, MODELS, SHOWN_STARTS, STARTS
from study.pages import Results, plot
from study.sentences import format_metric


@plot("skipplus-gains")
def draw_gains(results: Results) -> Path | None:
    """Effect of PLUS and SkipPLUS on every method and measure, with 95 % intervals"""
    rows = [*results.effects("skipplus-pairs"), *select_rows(results.effects("skipplus-pets-pairs"), metric=AP)]
    if not rows:
        return None
    place = {
        (specs[k], specs[0]): (name, word)
        for name, specs in FAMILIES.items()
        for k, word in ((1, "PLUS"), (2, "SkipPLUS"))
    }
    panels = {
        format_metric(metric): [row for row in select_rows(rows, metric=metric) if (row.method, row.against) in place]
        for metric in (*FOUR, AP)
    }
    series = {
        f"{word}, {model}": lambda row, word=word, model=model: (
            row.model == model and place[row.method, row.against][1] == word
        )
        for word in ("PLUS", "SkipPLUS")
        for model in MODELS
    }
    return plots.draw_forest(
        "skipplus-gains", panels, list(FAMILIES), lambda row: place[row.method, row.against][0], series
    )


@plot("skipplus-start")
def draw_starts(results: Results) -> Path | None:
    """Mean of deletion and insertion AOPC by the first layer of the sum; the dotted line is the start of SkipPLUS"""
    figures_by_method = {
        (row.model, row.method): row for row in select_rows(results.figures("skipplus-start"), metric="mean_aopc")
    }
    if not figures_by_method:
        return None
    panels = {
        model: {
            plots.shorten_spec(spec): [
                (float(k), figures_by_method[model, method])
                for k, method in starts.items()
                if (model, method) in figures_by_method
            ]
            for spec, starts in STARTS.items()
            if spec in SHOWN_STARTS
        }
        for model in MODELS
    }
    return plots.draw_lines(
        "skipplus-start", panels, "first layer of the sum", "mean AOPC, %  (more is better)", mark=MIDDLE
    )


@plot("skipplus-trade")
def draw_trade(results: Results) -> Path | None:
    """Deletion AOPC of every method against its insertion AOPC (val) and AP (pets)"""
    panels, up = {}, {}
    names = {
        method: method
        for method in ("random", "genatt", "decompx", "decompx+plus", "decompx+skipplus", "gradcam", "transatt")
    }
    names[f"{ALTI}{HALF}"] = "ALTI, Rollout"
    for plan, other in (("skipplus", AOPC[1]), ("skipplus-pets", AP)):
        rows = results.figures(plan)
        for model in MODELS:
            x, y = (
                {row.method: row for row in select_rows(rows, model=model, metric=metric)}
                for metric in (AOPC[0], other)
            )
            if x and y:
                heading = f"{model}, {plan.removeprefix('skipplus').strip('-') or 'val'}"
                most = max(row.n for row in x.values())  # methods that are undefined on most images are left out
                panels[heading] = [(name, x[name], y[name]) for name in x if name in y and x[name].n > most / 2]
                up[heading] = plots.format_axis_title(next(iter(y.values())))
    return (
        plots.draw_scatter("skipplus-trade", panels, "deletion AOPC, %  (more is better)", up, names=names)
        if panels
        else None
    )
