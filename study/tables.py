"""Markdown tables from tidy rows. Figures are means ± half of the 95 % interval; effects have the interval itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan

from study.effects import Effect, Figure, select_rows
from study.sentences import FEW, count_digits, format_effect, format_metric, format_number, judge
from study.special import Order

ARROWS = {"more": " ↑", "less": " ↓", "": ""}
NOTHING = "*Not measured yet.*"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Markdown table; the first `words` columns are aligned left, the others right."""
    if not rows:
        return NOTHING
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_spec(method: str) -> str:
    """A spec in a cell, without line breaks; not as code, which browsers break anywhere in a wide table."""
    return method.replace(" ", "\u00a0")


def format_figure(row: Figure | None, fewest: int = 0) -> str:
    """A figure with half of its interval; with the number of undefined scores if it exceeds `fewest`."""
    if row is None or isnan(row.mean):
        return "–"
    digits = count_digits(row.metric)
    spread = "" if isnan(row.low) else f"\u00a0±\u00a0{format_number((row.high - row.low) / 2, digits)}"
    undefined = f"\u00a0({row.undefined - fewest}\u00a0undefined)" if row.undefined > fewest else ""
    return format_number(row.mean, digits) + spread + undefined


def format_ranking(
    rows: Sequence[Figure], metrics: Sequence[str], by: str = "", methods: Sequence[str] = (), top: int = 0
) -> str:
    """Table with a row for each method and a column for each metric and model; the best value of a column is bold."""
    models = list(dict.fromkeys(row.model for row in rows))
    columns = [
        (model, metric) for metric in metrics for model in models if select_rows(rows, model=model, metric=metric)
    ]
    figures_by_key = {(row.model, row.metric, row.method): row for row in rows}
    names = list(methods) or list(dict.fromkeys(row.method for row in rows if row.metric in metrics))
    if by:
        names.sort(key=lambda name: -sum(get_level(figures_by_key.get((model, by, name))) for model in models))
    best = {column: find_best([figures_by_key.get((*column, name)) for name in names]) for column in columns}
    fewest = {
        column: min(row.undefined for row in select_rows(rows, model=column[0], metric=column[1])) for column in columns
    }
    head = ["method"] + [
        f"{format_heading(figures_by_key, names, *column)}{f'<br>{column[0]}' if len(models) > 1 else ''}"
        for column in columns
    ]
    lines = []
    for name in names[: top or None]:
        cells = []
        for column in columns:
            text = format_figure(figures_by_key.get((*column, name)), fewest[column])
            cells.append(f"**{text}**" if name == best[column] else text)
        lines.append([format_spec(name), *cells])
    return format_table(head, lines) if columns else NOTHING


def format_heading(
    figures_by_key: Mapping[tuple[str, str, str], Figure], names: Sequence[str], model: str, metric: str
) -> str:
    row = next((figures_by_key[model, metric, name] for name in names if (model, metric, name) in figures_by_key), None)
    return format_metric(metric) + (ARROWS[row.better] if row else "")


def get_level(row: Figure | None) -> float:
    return -1e9 if row is None or isnan(row.mean) else -row.mean if row.better == "less" else row.mean


def find_best(rows: Sequence[Figure | None]) -> str:
    """The method with the best value; none for a metric without a better direction, or for few images."""
    judged = [row for row in rows if row is not None and not isnan(row.mean) and row.better and row.n >= FEW]
    return max(judged, key=get_level).method if judged else ""


def format_cell(row: Effect | None) -> str:
    """An effect: bold if better, italic if worse, plain if open; a dash if there is none."""
    if row is None or isnan(row.effect):
        return "–"
    mark = {"better": "**", "worse": "*"}.get(judge(row), "")
    return f"{mark}{format_effect(row)}{mark}".replace(" ", "\u00a0")


def format_differences(
    rows: Sequence[Effect], pairs: Mapping[str, tuple[str, str]], columns: Mapping[str, Callable[[Effect], bool]]
) -> str:
    """Table of effects with a row for each named pair; each column selects its effects by a predicate."""
    lines = []
    for name, (method, against) in pairs.items():
        own = select_rows(rows, method=method, against=against)
        lines.append(
            [
                name,
                *(format_cell(next((row for row in own if matches(row)), None)) for matches in columns.values()),
            ]
        )
    return format_table(["", *columns], lines) if rows else NOTHING


def match_effects(model: str, metric: str, explained: str = "", dataset: str = "") -> Callable[[Effect], bool]:
    """Predicate of the effects of a column."""
    return lambda row: (
        (row.model, row.metric) == (model, metric)
        and (not explained or row.explained == explained)
        and (not dataset or row.dataset == dataset)
    )


def format_agreements(rows: Sequence[Order], truths: Sequence[tuple[str, str]], among: str) -> str:
    """Table of Kendall's τ with a row for each metric and a column for each ground truth; the best metric of a column is bold."""
    own = select_rows(rows, among=among)
    metrics = list(dict.fromkeys(row.metric for row in own))
    orders_by_key = {(row.dataset, row.truth, row.metric): row for row in own}
    judges = [name for name in metrics if not name.startswith("the same")]
    best = {}
    for truth in truths:
        taus = {
            name: orders_by_key[*truth, name].tau
            for name in judges
            if (*truth, name) in orders_by_key and not isnan(orders_by_key[*truth, name].tau)
        }
        best[truth] = max(taus, key=taus.__getitem__, default="")
    means = {
        name: [orders_by_key[*truth, name].tau for truth in truths if (*truth, name) in orders_by_key]
        for name in metrics
    }
    metrics.sort(key=lambda name: (name.startswith("the same"), -sum(means[name]) / max(len(means[name]), 1)))
    lines = []
    for name in metrics:
        cells = []
        for truth in truths:
            row = orders_by_key.get((*truth, name))
            ends = "" if row is None else f" [{format_number(row.tau_low, 2)}, {format_number(row.tau_high, 2)}]"
            text = "–" if row is None else format_number(row.tau, 2) + ends
            cells.append(f"**{text}**" if name == best[truth] else text)
        lines.append([format_metric(name), *cells])
    return (
        format_table(["metric", *(f"{format_metric(truth)}<br>{dataset}" for dataset, truth in truths)], lines)
        if own
        else NOTHING
    )
