"""Per-layer results of a method with a fold, recorded while it computes its map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.layer import Layer
from vitreous.core.errors import SpecError
from vitreous.methods.attribution import Attribution
from vitreous.methods.folds import LayerScores, Signal, plus, read_token_scores
from vitreous.methods.method import Method
from vitreous.methods.options import defaults
from vitreous.methods.recipe import LayerSignal
from vitreous.methods.run import repeats_biases
from vitreous.models.tensor_types import TokenScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = {
    "signal": "what this layer adds to the map",
    "sum": "added up from the last layer to this one",
    "taken": "what the head's row takes at this layer",
    "carried": "the map, had the model begun at this layer",
    "attention": "what the head's row attends to, mean of heads",
    "weighted": "relu(gradient) × attention in that row, mean of heads",
    "length": "‖sent by a head‖ / ‖token‖, mean of heads",
    "necc": "softmax over tokens of the cosine of a token and what a head sends, mean of heads",
    "mlp_length": "‖added by the MLP‖ / ‖token‖",
    "mlp_necc": "softmax over tokens of the cosine of a token and what the MLP adds",
}
SIGNALS = ("signal", "sum", "taken", "carried")  # these have unit and sign of the map; other parts do not


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """Named per-layer maps, and the map that results from them.

    Attributes
    ----------
    whole
        The resulting attribution.
    layers
        Indices of the layers that were read, in ascending order from 0.
    parts
        Maps by name; `parts[name][:, i]` belongs to layer `layers[i]`. `ABOUT` describes the names.
    rest
        For a sum over layers: bias shares, which are in the resulting map but belong to no single layer.

    Examples
    --------
    >>> import vitreous
    >>> vit = vitreous.load("scenes")
    >>> images = vitreous.scenes.tensor(vitreous.scenes.draw("single", seed=0, index=0))[None]
    >>> layers = vitreous.inside(vit, images, method="gradcam+skipplus")
    >>> layers.layers
    (6, 7, 8, 9, 10, 11)
    >>> layers.maps("signal").shape, layers.at("signal", 9).method
    (torch.Size([1, 6, 14, 14]), 'gradcam+skipplus')
    >>> figure = layers.plot()
    """

    whole: Attribution
    layers: tuple[int, ...]
    parts: Mapping[str, Float[Tensor, "r layers p"]]
    rest: Float[Tensor, "r p"] | None = None

    def __len__(self) -> int:
        return len(self.whole)

    def maps(self, part: str) -> Float[Tensor, "r layers rows columns"]:
        """One part on the patch grid; a SpecError if there is no such part.

        Parameters
        ----------
        part
            A key of `parts`.

        Returns
        -------
        Tensor
            [rows, layers, height, width].
        """
        return self._part(part).unflatten(-1, self.whole.layout.cells)

    def at(self, part: str, layer: int) -> Attribution:
        """One part at one layer, as an attribution.

        Parameters
        ----------
        part
            A key of `parts`.
        layer
            One of `layers`.

        Returns
        -------
        Attribution
            The map of the layer.

        Raises
        ------
        SpecError
            If the layer was not read or there is no such part.
        """
        if layer not in self.layers:
            raise SpecError(f"layer {layer} was not visited; known: {', '.join(map(str, self.layers))}")
        patches = self._part(part)[:, self.layers.index(layer)]
        signed = self.whole.signed and part in SIGNALS
        unit = {} if part in SIGNALS else {"question": None}  # not in units of the score
        return replace(
            self.whole,
            patches=patches,
            native="patch",
            native_pixels=None,
            prefix=None,
            bias=None,
            residual=None,
            signed=signed,
            provenance={**self.whole.provenance, **unit, "part": part, "layer": layer},
        )

    def _part(self, part: str) -> Float[Tensor, "r layers p"]:
        if part not in self.parts:
            raise SpecError(f"{self.whole.method!r} has no part {part!r}; known: {', '.join(self.parts)}")
        return self.parts[part]

    def __getitem__(self, row: int) -> Inside:
        """The results of one row."""
        row = range(len(self))[row]
        parts = {name: part[row : row + 1] for name, part in self.parts.items()}
        rest = None if self.rest is None else self.rest[row : row + 1]
        return replace(self, whole=self.whole[row], parts=parts, rest=rest)

    def plot(self, row: int | None = None, **options: Any) -> Figure:
        """Draw all rows, or one: parts below one another, layers side by side.

        Parameters
        ----------
        row
            Row to draw; None for all.
        **options
            Passed to `vitreous.draw.strips.strips`.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from vitreous.draw.strips import strips

        return strips(self if row is None else self[row], **options)

    def __repr__(self) -> str:
        first, last = self.layers[0], self.layers[-1]
        return f"Inside({self.whole.method!r}, {len(self)} rows, layers {first} to {last}: {', '.join(self.parts)})"


@dataclass(slots=True, eq=False)
class LayerRecorder:
    """Records the scores of every layer while a method's fold goes through them."""

    method: Method
    records: dict[int, list[dict[str, Tensor]]] = field(default_factory=dict)  # per layer, one entry per batch

    def watched(self) -> Method:
        """The same method, with a fold that records its scores at every layer."""
        recipe = self.method.recipe
        assert isinstance(recipe, LayerSignal)
        fold, default_options = recipe.fold, defaults(recipe.fold.typed_options)
        signal_options = recipe.signal.pick(self.method.settings)
        returned = "sum" if fold.accumulates == "sum" else "carried"

        def record(layers: Iterator[Layer], signal: Signal, **options: Any) -> TokenScores:
            settings = {**defaults(plus.typed_options), **default_options, **options}
            rolls = fold.accumulates == "product" or settings["mode"] == "restart"
            scores = LayerScores(rolls, settings["form"], settings["gain"], settings["lengths"], settings["normalise"])
            tokens: dict[str, TokenScores] = {}
            for layer in layers:
                if layer.trunk:
                    raise SpecError(
                        "this model has several chains of blocks beside each other, whose layers have no common order; inside would "
                        "work with the model of one of them"
                    )
                measures = recipe.measures(layer, **signal_options) if recipe.measures else {}
                tokens = {**measures, **self._folded(layer, signal(layer), scores)}
                patches = {name: part[:, layer.layout.prefix :] for name, part in tokens.items()}
                self.records.setdefault(layer.index, []).append(patches)
            return tokens[returned]  # at the first layer, as the fold returns it

        recorded_fold = replace(fold, signature=replace(fold.signature, call=record))
        return replace(self.method, recipe=replace(recipe, fold=recorded_fold))

    def _folded(self, layer: Layer, layer_signal: Tensor, scores: LayerScores) -> dict[str, TokenScores]:
        """Take the step of the fold at this layer: running sum, or roll-out row."""
        assert self.method.fold is not None
        signal = scores.add(layer, layer_signal)
        if self.method.fold.accumulates == "sum":
            return {"signal": signal, "sum": scores.total}
        assert isinstance(self.method.recipe, LayerSignal)
        taken = {} if self.method.recipe.measures else {"taken": read_token_scores(layer, layer_signal)}
        return {**taken, "carried": signal}

    def build_result(self, attribution: Attribution) -> Inside:
        """Build the per-layer result from the records and the method's attribution."""
        layers = tuple(sorted(self.records))
        names = self.records[layers[0]][0]
        parts = {
            name: torch.stack([torch.cat([batch[name] for batch in self.records[layer]]) for layer in layers], 1)
            for name in names
        }
        share = len(attribution) // len(next(iter(parts.values())))  # class-agnostic maps are computed once per image
        parts = {name: part.repeat_interleave(share, 0) for name, part in parts.items()}
        spec = self.method.spec
        whole = replace(attribution, method=spec, provenance={**attribution.provenance, "method": spec})
        settings, recipe = self.method.settings, self.method.recipe
        assert isinstance(recipe, LayerSignal)
        apart = None
        if recipe.needs.biases and "signal" in parts and not repeats_biases(settings):
            assert attribution.patches is not None
            apart = attribution.patches - parts["signal"].sum(1)
        return Inside(whole, layers, parts, apart)


def make_recorder(method: Method) -> LayerRecorder:
    """A recorder for the method.

    Raises
    ------
    SpecError
        If the method has no fold, or its fold reads a single layer.
    """
    if method.fold is None:
        raise SpecError(
            f"{method.spec!r} has no signal per layer to look at; one with a fold has, such as 'decompx+plus'"
        )
    if method.fold.accumulates is None:
        raise SpecError(
            f"{method.spec!r} reads a single layer; to see every layer ask about {f'{method.name}+plus'!r}, "
            "or another method under 'plus', 'skipplus' or 'rollout'"
        )
    return LayerRecorder(method)
