"""Card E5: TokenTM, equation by equation."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.reference import reference_for
from tests.reference.scene import Scene
from tests.reference.vectors import sent


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.norm() * b.norm())


def weights(E: Tensor, Et: Tensor, length: bool, necc: bool, eps: float = 0.0) -> Tensor:
    """‖Et_j‖ / ‖E_j‖ · softmax_j cos(E_j, Et_j), either factor left out on demand; [N]."""
    N = len(E)
    w = torch.ones(N, dtype=torch.float64)
    if length:
        w = w * torch.stack([Et[j].norm() / (E[j].norm() + eps) for j in range(N)])
    if necc:
        correlation = torch.stack([cosine(E[j], Et[j]) for j in range(N)]).exp()
        w = w * correlation / correlation.sum()
    return w


@reference_for("tokentm", question="probability")
@reference_for("VTranM(preset='full')", question="probability")
@reference_for("tokentm(source='norm')", question="probability", source="norm")
@reference_for("tokentm(value_bias=True)", question="probability", value_bias=True)
@reference_for("tokentm(start=1)", question="probability", start=1)
@reference_for("tokentm@libra", question="probability", held="libra")
@reference_for("tokentm(preset='af+l')", question="probability", necc=False)
@reference_for("tokentm(preset='af')", question="probability", necc=False, length=False, lengths=False)
@reference_for("tokentm(length=False)", question="probability", length=False)
@reference_for("tokentm(row='cls')", question="probability", cls=True)
@torch.no_grad()
def tokentm(
    scene: Scene, source="residual", value_bias=False, length=True, necc=True, lengths=True, start=0, cls=False
) -> Tensor:
    """C = diag ‖E⁰‖, then C ← U_ffn U_att C from block to block."""
    eye = torch.eye(scene.N, dtype=torch.float64)
    C = torch.diag(scene.X[start].norm(dim=-1)) if lengths else eye
    for layer in range(start, scene.L):
        block = scene.model.blocks[layer]
        E = scene.X[layer] if source == "residual" else scene.U[layer]
        f = sent(scene, layer, "included" if value_bias else "excluded")
        heads = [
            scene.G[layer][h].relu() * (scene.A[layer][h] @ torch.diag(weights(E, f[h], length, necc)))
            for h in range(len(f))
        ]
        U_att = eye + sum(heads) / len(heads)
        Y = scene.Y[layer]
        branch = block.ls2(block.mlp(block.norm2(Y)))
        E = Y if source == "residual" else block.norm2(Y)
        U_ffn = eye + torch.diag(weights(E, branch, length, necc))
        C = U_ffn @ U_att @ C
    return C[0] if cls else scene.rho @ C


@reference_for("tokentm(preset='baseline')", question="probability")
def baseline(scene: Scene) -> Tensor:
    """Equation 8 at the first layer: C = I + mean_h relu(G) ⊙ A."""
    A, G = scene.A[0], scene.G[0]
    C = torch.eye(scene.N, dtype=torch.float64) + sum(G[h].relu() * A[h] for h in range(len(A))) / len(A)
    return scene.rho @ C


@reference_for("tokentm(preset='libragrad')", question="probability")
@reference_for("tokentm(variant='libragrad', length=False)", question="probability", length=False)
@torch.no_grad()
def as_libragrad_runs_it(scene: Scene, length: bool = True) -> Tensor:
    """Streams after each sub-layer, one weight per layer, attention and gradient averaged apart."""
    eye = torch.eye(scene.N, dtype=torch.float64)
    C = torch.diag(scene.X[0].norm(dim=-1))
    for layer in range(scene.L):
        W = torch.diag(weights(scene.X[layer], scene.Y[layer], length, True, 1e-8))
        U_att = eye + scene.G[layer].relu().mean(0) * (scene.A[layer].mean(0) @ W)
        U_ffn = eye + torch.diag(weights(scene.Y[layer], scene.X[layer + 1], length, True, 1e-8))
        C = U_ffn @ U_att @ C
    return scene.rho @ C


@reference_for("tokentm+plus(mode='restart')", question="probability")
def tokentm_restarted(scene: Scene) -> Tensor:
    """Σ_l of TokenTM run on the blocks from l on, each from the lengths of the tokens that enter block l."""
    return sum(tokentm(scene, start=start) for start in range(scene.L))
