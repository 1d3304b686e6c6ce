"""Small random models of the families of timm."""

from __future__ import annotations

from typing import Any

from architecture_case import Case, timm_case
from torch import nn

TINY_VIT = {"embed_dims": (16, 32, 64, 64), "num_heads": (1, 2, 4, 4)}
TWINS = {"embed_dims": (16, 32, 64, 64), "num_heads": (1, 2, 4, 4)}
MIXER: dict[str, Any] = {"img_size": 64, "num_blocks": 3, "embed_dim": 96, "num_classes": 7}
MAXXVIT = {"embed_dim": (32, 64, 64, 64), "depths": (2, 2, 2, 2)}


# Fewer blocks and channels where the entry function of timm or torchvision does not take them.
def small_mvit() -> nn.Module:
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    return MultiScaleVit(MultiScaleVitCfg(depths=(1, 2, 2, 1), embed_dim=24), img_size=64, num_classes=7)


def small_volo() -> nn.Module:
    from timm.models.volo import VOLO

    widths: dict[str, Any] = {"embed_dims": (48, 96, 96, 96), "num_heads": (2, 4, 4, 4)}
    return VOLO((2, 1, 2, 1), img_size=64, num_classes=7, stem_hidden_dim=16, **widths)


def small_gcvit() -> nn.Module:
    from timm.models.gcvit import GlobalContextVit

    return GlobalContextVit(img_size=64, depths=(2, 2, 2, 2), embed_dim=32, num_heads=(1, 2, 4, 8), num_classes=7)


def small_focalnet() -> nn.Module:
    from timm.models.focalnet import FocalNet

    return FocalNet(depths=(1, 1, 2, 1), embed_dim=24, num_classes=7)


def small_caformer() -> nn.Module:
    from timm.models.metaformer import Attention, LayerNorm2dNoBias, LayerNormNoBias, MetaFormer, SepConv

    mixers, norms = [SepConv] * 2 + [Attention] * 2, [LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2
    widths: dict[str, Any] = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 96)}
    return MetaFormer(**widths, token_mixers=mixers, norm_layers=norms, num_classes=7)


def small_poolformer() -> nn.Module:
    from timm.models.metaformer import GroupNorm1, MetaFormer

    widths: dict[str, Any] = {"depths": (1, 1, 2, 2), "dims": (16, 32, 64, 96)}
    options: dict[str, Any] = {"mlp_act": nn.GELU, "mlp_bias": True, "res_scale_init_values": None}
    options |= {"layer_scale_init_values": 1e-5, "use_mlp_head": False}
    return MetaFormer(**widths, downsample_norm=None, norm_layers=GroupNorm1, num_classes=7, **options)


def small_mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(patch_size=32, **MIXER)


def small_resmlp() -> nn.Module:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    return MlpMixer(patch_size=16, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine, **MIXER)


def small_gmlp() -> nn.Module:
    from timm.layers import GatedMlp
    from timm.models.mlp_mixer import MlpMixer, SpatialGatingBlock

    return MlpMixer(patch_size=16, mlp_ratio=6, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp, **MIXER)


def small_nest() -> nn.Module:
    from timm.models.nest import Nest

    widths: dict[str, Any] = {"embed_dims": (24, 48, 96), "num_heads": (3, 6, 12), "depths": (2, 2, 8)}
    return Nest(img_size=64, pad_type="same", num_classes=7, **widths)


TIMM = (
    timm_case("vit_tiny_patch16_224", 64, img_size=64, depth=4),
    timm_case("deit_tiny_distilled_patch16_224", 64, img_size=64, depth=3),
    timm_case("deit3_small_patch16_224", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
    timm_case("beit_base_patch16_224", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
    timm_case("eva02_tiny_patch14_224", 56, img_size=56, depth=3),
    timm_case("vit_small_patch16_dinov3", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
    timm_case("vit_relpos_small_patch16_224", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
    timm_case("vit_tiny_r_s16_p8_224", 96, img_size=96, depth=3),
    timm_case("swin_tiny_patch4_window7_224", 64, img_size=64, window_size=4, embed_dim=24, depths=(2, 2, 2, 2)),
    timm_case("swinv2_tiny_window8_256", 64, img_size=64, window_size=4, embed_dim=24, depths=(2, 2, 2, 2)),
    timm_case("hiera_tiny_224", 96, img_size=(96, 96), embed_dim=24, stages=(1, 1, 2, 1)),
    timm_case("pvt_v2_b0", 64, depths=(1, 1, 2, 1), embed_dims=(16, 32, 40, 64)),
    Case("mvitv2_tiny", "timm", small_mvit, (64, 64)),
    timm_case("davit_tiny", 64, embed_dims=(24, 48, 96, 96), num_heads=(3, 3, 3, 3)),
    timm_case("twins_pcpvt_small", 64, img_size=64, depths=(1, 1, 2, 1), **TWINS),
    timm_case("twins_svt_small", 64, img_size=64, depths=(2, 2, 2, 2), **TWINS),
    timm_case("coatnet_nano_rw_224", 64, img_size=64, **MAXXVIT),
    timm_case("maxvit_tiny_rw_224", 64, img_size=64, **MAXXVIT),
    Case("volo_d1_224", "timm", small_volo, (64, 64)),
    timm_case("xcit_nano_12_p16_224", 64, img_size=64, depth=4),
    timm_case("cait_xxs24_224", 64, img_size=64, depth=6),
    timm_case("crossvit_tiny_240", 120, img_size=120, depth=((1, 2, 0), (1, 2, 0))),
    timm_case("levit_128s", 64, img_size=64),
    timm_case("nextvit_small", 64, depths=(1, 1, 5, 2)),
    timm_case("mobilevit_xxs", 128),
    timm_case("mobilevitv2_050", 64),
    timm_case("edgenext_xx_small", 64),
    timm_case("efficientformer_l1", depths=(1, 1, 1, 2), embed_dims=(16, 32, 48, 96)),
    timm_case("efficientformerv2_s0", 64, img_size=64),
    timm_case("efficientvit_m0", 128, img_size=128),
    timm_case("tiny_vit_5m_224", 112, depths=(1, 2, 2, 1), window_sizes=(4, 4, 7, 4), **TINY_VIT),
    Case("gcvit_xxtiny", "timm", small_gcvit, (64, 64)),
    Case("focalnet_tiny_srf", "timm", small_focalnet, (64, 64)),
    Case("poolformer_s12", "timm", small_poolformer, (64, 64)),
    Case("caformer_s18", "timm", small_caformer, (64, 64)),
    Case("mixer_s32_224", "timm", small_mixer, (64, 64)),
    Case("resmlp_12_224", "timm", small_resmlp, (64, 64)),
    Case("gmlp_s16_224", "timm", small_gmlp, (64, 64)),
    timm_case("convnext_atto", 64, depths=(1, 1, 2, 1)),
    timm_case("convnextv2_atto", 64, depths=(1, 1, 2, 1)),
    timm_case("fastvit_t8", 64),
    timm_case("resnet18", 64),
    timm_case("efficientnet_b0", 64),
    timm_case("mobilenetv4_hybrid_medium", 64),
    timm_case("densenet121", 64, block_config=(2, 2, 3, 2)),
    timm_case("convit_tiny", 64, img_size=64, depth=5, local_up_to_layer=3),
    timm_case("coat_tiny", 64, img_size=64, embed_dims=(32,) * 4, serial_depths=(1,) * 4, parallel_depth=2),
    timm_case("vgg11", 64, mlp_ratio=1 / 64),
    Case("nest_tiny_jx", "timm", small_nest, (64, 64)),
    timm_case("regnety_002", 64),
    timm_case("mambaout_femto", 64, depths=(1, 1, 2, 1), dims=(24, 48, 96, 96)),
    # layouts whose branches, gates or parallel parts may be taken for blocks
    timm_case("vit_small_patch16_18x2_224", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
    timm_case("xception41", 64),
    timm_case("cspresnet50", 64),
    timm_case("cs3darknet_s", 64),
    timm_case("cspdarknet53", 64),
    timm_case("hrnet_w18_small", 64),
    timm_case("inception_v3", 96),
    timm_case("dla34", 64),
    timm_case("dpn68", 64),
    timm_case("resnest14d", 64),
    timm_case("skresnet18", 64),
    timm_case("ghostnet_050", 64),
    timm_case("mobilenetv3_small_050", 64),
    timm_case("starnet_s1", 64),
    timm_case("shvit_s1", 64),
    timm_case("efficientvit_b0", 64),
    timm_case("efficientvim_m1", 64),
    timm_case("visformer_tiny", 64, img_size=64),
    timm_case("pit_ti_224", 64, img_size=64),
    timm_case("tnt_s_patch16_224", 64, img_size=64, depth=2),
    timm_case("samvit_base_patch16_224", 64, img_size=64, embed_dim=96, depth=3, num_heads=4),
)
