"""Execution of a method, from the `Probe` to the `Attribution`, and the accounting of bias shares."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.capture.black_box_probe import BlackBoxProbe
from vitreous.capture.bypass import SMALL_BYPASS, refuse_bypass
from vitreous.capture.layer import Layer
from vitreous.capture.network_probe import NetworkProbe
from vitreous.capture.probe import LayerPass, Probe
from vitreous.capture.relevance import propagate_relevance
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.attribution import Attribution, change_tensors
from vitreous.methods.fold import Fold
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.recipe import LayerSignal
from vitreous.models.tensor_types import TokenScores

if TYPE_CHECKING:
    from vitreous.methods.method import Method

Settings = Mapping[str, Any]  # the value of every option
PER_ROW = ("patches", "stderr", "prefix", "bias", "residual", "native_pixels")


def run_method(method: Method, probe: BlackBoxProbe) -> Attribution:
    """Attribution of the probe's score, one row per image and target.

    A class-agnostic method computes one map per image, which is repeated for every target.
    """
    targets = probe.targets_per_image
    if method.class_specific or targets == 1:
        return run_recipe(method, probe)
    attribution = run_recipe(method, probe.with_one_target())
    row_fields = {"targets": probe.targets, **score_and_logits(probe)}
    return change_tensors(attribution, lambda tensor: tensor.repeat_interleave(targets, 0), PER_ROW, **row_fields)


def run_recipe(method: Method, probe: BlackBoxProbe) -> Attribution:
    """Run the method's recipe: a fold of signals per layer, its form in pixel space, or a function of the probe."""
    recipe, settings = method.recipe, method.settings
    if not isinstance(recipe, LayerSignal):
        result = recipe.function(probe, **recipe.function.pick(settings))
        scores, further_fields = result if isinstance(result, tuple) else (result, {})  # of `Attribution`
        check_scores(method, probe, scores)
        return replace(build_attribution(method, probe, scores, settings), **further_fields)
    if settings.get("space", "tokens") == "pixels":
        return build_attribution(method, probe, run_in_pixels(method, recipe, probe, settings), settings)
    tokens, accounting = run_layers(method, recipe, probe, settings)
    if accounting is None:
        return with_bypass(build_attribution(method, probe, tokens, settings), probe)
    residual = None
    if scores_add_up(method, recipe, probe) and not recipe.mixing and accounting.is_settled:
        residual = accounting.missing(score_and_logits(probe)["score"], tokens)
    attribution = build_attribution(method, probe, accounting.close(tokens), settings)
    return with_bypass(replace(attribution, bias=accounting.elsewhere, residual=residual), probe)


def with_bypass(attribution: Attribution, probe: BlackBoxProbe) -> Attribution:
    """Add to the provenance how much of what a network makes of these images passed by its blocks, if anything did."""
    share = probe.bypass if isinstance(probe, NetworkProbe) else 0.0
    if share <= SMALL_BYPASS:
        return attribution
    return replace(attribution, provenance={**attribution.provenance, "bypass": share})


def run_layers(
    method: Method, recipe: LayerSignal, probe: BlackBoxProbe, settings: Settings
) -> tuple[TokenScores, BiasAccounting | None]:
    """Token scores that the fold returns, and the bias accounting if biases are needed."""
    fold, facts, needs = effective_fold(method, recipe), method.facts, recipe.needs
    layer_pass = LayerPass(
        lin=recipe.linearisation,
        attention=needs.attention and not needs.own_pass,
        gradients=facts.class_specific and not needs.own_pass,
        biases=needs.biases or (scores_add_up(method, recipe, probe) and fold.name == "first"),
        normed=needs.normed,
        presence=needs.presence,
    )
    layer_pass = layer_pass if recipe.adapt is None else recipe.adapt(layer_pass, **recipe.adapt.pick(settings))
    trunks = probe.vit.trunks
    down_to = [fold.first_layer(depth) for depth in trunks]
    layers = iterate_layers(recipe, probe, layer_pass, down_to if len(trunks) > 1 else down_to[0], settings)
    accounting = None
    if layer_pass.biases:
        accounting = BiasAccounting(probe, needs.biases, repeats_biases(settings))
    named_inputs = {"probe": probe, "linearisation": layer_pass.lin}
    inputs = {name: named_inputs[name] for name in recipe.signal.inputs if name in named_inputs}
    options = recipe.signal.pick(settings)

    def signal(layer: Layer) -> Tensor:
        scores = recipe.signal(layer, **inputs, **options)
        check_signal(method, recipe, layer, scores)
        scores = layer.to_grid(scores)
        for other in layer.beside:
            scores = scores + other.to_grid(recipe.signal(other, **inputs, **options))
        return scores if accounting is None else accounting.add(scores)

    def fold_trunk(trunk_layers: Iterator[Layer]) -> TokenScores:
        watched = trunk_layers if accounting is None else accounting.watch(trunk_layers)
        return fold.function(watched, signal, **fold.options)

    tokens = [fold_trunk(trunk) for trunk in split_by_trunk(layers, len(trunks))]
    refuse_bypass(probe.model, probe.bypass if isinstance(probe, NetworkProbe) else 0.0)
    return sum(tokens[1:], tokens[0]), accounting


def split_by_trunk(layers: Iterator[Layer], count: int) -> list[Iterator[Layer]]:
    """Layers of every trunk of a network, from the last to the first; one pass serves them all."""
    if count == 1:
        return [layers]
    waiting: list[deque[Layer]] = [deque() for _ in range(count)]

    def layers_of(trunk: int) -> Iterator[Layer]:
        while True:
            while not waiting[trunk]:
                layer = next(layers, None)
                if layer is None:
                    return
                waiting[layer.trunk].append(layer)
            yield waiting[trunk].popleft()

    return [layers_of(trunk) for trunk in range(count)]


def check_signal(method: Method, recipe: LayerSignal, layer: Layer, scores: Tensor) -> None:
    """Raise a ShapeError unless a signal has one score per token, or per pair of tokens, which `mixing` says."""
    check_tensor(method, scores)
    rows, tokens = layer.readout.shape
    shapes = ((rows, tokens, tokens),) if recipe.mixing else ((rows, tokens), (rows, tokens, tokens))
    if scores.shape not in shapes:
        expected = [rows, tokens, tokens] if recipe.mixing else [rows, tokens]
        raise ShapeError(
            f"the function of {method.name!r} returns {list(scores.shape)} for a layer of {tokens} tokens, {layer.layout.prefix} of "
            f"them prefix tokens; it must return {expected}"
        )


def check_tensor(method: Method, scores: Any) -> None:
    """Raise a ShapeError unless what the function of a method returns is a tensor of floating-point numbers."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        kind = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ShapeError(
            f"the function of {method.name!r} returns {kind}; it must return a tensor of floating-point numbers"
        )


def check_scores(method: Method, probe: BlackBoxProbe, scores: Any) -> None:
    """Raise a ShapeError unless a function of the probe returns one score per patch, token or pixel."""
    check_tensor(method, scores)
    rows, layout = probe.rows, probe.layout
    shapes = (
        [[rows, *layout.size]]
        if probe.black_box
        else [[rows, layout.patches], [rows, layout.tokens], [rows, *layout.size]]
    )
    if list(scores.shape) not in shapes:
        raise ShapeError(
            f"the function of {method.name!r} returns {list(scores.shape)}; it must return {' or '.join(map(str, shapes))}"
        )


def effective_fold(method: Method, recipe: LayerSignal) -> Fold:
    """The fold, with those of the method's options that belong to it."""
    fold, own, fold_options = recipe.fold, method.registered_fold, recipe.fold.typed_options
    options = {**fold.options, **{key: value for key, value in method.options.items() if key in fold_options}}
    if options.get("mode") == "restart" and own is not None and own.accumulates == "product":
        # a restart rolls out with the settings of the method's own roll-out
        options = {**{key: value for key, value in own.options.items() if key in fold_options}, **options}
    return replace(fold, options=options)


def iterate_layers(
    recipe: LayerSignal, probe: BlackBoxProbe, layer_pass: LayerPass, down_to: int | list[int], settings: Settings
) -> Iterator[Layer]:
    """Layers from the last to `down_to`, with what the signal reads; `row="cls"` reads them at the class token."""
    layers = probe.layers(**layer_pass.arguments, down_to=down_to)
    if recipe.needs.exact_presence:
        layers = with_exact_presence(layers, probe.layers(attention=True, presence=True, down_to=down_to))
    if layer_pass.relevance is not None:
        assert isinstance(probe, Probe)  # other models are refused by `Method.for_model`
        layers = propagate_relevance(probe, layers, layer_pass.relevance)
    if settings.get("row", "readout") == "readout":
        return layers
    if not probe.layout.prefix:
        raise SpecError(f"{probe.vit.name!r} has no class token for row='cls' to read; use row='readout'")
    return read_at_the_class_token(layers)


def with_exact_presence(layers: Iterator[Layer], exact: Iterator[Layer]) -> Iterator[Layer]:
    """Layers with the presence gradient of the same layers of an exact pass."""
    for layer, other in zip(layers, exact, strict=True):
        yield replace(layer, gradients=replace(layer.gradients, presence=other.presence_grad))


def read_at_the_class_token(layers: Iterator[Layer]) -> Iterator[Layer]:
    """Layers whose read-out is the class token, as in published code, also if the model's head reads other tokens."""
    for layer in layers:
        row = torch.zeros_like(layer.readout)
        row[:, 0] = 1
        yield replace(layer, readout=row)


def scores_add_up(method: Method, recipe: LayerSignal, probe: BlackBoxProbe) -> bool:
    """Whether token scores and bias shares add up to the score of this probe."""
    complete = method.facts.complete and recipe.linearisation.complete
    return complete and probe.accounts_biases and probe.question.affine and not recipe.changes_pass(method.options)


def run_in_pixels(method: Method, recipe: LayerSignal, probe: BlackBoxProbe, settings: Settings) -> Tensor:
    """The method's pixel form [r H W], of the gradient that the first layer's tokens pass on to the pixels."""
    assert recipe.pixel is not None
    if recipe.fold.name != "first" or recipe.changes_pass(method.options):
        other = f"fold {recipe.fold.name!r}" if recipe.fold.name != "first" else f"{method.spec!r}"
        raise SpecError(f"space='pixels' reads the image itself; it does not compose with {other}")
    assert isinstance(probe, NetworkProbe)
    gradient = probe.pixel_gradient(recipe.linearisation)
    images = probe.images.repeat_interleave(probe.targets_per_image, 0)
    return recipe.pixel(images, gradient, **recipe.pixel.pick(settings))


def build_attribution(method: Method, probe: BlackBoxProbe, scores: Tensor, settings: Settings) -> Attribution:
    """Build the `Attribution`; `scores` are of tokens [r n], patches [r p] or pixels [r H W]."""
    layout, prefix, pixels, finish = probe.layout, None, None, method.recipe.finish
    if scores.ndim == 3:
        pixels, patches = scores, None if probe.black_box else patch_sums(scores, layout)
    elif scores.shape[-1] == layout.tokens and isinstance(method.recipe, LayerSignal):
        prefix, patches = scores[:, : layout.prefix], scores[:, layout.prefix :]
    else:
        patches = scores
    return Attribution(
        patches=patches if finish is None else finish(patches, **finish.pick(settings)),
        layout=layout,
        targets=probe.targets,
        method=method.spec,
        native="patch" if pixels is None else "pixel",
        native_pixels=pixels,
        prefix=prefix,
        signed=method.signed or method.signed_by(probe.question),
        **score_and_logits(probe),
    )


def score_and_logits(probe: BlackBoxProbe) -> dict[str, Any]:
    """The explained score [r] and the logits [r c], as fields of `Attribution`."""
    k = probe.targets_per_image
    raw = probe.head_output.logits.repeat_interleave(k, 0)
    with torch.no_grad():
        score = probe.compute_scores(raw, probe.targets)
    return {"score": score, "logits": probe.full_logits.repeat_interleave(k, 0)}


# ── biases ───────────────────────────────────────────────────────────────────────────────────────


def repeats_biases(settings: Settings) -> bool:
    """Whether a bias counts at every layer from which it is reached: the option `biases`, by default for restarts."""
    return (settings.get("biases") or ("repeat" if settings.get("mode") == "restart" else "once")) == "repeat"


class BiasAccounting:
    """Accumulates bias shares while a fold consumes the layers from the last to the first.

    FullGrad counts each bias once, at the token it is added to; with `repeat` it counts at every layer from which it is
    reached. Other complete methods only need the total, the part of the score that is not attributed to tokens.

    Parameters
    ----------
    probe
        The probe whose layers are read.
    to_tokens
        Whether bias shares are added to the token scores.
    repeat
        Whether a bias counts at every layer from which it is reached.
    """

    def __init__(self, probe: BlackBoxProbe, to_tokens: bool, repeat: bool) -> None:
        self.probe, self.to_tokens, self.repeat = probe, to_tokens, repeat
        self.totals: list[TokenScores] = []  # per trunk
        self.unplaced: list[Tensor] = []
        self.starts: list[int] = []  # numbers of signals read
        self.outside: Tensor = probe.images.new_zeros(())  # bias shares outside of them

    def watch(self, layers: Iterator[Layer]) -> Iterator[Layer]:
        """Yield the layers of a trunk while adding up their bias shares."""
        for place, layer in enumerate(layers):
            if place == 0:
                shares = self.probe.bias_shares  # of the head, known once the first layer is there
                assert shares is not None
                share = 1 if not self.totals else 0  # the head's count once
                self.totals.append(share * shares.head)
                self.unplaced.append(share * shares.pooled)
                self.starts.append(0)
            self.totals[-1] = self.totals[-1] + layer.biases
            if layer.unplaced is not None:
                self.unplaced[-1] = self.unplaced[-1] + layer.unplaced
            yield layer

    @property
    def total(self) -> TokenScores:
        """Bias shares at tokens."""
        return sum(self.totals[1:], self.totals[0])

    @property
    def elsewhere(self) -> Float[Tensor, " r"]:
        """Bias shares that are not in the map."""
        unplaced = sum(self.unplaced[1:], self.unplaced[0])
        return unplaced if self.to_tokens else unplaced + self.total.sum(-1)

    @property
    def is_settled(self) -> bool:
        """Whether signals of as many layers were read of every trunk: of each layer, tokens and biases make up the score."""
        return len(set(self.starts)) == 1

    def add(self, signal: Tensor) -> Tensor:
        """The signal of a layer, plus the bias shares so far if they are repeated at tokens."""
        self.starts[-1] += 1
        self.outside = self.outside + self.unplaced[-1]
        if self.to_tokens and self.repeat:
            return signal + self.totals[-1]
        self.outside = self.outside + self.totals[-1].sum(-1)
        return signal

    def missing(self, score: Float[Tensor, " r"], tokens: TokenScores) -> Float[Tensor, " r"]:
        """Score minus token scores and bias shares, summed over all layers read; `tokens` before `close`."""
        return self.starts[-1] * score - tokens.sum(-1) - self.outside

    def close(self, tokens: TokenScores) -> TokenScores:
        """Final token scores."""
        return tokens if self.repeat or not self.to_tokens else tokens + self.total
