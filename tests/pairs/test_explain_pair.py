"""Pairs: interaction matrices against reference outputs, explicit derivatives and completeness."""

from __future__ import annotations

import json

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitreous
from tests.arrays import read_arrays
from vitreous.capture.linearise import LINEARISATIONS
from vitreous.capture.operations import LinearisedForward
from vitreous.capture.trace import backward, share, trace
from vitreous.core.errors import ModelError, ShapeError, SpecError
from vitreous.models.eval_mode import evaluating
from vitreous.pairs.contributions import embed_subsets, regress_on_presence
from vitreous.pairs.towers import image_tower

IDS = torch.tensor([1, 5, 7, 9, 2])


@pytest.fixture(scope="module", params=["tiny_cls", "tiny_reg"])
def stored(request, goldens):
    """A small model without its classifier, four images and a reader of reference outputs."""
    from safetensors.torch import load_file
    from timm.models.vision_transformer import VisionTransformer

    information = json.loads((goldens / "models.json").read_text())[request.param]
    model = VisionTransformer(**information["timm_kwargs"])
    model.load_state_dict(load_file(goldens / information["weights"]))
    model.head = nn.Identity()
    images = torch.from_numpy(read_arrays(goldens / "inputs" / f"{request.param}.npz")["x"]).double()

    def arrays(name: str):
        path = goldens / "outputs" / request.param / f"{name}.npz"
        return read_arrays(path) if path.exists() else pytest.skip(f"no {name} of {request.param}")

    return model.double().eval(), images, arrays


def assert_close(matrix: torch.Tensor, reference: np.ndarray, tolerance: float = 1e-8) -> None:
    assert matrix.shape == reference.shape
    assert np.abs(matrix.numpy() - reference).max() <= tolerance * np.abs(reference).max()


@pytest.mark.slow
def test_bilrp_agrees_with_the_reference_outputs(stored, subtests):
    model, images, arrays = stored
    references = arrays("pair_bilrp")
    for linearisation, start, similarity, suffix in (
        ("plain", 0, "dot", ""),
        ("libra", 2, "cosine", "_cosine"),
        ("attnlrp", 0, "cosine", "_cosine"),
        ("reslrp", 2, "dot", ""),
    ):
        with subtests.test(linearisation=linearisation, start=start, similarity=similarity):
            pair = vitreous.explain_pair(
                model,
                images[2:3],
                model,
                images[3:],
                f"ixg@{linearisation}",
                start=start,
                similarity=similarity,
            )
            assert_close(pair.full[:-1, :-1], references[f"{linearisation}_l{start}{suffix}"][1])
            assert pair.similarity == pytest.approx(references[similarity][1], rel=1e-9)
            assert pair.full.sum().item() == pytest.approx(pair.similarity, rel=1e-9)


@pytest.mark.slow
def test_exclip_agrees_with_the_reference_outputs(stored):
    model, images, arrays = stored
    for key, reference in arrays("pair_exclip").items():
        layer, steps = key.removeprefix("l").split("_N")
        pair = vitreous.explain_pair(
            model, images[:1], model, images[1:2], "exclip", start=int(layer), steps=int(steps), batch_size=64
        )
        assert_close(pair.full[pair.a.contributions.prefix : -1, :-1].mT, reference[0])


def test_fixlip_cross_terms_agree_with_the_reference_outputs(stored):
    model, images, arrays = stored
    references = arrays("pair_fixlip")
    players = torch.from_numpy(references["players"])
    count = int(players.max()) + 1
    present = (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1 == 1
    vectors = []
    for image in (images[:1], images[1:2]):
        tower = image_tower(model, image, None, False)
        embeddings, _ = embed_subsets(tower, True, 256, present[:, players])
        vectors.append(regress_on_presence(present, embeddings, 0.5))

    assert_close(vectors[0] @ vectors[1].mT, references["p0.5_order2"][0][:count, count:], 1e-6)


def test_subset_methods_explain_the_cosine(stored):
    model, images, _ = stored
    whole = nn.functional.normalize(model(images[:2]), dim=-1).detach()
    pair = vitreous.explain_pair(model, images[:1], model, images[1:2], "occlusion")
    without = images[:1].clone()
    without[..., :8, :8] = 0
    first = whole[0] - nn.functional.normalize(model(without), dim=-1)[0].detach()

    torch.testing.assert_close(pair.a.vectors[0], first)
    assert pair.similarity == pytest.approx(float(whole[0] @ whole[1]), rel=1e-9)

    sampled = vitreous.explain_pair(model, images[:1], model, images[1:2], "fixlip", samples=64, seed=3)
    again = vitreous.explain_pair(model, images[:1], model, images[1:2], "fixlip", samples=64, seed=3, batch_size=5)
    torch.testing.assert_close(sampled.matrix, again.matrix)


def test_the_plain_form_is_the_explicit_second_derivative(stored):
    """x_i ∂²(a · b)/∂x_i∂x_j x_j, by autograd on both inputs of the first block."""
    model, images, _ = stored

    def embed(tokens):
        for block in model.blocks:
            tokens = block(tokens)
        return model.forward_head(model.norm(tokens))[0]

    with torch.no_grad():
        states = [model.norm_pre(model._pos_embed(model.patch_embed(image[None]))) for image in images[:2]]
    a, b = (state.clone().requires_grad_() for state in states)
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        (gradient,) = torch.autograd.grad(embed(a) @ embed(b), a, create_graph=True)
    per_token = (gradient * a.detach()).sum(-1)[0]
    rows = [torch.autograd.grad(value, b, retain_graph=True)[0] for value in per_token]
    expected = torch.stack([(row * b.detach()).sum(-1)[0] for row in rows])

    pair = vitreous.explain_pair(model, images[:1], model, images[1:2], "ixg", similarity="dot")

    torch.testing.assert_close(pair.full[:-1, :-1], expected, rtol=1e-9, atol=1e-12)


def test_the_map_of_a_side_is_the_explanation_of_the_similarity_to_the_other(stored):
    model, images, _ = stored
    pair = vitreous.explain_pair(model, images[:1], model, images[1:2], "decompx", similarity="dot")
    other = model(images[1:2]).detach()[0]
    network = vitreous.see_through(model, size=(32, 32))
    alone = vitreous.explain(network, images[:1], method="decompx", score=lambda output: output @ other)

    torch.testing.assert_close(pair.map("a").flatten(), alone.patches[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(pair.map("a", range(16)).flatten(), pair.matrix.sum(1))
    torch.testing.assert_close(pair.map("b", [3]).flatten(), pair.matrix[3])
    index_a, index_b, value = pair.strongest(1)[0]
    assert value == pytest.approx(pair.matrix.max().item())
    assert pair.matrix[index_a, index_b].item() == pytest.approx(value)


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


class Tokenizer:
    """Words are numbers; 1 and 2 are special."""

    all_special_ids = (1, 2)

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *map(int, text.split()), 2]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"w{index}</w>" for index in ids]


@pytest.fixture(scope="module")
def clip():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shared = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": 6,
    }
    text = transformers.CLIPTextConfig(
        vocab_size=30, max_position_embeddings=9, bos_token_id=1, eos_token_id=2, **shared
    )
    vision = transformers.CLIPVisionConfig(image_size=32, patch_size=16, **shared)
    towers = transformers.CLIPVisionModelWithProjection(vision), transformers.CLIPTextModelWithProjection(text)
    for tower in towers:
        for parameter in tower.parameters():
            nn.init.normal_(parameter, std=0.3)
    return tuple(tower.double().eval() for tower in towers)


@pytest.fixture(scope="module")
def image():
    return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.slow
def test_image_and_text_are_complete(clip, image):
    vision, text = clip
    pair = vitreous.explain_pair(vision, image, vitreous.TextTower(text, Tokenizer()), "5 7 9")
    with torch.no_grad():
        a, b = vision(image).image_embeds[0], text(input_ids=IDS[None]).text_embeds[0]

    assert pair.matrix.shape == (4, 5)
    assert pair.b.words == ("w1", "w5", "w7", "w9", "w2")
    assert pair.b.special == (True, False, False, False, True)
    assert pair.similarity == pytest.approx(nn.functional.cosine_similarity(a, b, dim=0).item(), rel=1e-9)
    assert pair.full.sum().item() == pytest.approx(pair.similarity, rel=1e-9)


def test_the_rest_of_a_text_is_the_share_of_its_biases(clip):
    _, text = clip
    tower = vitreous.TextTower(text).prepare(IDS)
    blocks = tower.model.blocks

    def call():
        with evaluating(text):
            return text(input_ids=IDS[None]).text_embeds[0]

    shares = []
    for coordinate in range(6):
        traced = trace(text, call, blocks, LinearisedForward(LINEARISATIONS["decompx"], record_constants=True))
        steps = list(backward(traced, traced.output[coordinate]))
        shares.append(sum(share(added.constant, grad).sum() for step in steps for added, grad in step.added))
    pair = vitreous.explain_pair(vitreous.TextTower(text), IDS, vitreous.TextTower(text), IDS)

    torch.testing.assert_close(pair.a.contributions.rest, torch.stack(shares), rtol=1e-9, atol=1e-12)


def test_late_interaction_adds_the_best_matches(clip, image):
    vision, text = clip
    project_a, project_b = vision.visual_projection.weight.detach(), text.text_projection.weight.detach()
    tower = vitreous.TextTower(text, embed=lambda output: output.last_hidden_state @ project_b.mT)
    pair = vitreous.explain_pair(
        vision, image, tower, IDS, similarity="maxsim", embed_a=lambda output: output.last_hidden_state @ project_a.mT
    )
    with torch.no_grad():
        tokens_a = vision(image).last_hidden_state[0] @ project_a.mT
        tokens_b = text(input_ids=IDS[None]).last_hidden_state[0] @ project_b.mT

    assert pair.similarity == pytest.approx((tokens_b @ tokens_a.mT).amax(1).sum().item(), rel=1e-9)
    assert pair.full.sum().item() == pytest.approx(pair.similarity, rel=1e-9)
    assert pair.matrix.shape == (4, 5)


# ── inputs that differ ───────────────────────────────────────────────────────────────────────────


def small_vit(**options) -> nn.Module:
    options = {"img_size": 32, "num_classes": 0, "depth": 2, "embed_dim": 24, "num_heads": 2, **options}
    model = timm.create_model("vit_tiny_patch16_224", **options).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.slow
def test_towers_of_other_grids_pooling_and_precision_are_complete(image, subtests):
    torch.manual_seed(0)
    wide = torch.randn(1, 3, 48, 64)
    average, registers = small_vit(global_pool="avg"), small_vit(reg_tokens=4)
    plain, double, half = small_vit(), small_vit().double(), small_vit().to(torch.bfloat16)
    for name, first, second, other, shape in (
        ("grids", plain, small_vit(img_size=(48, 64)), wide, (4, 12)),
        ("pooling and registers", average, registers, image, (4, 4)),
        ("float64 and float32", double, plain, image, (4, 4)),
        ("bfloat16 and float32", half, plain, image, (4, 4)),
        ("float32 and float64", plain, double, image, (4, 4)),
    ):
        with subtests.test(name):
            pair = vitreous.explain_pair(first, image, second, other)
            assert pair.matrix.shape == shape
            assert pair.full.sum().item() == pytest.approx(pair.similarity, rel=1e-5, abs=1e-6)
    same = vitreous.explain_pair(plain, image, plain, image)
    assert same.similarity == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(same.matrix, same.matrix.mT)


def test_late_interaction_of_one_token_is_the_dot_product(image):
    torch.manual_seed(0)
    model = small_vit().double()
    options = {"embed_a": lambda output: output[:, None], "embed_b": lambda output: output[:, None]}
    late = vitreous.explain_pair(model, image, model, image.flip(-1), similarity="maxsim", **options)
    pair = vitreous.explain_pair(model, image, model, image.flip(-1), similarity="dot")

    assert late.similarity == pytest.approx(pair.similarity, rel=1e-9)
    torch.testing.assert_close(late.matrix, pair.matrix, rtol=1e-9, atol=1e-12)


# ── beyond a reference ───────────────────────────────────────────────────────────────────────────


def test_a_reference_removes_the_common_component_of_embeddings(clip, image, subtests):
    vision, text = clip
    torch.manual_seed(0)
    reference = 2 + torch.randn(12, 6, dtype=torch.float64)
    unit = nn.functional.normalize(reference, dim=-1)
    common = nn.functional.normalize(unit.mean(0), dim=0)
    project = vision.visual_projection.weight.detach()
    with torch.no_grad():
        a, b, c = vision(image).image_embeds[0], vision(image.flip(-1)).image_embeds[0], text(IDS[None]).text_embeds[0]
    network = {"embed_a": lambda output: output.image_embeds, "embed_b": lambda output: output.image_embeds}
    tower = vitreous.TextTower(text, Tokenizer())

    def remainder(vector):
        return vector - (vector @ common) * common

    for name, second, other, options, embedding in (
        ("ViT", vision, image.flip(-1), {}, b),
        ("network", vision, image.flip(-1), network, b),
        ("sum of layers", vision, image.flip(-1), {"method": "decompx+plus"}, b),
        ("exclip", vision, image.flip(-1), {"method": "exclip", "steps": 2}, b),
        ("text", tower, "5 7 9", {}, c),
    ):
        with subtests.test(name):
            pair = vitreous.explain_pair(vision, image, second, other, reference=reference, **options)
            expected = nn.functional.cosine_similarity(remainder(a), remainder(embedding), dim=0).item()
            assert pair.similarity == pytest.approx(expected, rel=1e-9)
            assert pair.full.sum().item() == pytest.approx(expected, rel=1e-9)
            assert pair.provenance["components"] == 5
    dot = vitreous.explain_pair(vision, image, vision, image.flip(-1), reference=reference, similarity="dot")
    plain = vitreous.explain_pair(vision, image, vision, image.flip(-1), similarity="dot")
    along = [(side.vectors @ common)[:, None] * common for side in (plain.a, plain.b)]
    expected = (plain.a.vectors - along[0]) @ (plain.b.vectors - along[1]).mT
    torch.testing.assert_close(dot.matrix, expected, rtol=1e-9, atol=1e-12)
    late = {"embed_a": lambda output: output.last_hidden_state @ project.mT}
    late = vitreous.explain_pair(
        vision, image, vision, image, similarity="maxsim", reference=reference, **late, embed_b=late["embed_a"]
    )
    assert late.full.sum().item() == pytest.approx(late.similarity, rel=1e-9)


def test_components_are_the_directions_in_which_a_reference_varies_most(clip, image):
    vision, _ = clip
    axes = torch.eye(6, dtype=torch.float64)
    steps = torch.tensor([[1.0], [3.0], [0.3], [0.1], [0.03]], dtype=torch.float64) * axes[1:]
    symmetric = 9 * axes[0] + torch.cat([steps, -steps])  # the mean is the first axis; most variance is along the third
    pair = vitreous.explain_pair(vision, image, vision, image.flip(-1), reference=symmetric, components=1)
    with torch.no_grad():
        a, b = vision(image).image_embeds[0], vision(image.flip(-1)).image_embeds[0]
    dot = vitreous.explain_pair(
        vision, image, vision, image.flip(-1), reference=symmetric, components=1, similarity="dot"
    )

    assert abs(pair.similarity) == pytest.approx(1)  # one number has no angle
    assert dot.similarity == pytest.approx(float(a[2] * b[2]), rel=1e-9)
    assert pair.a.vectors.shape[1] == 1
    assert "beyond the mean of 10 embeddings" in pair.plot().get_suptitle()
    for options, error, sentence in (
        ({"reference": symmetric[:, :4]}, ShapeError, r"\[inputs, 6\], not \[10, 4\]"),
        ({"reference": symmetric, "components": 6}, SpecError, "1 to 5 would work"),
        ({"reference": symmetric * torch.inf}, ShapeError, "NaN or infinite values"),
        ({"components": 2}, SpecError, "reference=embeddings"),
    ):
        with pytest.raises(error, match=sentence):
            vitreous.explain_pair(vision, image, vision, image, **options)


def test_a_sum_of_layers_is_the_mean_of_their_explanations(stored):
    model, images, _ = stored
    pairs = [
        vitreous.explain_pair(model, images[:1], model, images[1:2], "decompx", start=start)
        for start in range(1, len(model.blocks))
    ]
    mean = vitreous.explain_pair(model, images[:1], model, images[1:2], "decompx+skipplus(start=1)")
    expected = [torch.stack([getattr(pair, side).vectors for pair in pairs]).mean(0) for side in ("a", "b")]

    torch.testing.assert_close(mean.a.vectors, expected[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(mean.matrix, mean.scale * expected[0] @ expected[1].mT, rtol=1e-9, atol=1e-12)


# ── refusals and drawing ─────────────────────────────────────────────────────────────────────────


def test_invalid_arguments_are_refused_with_valid_alternatives(clip, image):
    vision, text = clip
    tower = vitreous.TextTower(text)
    cases = [
        (ModelError, "needs a tokenizer", lambda: vitreous.explain_pair(vision, image, tower, "a zebra")),
        (SpecError, "'cosine', 'dot' or 'maxsim'", lambda: vitreous.explain_pair(vision, image, tower, IDS, similarity="l2")),
        (SpecError, "no option 'stride'", lambda: vitreous.explain_pair(vision, image, tower, IDS, "exclip", stride=1)),
        (SpecError, "'decompx', 'attnlrp' or 'ixg'", lambda: vitreous.explain_pair(vision, image, tower, IDS, "rawattention")),
        (ModelError, "patches can be removed", lambda: vitreous.explain_pair(tower, IDS, tower, IDS, "fixlip")),
        (ShapeError, "one image on each side", lambda: vitreous.explain_pair(vision, image.repeat(2, 1, 1, 1), tower, IDS)),
        (ModelError, "towers of one space", lambda: vitreous.explain_pair(
            vision, image, vitreous.TextTower(text, embed=lambda output: output.last_hidden_state[:, 0]), IDS)),
        (ShapeError, "token indices are whole numbers", lambda: tower.prepare(torch.zeros(3))),
        (ShapeError, "one text on each side", lambda: tower.prepare(["a zebra"])),
        (ShapeError, "cannot read a text of 22 tokens", lambda: tower.prepare(torch.ones(22, dtype=torch.long))),
        (ShapeError, "shorter text, or one of the model's own tokenizer", lambda: tower.prepare(torch.tensor([1, 99, 2]))),
        (SpecError, "steps=1.5; expected int", lambda: vitreous.explain_pair(vision, image, vision, image, "exclip", steps=1.5)),
        (SpecError, "p=1.0; expected less than 1", lambda: vitreous.explain_pair(vision, image, vision, image, "fixlip", p=1.0)),
        (SpecError, "layers 0 to 1", lambda: vitreous.explain_pair(vision, image, vision, image, "exclip", start=5)),
        (SpecError, "a whole number from 1 on", lambda: vitreous.explain_pair(vision, image, vision, image, batch_size=0)),
    ]  # fmt: skip
    for error, sentence, run in cases:
        with pytest.raises(error, match=sentence):
            run()


def test_a_cosine_with_a_vector_of_zeros_is_refused(image):
    model = small_vit().double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ShapeError, match="similarity='dot' would work"):
        vitreous.explain_pair(model, image, model, image)
    assert vitreous.explain_pair(model, image, model, image, similarity="dot").similarity == 0


def test_sides_and_partners_that_do_not_exist_are_refused(image):
    model = small_vit().double()
    pair = vitreous.explain_pair(model, image, model, image.flip(-1))
    with pytest.raises(ShapeError, match="not 'c'"):
        pair.map("c")
    for partners in ([99], [-1]):
        with pytest.raises(ShapeError, match="0 to 3"):
            pair.strongest(2, partners)
    assert pair.strongest(0) == []
    assert pair.strongest(1, [2])[0][1] == 2


def test_pages_and_figures_show_both_sides(clip, image, tmp_path):
    vision, text = clip
    pair = vitreous.explain_pair(vision, image, vitreous.TextTower(text, Tokenizer()), "5 <b> 9".replace("<b>", "7"))
    page = pair.save(tmp_path / "pair.html").read_text()
    figure = pair.plot(lines=3, partners=[1])

    assert page.count('class="cell"') == 4
    assert page.count('class="word"') == 5
    assert "http" not in page.replace("http-equiv", "")
    assert len(figure.axes) == 2
    assert len(figure.findobj(lambda artist: type(artist).__name__ == "ConnectionPatch")) <= 3
    arrays = read_arrays(pair.save(tmp_path / "pair.npz"))
    np.testing.assert_allclose(arrays["full"].sum(), pair.similarity, rtol=1e-9)
    with pytest.raises(ShapeError, match=r"\.html"):
        pair.save(tmp_path / "pair.pdf")
    with pytest.raises(ShapeError, match="0 to 4"):
        pair.map("a", [7])
