"""Markdown tables from tidy rows. Figures are means ± half of the 95 % interval; effects have the interval itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan

from study.effects import Effect, Figure, only
from study.sentences import FEW, amount, digits_of, number, title, verdict
from study.special import Order

ARROWS = {"more": " ↑", "less": " ↓", "": ""}
NOTHING = "*Not measured yet.*"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """The first columns hold words, the others numbers."""
    if not rows:
        return NOTHING
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spelled(method: str) -> str:
    """A spec in a cell: plain, since code is broken anywhere where a table is wide."""
    return method.replace(" ", "\u00a0")


def about(one: Figure | None, fewest: int = 0) -> str:
    """A figure; with how many questions have no number, where others of its column have more."""
    if one is None or isnan(one.mean):
        return "–"
    digits = digits_of(one.metric)
    spread = "" if isnan(one.low) else f"\u00a0±\u00a0{number((one.high - one.low) / 2, digits)}"
    lost = f"\u00a0({one.undefined - fewest}\u00a0undefined)" if one.undefined > fewest else ""
    return number(one.mean, digits) + spread + lost


def standings(
    rows: Sequence[Figure], metrics: Sequence[str], by: str = "", methods: Sequence[str] = (), top: int = 0
) -> str:
    """Methods down, model × metric across; the best figure of a column in bold."""
    models = list(dict.fromkeys(one.model for one in rows))
    columns = [(model, metric) for metric in metrics for model in models if only(rows, model=model, metric=metric)]
    found = {(one.model, one.metric, one.method): one for one in rows}
    names = list(methods) or list(dict.fromkeys(one.method for one in rows if one.metric in metrics))
    if by:
        names.sort(key=lambda name: -sum(level(found.get((model, by, name))) for model in models))
    best = {column: extreme([found.get((*column, name)) for name in names]) for column in columns}
    fewest = {column: min(one.undefined for one in only(rows, model=column[0], metric=column[1])) for column in columns}
    head = ["method"] + [
        f"{heading(found, names, *column)}{f'<br>{column[0]}' if len(models) > 1 else ''}" for column in columns
    ]
    lines = []
    for name in names[: top or None]:
        cells = []
        for column in columns:
            text = about(found.get((*column, name)), fewest[column])
            cells.append(f"**{text}**" if name == best[column] else text)
        lines.append([spelled(name), *cells])
    return table(head, lines) if columns else NOTHING


def heading(found: Mapping[tuple[str, str, str], Figure], names: Sequence[str], model: str, metric: str) -> str:
    one = next((found[model, metric, name] for name in names if (model, metric, name) in found), None)
    return title(metric) + (ARROWS[one.better] if one else "")


def level(one: Figure | None) -> float:
    return -1e9 if one is None or isnan(one.mean) else -one.mean if one.better == "less" else one.mean


def extreme(rows: Sequence[Figure | None]) -> str:
    """The method with the best figure; none where the metric does not judge, or on few images."""
    known = [one for one in rows if one is not None and not isnan(one.mean) and one.better and one.n >= FEW]
    return max(known, key=level).method if known else ""


def cell(one: Effect | None) -> str:
    """Bold where it is better, italic where it is worse, plain where that is open."""
    if one is None or isnan(one.effect):
        return "–"
    mark = {"better": "**", "worse": "*"}.get(verdict(one), "")
    return f"{mark}{amount(one)}{mark}".replace(" ", "\u00a0")


def gains(
    rows: Sequence[Effect], pairs: Mapping[str, tuple[str, str]], columns: Mapping[str, Callable[[Effect], bool]]
) -> str:
    """Named pairs down, kinds of effect across."""
    lines = []
    for name, (method, against) in pairs.items():
        own = only(rows, method=method, against=against)
        lines.append([name, *(cell(next((one for one in own if wanted(one)), None)) for wanted in columns.values())])
    return table(["", *columns], lines) if rows else NOTHING


def of(model: str, metric: str, explained: str = "", dataset: str = "") -> Callable[[Effect], bool]:
    """Which effects stand in a column."""
    return lambda one: (
        (one.model, one.metric) == (model, metric)
        and (not explained or one.explained == explained)
        and (not dataset or one.dataset == dataset)
    )


def agreements(rows: Sequence[Order], truths: Sequence[tuple[str, str]], among: str) -> str:
    """Metrics down, truths across: Kendall's τ with its interval, the best metric of a column in bold."""
    own = only(rows, among=among)
    metrics = list(dict.fromkeys(one.metric for one in own))
    found = {(one.dataset, one.truth, one.metric): one for one in own}
    judges = [name for name in metrics if not name.startswith("the same")]
    best = {}
    for truth in truths:
        known = {
            name: found[*truth, name].tau
            for name in judges
            if (*truth, name) in found and not isnan(found[*truth, name].tau)
        }
        best[truth] = max(known, key=known.__getitem__, default="")
    means = {name: [found[*truth, name].tau for truth in truths if (*truth, name) in found] for name in metrics}
    metrics.sort(key=lambda name: (name.startswith("the same"), -sum(means[name]) / max(len(means[name]), 1)))
    lines = []
    for name in metrics:
        cells = []
        for truth in truths:
            one = found.get((*truth, name))
            ends = "" if one is None else f" [{number(one.tau_low, 2)}, {number(one.tau_high, 2)}]"
            text = "–" if one is None else number(one.tau, 2) + ends
            cells.append(f"**{text}**" if name == best[truth] else text)
        lines.append([title(name), *cells])
    return table(["metric", *(f"{title(truth)}<br>{dataset}" for dataset, truth in truths)], lines) if own else NOTHING
