"""The modules of random small networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.random_blocks import (
    CLASSES,
    SIDE,
    WEAK,
    WIDTH,
    Block,
    Body,
    ConstantFirst,
    Wrapped,
    as_form,
    as_tokens,
    prepare,
    reorder,
    side_of,
)
from tests.capture.random_networks import Augmented, Description, Exchange, Guarded, Join, Trunk, Vit


class Stem(nn.Module):
    """Images to a map of patches."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        patch = 4 if kind == "small patches" else 8
        self.side = SIDE // patch
        if kind == "convolutions":
            self.layers = nn.Sequential(
                nn.Conv2d(3, WIDTH, 4, 4), nn.BatchNorm2d(WIDTH), nn.GELU(), nn.Conv2d(WIDTH, WIDTH, 2, 2)
            )
        elif kind == "unfolded":
            self.project = nn.Linear(3 * patch**2, WIDTH)
        else:
            self.project = nn.Conv2d(3, WIDTH, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "convolutions":
            return self.layers(x)
        if self.kind == "unfolded":
            return self.project(F.unfold(x, 8, stride=8).mT).mT.unflatten(-1, (self.side, self.side))
        return self.project(x)


class Network(nn.Module):
    """The network of a `Trunk`."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.stem = Stem(trunk.stem)
        self.others = trunk.others or int(trunk.read == "class token") if trunk.form == "sequence" else 0
        self.extra = nn.Parameter(torch.zeros(1, self.others, WIDTH))
        self.sides = [self.stem.side]
        for step in trunk.steps:
            self.sides.append(after(step.scale, self.sides[-1]))
        self.position = nn.Parameter(torch.zeros(1, self.sides[0] ** 2, WIDTH))
        outside = trunk.layout in ("pairs", "lists", "outside")
        made: list[nn.Module] = [
            Body(step.kind, trunk.form, self.others) if outside else Block(step, trunk.form, self.others)
            for step in trunk.steps
        ]
        if trunk.layout == "shared":
            made = made[:1]
        if trunk.layout == "bare":
            for number, block in enumerate(made, 1):
                setattr(self, f"s{number}", block)
        elif trunk.layout == "pairs":
            self.layers = nn.ModuleList(nn.ModuleList([block, Body("mlp", trunk.form)]) for block in made)
        elif trunk.layout == "lists":
            self.firsts = nn.ModuleList(made)
            self.seconds = nn.ModuleList(Body("mlp", trunk.form) for _ in made)
        elif trunk.layout == "sequential":
            self.blocks = nn.Sequential(*made)
        elif trunk.layout == "constant first":
            self.blocks = nn.ModuleList(map(ConstantFirst, made))
            self.extra_constant = nn.Parameter(torch.zeros(()))
        elif trunk.layout == "wrapped":
            self.encoder = Wrapped(nn.ModuleDict({"layers": nn.ModuleList(map(Wrapped, made))}))
        else:
            self.blocks = nn.ModuleList(made)
        read = self.sides[-1] ** 2 * WIDTH if trunk.read == "flat" else WIDTH
        self.head_norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(read, CLASSES)
        self.second = nn.Linear(WIDTH, CLASSES)
        if trunk.read == "pixels too":
            self.direct = nn.Linear(3, CLASSES)
        if trunk.read == "gated":
            self.gate = nn.Linear(WIDTH, CLASSES)
        self.flip_tokens = False

    def pieces(self) -> list[Callable[..., Tensor]]:
        """One function per step, from tokens and those of the stem to tokens."""
        count, layout = len(self.trunk.steps), self.trunk.layout
        if layout == "bare":
            return [getattr(self, f"s{number}") for number in range(1, count + 1)]
        if layout in ("pairs", "lists"):
            pairs = self.layers if layout == "pairs" else zip(self.firsts, self.seconds, strict=True)
            return [self.pair(*pair) for pair in pairs]
        if layout == "wrapped":
            return list(self.encoder.inner["layers"])
        if layout == "outside":
            return [self.outside(block) for block in self.blocks]
        if layout == "constant first":
            return [partial(block, self.extra_constant) for block in self.blocks]
        return list(self.blocks) * (count if layout == "shared" else 1)

    @staticmethod
    def pair(first: nn.Module, second: nn.Module) -> Callable[..., Tensor]:
        def run(x: Tensor, memory: Tensor | None) -> Tensor:
            x = first(x, memory) + x
            return second(x) + x

        return run

    @staticmethod
    def outside(block: nn.Module) -> Callable[..., Tensor]:
        return lambda x, memory: x + block(x, memory)

    def start(self, images: Tensor) -> Tensor:
        """The tokens of the stem."""
        maps = self.stem(prepare(self.trunk.prepare, images))
        return torch.cat([self.extra.expand(len(maps), -1, -1), maps.flatten(2).mT + self.position], 1)

    def advance(self, number: int, x: Tensor, stem: Tensor) -> Tensor:
        """The tokens after a step, in their own order again."""
        step, form, others = self.trunk.steps[number], self.trunk.form, self.others
        orders = [step.order, "flipped"] if self.flip_tokens else [step.order]
        x = resample(x, self.sides[number + 1], others)
        for order in orders:
            x = reorder(order, x, others)
        y = self.pieces()[number](as_form(form, x), stem if step.kind == "context" else None)
        x = as_tokens(form, y[0] if isinstance(y, tuple) else y)
        for order in reversed(orders):
            x = reorder(order, x, others, undo=True)
        return x

    def forward(self, images: Tensor) -> Tensor:
        x = self.start(images)
        stem, levels = x.clone(), []  # a block may change its input in place
        for number in range(len(self.trunk.steps)):
            x = self.advance(number, x, stem)
            levels.append(x.clone())
        return self.read(images, stem, x, levels)

    def read(self, images: Tensor, stem: Tensor, x: Tensor, levels: list[Tensor]) -> Tensor:
        match self.trunk.read:
            case "flat":
                return self.head(x[:, self.others :].flatten(1))
            case "class token" if self.others:
                return self.head(self.head_norm(x)[:, 0] + x.mean(1))  # few blocks mix tokens
            case "max":
                return self.head(x.amax(1))
            case "pyramid":
                return sum(self.head(self.head_norm(level).mean(1)) for level in levels)
            case "u" if not self.others:
                up = resample(levels[-1], self.sides[1], 0)
                return self.head(self.head_norm(up + levels[0]).mean(1))
            case "stem too":
                return self.head(x.mean(1)) + self.second(stem[:, self.others :].mean(1))
            case "pixels too":
                return self.head(x.mean(1)) + self.direct(images.square().mean((2, 3)))
            case "gated":
                return self.head(x.mean(1)) * self.gate(stem[:, self.others :].mean(1)).sigmoid()
            case "two heads":
                return self.head(x.mean(1)) + self.second(self.head_norm(x)[:, self.others :].amax(1))
        return self.head(self.head_norm(x).mean(1))


def after(scale: str, side: int) -> int:
    """Rows of tokens after a change of resolution; between 2 and 8."""
    return min(2 * side, 8) if scale == "up" else max(side // 2, 2) if scale == "down" else side


def resample(x: Tensor, side: int, others: int) -> Tensor:
    """Patch tokens on a coarser or a finer grid."""
    prefix, patches = x.split([others, x.shape[1] - others], 1)
    before = side_of(patches)
    if side == before:
        return x
    maps = patches.mT.unflatten(-1, (before, before))
    maps = F.avg_pool2d(maps, before // side) if side < before else F.interpolate(maps, size=(side, side))
    return torch.cat([prefix, maps.flatten(2).mT], 1)


class WithVit(nn.Module):
    """The module of a `Vit`."""

    def __init__(self, description: Vit) -> None:
        import timm

        super().__init__()
        self.description = description
        sizes: dict[str, Any] = {"img_size": SIDE, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}
        vit = timm.create_model(
            "vit_tiny_patch16_224",
            num_classes=CLASSES,
            class_token=description.pool == "token",
            global_pool=description.pool,
            reg_tokens=description.registers,
            **sizes,
        )
        if description.aliased:
            self.other_name = vit
        self.inner: nn.Module = vit
        for _ in range(description.nested):
            self.inner = Wrapped(self.inner)
        self.head, self.classes = nn.Linear(12, CLASSES), nn.Linear(CLASSES, CLASSES)
        self.flip_tokens = False

    def forward(self, images: Tensor) -> Tensor:
        vit: Any = self.inner
        while isinstance(vit, Wrapped):
            vit = vit.inner
        x = prepare(self.description.prepare, images)
        x = x.flip(-1) if self.flip_tokens else x
        match self.description.after:
            case "linear":
                return self.classes(F.gelu(self.inner(x)))
            case "scaled":
                return self.inner(x) / 0.7
            case "features":
                return self.head(vit.forward_features(x).mean(1))
            case "tokens too":
                tokens = vit.forward_features(x)
                return vit.forward_head(tokens) + self.head(tokens.square().mean(1))
            case "middle too":
                last, between = vit.forward_intermediates(x, output_fmt="NLC", norm=True)
                return vit.forward_head(last) + self.head(between[0].mean(1))
        return self.inner(x)


class Joined(nn.Module):
    def __init__(self, description: Join) -> None:
        super().__init__()
        self.how = description.how
        self.parts = nn.ModuleList(map(module_of, description.trunks))
        self.head = nn.Linear(len(self.parts) * CLASSES, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.stack([part(images) for part in self.parts])
        match self.how:
            case "mean":
                return logits.mean(0)
            case "concatenated":
                return self.head(torch.cat(list(logits), -1))
            case "product":
                return logits.prod(0)
            case "largest":
                return logits.amax(0)
        return logits.sum(0)


class Exchanging(nn.Module):
    def __init__(self, description: Exchange) -> None:
        super().__init__()
        self.first, self.second = map(Network, description.trunks)

    def forward(self, images: Tensor) -> Tensor:
        pair = (self.first, self.second)
        stems = states = [network.start(images) for network in pair]
        for number in range(max(len(network.trunk.steps) for network in pair)):
            means = [x.mean(1, keepdim=True) for x in states]
            states = [
                network.advance(number, x + WEAK * mean, stem) if number < len(network.trunk.steps) else x
                for network, x, mean, stem in zip(pair, states, reversed(means), stems, strict=True)
            ]
        return sum(network.second(network.head_norm(x).mean(1)) for network, x in zip(pair, states, strict=True))


class TwoPasses(nn.Module):
    def __init__(self, description: Augmented) -> None:
        super().__init__()
        self.transform, self.network = description.transform, module_of(description.trunk)

    def forward(self, images: Tensor) -> Tensor:
        return (self.network(images) + self.network(prepare(self.transform, images))) / 2


class Conditional(nn.Module):
    def __init__(self, description: Guarded) -> None:
        super().__init__()
        self.more, self.network = description.more, module_of(description.trunk)
        self.direct = nn.Linear(3, CLASSES)
        if self.more == "other trunk":
            self.other = Network(Trunk())

    def forward(self, images: Tensor) -> Tensor:
        bright = bool(images.abs().mean() > 1.5)
        self.network.flip_tokens = bright and self.more == "flipped tokens"
        logits = self.network(images)
        if not bright:
            return logits
        match self.more:
            case "pixels":
                return logits + self.direct(images.square().mean((2, 3)))
            case "other trunk":
                return logits + self.other(images)
            case "head":
                return logits.roll(1, -1) * 2
        return logits


MODULES: dict[type, Callable[[Any], nn.Module]] = {
    Trunk: Network,
    Vit: WithVit,
    Join: Joined,
    Exchange: Exchanging,
    Augmented: TwoPasses,
    Guarded: Conditional,
}


def module_of(description: Description) -> nn.Module:
    return MODULES[type(description)](description)


def build(description: Description) -> nn.Module:
    """The network with random weights in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = module_of(description)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = 0.02 if "inner." in name else 0.2  # attention of a transformer has to stay weak
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return module.double().eval()
