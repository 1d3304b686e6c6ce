"""Listed combinations run, `restart` restarts, and other combinations are refused with a hint that works."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import vitreous
from tests.cases import each
from vitreous import SpecError, resolve
from vitreous.capture.probe import Probe
from vitreous.core.errors import Caveat
from vitreous.testing import tiny_vits

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from combination_table import ENDINGS, list_combinations, restart_differs

TABLE = list_combinations()
EVERY = [cell for row in TABLE.values() for cell in row.values()]
COMPOSES = [cell.spec for cell in EVERY if cell.method is not None]
REFUSED = [cell.spec for cell in EVERY if cell.method is None]
FOLDED = sorted(name for name, row in TABLE.items() if row["+plus(mode='restart')"].method is not None)
TARGETS = torch.tensor([1, 4])


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def shared_scores(vits, images):
    """Scores of a tiny ViT by its name and a spec, computed once for all tests."""
    return cache(lambda name, spec: scores(vits[name], images, spec))


def scores(vit, images, spec):
    made = resolve(spec)
    made = made.with_options(**{key: value for key, value in made.facts.trial.items() if key in made.known_options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        return vitreous.explain(vit, images, TARGETS, made).patches


def same(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-9 * float(b.abs().max()) + 1e-12)


def test_every_method_has_every_cell():
    assert set(TABLE) == {one["name"] for one in vitreous.list_methods() if one["origin"] == "vitreous"}
    assert all(tuple(row) == ENDINGS for row in TABLE.values())


@each("spec", COMPOSES)
def test_listed_combinations_run(spec, vits, shared_scores):
    for name in vits:
        found = shared_scores(name, spec)

        assert found.shape == (2, 16)
        assert found.isfinite().all()


# Score-CAM masks images by a layer, which no sub-network reads; test_path_methods.py compares its layers
@pytest.mark.parametrize("name", [name for name in FOLDED if name != "scorecam"])
def test_a_restart_is_the_sum_over_sub_networks(name, vits, images, shared_scores):
    """The slow way: the method itself on every network that begins at a later block, fed with what enters that block."""
    method = resolve(name)
    alone = f"{name}+first"
    if resolve(f"{name}+plus").recipe.mixing:
        own = method.fold.options if method.fold.name == "rollout" else {"form": "add"}
        alone = f"{name}+rollout({', '.join(f'{key}={value!r}' for key, value in own.items())})"
    for vit_name, vit in vits.items():
        states = Probe(vit, images).states
        total = {0: 0.0, vit.depth // 2: 0.0}
        for start in range(vit.depth):
            later = replace(vit, blocks=vit.blocks[start:], embed=lambda _, x=states[start]: x)
            part = scores(later, images, alone)
            total = {begin: s + part if start >= begin else s for begin, s in total.items()}

        assert same(shared_scores(vit_name, f"{name}+plus(mode='restart')"), total[0])
        assert same(shared_scores(vit_name, f"{name}+skipplus(mode='restart')"), total[vit.depth // 2])


@pytest.mark.parametrize("name", FOLDED)
def test_variants_differ_as_listed(name, shared_scores):
    for fold in ("plus", "skipplus"):
        layers, restart = (
            shared_scores("class token", f"{name}+{fold}(mode={mode!r})") for mode in ("layers", "restart")
        )

        assert same(layers, restart) != restart_differs(resolve(name))
        assert same(layers, shared_scores("class token", f"{name}+{fold}"))


@each("spec", REFUSED)
def test_other_combinations_are_refused_with_a_hint_that_works(spec, vits, images):
    with pytest.raises(SpecError) as refusal:
        vitreous.explain(vits["class token"], images, TARGETS, spec)

    sentence = str(refusal.value)
    assert sentence.startswith(repr(re.split(r"[@+]", spec)[0]))
    assert "\n" not in sentence
    assert sentence.count(". ") == 0
    for hint in re.findall(r"use '(.+?)'$|as '(.+?)'$", sentence):
        assert resolve(next(filter(None, hint)))
    if "@" not in spec:
        assert re.search(r"(use|as) '.+'$", sentence), sentence
