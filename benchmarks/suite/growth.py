"""Growth of time with tokens, depth, masks and images, compared with the number of multiplications."""

from __future__ import annotations

import logging
import math
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import vitreous
from suite.clock import measure_seconds
from suite.workload import Workload, make_workload

METHODS = ("decompx+skipplus", "ixg", "genatt", "tis(masks=32)")
AXES = {  # points that are measured
    "tokens": (7, 10, 14, 20, 28),  # patches on a side
    "depth": (3, 6, 12, 24),
    "pictures": (2, 4, 8, 16),
    "masks": (16, 32, 64, 128),
}
LARGE = AXES | {
    "pictures": (8, 16, 32, 64),
    "masks": (64, 128, 256, 512),
}  # the time of a GPU that is not busy does not grow
FEW = {"tokens": (4, 8), "depth": (2, 4), "pictures": (1, 2), "masks": (4, 8)}


def measure_growth(device: str, rounds: int, quick: bool = False) -> list[dict[str, Any]]:
    """Seconds at every point of every axis, and the fitted exponents of time and of multiplications."""
    series_list = []
    for axis, points in (FEW if quick else LARGE if device.startswith("cuda") else AXES).items():
        for what, curve in measure_axis(axis, points, device, rounds, quick):
            places = sorted(curve)
            times, counts = [curve[x][0] for x in places], [curve[x][1] for x in places]
            series_list.append(
                {"what": what, "axis": axis, "at": places, "seconds": [round(t, 6) for t in times]}
                | {"exponent": fit_exponent(places, times), "theory": fit_exponent(places, counts)}
            )
    return series_list


def measure_axis(
    axis: str, points: tuple[int, ...], device: str, rounds: int, quick: bool
) -> Iterator[tuple[str, dict[int, tuple[float, float]]]]:
    """For every method: {point: (seconds, multiplications)}."""
    methods = ("tis(masks={})", "rise(masks={})") if axis == "masks" else METHODS
    curves: dict[str, dict[int, tuple[float, float]]] = {what: {} for what in methods}
    for point in points:
        workload = make_workload_at(axis, point, device, quick)
        tokens = workload.vit.layout(workload.vit.size).tokens
        work = {what: make_explainer(workload, what.format(point)) for what in methods}
        timed = {what: measure_least_seconds(function, device, rounds) for what, function in work.items()}
        for what in methods:
            curves[what][tokens if axis == "tokens" else point] = (
                timed[what],
                count_multiplications(what.format(point), workload, tokens),
            )
    for what, curve in curves.items():
        yield what.replace("(masks={})", ""), curve


def make_workload_at(axis: str, point: int, device: str, quick: bool) -> Workload:
    """ViT-Ti/16 (on a GPU ViT-B/16, with `quick` the test model), changed along one axis."""
    large = device.startswith("cuda") and not quick
    size, patch = ("test", 8) if quick else ("b" if large else "ti", 16)
    batch = point if axis == "pictures" else 2 if axis == "masks" else 16 if large else 4
    if axis in ("pictures", "masks"):  # one model for all points
        plain = get_plain_workload(size, device)
        return replace(plain, images=plain.images.repeat(-(-batch // plain.batch), 1, 1, 1)[:batch], batch=batch)
    return make_workload(size, device, batch, **({"img_size": patch * point} if axis == "tokens" else {"depth": point}))


@cache
def get_plain_workload(size: str, device: str) -> Workload:
    return make_workload(size, device)


def make_explainer(workload: Workload, spec: str) -> Callable[[], object]:
    chosen = vitreous.resolve(spec)
    return lambda: vitreous.explain(workload.vit, workload.images, method=chosen)


def measure_least_seconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """Least time of the rounds, which is least affected by other processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        return min(measure_seconds(work, device) for _ in range(rounds))


# ── theory ───────────────────────────────────────────────────────────────────────────────────────


def count_multiplications(spec: str, workload: Workload, tokens: int) -> float:
    """Multiplications of the forward and backward passes of a method; a backward pass is counted like a forward pass."""
    depth, width = workload.vit.depth, workload.model.embed_dim

    def blocks(n: float) -> float:  # qkv, projection and MLP; scores and mixing
        return 12 * n * width**2 + 2 * n**2 * width

    chosen, embedding = (
        vitreous.resolve(spec),
        tokens * 3 * math.prod(workload.vit.layout(workload.vit.size).patch) * width,
    )
    if chosen.name in ("tis", "rise"):
        present = 1 + (tokens - 1) * chosen.options.get("kept", 0.5) if chosen.name == "tis" else tokens
        per_mask = depth * blocks(present) + (0 if chosen.name == "tis" else embedding)
        return workload.batch * (depth * blocks(tokens) + embedding + chosen.options["masks"] * per_mask)
    blocks_in_backward = depth - chosen.fold.first_layer(depth)
    return workload.batch * ((depth + blocks_in_backward) * blocks(tokens) + embedding)


def fit_exponent(at: list[int], values: list[float]) -> float:
    """Slope of the straight line through the logarithms."""
    x, y = np.log(at), np.log(values)
    return float(np.polyfit(x, y, 1)[0])


# ── the figure ───────────────────────────────────────────────────────────────────────────────────


def draw_growth(series_list: list[dict[str, Any]], path: Path) -> None:
    """Draw one log-log panel per axis; labels contain the measured and the theoretical exponent."""
    import matplotlib

    matplotlib.use("agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # no warnings about missing fonts
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes = list(dict.fromkeys(series["axis"] for series in series_list))
    names = list(dict.fromkeys(series["what"].split("(")[0] for series in series_list))
    colours = dict(zip(names, ("#0072b2", "#d55e00", "#009e73", "#a2559c", "#b8860b"), strict=False))
    marks = dict(zip(names, "os^Dv", strict=False))
    style = {"svg.hashsalt": "vitreous", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context(style):
        high = -(-len(axes) // 2)
        figure, panels = plt.subplots(high, 2, figsize=(8.4, 3.6 * high), layout="constrained", squeeze=False)
        for panel, axis in zip(panels.flat, axes, strict=False):
            here = [series for series in series_list if series["axis"] == axis]
            for series in here:
                name = series["what"].split("(")[0]
                label = f"{name}: {series['exponent']:.2f} (theory {series['theory']:.2f})"
                panel.loglog(
                    series["at"], series["seconds"], marks[name] + "-", color=colours[name], label=label, markersize=4
                )
                panel.loglog(series["at"], compute_theory_line(series), ":", color=colours[name], linewidth=1)
            panel.set(xlabel=axis, ylabel="seconds", xticks=here[0]["at"])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            for line in (panel.xaxis, panel.yaxis):
                line.set_major_formatter(StrMethodFormatter("{x:g}"))
                line.set_minor_formatter(NullFormatter())
            panel.legend(title="exponent, measured (theory, dotted)", fontsize=7.5, title_fontsize=7.5, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def compute_theory_line(series: dict[str, Any]) -> list[float]:
    """Line with the theoretical exponent through the centre of the measured points."""
    centre = [statistics.fmean(math.log(v) for v in series[key]) for key in ("at", "seconds")]
    return [math.exp(centre[1] + series["theory"] * (math.log(x) - centre[0])) for x in series["at"]]
