"""DecompX with distributed biases, compared with D[i, j] propagated forward token by token."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from timm.layers import GluMlp
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn

from tests.models.families import build, pictures, seen
from tests.reference.scene import QUESTIONS, TARGETS, Scene, scene_of
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods import decompose
from vitreous.methods.spec import resolve
from vitreous.models.timm import from_timm
from vitreous.testing import check_method, tiny_vits

FAMILIES = ("vit-even", "vit-mean", "deit-distilled", "vit-no-biases", "vit-rmsnorm-class-token", "clip")
BIASES = ("cls", "equal", "absdot", "abssim", "norm")


def fast(spec: str, family: str, question: str = "logit") -> Tensor:
    found = resolve(spec)(Probe(seen(family), pictures(), torch.tensor(TARGETS), question))
    return torch.cat([found.prefix, found.patches], 1)


def same(found: Tensor, slow: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, slow, rtol=0, atol=tolerance * slow.abs().max().item())


# ── reference implementation ──────────────────────────────────────────────────────────────────────


class Slow:
    """D[i][j]: the part of vector i that came from token j, as published, biases by one of the published weights."""

    def __init__(self, scene: Scene, kind: str, activation: str) -> None:
        self.scene, self.kind, self.activation = scene, kind, activation

    def give(self, D: Tensor, bias: Tensor | None) -> Tensor:
        """Add a bias [k], or one for every token [n k], to D [n N k]."""
        if bias is None:
            return D
        out = D.clone()
        for i in range(len(D)):
            b = bias if bias.ndim == 1 else bias[i]
            w, lengths = torch.zeros(D.shape[1], dtype=torch.float64), D[i].norm(dim=-1)
            match self.kind:
                case "cls":
                    w[0] = 1
                case "equal":
                    w[lengths != 0] = 1
                case "norm":
                    w = lengths
                case "absdot":
                    w = (D[i] @ b).abs()
                case "abssim":
                    some = lengths > 0
                    w[some] = (D[i, some] @ b).abs() / (lengths[some] * b.norm())
            if w.sum() > 0:
                out[i] = D[i] + (w / w.sum())[:, None] * b
        return out

    def norm(self, norm: nn.Module, x: Tensor, D: Tensor) -> Tensor:
        if isinstance(norm, nn.Identity):
            return D
        if isinstance(norm, nn.LayerNorm):
            sigma = (x.var(-1, unbiased=False) + norm.eps).sqrt()
            return self.give((D - D.mean(-1, keepdim=True)) / sigma[:, None, None] * norm.weight, norm.bias)
        return D / (x.pow(2).mean(-1) + norm.eps).sqrt()[:, None, None] * norm.weight

    def mlp(self, mlp: nn.Module, scale, y: Tensor, D: Tensor) -> Tensor:
        if isinstance(mlp, GluMlp):
            gate, _ = mlp.fc1(y).chunk(2, -1)
            W, b = mlp.fc1.weight.chunk(2)[1], mlp.fc1.bias.chunk(2)[1]
            D = self.give(D @ W.T, b) * mlp.act(gate)[:, None]
        else:
            z = mlp.fc1(y)
            D = self.give(D @ mlp.fc1.weight.T, mlp.fc1.bias)
            if self.activation == "ratio":
                D = D * (mlp.act(z) / z)[:, None]
            else:
                with torch.enable_grad():
                    free = z.clone().requires_grad_()
                    (slope,) = torch.autograd.grad(mlp.act(free).sum(), free)
                D = self.give(D * slope[:, None], mlp.act(z) - slope * z)
        return self.give(D @ mlp.fc2.weight.T * scale, None if mlp.fc2.bias is None else mlp.fc2.bias * scale)

    @torch.no_grad()
    def shares(self, start: int, question: str) -> Tensor:
        scene, model = self.scene, self.scene.model
        D = torch.zeros(scene.N, scene.N, model.embed_dim, dtype=torch.float64)
        for i in range(scene.N):
            D[i, i] = scene.X[start][i]
        for layer in range(start, scene.L):
            block = model.blocks[layer]
            attn, s1, s2 = block.attn, gamma(block.ls1), gamma(block.ls2)
            W_v = attn.qkv.weight.chunk(3)[2]
            values = (self.norm(block.norm1, scene.X[layer], D) @ W_v.T).unflatten(-1, (attn.num_heads, -1))
            mixed = torch.einsum("hik,kjhe->ijhe", scene.A[layer], values).flatten(2)
            D = D + mixed @ attn.proj.weight.T * s1
            merged = 0 if attn.proj.bias is None else attn.proj.bias
            if attn.qkv.bias is not None:
                merged = merged + attn.proj.weight @ attn.qkv.bias.chunk(3)[2]
            D = self.give(D, merged * s1 if isinstance(merged, Tensor) else None)
            normed = block.norm2(scene.Y[layer])
            D = D + self.mlp(block.mlp, s2, normed, self.norm(block.norm2, scene.Y[layer], D))
        return self.read(self.norm(model.norm, scene.X[-1], D), question)

    def read(self, D: Tensor, question: str) -> Tensor:
        scene, model = self.scene, self.scene.model
        if isinstance(model, VisionTransformerDistilled):
            W = torch.cat([model.head.weight, model.head_dist.weight], 1) / 2
            b, read = (model.head.bias + model.head_dist.bias) / 2, torch.cat([D[0], D[1]], -1)
        else:
            pooled = torch.einsum("n,njd->jd", scene.rho, D)[None]
            truth = (scene.rho @ model.norm(scene.X[-1]))[None]
            W, b, read = model.head.weight, model.head.bias, self.norm(model.fc_norm, truth, pooled)[0]
        logits = self.give((read @ W.T)[None], b)[0]  # [N c]
        with torch.enable_grad():
            z = scene.logits.clone().requires_grad_()
            (wanted,) = torch.autograd.grad(QUESTIONS[question](z, scene.target), z)
        return logits @ wanted


def gamma(ls: nn.Module) -> Tensor | float:
    return 1.0 if isinstance(ls, nn.Identity) else ls.gamma


def slowly(family: str, kind: str, activation: str = "ratio", start: int = 0, question: str = "logit") -> Tensor:
    scenes = [scene_of(family, i) for i in range(2)]
    return torch.stack([Slow(scene, kind, activation).shares(start, question) for scene in scenes])


# ── agreement ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bias", BIASES)
def test_biases_are_distributed_as_published(family, bias):
    same(fast(f"decompx(bias='{bias}')", family), slowly(family, bias))


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("family", ["vit-even", "vit-mean"])
def test_the_intercept_of_a_tangent_is_distributed(family, bias):
    same(fast(f"decompx(bias='{bias}', activation='tangent')", family), slowly(family, bias, "tangent"))


@pytest.mark.parametrize("bias", BIASES)
def test_a_gate_is_held_fixed(bias):
    same(fast(f"decompx(bias='{bias}')", "vit-swiglu"), slowly("vit-swiglu", bias))


@pytest.mark.parametrize("bias", ["equal", "absdot"])
def test_every_start_layer_distributes_the_biases_of_later_layers(bias):
    starts = [slowly("vit-mean", bias, start=start) for start in range(3)]

    same(fast(f"decompx(bias='{bias}')+at(layer=1)", "vit-mean"), starts[1])
    same(fast(f"decompx(bias='{bias}')+plus", "vit-mean"), sum(starts))
    same(fast(f"decompx(bias='{bias}')+skipplus", "vit-mean"), starts[2])


@pytest.mark.parametrize("bias", ["cls", "equal", "norm"])
@pytest.mark.parametrize("question", ["probability", "margin"])
def test_other_score_functions_are_linearised(bias, question):
    slow = slowly("vit-even", bias, question=question)

    same(fast(f"decompx(bias='{bias}')", "vit-even", question), slow)


def test_a_tangent_without_biases_is_conservative_lrp():
    same(fast("decompx(activation='tangent')", "vit-even"), fast("conservativelrp", "vit-even"), 1e-14)


@pytest.mark.parametrize("family", ["vit-even", "vit-mean", "deit-distilled"])
@pytest.mark.parametrize("activation", ["ratio", "tangent"])
@pytest.mark.parametrize("bias", BIASES)
def test_shares_add_up_to_the_logit(family, activation, bias):
    vit = seen(family)
    probe = Probe(vit, pictures(), torch.tensor([[1, 2], [3, 0]]))
    found = resolve(f"decompx(bias='{bias}', activation='{activation}')")(probe)

    torch.testing.assert_close(found.patches.sum(1) + found.prefix.sum(1), found.score, rtol=0, atol=1e-12)
    assert found.bias is None


def test_without_options_the_map_is_unchanged():
    found = resolve("decompx")(Probe(seen("vit-even"), pictures(), torch.tensor(TARGETS)))

    assert found.residual.abs().max() < 1e-12
    assert found.bias is not None
    same(torch.cat([found.prefix, found.patches], 1), fast("ixg@decompx", "vit-even"), 1e-14)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_without_epsilon_uses_that_of_the_dtype(bias, dtype):
    """As `torch.nn.RMSNorm` does; the tokens are so small that it matters."""
    maps, eps = [], torch.finfo(dtype).eps
    for norm in (nn.RMSNorm, partial(nn.RMSNorm, eps=eps), partial(nn.RMSNorm, eps=100 * eps)):
        model = build("vit-torch-rmsnorm", norm_layer=norm).to(dtype)
        with torch.no_grad():
            for part in (model.pos_embed, model.cls_token, *model.patch_embed.parameters()):
                part.mul_(eps**0.5)
            for block in model.blocks:
                for part in (*block.attn.proj.parameters(), *block.mlp.fc2.parameters()):
                    part.mul_(eps**0.5)
        probe = Probe(from_timm(model, "small tokens"), pictures().to(dtype), torch.tensor(TARGETS))
        maps.append(resolve(f"decompx(bias='{bias}')")(probe).patches)

    assert maps[0].isfinite().all()
    torch.testing.assert_close(maps[0], maps[1], rtol=0, atol=0)
    assert (maps[0] - maps[2]).abs().max() > 0.1 * maps[0].abs().max()


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bias", ["absdot", "norm", "abssim"])
@pytest.mark.parametrize("activation", ["ratio", "tangent"])
def test_how_many_sources_run_at_once_does_not_matter(bias, activation, monkeypatch):
    spec = f"decompx(bias='{bias}', activation='{activation}')"
    together = fast(spec, "vit-mean")
    monkeypatch.setattr(decompose, "BUDGET", 15 * 96 * 8 * 4)  # four of the fifteen sources

    same(fast(spec, "vit-mean"), together, 1e-12)


def test_hidden_units_stay_within_the_budget(monkeypatch):
    monkeypatch.setattr(decompose, "BUDGET", 1)

    assert [len(part) for part in decompose.split_sources(torch.zeros(5, 5, 8), 32)] == [1] * 5


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()  # test_contract.py has the methods by their names, and single precision


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "decompx(bias='cls')",
        "decompx(bias='equal')+skipplus",
        "decompx(bias='equal', activation='tangent')",
    ],
)
def test_variants_keep_the_promises_of_their_method(spec, vits):
    assert check_method(spec, vits)


@pytest.mark.slow
def test_contract_tests_for_forward_decompositions(vits):
    carried = resolve("decompx(bias='absdot')+last")

    facts = replace(carried.facts, forwards="a forward for every source")
    assert check_method(replace(carried, facts=facts), vits)


@pytest.mark.parametrize(
    ("spec", "family", "sentence"),
    [
        ("decompx(bias='dot')", "vit", "'absdot', 'norm', 'abssim'"),
        ("decompx(activation='relu')", "vit", "'ratio', 'tangent'"),
        ("decompx(bias='cls')", "vit-no-class-token", "bias='equal'"),
        ("decompx(bias='absdot')", "siglip", "attention pooling"),
        ("decompx(bias='norm')", "beit-3", "norm inside"),
        ("decompx(bias='cls', space='pixels')", "vit", "does not compose"),
        ("decompx(activation='tangent', space='pixels')", "vit", "does not compose"),
        ("decompx@libra", "vit", "ixg@libra"),
    ],
)
def test_invalid_arguments_are_refused_with_valid_alternatives(spec, family, sentence):
    with pytest.raises((SpecError, ModelError), match=sentence):
        fast(spec, family)
