"""A text as a target: the score is scale · cosine of the tower's own embedding, and maps are those of its channels, weighed."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformer

import vitreous
from tests.models.families import named, shaken
from vitreous.capture.adapter_check import compare_with_model
from vitreous.capture.forward import adapter_logits
from vitreous.core.errors import Caveat, ModelError, ShapeError, SpecError
from vitreous.methods.method import METHODS
from vitreous.models.outputs import compare_with_texts
from vitreous.testing import check_method

WIDE = 8  # of the projected embedding
BODY = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 24, "patch_size": 8}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 5,
    "intermediate_size": 20,
}


def hugging(kind: str):
    """A tower of transformers, every parameter random."""

    def build():
        transformers = pytest.importorskip("transformers")
        family = "CLIP" if kind.startswith("CLIP") else "Siglip"
        vision = {**BODY, "intermediate_size": 40, "projection_dim": WIDE}
        if kind in ("CLIPModel", "SiglipModel"):
            text = {**TEXT, **({"projection_size": 24} if family == "Siglip" else {})}
            config = getattr(transformers, f"{family}Config")(vision_config=vision, text_config=text)
            if family == "CLIP":
                config.projection_dim = WIDE
        else:
            config = getattr(transformers, f"{family}VisionConfig")(**vision)
        torch.manual_seed(0)
        model = getattr(transformers, kind)(config).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return model

    return build


TOWERS = {
    "timm clip, projected": lambda: shaken(named("vit_base_patch16_clip_quickgelu_224", num_classes=WIDE)()),
    "timm clip, num_classes=0": lambda: shaken(named("vit_base_patch16_clip_224", num_classes=0)()),
    "timm siglip": lambda: shaken(named("vit_base_patch16_siglip_224", num_classes=0)()),
    "timm mean": lambda: shaken(named("vit_medium_patch16_reg4_gap_256", num_classes=0)()),
    "timm eva02 clip": lambda: shaken(
        named("eva02_base_patch16_clip_224", embed_dim=32, num_heads=2, num_classes=WIDE)()
    ),
    **{
        kind: hugging(kind)
        for kind in (
            "CLIPModel",
            "CLIPVisionModelWithProjection",
            "CLIPVisionModel",
            "SiglipModel",
            "SiglipVisionModel",
        )
    },
}


def own_embedding(model, images: torch.Tensor) -> torch.Tensor:
    """The embedding by the model's own forward."""
    if hasattr(model, "get_image_features"):
        return model.get_image_features(pixel_values=images).pooler_output
    if "transformers" in type(model).__module__:
        found = model(pixel_values=images)
        return found.image_embeds if "image_embeds" in found else found.pooler_output
    return model(images)


def pictures(vit, count: int = 2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, *vit.size, generator=draw, dtype=torch.float64).to(vit.dtype)


def texts(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.fixture(scope="module")
def tower():
    """A class-token tower whose channels can also be explained as classes."""
    return vitreous.wrap(shaken(named("vit_base_patch16_clip_quickgelu_224", num_classes=WIDE)()))


@pytest.fixture(scope="module")
def plain():
    """The same without a norm in front, which some relevance rules do not support."""
    return vitreous.wrap(shaken(named("vit_tiny_patch16_224", num_classes=WIDE)()))


# ── towers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", TOWERS)
def test_the_parts_of_a_tower_reproduce_its_embedding_and_the_score_is_the_cosine(family):
    model = TOWERS[family]()
    vit = vitreous.wrap(model)
    images = pictures(vit)
    text = texts(vit.outputs)

    with torch.no_grad():
        own = own_embedding(model, images)
    found = vitreous.explain(vit, images, vitreous.text_target(text, scale=3.0), "ixg")

    torch.testing.assert_close(adapter_logits(vit, images), own, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(found.score, 3 * F.cosine_similarity(own, text[None]), atol=1e-12, rtol=1e-12)
    assert found.patches.shape == (2, found.layout.patches)


@pytest.mark.parametrize("family", TOWERS)
def test_pixel_gradients_are_those_of_the_cosine_itself(family):
    model = TOWERS[family]()
    vit = vitreous.wrap(model)
    images, text = pictures(vit), texts(2, vit.outputs)

    leaf = images.clone().requires_grad_()
    (2 * F.cosine_similarity(own_embedding(model, leaf), text)).sum().backward()
    found = vitreous.explain(vit, images, vitreous.text_target(text, 2.0), "ixg", space="pixels")

    torch.testing.assert_close(found.native_pixels, (leaf * leaf.grad).sum(1), atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("family", TOWERS)
@pytest.mark.parametrize("method", ["decompx", "fullgrad@libra+first"])
def test_with_lengths_held_fixed_shares_add_up_to_the_cosine(family, method):
    vit = vitreous.wrap(TOWERS[family]())

    found = vitreous.explain(vit, pictures(vit), vitreous.text_target(texts(2, vit.outputs), 5.0), method)

    assert found.residual.abs().max() < 1e-9
    total = found.patches.sum(-1) + found.bias + (0 if found.prefix is None else found.prefix.sum(-1))
    torch.testing.assert_close(total, found.score, atol=1e-9, rtol=1e-9)
    assert found.provenance["length"] == "held fixed"


@pytest.mark.slow
def test_a_tower_is_loaded_from_a_folder_and_not_modified(tmp_path):
    pytest.importorskip("transformers")
    model = hugging("CLIPModel")().float()
    model.save_pretrained(tmp_path)

    vit = vitreous.load(f"hf:{tmp_path}")

    images = pictures(vit)
    with torch.no_grad():
        own = own_embedding(model, images)
    found = vitreous.explain(vit, images, vitreous.text_target(texts(WIDE)), "genatt")
    torch.testing.assert_close(found.score, F.cosine_similarity(own, texts(WIDE)[None].float()), atol=1e-4, rtol=1e-4)
    assert all(p.grad is None and torch.equal(p, model.state_dict()[n]) for n, p in vit.module.named_parameters())


def test_a_siglip_without_its_pooling_head_is_a_network():
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(**BODY, intermediate_size=40, vision_use_head=False)

    network = vitreous.wrap(transformers.SiglipVisionModel(config))

    assert not isinstance(network, vitreous.ViT)
    assert "makes no embedding" in network.reason


# ── the reference implementation: channel by channel ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "fixed"),
    [
        ("ixg", False),
        ("cat", False),
        ("fullgrad", False),
        ("decompx", True),
        ("decompx+skipplus", True),
        ("fullgrad@libra+plus", True),
        ("attnlrp", True),
        ("conservativelrp", True),
        ("decompx(bias='equal')", True),
    ],
)
def test_a_map_is_that_of_every_channel_weighed_by_how_the_cosine_depends_on_it(tower, method, fixed):
    images, text = pictures(tower), texts(2, WIDE)
    with torch.no_grad():
        own = tower.forward(images)
    leaf = own.clone().requires_grad_()
    (7 * F.cosine_similarity(leaf, text)).sum().backward()
    weights = 7 * F.normalize(text, dim=-1) / own.norm(dim=-1, keepdim=True) if fixed else leaf.grad

    channels = vitreous.explain(tower, images, torch.arange(WIDE).expand(2, -1), method)
    found = vitreous.explain(tower, images, vitreous.text_target(text, 7.0), method)

    reference = (weights[:, :, None] * channels.patches.unflatten(0, (2, WIDE))).sum(1)
    torch.testing.assert_close(found.patches, reference, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("bias", ["absdot", "norm", "abssim"])
def test_biases_distributed_by_similarity_are_complete(tower, bias):
    found = vitreous.explain(tower, pictures(tower), vitreous.text_target(texts(2, WIDE), 7.0), "decompx", bias=bias)

    torch.testing.assert_close(found.patches.sum(-1) + found.prefix.sum(-1), found.score, atol=1e-9, rtol=1e-9)


def test_a_length_that_is_not_fixed_is_differentiated(tower):
    images, target = pictures(tower), vitreous.text_target(texts(WIDE))

    exact = vitreous.explain(tower, images, target, "ixg")
    held = vitreous.explain(tower, images, target, "ixg@linear(norm='frozen')")

    assert exact.provenance["length"] == "exact"
    assert not torch.allclose(exact.patches, held.patches)


def test_relevance_starts_at_the_text_as_at_the_class_of_a_zero_shot_classifier(plain):
    images, text = pictures(plain), texts(3, WIDE)
    head = plain.module.head
    model = named("vit_tiny_patch16_224", num_classes=3)().double().eval()
    state = {k: v for k, v in plain.module.state_dict().items() if not k.startswith("head")}
    rows = F.normalize(text, dim=-1)
    model.load_state_dict({**state, "head.weight": rows @ head.weight, "head.bias": rows @ head.bias})

    for method in ("partiallrp", "lrp"):
        classes = vitreous.explain(model, images, torch.arange(3).expand(2, -1), method)
        found = vitreous.explain(plain, images, vitreous.text_target(text.expand(2, -1, -1)), method)
        torch.testing.assert_close(found.patches, classes.patches, atol=1e-8, rtol=1e-5)


# ── rows, score functions, names ──────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::vitreous.core.errors.Caveat")
@pytest.mark.parametrize("name", sorted(name for name in METHODS if METHODS[name].class_specific))
def test_every_class_specific_method_explains_a_text(plain, name):
    method = METHODS[name]
    trial = (
        {"space": "pixels"} if name == "vanillagrad" else method.facts.trial
    )  # of tokens it is 0 (docs/decisions.md)
    method = method.with_options(**{k: v for k, v in trial.items() if k != "question"})
    images, text = pictures(plain), texts(2, 2, WIDE)

    both = vitreous.explain(plain, images, vitreous.text_target(text), method)
    second = vitreous.explain(plain, images, vitreous.text_target(text[:, 1]), method)
    alone = vitreous.explain(plain, images[1:], vitreous.text_target(text[1, 1]), method)

    cosines = F.cosine_similarity(plain.forward(images)[:, None], text, dim=-1)
    torch.testing.assert_close(both.score, cosines.flatten().detach(), atol=1e-9, rtol=1e-9)
    size = float(both.patches.abs().max()) + 1e-12
    torch.testing.assert_close(both.patches[1::2], second.patches, atol=1e-7 * size, rtol=1e-6)
    torch.testing.assert_close(both.patches[3:], alone.patches, atol=1e-7 * size, rtol=1e-6)
    assert not torch.allclose(both.patches[0], both.patches[1], atol=1e-9 * size, rtol=1e-6)
    assert both.targets.tolist() == [0, 1, 0, 1]
    assert both.logits.shape == (4, 2)


@pytest.mark.slow
def test_contract_tests_pass_for_a_tower_with_text_targets(plain):
    answering = compare_with_texts(plain, F.normalize(texts(5, WIDE), dim=-1), 2.0)

    assert compare_with_model(answering).gap < 1e-9
    for method in ("decompx+skipplus", "decompx", "genatt", "tis", "occlusion", "legrad"):
        check_method(method, {"texts": answering})


def test_methods_that_ignore_the_class_give_every_text_the_same_map(tower):
    found = vitreous.explain(tower, pictures(tower), vitreous.text_target(texts(2, 3, WIDE)), "rollout")

    assert len(found) == 6
    torch.testing.assert_close(found.patches[0], found.patches[2])
    assert found.score.unique().numel() == 6


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_margins_and_probabilities_compare_the_image_s_own_texts(tower, batch_size):
    images, text = pictures(tower, 3), texts(3, 2, WIDE)
    others = texts(5, WIDE)[3:]
    target = vitreous.text_target(text, 10.0, against=others)
    with torch.no_grad():
        own = tower.forward(images)
    everything = torch.cat([text, others.expand(3, -1, -1)], 1)
    logits = 10 * F.cosine_similarity(own[:, None], everything, dim=-1)  # [3 4]

    asked = {
        q: vitreous.explain(tower, images, target, "ixg", q, batch_size=batch_size) for q in ("margin", "probability")
    }

    rivals = torch.stack([logits[:, [1, 2, 3]].amax(1), logits[:, [0, 2, 3]].amax(1)], 1)
    torch.testing.assert_close(asked["margin"].score, (logits[:, :2] - rivals).flatten())
    torch.testing.assert_close(asked["probability"].score, logits.softmax(-1)[:, :2].flatten())
    torch.testing.assert_close(asked["margin"].logits, logits.repeat_interleave(2, 0))
    assert asked["margin"].provenance["question"] == "margin among texts"
    assert asked["margin"].provenance["texts"] == {"asked": 2, "against": 2, "scale": 10.0}


def test_the_margin_between_two_texts_is_the_difference_of_their_maps(tower):
    images, text = pictures(tower), texts(2, 2, WIDE)
    target = vitreous.text_target(text)

    each = vitreous.explain(tower, images, target, "decompx+plus").patches
    margin = vitreous.explain(tower, images, target, "decompx+plus", "margin").patches

    torch.testing.assert_close(margin[::2], each[::2] - each[1::2], atol=1e-10, rtol=1e-8)


def test_a_text_is_given_as_tensor_array_or_list_and_its_length_does_not_matter(tower):
    images, text = pictures(tower), texts(2, WIDE)
    forms = [text, 5 * text, text.numpy(), list(text), [row.tolist() for row in text], text[:, None], np.stack(text)]

    found = [vitreous.explain(tower, images, vitreous.text_target(form), "ixg").patches for form in forms]

    for other in found[1:]:
        torch.testing.assert_close(found[0], other)
    shared = vitreous.explain(tower, images, vitreous.text_target(text[0]), "ixg").patches
    torch.testing.assert_close(shared[0], found[0][0])
    assert not torch.allclose(shared[1], found[0][1])


def test_texts_have_names_and_the_provenance_records_the_target(tower, tmp_path):
    images = pictures(tower)
    scale = torch.nn.Parameter(torch.tensor(2.0)).exp()

    one = vitreous.explain(tower, images, vitreous.text_target(texts(WIDE), scale, names="a zebra"), "tokentm")
    two = vitreous.explain(tower, images, vitreous.text_target(texts(2, 2, WIDE), names=["cat", "dog"]), "ixg")
    each = vitreous.explain(tower, images, vitreous.text_target(texts(2, 1, WIDE), names=[["cat"], ["dog"]]), "ixg")
    none = vitreous.explain(tower, images, vitreous.text_target(texts(2, 2, WIDE)), "ixg")

    assert one.names == ("a zebra", "a zebra")
    assert two.names == ("cat", "dog", "cat", "dog")
    assert each.names == ("cat", "dog")
    assert none.names == ("text 0", "text 1", "text 0", "text 1")
    assert one.provenance["question"] == "cosine"  # also for a method whose paper explains a probability
    assert one.provenance["target"] == "text"
    assert one.provenance["texts"]["scale"] == pytest.approx(float(torch.e**2), rel=1e-6)
    assert one.logits is None  # one text has no probability
    again = vitreous.Attribution.load(one.save(tmp_path / "one.safetensors"))
    assert again.provenance["texts"] == one.provenance["texts"]
    assert "a zebra" in again.names


def test_sampling_methods_use_the_same_score(plain):
    """Occlusion of a text target is the drop of the cosine when a patch is removed."""
    images, text = pictures(plain), texts(2, WIDE)
    probe = vitreous.Probe(compare_with_texts(plain, F.normalize(text, dim=-1), 1.0), images, torch.tensor([0, 1]))
    keep = ~torch.eye(probe.layout.patches, dtype=torch.bool).expand(2, -1, -1)

    found = vitreous.explain(plain, images, vitreous.text_target(text), "occlusion")

    torch.testing.assert_close(found.patches, found.score[:, None] - probe.score(keep))


def test_a_black_box_may_answer_with_embeddings():
    torch.manual_seed(0)
    swin = SwinTransformer(img_size=32, embed_dim=8, depths=(1,), num_heads=(1,), window_size=4, num_classes=WIDE)
    vit = vitreous.wrap(swin.eval(), black_box=True)
    images = torch.randn(2, 3, 32, 32)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Caveat)
        found = vitreous.explain(vit, images, vitreous.text_target(texts(2, WIDE)), "rise", masks=20)

    with torch.no_grad():
        torch.testing.assert_close(found.score, F.cosine_similarity(swin(images), texts(2, WIDE).float()))
    assert found.native_pixels.isfinite().all()


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: vitreous.text_target(texts(WIDE + 1)), r"9 numbers, but .* embeddings of 8"),
        (lambda: vitreous.text_target(texts(3, WIDE)), "texts for 3 images, and 2 were given"),
        (lambda: vitreous.text_target(texts(2, WIDE), names=["a", "b", "c"]), "3 names for 2 x 1 texts"),
        (lambda: vitreous.text_target(texts(1, 1, 2, WIDE)), r"known: \[d\]"),
        (lambda: vitreous.text_target(torch.tensor([1, 2])), "not torch.int64"),
        (lambda: vitreous.text_target(torch.zeros(WIDE)), "no direction"),
        (lambda: vitreous.text_target(torch.full((WIDE,), torch.nan)), "no direction"),
        (lambda: vitreous.text_target("a zebra"), "is a tensor, an array or a list"),
        (lambda: vitreous.text_target([texts(3), texts(4)]), "of one shape"),
        (lambda: vitreous.text_target(texts(WIDE), scale=0), "above 0"),
        (lambda: vitreous.text_target(texts(WIDE), scale="large"), "above 0"),
        (lambda: vitreous.text_target(texts(WIDE), scale=texts(2)), "one number"),
        (lambda: vitreous.text_target(texts(WIDE), against=texts(2, 3)), "3 numbers per text"),
        (lambda: texts(2, WIDE), "vitreous.text_target"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(tower, make, sentence):
    with pytest.raises(ShapeError, match=sentence) as refused:
        vitreous.explain(tower, pictures(tower), make())
    assert "\n" not in str(refused.value)


def test_a_flat_list_of_texts_gets_a_hint(tower):
    with pytest.raises(ShapeError, match=r"\[1 k d\]"):
        vitreous.explain(tower, pictures(tower, 1), vitreous.text_target(texts(3, WIDE)))


@pytest.mark.parametrize("question", ["margin", "probability", "log-probability"])
def test_one_text_alone_is_not_compared(tower, question):
    with pytest.raises(SpecError, match="compares texts"):
        vitreous.explain(tower, pictures(tower), vitreous.text_target(texts(WIDE)), "ixg", question)


def test_class_targets_of_a_tower_are_refused():
    vit = vitreous.wrap(shaken(named("vit_tiny_patch16_224", num_classes=0)()))

    for target in (None, 3, [[1, 2], [0, 1]]):
        with pytest.raises(ModelError, match=r"no classifier \(num_classes=0\).*text_target"):
            vitreous.explain(vit, pictures(vit), target)
