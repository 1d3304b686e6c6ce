"""Composition of methods: options, fold, linearisation and black-box form, and the spec that describes the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitreous.capture.linearise import Linearisation
from vitreous.core.errors import SpecError
from vitreous.methods.fold import Fold
from vitreous.methods.options import check_choice, check_names, fit_options, write_options
from vitreous.methods.recipe import LayerSignal, ProbeFunction

if TYPE_CHECKING:
    from vitreous.methods.method import Method


def with_options(method: Method, options: Mapping[str, Any]) -> Method:
    """Set options; see `Method.with_options`."""
    options = {**method.options, **options}
    preset = options.get("preset")
    if preset is not None and method.presets:
        check_choice("preset", preset, tuple(method.presets))
        setting = dict(method.presets[preset])
        method = replace_fold(method, setting.pop("fold")) if "fold" in setting else method
        options = {**setting, **options}
    changed = set_fold_options(method, fit_options(f"method {method.name!r}", options, method.typed_options))
    refuse_rescaled_biases(changed)
    return changed


def refuse_rescaled_biases(method: Method) -> None:
    """Raise a SpecError if a fold would rescale layers' maps and then add bias shares at another scale."""
    if not isinstance(method.recipe, LayerSignal) or not method.recipe.needs.biases:
        return
    rule = {**method.recipe.fold.options, **method.options}.get("normalise", "none")
    if rule != "none":
        raise SpecError(
            f"{method.name!r} adds bias shares to the sum of its layers, which normalise={rule!r} would rescale without "
            f"them; use 'ixg+{method.recipe.fold.name}(normalise={rule!r})'"
        )


def set_fold_options(method: Method, options: Mapping[str, Any]) -> Method:
    """Set valid options, those of a fold that is not the method's default at that fold, because a spec writes them there."""
    fold, own = method.fold, method.registered_fold
    if fold is None or own is None or fold.name == own.name:
        return replace(method, options=options)
    assert isinstance(method.recipe, LayerSignal)
    of_fold = fold.typed_options.keys() - method.recipe.signal.options.keys()
    moved = {key: value for key, value in options.items() if key in of_fold}
    rest = {key: value for key, value in options.items() if key not in of_fold}
    return replace(replace_fold(method, fold.with_options(**moved)) if moved else method, options=rest)


def replace_fold(method: Method, fold: Fold) -> Method:
    """The method with another fold, without a check that it fits; a function of the probe becomes its per-layer form."""
    recipe = method.recipe
    if isinstance(recipe, LayerSignal):
        return replace(method, recipe=replace(recipe, fold=fold))
    assert recipe.per_layer is not None
    facts = replace(method.facts, native="patch")
    return replace(method, facts=facts, recipe=replace(recipe.per_layer, fold=fold))


def with_fold(method: Method, fold: Fold) -> Method:
    """Set the fold if it fits; see `Method.folded`."""
    layers = method.recipe.per_layer if isinstance(method.recipe, ProbeFunction) else method.recipe
    if layers is None:
        example = f"{'genatt' if fold.mixing else 'ixg'}+{fold.name}"
        raise SpecError(
            f"{method.name!r} has no signal per layer for {fold.name!r} to fold; use it alone, or one that has, as {example!r}"
        )
    current = method.fold
    if fold.mixing and not layers.mixing:
        summed = method.name if current is not None and current.name == "plus" else f"{method.name}+plus"
        raise SpecError(
            f"{method.name!r} has no token-to-token signal per layer for {fold.name!r} to fold; use {summed!r}"
        )
    if layers.fixed_fold:
        raise SpecError(
            f"{method.name!r} has its fold built in; for {fold.name!r} use {layers.fixed_fold.format(fold=fold.name)!r}"
        )
    fold_options = current.options if current is not None and current.name == fold.name else {}
    folded = replace_fold(method, replace(fold, options={**fold_options, **fold.options}))
    check_names(f"{method.name!r} under fold {fold.name!r}", method.options, folded.typed_options)
    refuse_rescaled_biases(folded)
    return folded


def with_linearisation(method: Method, name: str, linearisation: Linearisation) -> Method:
    """Set the linearisation if the method has one; see `Method.linearised`."""
    recipe, facts = method.recipe, method.facts
    if recipe.fixed_linearisation:
        raise SpecError(f"{method.name!r} has its own way back through the layers; for another use 'ixg@{name}'")
    if not facts.class_specific or (isinstance(recipe, ProbeFunction) and facts.backwards == 0):
        raise SpecError(f"{method.name!r} takes no gradient through the layers, so '@{name}' changes nothing")
    if isinstance(recipe, ProbeFunction):
        raise SpecError(
            f"{method.name!r} takes gradients of the whole model as it is, where '@{name}' does not reach; use 'ixg@{name}'"
        )
    return replace(method, recipe=replace(recipe, linearisation=linearisation, linearisation_name=name))


def with_black_box_options(method: Method, alternatives: str) -> Method:
    """The form that uses pixels only; see `Method.of_black_box`. `alternatives` are methods that have such a form."""
    if method.black_box is None:
        raise SpecError(f"{method.name!r} looks inside the model; of a black box ask one of: {alternatives}")
    for key, needed in method.black_box.items():
        if method.options.get(key, needed) != needed:
            raise SpecError(
                f"{method.name}({key}={method.options[key]!r}) looks inside the model; of a black box ask {method.name}({key}={needed!r})"
            )
    return with_options(method, method.black_box)


def effective_fold(method: Method, recipe: LayerSignal) -> Fold:
    """The fold, with those of the method's options that belong to it."""
    fold, own, fold_options = recipe.fold, method.registered_fold, recipe.fold.typed_options
    options = {**fold.options, **{key: value for key, value in method.options.items() if key in fold_options}}
    if options.get("mode") == "restart" and own is not None and own.name == "rollout":
        # a restart rolls out with the settings of the method's own roll-out
        options = {**{key: value for key, value in own.options.items() if key in fold_options}, **options}
    return replace(fold, options=options)


def write_spec(method: Method) -> str:
    """The method as a string, which `resolve` turns into the same method."""
    recipe, preset = method.recipe, method.options.get("preset")
    options = {key: value for key, value in method.options.items() if key != "preset"}
    if preset is not None:
        by_preset = method.presets[preset]
        options = {"preset": preset} | {k: v for k, v in options.items() if by_preset.get(k, ...) != v}
    text = f"{method.name}{write_options(options)}"
    if not isinstance(recipe, LayerSignal):
        return text
    mode = f"@{recipe.linearisation_name}" if recipe.linearisation_name else ""
    own = method.registered
    if own is None or recipe.fold == fold_of_preset(own, preset):
        return f"{text}{mode}"
    return f"{text}{mode}+{recipe.fold.name}{write_options(recipe.fold.options)}"


def fold_of_preset(method: Method, preset: str | None) -> Fold | None:
    """The fold of a registered method under a preset."""
    return method.fold if preset is None else with_options(method, {"preset": preset}).fold
