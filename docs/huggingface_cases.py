"""Small random models of the families of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from architecture_case import hf_case
from torch import Tensor, nn

from vitreous import scores

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
STAGES = {"hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4]}
OUT = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
RESIDUAL: dict[str, Any] = {"hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 2, 1]}
WORDS = {**WIDTHS, "vocab_size": 64, "max_position_embeddings": 32}


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


def with_positive_depth(model: nn.Module) -> nn.Module:
    """A larger bias before the last ReLU, below which a random model's depth is 0 everywhere."""
    nn.init.ones_(list(model.parameters())[-1])
    return model


HUGGING_FACE = (
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
        wrapper=with_positive_depth,
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
        wrapper=with_positive_depth,
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
        image="images",
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
    hf_case(
        "RegNetForImageClassification",
        lambda t: t.RegNetConfig(embedding_size=16, groups_width=8, **RESIDUAL),
    ),
    hf_case(
        "ResNetForImageClassification", lambda t: t.ResNetConfig(embedding_size=16, layer_type="basic", **RESIDUAL)
    ),
    hf_case(
        "EfficientNetForImageClassification",
        lambda t: t.EfficientNetConfig(image_size=64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    ),
    hf_case(
        "LevitForImageClassification",
        lambda t: t.LevitConfig(
            image_size=64, hidden_sizes=[16, 32, 32], num_attention_heads=[2] * 3, key_dim=[8] * 3, depths=[1] * 3
        ),
    ),
    hf_case(
        "CvtForImageClassification", lambda t: t.CvtConfig(embed_dim=[16, 32, 32], num_heads=[1, 2, 2], depth=[1, 2, 3])
    ),
    hf_case(
        "Data2VecVisionForImageClassification",
        lambda t: t.Data2VecVisionConfig(image_size=64, patch_size=16, **WIDTHS),
    ),
    hf_case("MobileNetV2ForImageClassification", lambda t: t.MobileNetV2Config(image_size=64, depth_multiplier=0.35)),
    hf_case("BitForImageClassification", lambda t: t.BitConfig(embedding_size=16, num_groups=4, **RESIDUAL)),
    hf_case(
        "PoolFormerForImageClassification", lambda t: t.PoolFormerConfig(hidden_sizes=[8, 16, 32, 64], depths=[1] * 4)
    ),
    hf_case(
        "SwiftFormerForImageClassification",
        lambda t: t.SwiftFormerConfig(image_size=64, embed_dims=[16, 32, 32, 64], depths=[1] * 4),
    ),
    hf_case(
        "PvtForImageClassification",
        lambda t: t.PvtConfig(
            image_size=64, hidden_sizes=[16, 16, 32, 32], depths=[1] * 4, num_attention_heads=[1, 1, 2, 2]
        ),
    ),
)
