"""Cautions about weights that were never trained: of a whole model, or of a classifier that was just created."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitreous.models.model import BlackBox

RANDOM_MODEL = (
    "the weights of the model are random (pretrained=False without a checkpoint), so this map explains no trained model"
)
RANDOM_HEAD = "the classifier has the values that a new layer starts with, so it seems untrained and this map explains a random one"
SPREADS = (0.02, 0.01, 0.02e-3)  # standard deviations of new classifiers in timm, transformers and torchvision
FEWEST = {True: 64, False: 500}  # weights from which on a distribution is recognised, with and without a bias of zero


def weights_caution(model: BlackBox) -> str:
    """A sentence if the model or its classifier seems never to have been trained, else an empty string.

    The classifier is looked at as it is now, since weights may be loaded after a model was described.
    """
    head = find_classifier(model)
    fresh = head is not None and is_fresh(head)
    if model.origin.weights == "random" and (fresh or head is None):
        return RANDOM_MODEL
    return RANDOM_HEAD if fresh else ""


def find_classifier(model: BlackBox) -> nn.Linear | None:
    """The last linear layer if it has as many outputs as the model, else None."""
    layers = [part for part in model.module.modules() if isinstance(part, nn.Linear)]
    count = None if model.output_type is None else model.output_type.count
    return layers[-1] if layers and layers[-1].out_features == count else None


@torch.no_grad()
def is_fresh(layer: nn.Linear) -> bool:
    """Whether weights and bias have the distribution of a new layer: one step of training takes them out of it.

    These are zeros; torch's own start, uniform within ±1/√inputs; and a bias of exactly zero beside weights that are uniform,
    or normal with one of `SPREADS`.
    """
    weight, bias, bound = layer.weight, layer.bias, layer.in_features**-0.5
    zero_bias = bias is None or not bool(bias.any())
    if zero_bias and not bool(weight.any()):
        return True
    if weight.numel() < FEWEST[zero_bias] or bias is None:
        return False
    inside = not zero_bias and bool(weight.abs().max() <= bound * 1.005) and bool(bias.abs().max() <= bound * 1.005)
    if not (zero_bias or inside):  # almost every trained classifier
        return False
    spread, kurtosis = moments(weight)
    unit = 1 / math.sqrt(weight.numel())  # tolerances are about four standard errors
    uniform = abs(kurtosis - 1.8) <= 4 * unit
    if inside:
        return uniform and abs(spread * math.sqrt(3) / bound - 1) <= 2 * unit
    normal = abs(kurtosis - 3) <= 20 * unit
    return uniform or (normal and any(abs(spread / usual - 1) <= 3 * unit for usual in SPREADS))


def moments(weight: Tensor) -> tuple[float, float]:
    """Standard deviation and kurtosis around zero."""
    values = weight.double()
    variance = values.square().mean()
    return variance.sqrt().item(), (values.pow(4).mean() / variance.square()).item()
