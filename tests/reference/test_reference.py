"""Every fast method agrees with its reference implementation, to 1e-9 of the map's largest value."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import each
from tests.methods.shared_pass import SharedPassProbe
from tests.models.families import pictures, seen, tiny
from tests.reference import attention, cams, decomposition, tokens, transition, vectors  # noqa: F401 - they register the reference implementations
from tests.reference.reference import HELD, MODELS, REFERENCES
from tests.reference.scene import TARGETS, look, scene_of
from vitreous.capture.probe import Probe
from vitreous.core.errors import SpecError, VitreousError
from vitreous.methods.attribution import Attribution
from vitreous.methods.method import METHODS
from vitreous.methods.spec import resolve

FAMILIES = sorted({family for reference in REFERENCES.values() for family in reference.models})


@lru_cache(maxsize=2)
def probe_of(family: str) -> Probe:
    """Probe whose passes the methods share."""
    return SharedPassProbe(seen(family), pictures(), torch.tensor(TARGETS))


def quickly(spec: str, family: str, question: str | None = None) -> Attribution:
    method = resolve(spec)
    return method(probe_of(family).with_score_function(question or method.question))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_method_agrees_with_its_reference(family: str, subtests: Any, request: pytest.FixtureRequest) -> None:
    specs = [spec for spec, reference in REFERENCES.items() if family in reference.models]
    each("spec", specs)(assert_agreement)(subtests, request, family=family)


def assert_agreement(spec: str, family: str) -> None:
    reference = REFERENCES[spec]
    slow = torch.stack([reference.slowly(family, image) for image in range(2)])

    fast = quickly(spec, family)

    if slow.ndim == 3:
        found = fast.native_pixels
        per_patch = slow.unfold(1, 8, 8).unfold(2, 8, 8).sum((-1, -2)).flatten(1)
        torch.testing.assert_close(fast.patches, per_patch, rtol=0, atol=1e-9 * slow.abs().max().item() * 64)
    else:
        found = torch.cat([fast.prefix, fast.patches], dim=1) if slow.shape[1] > 12 else fast.patches
    assert resolve(spec).question == reference.question
    assert slow.abs().max() > 1e-6 or slow.isnan().any()  # not noise
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-9 * slow.nan_to_num().abs().max().item(), equal_nan=True)


COMPARED_IN = {  # tests with reference implementations of their own
    "test_anneal.py": ("anneal",),
    "test_attention_gradients.py": ("bth", "btt", "legrad", "tam"),
    "test_bayes.py": ("bayes",),
    "test_dave_caap.py": ("caap", "dave"),
    "test_fuse.py": ("fuse",),
    "test_path_methods.py": ("ig", "smoothgrad"),
    "test_presence.py": ("presence",),
    "test_relevance.py": ("lrp", "partiallrp", "transatt"),
    "test_sampling.py": (
        "atman",
        "hsic",
        "kernelshap",
        "lime",
        "occlusion",
        "pami",
        "rise",
        "scorecam",
        "tis",
        "vitcx",
    ),
}
CONTROL = "random"


def test_every_method_has_a_reference() -> None:
    compared = {name for names in COMPARED_IN.values() for name in names}
    without = set(METHODS) - {resolve(spec).name for spec in REFERENCES} - compared - {CONTROL}

    assert not without, f"add a reference implementation of {', '.join(sorted(without))} to tests/reference"
    for file, names in COMPARED_IN.items():
        text = (Path(__file__).parents[1] / "methods" / file).read_text()
        assert all(re.search(rf"[\"']{name}\b", text) for name in names), file


@pytest.mark.parametrize("rows", [1, 5])
def test_alti_is_the_same_however_few_tokens_run_at_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = quickly("alti(skipplus=True, eps=1e-3)", "vit-mean")
    monkeypatch.setattr("vitreous.methods.vectors.chunk_of", lambda values: rows)

    torch.testing.assert_close(
        quickly("alti(skipplus=True, eps=1e-3)", "vit-mean").patches, together.patches, rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("family", ["siglip", "vit-no-class-token"])
def test_there_is_no_class_row_without_a_class_token(family: str) -> None:
    with pytest.raises(VitreousError, match="class token"):
        quickly("genatt(row='cls')", family)


@pytest.mark.parametrize("part", ["res", "resln"])
def test_single_heads_have_no_skip_connection_to_be_added(part: str) -> None:
    with pytest.raises(SpecError, match="part"):
        quickly(f"attin(per_head=True, part='{part}')", "vit")


@pytest.mark.parametrize("family", MODELS)
def test_gradients_of_a_token_add_up_to_zero_behind_a_layernorm(family: str) -> None:
    found = quickly("vanillagrad+plus", family)

    size = max(g.abs().sum(-1).max().item() for image in range(2) for g in scene_of(family, image).g)
    assert found.patches.abs().max().item() < 1e-13 * size


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("question", ["logit", "probability"])
def test_tokentm_without_its_measures_is_genatt_doubled_at_every_layer(family: str, question: str) -> None:
    stripped = quickly("tokentm(preset='af')", family, question)
    genatt = quickly("genatt", family, question)

    torch.testing.assert_close(stripped.patches, 2 ** seen(family).depth * genatt.patches, rtol=1e-12, atol=0)


@pytest.mark.parametrize("family", ["vit", "vit-mean", "map-skips-prefix", "deit-distilled", "vit-swiglu"])
@pytest.mark.parametrize("question", ["probability", "margin"])
@pytest.mark.parametrize("start", [0, 2])
def test_decompx_with_another_score_function_equals_its_reference(family: str, question: str, start: int) -> None:
    scenes = [scene_of(family, image) for image in range(2)]
    slow = torch.stack([decomposition.shares(scene, start, question=question) for scene in scenes])

    fast = quickly(f"decompx+at(layer={start})", family, question)

    found = torch.cat([fast.prefix, fast.patches], dim=1)
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-9 * slow.abs().max().item())


@pytest.mark.parametrize("spec", ["ixg", "genatt", "gradcam", "fullgrad@libra+plus", "attcat"])
@pytest.mark.parametrize("question", ["probability", "margin"])
def test_every_kind_of_method_supports_other_score_functions(spec: str, question: str) -> None:
    reference = REFERENCES[spec]
    slow = torch.stack(
        [reference.function(scene_of("vit-mean", i, question, **reference.held), **reference.options) for i in range(2)]
    )

    fast = quickly(spec, "vit-mean", question)

    found = torch.cat([fast.prefix, fast.patches], dim=1)
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-9 * slow.abs().max().item())


@pytest.mark.parametrize("spec", ["ixg", "genatt", "gradcam", "attnlrp", "rollout"])
@pytest.mark.parametrize("family", ["vit-dynamic", "dinov3", "sapiens2"])
def test_images_of_another_shape_agree_with_their_references(spec: str, family: str) -> None:
    reference, images = REFERENCES[spec], pictures(2, (40, 24))
    scenes = [
        look(tiny(family), image, target, **reference.held) for image, target in zip(images, TARGETS, strict=True)
    ]
    slow = torch.stack([reference.function(scene, **reference.options) for scene in scenes])

    fast = resolve(spec)(Probe(seen(family), images, torch.tensor(TARGETS)))

    assert fast.maps().shape == (2, 5, 3)
    torch.testing.assert_close(fast.patches, slow[:, -15:], rtol=0, atol=1e-9 * slow.abs().max().item())


@pytest.mark.slow
@pytest.mark.parametrize("held", HELD)
def test_reference_models_have_unchanged_logits(held: str) -> None:
    for family in (*MODELS, "vit-swiglu", "vit-rmsnorm"):
        plain, operated = scene_of(family, 0), scene_of(family, 0, **HELD[held])

        torch.testing.assert_close(operated.logits, plain.logits, rtol=1e-12, atol=1e-12)
