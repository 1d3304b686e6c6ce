"""SmoothGrad and integrated gradients, compared with loops over raw timm models and with captum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.methods.published import agree, agrees, arrays, few, golden, probe_of, targets  # noqa: F401 - a fixture
from tests.models.families import pictures, seen, tiny
from vitreous.capture import path_gradients
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.core.progress import reporting
from vitreous.methods.map_arrays import patch_sums
from vitreous.methods.path_methods import mean_gradient
from vitreous.methods.random_control import generators
from vitreous.methods.spec import resolve
from vitreous.testing import Counter, check_method, tiny_vits

FAMILIES = ("vit-even", "vit-mean", "map-skips-prefix", "deit-distilled")
TARGETS = (1, 3)


def fast(spec: str, family: str):
    return resolve(spec)(Probe(seen(family), pictures(), torch.tensor(TARGETS)))


def same(found: Tensor, slow: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, slow, rtol=0, atol=tolerance * slow.abs().max().item())


# ── reference implementations ─────────────────────────────────────────────────────────────────────


def gradient(model: nn.Module, picture: Tensor, target: int) -> Tensor:
    picture = picture[None].clone().requires_grad_()
    model(picture)[0, target].backward()
    model.zero_grad()
    return picture.grad[0]


def from_block(model: nn.Module, start: int, tokens: Tensor) -> Tensor:
    """Logits of tokens [N d] that enter block `start`."""
    x = tokens[None]
    for block in model.blocks[start:]:
        x = block(x)
    return model.forward_head(model.norm(x))[0]


def entering(model: nn.Module, start: int, picture: Tensor) -> Tensor:
    x = model.norm_pre(model._pos_embed(model.patch_embed(picture[None])))
    for block in model.blocks[:start]:
        x = block(x)
    return x[0].detach()


def token_gradient(model: nn.Module, start: int, tokens: Tensor, target: int) -> Tensor:
    tokens = tokens.clone().requires_grad_()
    from_block(model, start, tokens)[target].backward()
    model.zero_grad()
    return tokens.grad


def slow_smoothgrad(model: nn.Module, picture: Tensor, target: int, samples: int, sigma: float) -> list[Tensor]:
    source = generators(picture[None], 0)[0]
    noise = [torch.randn(picture.shape, generator=source).double() * sigma for _ in range(samples)]
    return [gradient(model, picture + one, target) for one in noise]


def gauss(steps: int) -> list[tuple[float, float]]:
    return [((x + 1) / 2, w / 2) for x, w in zip(*np.polynomial.legendre.leggauss(steps), strict=True)]


def slow_ig(model: nn.Module, picture: Tensor, target: int, nodes: list[tuple[float, float]]) -> Tensor:
    return sum(w * picture * gradient(model, a * picture, target) for a, w in nodes).sum(0)


def slow_token_ig(model: nn.Module, picture: Tensor, target: int, start: int, steps: int) -> Tensor:
    x = entering(model, start, picture)
    return sum(w * x * token_gradient(model, start, a * x, target) for a, w in gauss(steps)).sum(-1)


# ── agreement ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_smoothgrad_is_a_loop_over_noisy_copies(family):
    slow = [slow_smoothgrad(tiny(family), pictures()[i], TARGETS[i], 5, 0.7) for i in range(2)]

    found = fast("smoothgrad(samples=5, sigma=0.7)", family)

    same(found.native_pixels, torch.stack([sum(g.abs() for g in one).sum(0) / 5 for one in slow]))
    assert not found.signed
    found = fast("smoothgrad(samples=5, sigma=0.7, abs=False)", family)
    same(found.native_pixels, torch.stack([sum(one).sum(0) / 5 for one in slow]))
    assert found.signed
    found = fast("smoothgrad(samples=5, sigma=0.7, channels='max')", family)
    same(found.native_pixels, torch.stack([(sum(g.abs() for g in one) / 5).max(0).values for one in slow]))


def test_the_original_smoothgrad_takes_its_noise_from_the_range_of_the_image():
    sigma = [0.15 * (p.max() - p.min()).item() for p in pictures()]
    slow = [sum(slow_smoothgrad(tiny("vit"), pictures()[i], TARGETS[i], 4, sigma[i])).sum(0) / 4 for i in range(2)]

    same(fast("smoothgrad(preset='original', samples=4)", "vit").native_pixels, torch.stack(slow))


def test_noise_depends_on_the_image_and_the_seed():
    alone = resolve("smoothgrad(samples=3)")(Probe(seen("vit"), pictures()[1:], torch.tensor([3])))

    same(alone.native_pixels[0], fast("smoothgrad(samples=3)", "vit").native_pixels[1])
    other = fast("smoothgrad(samples=3, seed=1)", "vit").native_pixels
    assert (other - fast("smoothgrad(samples=3)", "vit").native_pixels).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_integrated_gradients_equal_a_loop_over_the_path(family):
    model = tiny(family)
    slow = torch.stack([slow_ig(model, pictures()[i], TARGETS[i], gauss(7)) for i in range(2)])

    found = fast("ig(steps=7)", family)

    same(found.native_pixels, slow)
    with torch.no_grad():
        base = model(torch.zeros(1, 3, 24, 32, dtype=torch.float64))[0, list(TARGETS)]
        score = model(pictures())[[0, 1], list(TARGETS)]
    same(found.bias, base)
    same(found.residual, score - base - slow.sum((1, 2)))


def test_captums_trapezoid_does_not_add_up_to_one():
    nodes = [(i / 5, (1 / 12 if i in (0, 5) else 1 / 6)) for i in range(6)]
    slow = torch.stack([slow_ig(tiny("vit"), pictures()[i], TARGETS[i], nodes) for i in range(2)])

    same(fast("ig(steps=6, rule='trapezoid')", "vit").native_pixels, slow)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_path_of_token_integrated_gradients_starts_at_zero(family):
    prefix = seen(family).layout((24, 32)).prefix
    for start in (0, 2):
        slow = torch.stack([slow_token_ig(tiny(family), pictures()[i], TARGETS[i], start, 5) for i in range(2)])

        found = fast(f"ig(space='tokens', steps=5, start={start})", family)

        same(torch.cat([found.prefix, found.patches], 1), slow)
        base = from_block(tiny(family), start, torch.zeros(12 + prefix, 24, dtype=torch.float64))[list(TARGETS)]
        same(found.residual, found.score - base.detach() - slow.sum(1))


@pytest.mark.parametrize("family", ["vit-even", "vit-mean"])
def test_under_a_fold_every_layer_has_its_own_path(family):
    model, depth = tiny(family), seen(family).depth
    slow = [
        torch.stack([slow_token_ig(model, pictures()[i], TARGETS[i], s, 4) for i in range(2)]) for s in range(depth)
    ]
    specs = {"plus": sum(slow), "skipplus": sum(slow[(depth + 1) // 2 :]), "first": slow[0], "at(layer=1)": slow[1]}

    for fold, expected in specs.items():
        found = fast(f"ig(steps=4)+{fold}", family)

        same(torch.cat([found.prefix, found.patches], 1), expected)


def test_the_residual_shrinks_with_the_number_of_steps():
    missing = [fast(f"ig(steps={steps})", "vit").residual.abs().max().item() for steps in (2, 8, 128)]

    assert missing[0] > missing[1] > missing[2]
    assert missing[2] < 1e-6


# ── properties ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def vits():
    return tiny_vits()  # test_contract.py has the methods by their names, and single precision


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "smoothgrad(preset='original')",
        "ig(space='tokens', start=1)",
        "ig+skipplus",
    ],
)
def test_variants_keep_the_promises_of_their_method(spec, vits):
    assert check_method(spec, vits)


@pytest.mark.parametrize("spec", ["smoothgrad(samples=5)", "ig(steps=5)", "ig(steps=5)+plus", "tam(steps=5)"])
@pytest.mark.parametrize("few", [1, 3])
def test_how_many_run_at_once_does_not_matter(spec, few, monkeypatch):
    together = fast(spec, "vit-mean").patches
    monkeypatch.setattr(path_gradients, "AT_ONCE", few)

    same(fast(spec, "vit-mean").patches, together, 1e-12)


def test_no_more_images_than_stated_are_in_memory(monkeypatch):
    seen_at_once = []
    real = Probe.pixel_gradient
    monkeypatch.setattr(
        Probe, "pixel_gradient", lambda part, *lin: seen_at_once.append(len(part.images)) or real(part, *lin)
    )

    fast("smoothgrad(samples=40)", "vit")

    assert max(seen_at_once) <= path_gradients.AT_ONCE
    assert sum(seen_at_once) == 80


@pytest.mark.parametrize(("spec", "forwards", "backwards"), [("smoothgrad(samples=9)", 10, 9), ("ig(steps=9)", 11, 9)])
def test_passes_are_counted_as_stated(spec, forwards, backwards):
    counter, vit = Counter(), seen("vit")
    with counter.watching(vit) as watched:
        resolve(spec)(Probe(watched, pictures(), torch.tensor(TARGETS)))

    assert (counter.forwards, counter.backwards) == (2 * vit.depth * forwards, 2 * vit.depth * backwards)


def test_long_paths_report_progress():
    told = []
    with reporting(lambda done, total: told.append((done, total))):
        fast("ig(steps=40)", "vit")

    assert told[-1] == (80, 80)
    assert len(told) > 1


def test_any_classifier_can_be_differentiated():
    model = tiny("vit-even")
    black = vitreous.wrap(model, black_box=True)
    for spec in ("smoothgrad(samples=3)", "ig(steps=3)"):
        opaque = vitreous.explain(black, pictures(), torch.tensor([[1, 2], [3, 0]]), spec)
        plain = vitreous.explain(model, pictures(), torch.tensor([[1, 2], [3, 0]]), spec)

        assert opaque.patches is None
        same(opaque.native_pixels, plain.native_pixels)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("ig(rule='simpson')", "'gausslegendre', 'trapezoid'"),
        ("ig(space='layers')", "'pixels', 'tokens'"),
        ("ig(steps=0)", "at least 1"),
        ("ig(space='tokens', start=9)", "layers 0 to 2"),
        ("smoothgrad(samples=0)", "at least 1"),
        ("smoothgrad(channels='mean')", "'sum', 'max'"),
        ("ig(space='tokens')+plus", "no option 'space'"),
        ("smoothgrad(abs=False)+plus", "abs"),
    ],
)
def test_invalid_arguments_are_refused_with_valid_alternatives(spec, sentence):
    with pytest.raises((SpecError, ModelError), match=sentence):
        fast(spec, "vit")


def test_other_names():
    assert resolve("integrated-gradients").spec == "ig"
    assert resolve("ig+plus").spec == "ig+plus"


# ── outputs of captum ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("file", "spec"),
    [
        ("integrated_gradients_50gl", "ig(preset='captum')"),
        ("integrated_gradients_20trapezoid", "ig(preset='captum', steps=20, rule='trapezoid')"),
    ],
)
def test_integrated_gradients_agree_with_captum(golden, file, spec):  # noqa: F811
    if golden.name == "real" and "trapezoid" not in file:
        pytest.skip("rules of integration are compared on the small models; the real one is, with fewer steps")
    agrees(golden, file, spec)


NOISE = 1e-5  # normal noise is drawn in float32, and kernels of different CPUs round it differently


def test_smoothgrad_agrees_with_captum(golden):  # noqa: F811
    stored, samples = arrays(golden, "smoothgrad_abs"), golden.entry("smoothgrad_abs")["settings"]["nt_samples"]
    count = len(few(golden, stored["top_patchsum"]))
    noise = []
    for image in range(count):
        torch.manual_seed(100 + image)
        noise.append(torch.normal(0, 0.5 * torch.ones(samples, 3, *golden.vit.size)))
    noise = torch.stack(noise)
    if "noise" in stored:
        np.testing.assert_allclose(noise[:1].numpy(), stored["noise"], rtol=0, atol=1e-5)  # kernels round differently

    for which in targets(golden):
        probe = probe_of(golden, which, count)
        pixels = mean_gradient(probe, probe.images, [noise.double()], samples, True).sum(1)

        patches = patch_sums(pixels, golden.vit.layout(golden.vit.size))
        agree(golden, "smoothgrad_abs", patches, few(golden, stored[f"{which}_patchsum"]), slack=NOISE)
        if which in stored:
            agree(golden, "smoothgrad_abs", pixels, stored[which], slack=NOISE)


def test_smoothgrad_under_plus_adds_noise_to_the_tokens_of_every_layer():
    vit = next(iter(tiny_vits().values()))
    images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(3), dtype=vit.dtype)
    found = vitreous.explain(vit, images, target=[1, 2], method="smoothgrad(samples=3, sigma=0.5, seed=4)+plus")

    probe, total = Probe(vit, images, torch.tensor([1, 2])), 0
    for layer in range(vit.depth):
        tokens = probe.states[layer]
        for row, source in enumerate(generators(images, 4)):
            for _ in range(3):
                noise = torch.zeros_like(tokens)
                noise[row] = 0.5 * torch.randn(tokens.shape[1:], generator=source)
                size = path_gradients.gradients_at(probe, (tokens + noise)[:, None], layer)[:, 0].abs().sum(-1)
                own = torch.zeros_like(size)
                own[row] = size[row]
                total = total + own / 3
    torch.testing.assert_close(found.patches, total[:, probe.layout.prefix :])
    assert not found.signed


def test_scorecam_under_plus_is_the_sum_of_every_layers_own():
    vit = next(iter(tiny_vits().values()))
    images = torch.randn(2, 3, *vit.size, generator=torch.Generator().manual_seed(3), dtype=vit.dtype)
    every = [vitreous.explain(vit, images, 2, "scorecam", layer=layer).patches for layer in range(vit.depth)]

    torch.testing.assert_close(vitreous.explain(vit, images, 2, "scorecam+plus").patches, sum(every))
    torch.testing.assert_close(vitreous.explain(vit, images, 2, "scorecam+skipplus").patches, sum(every[2:]))
    free = vitreous.explain(vit, images, 2, "scorecam(relu=False)")
    assert free.signed
    assert (free.patches < 0).any()
