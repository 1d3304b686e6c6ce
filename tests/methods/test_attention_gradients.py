"""TAM, BT and LeGrad, compared with N × N matrices from hooks on raw timm models, and with their authors' code."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.methods.published import agree, agrees, arrays, explained, golden, targets  # noqa: F401 - a fixture
from tests.models.families import pictures, seen, tiny
from tests.reference.scene import Scene, look, read_out
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods.attention_gradients import mean_positive_gradient
from vitreous.methods.spec import resolve
from vitreous.models.vit import ViT
from vitreous.testing import Counter, check_method, tiny_vits

FAMILIES = ("vit-even", "vit-mean", "map-skips-prefix", "deit-distilled")
TARGETS = (1, 3)


def fast(spec: str, family: str, question: str = "logit") -> Tensor:
    return resolve(spec)(Probe(seen(family), pictures(), torch.tensor(TARGETS), question)).patches


def slowly(function, family: str, *args, question: str = "logit") -> Tensor:
    """One image after the other; [N] tokens of each, prefix dropped."""
    scenes = [(look(tiny(family), pictures()[i], TARGETS[i], question), pictures()[i]) for i in range(2)]
    return torch.stack([function(scene, picture, *args)[scene.P :] for scene, picture in scenes])


def same(found: Tensor, slow: Tensor) -> None:
    assert slow.abs().max() > 0
    torch.testing.assert_close(found, slow, rtol=0, atol=1e-9 * slow.abs().max().item())


# ── reference implementations ─────────────────────────────────────────────────────────────────────


def on_the_way(scene: Scene, picture: Tensor, steps: int) -> Tensor:
    """mean_h relu(mean_α G) of the last block, [N N]."""
    G = sum(look(scene.model, alpha * picture, scene.target).G[-1] for alpha in np.linspace(0, 1, steps)) / steps
    return G.relu().mean(0)


def slow_tam(scene: Scene, picture: Tensor, start: int, steps: int = 3, row: str = "readout") -> Tensor:
    R = scene.A[-1].mean(0)
    for layer in reversed(range(start, scene.L - 1)):
        R = R @ scene.A[layer].mean(0) + R
    return read(scene, on_the_way(scene, picture, steps) * R, row)


def read(scene: Scene, M: Tensor, row: str) -> Tensor:
    return M[0] if row == "cls" else scene.rho @ M


def slow_bt(scene: Scene, picture: Tensor, mixing, start: int, row: str = "readout", steps: int = 3) -> Tensor:
    P = torch.eye(scene.N, dtype=torch.float64)
    for layer in range(start - 1, scene.L):
        P = P + mixing(scene, layer) @ P
    return read(scene, on_the_way(scene, picture, steps) * P, row)


def heads_by_importance(scene: Scene, layer: int) -> Tensor:
    importance = torch.stack([(a.T @ g).abs().mean() for a, g in zip(scene.A[layer], scene.G[layer], strict=True)])
    return sum(i / importance.sum() * a for i, a in zip(importance, scene.A[layer], strict=True))


def tokens_by_length(scene: Scene, layer: int, scaled: bool = True) -> Tensor:
    attn, ls = scene.model.blocks[layer].attn, scene.model.blocks[layer].ls1
    width = attn.qkv.weight.shape[0] // 3
    with torch.no_grad():
        v = scene.U[layer] @ attn.qkv.weight[2 * width :].T + attn.qkv.bias[2 * width :]
        sent = v @ attn.proj.weight.T
        sent = sent if isinstance(ls, nn.Identity) or not scaled else sent * ls.gamma
    m = sent.norm(dim=1) / scene.X[layer].norm(dim=1)
    return scene.A[layer].mean(0) @ torch.diag(m)


def unscaled(scene: Scene, layer: int) -> Tensor:
    return tokens_by_length(scene, layer, scaled=False)


def slow_legrad(scene: Scene, picture: Tensor, pool: str = "head", start: int = 0) -> Tensor:
    """The network cut behind block l: its own head reads the output of the block."""
    total = torch.zeros(scene.N, dtype=torch.float64)
    for layer in range(start, scene.L):
        attention = scene.A[layer].clone().requires_grad_()
        x = through_block(scene.model.blocks[layer], scene.X[layer], scene.U[layer], attention)[None]
        model = scene.model
        logits = model.forward_head(model.norm(x)) if pool == "head" else of_mean(model, x)
        (G,) = torch.autograd.grad(logits[0, scene.target], attention)
        total += G.relu().mean((0, 1))
    return total


def through_block(block: nn.Module, x: Tensor, normed: Tensor, attention: Tensor) -> Tensor:
    width = block.attn.head_dim
    v = block.attn.qkv(normed)[:, 2 * x.shape[1] :].unflatten(-1, (-1, width))
    mixed = torch.cat([a @ v[:, h] for h, a in enumerate(attention)], dim=-1)
    y = x + block.ls1(block.attn.proj(mixed))
    return y + block.ls2(block.mlp(block.norm2(y)))


def of_mean(model: nn.Module, x: Tensor) -> Tensor:
    mean = model.fc_norm(model.norm(x.mean(1))) if hasattr(model, "fc_norm") else model.norm(x.mean(1))
    heads = [model.head] + ([model.head_dist] if hasattr(model, "head_dist") else [])
    return sum(head(mean) for head in heads) / len(heads)


# ── agreement ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [0, 1])
def test_tam_is_its_matrices(family, start):
    same(fast(f"tam(start={start}, steps=3)", family), slowly(slow_tam, family, start))


def test_tam_can_be_read_at_the_class_token():
    same(fast("tam(start=0, steps=3, row='cls')", "deit-distilled"), slowly(slow_tam, "deit-distilled", 0, 3, "cls"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [1, 2])
def test_bt_is_its_matrices(family, start):
    same(fast(f"bth(start={start}, steps=3)", family), slowly(slow_bt, family, heads_by_importance, start))
    same(fast(f"btt(start={start}, steps=3)", family), slowly(slow_bt, family, tokens_by_length, start))


def test_layerscale_is_included_by_default():
    without = fast("btt(start=1, steps=3, layerscale=False)", "vit-mean")

    same(without, slowly(slow_bt, "vit-mean", unscaled, 1))
    assert (without - fast("btt(start=1, steps=3)", "vit-mean")).abs().max() > 1e-3 * without.abs().max()


def test_bt_supports_other_score_functions():
    slow = slowly(slow_bt_of_probability, "vit-mean", question="probability")

    same(fast("bth(start=1, steps=3)", "vit-mean", "probability"), slow)


def slow_bt_of_probability(scene: Scene, picture: Tensor) -> Tensor:
    P = torch.eye(scene.N, dtype=torch.float64)
    for layer in range(scene.L):
        P = P + heads_by_importance(scene, layer) @ P
    G = sum(look(scene.model, a * picture, scene.target, "probability").G[-1] for a in (0.0, 0.5, 1.0)) / 3
    return scene.rho @ (G.relu().mean(0) * P)


@pytest.mark.parametrize("family", FAMILIES)
def test_legrad_cuts_the_network_behind_every_block(family):
    same(fast("legrad", family), slowly(slow_legrad, family))
    start = (seen(family).depth + 1) // 2
    same(fast("legrad+skipplus", family), slowly(slow_legrad, family, "head", start))


@pytest.mark.parametrize("family", ["vit-even", "vit-mean", "deit-distilled"])
def test_legrad_as_released_reads_the_mean_of_all_tokens_of_the_last_two_blocks(family):
    slow = slowly(slow_legrad, family, "mean", seen(family).depth - 2)

    same(fast("legrad(preset='released', minmax=False)", family), slow)
    low, high = slow.amin(1, keepdim=True), slow.amax(1, keepdim=True)
    same(fast("legrad(preset='released')", family), (slow - low) / (high - low))


def test_the_last_block_of_legrad_is_the_models_own_gradient():
    legrad = fast("legrad+last", "vit-even")
    scenes = [look(tiny("vit-even"), pictures()[i], TARGETS[i]) for i in range(2)]

    same(legrad, torch.stack([s.G[-1].relu().mean((0, 1))[s.P :] for s in scenes]))


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()  # test_contract.py has the methods by their names, and single precision


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "tam(preset='tis')",
        "btt(preset='tis')",
        "btt(layerscale=False)",
        "legrad@libra+skipplus",
        "legrad(preset='released')",
    ],
)
def test_variants_keep_the_promises_of_their_method(spec, vits):
    assert check_method(spec, vits)


@pytest.mark.parametrize(
    ("spec", "forwards", "blocks_back"),
    [("tam(steps=6)", 7, 6), ("bth(steps=6, start=1)", 7, 6 + 3), ("btt(steps=6)", 7, 6)],
)
def test_only_the_last_block_has_a_backward_pass_along_the_path(spec, forwards, blocks_back):
    counter, vit = Counter(), seen("vit")
    with counter.watching(vit) as watched:
        resolve(spec)(Probe(watched, pictures(), torch.tensor(TARGETS)))

    assert counter.forwards == 2 * vit.depth * forwards
    assert counter.backwards == 2 * blocks_back


def test_where_the_authors_begin():
    shallow = fast("tam(steps=3)", "vit-even")

    same(shallow, fast("tam(steps=3, start=3)", "vit-even"))  # block 4 does not exist: the last one
    same(fast("bth(steps=3)", "vit-even"), fast("bth(steps=3, start=4)", "vit-even"))
    same(fast("btt(steps=3)", "vit-even"), fast("btt(steps=3, start=4)", "vit-even"))
    assert resolve("tam(preset='tis')").options["start"] == 0
    assert resolve("bt-h(preset='tis')").options["start"] == resolve("bt-t(preset='tis')").options["start"] == 1


@pytest.mark.parametrize(
    ("spec", "family", "sentence"),
    [
        ("tam(start=9)", "vit", "layers 0 to 2"),
        ("bth(start=0)", "vit", "layers 1 to 3"),
        ("btt(steps=0)", "vit", "at least 1"),
        ("tam(row='first')", "vit", "'readout', 'cls'"),
        ("tam(row='cls')", "vit-no-class-token", "class token"),
        ("btt", "beit-3", "normalises the mixed heads"),
        ("legrad(pool='mean')", "siglip", "attention pooling"),
        ("legrad(pool='max')", "vit", "'head', 'mean'"),
        ("tam+plus", "vit", "no signal per layer"),
    ],
)
def test_invalid_arguments_are_refused_with_valid_alternatives(spec, family, sentence):
    with pytest.raises((SpecError, ModelError), match=sentence):
        fast(spec, family)


def test_the_read_out_of_a_scene_is_the_probes():
    for family in FAMILIES:
        scene = look(tiny(family), pictures()[0], 1)
        readout = Probe(seen(family), pictures()[:1]).head_output.readout[0]

        torch.testing.assert_close(read_out(scene.model, scene), readout, rtol=0, atol=1e-12)


# ── outputs of the authors' code ──────────────────────────────────────────────────────────────────


@cache
def path_gradient_of(
    model: ViT, images: bytes, shape: tuple[int, ...], targets: tuple[int, ...], question: str, steps: int
) -> Tensor:
    pixels = torch.frombuffer(bytearray(images), dtype=model.dtype).view(shape)
    return mean_positive_gradient(Probe(model, pixels, torch.tensor(targets), question), steps)


@pytest.fixture
def shared_path_gradients(monkeypatch):
    """The gradient along the path takes most of the time, and is the same for TAM and BT from any block: compute it once."""

    def compute(probe: Probe, steps: int) -> Tensor:
        images, targets = probe.images, tuple(probe.targets.flatten().tolist())
        pixels, shape = images.numpy().tobytes(), tuple(images.shape)
        return path_gradient_of(probe.vit, pixels, shape, targets, probe.question.name, steps)

    monkeypatch.setattr("vitreous.methods.attention_gradients.mean_positive_gradient", compute)


def test_a_shared_gradient_is_that_of_the_score_function(request):
    own = [fast("tam(steps=3)", "vit-mean", question) for question in ("logit", "probability")]
    request.getfixturevalue("shared_path_gradients")

    for expected, question in zip(own, ("logit", "probability"), strict=True):
        same(fast("tam(steps=3)", "vit-mean", question), expected)
    assert (own[0] - own[1]).abs().max() > 1e-3 * own[0].abs().max()


def test_the_authors_explain_the_logit():
    assert {resolve(name).question for name in ("tam", "bth", "btt")} == {"logit"}
    assert Probe(seen("vit-mean"), pictures()).question.name == "logit"  # of the published maps below


@pytest.mark.usefixtures("shared_path_gradients")
@pytest.mark.parametrize(
    ("file", "spec"),
    [
        ("tam_start0", "tam(preset='tis')"),
        ("tam_start1", "tam(start=1)"),
        ("tam_start4", "tam"),
        ("bt_h_start1", "bth(preset='tis')"),
        ("bt_h_start2", "bth(start=2)"),
        ("bt_h_start4", "bth"),
        ("bt_t_start1", "btt(preset='tis')"),
        ("bt_t_start3", "btt(start=3)"),
        ("bt_t_start7", "btt"),
    ],
)
def test_published_maps_are_reproduced(golden, file, spec):  # noqa: F811
    agrees(golden, file, spec)


@pytest.mark.parametrize(
    ("file", "spec"),
    [("bt_h_matrix_start1", "bth(start=1{})"), ("bt_t_matrix_start1", "btt(start=1, layerscale=False{})")],
)
def test_rows_of_the_published_matrices(golden, file, spec):  # noqa: F811
    stored, prefix = arrays(golden, file), golden.prefix
    for which in targets(golden):
        matrix = stored[which]
        first = explained(golden, spec.format(", row='cls'"), which, len(matrix)).patches
        agree(golden, file, first, matrix[:, 0, prefix:])
        readout = explained(golden, spec.format(""), which, len(matrix)).patches
        pooled = golden.vit.module.global_pool == "avg"  # the authors' `mae` form
        agree(golden, file, readout, matrix[:, prefix:, prefix:].mean(1) if pooled else matrix[:, 0, prefix:])
