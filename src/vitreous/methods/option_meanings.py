"""What each option of a method means, read from the docstrings of its functions."""

from __future__ import annotations

import inspect
import re
from typing import Any

from vitreous.methods.folds import rollout
from vitreous.methods.method import Method
from vitreous.methods.recipe import LayerSignal

SHARED = {  # options that several methods have, and that no docstring of theirs describes
    "question": "The score that is explained: 'logit', 'probability', 'log-probability', 'margin' or 'sigmoid'.",
    "preset": "Options of a paper or of published code, by name.",
    "row": "Whose row of the token-to-token matrix is the map: what the head reads ('readout'), or the class token ('cls').",
    "space": "'tokens' scores the tokens after the embedding, 'pixels' the pixels.",
    "of": "Which activations are read: the 'input' of the block, or its first norm's output ('norm1').",
    "tokens": "Which tokens an average runs over: 'all', or 'patches' without the prefix tokens.",
    "eps": "Added to the denominator.",
    "relu": "Whether negative scores or gradients are set to 0.",
    "minmax": "Whether every map is rescaled to [0, 1].",
    "divide": "Whether every map is divided by its largest score.",
    "seed": "Seed of the random numbers.",
    "channels": "Reduction over colours: signed 'sum', sum of absolute values ('abs') or their 'max'.",
    "part": "The part of the gradient that is averaged: 'signed', 'abs' or 'relu'.",
    "ablation": "Whether the relevance is weighted by the gradient of the attention.",
    "rules": "Rules of layer-wise relevance propagation: those of the published method ('ours') or the original ones ('orig').",
}


def parameters(function: Any) -> dict[str, str]:
    """Parameters that a numpydoc docstring describes, each with its text on one line."""
    docstring = inspect.getdoc(function) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-+\n|\Z)", docstring, re.DOTALL | re.MULTILINE)
    described: dict[str, str] = {}
    names: list[str] = []
    for line in [] if section is None else section[1].splitlines():
        if not line.strip():
            names = []
        elif not line.startswith(" "):
            names = [name.strip() for name in line.split(",")]
        else:
            described |= {name: f"{described.get(name, '')} {line.strip()}".strip() for name in names}
    return described


def option_meanings(method: Method) -> dict[str, str]:
    """The meaning of every option of a method, by name.

    Parameters
    ----------
    method
        A registered method.

    Returns
    -------
    dict
        One text per name in `method.known_options`; empty where nothing describes it.
    """
    recipe = method.recipe
    layers = [recipe.signal.call, recipe.finish] if isinstance(recipe, LayerSignal) else [recipe.function.call]
    functions = [rollout.signature.call, *([] if method.fold is None else [method.fold.signature.call]), *layers]
    described = dict(SHARED)
    for function in functions:
        texts = {} if function is None else parameters(getattr(function, "call", function))
        described |= {name: text for name, text in texts.items() if not text.startswith("As in `")}
    return {name: described.get(name, "") for name in method.known_options}
