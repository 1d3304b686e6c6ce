"""Operations that no backward rule reaches: explained as autograd does, or refused in a sentence that names them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vitreous
from tests.cases import each
from vitreous.capture.operation_registry import RULES
from vitreous.capture.unseen_operations import uncompiled
from vitreous.core.errors import ModelError, NoGradientError

# of a reentrant checkpoint that runs without a graph
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
WIDTH, SIZE = 8, 16


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


class Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * (1 + ctx.saved_tensors[0].cos())


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x


@torch.library.custom_op("vitreous_tests::wave", mutates_args=())
def custom_wave(x: Tensor) -> Tensor:
    return x + x.sin()


custom_wave.register_autograd(
    lambda ctx, gradient: gradient * (1 + ctx.saved_tensors[0].cos()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("vitreous_tests::one_way", mutates_args=())
def custom_one_way(x: Tensor) -> Tensor:
    return 2 * x


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def negated(x: Tensor) -> Tensor:
    return -x


def scripted(target: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch call TorchScript deprecated
        return torch.jit.script(target)


def traced(target: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(target, torch.rand(1, 16, WIDTH))


def without_graph_only(x: Tensor) -> Tensor:
    if x.requires_grad:
        raise NotImplementedError("wave attention has no backward pass on this device. Use another one.")
    return x


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Applied(nn.Module):
    """A function of an MLP and tokens."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.mlp = function, mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.mlp, x)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        states = [torch.zeros_like(x[:, 0])]
        for token in x.unbind(1):
            states.append(self.cell(token, states[-1]))
        return torch.stack(states[1:], 1)


class Bright(nn.Module):
    """Calls a part for bright images only."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.limit = part, float("inf")

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) if x.abs().mean() > self.limit else x


class Block(nn.Module):
    def __init__(self, part: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.mix, self.mlp, self.part = nn.LayerNorm(WIDTH), nn.Linear(16, 16), mlp(), part

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x).mT).mT
        x = x if self.part is None else x + self.part(x)
        return x + self.mlp(x)


class Tokens(nn.Module):
    """Two blocks, of which the second one calls a part, or the part is called before them."""

    def __init__(self, part: nn.Module, before: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.before = part if before else nn.Identity()
        self.blocks = nn.ModuleList([Block(None), Block(None if before else part)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.before(self.patches(images).flatten(2).mT)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def network(make: Callable[[], nn.Module], before: bool = False) -> Tokens:
    torch.manual_seed(0)
    return Tokens(make(), before).double().eval()


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)).double()


def applied(function: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Applied(function)


def inner_gradient(part: nn.Module, x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: part(y).sum())(x)


SWITCHED_OFF = ("torch.utils.checkpoint", "with gradient checkpointing switched off")
FUNCTION = "the same computed by torch functions would work"
WHOLE_BATCH = "on the whole batch by torch functions would work"
OWN_RULE = "vitreous.operation_rule registers a rule"

REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "function": (applied(lambda part, x: Wave.apply(part(x))), ("torch.autograd.Function 'Wave'", FUNCTION)),
    "function of a part": (
        applied(lambda part, x: Wave.apply(part(x).unflatten(-1, (2, -1)).unbind(-2)[0]).repeat(1, 1, 2)),
        ("torch.autograd.Function 'Wave'", FUNCTION),
    ),
    "function without backward": (applied(lambda part, x: OneWay.apply(part(x))), ("'OneWay'", FUNCTION)),
    "scripted module": (lambda: scripted(mlp()), ("'blocks.1.part' (torch.jit)", "the module it was made from")),
    "traced module": (lambda: traced(mlp()), ("'blocks.1.part' (torch.jit)", "the module it was made from")),
    "scripted function": (applied(lambda part, x: scripted(gelu)(part(x))), ("Gelu", "torch.jit.script", FUNCTION)),
    "GRU": (lambda: Recurrent(nn.GRU(WIDTH, WIDTH, batch_first=True)), ("'gru' has no rule", OWN_RULE)),
    "LSTM": (lambda: Recurrent(nn.LSTM(WIDTH, WIDTH, batch_first=True)), ("'lstm' has no rule", OWN_RULE)),
    "RNN": (lambda: Recurrent(nn.RNN(WIDTH, WIDTH, batch_first=True)), ("'rnn_tanh' has no rule", OWN_RULE)),
    "GRUCell": (Cell, ("'gru_cell' has no rule", OWN_RULE)),
    "vmap": (applied(lambda part, x: torch.vmap(part)(x)), ("torch.vmap", WHOLE_BATCH)),
    "gradient": (applied(inner_gradient), ("torch.func", FUNCTION)),
    "reentrant checkpoint": (applied(lambda part, x: checkpoint(part, x, use_reentrant=True)), SWITCHED_OFF),
    "checkpoint": (applied(lambda part, x: checkpoint(part, x, use_reentrant=False)), SWITCHED_OFF),
    "custom operation": (applied(lambda part, x: custom_wave(part(x))), ("'wave.default' has no rule", OWN_RULE)),
    "custom operation without backward": (applied(lambda part, x: custom_one_way(part(x))), ("one_way",)),
    "operation in place": (applied(lambda part, x: part(x).sin_()), ("'sin_' has no rule", OWN_RULE)),
    "no graph": (applied(lambda part, x: without_graph_only(part(x))), ("wave attention has no backward pass",)),
}


@each("make, parts", REFUSED.values())
def test_an_operation_is_refused_by_name(make: Callable[[], nn.Module], parts: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        vitreous.see_through(network(make), size=(SIZE, SIZE))

    sentence = str(caught.value)
    assert sentence.startswith("'Tokens' cannot be ")
    assert [part for part in (*parts, "black_box=True needs no") if part not in sentence] == []
    assert "\n" not in sentence
    assert "''" not in sentence


class Beside(Tokens):
    """A part is called beside the blocks."""

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        y = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.head((x + 0.001 * y).mean(1))


@each("name", ["function", "scripted module", "gradient", "reentrant checkpoint", "vmap", "GRU"])
def test_an_operation_beside_the_blocks_is_refused_by_name(name: str) -> None:
    make, parts = REFUSED[name]
    torch.manual_seed(0)
    module = Beside(make(), before=True).double().eval()

    with pytest.raises(ModelError, match="'Beside' cannot be ") as caught:
        vitreous.see_through(module, size=(SIZE, SIZE))

    assert parts[0].replace("blocks.1.part", "before") in str(caught.value)


LATE = ("function", "function without backward", "scripted module", "GRU", "vmap", "checkpoint", "no graph")


@each("case", [(spec, name) for spec in ("ixg", "attnlrp", "decompx") for name in LATE])
def test_an_operation_that_few_images_reach_is_refused_by_name(case: tuple[str, str]) -> None:
    spec, name = case
    make, parts = REFUSED[name]
    module = network(lambda: Bright(make()))
    described = vitreous.see_through(module, size=(SIZE, SIZE))
    vitreous.explain(described, images(), target=1, method=spec)
    module.blocks[1].part.limit = 0.0  # type: ignore[union-attr]

    with pytest.raises(ModelError) as caught:
        vitreous.explain(described, images(), target=1, method=spec)

    path = "blocks.1.part.part" if name == "scripted module" else ""
    assert path in str(caught.value)
    assert all(part in str(caught.value) for part in parts if "blocks" not in part)


def test_a_scripted_function_alone_is_another_way_through_a_network() -> None:
    """It adds nodes to the graph without a call of a torch function."""
    function = scripted(gelu)
    module = network(lambda: Bright(Applied(lambda part, x: function(x))))
    described = vitreous.see_through(module, size=(SIZE, SIZE))
    module.blocks[1].part.limit = 0.0  # type: ignore[union-attr]

    with pytest.raises(ModelError, match=r"another way through 'Tokens'.*\(Gelu\), as in a function of torch\.jit"):
        vitreous.explain(described, images(), target=1, method="attnlrp")


RIGHT = {
    "linear function": (applied(lambda part, x: Twice.apply(part(x))), False),
    "linear scripted function": (applied(lambda part, x: scripted(negated)(part(x))), False),
    "functional call": (applied(lambda part, x: torch.func.functional_call(part, dict(part.named_parameters()), x)), False),
    "filter": (applied(lambda part, x: torch.fft.irfft(torch.fft.rfft(part(x), dim=1)[:, :5], n=16, dim=1)), False),
    "reentrant checkpoint before": (applied(lambda part, x: checkpoint(part, x, use_reentrant=True)), True),
    "checkpoint before": (applied(lambda part, x: checkpoint(part, x, use_reentrant=False)), True),
    "vmap before": (applied(lambda part, x: torch.vmap(part)(x)), True),
}  # fmt: skip


@each("make, before", RIGHT.values())
def test_what_autograd_follows_is_explained_as_autograd_does(make: Callable[[], nn.Module], before: bool) -> None:
    module = network(make, before)
    described = vitreous.see_through(module, size=(SIZE, SIZE))

    attribution = vitreous.explain(described, images(), target=1, method="ixg")
    shares = vitreous.explain(described, images(), target=1, method="decompx")

    torch.testing.assert_close(attribution.patches, input_x_gradient(module), rtol=1e-9, atol=1e-12)
    assert shares.residual is not None
    assert shares.residual.abs().max() < 1e-12


def input_x_gradient(module: Tokens) -> Tensor:
    """Input times gradient of class 1 at the first block, by plain autograd."""
    with torch.no_grad():
        x = module.before(module.patches(images()).flatten(2).mT)
    x.requires_grad_()
    y = x
    for block in module.blocks:
        y = block(y)
    (gradient,) = torch.autograd.grad(module.head(y.mean(1))[:, 1].sum(), x)
    return (x * gradient).sum(-1).detach()


def test_the_name_in_a_refusal_is_the_one_that_a_rule_is_registered_by(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(call: Any) -> Tensor:
        x = call.args[0]
        return x * call.hold(1 + x.sin() / x)

    monkeypatch.setitem(RULES, "wave.default", rule)
    described = vitreous.see_through(network(REFUSED["custom operation"][0]), size=(SIZE, SIZE))

    assert len(described.blocks) == 2


def test_tensors_that_the_caller_keeps_elsewhere_are_no_checkpoint() -> None:
    described = vitreous.see_through(network(nn.Identity), size=(SIZE, SIZE))

    with torch.autograd.graph.save_on_cpu():
        attribution = vitreous.explain(described, images(), target=1, method="decompx")

    torch.testing.assert_close(
        attribution.patches, vitreous.explain(described, images(), target=1, method="decompx").patches
    )


@each("name", ["function without backward", "reentrant checkpoint", "custom operation without backward", "no graph"])
def test_methods_with_gradients_refuse_a_black_box_that_passes_none_on(name: str) -> None:
    described = vitreous.wrap(network(REFUSED[name][0]), black_box=True, size=(SIZE, SIZE))

    with pytest.raises(
        NoGradientError, match=r"'Tokens' passes no gradient on to its images \(.+\), and 'ig' computes"
    ):
        vitreous.explain(described, images(), target=1, method="ig")


def test_an_activation_of_a_vit_without_backward_is_refused() -> None:
    from timm.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=3)
    vit.blocks[1].mlp.act = Applied(lambda part, x: OneWay.apply(x))  # type: ignore[union-attr]
    described = vitreous.wrap(vit.eval())

    with pytest.raises(
        ModelError, match=r"'VisionTransformer' cannot be linearised: .*'OneWay'; black_box=True needs no"
    ):
        vitreous.explain(described, torch.zeros(1, 3, 32, 32), target=1, method="ixg")


def test_a_share_that_is_lost_at_the_pixels_has_no_block_without_a_name() -> None:
    module = nn.Sequential(scripted(network(nn.Identity)))

    with pytest.raises(ModelError, match="is lost on the way from the pixels; it uses the scripted module '0'"):
        vitreous.see_through(module, size=(SIZE, SIZE))


@pytest.mark.slow  # imports the compiler
def test_compiled_parts_are_followed_as_they_were_written() -> None:
    compiled: list[Any] = []

    def compile_graph(graph: Any, examples: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    module = network(mlp)
    expected = vitreous.explain(
        vitreous.see_through(module, size=(SIZE, SIZE)), images(), target=1, method="attnlrp"
    ).patches
    block: Any = module.blocks[1]
    block.part = torch.compile(block.part, backend=compile_graph)

    described = vitreous.see_through(module, size=(SIZE, SIZE))
    attribution = vitreous.explain(described, images(), target=1, method="attnlrp")

    torch.testing.assert_close(attribution.patches, expected, rtol=0, atol=0)
    assert compiled == []
    for order in ((0, 1), (1, 0)):  # of two threads, whichever ends first
        scopes = [uncompiled(), uncompiled()]
        for scope in scopes:
            scope.__enter__()
        scopes[order[0]].__exit__(None, None, None)
        module(images())
        assert compiled == []
        scopes[order[1]].__exit__(None, None, None)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the compiler's own
        module(images())
    assert len(compiled) == 1
