"""Perturbation methods, compared with reference implementations on raw timm models and with published outputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous
from tests.methods.test_goldens import Golden
from tests.models.families import build, pictures, tiny
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, SpecError
from vitreous.methods import masks, regions, surrogate
from vitreous.methods.activation_masks import channel_maps, merge_similar_channels, vitcx_of
from vitreous.methods.masks import SmoothMasks
from vitreous.methods.method import METHODS
from vitreous.methods.sampling import rise_of_masks
from vitreous.methods.spec import resolve
from vitreous.testing import Counter, tiny_vits

FAMILIES = ("vit-even", "vit-mean")  # class token; mean pool, registers and LayerScale
TARGETS = (1, 3)
QUESTION = {"logit": lambda z, c: z[c], "probability": lambda z, c: z.softmax(-1)[c]}


# ── reference implementations ─────────────────────────────────────────────────────────────────────


@torch.no_grad()
def said(model: nn.Module, picture: Tensor, target: int, question: str) -> float:
    return QUESTION[question](model(picture[None])[0], target).item()


@torch.no_grad()
def said_with(model: nn.Module, picture: Tensor, kept: list[int], target: int, question: str) -> float:
    """Output of timm's own modules with only these patches."""
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(picture[None])))
    prefix = model.num_prefix_tokens
    tokens = tokens[:, [*range(prefix), *(prefix + i for i in kept)]]
    for block in model.blocks:
        tokens = block(tokens)
    if not kept and model.global_pool == "avg":
        logits = model.head(model.fc_norm(torch.zeros(1, tokens.shape[-1], dtype=torch.float64)))
    else:
        logits = model.forward_head(model.norm(tokens))
    return QUESTION[question](logits[0], target).item()


def fast(spec: str, family: str = "vit-even", model: nn.Module | None = None, images: Tensor | None = None) -> Tensor:
    method = resolve(spec)
    images = pictures() if images is None else images
    found = vitreous.explain(model or tiny(family), images, torch.tensor(TARGETS)[: len(images)], method)
    return found.patches if found.native_pixels is None else found.native_pixels


def exact(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def same(found: Tensor, slow: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(found, slow, rtol=0, atol=tolerance * slow.abs().max().item())


def each(slowly, family: str) -> Tensor:
    """Reference implementation, image by image."""
    return torch.stack([slowly(tiny(family), pictures()[i], TARGETS[i]) for i in range(2)])


# ── occlusion ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_occlusion_removes_one_patch_at_a_time(family):
    def slowly(model, picture, target):
        whole = said(model, picture, target, "logit")
        others = [[j for j in range(12) if j != i] for i in range(12)]
        return exact([whole - said_with(model, picture, o, target, "logit") for o in others])

    same(fast("occlusion", family), each(slowly, family))


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (8, 4), (7, 5)])
def test_occlusion_in_pixels_averages_windows_that_overlap(window, stride):
    def slowly(model, picture, target):
        total, count = torch.zeros(24, 32).double(), torch.zeros(24, 32).double()
        whole = said(model, picture, target, "logit")
        for i in range(math.ceil((24 - window) / stride) + 1):
            for j in range(math.ceil((32 - window) / stride) + 1):
                place = (slice(i * stride, i * stride + window), slice(j * stride, j * stride + window))
                hidden = picture.clone()
                hidden[:, place[0], place[1]] = 0.25
                total[place] += whole - said(model, hidden, target, "logit")
                count[place] += 1
        return total / count

    spec = f"occlusion(space='pixels', window={window}, stride={stride}, baseline=0.25)"
    same(fast(spec), each(slowly, "vit-even"))


# ── RISE ─────────────────────────────────────────────────────────────────────────────────────────


def slow_mask(cells: np.ndarray, shift: list[int], size: tuple[int, int]) -> np.ndarray:
    """Pixel by pixel: bilinear between cells that numpy's 'reflect' has continued."""
    s, large = len(cells), np.pad(cells, 2, mode="reflect")
    step = [math.ceil(length / s) for length in size]
    mask = np.zeros(size)
    for y, x in itertools.product(range(size[0]), range(size[1])):
        v = [(p + o + 0.5) * s / ((s + 1) * c) - 0.5 for p, o, c in zip((y, x), shift, step, strict=True)]
        (i, a), (j, b) = ((math.floor(t), t - math.floor(t)) for t in v)
        for di, dj in itertools.product((0, 1), (0, 1)):
            mask[y, x] += (a if di else 1 - a) * (b if dj else 1 - b) * large[i + di + 2, j + dj + 2]
    return mask


def test_rise_is_a_loop_over_masks():
    drawn = SmoothMasks.draw(9, 3, 0.4, pictures(), seed=5)

    def slowly(model, picture, target):
        total = torch.zeros(24, 32).double()
        for cells, shift in zip(drawn.cells.numpy(), drawn.shift.tolist(), strict=True):
            mask = torch.from_numpy(slow_mask(cells, shift, (24, 32)))
            total += said(model, picture * mask, target, "probability") * mask
        return total / (9 * 0.4)

    same(fast("rise(masks=9, cells=3, p=0.4, seed=5)"), each(slowly, "vit-even"))


def test_rise_draws_cells_with_the_given_probability_and_every_offset():
    drawn = SmoothMasks.draw(4000, 4, 0.2, torch.zeros(1, 3, 32, 32), seed=0)

    assert drawn.cells.mean().item() == pytest.approx(0.2, abs=0.01)
    assert drawn.shift.unique().tolist() == list(range(8))


def test_presets_of_rise_set_its_score_function_and_a_logit_may_be_negative():
    assert resolve("rise").question == "probability"
    assert not resolve("rise").signed
    preset = resolve("rise(preset='tis')")
    assert (preset.question, preset.signed, preset.spec) == ("logit", True, "rise(preset='tis')")
    assert resolve(preset.spec).question == "logit"
    assert resolve("rise(preset='tis', question='probability')").question == "probability"


# ── PAMI ─────────────────────────────────────────────────────────────────────────────────────────


def slow_blur(picture: Tensor) -> Tensor:
    weight = np.exp(-((np.arange(49) - 24.0) ** 2) / (2 * 100.0**2))
    weight /= weight.sum()
    large = picture.numpy()
    for axis in (1, 2):
        wide = np.pad(large, [(24, 24) if a == axis else (0, 0) for a in range(3)], mode="reflect")
        large = sum(w * np.take(wide, range(k, k + large.shape[axis]), axis) for k, w in enumerate(weight))
    return torch.from_numpy(large)


@pytest.mark.parametrize(("fill", "shifts"), [("black", ()), ("blur", (3,))])
def test_pami_shows_one_region_at_a_time(fill, shifts):
    def slowly(model, picture, target):
        total, count = torch.zeros(24, 32).double(), torch.zeros(24, 32).double()
        moves = [(0, 0), *((d * y, d * x) for d in shifts for y, x in ((1, 0), (0, 1), (-1, 0), (0, -1)))]
        for move in moves:
            moved = torch.roll(picture, move, (1, 2))
            rest = slow_blur(moved) if fill == "blur" else torch.zeros_like(moved)
            for cy, cx in itertools.product(range(0, 24, 9), range(0, 32, 9)):
                disc = torch.tensor([[(y - cy) ** 2 + (x - cx) ** 2 <= 100 for x in range(32)] for y in range(24)])
                answer = said(model, torch.where(disc, moved, rest), target, "probability")
                back = torch.roll(disc.double(), (-move[0], -move[1]), (0, 1))
                total, count = total + answer * back, count + back
        return total / count

    spec = f"pami(regions='circles', radius=10, stride=9, fill='{fill}', shifts={shifts})"
    same(fast(spec), each(slowly, "vit-even"))


def test_superpixels_divide_the_image_and_follow_its_edges():
    halves = torch.zeros(3, 24, 32)
    halves[:, :, 13:] = 1

    found = regions.slic(halves, 12)

    assert found.unique().tolist() == list(range(int(found.max()) + 1))
    assert not set(found[:, :13].unique().tolist()) & set(found[:, 13:].unique().tolist())


def test_every_pixel_is_in_one_region_of_every_scale():
    found = regions.many_regions(pictures()[0], ("slic",), 0, 0)

    assert (found.sum(0) == 8).all()


@pytest.mark.parametrize("kind", ["felzenszwalb", "quickshift", "watershed"])
def test_regions_of_scikit_image_need_the_package(kind):
    try:
        import skimage  # noqa: F401
    except ImportError:
        with pytest.raises(SpecError, match=rf"regions='{kind}' needs scikit-image; install vitreous\[regions\]"):
            regions.segment(kind, pictures()[0])
        return
    found = regions.segment(kind, pictures()[0])
    assert found.unique().tolist() == list(range(int(found.max()) + 1))


# ── HSIC ─────────────────────────────────────────────────────────────────────────────────────────


def slow_hsic(on: Tensor, y: Tensor) -> Tensor:
    """tr(K H L H) / m with explicit kernel matrices."""
    m = len(on)
    centring = torch.eye(m).double() - 1 / m
    outside = torch.exp(-((y[:, None] - y[None]) ** 2) / (2 * y.median() ** 2))
    kernels = [1 + 0.5 - (on[:, j, None] - on[None, :, j]) ** 2 for j in range(on.shape[1])]
    return torch.stack([torch.trace(k @ centring @ outside @ centring) / m for k in kernels])


def test_hsic_is_its_trace_in_closed_form():
    from vitreous.methods.sampling import draw_balanced_masks

    on = draw_balanced_masks(20, 12, 3).double()

    def slowly(model, picture, target):
        kept = [row.nonzero()[:, 0].tolist() for row in on]
        return slow_hsic(on, exact([said_with(model, picture, k, target, "logit") for k in kept]))

    same(fast("hsic(space='tokens', masks=20, seed=3)", "vit-mean"), each(slowly, "vit-mean"))


def test_hsic_finds_the_one_cell_that_matters():
    from vitreous.methods.sampling import draw_balanced_masks, measure_dependence

    on = draw_balanced_masks(64, 16, 0).double()
    answers = (2 + on[:, 5])[None]

    found = measure_dependence(on, answers)

    assert found.argmax().item() == 5
    assert (found >= 0).all()
    assert found[0, 5] > 5 * found[0, torch.arange(16) != 5].max()


# ── LIME ─────────────────────────────────────────────────────────────────────────────────────────


def test_lime_is_a_weighted_ridge_regression():
    from vitreous.methods.random_control import generators

    def slowly(model, picture, target):
        on = torch.rand(40, 12, generator=generators(picture[None], 2)[0]) < 0.5
        on[0] = True
        y = exact([said_with(model, picture, z.nonzero()[:, 0].tolist(), target, "probability") for z in on])
        z = on.double()
        cosine = exact([(row.sum() / (row.norm() * 12**0.5)).item() if row.any() else 0.0 for row in z])
        weight = torch.exp(-((1 - cosine) ** 2) / 0.25**2).sqrt()
        # the penalty as twelve more rows; the intercept as a column that it spares
        design = torch.cat([torch.cat([torch.ones(40, 1), z], 1) * weight.sqrt()[:, None], torch.eye(13).double()[1:]])
        aim = torch.cat([y * weight.sqrt(), torch.zeros(12).double()])
        return torch.linalg.lstsq(design, aim[:, None], driver="gelsd").solution[1:, 0]

    same(fast("lime(samples=40, seed=2)", "vit-mean"), each(slowly, "vit-mean"), 1e-8)


def test_no_step_makes_the_lasso_better():
    draw = torch.Generator().manual_seed(0)
    on = (torch.rand(60, 8, generator=draw) < 0.5).double()
    weight = torch.rand(60, generator=draw).double()
    y = torch.stack([on @ torch.linspace(-1, 1, 8).double(), torch.randn(60, generator=draw).double()])

    found = surrogate.lasso(on, y, weight, alpha=0.03)

    def cost(w: Tensor, target: Tensor) -> Tensor:
        left = target - on @ w
        left = left - (left * weight).sum() / weight.sum()  # the best intercept
        return (weight * left**2).sum() / (2 * weight.sum()) + 0.03 * w.abs().sum()

    for row, target in zip(found, y, strict=True):
        for step in torch.eye(8).double() * 1e-4:
            assert cost(row, target) <= cost(row + step, target)
            assert cost(row, target) <= cost(row - step, target)


def test_limes_distance_of_pixels_is_the_cosine_of_images():
    picture, on = pictures()[0], torch.rand(5, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    labels = regions.number_rectangles((24, 32), (3, 4))
    energy = torch.stack([(picture[:, labels == i] ** 2).sum() for i in range(12)])

    found = surrogate.weigh_samples(on, energy, width=0.7)

    seen = [(picture * z[labels]).flatten() for z in on]
    cosine = torch.stack([torch.cosine_similarity(s, picture.flatten(), dim=0) for s in seen])
    torch.testing.assert_close(found, torch.exp(-((1 - cosine) ** 2) / (2 * 0.7**2)))


# ── KernelSHAP ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_kernelshap_with_every_coalition_is_the_shapley_value(family):
    model = build(family, img_size=(16, 32))  # 2 x 4 patches
    picture = pictures(1, (16, 32))[0]
    subsets = [s for k in range(9) for s in itertools.combinations(range(8), k)]
    value = {s: said_with(model, picture, list(s), 1, "probability") for s in subsets}
    slow = torch.zeros(8).double()
    for i, s in itertools.product(range(8), subsets):
        if i not in s:
            share = math.factorial(len(s)) * math.factorial(7 - len(s)) / math.factorial(8)
            slow[i] += share * (value[tuple(sorted((*s, i)))] - value[s])

    same(fast("kernelshap(samples=254)", model=model, images=picture[None])[0], slow)


def test_kernelshap_adds_up_and_records_the_empty_coalition():
    found = vitreous.explain(tiny("vit-mean"), pictures(), torch.tensor(TARGETS), "kernelshap(samples=30)")
    nothing = exact([said_with(tiny("vit-mean"), pictures()[i], [], TARGETS[i], "probability") for i in range(2)])

    torch.testing.assert_close(found.patches.sum(-1), found.score - nothing)
    assert found.provenance["empty set"] == "no patch to read: the head on a zero pooled vector"
    other = vitreous.explain(tiny("vit"), pictures(), method="kernelshap(samples=3)")
    assert other.provenance["empty set"] == "the prefix tokens alone"
    assert other.patches.isfinite().all()


def test_coalitions_have_the_sizes_of_the_shapley_kernel():
    on, _ = surrogate.coalitions(16, 40000, False, torch.Generator().manual_seed(0))
    size = torch.arange(1, 16)
    expected = 15 / (size * (16 - size))

    share = torch.bincount(on.sum(-1), minlength=17)[1:16] / len(on)

    torch.testing.assert_close(share, expected / expected.sum(), atol=0.01, rtol=0)
    assert on.float().mean(0).sub(0.5).abs().max() < 0.01  # no patch is favoured
    paired, _ = surrogate.coalitions(16, 8, True, torch.Generator().manual_seed(0))
    assert (paired[::2] == ~paired[1::2]).all()


# ── Score-CAM and ViT-CX ─────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def normed(model: nn.Module, picture: Tensor) -> Tensor:
    """Patch maps [d 3 4] of the last block's first norm."""
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(picture[None])))
    for block in model.blocks[:-1]:
        tokens = block(tokens)
    return model.blocks[-1].norm1(tokens)[0, model.num_prefix_tokens :].T.unflatten(1, (3, 4))


@pytest.mark.parametrize("family", FAMILIES)
def test_scorecam_is_a_loop_over_channels(family):
    def slowly(model, picture, target):
        maps = normed(model, picture)
        answers = []
        for one in maps:
            large = nn.UpsamplingBilinear2d(size=(24, 32))(one[None, None])[0, 0]
            answers.append(
                said(model, picture * (large - large.min()) / (large.max() - large.min() + 1e-8), target, "logit")
            )
        return torch.einsum("d,dij->ij", exact(answers).softmax(0), maps).flatten().clamp(min=0)

    same(fast("scorecam", family), each(slowly, family))


def test_vitcx_is_a_loop_over_clusters():
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    distance = pytest.importorskip("scipy.spatial.distance")

    def slowly(model, picture, target):
        large = nn.functional.interpolate(normed(model, picture)[None], (24, 32), mode="bilinear")[0]
        large = torch.stack([(m - m.min()) / (m.max() - m.min()) for m in large])
        apart = distance.pdist(large.flatten(1).numpy(), "cosine")
        label = hierarchy.fcluster(hierarchy.linkage(apart, "complete"), 0.1, "distance")
        order = regions.cluster_completely(torch.from_numpy(distance.squareform(apart)), 0.1)
        assert len(set(zip(label.tolist(), order.tolist(), strict=True))) == label.max() == int(order.max()) + 1
        clusters = [sum(m for m, o in zip(large, order, strict=True) if o == c) for c in range(int(order.max()) + 1)]
        clusters = [(m - m.min()) / (m.max() - m.min()) for m in clusters]
        draw = masks.seeded_noise(picture[None], 4, picture.device)
        total = 0
        whole = said(model, picture, target, "probability")
        for c, mask in enumerate(clusters):
            eps = 0.1 * draw(torch.tensor([0]), torch.tensor([c]))[0] * (1 - mask)
            with_mask = said(model, picture * mask + eps, target, "probability")
            total += (with_mask - said(model, picture + eps, target, "probability") + whole) * mask
        return total / len(clusters) / sum(clusters)

    same(fast("vitcx(seed=4)"), each(slowly, "vit-even"))


# ── AtMan ────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("options", "shift"), [("", True), ("(shift=False, similarity=0.2)", False)])
def test_atman_turns_attention_down_column_by_column(family, options, shift):
    def slowly(model, picture, target):
        prefix = model.num_prefix_tokens
        first = model.norm_pre(model._pos_embed(model.patch_embed(picture[None])))[0]
        scores = []
        for i in range(12):
            factor = torch.ones(len(first)).double()
            for k in range(12):
                cosine = torch.cosine_similarity(first[prefix + i], first[prefix + k], dim=0)
                if k == i or cosine >= (0.6 if shift else 0.2):
                    factor[prefix + k] = 1 - 0.9 * cosine
            x = first
            for block in model.blocks:
                attn = block.attn
                q, k, v = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(1, 2, 0, 3)
                raw = q @ k.mT * attn.head_dim**-0.5
                raw = raw - raw.min(-1, keepdim=True).values if shift else raw
                mixed = ((raw * factor).softmax(-1) @ v).transpose(0, 1).flatten(1)
                x = x + block.ls1(attn.proj(mixed))
                x = x + block.ls2(block.mlp(block.norm2(x)))
            logits = model.forward_head(model.norm(x[None]))[0]
            scores.append(model(picture[None])[0].log_softmax(-1)[target] - logits.log_softmax(-1)[target])
        return torch.stack(scores)

    same(fast(f"atman{options}", family), each(slowly, family))


def test_suppressing_no_token_changes_nothing():
    assert fast("atman(suppression=0.0)").abs().max() < 1e-12


# ── common properties ─────────────────────────────────────────────────────────────────────────────

QUICK = {
    "occlusion": {},
    "occlusion(space='pixels')": {},
    "rise(masks=10)": {"masks": 10},
    "hsic(masks=10)": {"masks": 10},
    "hsic(masks=10, space='tokens')": {"masks": 10},
    "lime(samples=10)": {"samples": 10},
    "kernelshap(samples=10)": {"samples": 10},
    "kernelshap(samples=10, space='pixels')": {"samples": 10},
    "scorecam": {"channels": 48},
    "tis(masks=10)": {"masks": 10},
    "tis(masks=10, ablate='pixels')": {"masks": 10},
    "atman": {},
}


@pytest.mark.parametrize("spec", QUICK)
@pytest.mark.parametrize("several", [1, 2])
def test_forwards_are_counted_as_stated_and_shared_by_targets(spec, several):
    vit, counter = tiny_vits()["class token"], Counter()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = resolve(spec)

    with counter.watching(vit) as watched:
        vitreous.explain(watched, images, torch.tensor([[1, 2], [3, 4]])[:, :several], method)

    stated = eval(str(method.facts.forwards), {}, {"patches": 16, **QUICK[spec]})
    assert counter.forwards == stated * 2 * vit.depth
    assert counter.backwards == method.facts.backwards == 0


CHUNKED = (
    "rise(masks=20)",
    "kernelshap(samples=20)",
    "tis(masks=9)",
    "vitcx",
    "atman",
    "pami(regions='circles', radius=8, stride=8)",
)


@pytest.mark.parametrize("spec", CHUNKED)
@pytest.mark.parametrize("chunk", [1, 7])
def test_the_size_of_a_chunk_does_not_matter(spec, chunk, monkeypatch):
    whole = fast(spec)
    for room in ("probe", "interventions"):
        monkeypatch.setattr(f"vitreous.capture.{room}.rows_that_fit", lambda *_: chunk)

    same(fast(spec), whole, 1e-12)


# Rounded activations may join other clusters, so `tis` is left out and `vitcx` keeps every channel as a mask of its own.
@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@pytest.mark.parametrize(
    "spec", ["occlusion", "rise", "pami", "hsic", "lime", "kernelshap", "vitcx(threshold=0.0)", "scorecam", "atman"]
)
def test_a_half_precision_model_gets_the_same_samples(spec):
    whole, half = (tiny_vits(dtype)["class token"] for dtype in (torch.float32, torch.float16))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    method = resolve(spec, **resolve(spec).facts.trial)

    full, rough = (vitreous.explain(vit, images, 1, method).patches for vit in (whole, half))

    assert rough.dtype == torch.float32
    same(rough, full, 0.03)


def test_samples_differ_with_the_seed():
    for spec in (
        "rise(masks=10, seed={})",
        "lime(samples=20, seed={})",
        "kernelshap(samples=20, seed={})",
        "vitcx(seed={})",
    ):
        assert not torch.equal(fast(spec.format(0)), fast(spec.format(1))), spec


def test_a_wrong_option_is_refused_with_a_message():
    for spec, sentence in {
        "occlusion(space='air')": "space='air'; known: 'tokens', 'pixels'",
        "lime(fit='spline')": "fit='spline'; known: 'ridge', 'lasso'",
        "pami(regions='stars')": "regions='stars'; known",
        "tis(kept=1.5)": r"kept=1\.5; expected at most 1",
        "scorecam(layer=9)": "layer=9; the model has blocks 0 to 3",
        "rise(question='why')": "no question 'why'",
    }.items():
        with pytest.raises(SpecError, match=sentence):
            fast(spec)


def test_pixel_methods_have_capability_black_box():
    able = {name for name in METHODS if METHODS[name].black_box is not None}

    assert {"occlusion", "rise", "lime", "kernelshap", "pami", "hsic"} <= able
    assert not {"tis", "vitcx", "scorecam", "atman", "decompx"} & able
    with pytest.raises(ModelError):
        vitreous.explain(nn.Linear(2, 2), pictures(), method="decompx")


# ── published outputs ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=["tiny_cls", "tiny_reg"])
def golden(request, goldens) -> Golden:
    return Golden(goldens, request.param, goldens / "models" / f"{request.param}.safetensors")


@pytest.fixture(scope="module")
def real(real_goldens, assets):
    """The real model, in the precision of the published run."""
    golden = Golden(real_goldens, "real", assets / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors")
    weights = {key: value.float() for key, value in golden.vit.module.state_dict().items()}
    model = type(golden.vit.module)(embed_dim=192, num_heads=3)
    model.load_state_dict(weights)
    golden.vit = vitreous.wrap(model.eval())
    return golden


FLOAT32 = 3e-7  # captum always returns float32, so the stored values are rounded


def agree(golden: Golden, file: str, found: Tensor, reference: np.ndarray, rounding: float = 0.0) -> None:
    tolerance = golden.entry(file)["tolerance"]
    largest = np.abs(reference).reshape(len(reference), -1).max(1).reshape(-1, *[1] * (reference.ndim - 1))
    allowed = tolerance["rtol"] * np.abs(reference) + (tolerance["atol_rel_to_max"] + rounding) * largest
    worst = (np.abs(found.double().numpy() - reference) - allowed).max()
    assert worst <= 0, f"{golden.name} {file}: beyond tolerance by {worst:.2g}"


def probe(golden: Golden, which: str, question: str = "logit", count: int = 4) -> Probe:
    dtype = golden.vit.dtype
    return Probe(golden.vit, golden.images[:count].to(dtype), golden.targets[which][:count], question)


@pytest.mark.parametrize("which", ["top", "other"])
def test_occlusion_agrees_with_captum(golden, which):
    found = resolve("occlusion(preset='captum')")(probe(golden, which)).native_pixels
    agree(golden, "occlusion_patch", found[:, ::8, ::8].flatten(1), golden.arrays("occlusion_patch")[which], FLOAT32)

    found = resolve("occlusion(preset='captum', window=8, stride=4)")(probe(golden, which))
    arrays = golden.arrays("occlusion_overlap")
    agree(golden, "occlusion_overlap", found.native_pixels, arrays[which], FLOAT32)
    agree(golden, "occlusion_overlap", found.patches, arrays[f"{which}_patchsum"], FLOAT32)


def published_masks(arrays, cells: int, size: tuple[int, int], dtype: torch.dtype) -> SmoothMasks:
    grid = np.unpackbits(arrays["grid"], axis=-1)[:, : cells**2].reshape(-1, cells, cells)
    return SmoothMasks(torch.from_numpy(grid).to(dtype), torch.from_numpy(arrays["shift"]).long(), size)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["top", "other"])
def test_rise_agrees_with_its_authors(golden, which):
    stored = torch.from_numpy(golden.arrays("rise_prob")["masks"]).double()
    for file, question in (("rise_prob", "probability"), ("rise_logit", "logit")):
        arrays = golden.arrays(file)
        own = published_masks(arrays, 4, (32, 32), torch.float64)
        assert (own(torch.arange(64)) - stored).abs().max() < 1e-7  # theirs are float32

        found, _ = rise_of_masks(probe(golden, which, question), lambda index: stored[index], 64, 0.5)
        agree(golden, file, found, arrays[which])
        found, _ = rise_of_masks(probe(golden, which, question), own, 64, 0.5)
        agree(golden, file, found, arrays[which], FLOAT32)


@pytest.mark.parametrize("which", ["top", "other"])
def test_kernelshap_agrees_with_captum(golden, which):
    """Its coalitions replayed; the constraint is exact here, and two rows of weight 1e6 there."""
    arrays, asked = golden.arrays("kernelshap_200"), probe(golden, which)
    every = torch.from_numpy(np.unpackbits(arrays[f"coalitions_{which}"], axis=-1)).bool()
    found = []
    for image, on in enumerate(every):
        inner = on[on.any(-1) & ~on.all(-1)]
        parts = surrogate.divide_image(asked.for_image(image), "pixels", "patches", "zero")
        answers = parts.score(surrogate.with_ends(inner))
        values, _ = surrogate.shapley(
            inner.double(), answers[:, 2:], answers[:, :2], torch.ones(len(inner)).double(), paired=False
        )
        found.append(values)

    agree(golden, "kernelshap_200", torch.cat(found), arrays[which])


@pytest.mark.parametrize("which", ["top", "other"])
def test_scorecam_agrees_with_grad_cam(golden, which):
    found = resolve("scorecam(preset='grad-cam')")(probe(golden, which)).patches

    agree(golden, "pgc_scorecam", found, golden.arrays("pgc_scorecam")[which])


def replayed(golden: Golden, which: str, image: int) -> Tensor:
    """ViT-CX with our masks in the published order and the published noise, which the seed gives again."""
    arrays, asked = golden.arrays("vitcx"), probe(golden, which, "probability", 2)
    size = asked.layout.size
    own = merge_similar_channels(channel_maps(asked, -1)[image], size, 0.1)
    label = torch.from_numpy(arrays[f"cluster_labels_{image}"]).long()
    ours = regions.cluster_completely(1 - cosines(channel_maps(asked, -1)[image], size), 0.1)
    assert len({*zip(label.tolist(), ours.tolist(), strict=True)}) == len(own) == int(label.max()) + 1
    own = own[[int(ours[label == c][0]) for c in range(len(own))]]
    draw = torch.Generator().manual_seed(1234 + image)
    noise = 0.1 * torch.randn(len(own), 3, *size, generator=draw, dtype=asked.images.dtype)
    if f"masks_{image}" in arrays:
        assert (own - torch.from_numpy(arrays[f"masks_{image}"])).abs().max() < 1e-7
    return vitcx_of(asked.for_image(image), own, lambda _, mask: noise[mask])


def cosines(maps: Tensor, size: tuple[int, int]) -> Tensor:
    large = nn.functional.interpolate(maps[None], size, mode="bilinear")[0].flatten(1)
    low, high = large.amin(1, keepdim=True), large.amax(1, keepdim=True)
    large = nn.functional.normalize((large - low) / (high - low), dim=-1)
    return large @ large.T


@pytest.mark.parametrize("which", ["top", "other"])
def test_vitcx_agrees_with_its_authors(golden, which):
    if golden.entry("vitcx") is None:
        pytest.skip(f"no ViT-CX for {golden.name}")
    found = torch.cat([replayed(golden, which, image) for image in range(2)])

    agree(golden, "vitcx", found, golden.arrays("vitcx")[which])


@pytest.mark.slow
def test_published_maps_of_the_real_model_are_reproduced(real):
    """Those whose sizes matter, masks of 224 pixels and clusters; occlusion and Score-CAM are compared on the small models."""
    arrays = real.arrays("rise_prob")
    own = published_masks(arrays, 8, (224, 224), torch.float32)
    assert np.abs(own(torch.arange(2)).numpy() - arrays["masks_first2"]).max() < 1e-6
    both = Probe(
        real.vit,
        real.images[:1].float(),
        torch.stack([real.targets[w][:1] for w in ("top", "other")], 1),
        "probability",
    )
    found, _ = rise_of_masks(both, own, 128, 0.5)
    patches = found.unflatten(1, (14, 16)).unflatten(3, (14, 16)).sum((2, 4)).flatten(1)
    agree(real, "rise_prob", patches[0::2], arrays["top_patchsum"][:1])
    agree(real, "rise_prob", patches[1::2], arrays["other_patchsum"][:1])
    agree(real, "rise_prob", found[:1], arrays["top_first1"])

    agree(real, "vitcx", replayed(real, "top", 0), real.arrays("vitcx")["top"])
