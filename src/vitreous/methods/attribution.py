"""`Attribution`: the maps of a method with targets, logits and provenance; rows, tables, files and figures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.core.deprecation import renamed_attributes
from vitreous.core.errors import DataError, ShapeError
from vitreous.methods.attribution_files import TENSORS, as_array, read_attribution, save_attribution
from vitreous.methods.map_arrays import resize_maps
from vitreous.models.image_geometry import size_of
from vitreous.models.image_input import Preprocess
from vitreous.models.layout import ClipLayout, Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

NEGLIGIBLE = 1e-4  # fraction of |score| below which the sum of absolute scores counts as negligible


@renamed_attributes(pictures="originals")
@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Maps of one method, one row per image and target (all targets of the first image come first).

    Attributes
    ----------
    patches
        Raw scores of the patches, with their sign. For a pixel method the sum over each patch; None for a black box.
    layout
        Grid, patch size and number of prefix tokens; a `ClipLayout`, with time steps, for a clip.
    targets
        Class index of every row.
    method
        Spec of the method.
    native
        Resolution at which the method computes scores.
    native_pixels
        Scores of the pixels, for pixel methods.
    prefix
        Scores of class, distillation and register tokens.
    bias
        Share of the biases that belong to no patch.
    score
        The number that is explained.
    residual
        score − (patches + prefix + biases), for methods whose scores should add up. For a sum over layers, the sum of
        this difference over the layers that the scores start at.
    logits
        Logits of every row.
    signed
        Whether scores can be negative.
    provenance
        How the attribution was computed.
    images
        Preprocessed images, for drawing; for clips [rows, frames, channels, height, width].
    originals
        Original images, one per row, for drawing.
    preprocess
        Preprocessing of the images, needed to map scores to the original images.
    names
        Names of the targets, one per row.
    stderr
        Standard error of every score of `maps()`, for methods that estimate scores from samples: [r p], or [r H W] for a
        black box. It measures how much the scores would change with other samples, not whether they are faithful. NaN
        where too few samples contain a patch; None for methods without random samples.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> attribution = vitreous.explain(vit, images, target=[[0, 3]], method="ixg")  # two classes of one image
    >>> len(attribution), attribution.targets.tolist()
    (2, [0, 3])
    >>> attribution.maps().shape, attribution.pixels((56, 56)).shape
    (torch.Size([2, 14, 14]), torch.Size([2, 56, 56]))
    >>> attribution[1].cpu().to("cpu").targets
    tensor([3])
    >>> attribution.to_pandas().columns.tolist()
    ['method', 'row', 'target', 'name', 'y', 'x', 'score']
    >>> path = attribution.save("map.npz")
    >>> len(vitreous.Attribution.load(path))
    2
    >>> figure = attribution.plot(row=0)
    """

    patches: Float[Tensor, "r p"] | None
    layout: Layout
    targets: Int[Tensor, " r"]
    method: str
    native: Literal["patch", "pixel"] = "patch"
    native_pixels: Float[Tensor, "r H W"] | None = None
    prefix: Float[Tensor, "r prefix"] | None = None
    bias: Float[Tensor, " r"] | None = None
    score: Float[Tensor, " r"] | None = None
    residual: Float[Tensor, " r"] | None = None
    logits: Float[Tensor, "r c"] | None = None
    signed: bool = True
    provenance: Mapping[str, Any] = field(default_factory=dict)
    images: Float[Tensor, "r *frames channels H W"] | None = None
    originals: tuple[Any, ...] | None = None
    preprocess: Preprocess | None = None
    names: tuple[str, ...] | None = None
    stderr: Float[Tensor, "r p"] | Float[Tensor, "r H W"] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def maps(self) -> Float[Tensor, "r *times rows columns"]:
        """Scores on the patch grid, or on the pixel grid for a black box, which has no patches.

        Returns
        -------
        Tensor
            [rows, height, width], or [rows, time steps, height, width] for clips.
        """
        if self.patches is None:
            assert self.native_pixels is not None
            return self.native_pixels
        return self.patches.unflatten(-1, self.layout.cells)

    def unsettled(self, confidence: float = 0.95) -> Bool[Tensor, "r *cells"]:
        """Mask of the scores of `maps()` whose interval contains zero.

        Parameters
        ----------
        confidence
            Coverage of the interval score ± z · stderr, between 0 and 1.

        Returns
        -------
        Tensor
            Boolean mask in the shape of `maps()`; True where the interval contains zero or is not known.

        Raises
        ------
        ShapeError
            If the attribution has no standard errors, or `confidence` is not between 0 and 1.

        Examples
        --------
        >>> import torch
        >>> from vitreous import Attribution
        >>> from vitreous.models.vit import Layout
        >>> scores, stderr = torch.tensor([[0.1, 2.0, -3.0, 0.0]]), torch.ones(1, 4)
        >>> Attribution(scores, Layout((2, 2), (16, 16), 0), torch.tensor([3]), "rise", stderr=stderr).unsettled()
        tensor([[[ True, False],
                 [False,  True]]])
        """
        if not 0 < confidence < 1:
            raise ShapeError(f"confidence={confidence!r}; give a number between 0 and 1, such as 0.95")
        if self.stderr is None:
            raise ShapeError(
                f"{self.method!r} has no standard errors: it does not average over samples; "
                "tis, rise, kernelshap, lime, anneal and bayes have them"
            )
        maps, limit = self.maps(), NormalDist().inv_cdf(0.5 + confidence / 2)
        settled = maps.abs() > limit * self.stderr.view_as(maps)  # False where the standard error is NaN
        return ~settled

    @overload
    def pixels(self, size: tuple[int, int] | None = None, mode: str = "bilinear") -> Tensor: ...
    @overload
    def pixels(self, size: Literal["original"], mode: str = "bilinear") -> Tensor | list[Tensor]: ...
    def pixels(
        self, size: tuple[int, int] | str | None = None, mode: str = "bilinear"
    ) -> Float[Tensor, "r *frames height width"] | list[Tensor]:
        """Maps at pixel resolution: the scores of a pixel method, else the patch grid resized.

        Parameters
        ----------
        size
            None for the size of the model's input, (height, width) for that map resized, or "original" for the size of
            each original image, with NaN outside the region that was cropped for the model.
        mode
            Interpolation: "nearest", "bilinear" or "bicubic".

        Returns
        -------
        Tensor or list of Tensor
            [rows, height, width], or [rows, frames, height, width] for clips, where every frame has the map of its time
            step. For "original", a list with one map [height, width] per row if the original images
            differ in size.

        Raises
        ------
        ShapeError
            If `mode` or `size` is invalid, or if `size` is "original" and the images were given as tensors.
        ModelError
            If `size` is "original" and the geometry of the preprocessing is not known.
        """
        layout = self.layout
        if mode not in ("nearest", "bilinear", "bicubic"):
            raise ShapeError(f"mode={mode!r}; known: 'nearest', 'bilinear', 'bicubic'")
        if isinstance(size, str):
            return self._original_pixels(size, mode)
        if isinstance(layout, ClipLayout):
            maps = resize_maps(self.maps().flatten(0, 1), layout.size if size is None else size, mode)
            return maps.unflatten(0, (len(self), layout.times)).repeat_interleave(layout.tubelet, 1)
        return resize_maps(self.native_maps, layout.size if size is None else size, mode)

    def _original_pixels(self, size: str, mode: str) -> Tensor | list[Tensor]:
        """Maps of the size of each original image, NaN outside the region that was cropped for the model."""
        if size != "original":
            raise ShapeError(f"size={size!r}; give 'original' or (height, width)")
        if self.originals is None or self.preprocess is None:  # always so for clips
            raise ShapeError(
                "there are no original images here: they were given as tensors, or the attribution was read from a file; "
                "pixels() gives the maps at the size of what the model saw, and preprocess.restore(maps, (height, width)) "
                "brings them back to an image of that size"
            )
        maps = resize_maps(self.native_maps, self.layout.size, mode) if mode == "bicubic" else self.native_maps
        mode = "nearest" if mode == "nearest" else "bilinear"
        restored = [
            self.preprocess.restore(row, size_of(original), mode)
            for row, original in zip(maps, self.originals, strict=True)
        ]
        return torch.stack(restored) if len({tuple(pixels.shape) for pixels in restored}) == 1 else restored

    @property
    def native_maps(self) -> Float[Tensor, "r *times height width"]:
        """Scores at the method's own resolution: of pixels for a pixel method, else of patches."""
        return self.maps() if self.native_pixels is None else self.native_pixels

    def to_pandas(self) -> DataFrame:
        """Scores as a tidy table with one line per map and patch.

        Returns
        -------
        pandas.DataFrame
            Columns: `method`, `row` (of this attribution), `target` (class index), `name` (of the class), `y` and `x`
            (position in the patch grid from the upper left; in pixels for a black box) and `score`; for clips also
            `time` (time step), and `stderr` if there are standard errors. Tables of several attributions can be joined with
            `pandas.concat`.

        Raises
        ------
        DataError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise DataError("to_pandas needs pandas: pip install pandas") from None
        maps, targets = self.maps(), self.targets
        row, *time, y, x = (index.ravel() for index in np.indices(tuple(maps.shape)))
        names = self.names or tuple(f"class {target}" for target in targets.tolist())
        return pandas.DataFrame(
            {
                "method": self.method,
                "row": row,
                "target": targets.cpu().numpy()[row],
                "name": [names[index] for index in row],
                **({"time": time[0]} if time else {}),
                "y": y,
                "x": x,
                "score": as_array(maps).ravel(),
                **({} if self.stderr is None else {"stderr": as_array(self.stderr).ravel()}),
            }
        )

    @property
    def shares(self) -> dict[str, Tensor]:
        """Sum of the scores [r] of "patches" (or "pixels"), of "prefix" tokens and of "biases", where they exist."""
        parts = {"pixels": self.maps().sum((1, 2))} if self.patches is None else {"patches": self.patches.sum(-1)}
        if self.prefix is not None:
            parts["prefix"] = self.prefix.sum(-1)
        if self.bias is not None:
            parts["biases"] = self.bias
        return parts

    def __getitem__(self, row: int | slice | Sequence[int] | Tensor | np.ndarray) -> Attribution:
        """Attribution of one row, a slice of rows, or the rows of a list of indices or a mask."""
        count = len(self)
        if isinstance(row, int):
            place = range(count)[row]
            row = slice(place, place + 1)
        indices = range(count)[row] if isinstance(row, slice) else row_indices(row, count)
        rows = row if isinstance(row, slice) else indices
        lists: dict[str, Any] = {
            name: None if (entries := getattr(self, name)) is None else tuple(entries[index] for index in indices)
            for name in ("originals", "names")
        }
        return change_tensors(self, lambda tensor: tensor[rows], **lists)

    def to(self, device: torch.device | str) -> Attribution:
        """Copy with all tensors on `device`.

        Parameters
        ----------
        device
            A torch device or its name.

        Returns
        -------
        Attribution
        """
        return change_tensors(self, lambda tensor: tensor.to(device))

    def cpu(self) -> Attribution:
        """Copy with all tensors on the CPU.

        Returns
        -------
        Attribution
        """
        return self.to("cpu")

    def save(self, path: str | Path, format: str | None = None) -> Path:  # noqa: A002 - as in matplotlib's savefig
        """Write the attribution to a file.

        Parameters
        ----------
        path
            File name; missing folders are created. A ".gif" or ".webp" file is the animation of one clip (see
            `vitreous.draw.save_animation`). A ".safetensors" or ".npz" file holds everything except the original
            images: all tensors, and layout, method, names and provenance as JSON (in the metadata, or in the array
            `vitreous`). Both can be read with `Attribution.load`, and without Vitreous with `safetensors` or
            `numpy.load(path, allow_pickle=False)`. A ".npy" file holds only `maps()` [rows, height, width].
        format
            "safetensors", "npz", "npy", "gif" or "webp"; by default the suffix of `path`.

        Returns
        -------
        Path

        Raises
        ------
        DataError
            If the format is none of these.
        ShapeError
            If the format is an animation and this is not the attribution of one clip.
        """
        return save_attribution(self, Path(path), format)

    @classmethod
    def load(cls, path: str | Path) -> Attribution:
        """Read a .safetensors or .npz file written by `save`, which does not contain the original images.

        Parameters
        ----------
        path
            File name.

        Returns
        -------
        Attribution
            The stored attribution, on the CPU.

        Raises
        ------
        DataError
            If the file does not exist or is not a saved attribution. A .npy file holds maps without layout, method and
            classes; read it with `numpy.load`.
        """
        return cls(**read_attribution(path))

    # ── display ──────────────────────────────────────────────────────────────────────────────────

    def plot(self, row: int | None = None, **options: Any) -> Figure:
        """Draw all rows, or one, over their images.

        Parameters
        ----------
        row
            Row to draw; None for all.
        **options
            Passed to `vitreous.draw.figure`: `overlay`, `opacity`, `columns`, `shared_scale`, `mode`, `quantile`,
            `scale` and `limit`; for clips to `vitreous.draw.film_strip`.

        Returns
        -------
        matplotlib.figure.Figure
            Maps with class, probability and colour scale of every row, and notes that are needed to read them.
        """
        from vitreous.draw import figure, film_strip

        draw = film_strip if isinstance(self.layout, ClipLayout) else figure
        return draw(self if row is None else self[row], **options)

    def _repr_html_(self) -> str:
        from vitreous.draw import html

        return html(self)

    def __repr__(self) -> str:
        cells = "x".join(map(str, self.layout.cells))
        unit = "pixels" if self.patches is None else "patches"
        return f"Attribution({self.method!r}, {len(self)} x {cells} {unit}, targets={self.targets.tolist()})"

    @property
    def negligible(self) -> Bool[Tensor, " r"]:
        """Whether each row's map is so close to zero that colours scaled to its own maximum would mislead.

        True where every finite score of the map is exactly zero, and, for signed maps that depend on the target, where
        the absolute finite scores add up to less than 1e-4 of |score| (for example at a saturated probability, as
        gradients at p = 1 − 1e-26 are of that size). Other maps are compared with zero only, because an attention
        roll-out or a product of attention matrices is not in units of the score. False for a row without any finite
        score.
        """
        from vitreous.methods.spec import depends_on_class

        maps = self.native_maps.flatten(1).double()
        finite = maps.isfinite()
        total = maps.where(finite, 0).abs().sum(-1)
        negligible = total == 0
        if self.score is not None and self.signed and depends_on_class(self.method):
            negligible = negligible | (total < NEGLIGIBLE * self.score.to(total).abs())
        return negligible & finite.any(-1)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────


def change_tensors(
    attribution: Attribution, change: Callable[[Tensor], Tensor], tensor_names: Sequence[str] = TENSORS, **fields: Any
) -> Attribution:
    """Copy with `change` applied to the named tensors that the attribution has, and with other values of `fields`."""
    tensors = {name: getattr(attribution, name) for name in tensor_names}
    changed = {name: change(tensor) for name, tensor in tensors.items() if tensor is not None}
    return replace(attribution, **changed, **fields)


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
    caveats = dict.fromkeys(caveat for part in parts for caveat in part.provenance.get("caveat", "").split("; "))
    about = {**parts[0].provenance, **({"caveat": "; ".join(filter(None, caveats))} if any(caveats) else {})}
    return replace(parts[0], **joined, names=names, signed=any(part.signed for part in parts), provenance=about)
