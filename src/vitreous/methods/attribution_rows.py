"""Rows of attributions: selected, changed, joined, as a table, and those whose map is negligible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from vitreous.core.errors import DataError, ShapeError, VitreousError

if TYPE_CHECKING:
    from pandas import DataFrame

    from vitreous.methods.attribution import Attribution

NEGLIGIBLE = 1e-4  # fraction of |score| below which the sum of absolute scores counts as negligible
TENSORS = (
    "patches", "stderr", "prefix", "bias", "residual", "score", "logits", "targets", "native_pixels", "images",
)  # fmt: skip


def change_tensors(
    attribution: Attribution, change: Callable[[Tensor], Tensor], tensor_names: Sequence[str] = TENSORS, **fields: Any
) -> Attribution:
    """Copy with `change` applied to the named tensors that the attribution has, and with other values of `fields`."""
    tensors = {name: getattr(attribution, name) for name in tensor_names}
    changed = {name: change(tensor) for name, tensor in tensors.items() if tensor is not None}
    return replace(attribution, **changed, **fields)


def select_rows(attribution: Attribution, row: int | slice | Sequence[int] | Tensor | np.ndarray) -> Attribution:
    """Attribution of some rows; see `Attribution.__getitem__`."""
    count = len(attribution)
    if isinstance(row, int):
        place = range(count)[row]
        row = slice(place, place + 1)
    indices = range(count)[row] if isinstance(row, slice) else row_indices(row, count)
    rows = row if isinstance(row, slice) else indices
    lists: dict[str, Any] = {
        name: None if (entries := getattr(attribution, name)) is None else tuple(entries[index] for index in indices)
        for name in ("originals", "names")
    }
    return change_tensors(attribution, lambda tensor: tensor[rows], **lists)


def row_indices(rows: Any, count: int) -> list[int]:
    """Indices of the rows that a list of indices or a mask selects."""
    try:
        return [int(index) for index in torch.arange(count)[torch.atleast_1d(torch.as_tensor(rows)).cpu()]]
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise ShapeError(
            f"rows {rows!r}: an index, a slice, a list of indices or a mask of {count} rows would work"
        ) from None


def join_attributions(parts: Sequence[Attribution]) -> Attribution:
    """Concatenate the attributions of consecutive batches."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: [getattr(part, name) for part in parts] for name in TENSORS}
    joined = {name: None if column[0] is None else torch.cat(column) for name, column in columns.items()}
    names = None if parts[0].names is None else tuple(name for part in parts for name in part.names or ())
    return replace(parts[0], **joined, names=names, signed=any(part.signed for part in parts))


def find_negligible(attribution: Attribution) -> Bool[Tensor, " r"]:
    """Rows whose map is negligible; see `Attribution.negligible`."""
    from vitreous.methods.spec import resolve

    maps = attribution.native_maps.flatten(1).double()
    finite = maps.isfinite()
    total = maps.where(finite, 0).abs().sum(-1)
    negligible = total == 0
    try:
        in_units_of_the_score = attribution.signed and resolve(attribution.method).class_specific
    except VitreousError:  # not a registered method
        in_units_of_the_score = attribution.signed
    if attribution.score is not None and in_units_of_the_score:
        negligible = negligible | (total < NEGLIGIBLE * attribution.score.to(total).abs())
    return negligible & finite.any(-1)


def find_unsettled(attribution: Attribution, confidence: float) -> Bool[Tensor, "r *cells"]:
    """Scores that cannot be told from zero; see `Attribution.unsettled`."""
    if not 0 < confidence < 1:
        raise ShapeError(f"confidence={confidence!r}; give a number between 0 and 1, such as 0.95")
    if attribution.stderr is None:
        raise ShapeError(
            f"{attribution.method!r} has no standard errors: it does not average over samples; "
            "tis, rise, kernelshap, lime, anneal and bayes have them"
        )
    maps, limit = attribution.maps(), NormalDist().inv_cdf(0.5 + confidence / 2)
    settled = maps.abs() > limit * attribution.stderr.view_as(maps)  # False where the standard error is NaN
    return ~settled


def as_array(tensor: Tensor) -> np.ndarray:
    """Tensor as a numpy array; bfloat16, which numpy lacks, becomes float32."""
    tensor = tensor.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def tabulate(attribution: Attribution) -> DataFrame:
    """Scores as a table; see `Attribution.to_pandas`."""
    try:
        import pandas
    except ImportError:
        raise DataError("to_pandas needs pandas: pip install pandas") from None
    maps, targets = attribution.maps(), attribution.targets
    row, *time, y, x = (index.ravel() for index in np.indices(tuple(maps.shape)))
    names = attribution.names or tuple(f"class {target}" for target in targets.tolist())
    return pandas.DataFrame(
        {
            "method": attribution.method,
            "row": row,
            "target": targets.cpu().numpy()[row],
            "name": [names[index] for index in row],
            **({"time": time[0]} if time else {}),
            "y": y,
            "x": x,
            "score": as_array(maps).ravel(),
            **({} if attribution.stderr is None else {"stderr": as_array(attribution.stderr).ravel()}),
        }
    )
