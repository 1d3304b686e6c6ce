"""`PairAttribution`: the interaction matrix of two inputs, the map of each side, saving and drawing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.capture.precision import without_autocast
from vitreous.core.errors import ShapeError
from vitreous.methods.attribution import Attribution
from vitreous.models.image_input import Preprocess
from vitreous.models.model import Layout
from vitreous.pairs.contributions import Contributions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Side = Literal["a", "b"]


@dataclass(frozen=True, slots=True, eq=False)
class TowerSide:
    """One side of a pair: where its tokens are, and what it looks like.

    Attributes
    ----------
    layout
        Grid of the patches; of a text, one row with a column per token.
    contributions
        Contribution vectors of its tokens.
    words
        Tokens of a text; None for an image.
    special
        Whether each token of a text is a special token.
    entry
        Model input, for drawing.
    image
        Original image, for drawing.
    preprocess
        Preprocessing of the image.
    name
        Name of the model.
    """

    layout: Layout
    contributions: Contributions
    words: tuple[str, ...] | None = None
    special: tuple[bool, ...] = ()
    entry: Tensor | None = None
    image: Any = None
    preprocess: Preprocess | None = None
    name: str = ""

    @property
    def vectors(self) -> Float[Tensor, "n D"]:
        """Contribution vectors of the patches or words."""
        return self.contributions.tokens[self.contributions.prefix :]

    def indices(self, parts: Iterable[int]) -> Int[Tensor, " k"]:
        """Indices of patches or words as a tensor; a `ShapeError` if one does not exist."""
        indices = torch.as_tensor(list(parts), dtype=torch.long)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self.vectors):
            raise ShapeError(f"partners {indices.tolist()} are not all among 0 to {len(self.vectors) - 1}")
        return indices.to(self.vectors.device)


@dataclass(frozen=True, slots=True, eq=False)
class PairAttribution:
    """Which parts of one input match which parts of another.

    Attributes
    ----------
    a, b
        The two sides.
    similarity
        The number that is explained.
    scale
        Factor of every product: 1 for the dot product, 1 / (|a| |b|) for the cosine.
    method
        How the contribution vectors were computed.
    provenance
        Models, method and options as plain values.

    Examples
    --------
    >>> import timm
    >>> import torch
    >>> import vitreous
    >>> vit = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, depth=2).eval()
    >>> image, other = torch.randn(2, 1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> pair = vitreous.explain_pair(vit, image, vit, other, method="decompx")
    >>> pair.matrix.shape  # patches of one image, patches of the other
    torch.Size([4, 4])
    >>> pair.map("a").shape, pair.map("a", partners=[0]).shape, pair.side("b").words
    (torch.Size([2, 2]), torch.Size([2, 2]), None)
    >>> pair.attribution("a").patches.shape, len(pair.strongest(3))
    (torch.Size([1, 4]), 3)
    >>> figure = pair.plot(lines=2)
    >>> pair.save("pair.npz").name
    'pair.npz'
    """

    a: TowerSide
    b: TowerSide
    similarity: float
    scale: float
    method: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    @without_autocast()
    def matrix(self) -> Float[Tensor, "n m"]:
        """Share of the similarity of every pair of patches (or words), in the order of the grids, row by row."""
        return self.scale * self.a.vectors @ self.b.vectors.mT

    @property
    @without_autocast()
    def full(self) -> Float[Tensor, "n m"]:
        """All shares: prefix tokens, patches (or words) and, last, the rest of each side. The sum is the similarity."""
        sides = [torch.cat([s.contributions.tokens, s.contributions.rest[None]]) for s in (self.a, self.b)]
        return self.scale * sides[0] @ sides[1].mT

    @without_autocast()
    def map(self, side: Side, partners: Iterable[int] | None = None) -> Float[Tensor, "rows columns"]:
        """Scores of the patches (or words) of one side.

        Parameters
        ----------
        side
            "a" or "b".
        partners
            Indices of patches or words of the other side: only their matches are counted. None counts everything of the
            other side, its prefix tokens and biases included: the map of the similarity with the other embedding fixed.

        Returns
        -------
        Tensor
            [rows, columns] of the patch grid, or [1, words] for a text.

        Raises
        ------
        ShapeError
            If there is no such side or partner.
        """
        own, other = self.side(side), self.side("b" if side == "a" else "a")
        vector = other.contributions.embedding if partners is None else other.vectors[other.indices(partners)].sum(0)
        return (self.scale * own.vectors @ vector).view(own.layout.grid)

    def side(self, side: Side) -> TowerSide:
        """The side called "a" or "b".

        Parameters
        ----------
        side
            "a" or "b".

        Returns
        -------
        TowerSide
            The side.
        """
        if side not in ("a", "b"):
            raise ShapeError(f"a pair has the sides 'a' and 'b', not {side!r}")
        return self.a if side == "a" else self.b

    def attribution(self, side: Side, partners: Iterable[int] | None = None) -> Attribution:
        """The map of one side as an `Attribution`, for drawing, saving and metrics; parameters as for `map`.

        Parameters
        ----------
        side, partners
            As for `map`.

        Returns
        -------
        Attribution
            One row.
        """
        own = self.side(side)
        patches = self.map(side, partners).flatten()[None]
        return Attribution(
            patches,
            own.layout,
            torch.zeros(1, dtype=torch.long),
            self.method,
            score=patches.new_tensor([self.similarity]),
            images=own.entry,
            originals=None if own.image is None else (own.image,),
            preprocess=own.preprocess,
            names=("similarity",),
            provenance=self.provenance,
        )

    def strongest(self, count: int = 10, partners: Iterable[int] | None = None) -> list[tuple[int, int, float]]:
        """The pairs with the largest shares, the largest first.

        Parameters
        ----------
        count
            Number of pairs.
        partners
            Patches or words of b: only pairs with one of them are counted.

        Returns
        -------
        list
            Index in a, index in b and share of each pair.

        Raises
        ------
        ShapeError
            If a partner does not exist.
        """
        columns = self.b.indices(range(len(self.b.vectors)) if partners is None else partners)
        matrix = self.matrix[:, columns]
        shares, places = matrix.flatten().topk(min(max(count, 0), matrix.numel()))
        cells = [divmod(place, matrix.shape[1]) for place in places.tolist()]
        return [(i, int(columns[j]), share) for (i, j), share in zip(cells, shares.tolist(), strict=True)]

    def plot(self, *, lines: int = 8, partners: Iterable[int] | None = None) -> Figure:
        """Draw both sides with their maps, and lines between the pairs with the largest shares.

        Parameters
        ----------
        lines
            Number of lines.
        partners
            Patches or words of b: only their matches in a are drawn.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from vitreous.draw.pairs import pair_figure

        return pair_figure(self, lines=lines, partners=partners)

    def save(self, path: str | Path) -> Path:
        """Write a page (`.html`) where a patch or word that is pointed at shows its partners, or arrays (`.npz`).

        Missing folders are created.

        Parameters
        ----------
        path
            File name with the suffix .html or .npz.

        Returns
        -------
        Path
            The path of the file.

        Raises
        ------
        ShapeError
            If the suffix is neither of these.
        """
        path = Path(path)
        if path.suffix not in (".html", ".npz"):
            raise ShapeError(f"{path.name!r}: a pair is saved as .html (a page) or .npz (arrays)")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".html":
            from vitreous.draw.pairs import pair_page

            path.write_text(pair_page(self), encoding="utf-8")
        else:
            arrays = {"matrix": self.matrix, "full": self.full, "map_a": self.map("a"), "map_b": self.map("b")}
            np.savez_compressed(path, allow_pickle=False, **{key: value.cpu().numpy() for key, value in arrays.items()})
        return path

    def __repr__(self) -> str:
        n, m = self.matrix.shape
        return f"PairAttribution({n} x {m}, {self.method!r}, similarity {self.similarity:.4g})"
