"""Public names that were changed still work for one release, with a warning that gives the new name."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

import vitreous

MOVED = [
    ("vitreous.methods.fold.read", "vitreous.methods.folds.read_token_scores"),
    ("vitreous.methods.method.method", "vitreous.methods.register_method.method"),
    ("vitreous.methods.method.make_method", "vitreous.methods.register_method.make_method"),
    ("vitreous.methods.method.spelling", "vitreous.methods.register_method.register_alias"),
    ("vitreous.methods.method.SPELLINGS", "vitreous.methods.method.SPEC_ALIASES"),
    ("vitreous.capture.score_function.Question", "vitreous.capture.score_function.ScoreFunction"),
    ("vitreous.capture.score_function.ask", "vitreous.capture.score_function.resolve_score_function"),
    ("vitreous.models.vit.Attend", "vitreous.models.vit.AttentionBranch"),
    ("vitreous.models.vit.Feed", "vitreous.models.vit.MlpBranch"),
    ("vitreous.scores.field", "vitreous.scores.output_field"),
    ("vitreous.models.vit.Place", "vitreous.models.vit.TokenPositions"),
]
PROBE_ATTRIBUTES = {
    "on": "with_images",
    "asking": "with_score_function",
    "once": "with_one_target",
    "alone": "for_image",
    "sides": "class_logits",
    "answer": "compute_scores",
    "answers": "compute_variant_scores",
    "say": "run_model",
    "reading": "head_output",
}


def find(path: str):
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_an_old_name_of_a_module_gives_the_object_of_the_new_name(old, new):
    with pytest.warns(DeprecationWarning, match=rf"{old} is now .*\.{new.rpartition('.')[2]}$"):
        assert find(old) is find(new)


def test_old_attributes_of_probes_read_the_new_ones():
    probe = vitreous.Probe(vitreous.load("scenes"), torch.zeros(1, 3, 112, 112))
    for old, new in PROBE_ATTRIBUTES.items():
        with pytest.warns(DeprecationWarning, match=f"{old} of BlackBoxProbe is now {new}"):
            assert getattr(probe, old) == getattr(probe, new)


def test_old_attributes_of_methods_folds_and_blocks_read_the_new_ones():
    method = vitreous.resolve("ixg")
    for old, new in {
        "folded": "with_fold",
        "linearised": "with_linearisation",
        "of_black_box": "for_black_box",
    }.items():
        with pytest.warns(DeprecationWarning, match=f"Method.{old} is now Method.{new}"):
            assert getattr(method, old) == getattr(method, new)
    with pytest.warns(DeprecationWarning, match="down_to of Fold is now first_layer"):
        assert vitreous.skipplus.down_to(12) == 6
    block = vitreous.load("scenes").blocks[0]
    with pytest.warns(DeprecationWarning, match="attend of Block is now attention"):
        assert block.attend is block.attention


def test_a_method_takes_its_model_under_the_old_keyword():
    method, model = vitreous.resolve("ixg"), vitreous.load("scenes")

    with pytest.warns(DeprecationWarning, match="vit of Method.for_model is now model"):
        assert method.for_model(vit=model) is method
