"""Scores of every patch, and how they came to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.core.errors import DataError, ShapeError, VitreousError
from vitreous.models.vit import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEGLIGIBLE = 1e-4  # of the explained score: a map whose scores add up to less has next to nothing to show
TENSORS = ("patches", "prefix", "bias", "residual", "score", "logits", "targets", "native_pixels", "images")


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """One map per row: image by image, and target by target where several were asked about."""

    patches: (
        Float[Tensor, "r p"] | None
    )  # raw and signed; of a pixel method, the sum over each patch; of a black box, None
    layout: Layout
    targets: Int[Tensor, " r"]
    method: str
    native: Literal["patch", "pixel"] = "patch"
    native_pixels: Float[Tensor, "r H W"] | None = None
    prefix: Float[Tensor, "r prefix"] | None = None  # scores of class, distillation and register tokens
    bias: Float[Tensor, " r"] | None = None  # share of biases that belong to no patch
    score: Float[Tensor, " r"] | None = None  # the number that was explained
    # score − (patches + prefix + biases), where they should add up; of a sum over layers, the sum of what each start misses
    residual: Float[Tensor, " r"] | None = None
    logits: Float[Tensor, "r c"] | None = None
    signed: bool = True
    provenance: Mapping[str, Any] = field(default_factory=dict)
    images: Float[Tensor, "r 3 H W"] | None = None  # what the model saw, for drawing
    pictures: tuple[Any, ...] | None = None  # the original pictures, one per row, for drawing
    preprocess: Any = None
    names: tuple[str, ...] | None = None  # of the targets, one per row

    def __len__(self) -> int:
        return len(self.targets)

    def maps(self) -> Float[Tensor, "r rows columns"]:
        """The scores on their grid: of patches, or of pixels where a black box has no patches."""
        if self.patches is None:
            assert self.native_pixels is not None
            return self.native_pixels
        return self.patches.unflatten(-1, self.layout.grid)

    def pixels(self, size: tuple[int, int] | None = None, mode: str = "bilinear") -> Float[Tensor, "r height width"]:
        """The map at pixel size: the method's own pixels where it has them, else the grid enlarged."""
        size = self.layout.size if size is None else size
        if mode not in ("nearest", "bilinear", "bicubic"):
            raise ShapeError(f"mode={mode!r}; known: 'nearest', 'bilinear', 'bicubic'")
        source = self.maps() if self.native_pixels is None else self.native_pixels
        if tuple(source.shape[-2:]) == tuple(size):
            return source
        corners = None if mode == "nearest" else False
        return F.interpolate(source[:, None], size=tuple(size), mode=mode, align_corners=corners)[:, 0]

    @property
    def shares(self) -> dict[str, Tensor]:
        """How the total divides between patches, prefix tokens and biases."""
        parts = {"pixels": self.maps().sum((1, 2))} if self.patches is None else {"patches": self.patches.sum(-1)}
        if self.prefix is not None:
            parts["prefix"] = self.prefix.sum(-1)
        if self.bias is not None:
            parts["biases"] = self.bias
        return parts

    def __getitem__(self, row: int | slice) -> Attribution:
        """One row, or some, as an attribution of their own."""
        from dataclasses import replace

        if isinstance(row, int):
            row = range(len(self))[row]
            row = slice(row, row + 1)
        cut = {name: None if (t := getattr(self, name)) is None else t[row] for name in TENSORS}
        pictures = None if self.pictures is None else self.pictures[row]
        return replace(self, **cut, pictures=pictures, names=None if self.names is None else self.names[row])

    def to(self, device: torch.device | str) -> Attribution:
        from dataclasses import replace

        return replace(self, **{name: None if (t := getattr(self, name)) is None else t.to(device) for name in TENSORS})

    def cpu(self) -> Attribution:
        return self.to("cpu")

    # ── keeping ──────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> Path:
        """Write everything but the original pictures as safetensors; readable without Vitreous."""
        path = Path(path)
        tensors = {name: t.cpu().contiguous() for name in TENSORS if (t := getattr(self, name)) is not None}
        about = {
            "format": "vitreous.attribution/1",
            "layout": {"grid": self.layout.grid, "patch": self.layout.patch, "prefix": self.layout.prefix},
            "method": self.method,
            "native": self.native,
            "signed": self.signed,
            "names": self.names,
            "provenance": dict(self.provenance),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"vitreous": json.dumps(about)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> Attribution:
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["vitreous"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except FileNotFoundError:
            raise DataError(f"no file {str(path)!r}") from None
        except (SafetensorError, KeyError, ValueError, OSError) as problem:
            raise DataError(f"{str(path)!r} is not an attribution saved by Vitreous ({problem})") from None
        where = about["layout"]
        layout = Layout(tuple(where["grid"]), tuple(where["patch"]), where["prefix"])
        names = None if about["names"] is None else tuple(about["names"])
        rest = {key: about[key] for key in ("method", "native", "signed", "provenance")}
        return cls(layout=layout, names=names, **{"patches": None, **tensors}, **rest)

    # ── showing ──────────────────────────────────────────────────────────────────────────────────

    def plot(self, row: int | None = None, **options: Any) -> Figure:
        """A figure with every row (or one) laid over its picture."""
        from vitreous.draw import figure

        return figure(self if row is None else self[row], **options)

    def _repr_html_(self) -> str:
        from vitreous.draw import html

        return html(self)

    def __repr__(self) -> str:
        rows, columns = self.layout.grid
        what = "pixels" if self.patches is None else "patches"
        return f"Attribution({self.method!r}, {len(self)} x {rows}x{columns} {what}, targets={self.targets.tolist()})"

    @property
    def negligible(self) -> Bool[Tensor, " r"]:
        """Rows whose map has next to nothing to show, so that colours scaled to its own maximum would mislead.

        True where every finite score of the map is exactly zero, and, for methods whose map depends on the target, where
        the finite scores add up, without their signs, to less than 1e-4 of |score|, the number that is explained (a
        probability that has saturated: at p = 1 − 1e-26 a gradient is of that size). A row without any finite score, and a
        map of unknown making that is not zero, is not negligible. Maps that do not depend on the target, such as
        attention roll-outs, are not in units of the score and are compared with zero alone.
        """
        from vitreous.methods.spec import resolve

        maps = self.maps().flatten(1).double()
        finite = maps.isfinite()
        total = maps.where(finite, 0).abs().sum(-1)
        faint = total == 0
        try:
            in_units_of_the_score = self.score is not None and resolve(self.method).class_specific
        except VitreousError:
            in_units_of_the_score = False
        if self.score is not None and in_units_of_the_score:
            faint = faint | (total < NEGLIGIBLE * self.score.to(total).abs())
        return faint & finite.any(-1)


def patch_sums(pixels: Float[Tensor, "r H W"], layout: Layout) -> Float[Tensor, "r p"]:
    """A pixel map summed over each patch."""
    (rows, columns), (height, width) = layout.grid, layout.patch
    cells = pixels[:, : rows * height, : columns * width].unflatten(1, (rows, height)).unflatten(3, (columns, width))
    return cells.sum((2, 4)).flatten(1).to(torch.promote_types(pixels.dtype, torch.float32))


def zero_to_one(scores: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    """Every map from its least to its most; a flat one is 0 / 0 and stays NaN, as in published code."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low)
