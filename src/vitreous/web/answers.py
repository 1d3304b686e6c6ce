"""From what was computed to what is answered; undefined numbers become null."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitreous.web import shapes

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.methods.attribution import Attribution

TOP = 5


def number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def numbers(values: Tensor) -> list[float | None]:
    return [number(value) for value in values.flatten().tolist()]


def rounded(values: Tensor) -> list[float | None]:
    """Six digits say all that float32 knows of a score, in half the bytes."""
    return [None if (v := number(value)) is None else float(f"{v:.7g}") for value in values.flatten().tolist()]


def top(probabilities: Tensor, names: list[str]) -> list[shapes.ClassProbability]:
    best = probabilities.nan_to_num(-1).topk(min(TOP, len(probabilities))).indices.tolist()
    return [shapes.ClassProbability(index=i, name=names[i], probability=number(float(probabilities[i]))) for i in best]


def said(probabilities: Tensor, names: list[str], removed: Sequence[int], grid: Sequence[int]) -> shapes.Said:
    patches = grid[0] * grid[1]
    return shapes.Said(
        top=top(probabilities, names),
        probabilities=rounded(probabilities),
        kept=patches - len(removed),
        patches=patches,
    )


def explained(found: dict[str, Any], known: dict[int, Any]) -> shapes.Explained:
    rows: list[Attribution] = found["rows"]
    first = rows[0]
    return shapes.Explained(
        method=first.method,
        grid=list(first.layout.grid),
        signed=any(one.signed for one in rows),
        class_specific=found["class_specific"],
        maps=[mapped(one, known) for one in rows],
        caveat=str(first.provenance.get("caveat", "")),
        seconds=found["seconds"],
    )


def mapped(one: Attribution, known: dict[int, Any]) -> shapes.Map:
    from vitreous.web.studio import patches_of

    target = int(one.targets[0])
    name = one.names[0] if one.names else f"class {target}"
    return shapes.Map(
        target=target,
        name=name,
        scores=rounded(patches_of(one)[0]),
        pixels=None if one.native_pixels is None else pixels(one.native_pixels[0]),
        evidence=held_to(one, known[target]) if target in known else None,
    )


def pixels(values: Tensor) -> shapes.Pixels:
    data = values.float().contiguous().cpu().numpy().astype("<f4").tobytes()
    return shapes.Pixels(size=list(values.shape), data=b64encode(data).decode())


def held_to(one: Attribution, mask: Any) -> shapes.Found:
    """The map against the evidence, as the demo counts it."""
    import torch

    from vitreous.metrics.localisation import ap, pointing_game

    objects = torch.from_numpy(mask)[None]
    hit = float(pointing_game(one, objects=objects).scores[0])
    area = float(ap.with_options(interpolation="bilinear")(one, objects=objects).scores[0])
    return shapes.Found(peak=hit > 0.5, precision=number(area))


def curve(found: dict[str, Any], target: int, names: list[str]) -> shapes.Curve:
    def steps(rows: Tensor) -> list[shapes.Step]:
        return [
            shapes.Step(count=count, probability=number(float(row[target])), top=top(row, names))
            for count, row in zip(found["counts"], rows, strict=True)
        ]

    return shapes.Curve(
        method=found["method"],
        target=target,
        order=found["order"],
        deletion=steps(found["deletion"]),
        insertion=steps(found["insertion"]),
    )


def film(found: dict[str, Any], target: int, grid: Sequence[int]) -> shapes.Film:
    layers = zip(found["layers"], found["totals"], found["starts"], strict=True)
    frames = [
        shapes.Frame(layer=layer, scores=rounded(own), start=start, total=rounded(total))
        for layer, (own, total, start) in enumerate(layers)
    ]
    return shapes.Film(method=found["method"], target=target, grid=list(grid), signed=found["signed"], frames=frames)
