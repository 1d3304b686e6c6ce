"""Cards A1–A3, C2, D1–D5, D10, D12: attention, its gradient, and folds over layers, with whole N × N matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.reference import MODELS, POSITIONS, half, reference_for
from tests.reference.scene import Scene

Matrices = Callable[[Scene, int], Tensor]  # T of one layer [N N]


def mean_of_heads(heads: Tensor) -> Tensor:
    return sum(heads) / len(heads)


# ── folds of matrices ────────────────────────────────────────────────────────────────────────────


def rolled(scene: Scene, matrices: list[Tensor], form: str, cls: bool = False) -> Tensor:
    """R ← M R from the first matrix to the last; then the row that the head reads."""
    identity = torch.eye(scene.N, dtype=torch.float64)
    R = identity
    for T in matrices:
        match form:
            case "add":
                M = identity + T
            case "half":
                M = 0.5 * identity + 0.5 * T
            case "half-normalised":
                sums = T.sum(-1, keepdim=True)
                M = 0.5 * identity + 0.5 * torch.stack([t / s if s else t for t, s in zip(T, sums, strict=True)])
            case "none":
                M = T
            case "normalised":
                M = T + identity
                M = M / M.sum(-1, keepdim=True)
            case "vit-explain":  # as published: no keepdim
                M = (T + identity) / 2
                M = M / M.sum(-1)
        R = M @ R
    return R[0] if cls else scene.rho @ R


def layers_of(scene: Scene, layers: str) -> range:
    start, stop = {
        "all": (0, scene.L),
        "last": (scene.L - 1, scene.L),
        "first": (0, 1),
        "second": (1, 2),
        "half": (half(scene), scene.L),
    }[layers]
    return range(start, stop)


def read(scene: Scene, T: Matrices, layers: str) -> Tensor:
    """rho^T Σ_l T_l over the layers: one layer, PLUS or SkipPLUS."""
    return scene.rho @ sum(T(scene, layer) for layer in layers_of(scene, layers))


# ── attention ────────────────────────────────────────────────────────────────────────────────────


def fused(scene: Scene, layer: int, heads: str = "mean", discard: float = 0.0) -> Tensor:
    A = scene.A[layer]
    T = mean_of_heads(A) if heads == "mean" else A.max(0).values if heads == "max" else A.min(0).values
    flat = T.clone().flatten()
    for entry in flat.argsort()[: int(len(flat) * discard)]:
        if entry != 0:
            flat[entry] = 0
    return flat.view_as(T)


@reference_for("rawattention", layers="last")
@reference_for("rawattention+first", layers="first")
@reference_for("rawattention+at(layer=1)", layers="second")
@reference_for("rawattention+plus", layers="all")
@reference_for("rawattention+skipplus", layers="half")
def rawattention(scene: Scene, layers: str) -> Tensor:
    return read(scene, fused, layers)


@reference_for("rollout", models=(*MODELS, *POSITIONS, "siglip", "vit-no-class-token"))
@reference_for("rawattention+rollout")
@reference_for("rollout(form='normalised')", form="normalised")
@reference_for("rollout(form='none')", form="none")
@reference_for("rollout(form='half-normalised', discard=0.5)", form="half-normalised", discard=0.5)
@reference_for("rollout(form='add')", form="add")
@reference_for("rollout(start=1)", start=1)
@reference_for("rollout(preset='chefer')", start=1)
@reference_for("rollout(heads='max')", heads="max")
@reference_for("rollout(heads='min', form='normalised')", heads="min", form="normalised")
@reference_for("rollout(discard=0.9)", discard=0.9)
@reference_for("rollout(discard=0.5, form='vit-explain', heads='max')", discard=0.5, form="vit-explain", heads="max")
@reference_for("rollout(row='cls')", cls=True)
@reference_for("rawattention+rollout(form='add', start=2)", form="add", start=2)
def rollout(scene: Scene, form="half", start=0, heads="mean", discard=0.0, cls=False) -> Tensor:
    return rolled(scene, [fused(scene, layer, heads, discard) for layer in range(start, scene.L)], form, cls)


@reference_for("rollout(preset='vit-explain')")
@reference_for("rollout(preset='tis')")
def published_rollout(scene: Scene) -> Tensor:
    """The patches of vit-explain's map, divided by their largest."""
    patches = rollout(scene, form="vit-explain", discard=0.9)[scene.P :]
    return patches / patches.max()


@reference_for("rawattention+rollout(form='half', gain=5.0)")
def amplified_rollout(scene: Scene) -> Tensor:
    return rolled(scene, [5 * fused(scene, layer) for layer in range(scene.L)], "half")


@reference_for("attnfrom", layers="last")
@reference_for("attnfrom+first", layers="first")
@reference_for("attnfrom+plus", layers="all")
@reference_for("attnfrom+skipplus", layers="half")
def attnfrom(scene: Scene, layers: str) -> Tensor:
    return sum(received(scene, layer) for layer in layers_of(scene, layers))


def received(scene: Scene, layer: int) -> Tensor:
    A = scene.A[layer]
    return torch.stack([A[:, :, j].mean() for j in range(scene.N)])


# ── attention and its gradient ───────────────────────────────────────────────────────────────────

PARTS = {"signed": lambda G: G, "abs": torch.abs, "relu": torch.relu}

for part, of in PARTS.items():

    @reference_for(f"attngrad(part='{part}')", of=of)
    @reference_for(f"attngrad(part='{part}')+plus", of=of, layers="all")
    @reference_for(f"attngrad(part='{part}')+skipplus", of=of, layers="half")
    def attngrad(scene: Scene, of: Callable[[Tensor], Tensor], layers: str = "last") -> Tensor:
        return read(scene, lambda s, layer: mean_of_heads(of(s.G[layer])), layers)


@reference_for("attngrad+rollout")
def attngrad_rollout(scene: Scene) -> Tensor:
    return rolled(scene, [mean_of_heads(G) for G in scene.G], "half")


def positive(scene: Scene, layer: int, variant: str = "chefer") -> Tensor:
    A, G = scene.A[layer], scene.G[layer]
    match variant:
        case "bt":
            return mean_of_heads(A * G).relu()
        case "interpretdl":
            return (mean_of_heads(A) * mean_of_heads(G)).relu()
    return mean_of_heads((A * G).relu())


@reference_for("genatt", models=(*MODELS, *POSITIONS, "siglip", "vit-no-class-token", "eva-large", "eva-giant"))
@reference_for("gae(start=1)", start=1)
@reference_for("genatt(variant='bt')", variant="bt")
@reference_for("genatt(variant='interpretdl', start=1)", variant="interpretdl", start=1)
@reference_for("genatt(row='cls')", cls=True)
@reference_for("genatt@libra", held="libra")
@reference_for("genatt@attnlrp", held="attnlrp")
@reference_for("genatt@conservative", held="conservative")
@reference_for("genatt+rollout")
@reference_for("genatt+rollout(form='half')", form="half")
def genatt(scene: Scene, variant: str = "chefer", start: int = 0, cls: bool = False, form: str = "add") -> Tensor:
    """R ← R + T R."""
    R = torch.eye(scene.N, dtype=torch.float64)
    for layer in range(start, scene.L):
        R = R + positive(scene, layer, variant) @ R
        R = R / 2 if form == "half" else R
    return R[0] if cls else scene.rho @ R


@reference_for("genatt+rollout(form='half-normalised')")
def genatt_with_normalised_rows(scene: Scene) -> Tensor:
    return rolled(scene, [positive(scene, layer, "chefer") for layer in range(scene.L)], "half-normalised")


@reference_for("genatt+last", layers="last")
@reference_for("genatt+first", layers="first")
@reference_for("genatt+at(layer=1)", layers="second")
@reference_for("genatt+plus", layers="all")
@reference_for("genatt+plus(mode='layers')", layers="all")
@reference_for("genatt+skipplus", layers="half")
@reference_for("genatt@libra+plus", layers="all", held="libra")
@reference_for("gradsam(reduction='cls')", layers="all")
@reference_for("genatt(variant='bt')+plus", layers="all", variant="bt")
def genatt_of_layers(scene: Scene, layers: str, variant: str = "chefer") -> Tensor:
    return read(scene, lambda s, layer: positive(s, layer, variant), layers)


@reference_for("attngrad(part='relu')+rollout(form='add')")
def attngrad_rollout_added(scene: Scene) -> Tensor:
    return rolled(scene, [mean_of_heads(G.relu()) for G in scene.G], "add")


@reference_for("genatt+plus(mode='restart')")
@reference_for("genatt+skipplus(mode='restart')", skip=True)
def genatt_restarted(scene: Scene, skip: bool = False) -> Tensor:
    return sum(genatt(scene, start=start) for start in range(half(scene) if skip else 0, scene.L))


@reference_for("gradsam")
@reference_for("gradsam@libra", held="libra")
def gradsam(scene: Scene) -> Tensor:
    """(1 / L H N) Σ A ⊙ relu(G) over layers, heads and queries."""
    s = torch.zeros(scene.N, dtype=torch.float64)
    for A, G in zip(scene.A, scene.G, strict=True):
        for a, g in zip(A, G, strict=True):
            s += (a * g.relu()).sum(1)
    return s / (scene.L * len(scene.A[0]) * scene.N)


# ── attention received × token × gradient ────────────────────────────────────────────────────────


def pairs(scene: Scene, layer: int, pair: str) -> Tensor:
    of = layer if pair == "input" else layer + 1
    return received(scene, layer) * (scene.X[of] * scene.g[of]).sum(1)


@reference_for("attixg")
@reference_for("attixg(pair='output')", pair="output")
@reference_for(
    "attixg(pair='output')+last", pair="output", layers="last", models=("vit-mean", "vit-swiglu")
)  # else 0: a norm reads it
@reference_for("attixg@libra+skipplus", layers="half", held="libra")
@reference_for("attcat", layers="all")
@reference_for("attcat(preset='official')", layers="all")
@reference_for("attcat@libra", layers="all", held="libra")
@reference_for("attcat(pair='output')", layers="all", pair="output")
@reference_for("attixg+skipplus", layers="half")
def attixg(scene: Scene, pair: str = "input", layers: str = "first") -> Tensor:
    return sum(pairs(scene, layer, pair) for layer in layers_of(scene, layers))


@reference_for("attcat(preset='skipplus')")
@reference_for("attcat(pair='output', last_block=False)")
def attcat_as_skipplus_runs_it(scene: Scene) -> Tensor:
    return sum(pairs(scene, layer, "output") for layer in range(scene.L - 1))


# ── AttCAM ───────────────────────────────────────────────────────────────────────────────────────


def head_weighted(scene: Scene, layer: int, skip: int | None = None) -> Tensor:
    """T[i, j] = mean_h w[h, i] A[h, i, j], w[h, i] = the mean of G[h, i, :] over patches."""
    A, G = scene.A[layer], scene.G[layer]
    T = torch.zeros(scene.N, scene.N, dtype=torch.float64)
    for a, g in zip(A, G, strict=True):
        for i in range(scene.N):
            T[i] += g[i, scene.P if skip is None else skip :].mean() * a[i] / len(A)
    return T


@reference_for("attcam", layers="last")
@reference_for("attcam(skip=1)", layers="last", skip=1)
@reference_for("attcam(preset='skipplus')+plus", layers="all", skip=1)
@reference_for("attcam+skipplus", layers="half")
@reference_for("attcam@libra", layers="last", held="libra")
def attcam(scene: Scene, layers: str, skip: int | None = None) -> Tensor:
    return read(scene, lambda s, layer: head_weighted(s, layer, skip), layers)


@reference_for("attcam(preset='chefer')")
def attcam_as_chefer_shows_it(scene: Scene) -> Tensor:
    patches = attcam(scene, "last", skip=1)[scene.P :].relu()
    return (patches - patches.min()) / (patches.max() - patches.min())
