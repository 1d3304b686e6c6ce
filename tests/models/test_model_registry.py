"""Model adapters and sources are found through the registry, and checked by `vitreous.testing.check_model`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

import vitreous
from tests.cases import each
from tests.models.families import FAMILIES, build, seen, tiny
from vitreous.capture.forward import adapter_logits
from vitreous.core import registry
from vitreous.core.errors import ModelError, SpecError
from vitreous.models.model_registry import ADAPTERS, SOURCES, adapt
from vitreous.models.vit import AttentionBranch, Block, Layout, LinearPool, MlpBranch, ViT, mean_rows
from vitreous.testing import ContractError, check_model

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class OwnBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.scaled_dot_product_attention(*self.heads(self.norm(x)))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class OwnViT(nn.Module):
    """A vision transformer that no library has: 2 blocks, 16 patches of 4 x 4, mean pooling."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.patches, self.blocks = nn.Conv2d(3, width, 4, 4), nn.ModuleList(OwnBlock(width) for _ in range(2))
        self.positions = nn.Parameter(0.3 * torch.randn(16, width, generator=torch.Generator().manual_seed(1)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def embed(self, images: Tensor) -> Tensor:
        return self.patches(images).flatten(2).mT + self.positions

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def describe(model: OwnViT, name: str = "own") -> ViT:
    blocks = tuple(
        Block(
            AttentionBranch(part.norm, part.heads, part.out, scale=(part.out.in_features // 2) ** -0.5),
            MlpBranch(part.second_norm, lambda x, part=part: (part.up(x),), F.gelu, part.down),
        )
        for part in model.blocks
    )
    return ViT(
        name=name,
        module=model,
        embed=model.embed,
        blocks=blocks,
        norm=model.norm,
        pool=LinearPool(mean_rows(0)),
        pooled_norm=nn.Identity(),
        classify=lambda pooled: model.head(pooled[:, 0]),
        layout=lambda size: Layout((4, 4), (4, 4), 0),
        forward=model,
        size=(16, 16),
    )


def own_vit() -> OwnViT:
    torch.manual_seed(0)
    return OwnViT().double().eval()


@pytest.fixture
def own() -> Iterator[str]:
    """Adapter and source "own", registered for one test."""
    vitreous.adapter("own", matches=lambda module: isinstance(module, OwnViT))(describe)

    @vitreous.source("own", families=[("Own", "own:small", "of a test")])
    def create(name: str, *, checkpoint=None, pretrained: bool = True, width: int = 8) -> nn.Module:
        return OwnViT(width)

    yield "own"
    ADAPTERS.discard("own")
    SOURCES.discard("own")


# ── third-party adapters ─────────────────────────────────────────────────────────────────────────


def test_a_module_without_adapter_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'OwnViT' is not a timm.*register an adapter"):
        adapt(own_vit())


def test_a_registered_adapter_is_used_by_wrap_load_and_explain(own: str) -> None:
    model = own_vit()

    vit = vitreous.wrap(model)
    loaded = vitreous.load("own:small", width=12)

    assert vit.depth == 2
    assert vit.module is model
    assert loaded.name == "own:small"
    assert loaded.module.head.in_features == 12
    attribution = vitreous.explain(model, IMAGES.double(), target=1, method="decompx+plus")
    assert attribution.patches.shape == (2, 16)
    assert {"family": "Own", "example": "own:small", "notes": "of a test", "origin": "tests"} in vitreous.list_models()


def test_plugins_are_tried_before_the_adapters_of_the_package() -> None:
    vitreous.adapter("mine", matches=lambda module: module is tiny("vit"))(lambda module, name: seen("deit"))
    try:
        assert adapt(tiny("vit")).module is tiny("deit")
        assert adapt(tiny("beit")).module is tiny("beit")
    finally:
        ADAPTERS.discard("mine")


def test_names_are_unique_and_results_are_checked(own: str) -> None:
    with pytest.raises(SpecError, match=r"model adapter 'timm' is already registered by vitreous\.models\.timm"):
        vitreous.adapter("timm", matches=lambda module: False)(describe)
    with pytest.raises(ModelError, match="'own:' names no model; write it behind the colon, as in 'own:small'"):
        vitreous.load("own:")
    ADAPTERS.discard("own")
    vitreous.adapter("own", matches=lambda module: isinstance(module, OwnViT))(lambda module, name: module)
    with pytest.raises(ModelError, match="the adapter 'own' returned 'OwnViT' for a module, not a ViT"):
        adapt(own_vit())


def test_a_plugin_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "no_such_package.module:function", "vitreous.somethings")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
    plugins: registry.Registry[int] = registry.Registry("something")

    with pytest.raises(SpecError, match=r"plugin 'broken' of vitreous.somethings could not be loaded.*No module named"):
        plugins["x"]


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Registry[int]:
    """Registry whose package, with one module that registers 1 as "one", is not imported yet."""
    package = tmp_path / f"numbers_of_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(
        "from vitreous.core.registry import numbers\nnumbers.add('one', 1, 'vitreous.first', ('1',))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    numbers: registry.Registry[int] = registry.Registry("number", package.name)
    monkeypatch.setattr(registry, "numbers", numbers, raising=False)
    return numbers


@pytest.mark.parametrize(
    "read",
    [
        lambda numbers: numbers["ONE"] == 1,
        lambda numbers: list(numbers) == ["one"],
        lambda numbers: len(numbers) == 1,
        lambda numbers: "1" in numbers,
    ],
    ids=["item", "names", "length", "contains"],
)
def test_a_registry_is_complete_when_it_is_read(read: Callable[[Any], bool], numbers: registry.Registry[int]) -> None:
    assert read(numbers)


def test_names_of_a_package_that_is_not_imported_yet_are_taken(numbers: registry.Registry[int]) -> None:
    with pytest.raises(SpecError, match=r"number 'one' is already registered by vitreous\.first; mine must choose"):
        numbers.add("one", 2, "mine")


def test_owners_and_aliases_are_known_without_reading_a_name_before(numbers: registry.Registry[int]) -> None:
    assert numbers.owner("one") == "vitreous.first"
    assert numbers.aliases("one") == ("1",)


def test_names_may_be_registered_while_others_are_iterated_over(numbers: registry.Registry[int]) -> None:
    for name in numbers:
        numbers.add(f"{name}-again", 1, "mine")

    assert len(numbers) == 2


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: registry.Registry[int]
) -> Iterator[Callable[[str], str]]:
    """Write a module that is a plugin of `numbers`, whose entry point names its attribute `value`; return its name."""
    module = f"plugin_of_{tmp_path.name}"

    def write(lines: str) -> str:
        text = f"from vitreous.core.registry import numbers\n{lines}\n"
        (tmp_path / f"{module}.py").write_text(text)
        point = EntryPoint("more", f"{module}:value", numbers.group)
        monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == point.group else [])
        return module

    yield write
    sys.modules.pop(module, None)


ADD_TWO = "value = numbers.add('two', 2, __name__)"


def test_a_plugin_can_be_imported_before_the_registry_is_read(
    install: Callable[[str], str], numbers: registry.Registry[int]
) -> None:
    module = import_module(install(ADD_TWO))

    assert module.value == 2
    assert list(numbers) == ["one", "two"]


def test_a_plugin_may_read_the_registry_while_it_is_loaded(
    install: Callable[[str], str], numbers: registry.Registry[int]
) -> None:
    install(f"assert 'one' in numbers\n{ADD_TWO}")

    assert list(numbers) == ["one", "two"]


def test_a_registry_is_complete_for_every_thread_that_reads_it(
    install: Callable[[str], str], numbers: registry.Registry[int]
) -> None:
    install(f"import time\ntime.sleep(0.2)\n{ADD_TWO}")

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: list(numbers), range(4))) == [["one", "two"]] * 4


def test_a_name_that_two_plugins_chose_is_refused_at_every_reading(
    install: Callable[[str], str], numbers: registry.Registry[int]
) -> None:
    module = install(ADD_TWO)
    numbers.add("two", -2, "mine")

    for _ in range(2):
        with pytest.raises(SpecError, match=f"number 'two' is already registered by mine; {module} must choose"):
            list(numbers)


# ── a ViT that was built by hand ─────────────────────────────────────────────────────────────────


def test_a_hand_built_vit_is_explained() -> None:
    vit = describe(own_vit())

    attribution = vitreous.explain(vit, IMAGES.double(), target=[0, 2], method="decompx+plus")
    scores = vitreous.evaluate(vit, IMAGES.double(), attribution, "deletion_aopc").scores

    assert attribution.patches.shape == (2, 16)
    assert scores.isfinite().all()


def test_a_wrong_hand_built_vit_is_refused_with_a_message() -> None:
    right = describe(own_vit())
    wrong = replace(right, blocks=right.blocks[::-1])

    with pytest.raises(ModelError, match="'own' and its parts as Vitreous sees them disagree by"):
        vitreous.explain(wrong, IMAGES.double())
    with pytest.raises(ModelError, match=r"how many outputs 'own' has is known once"):
        right.outputs


# ── contract tests ───────────────────────────────────────────────────────────────────────────────

FLOAT32_INSIDE = ("rope-mixed",)  # timm mixes these frequencies in float32 whatever the model's precision


@pytest.mark.slow
@each("family", FAMILIES)
def test_the_adapters_of_timm_pass_the_contract_tests(family: str) -> None:
    model = seen(family) if family in FLOAT32_INSIDE or family == "vit-one-output" else tiny(family)

    checked = check_model(model, method=None)

    assert float(checked["handshake"]) < 1e-12
    assert {"removal_is_exact", "gradients_are_the_models_own", "shares_add_up"} <= checked.keys()


def test_check_model_runs_the_contract_tests_of_a_method_too(own: str) -> None:
    checked = check_model(own_vit(), "ixg+first")

    assert {"handshake", "removal_is_exact", "precision_does_not_matter", "cost_is_as_stated"} <= checked.keys()


def test_check_model_says_why_an_adapter_does_not_describe_a_model() -> None:
    wrong = deepcopy(tiny("vit"))
    wrong.forward_head = lambda tokens, **_: 2 * wrong.head(tokens[:, 0])

    with pytest.raises(ModelError, match=r"has no adapter, so there is none to check \(.*disagree by"):
        check_model(wrong, method=None)


def moved(vit: ViT) -> ViT:
    """Rotary positions of the first tokens instead of those that are there."""

    def rotate(attend: AttentionBranch):
        return lambda heads, place: attend.rotate(
            heads, place if place.index is None else replace(place, index=place.index * 0)
        )

    return replace(
        vit, blocks=tuple(replace(b, attention=replace(b.attention, rotate=rotate(b.attention))) for b in vit.blocks)
    )


def test_each_broken_adapter_is_reported_with_a_message() -> None:
    vit, rotary = seen("vit"), seen("eva02")
    miscounted = replace(vit, layout=lambda size: replace(vit.layout(size), prefix=2))
    constant = replace(vit, forward=torch.no_grad()(vit.forward))

    with pytest.raises(ContractError, match=r"its layout has 14 tokens, and `embed` returns 13"):
        check_model(miscounted, method=None)
    with pytest.raises(ContractError, match=r"removing \d+ patches gives wrong logits: off by"):
        check_model(moved(rotary), method=None)
    with pytest.raises(ContractError, match="its logits have no gradient with respect to the image"):
        check_model(constant, method=None)


def test_an_adapter_with_a_fixed_precision_is_reported(own: str) -> None:
    ADAPTERS.discard("own")

    @vitreous.adapter("own", matches=lambda module: isinstance(module, OwnViT))
    def rounded(model: OwnViT, name: str) -> ViT:
        vit = describe(model, name)
        return replace(vit, embed=lambda images: model.embed(images).bfloat16().to(images))

    model = own_vit().bfloat16()

    with pytest.raises(ContractError, match=r"in float64, .*disagree by"):
        check_model(model, method=None)


def test_an_adapter_that_mixes_images_of_a_batch_is_reported() -> None:
    vit = seen("vit")
    centred = replace(vit, embed=lambda images: vit.embed(images) + 1e-3 * vit.embed(images).mean(0, keepdim=True))
    same = replace(centred, forward=lambda images: adapter_logits(centred, images))

    with pytest.raises(ContractError, match="an image alone gets other logits than in a batch"):
        check_model(same, method=None)


def test_training_mode_is_restored() -> None:
    model = build("vit").train()

    check_model(model, method=None)

    assert model.training


# ── origin ───────────────────────────────────────────────────────────────────────────────────────


def test_origin_is_typed_and_cannot_be_changed():
    vit = adapt(torchvision.models.VisionTransformer(32, 16, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16))

    assert vit.origin == vitreous.ModelOrigin(library="torchvision", class_name="VisionTransformer")
    with pytest.raises(AttributeError):
        vit.origin.source = "another"


def test_a_default_device_without_values_is_refused():
    vit = vitreous.load("scenes")
    for call in (
        lambda: vitreous.load("scenes"),
        lambda: vitreous.wrap(vit.module),
        lambda: vitreous.explain(vit, BLANK),
        lambda: vitreous.evaluate(vit, BLANK, CONSTANT),
    ):
        with (
            torch.device("meta"),
            pytest.raises(vitreous.ModelError, match=r"default device is 'meta', .*'cpu'. would work"),
        ):
            call()


BLANK, CONSTANT = torch.zeros(1, 3, 112, 112), torch.zeros(1, 196)
