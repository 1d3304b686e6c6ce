"""How time grows with tokens, depth, masks and images, beside what counting multiplications says."""

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
from suite.bed import Bed, lay
from suite.clock import seconds

METHODS = ("decompx+skipplus", "ixg", "genatt", "tis(masks=32)")
AXES = {  # the points measured
    "tokens": (7, 10, 14, 20, 28),  # patches on a side
    "depth": (3, 6, 12, 24),
    "pictures": (2, 4, 8, 16),
    "masks": (16, 32, 64, 128),
}
LARGE = AXES | {"pictures": (8, 16, 32, 64), "masks": (64, 128, 256, 512)}  # a GPU that waits shows no growth
FEW = {"tokens": (4, 8), "depth": (2, 4), "pictures": (1, 2), "masks": (4, 8)}


def grown(device: str, rounds: int, quick: bool = False) -> list[dict[str, Any]]:
    """Seconds at every point of every axis, the exponent of the line through them, and that of the multiplications."""
    series_list = []
    for axis, points in (FEW if quick else LARGE if device.startswith("cuda") else AXES).items():
        for what, curve in along(axis, points, device, rounds, quick):
            places = sorted(curve)
            times, counts = [curve[x][0] for x in places], [curve[x][1] for x in places]
            series_list.append(
                {"what": what, "axis": axis, "at": places, "seconds": [round(t, 6) for t in times]}
                | {"exponent": exponent(places, times), "theory": exponent(places, counts)}
            )
    return series_list


def along(
    axis: str, points: tuple[int, ...], device: str, rounds: int, quick: bool
) -> Iterator[tuple[str, dict[int, tuple[float, float]]]]:
    """For every method: place → (seconds, multiplications)."""
    methods = ("tis(masks={})", "rise(masks={})") if axis == "masks" else METHODS
    curves: dict[str, dict[int, tuple[float, float]]] = {what: {} for what in methods}
    for point in points:
        bed = bed_at(axis, point, device, quick)
        tokens = bed.vit.layout(bed.vit.size).tokens
        work = {what: explained(bed, what.format(point)) for what in methods}
        timed = {what: least_seconds(function, device, rounds) for what, function in work.items()}
        for what in methods:
            curves[what][tokens if axis == "tokens" else point] = (
                timed[what],
                products(what.format(point), bed, tokens),
            )
    for what, curve in curves.items():
        yield what.replace("(masks={})", ""), curve


def bed_at(axis: str, point: int, device: str, quick: bool) -> Bed:
    """ViT-Ti/16 (on a GPU B/16, quick: the test model), other than itself along one axis."""
    large = device.startswith("cuda") and not quick
    size, patch = ("test", 8) if quick else ("b" if large else "ti", 16)
    batch = point if axis == "pictures" else 2 if axis == "masks" else 16 if large else 4
    if axis in ("pictures", "masks"):  # one model for all points
        plain = standing(size, device)
        return replace(plain, images=plain.images.repeat(-(-batch // plain.batch), 1, 1, 1)[:batch], batch=batch)
    return lay(size, device, batch, **({"img_size": patch * point} if axis == "tokens" else {"depth": point}))


@cache
def standing(size: str, device: str) -> Bed:
    return lay(size, device)


def explained(bed: Bed, spec: str) -> Callable[[], object]:
    chosen = vitreous.resolve(spec)
    return lambda: vitreous.explain(bed.vit, bed.images, method=chosen)


def least_seconds(work: Callable[[], object], device: str, rounds: int) -> float:
    """The least of the rounds: what grows is the work, not what disturbs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
        return min(seconds(work, device) for _ in range(rounds))


# ── theory ───────────────────────────────────────────────────────────────────────────────────────


def products(spec: str, bed: Bed, tokens: int) -> float:
    """Multiplications of the forwards and backwards that the method needs; a backward costs what a forward does."""
    depth, width = bed.vit.depth, bed.model.embed_dim

    def blocks(n: float) -> float:  # qkv, projection and MLP; scores and mixing
        return 12 * n * width**2 + 2 * n**2 * width

    chosen, embedding = vitreous.resolve(spec), tokens * 3 * math.prod(bed.vit.layout(bed.vit.size).patch) * width
    if chosen.name in ("tis", "rise"):
        present = 1 + (tokens - 1) * chosen.options.get("kept", 0.5) if chosen.name == "tis" else tokens
        per_mask = depth * blocks(present) + (0 if chosen.name == "tis" else embedding)
        return bed.batch * (depth * blocks(tokens) + embedding + chosen.options["masks"] * per_mask)
    walked = depth - chosen.fold.first_layer(depth)
    return bed.batch * ((depth + walked) * blocks(tokens) + embedding)


def exponent(at: list[int], values: list[float]) -> float:
    """Slope of the straight line through the logarithms."""
    x, y = np.log(at), np.log(values)
    return float(np.polyfit(x, y, 1)[0])


# ── the figure ───────────────────────────────────────────────────────────────────────────────────


def drawn(series_list: list[dict[str, Any]], path: Path) -> None:
    """One panel per axis, both ways logarithmic; beside each method its exponent and the theory's."""
    import matplotlib

    matplotlib.use("agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # fonts that are not there are not missed
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
                panel.loglog(series["at"], theory_line(series), ":", color=colours[name], linewidth=1)
            panel.set(xlabel=axis, ylabel="seconds", xticks=here[0]["at"])
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            for line in (panel.xaxis, panel.yaxis):
                line.set_major_formatter(StrMethodFormatter("{x:g}"))
                line.set_minor_formatter(NullFormatter())
            panel.legend(title="exponent, measured (theory, dotted)", fontsize=7.5, title_fontsize=7.5, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def theory_line(series: dict[str, Any]) -> list[float]:
    """The theory's line, through the middle of what was measured."""
    centre = [statistics.fmean(math.log(v) for v in series[key]) for key in ("at", "seconds")]
    return [math.exp(centre[1] + series["theory"] * (math.log(x) - centre[0])) for x in series["at"]]
