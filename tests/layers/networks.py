"""A ResNet with the names of torchvision, in dnnops and in PyTorch."""

from __future__ import annotations

from typing import Any

from dnnops import layers, nnet

#: Blocks of each stage, of ResNet-50.
BLOCKS = (3, 4, 6, 3)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> layers.Layer:
    pad = size // 2
    return layers.SpatialConvolution(
        inputs, outputs, size, size, stride, stride, pad, pad, bias=False
    )


class Bottleneck(layers.Layer):
    """A residual block of three convolutions."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = _conv(inputs, planes, 1)
        self.bn1 = layers.SpatialBatchNormalization(planes)
        self.conv2 = _conv(planes, planes, 3, stride)
        self.bn2 = layers.SpatialBatchNormalization(planes)
        self.conv3 = _conv(planes, 4 * planes, 1)
        self.bn3 = layers.SpatialBatchNormalization(4 * planes)
        if stride > 1 or inputs != 4 * planes:
            self.downsample = layers.Sequential(
                _conv(inputs, 4 * planes, 1, stride),
                layers.SpatialBatchNormalization(4 * planes),
            )

    def forward(self, x: Any) -> Any:
        z = nnet.relu(self.bn1(self.conv1(x)))
        z = nnet.relu(self.bn2(self.conv2(z)))
        z = self.bn3(self.conv3(z))
        return nnet.relu(z + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(layers.Layer):
    """ResNet-50 with a width of 64."""

    def __init__(self, width: int = 64, classes: int = 1000, blocks: tuple[int, ...] = BLOCKS):
        super().__init__()
        self.conv1 = _conv(3, width, 7, 2)
        self.bn1 = layers.SpatialBatchNormalization(width)
        self.pool = layers.SpatialMaxPooling(3, 3, 2, 2, 1, 1)
        inputs = width
        for stage, count in enumerate(blocks):
            planes = width << stage
            parts = []
            for block in range(count):
                parts.append(Bottleneck(inputs, planes, 2 if stage and not block else 1))
                inputs = 4 * planes
            setattr(self, f"layer{stage + 1}", layers.Sequential(*parts))
        self.fc = layers.Linear(inputs, classes)
        self.stages = len(blocks)

    def forward(self, x: Any) -> Any:
        x = self.pool(nnet.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean(axis=(2, 3)))


def torch_resnet(width: int = 64, classes: int = 1000, blocks: tuple[int, ...] = BLOCKS) -> Any:
    """Return the same network as a PyTorch module."""
    from torch import nn

    def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> Any:
        return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)

    class TorchBottleneck(nn.Module):
        def __init__(self, inputs: int, planes: int, stride: int):
            super().__init__()
            self.conv1, self.bn1 = conv(inputs, planes, 1), nn.BatchNorm2d(planes)
            self.conv2, self.bn2 = conv(planes, planes, 3, stride), nn.BatchNorm2d(planes)
            self.conv3, self.bn3 = conv(planes, 4 * planes, 1), nn.BatchNorm2d(4 * planes)
            self.downsample = None
            if stride > 1 or inputs != 4 * planes:
                self.downsample = nn.Sequential(
                    conv(inputs, 4 * planes, 1, stride), nn.BatchNorm2d(4 * planes)
                )

        def forward(self, x: Any) -> Any:
            z = self.bn1(self.conv1(x)).relu()
            z = self.bn2(self.conv2(z)).relu()
            z = self.bn3(self.conv3(z))
            return (z + (x if self.downsample is None else self.downsample(x))).relu()

    class TorchResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = conv(3, width, 7, 2), nn.BatchNorm2d(width)
            self.maxpool = nn.MaxPool2d(3, 2, 1)
            inputs = width
            for stage, count in enumerate(blocks):
                planes = width << stage
                parts = []
                for block in range(count):
                    parts.append(TorchBottleneck(inputs, planes, 2 if stage and not block else 1))
                    inputs = 4 * planes
                setattr(self, f"layer{stage + 1}", nn.Sequential(*parts))
            self.fc = nn.Linear(inputs, classes)

        def forward(self, x: Any) -> Any:
            x = self.maxpool(self.bn1(self.conv1(x)).relu())
            for stage in range(len(blocks)):
                x = getattr(self, f"layer{stage + 1}")(x)
            return self.fc(x.mean((2, 3)))

    return TorchResNet()
