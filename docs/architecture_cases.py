"""Small random models of many families, each with inputs and a score, on which support of any vision model is tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import scores
from vitreous.capture.see_through import see_through
from vitreous.models.model import Network

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
STAGES = {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4]}
TINY_VIT = {"embed_dims": (16, 32, 64, 64), "num_heads": (1, 2, 4, 4)}
TWINS = {"embed_dims": (16, 32, 64, 64), "num_heads": (1, 2, 4, 4)}
MIXER: dict[str, Any] = {"img_size": 64, "num_blocks": 3, "embed_dim": 96, "num_classes": 7}
MAXXVIT = {"embed_dim": (32, 64, 64, 64), "depths": (2, 2, 2, 2)}
OUT = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
WORDS = {**WIDTHS, "vocab_size": 64, "max_position_embeddings": 32}


@dataclass(frozen=True, slots=True)
class Case:
    """One architecture: how to build it, the size of its images or (frames, height, width), and what is explained."""

    name: str
    library: str
    build: Callable[[], nn.Module]
    size: tuple[int, ...]
    score: Callable[[Any], Tensor] | None = None
    blocks: str | None = None
    others: dict[str, Any] = field(default_factory=dict)
    image: str = "pixel_values"

    def see_through(self) -> Network:
        """The network with random weights in float64, or a `ModelError`."""
        torch.manual_seed(0)
        module = randomise(self.build()).double().eval()
        others = self.others or None
        return see_through(module, self.name, size=self.size, blocks=self.blocks, inputs=others, image=self.image)

    def random_input(self) -> Tensor:
        """One random image or clip."""
        generator = torch.Generator().manual_seed(1)
        if len(self.size) == 2:
            return torch.randn(1, 3, *self.size, generator=generator).double()
        clip = torch.randn(1, self.size[0], 3, *self.size[1:], generator=generator).double()
        return clip if self.library == "transformers" else clip.transpose(1, 2)


def timm_case(name: str, size: int = 224, **kwargs: Any) -> Case:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, num_classes=7, **kwargs)

    return Case(name, "timm", build, (size, size))


def hf_case(
    cls: str,
    config: Callable[[Any], Any],
    score: Callable[[Any], Tensor] | None = None,
    size: int | tuple[int, int, int] = 64,
    others: dict[str, Any] | None = None,
    blocks: str | None = None,
    wrapper: Callable[[nn.Module], nn.Module] | None = None,
) -> Case:
    def build() -> nn.Module:
        import transformers

        model = getattr(transformers, cls)(config(transformers))
        return model if wrapper is None else wrapper(model)

    lengths = (size, size) if isinstance(size, int) else size
    image = "pixel_values" if wrapper is None else "images"
    return Case(cls, "transformers", build, lengths, score, blocks, others or {}, image)


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


def small_r3d() -> nn.Module:
    from torchvision.models.video import resnet

    convolutions = [resnet.Conv3DSimple] * 4
    return resnet.VideoResNet(resnet.BasicBlock, convolutions, [1] * 4, resnet.BasicStem, num_classes=7)


def small_swin3d() -> nn.Module:
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 24, [2, 2, 2, 2], [1, 2, 4, 4], [8, 7, 7], num_classes=7)


class PatchesOfImages(nn.Module):
    """Cuts images into the rows of patches that Qwen2-VL takes, as its processor does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, input_ids: Tensor) -> Any:
        vision: Any = self.model.config.vision_config
        side, merged, frames = vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size
        batch, channels, height, width = images.shape
        rows, columns = height // side, width // side
        x = images[:, None].expand(-1, frames, -1, -1, -1)
        x = x.reshape(batch, frames, channels, rows // merged, merged, side, columns // merged, merged, side)
        x = x.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(batch * rows * columns, -1)
        grid = torch.tensor([[1, rows, columns]], device=images.device).expand(batch, 3)
        kinds = (input_ids == self.model.config.image_token_id).int()
        return self.model(input_ids=input_ids, pixel_values=x, image_grid_thw=grid, mm_token_type_ids=kinds)


def randomise(module: nn.Module) -> nn.Module:
    """Values for parameters that random initialisation leaves at 0, 1 or undefined, as trained models have them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel():
                noise = 0.05 * torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.copy_(parameter.nan_to_num(0, 0, 0).clamp(-4, 4) + noise)
    return module


SMALL = (  # checked in the tests on every run
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
    hf_case("ViTForImageClassification", lambda t: t.ViTConfig(image_size=64, patch_size=16, **WIDTHS)),
    hf_case("ViTModel", lambda t: t.ViTConfig(image_size=64, patch_size=16, **WIDTHS), scores.cosine(torch.ones(32))),
    hf_case("BeitForImageClassification", lambda t: t.BeitConfig(image_size=64, patch_size=16, **WIDTHS)),
    hf_case(
        "Dinov2Model",
        lambda t: t.Dinov2Config(
            image_size=56, patch_size=14, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
        ),
        scores.cosine(torch.ones(32)),
        size=56,
    ),
    hf_case(
        "DINOv3ViTModel",
        lambda t: t.DINOv3ViTConfig(image_size=64, patch_size=16, **WIDTHS),
        scores.cosine(torch.ones(32)),
    ),
    hf_case("SwinForImageClassification", lambda t: t.SwinConfig(window_size=2, **SWIN)),
    hf_case("Swinv2ForImageClassification", lambda t: t.Swinv2Config(window_size=2, **SWIN)),
    hf_case(
        "SegformerForSemanticSegmentation",
        lambda t: t.SegformerConfig(decoder_hidden_size=16, **STAGES),
        scores.pixel(3, 4, cls=1),
    ),
    hf_case("ConvNextForImageClassification", lambda t: t.ConvNextConfig(hidden_sizes=[8, 16, 32, 64], depths=[1] * 4)),
    hf_case(
        "YolosForObjectDetection",
        lambda t: t.YolosConfig(image_size=[64, 64], patch_size=16, num_detection_tokens=10, **WIDTHS),
        scores.box(3, 1),
    ),
    hf_case(
        "DetrForObjectDetection",
        lambda t: t.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=t.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, out_features=["stage4"]
            ),
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_queries=7,
        ),
        scores.box(2, 1),
        size=128,
    ),
    hf_case(
        "Mask2FormerForUniversalSegmentation",
        lambda t: t.Mask2FormerConfig(
            backbone_config=t.SwinConfig(window_size=2, **SWIN, **OUT),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=32,
            dim_feedforward=32,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            num_queries=6,
        ),
        scores.box(2, 1),
    ),
    hf_case(
        "MaskFormerForInstanceSegmentation",
        lambda t: t.MaskFormerConfig(
            backbone_config=t.SwinConfig(window_size=2, **SWIN, **OUT),
            fpn_feature_size=32,
            mask_feature_size=32,
            decoder_config=t.DetrConfig(
                d_model=32,
                encoder_layers=1,
                decoder_layers=2,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                num_queries=6,
            ),
        ),
        scores.pixel(3, 4, cls=1),
    ),
    hf_case(
        "DPTForDepthEstimation",
        lambda t: t.DPTConfig(
            image_size=64,
            patch_size=16,
            is_hybrid=False,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=8,
            **{**WIDTHS, "num_hidden_layers": 4},
        ),
        scores.pixel(5, 6),
    ),
    hf_case(
        "SamVisionModel",
        lambda t: t.SamVisionConfig(
            image_size=64,
            patch_size=16,
            window_size=2,
            global_attn_indexes=[1],
            output_channels=16,
            num_pos_feats=8,
            mlp_dim=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
        ),
        lambda output: output.last_hidden_state[:, 1, 2, 1],
    ),
    hf_case(
        "CLIPVisionModelWithProjection",
        lambda t: t.CLIPVisionConfig(image_size=64, patch_size=16, projection_dim=16, **WIDTHS),
        scores.cosine(torch.ones(16)),
    ),
    hf_case(
        "CLIPModel",
        lambda t: t.CLIPConfig(
            text_config={**WORDS, "eos_token_id": 2, "bos_token_id": 1},
            vision_config={"image_size": 64, "patch_size": 16, **WIDTHS},
            projection_dim=16,
        ),
        lambda output: output.logits_per_image[:, 0],
        others={"input_ids": torch.tensor([[1, 5, 9, 2]])},
    ),
    hf_case(
        "SiglipModel",
        lambda t: t.SiglipConfig(text_config=WORDS, vision_config={"image_size": 64, "patch_size": 16, **WIDTHS}),
        lambda output: output.logits_per_image.diagonal(),
        others={"input_ids": torch.tensor([[1, 5, 9, 2]])},
    ),
    hf_case(
        "BlipForConditionalGeneration",
        lambda t: t.BlipConfig(
            text_config={**WORDS, "encoder_hidden_size": 32, "projection_dim": 16},
            vision_config={"image_size": 64, "patch_size": 16, "projection_dim": 16, **WIDTHS},
            projection_dim=16,
            image_text_hidden_size=16,
        ),
        scores.token(5),
        others={"input_ids": torch.tensor([[1, 5, 9, 7]])},
    ),
    hf_case(
        "LlavaForConditionalGeneration",
        lambda t: t.LlavaConfig(
            vision_config=t.CLIPVisionConfig(
                image_size=64, patch_size=16, projection_dim=16, **{**WIDTHS, "num_hidden_layers": 3}
            ),
            text_config=t.LlamaConfig(
                num_key_value_heads=4, pad_token_id=0, **{**WORDS, "max_position_embeddings": 64}
            ),
            image_token_index=60,
            vision_feature_layer=-2,
            image_seq_length=16,
        ),
        scores.token(9),
        others={"input_ids": torch.tensor([[1, *[60] * 16, 5, 6, 7]])},
    ),
    hf_case("MobileViTForImageClassification", lambda t: t.MobileViTConfig(image_size=128), size=128),
    hf_case(
        "DepthAnythingForDepthEstimation",
        lambda t: t.DepthAnythingConfig(
            backbone_config=t.Dinov2Config(
                image_size=56,
                patch_size=14,
                hidden_size=32,
                num_hidden_layers=4,
                num_attention_heads=4,
                out_indices=[1, 2, 3, 4],
                reshape_hidden_states=False,
                apply_layernorm=True,
            ),
            reassemble_hidden_size=32,
            patch_size=14,
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=8,
        ),
        scores.pixel(5, 6),
        size=56,
    ),
    hf_case(
        "Qwen2VLForConditionalGeneration",
        lambda t: t.Qwen2VLConfig(
            text_config={
                **WORDS,
                "num_key_value_heads": 2,
                "max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2},
            image_token_id=60,
            video_token_id=61,
            vision_start_token_id=62,
            vision_end_token_id=63,
        ),
        scores.token(5),
        size=112,
        others={"input_ids": torch.tensor([[1, 62, *[60] * 16, 63, 5, 6, 7]])},
        wrapper=PatchesOfImages,
    ),
    hf_case(
        "VideoMAEForVideoClassification",
        lambda t: t.VideoMAEConfig(image_size=32, patch_size=16, num_frames=6, tubelet_size=2, **WIDTHS),
        size=(6, 32, 32),
    ),
    hf_case(
        "TimesformerForVideoClassification",
        lambda t: t.TimesformerConfig(image_size=32, patch_size=16, num_frames=6, **WIDTHS),
        size=(6, 32, 32),
    ),
    hf_case(
        "VivitForVideoClassification",
        lambda t: t.VivitConfig(image_size=32, num_frames=6, tubelet_size=[2, 16, 16], **WIDTHS),
        size=(6, 32, 32),
    ),
    hf_case(
        "HieraForImageClassification",
        lambda t: t.HieraConfig(image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2]),
    ),
    hf_case(
        "PvtV2ForImageClassification",
        lambda t: t.PvtV2Config(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    ),
    hf_case("FocalNetForImageClassification", lambda t: t.FocalNetConfig(image_size=64, embed_dim=16, depths=[1] * 4)),
    hf_case(
        "UperNetForSemanticSegmentation",
        lambda t: t.UperNetConfig(
            backbone_config=t.SwinConfig(window_size=2, **SWIN, **OUT), hidden_size=16, use_auxiliary_head=False
        ),
        scores.pixel(3, 4, cls=1),
    ),
    hf_case(
        "OwlViTForObjectDetection",
        lambda t: t.OwlViTConfig(
            text_config={**WORDS, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2},
            vision_config={"image_size": 64, "patch_size": 16, **WIDTHS},
            projection_dim=32,
        ),
        lambda output: output.logits[:, 5, 0],
        others={"input_ids": torch.tensor([[1, 5, 9, 2]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)},
    ),
    hf_case(
        "GLPNForDepthEstimation",
        lambda t: t.GLPNConfig(**STAGES, decoder_hidden_size=16),
        lambda output: output.predicted_depth.mean((1, 2)),
    ),
    hf_case(
        "ConditionalDetrForObjectDetection",
        lambda t: t.ConditionalDetrConfig(
            use_timm_backbone=False,
            backbone=None,
            backbone_config=t.ResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 16, 32, 32],
                depths=[1] * 4,
                layer_type="basic",
                out_features=["stage4"],
            ),
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            num_queries=5,
            num_labels=5,
        ),
        scores.box(0, 1),
        size=128,
    ),
    Case("r3d_18", "torchvision", small_r3d, (8, 32, 32)),
    Case("swin3d_t", "torchvision", small_swin3d, (4, 64, 64)),
)
