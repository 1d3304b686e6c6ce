"""timm's families: the described parts reproduce the logits, others are refused by name, and no model is modified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.layers.attention import Attention
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import (
    Block,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from torch import Tensor, nn

import vitreous
from tests.cases import each
from tests.models.families import FAMILIES, SIZE, SMALL, build, has_timm, made, named, pictures, seen, shaken, tiny
from vitreous.capture.adapter_check import compare_with_model
from vitreous.capture.probe import Probe
from vitreous.core.errors import ModelError, ShapeError
from vitreous.methods.method import METHODS
from vitreous.models.timm import from_timm

EVERY = each("family", FAMILIES)

ROOMS = ("tokens", "cams", "attention", "vectors", "transition", "controls")  # one forward and backward each
OWN = [name for name in METHODS if METHODS.owner(name).removeprefix("vitreous.methods.") in ROOMS]


# ── logits of the parts ───────────────────────────────────────────────────────────────────────────


@pytest.mark.shapes
@EVERY
def test_the_parts_reproduce_the_logits_of_the_model(family: str) -> None:
    vit = from_timm(tiny(family), family)

    agreement = compare_with_model(vit)

    assert agreement.gap < 1e-12
    assert agreement.count == tiny(family).num_classes


@EVERY
def test_the_probe_has_the_logits_of_the_model(family: str) -> None:
    own = tiny(family)(pictures())

    heard = Probe(seen(family), pictures()).head_output.logits

    torch.testing.assert_close(heard, own, rtol=1e-12, atol=1e-12)


@EVERY
def test_the_layout_counts_the_tokens_that_there_are(family: str) -> None:
    vit = seen(family)

    layout = vit.layout(SIZE)

    assert layout.grid == (3, 4)
    assert layout.size == SIZE
    assert vit.embed(pictures()).shape[1] == layout.tokens


def test_eva_large_is_pooled_by_its_mean_and_read_as_such() -> None:
    reading = Probe(seen("eva-large"), pictures()).head_output

    assert tiny("eva-large").global_pool == "avg"
    torch.testing.assert_close(reading.readout[0], torch.tensor([0.0] + [1 / 12] * 12, dtype=torch.float64))


def test_a_distilled_model_is_read_at_both_its_tokens() -> None:
    reading = Probe(seen("deit-distilled"), pictures()).head_output

    torch.testing.assert_close(reading.readout[0], torch.tensor([0.5, 0.5] + [0.0] * 12, dtype=torch.float64))


@pytest.mark.parametrize(
    ("family", "blind"), [("siglip", 0), ("map-skips-prefix", 3), ("map-reads-prefix", 0), ("perception-encoder", 0)]
)
def test_an_attention_pooler_is_read_by_its_mean_attention(family: str, blind: int) -> None:
    readout = Probe(seen(family), pictures()).head_output.readout

    torch.testing.assert_close(readout.sum(-1), torch.ones(2, dtype=torch.float64))
    assert (readout[:, :blind] == 0).all()
    assert (readout[:, blind:] > 0).all()
    assert readout.std() > 0.01


@pytest.mark.parametrize("family", ["vit-dynamic", "dinov3", "sapiens2"])
@pytest.mark.parametrize("size", [(40, 24), (16, 48)])
def test_other_image_sizes_have_the_logits_of_the_model(family: str, size: tuple[int, int]) -> None:
    images = pictures(2, size)

    probe = Probe(seen(family), images)

    assert probe.layout.grid == (size[0] // 8, size[1] // 8)
    torch.testing.assert_close(probe.full_logits, tiny(family)(images), rtol=1e-12, atol=1e-12)


def test_an_unsupported_image_size_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"24x32 images, not 40x24.*dynamic_img_size=True"):
        Probe(seen("vit"), pictures(1, (40, 24)))
    with pytest.raises(ShapeError, match="36x24 does not divide into patches of 8x8"):
        Probe(seen("vit-dynamic"), pictures(1, (36, 24)))


@pytest.mark.parametrize("family", ["vit", "vit-mean", "siglip", "deit-distilled", "beit", "eva02", "dinov3"])
def test_an_existing_module_is_wrapped_without_changes(family: str) -> None:
    model = tiny(family)

    vit = vitreous.wrap(model)

    assert vit.module is model
    assert vit.depth == 3
    assert vit.size == SIZE


# ── refused by name ──────────────────────────────────────────────────────────────────────────────


class OwnBlock(Block):
    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return 2 * super().forward(x)


def gated() -> nn.Module:
    if not has_timm("1.0.28"):
        pytest.skip("gated attention needs timm 1.0.28")
    model = made(VisionTransformer)()
    model.blocks[1].attn = Attention(24, num_heads=2, gated=True)
    return model


def pooled_with_positions() -> nn.Module:
    model = named("vit_base_patch16_siglip_224")()
    model.attn_pool.pos_embed = nn.Parameter(torch.zeros(12, 24))
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "swin": (
        lambda: SwinTransformer(img_size=32, embed_dim=8, depths=(1,), num_heads=(1,), window_size=4),
        "'SwinTransformer'",
    ),
    "parallel": (named("vit_base_patch16_xp_224"), "a block of type 'ParallelScalingBlock'"),
    "parallel things": (made(VisionTransformer, block_fn=ParallelThingsBlock), "a block of type 'ParallelThingsBlock'"),
    "post-norm": (made(VisionTransformer, block_fn=ResPostBlock), "a block of type 'ResPostBlock'"),
    "post-norm eva": (named("eva02_enormous_patch14_clip_224"), "a block of type 'EvaBlockPostNorm'"),
    "a user's block": (made(VisionTransformer, block_fn=OwnBlock), "a block of type 'OwnBlock'"),
    "differential attention": (made(VisionTransformer, attn_layer="diff"), "attention of type 'DiffAttention'"),
    "gated attention": (gated, "gated attention output"),
    "avgmax": (made(VisionTransformer, global_pool="avgmax"), "global_pool='avgmax'; known: 'token', 'avg', 'map'"),
    "max": (made(VisionTransformer, global_pool="max"), "global_pool='max'"),
    "no pool": (made(VisionTransformer, global_pool=""), "global_pool=''"),
    "prr": (made(VisionTransformer, global_pool="prr"), "global_pool='prr'"),
    "pooler with positions": (pooled_with_positions, "attention pooling with position embedding"),
    "no distilled head": (named("deit_tiny_distilled_patch16_224", num_classes=0), "no classifier .*num_classes=0"),
    "a network in front": (lambda: timm.create_model("vit_tiny_r_s16_p8_224", img_size=64), "'HybridEmbed'"),
    "a plain network": (lambda: nn.Linear(2, 2), "'Linear' is not a family"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unknown_models_are_refused_by_name(case: str) -> None:
    build_it, words = REFUSED[case]

    with pytest.raises(ModelError, match=words):
        compare_with_model(from_timm(build_it(), case))


def test_parallel_blocks_are_refused_at_any_position() -> None:
    model = made(VisionTransformer)()
    model.blocks[2] = ParallelScalingBlock(24, 2)

    with pytest.raises(ModelError, match="ParallelScalingBlock"):
        from_timm(model)


class Doubled(VisionTransformer):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward(x)


class Faithful(VisionTransformer):
    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(x)


class Residual(VisionTransformer):
    def forward_features(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward_features(x) + 0.1


@pytest.mark.parametrize("kind", [Doubled, Residual])
def test_a_subclass_with_other_logits_is_refused(kind: type[VisionTransformer]) -> None:
    vit = from_timm(shaken(kind(**SMALL)), kind.__name__)

    with pytest.raises(ModelError, match=rf"'{kind.__name__}'.*is its forward overridden"):
        compare_with_model(vit)


def test_a_subclass_with_the_same_logits_is_accepted() -> None:
    assert compare_with_model(from_timm(shaken(Faithful(**SMALL)))).gap < 1e-12


def test_a_hook_that_changes_values_is_noticed() -> None:
    model = build("vit")
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 1.01)

    with pytest.raises(ModelError, match="hooks attached"):
        compare_with_model(from_timm(model))


def test_weights_that_are_not_numbers_are_noticed() -> None:
    model = build("vit")
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan

    with pytest.raises(ModelError, match="not finite"):
        compare_with_model(from_timm(model))


# ── models are not modified ───────────────────────────────────────────────────────────────────────


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """All state of a model: tensors to the bit, flags, hooks, submodules."""
    seen_of: dict[str, Any] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        content = tensor.detach().clone()
        gradient = None if tensor.grad is None else tensor.grad.clone()
        seen_of[f"tensor {name}"] = (
            id(tensor),
            tensor.data_ptr(),
            tensor._version,
            tensor.requires_grad,
            content,
            gradient,
        )
    for name, part in model.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str | tuple | type(None))}
        hooks = {k: list(v.values()) for k, v in vars(part).items() if "hook" in k and isinstance(v, dict)}
        seen_of[f"part {name}"] = (id(part), type(part), sorted(vars(part)), plain, hooks)
    return seen_of


def same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return isinstance(after, Tensor) and before.dtype == after.dtype and torch.equal(before, after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(before[k], after[k]) for k in before)
    if isinstance(before, tuple | list):
        return len(before) == len(after) and all(map(same, before, after))
    return before == after


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [k for k in sorted({*before, *after}) if k not in before or k not in after or not same(before[k], after[k])]


def used(model: nn.Module) -> nn.Module:
    """A model in use: with gradients, some parts frozen, some in train mode, hooks attached."""
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 > 0)
        parameter.grad = torch.ones_like(parameter) if index % 3 == 1 else None
    model.train()
    model.blocks[1].eval()
    model.blocks[0].register_forward_hook(lambda module, args, output: None)
    return model


FEW = ("decompx", "genatt", "tokentm", "alti", "rollout", "gradcam")  # a method for each way through a model
MIXED_HEADS = ("beit-3", "eva02-clip")  # a norm over all heads: the contribution of one head is not defined


@pytest.mark.parametrize("family", FAMILIES)
def test_no_method_modifies_the_model(family: str) -> None:
    model = used(build(family))
    before, random_before = fingerprint(model), torch.get_rng_state()
    vit, refused = from_timm(model, family), {}
    compare_with_model(vit)

    for name in OWN if family == "vit" or family in MIXED_HEADS else FEW:
        try:
            METHODS[name](Probe(vit, pictures(1), torch.tensor([0])))
        except ModelError as refusal:  # a method may refuse a model, which is not modified then either
            refused[name] = str(refusal)
    Probe(vit, pictures(1)).score(torch.ones(1, 2, 12, dtype=torch.bool))

    assert changed(before, fingerprint(model)) == []
    assert torch.equal(random_before, torch.get_rng_state())
    assert set(refused) == ({"attin", "globenc", "alti", "tokentm"} if family in MIXED_HEADS else set())


@pytest.mark.parametrize("family", ["vit", "vit-mean", "siglip", "beit", "dinov3"])
@pytest.mark.parametrize("hold", [True, False, None])
def test_stopping_early_does_not_modify_the_model(family: str, hold: bool | None) -> None:
    model = used(build(family))
    before = fingerprint(model)
    vit = from_timm(model, family)

    def consume() -> None:
        for layer in Probe(vit, pictures(), hold=hold).layers(biases=True, normed=True):
            if layer.index == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()

    assert changed(before, fingerprint(model)) == []
    assert torch.is_grad_enabled()


def test_a_failing_score_function_does_not_modify_the_model() -> None:
    model = used(build("vit"))
    before = fingerprint(model)

    def fails(logits: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ShapeError, match="ZeroDivisionError"):
        vitreous.resolve("fullgrad@libra+plus")(Probe(from_timm(model), pictures(), question=fails))

    assert changed(before, fingerprint(model)) == []


def test_a_failed_adapter_check_does_not_modify_the_model() -> None:
    model = used(shaken(Doubled(**SMALL)))
    before = fingerprint(model)

    with pytest.raises(ModelError):
        compare_with_model(from_timm(model))

    assert changed(before, fingerprint(model)) == []


MOVING = {"rope_shift_coords": 0.5, "rope_jitter_coords": 2.0, "rope_rescale_coords": 2.0} if has_timm("1.0.30") else {}
DROPPING = {"drop_rate": 0.5, "pos_drop_rate": 0.5, "proj_drop_rate": 0.5, "attn_drop_rate": 0.5, "drop_path_rate": 0.5}
TRAINED = {
    "vit": DROPPING | {"patch_drop_rate": 0.5},
    "vit-mean": DROPPING | {"patch_drop_rate": 0.5},
    "siglip": DROPPING,
    "deit-distilled": DROPPING,
    "beit": DROPPING,
    "eva02": DROPPING | {"patch_drop_rate": 0.5},
    "dinov3": DROPPING | MOVING,
}


@pytest.mark.parametrize("family", TRAINED)
@pytest.mark.parametrize(
    "spec", ["decompx+skipplus", "genatt", "vanillagrad_norm", "tokentm", "vanillagrad_norm(space='pixels')"]
)
def test_a_model_in_training_is_explained_as_it_will_be_used(family: str, spec: str) -> None:
    model, targets = build(family, **TRAINED[family]), torch.tensor([1, 2])
    rested = vitreous.resolve(spec)(Probe(from_timm(model), pictures(), targets))
    if family == "deit-distilled":
        model.set_distilled_training()
    model.train()

    vit = from_timm(model)
    compare_with_model(vit)
    training = vitreous.resolve(spec)(Probe(vit, pictures(), targets))

    torch.testing.assert_close(training.patches, rested.patches, rtol=1e-12, atol=1e-14)
    assert all(part.training for part in model.modules())


def test_dropout_of_a_head_in_training_mode_is_disabled() -> None:
    model, targets = build("vit"), torch.tensor([1, 2])
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    rested = vitreous.resolve("genatt")(Probe(from_timm(model), pictures(), targets))
    model.train()

    training = Probe(from_timm(model), pictures(), targets)

    torch.testing.assert_close(training.full_logits, model.eval()(pictures()))
    model.train()
    torch.testing.assert_close(vitreous.resolve("genatt")(training).patches, rested.patches, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("family", ["dinov3", "vit"])
def test_removing_patches_gives_the_same_logits_in_training_mode(family: str) -> None:
    model, keep = build(family, **TRAINED[family]), torch.arange(12)[None, None] % 2 == 0
    rested = Probe(from_timm(model), pictures(1)).logits(keep)
    model.train()

    training = Probe(from_timm(model), pictures(1)).logits(keep)

    torch.testing.assert_close(training, rested, rtol=1e-12, atol=1e-14)
