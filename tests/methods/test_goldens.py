"""Outputs of published implementations, on three models, in float64."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer

import vitreous
from tests.arrays import read_arrays
from tests.methods.shared_pass import SharedPassProbe
from vitreous.capture.probe import Probe

LIN = {
    "ng": "",
    "libra": "@libra",
    "attnlrp": "@attnlrp",
    "alilrp": "@conservative",
    "ng_prob": "",
    "libra_prob": "@libra",
}

TOKENS = {
    "ixg": "ixg{}",
    "ixg_plus": "ixg{}+plus",
    "ixg_skipplus": "ixg{}+skipplus",
    "hirescam_last": "hirescam{}",
    "elementwise_last": "elementwise{}",
    "elementwise_plus": "elementwise{}+plus",
    "elementwise_skipplus": "elementwise{}+skipplus",
    "gradcam_last": "gradcam{}",
    "gradcam_plus": "gradcam{}+plus",
    "gradcam_skipplus": "gradcam{}+skipplus",
    "xgradcamplus_last": "XGradCAM+{}",
    "xgradcamplus_plus": "xgradcamplus{}+plus",
    "xgradcamplus_skipplus": "xgradcamplus{}+skipplus",
    "vanillagrad_norm2": "vanillagrad_norm{}",
    "vanillagrad_norm2_plus": "vanillagrad_norm{}+plus",
    "fullgrad": "fullgrad{}",
    "fullgrad_restart_plus": "fullgrad{}+plus(biases='repeat')",
    "fullgrad_restart_skipplus": "fullgrad{}+skipplus(biases='repeat')",
    "fullgradplus_plus": "fullgrad{}+plus",
    "fullgradplus_skipplus": "fullgrad{}+skipplus",
    "attcat": "attcat(preset='skipplus'){}",
    "attcat_skipplus": "attixg(preset='skipplus'){}+skipplus",
    "attixg_block0": "attixg(preset='skipplus'){}",
}
MIXING = {
    "attngrad_plus": "attngrad(row='cls'){}+plus",
    "attngrad_last": "attngrad(row='cls'){}",
    "genatt_rollout": "genatt(row='cls'){}+rollout(form='half')",
    "genatt_plus_gradsam": "genatt(row='cls'){}+plus",
    "genatt_skipplus": "genatt(row='cls'){}+skipplus",
    "attcam_last": "attcam(row='cls', preset='skipplus'){}",
    "attcam_plus": "attcam(row='cls', preset='skipplus'){}+plus",
    "attcam_skipplus": "attcam(row='cls', preset='skipplus'){}+skipplus",
    "tokentm_libragradrepo": "tokentm(row='cls', preset='libragrad'){}",
}
AGNOSTIC = {
    "rollout_half": "rollout(row='cls')",
    "rawattn_last": "rawattention(row='cls')",
    "rawattn_plus": "rawattention(row='cls')+plus",
    "rawattn_skipplus": "rawattention(row='cls')+skipplus",
}
CAMS = {
    "xgradcam_last": "xgradcam",
    "xgradcam_plus": "xgradcam+plus",
    "xgradcam_skipplus": "xgradcam+skipplus",
    "gradcampp_last": "GradCAM++",
    "gradcampp_plus": "gradcampp+plus",
    "gradcampp_skipplus": "gradcampp+skipplus",
    "gradcampp_norelu_last": "gradcampp(relu=False)",
    "gradcampp_norelu_plus": "gradcampp(relu=False)+plus",
    "gradcampp_norelu_skipplus": "gradcampp(relu=False)+skipplus",
}
PLAIN = {  # file → {array suffix: spec}; a `{}` in the array's name stands for top and other
    "attcam_chefer": {"{}": "attcam(preset='chefer')"},
    "attcat_official": {"{}": "attcat"},
    "decompx": {
        "decompx_{}": "decompx",
        "decompx_plus_{}": "decompx+plus",
        "decompx_skipplus_{}": "decompx+skipplus",
    },
    "genatt": {"{}": "genatt"},
    "genatt_bt_variant": {"{}": "genatt(variant='bt')"},
    "raw_attention_last": {"scores": "rawattention"},
    "rollout_start0": {"scores": "rollout"},
    "rollout_start1": {"scores": "rollout(preset='chefer')"},
    "saliency_abs_chansum": {"{}_patchsum": "vanillagrad(space='pixels', channels='abs')"},
    "saliency_signed_chansum": {"{}_patchsum": "vanillagrad(space='pixels')"},
    "saliency_abs_chanmax": {"{}_patchsum": "vanillagrad(space='pixels', channels='max')"},
    "inputxgradient_chansum": {"{}_patchsum": "ixg(space='pixels')"},
    "lxt_cplrp_gamma0": {"{}_tokens": "ixg@libra", "{}_patchsum": "decompx(space='pixels')"},
    "gim": {
        "ixg__{}": "gim",
        "ixg_plus__{}": "gim+plus",
        "ixg_skipplus__{}": "gim+skipplus",
        "gradnorm__{}": "vanillagrad_norm@gim",
        "zero_image_baseline__{}": "gim(space='pixels')",
        "ixg_T1__{}": "ixg@gim(softmax=1)",
        "ixg_T4__{}": "ixg@gim(softmax=4)",
        "ixg_as_shipped_fused__{}": "ixg@gim(softmax=1)",
        "ixg_as_shipped_unfused__{}": "ixg@gim(qk=1, v=1)",
    },
    "reslrp": {
        "ixg__{}": "reslrp",
        "ixg_plus__{}": "reslrp+plus",
        "ixg_skipplus__{}": "reslrp+skipplus",
        "ixg_gamma0.25__{}": "ixg@reslrp(residual=0.25)",
        "ixg_gamma5__{}": "ixg@reslrp(residual=5)",
        "pixel_patchsum__{}": "reslrp(space='pixels')",
    },
    "pgc_gradcam": {"{}": "gradcam(preset='grad-cam')"},
    "pgc_gradcamelementwise": {"{}": "elementwise(preset='grad-cam')"},
    "pgc_gradcamplusplus": {"{}": "gradcampp(preset='grad-cam', eps=1e-6)"},
    "pgc_hirescam": {"{}": "hirescam(preset='grad-cam')"},
    "pgc_layercam": {"{}": "layercam(preset='grad-cam', relu=False)"},
    "pgc_xgradcam": {"{}": "xgradcam(preset='grad-cam')"},
    **{
        f"vitexplain_rollout_{heads}_{discard}": {
            "scores": f"rollout(preset='vit-explain', heads='{heads}', discard={discard})"
        }
        for heads, discard in (("max", 0.5), ("mean", 0.0), ("mean", 0.9), ("min", 0.9))
    },
}
MATRICES = {  # file → {array: spec}: row 0, patch columns
    "globenc_skipplusrepo": {
        "rollout": "globenc_norm2_ro",
        "rollout_half": "globenc(row='cls')+rollout(form='half')",
        "plus": "globenc_norm2_sum",
        "skipplus": "globenc(row='cls')+skipplus",
    },
    "alti_skipplusrepo": {
        "rollout": "ALTI_ro",
        "rollout_half": "alti(row='cls', skipplus=True)+rollout(form='half')",
        "plus": "ALTI_sum",
        "skipplus": "alti(row='cls', skipplus=True)+skipplus",
    },
    "alti_official": {"rollout": "alti(row='cls', preset='official')"},
}
ATTIN = {"attn_n": "attention", "attnres_n": "res", "attnresln_n": "resln"}
# a sum that LayerNorm makes 0: what the reference stored is its own rounding
NOISE = ("vanillagrad_sum", "vanillagrad_sum_plus")
# compared in other test files, or not implemented: EigenCAM, the γ-rule, and metrics
ELSEWHERE = (
    "bt_",
    "tam_",
    "transatt",
    "lrp_",
    "partial_lrp",
    "pgc_scorecam",
    "pgc_eigen",
    "integrated",
    "kernelshap",
    "occlusion",
    "shapley_exact",
)
ELSEWHERE += ("rise", "smoothgrad", "tis", "vitcx", "lxt_cplrp_gamma_conv", "metric_")
# methods that the package does not offer yet
ELSEWHERE += ("pair_",)
BY_HAND = ("genatt_matrix", "attin_official")


@lru_cache
def index(root: Path) -> dict[tuple[str, str], dict]:
    return {(e["model"], e["method"]): e for e in json.loads((root / "index.json").read_text())["entries"]}


@lru_cache
def probe_parts(root: Path, name: str, weights: Path):
    info = json.loads((root / "models.json").read_text())[name]
    model = VisionTransformer(**info["timm_kwargs"])
    model.load_state_dict(load_file(weights))
    inputs = read_arrays(root / "inputs" / f"{name}.npz")
    targets = {which: torch.from_numpy(inputs[which]).long() for which in ("top", "other")}
    return vitreous.wrap(model.double().eval()), torch.from_numpy(inputs["x"]).double(), targets, inputs["logits"]


class Golden:
    """One model with its inputs and reference outputs."""

    def __init__(self, root: Path, name: str, weights: Path) -> None:
        self.root, self.name = root, name
        self.vit, self.images, self.targets, self.logits = probe_parts(root, name, weights)
        self.prefix = self.vit.layout(self.vit.size).prefix

    def entry(self, file: str) -> dict | None:
        return index(self.root).get((self.name, file))

    def arrays(self, file: str) -> dict[str, np.ndarray]:
        return read_arrays(self.root / self.entry(file)["file"])

    @property
    def targets_compared(self) -> Iterator[tuple[str, ...]]:
        """Target classes to compare, method by method: both on small models, in turn on the real one."""
        return cycle([("top",), ("other",)] if self.name == "real" else [("top", "other")])

    @lru_cache(maxsize=4)
    def forward(self, count: int, targets: tuple[str, ...]) -> Probe:
        """Probe whose forward results and passes the methods share."""
        chosen = torch.stack([self.targets[which][:count] for which in targets], 1)
        return SharedPassProbe(self.vit, self.images[:count], chosen)

    @lru_cache(maxsize=256)
    def patches(self, spec: str, question: str, count: int, targets: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Patch scores of each target; one forward serves all of them."""
        probe = self.forward(count, targets).with_score_function(question)
        scores = vitreous.resolve(spec)(probe).patches.unflatten(0, (count, len(targets)))
        return dict(zip(targets, scores.numpy().swapaxes(0, 1), strict=True))

    def compare(self, file: str, spec: str, references: dict[str, np.ndarray]) -> None:
        """Compare the maps of one or several targets with their references."""
        question = "probability" if file.endswith("_prob") else "logit"
        if self.name == "real":  # the small models have the batches
            references = {which: reference[:1] for which, reference in references.items()}
        (count,) = {len(reference) for reference in references.values()}
        ours = self.patches(spec, question, count, tuple(references))
        for which, reference in references.items():
            self.compare_target(file, spec, ours[which], reference, which)

    def compare_target(self, file: str, spec: str, ours: np.ndarray, reference: np.ndarray, which: str) -> None:
        tolerance = self.entry(file)["tolerance"]
        allowed = tolerance["rtol"] * np.abs(reference) + tolerance["atol_rel_to_max"] * np.nanmax(
            np.abs(reference), axis=-1, keepdims=True, initial=0
        )

        assert ours.shape == reference.shape
        assert (np.isnan(ours) == np.isnan(reference)).all(), (
            f"{spec}: NaN where the reference has none, or the reverse"
        )
        worst = np.nanmax(np.abs(ours - reference) - allowed, initial=-np.inf)
        assert worst <= 0, f"{self.name} {file} {spec} {which}: beyond tolerance by {worst:.2g}"


@pytest.fixture(scope="module", params=["tiny_cls", "tiny_reg", "real"])
def golden(request, goldens) -> Golden:
    if request.param != "real":
        return Golden(goldens, request.param, goldens / "models" / f"{request.param}.safetensors")
    weights = request.getfixturevalue("assets") / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    return Golden(request.getfixturevalue("real_goldens"), request.param, weights)


def test_the_models_answer_as_recorded(golden):
    logits = Probe(golden.vit, golden.images).full_logits.numpy()

    assert np.abs(logits - golden.logits).max() < 1e-6


@pytest.mark.parametrize("mode", LIN)
def test_token_signals_agree_with_the_skipplus_repository(golden, mode):
    file = f"skipplus_1d_{mode}"
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    arrays = golden.arrays(file)
    chosen = TOKENS if golden.name != "real" else few(TOKENS, mode)

    for (name, spec), targets in zip(chosen.items(), golden.targets_compared, strict=False):
        golden.compare(file, spec.format(LIN[mode]), {which: arrays[f"{name}__{which}"] for which in targets})


def few(specs: dict[str, str], mode: str) -> dict[str, str]:
    """On the real model every spec is compared once, under the linearisations in turn."""
    place = list(LIN).index(mode)
    return {name: spec for i, (name, spec) in enumerate(specs.items()) if i % 3 == place % 3}


@pytest.mark.parametrize("mode", ["ng", "libra", "ng_prob"])
def test_mixing_signals_agree_with_the_skipplus_repository(golden, mode):
    file = f"skipplus_2d_{mode}"
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    arrays = golden.arrays(file)

    for (name, spec), targets in zip(MIXING.items(), golden.targets_compared, strict=False):
        stored = {which: arrays[f"{name}__{which}"] for which in targets if f"{name}__{which}" in arrays}
        references = {which: first_row(array, golden.prefix) for which, array in stored.items()}
        if references:
            golden.compare(file, spec.format(LIN[mode]), references)
    for name, spec in AGNOSTIC.items():
        if name in arrays:
            golden.compare(file, spec, {"top": first_row(arrays[name], golden.prefix)})


def first_row(reference: np.ndarray, prefix: int) -> np.ndarray:
    return reference if reference.ndim == 2 else reference[:, 0, prefix:]


def test_more_cams_agree_with_the_skipplus_repository(golden):
    arrays = golden.arrays("skipplus_1d_more_cams")

    for (name, spec), targets in zip(CAMS.items(), golden.targets_compared, strict=False):
        references = {which: arrays[f"{name}__{which}"] for which in targets}
        golden.compare("skipplus_1d_more_cams", spec, references)


@pytest.mark.parametrize("file", PLAIN)
def test_published_maps_are_reproduced(golden, file):
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    arrays = golden.arrays(file)

    in_turn = golden.targets_compared
    for _ in range(list(PLAIN).index(file) % 2):  # files of one map take turns
        next(in_turn)
    for (key, spec), compared in zip(PLAIN[file].items(), in_turn, strict=False):
        targets = compared if "{}" in key else ("top",)
        references = {which: arrays[key.format(which)] for which in targets if key.format(which) in arrays}
        if references:
            golden.compare(file, spec, references)


@pytest.mark.parametrize("file", MATRICES)
def test_published_matrices_are_reproduced(golden, file):
    if golden.entry(file) is None:
        pytest.skip(f"no {file} for {golden.name}")
    arrays = golden.arrays(file)

    for key, spec in MATRICES[file].items():
        if (golden.name, file) == ("real", "alti_skipplusrepo") and key != "rollout":
            continue  # L1 distances have no shortcut: the fold over all layers of the large model is enough
        golden.compare(file, spec, {"top": first_row(arrays[key], golden.prefix)})


def test_norm_based_attention_is_reproduced_layer_by_layer(golden):
    arrays = golden.arrays("attin_official")

    for key, part in ATTIN.items():
        rows = arrays[f"{key}_cls_row"] if golden.name == "real" else arrays[key][:, :, 0, golden.prefix :]
        for layer in range(0, rows.shape[1], 1 if golden.name != "real" else 4):
            spec = f"attin(row='cls', part='{part}')+at(layer={layer})"
            golden.compare("attin_official", spec, {"top": rows[:, layer]})


def test_the_readout_is_the_published_row_of_the_matrix(golden):
    if golden.entry("genatt_matrix") is None:
        pytest.skip(f"no matrix for {golden.name}")
    matrix = golden.arrays("genatt_matrix")["top"]
    readout = Probe(golden.vit, golden.images).head_output.readout.numpy()

    reference = np.einsum("bn,bnm->bm", readout, matrix)[:, golden.prefix :]
    golden.compare("genatt_matrix", "genatt", {"top": reference})


def test_decompx_agrees_token_by_token_prefix_and_biases_included(golden):
    layers = golden.arrays("decompx")["layers_top"]
    probe = Probe(golden.vit, golden.images[: len(layers)], golden.targets["top"][: len(layers)])
    found = vitreous.resolve("decompx")(probe)

    everything = torch.cat([found.prefix, found.patches, found.bias[:, None]], 1).numpy()
    scale = np.abs(layers[:, 0]).max()
    assert np.abs(everything - layers[:, 0]).max() < 1e-5 * scale
    assert found.residual.abs().max() < 1e-9 * scale


def test_a_sum_that_layernorm_makes_zero_is_zero_in_the_reference_too(golden):
    arrays = golden.arrays("skipplus_1d_ng")
    for name in NOISE:
        lengths = arrays["vanillagrad_norm2__top"]

        assert np.abs(arrays[f"{name}__top"]).max() < 1e-6 * np.abs(lengths).max()


def covered() -> Iterator[str]:
    yield from (f"skipplus_1d_{mode}" for mode in LIN)
    yield from (f"skipplus_2d_{mode}" for mode in LIN)
    yield from ("skipplus_1d_more_cams", *PLAIN, *MATRICES, *BY_HAND)


def test_no_reference_output_is_forgotten(goldens):
    known = set(covered())

    forgotten = {m for _, m in index(goldens) if m not in known and not m.startswith(ELSEWHERE)}
    assert not forgotten
