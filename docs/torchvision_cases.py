"""Small random models of the families of torchvision."""

from __future__ import annotations

from typing import Any

from architecture_case import Case, torchvision_case
from torch import nn


def small_r3d() -> nn.Module:
    from torchvision.models.video import resnet

    convolutions = [resnet.Conv3DSimple] * 4
    return resnet.VideoResNet(resnet.BasicBlock, convolutions, [1] * 4, resnet.BasicStem, num_classes=7)


def small_swin3d() -> nn.Module:
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 24, [2, 2, 2, 2], [1, 2, 4, 4], [8, 7, 7], num_classes=7)


def small_r2plus1d() -> nn.Module:
    from torchvision.models.video import resnet

    convolutions = [resnet.Conv2Plus1D] * 4
    return resnet.VideoResNet(resnet.BasicBlock, convolutions, [1] * 4, resnet.R2Plus1dStem, num_classes=7)


def small_maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    widths: dict[str, Any] = {"stem_channels": 16, "block_channels": [16, 32, 64, 64], "block_layers": [1] * 4}
    return MaxVit((64, 64), partition_size=2, head_dim=16, stochastic_depth_prob=0.0, num_classes=7, **widths)


TORCHVISION = (
    Case("r3d_18", "torchvision", small_r3d, (8, 32, 32)),
    Case("swin3d_t", "torchvision", small_swin3d, (4, 64, 64)),
    Case("r2plus1d_18", "torchvision", small_r2plus1d, (8, 32, 32)),
    Case("maxvit_t", "torchvision", small_maxvit, (64, 64)),
    torchvision_case("regnet_y_400mf", 64),
    torchvision_case("googlenet", 64, init_weights=False, aux_logits=False),
    torchvision_case("mobilenet_v2", 64),
    torchvision_case("shufflenet_v2_x0_5", 64),
)
