"""Vision networks of transformers from their configurations, and monai's networks for volumes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo.language import SMALL, hub
from tests.zoo.network import Inputs, Network, floats, image, load

VIT = SMALL | {"image_size": 64, "patch_size": 16}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 40], "num_labels": 10}


def see(name: str, config: str, model: str, size: int = 64, quick: bool = False, **options: Any) -> Network:
    make = partial(hub, config, model, **options)
    return Network(name, make, image(size, name="pixel_values"), "transformers", quick=quick)


def clip(n: int) -> Inputs:
    return {"input_ids": torch.randint(1, 97, (n, 8)), "pixel_values": torch.randn(n, 3, 64, 64)}


def two_towers() -> nn.Module:
    text = SMALL | {"vocab_size": 99, "max_position_embeddings": 20, "bos_token_id": 97, "eos_token_id": 98}
    return hub("CLIPConfig", "CLIPModel", text_config=text, vision_config=VIT, projection_dim=24)


def detector() -> nn.Module:
    """DETR on transformers' own ResNet."""
    backbone = load("transformers").ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    return hub(
        "DetrConfig", "DetrForObjectDetection", use_timm_backbone=False, backbone=None, backbone_config=backbone,
        use_pretrained_backbone=False, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=7, num_labels=5,
    )  # fmt: skip


def volumes(name: str, **options: Any) -> nn.Module:
    return getattr(load("monai.networks.nets"), name)(**options)


NETWORKS = [
    see("hf_vit", "ViTConfig", "ViTForImageClassification", **VIT),
    see("deit", "DeiTConfig", "DeiTForImageClassificationWithTeacher", quick=True, **VIT),
    see("beit", "BeitConfig", "BeitModel", use_relative_position_bias=True, layer_scale_init_value=0.1, **VIT),
    see("dinov2", "Dinov2Config", "Dinov2Model", mlp_ratio=2, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, image_size=64, patch_size=16),
    see("hf_swin", "SwinConfig", "SwinModel", embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
        image_size=64, patch_size=4),
    see("clip_vision", "CLIPVisionConfig", "CLIPVisionModel", **VIT),
    see("siglip_vision", "SiglipVisionConfig", "SiglipVisionModel", **VIT),
    Network("clip", two_towers, clip, "transformers"),
    see("segformer", "SegformerConfig", "SegformerForSemanticSegmentation", depths=[1, 1, 1, 1],
        hidden_sizes=[16, 16, 32, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16, num_labels=5,
        attention="eager"),
    see("mobilevit", "MobileViTConfig", "MobileViTForImageClassification", hidden_sizes=[24, 32, 40],
        neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64], image_size=64, num_labels=10),
    see("hf_resnet", "ResNetConfig", "ResNetForImageClassification", embedding_size=16, **STAGES),
    see("convnext_v2", "ConvNextV2Config", "ConvNextV2ForImageClassification", **STAGES),
    see("poolformer", "PoolFormerConfig", "PoolFormerForImageClassification", attention="eager", **STAGES),
    see("hf_regnet", "RegNetConfig", "RegNetForImageClassification", embedding_size=16, groups_width=8, **STAGES),
    see("hf_efficientnet", "EfficientNetConfig", "EfficientNetForImageClassification", width_coefficient=0.25,
        depth_coefficient=0.5, hidden_dim=320, num_labels=10, image_size=64),
    see("mobilenet_v2_hf", "MobileNetV2Config", "MobileNetV2ForSemanticSegmentation", depth_multiplier=0.35,
        num_labels=5, image_size=64),
    see("pvt_v2", "PvtV2Config", "PvtV2ForImageClassification", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2], num_labels=10, attention="eager"),
    see("dpt", "DPTConfig", "DPTForDepthEstimation", hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=64, image_size=64, patch_size=16, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 16, 16, 16], fusion_hidden_size=16, is_hybrid=False),
    see("yolos", "YolosConfig", "YolosForObjectDetection", num_detection_tokens=5, num_labels=5,
        **VIT | {"image_size": [64, 64]}),
    Network("detr", detector, image(64, name="pixel_values"), "transformers"),
    Network("monai_unet_3d", partial(volumes, "UNet", spatial_dims=3, in_channels=1, out_channels=2,
            channels=(4, 8, 16), strides=(2, 2), num_res_units=1), floats(1, 16, 16, 16), "monai"),
    Network("monai_segresnet", partial(volumes, "SegResNet", spatial_dims=3, init_filters=8, blocks_down=(1, 1),
            blocks_up=(1,)), floats(1, 8, 8, 8), "monai"),
    Network("monai_unetr", partial(volumes, "UNETR", in_channels=1, out_channels=2, img_size=(32, 32), feature_size=4,
            hidden_size=24, mlp_dim=48, num_heads=4, spatial_dims=2), image(32, 1, name="x_in"), "monai"),
]  # fmt: skip
